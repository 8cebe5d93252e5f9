"""Steps that are launched before the last one's tokens are read, on a model; the ids stay tensors.

A CPU runs a launched step at once, so nothing here overlaps. What it shows is that no step needs
the host to know the tokens of the one before.
"""

import importlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

from argosy_engine.config import EngineConfig  # noqa: E402
from argosy_engine.core.request import Chunk, NewRequest, to_table  # noqa: E402
from argosy_engine.core.sampling import SamplingParams  # noqa: E402
from argosy_engine.core.step import StepPlan  # noqa: E402
from argosy_engine.runtime.ahead import Ahead, OneByOne  # noqa: E402
from argosy_engine.runtime.torch.graphs import capture_decodes  # noqa: E402
from argosy_engine.runtime.torch.launcher import TorchLauncher  # noqa: E402
from argosy_engine.runtime.torch.runner import load  # noqa: E402
from argosy_engine.runtime.torch.sampler import sample, sample_there  # noqa: E402
from argosy_engine.server.serve import _scheduler  # noqa: E402
from local.weights.tiny import write_tiny  # noqa: E402
from tests.engine_torch.tape import Questions, Tape  # noqa: E402

PROMPTS = [[5 + (at * 31 + one * 17) % 250 for at in range(9 + 14 * one)] for one in range(8)]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0)
ASKED = [
    GREEDY,
    replace(SAMPLED, top_p=0.9, seed=1),
    replace(SAMPLED, top_k=20, top_p=0.8, seed=2, max_tokens=17),
    replace(SAMPLED, seed=3, max_tokens=1),
    replace(SAMPLED, min_p=0.02, seed=4, ignore_eos=False, stop_token_ids=tuple(range(40))),
    replace(GREEDY, stop_token_ids=tuple(range(100, 140))),
    replace(SAMPLED, temperature=0.3, seed=6, top_k=1),
    replace(SAMPLED, top_k=300, seed=7),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("ahead") / "tiny")
    return EngineConfig(
        model=str(folder),
        served_name="m",
        dtype="float32",
        compute="torch",
        threads=1,
        block_size=16,
        kv_cache_tokens=1024,
        max_num_batched_tokens=64,
        max_num_seqs=5,
    )


class Serving:
    """A loaded engine without its threads. `followed` counts the steps that were launched ahead."""

    def __init__(self, config, *, ahead):
        self.runner, _ = load(config)
        self.scheduler = _scheduler(config, self.runner)
        self.steps = OneByOne(self.runner.execute)
        self.followed = 0
        if ahead:
            self.launch_ahead()

    def launch_ahead(self, *, graphs=False):
        trunk, pool = self.runner.trunk, self.runner._pool
        launcher = TorchLauncher(trunk, pool, self.runner.execute)
        if graphs:
            tape = Tape(pool, trunk, trunk._between)
            launcher.graphs = capture_decodes(trunk, pool, 2, tape.capture_step)
        self.steps = Ahead(self.scheduler, launcher, may_go_on=lambda: True, clock=lambda: 0.0)

    def texts(self, asked):
        sequences = [
            self.scheduler.add(
                NewRequest(request_id=f"r{at}", token_ids=ids, sampling=params, arrival_s=0.0)
            )
            for at, (ids, params) in enumerate(zip(PROMPTS, asked, strict=False))
        ]
        while self.scheduler.sequences or self.steps.next:
            following = self.steps.next
            self.followed += following is not None
            plan = following.plan if following else self.scheduler.schedule(0.0).plan
            self.scheduler.update(*self.steps.compute(plan), 0.0)
        self.runner.close()
        assert self.scheduler.pool.used == 0
        return [(one.tokens[one.n_prompt :], one.reason) for one in sequences]


@pytest.mark.parametrize("evicts", [False, True], ids=["in plenty", "preempted"])
def test_greedy_and_sampled_texts_are_those_of_waiting_for_each_step(config, evicts):
    if evicts:
        config = replace(config, kv_cache_tokens=240)
    ahead = Serving(config, ahead=True)
    found = ahead.texts(ASKED)
    assert found == Serving(config, ahead=False).texts(ASKED)
    assert {reason for _, reason in found} == {"stop", "length"}
    assert len({tuple(ids) for ids, _ in found}) == len(ASKED)
    assert ahead.followed > 10


