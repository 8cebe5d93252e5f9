"""Steps that are launched while the one before them runs: the texts are those of waiting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from argosy_engine.core.handover.messages import LeaseReady, RemotePrefill
from argosy_engine.core.request import NewRequest
from argosy_engine.core.sampling import SamplingParams
from tests.engine.runtime.launching import EOS, VOCAB, Engine, whole_text
from tests.kv.nodes import until


def prompt(number, length=6):
    """Different for each number below VOCAB²."""
    return [
        (number // VOCAB + at, number, number + at * at)[at % 3] % VOCAB for at in range(length)
    ]


def long_one(engine, name, number=0, **more):
    """A request whose text has no early end."""
    return engine.ask(name, prompt(number), ignore_eos=True, **{"max_tokens": 12, **more})


def test_a_step_is_launched_before_the_tokens_of_the_last_one_are_read():
    engine = Engine()
    client = long_one(engine, "a", max_tokens=4)
    engine.finish()
    assert engine.device.log == [
        ("launch", 1), ("launch", 2), ("read", 1), ("launch", 3), ("read", 2), ("launch", 4),
        ("read", 3), ("read", 4),
    ]  # fmt: skip
    assert client.ids == whole_text(engine.requests["a"])[0]


def ahead_of(engine, turns=1):
    """Whether a step is launched already after so many turns."""
    for _ in range(turns):
        engine.turn()
    return engine.loop._computing.next is not None


def test_a_prompt_that_is_computed_whole_is_followed_and_a_part_of_one_is_not():
    engine = Engine(tokens=8)
    long_one(engine, "a", number=1)
    assert ahead_of(engine)
    parts = Engine(tokens=4)
    long_one(parts, "a", number=1)
    assert [ahead_of(parts), ahead_of(parts)] == [False, True]


REMEMBERING = {
    "a grammar": {"grammar": "x"},
    "a penalty": {"presence_penalty": 1.0},
    "a repetition penalty": {"repetition_penalty": 1.1},
    "bad words": {"bad_words": ((5,),)},
    "least tokens": {"min_tokens": 2},
    "log probabilities": {"logprobs": 0},
    "the prompt's log probabilities": {"prompt_logprobs": 0},
}


@pytest.mark.parametrize("what", REMEMBERING)
def test_nothing_is_launched_ahead_of_a_request_that_needs_its_tokens_on_the_host(what):
    assert not SamplingParams(max_tokens=1, **REMEMBERING[what]).memoryless
    engine = Engine()
    long_one(engine, "a")
    long_one(engine, "b", number=1, **REMEMBERING[what])
    assert not ahead_of(engine, 3)


def test_a_request_that_comes_gets_its_scheduling_round_after_the_step_that_was_launched():
    engine = Engine()
    long_one(engine, "a")
    assert ahead_of(engine, 2)
    new = long_one(engine, "b", number=1)
    engine.turn()
    assert engine.loop._computing.next is None
    engine.turn()
    assert len(new.ids) == 1


def test_a_request_that_waits_too_long_fails_though_the_batch_is_full():
    engine = Engine(seqs=1)
    long_one(engine, "a", max_tokens=50)
    waits = long_one(engine, "b", 1)
    assert ahead_of(engine, 2)
    engine.scheduler.waiting[0].wait_deadline_s = engine.now
    engine.turn()
    engine.turn()
    assert (waits.end, waits.code) == ("error", "queue_timeout")


def test_a_row_that_is_known_to_end_is_left_out_of_the_step_that_follows():
    engine = Engine()
    long_one(engine, "short", max_tokens=1)
    long_one(engine, "long", 1)
    assert ahead_of(engine)
    following = engine.loop._computing.next
    assert [chunk.request_id for chunk in following.plan.chunks] == ["long"]
    assert following.plan.drawn == (1,)


def asking(ids, **sampling):
    sampling = SamplingParams(**{"max_tokens": 30, **sampling})
    return NewRequest(request_id="a", token_ids=ids, sampling=sampling, arrival_s=0.0)


def ending_by_itself():
    """A prompt whose third token ends the text."""
    numbers = range(VOCAB * VOCAB)
    return next(prompt(n) for n in numbers if len(whole_text(asking(prompt(n)))[0]) == 3)


def test_the_draw_after_the_end_of_a_text_is_dropped_and_its_block_stays_until_then():
    engine = Engine()
    client = engine.ask("a", ending_by_itself(), max_tokens=30)
    assert ahead_of(engine, 2)
    assert ahead_of(engine)  # it ended in this turn, and a step with it runs
    (written,) = engine.loop._computing.next.written
    assert (client.end, client.ids[-1], len(client.ids)) == ("stop", EOS, 3)
    assert engine.scheduler.pool.refs(written) == 1
    assert engine.scheduler.pool.used == 1
    engine.turn()
    assert len(client.ids) == 3
    engine.assert_empty()


async def test_a_turn_that_fails_loses_no_token_though_a_step_was_launched_behind_it():
    engine = Engine()
    client = long_one(engine, "a", max_tokens=20)
    update, failed = engine.scheduler.update, []

    def failing_once(plan, out, now):
        if plan.index == 3 and not failed:
            failed.append(engine.loop._computing.next.plan.index)
            raise KeyError("a bug")
        return update(plan, out, now)

    engine.scheduler.update = failing_once
    engine.loop.start()
    try:
        await until(lambda: client.end)
    finally:
        engine.loop.stop()
    assert failed == [4]
    assert client.ids == whole_text(engine.requests["a"])[0]
    engine.assert_empty()


@pytest.mark.parametrize("ended", [True, False])
def test_the_prefix_cache_is_reset_if_no_request_runs_though_a_step_does(ended):
    engine = Engine()
    client = engine.ask("a", ending_by_itself(), max_tokens=30, ignore_eos=not ended)
    assert ahead_of(engine, 3)
    forgotten = engine.loop.reset_prefix_cache()
    engine.turn()
    assert forgotten.result(0) is ended
    engine.finish()
    assert client.ids == whole_text(engine.requests["a"])[0]


def test_a_full_pool_gives_no_block_ahead_and_preempts_nobody_for_it(caplog):
    engine = Engine(blocks=5, evicts=True)
    long_one(engine, "a", max_tokens=6)
    long_one(engine, "b", 1, max_tokens=6)
    assert [ahead_of(engine) for _ in range(2)] == [True, True]  # up to 8 tokens: two blocks each
    assert not ahead_of(engine)
    assert engine.scheduler.waiting == []
    assert caplog.records == []
    engine.finish()
    for name, request in engine.requests.items():
        assert engine.clients[name].ids == whole_text(request)[0]


def test_an_engine_that_ends_waits_for_the_step_that_it_has_launched():
    engine = Engine()
    client = long_one(engine, "a", max_tokens=40)
    assert ahead_of(engine, 2)
    engine.loop.start()
    engine.loop.stop()
    assert engine.device.launched == []
    assert client.end == "draining"


# ------------------------------------------------------------- peers


def test_a_pull_that_takes_too_long_is_cancelled_between_two_steps():
    engine = Engine()
    long_one(engine, "a", max_tokens=50)
    long_one(engine, "b", 1, pulled=True)
    assert ahead_of(engine, 3)
    engine.now += 61.0  # the service has a second more than its minute
    engine.turn()
    engine.turn()
    assert engine.peer.cancelled == ["b"]
    engine.finish()
    assert engine.clients["b"].ids == whole_text(engine.requests["b"])[0]


def test_a_peers_prompt_is_leased_and_not_decoded():
    engine = Engine()
    client = long_one(engine, "a", max_tokens=5)
    answers = []
    prefill = RemotePrefill(
        request_id="far", attempt=1, token_ids=tuple(prompt(1)), lease_s=30.0,
        sampling=SamplingParams(max_tokens=9),
    )  # fmt: skip
    engine.loop.submit_remote_prefill(prefill, answers.append)
    assert ahead_of(engine)
    assert [c.request_id for c in engine.loop._computing.next.plan.chunks] == ["a"]
    assert [type(answer) for answer in answers] == [LeaseReady]
    assert ahead_of(engine)
    engine.loop.release(answers[-1].key)
    engine.finish()
    assert client.ids == whole_text(engine.requests["a"])[0]
    engine.assert_empty()


# ------------------------------------------------------------- random work


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("ask"),
            st.integers(0, 9),
            st.integers(1, 24),
            st.integers(1, 16),
            st.sampled_from([{}, {}, {"stop": 5}, {"stop_after": 3}, {"ignore_eos": True}]),
            st.booleans(),
        ),
        st.tuples(st.sampled_from(["pull comes", "pull fails"])),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("limits"), st.integers(1, 6)),
        st.tuples(st.just("reset")),
        st.tuples(st.just("wait"), st.integers(1, 6)),
    ),
    min_size=1,
    max_size=25,
)


def work(engine, actions):
    asked = 0
    for what, *more in actions:
        if what == "ask":
            number, length, tokens, options, pulled = more
            stop_ids = (options["stop"],) if "stop" in options else ()
            engine.ask(
                f"r{asked}",
                prompt(number, length),
                max_tokens=tokens,
                stop_token_ids=stop_ids,
                stop_after=options.get("stop_after"),
                ignore_eos=options.get("ignore_eos", False),
                pulled=pulled,
            )
            asked += 1
        elif what == "abort" and more[0] < asked:
            engine.abort(f"r{more[0]}")
        elif what == "pull comes" and engine.peer.jobs:
            engine.peer.bring()
        elif what == "pull fails" and engine.peer.jobs:
            engine.peer.fail()
        elif what == "limits":
            engine.loop.change({"max_num_seqs": more[0]})
        elif what == "reset":
            engine.loop.reset_prefix_cache()
        for _ in range(more[0] if what == "wait" else 1):
            engine.turn()
    engine.finish()


def assert_true_texts(engine, *, failed=False):
    for name, client in engine.clients.items():
        text, reason = whole_text(engine.requests[name])
        if client.end in ("stopped", "aborted") or (failed and client.end == "error"):
            assert client.ids == text[: len(client.ids)]
        else:
            assert (client.ids, client.end) == (text, reason)


OPTIONS = st.fixed_dictionaries(
    {
        "blocks": st.integers(16, 40),
        "seqs": st.integers(1, 6),
        "tokens": st.integers(8, 64),
        "evicts": st.booleans(),
        "slots": st.sampled_from([0, 12]),
        "eager": st.booleans(),
    }
)


@settings(deadline=None)
@given(actions=ACTIONS, options=OPTIONS)
def test_random_work_gives_every_request_the_text_of_waiting_for_each_step(actions, options):
    ahead, waiting = Engine(**options), Engine(ahead=False, **options)
    for engine in (ahead, waiting):
        work(engine, actions)
        assert_true_texts(engine)
        engine.assert_empty()


@settings(deadline=None)
@given(actions=ACTIONS, options=OPTIONS, failing=st.sets(st.integers(1, 40), max_size=4),
       refusing=st.sets(st.integers(1, 40), max_size=4))  # fmt: skip
def test_failed_steps_and_launches_spoil_no_other_text(actions, options, failing, refusing):
    engine = Engine(failing=failing, refusing=refusing, **options)
    work(engine, actions)
    assert_true_texts(engine, failed=True)
    engine.assert_empty()
