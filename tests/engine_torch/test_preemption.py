"""Real KV that leaves the pool and comes back: the text is that of an undisturbed request."""

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import NewRequest  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.runtime.loop import move_kv  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from argosy_engine.server.serve import _host_slots, _scheduler  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402

BLOCK = 16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("preemption") / "tiny")


def serve(folder, *, blocks, mode, slots, greedy):
    """(texts, modes of the preemptions) of four requests on a pool of so many blocks."""
    config = EngineConfig(
        model=str(folder),
        served_name="m",
        dtype="float32",
        threads=1,
        block_size=BLOCK,
        kv_cache_tokens=blocks * BLOCK,
        preemption_mode=mode,
        max_num_batched_tokens=64,
    )
    runner, _ = load(config)
    block_gib = runner.kv_layout().block_bytes / (1 << 30)
    config = EngineConfig(
        **{n: getattr(config, n) for n in config.__slots__ if n != "swap_space"},
        swap_space=block_gib * (slots + 0.5),
    )
    if mode != "recompute":
        assert _host_slots(config, runner) == slots
        runner.reserve_host(slots)
    scheduler = _scheduler(config, runner)
    sequences = [
        scheduler.add(
            NewRequest(
                request_id=f"r{index}",
                token_ids=[5 + (index * 31 + at * 7) % 200 for at in range(20 + 9 * index)],
                sampling=SamplingParams(
                    max_tokens=60,
                    temperature=0.0 if greedy else 1.0,
                    seed=index,
                    ignore_eos=True,
                ),
                arrival_s=0.0,
            )
        )
        for index in range(4)
    ]
    modes = []
    while scheduler.sequences:
        scheduled = scheduler.schedule(0.0)
        modes += ["swap" if s.swapped else "recompute" for s in scheduled.preempted]
        move_kv(runner, scheduled, lambda *_: None)
        if scheduled.from_host:  # the prefix cache must not hide what was copied
            assert scheduled.resumed
        if scheduled.plan is not None:
            scheduler.update(scheduled.plan, runner.execute(scheduled.plan), 0.0)
    runner.close()
    return [sequence.tokens for sequence in sequences], modes


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_t42_the_text_is_the_same_after_a_preemption(tiny, mode, greedy):
    calm, never = serve(tiny, blocks=40, mode=mode, slots=20, greedy=greedy)
    crowded, modes = serve(tiny, blocks=12, mode=mode, slots=20, greedy=greedy)
    assert never == []
    assert modes
    assert set(modes) == {mode}
    assert crowded == calm


def test_t43_a_full_host_pool_computes_again_what_it_cannot_hold(tiny):
    calm, _ = serve(tiny, blocks=40, mode="swap", slots=4, greedy=False)
    crowded, modes = serve(tiny, blocks=12, mode="swap", slots=4, greedy=False)
    assert "recompute" in modes
    assert crowded == calm