def test_a_row_without_numbers_fails_alone(config, monkeypatch):
    """The model overflows in the third row at its eighth step, whose tokens are in use already."""
    ahead = Serving(config, ahead=True)
    forward, calls = ahead.runner.trunk.forward, []

    def overflowing(*given):
        logits = forward(*given)
        calls.append(len(logits))
        if len(calls) == 8:
            logits[2] = float("nan")
        return logits

    monkeypatch.setattr(ahead.runner.trunk, "forward", overflowing)
    found = ahead.texts(ASKED)
    expected = Serving(config, ahead=False).texts(ASKED)
    failed = [at for at, (_, reason) in enumerate(found) if reason == "error"]
    assert len(failed) == 1
    assert found[failed[0]][0] == expected[failed[0]][0][: len(found[failed[0]][0])]
    assert [one for at, one in enumerate(found) if at not in failed] == [
        one for at, one in enumerate(expected) if at not in failed
    ]


@pytest.mark.slow
def test_triton_kernels_take_tokens_from_where_they_were_drawn(config):
    """By Triton's interpreter: the numbers of both steps go through the one buffer that stays."""
    pytest.importorskip("triton")
    triton_pool = importlib.import_module("argosy_engine.model.attention.triton_pool")

    def texts(*, ahead, graphs=False):
        serving = Serving(config, ahead=False)
        old, spec = serving.runner._pool, serving.runner.trunk.spec
        pool = triton_pool.TritonPool(old.shape, torch.float32, old.device, heads=spec.heads)
        serving.runner._pool = pool
        if ahead:
            serving.launch_ahead(graphs=graphs)
        found = serving.texts([replace(params, max_tokens=3) for params in ASKED[:2]])
        return found, serving.followed

    (found, followed), (expected, _) = texts(ahead=True), texts(ahead=False)
    assert found == expected
    assert followed == 2
    assert texts(ahead=True, graphs=True) == (expected, 2)


def test_launching_asks_the_device_no_question(config):
    """As the draw of a step that is waited for does: with a top_p, or rows of several kinds."""
    runner, _ = load(config)
    sampling = [params for params in ASKED if params.max_tokens > 1]
    plan = StepPlan(
        index=1,
        chunks=tuple(
            Chunk(
                request_id=str(at),
                tokens=[0] * 3,
                block_table=to_table([at + 1]),
                start=2,
                count=1,
                samples=True,
                decode=True,
                sampling=params,
                n_prompt=2,
            )
            for at, params in enumerate(sampling)
        ),
        block_size=16,
        prefill_tokens=0,
        prefill_sequences=0,
        decode_sequences=len(sampling),
        decode_context_tokens=3 * len(sampling),
        after_idle=True,
    )
    launcher = TorchLauncher(runner.trunk, runner._pool, runner.execute)
    with Questions() as questions:
        first = launcher.launch(plan, None)
        rows = tuple(reversed(range(len(sampling))))
        launcher.launch(replace(plan, drawn=rows), first)
    assert questions.asked == []
    with Questions() as questions:
        runner.execute(plan)
    assert questions.asked != []
    runner.close()


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 1e-3, 0.5, 1.0, 3.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.95, 0.5, 1e-6, 0.99999999]),
    top_k=st.sampled_from([0, 0, 1, 3, 40, 256, 257, 599, 600, 10**9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05]),
    seed=st.integers(0, 9),
)


@settings(deadline=None, max_examples=150)
@given(
    asked=st.lists(PARAMS, min_size=1, max_size=7),
    flatness=st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    seed=st.integers(0, 99),
    broken=st.sampled_from([None, float("nan"), float("inf"), float("-inf")]),
)
def test_a_draw_that_stays_on_the_device_is_the_hosts_draw(asked, flatness, seed, broken):
    torch.manual_seed(seed)
    logits = (torch.randn(len(asked), 600) * flatness).round(decimals=1)  # with equal ones
    if broken is not None:
        logits[0] = broken
    positions = list(range(len(asked)))
    there = sample_there(logits.clone(), asked, positions)
    assert there.dtype == torch.int64
    assert int(there.min()) >= 0
    assert int(there.max()) < 600
    here = sample(logits.clone(), asked, positions)
    good = slice(0 if broken is None else 1, None)
    assert there.tolist()[good] == here[good]
