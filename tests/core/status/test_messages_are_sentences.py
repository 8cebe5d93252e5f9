"""Whatever others write, or do not write, each condition has a message that says something."""

import json
import re
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from argosy_operator.core.snapshot.actions import ErrorKind
from tests.core.status.worlds import BUDGET, GATEWAY, World, pod, refused, sick, status, unready

words = st.one_of(
    st.sampled_from(("", " ", "\n", ".", "no such image.", "exceeded quota: ", "x" * 3000)),
    st.text(max_size=40),
)
waits = st.sampled_from(
    ("ErrImagePull", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError", "Other")
)
TYPED = ("ModelNotFound", "WeightsInvalid", "BadArgument", "OutOfMemory")
looks = st.one_of(
    st.fixed_dictionaries({"waiting": st.tuples(waits, words)}),
    st.fixed_dictionaries({"unschedulable": words}),
    st.fixed_dictionaries(
        {"unplaced": words, "assigned": st.just(False), "phase": st.just("Pending")}
    ),
    st.fixed_dictionaries(
        {"terminated": st.tuples(st.just("Error"), words), "restarts": st.just(1)}
    ),
    st.builds(
        lambda reason, text: {
            "terminated": ("Error", json.dumps({"reason": reason, "message": text}))
        },
        st.sampled_from(TYPED),
        words,
    ),
)
errors = st.sampled_from(
    (ErrorKind.FORBIDDEN, ErrorKind.QUOTA, ErrorKind.INVALID, ErrorKind.FAILED, ErrorKind.FOREIGN)
)
worlds = st.one_of(
    st.builds(lambda look: sick(**look), looks),
    st.builds(
        lambda look: World(pods=(pod("colocated"), unready("gateway", revision="", **look))), looks
    ),
    st.builds(refused, errors, words),
    st.builds(lambda error, text: refused(error, text, BUDGET), errors, words),
    st.builds(lambda text: World(pods=(GATEWAY,), no_pods=text or " "), words),
    st.builds(
        lambda world, spec: replace(world, spec=spec),
        st.builds(lambda look: sick(**look), looks),
        st.sampled_from(({"paused": True}, {"autoscaling": {"policy": "External"}})),
    ),
)
HOLES = re.compile(r"[:(] *[.,)]|\.\.|  |^[.,: ]|, *\.")


@example(sick(waiting=("ErrImagePull", "")))
@example(sick(unschedulable="0/3 nodes are available."))
@example(refused(ErrorKind.INVALID, ""))
@given(worlds)
def test_a_message_is_never_empty_and_has_no_hole(world: World) -> None:
    for said in status(world).conditions:
        assert re.search(r"\w{2}", said.message), said
        assert len(said.message) <= 1024
        quoted = said.message.replace("\n", " ")
        if world_says_nothing(world):
            assert not HOLES.search(quoted), said


def world_says_nothing(world: World) -> bool:
    """What others wrote is kept as it is, so holes are only ours where they wrote nothing odd."""
    texts = [text for _, text in world.fails.values()] + [world.no_pods]
    for each in world.pods:
        texts += [
            each.unschedulable or "",
            each.unplaced,
            *(each.waiting or ())[1:],
            *(each.terminated or ())[1:],
        ]
    plain = r"|\s+|\.|no such image\.|0/3 nodes are available\."
    return all(re.fullmatch(plain, _told(text)) for text in texts)


def _told(text: str) -> str:
    """The message of a termination message of our engine; another text as it is."""
    return str(json.loads(text)["message"]) if text.startswith('{"reason": ') else text
