"""A simulated engine takes the steps of one that computes: only the runner differs."""

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import NewRequest  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.sim import PROFILES, SimRunner  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from argosy_engine.server.serve import _scheduler  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

OPTIONS = {"served_name": "m", "block_size": 16, "kv_cache_tokens": 640, "max_num_seqs": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_tiny(tmp_path_factory.mktemp("plans") / "tiny"))


def plans(config, runner, work):
    """Each step's chunks; `work` is (the step before which it arrives, prompt, answer)."""
    scheduler, found = _scheduler(config, runner), []
    coming = sorted(enumerate(work), key=lambda one: one[1][0])
    for step in range(1000):
        while coming and coming[0][1][0] <= step:
            index, (_, prompt, answer) = coming.pop(0)
            scheduler.add(
                NewRequest(
                    request_id=f"r{index}",
                    token_ids=[5 + (at * (index % 3 + 1)) % 200 for at in range(prompt)],
                    sampling=SamplingParams(max_tokens=answer, ignore_eos=True),
                    arrival_s=float(step),
                )
            )
        if not scheduler.sequences and not coming:
            return found
        scheduled = scheduler.schedule(float(step))
        if scheduled.plan is not None:
            chunks = scheduled.plan.chunks
            found.append([(c.request_id, c.start, c.count, c.decode, c.samples) for c in chunks])
            scheduler.update(scheduled.plan, runner.execute(scheduled.plan), float(step))
    raise AssertionError("does not end")


@settings(max_examples=12, deadline=None)
@given(
    work=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 150), st.integers(1, 20)),
        min_size=1,
        max_size=8,
    ),
    step_tokens=st.sampled_from([32, 100, 256]),
    policy=st.sampled_from(["MAX_UTILIZATION", "GUARANTEED_NO_EVICT", "PAST_FUTURE"]),
)
def test_t51_simulated_and_real_steps_are_the_same(folder, work, step_tokens, policy):
    more = {**OPTIONS, "max_num_batched_tokens": step_tokens, "capacity_policy": policy}
    real = EngineConfig(model=folder, dtype="float32", threads=1, **more)
    simulated = EngineConfig(model="sim:opt-13b-a100", load_format="sim", **more)
    profile = PROFILES["opt-13b-a100"]
    runner, _ = load(real)
    sleepless = SimRunner("opt-13b-a100", profile, simulated, sleep=lambda _: None)
    try:
        assert plans(simulated, sleepless, work) == plans(real, runner, work)
    finally:
        runner.close()
