"""A fleet of vLLM apart, from what its pods report to replicas of both roles."""

from dataclasses import dataclass, replace

import pytest

from argosy_law.decide import decide, limits_of
from argosy_law.goals import SLO, Inputs, Serving, Windows
from argosy_law.observe import Idle, Observations, Value
from argosy_law.signals import others, samples
from argosy_law.signals.samples import Round, Series, assemble
from argosy_law.signals.validity import unknown_signals
from argosy_law.state import Lengths, ScalingState
from argosy_operator.core.steps.goals import goals_of
from tests.scaling import known
from tests.support.model import fleet

BEGAN, SCRAPE_S, ROUNDS = 1_000_000.0, 5.0, 30
SPAN = 30
"""Scrapes that a round has."""
WINDOWS = Windows(scrape_s=SCRAPE_S, interval_s=15, down_hold_s=60, cold_start_s=15)
SERVING = Serving(pulls_first=True)
LAW = replace(known.goals(SLO(1.0, 0.05), prior=None), windows=WINDOWS, serving=SERVING)
POD = {"namespace": "n", "fleet": "f"}


@dataclass(frozen=True)
class Vllm:
    """Ten requests per second at as many pods of each role as there are."""

    rate: float = 10.0
    prompt: float = 1000.0
    answer: float = 100.0
    prompt_s: float = 0.1
    """Of a prefill pod for a prompt."""
    step_s: float = 0.02
    """Of a decode pod, and a thousandth more for each sequence."""
    transfer_s: float = 0.05
    pods: int = 2

    def page(self, seconds):
        """Counters after so many seconds of steady load, by role and name."""
        done, tokens = self.rate / self.pods * seconds, self.answer - 1
        each = self.rate / self.pods * tokens
        batch = each * self.step_s / (1 - each * 1e-3)
        step = self.step_s + 1e-3 * batch
        prompts = {
            "vllm:prompt_tokens_total": done * self.prompt,
            "vllm:time_to_first_token_seconds_count": done,
        }
        prefill = prompts | {
            "vllm:num_requests_running": 1.0,
            "vllm:num_requests_waiting": 0.0,
            "vllm:prompt_tokens_cached_total": 0.0,
            "vllm:iteration_tokens_total_count": done,
            "vllm:request_prefill_time_seconds_sum": done * self.prompt_s,
            "vllm:nixl_xfer_time_seconds_sum": 0.0,
            "vllm:nixl_xfer_time_seconds_count": 0.0,
        }
        decode = prompts | {
            "vllm:num_requests_running": batch,
            "vllm:num_requests_waiting": 3.0,
            "vllm:prompt_tokens_cached_total": done * self.prompt,
            "vllm:iteration_tokens_total_count": seconds / step,
            "vllm:inter_token_latency_seconds_sum": each * seconds * step,
            "vllm:inter_token_latency_seconds_count": each * seconds,
            # As after KV loads that failed: the machine's uptime, each time.
            "vllm:request_prefill_time_seconds_sum": 59_543.0 * (seconds // 60),
            "vllm:nixl_xfer_time_seconds_sum": done * self.transfer_s,
            "vllm:nixl_xfer_time_seconds_count": done,
        }
        return {"prefill": prefill, "decode": decode}

    def series(self, seconds):
        newest = int(seconds / SCRAPE_S)
        times = [BEGAN + SCRAPE_S * k for k in range(max(newest - SPAN, 0), newest + 1)]
        pages = [self.page(at - BEGAN) for at in times]
        found = [
            Series(
                name,
                {**POD, "role": role, "pod": f"{role}-{pod}"},
                tuple((at, page[role][name]) for at, page in zip(times, pages, strict=True)),
            )
            for role in ("prefill", "decode")
            for name in pages[0][role]
            for pod in range(self.pods)
        ]
        info = {"num_gpu_blocks": "4096", "block_size": "16"}
        ones = tuple((at, 1.0) for at in times)
        found += [
            Series(
                "vllm:cache_config_info", {**POD, "role": role, "pod": f"{role}-{p}", **info}, ones
            )
            for role in ("prefill", "decode")
            for p in range(self.pods)
        ]
        ended = {
            samples.RECEIVED: ({"outcome": "accepted"}, 1.0),
            samples.VERDICTS: ({"ttft": "ok", "tpot": "ok"}, 1.0),
            f"{samples.PROMPTS}_count": ({}, 1.0),
            f"{samples.PROMPTS}_sum": ({}, self.prompt),
            samples.PROMPTS_SQUARED: ({}, self.prompt**2),
            f"{samples.OUTPUTS}_count": ({}, 1.0),
            f"{samples.OUTPUTS}_sum": ({}, self.answer),
        }
        gateway = {**POD, "role": "gateway", "pod": "g"}
        return found + [
            Series(
                name,
                gateway | labels,
                tuple((at, self.rate * (at - BEGAN) * each) for at in times),
            )
            for name, (labels, each) in ended.items()
        ]

    def metrics(self, seconds):
        series = others.translated(self.series(seconds))
        return assemble(Round(BEGAN + seconds, series, 1, 1), WINDOWS)

    def decision(self):
        """What the law says of it after some minutes."""
        state, supply = ScalingState(), known.supply({"prefill": self.pods, "decode": self.pods})
        for k in range(1, ROUNDS):
            seen = self.metrics(15.0 * k)
            state, decision = decide(state, Observations(seen, supply), LAW, seen.at)
        return decision


def needed(decision):
    return {target.role: target.demanded for target in decision.targets}


@pytest.fixture(scope="module")
def usual():
    return Vllm().decision()


@pytest.mark.parametrize(
    ("other", "grows"),
    [
        (Vllm(prompt_s=0.19), "prefill"),
        (Vllm(transfer_s=0.8), "prefill"),
        (Vllm(step_s=0.04), "decode"),
        (Vllm(answer=300.0), "decode"),
    ],
    ids=["longer prompts", "slower transfers", "slower steps", "longer answers"],
)
def test_each_role_is_sized_by_its_own_numbers(usual, other, grows):
    before, after = needed(usual), needed(other.decision())
    (stays,) = before.keys() - {grows}
    assert after[grows] > before[grows]
    assert after[stays] == before[stays]


def test_no_signal_is_missing_so_that_both_roles_may_shrink():
    seen = Vllm().metrics(600.0)
    assert unknown_signals("prefill", seen) == unknown_signals("decode", seen) == ()
    much = Vllm(pods=6).decision()
    assert all(target.replicas < 6 for target in much.targets), much.message


def test_what_explains_a_decision_has_the_numbers_of_both_roles(usual):
    assert usual.numbers["prefill_service_s"] == pytest.approx(0.1, rel=0.1)
    assert usual.numbers["decode_step_base_s"] == pytest.approx(0.02, rel=0.25)
    assert usual.numbers["prefill_load_replicas"] > 0 < usual.numbers["decode_batch_limit"]
    assert "prefill" in usual.message
    assert "decode" in usual.message


def test_transfers_are_those_of_decode_pods_and_count_once_there_are_enough():
    assert Vllm().metrics(600.0).kv_transfer_s == Value(pytest.approx(0.05), BEGAN + 600)
    assert Vllm(rate=0.01).metrics(600.0).kv_transfer_s == Idle(BEGAN + 600)
    latency = [
        Series(
            f"sglang:kv_transfer_latency_ms_{part}",
            {**POD, "role": "prefill", "pod": "p"},
            ((581.0, 0.0), (601.0, n)),
        )
        for part, n in (("sum", 2000.0), ("count", 20.0))
    ]
    seen = assemble(Round(601.0, others.translated(latency), 1, 1), WINDOWS)
    assert seen.kv_transfer_s == Value(pytest.approx(0.1), 601.0)


@pytest.mark.parametrize(
    ("engine", "ttft_s", "pause_s"), [("vllm", 0.85, 0.0), ("argosy", 1.0, 0.1)]
)
def test_the_transfer_is_taken_off_the_token_that_waits_for_it(engine, ttft_s, pause_s):
    slo = {"ttft": {"target": "1s"}, "tpot": {"target": "50ms"}}
    spec = {"engine": {"type": engine, "image": "v:1"}, "model": {"uri": "pvc://models"}}
    goals = goals_of(fleet(slo=slo, mode="disaggregated", **spec).spec)
    seen = Observations(known.metrics(known.START, 1.0, {"prefill": 1, "decode": 1}), ())
    state = ScalingState(lengths=Lengths(transfer_s=0.1))
    limits = limits_of(state, Inputs(seen, goals, goals.slo, known.START))
    assert (limits.ttft_s, limits.pause_s) == (pytest.approx(ttft_s), pause_s)
