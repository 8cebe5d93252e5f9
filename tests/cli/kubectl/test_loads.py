"""`kubectl argosy top`, `logs` and `drain`: what pods say, and which pods may be drained."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from argosy_operator.cli.kubectl.exits import CommandError
from argosy_operator.cli.kubectl.views.drains import left_serving, progress, refusal
from argosy_operator.cli.kubectl.views.lines import container_of, prefixed, seconds_of
from argosy_operator.cli.kubectl.views.loads import Load, as_data, load, quantile, scrape, top_table
from argosy_operator.core.fleet import names

INF = float("inf")
PAGE = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="m",engine="0"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="m",engine="0"}} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{model_name="m",engine="0"}} 0.25
# TYPE argosy_kv_leases_active gauge
argosy_kv_leases_active 1
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{model_name="m",engine="0"}} {tokens}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{le="0.1"}} {fast}
vllm:time_to_first_token_seconds_bucket{{le="0.2"}} {all}
vllm:time_to_first_token_seconds_bucket{{le="+Inf"}} {all}
vllm:time_to_first_token_seconds_count {all}
vllm:time_to_first_token_seconds_sum 1
"""


def pod(name: str = "chat-decode-1", role: str = "decode", **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "a",
            "uid": name,
            "labels": {names.FLEET: "chat", names.ROLE: role},
            **meta,
        },
        "spec": {"containers": [{"name": "sidecar"}, {"name": "engine"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_a_pods_rates_are_those_between_two_scrapes() -> None:
    before = scrape(PAGE.format(running=1, tokens=100, fast=10, all=10))
    after = scrape(PAGE.format(running=4, tokens=300, fast=10, all=20))
    of = load(before, after, 2.0, "decode")
    assert (of.running, of.waiting, of.leases, of.kv_use) == (4, 2, 1, 0.25)
    assert of.tokens_per_s == 100
    assert of.ttft_s == pytest.approx(0.19)  # the ten of between lie from 0.1 to 0.2
    assert of.streams == 7


def test_pods_of_sglang_have_the_same_numbers_under_names_of_their_own() -> None:
    page = (
        PAGE.replace("vllm:num_requests_running", "sglang:num_running_reqs")
        .replace("vllm:num_requests_waiting", "sglang:num_queue_reqs")
        .replace("vllm:kv_cache_usage_perc", "sglang:token_usage")
        .replace("vllm:", "sglang:")
    )
    assert "vllm:" not in page
    before = scrape(page.format(running=1, tokens=100, fast=10, all=10))
    after = scrape(page.format(running=4, tokens=300, fast=10, all=20))
    of = load(before, after, 2.0, "decode")
    assert (of.running, of.waiting, of.kv_use, of.tokens_per_s) == (4, 2, 0.25, 100)
    assert of.ttft_s == pytest.approx(0.19)


def test_a_pod_that_does_not_answer_has_no_numbers_and_says_so() -> None:
    assert load(None, None, 2.0, "decode") == Load()
    text = top_table([(pod(), Load()), (pod("chat-gateway-1", "gateway"), Load(running=1))])
    head, engine, gateway = text.splitlines()
    assert head.split() == [
        "POD", "ROLE", "RUNNING", "WAITING", "KV", "TOKENS/S", "TTFT90", "TPOT90", "STATE",
    ]  # fmt: skip
    assert engine.endswith("serving, does not answer")
    assert gateway.split()[:3] == ["chat-gateway-1", "gateway", "1"]


def test_a_prefill_pods_tokens_are_those_that_it_computes() -> None:
    page = "# TYPE argosy_step_prefill_tokens counter\nargosy_step_prefill_tokens_total {}\n"
    before, after = (scrape(page.format(count)) for count in (10, 50))
    assert load(before, after, 2.0, "prefill").tokens_per_s == 20


def test_a_process_that_began_again_has_no_rate() -> None:
    before = scrape(PAGE.format(running=1, tokens=500, fast=10, all=10))
    after = scrape(PAGE.format(running=1, tokens=5, fast=1, all=1))
    assert load(before, after, 2.0, "decode").tokens_per_s is None


def test_data_leaves_out_what_is_not_known() -> None:
    assert as_data([(pod(), Load(running=1))], {}) == [
        {"namespace": "a", "fleet": "chat", "pod": "chat-decode-1", "role": "decode",
         "state": "serving", "running": 1}
    ]  # fmt: skip


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_a_quantile_lies_within_the_edges(counts: list[int], share: float) -> None:
    total, buckets = 0, dict[float, float]()
    for number, count in enumerate(counts):
        total += count
        buckets[float(number + 1)] = total
    buckets[float("inf")] = total
    found = quantile(buckets, share)
    assert (found is None) == (total == 0)
    assert found is None or 0 <= found <= len(counts)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("1500ms", 2), ("1ms", 1)]
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "ten", "1h 2m", "-5s", "5y"])
def test_what_is_no_duration_says_what_to_write(text: str) -> None:
    with pytest.raises(CommandError, match="write 30s, 10m or 2h"):
        seconds_of(text)


def test_lines_stand_behind_their_pod_and_come_from_the_engine() -> None:
    assert prefixed(pod(), "hello") == "[chat-decode-1] hello"
    assert container_of(pod()) == "engine"
    assert container_of({"spec": {"containers": [{"name": "other"}]}}) == "other"


def test_a_pod_that_may_not_be_drained_is_refused_with_the_reason() -> None:
    mine = [pod(), pod("chat-gateway-1", "gateway")]
    assert refusal("chat-decode-1", "a", pod(), mine) is None
    assert "it drains by itself when it is deleted" in str(refusal("g", "a", mine[1], mine))
    stranger = pod("nginx", labels={})
    assert "is no pod of a fleet" in str(refusal("nginx", "a", stranger, []))
    forged = pod("forged", uid="other")
    assert "does not belong to it" in str(refusal("forged", "a", forged, mine))
    assert refusal("none", "a", None, mine) == (
        "there is no pod none in namespace a: its engine pods are chat-decode-1"
    )


def test_the_last_pod_that_serves_is_drained_with_a_warning() -> None:
    other = pod("chat-decode-2")
    drained = pod("chat-decode-3", annotations={names.DRAIN: "2026-01-01T00:00:00Z"})
    assert left_serving(pod(), [pod(), other]) is None
    assert "no other decode pod of chat serves" in str(left_serving(pod(), [pod(), drained]))


def test_progress_counts_what_is_left() -> None:
    assert progress("p", Load(running=2, waiting=1, leases=4)) == (
        "p still has 3 requests, and holds the KV of 4 prompts"
    )
    assert progress("p", Load(running=0, waiting=0)) == "p has no requests"
    assert "does not say" in progress("p", Load())


def test_a_row_shows_times_and_shares_with_their_units() -> None:
    of = Load(running=3, waiting=0, kv_use=0.256, tokens_per_s=1234.6, ttft_s=0.9994, tpot_s=1.0)
    rows = [(pod("chat-gateway-1", "gateway"), Load(running=1)), (pod(), of), (pod("p", "prefill"),
            Load(tpot_s=0.0312))]  # fmt: skip
    _, prefill, decode, gateway = (line.split() for line in top_table(rows).splitlines())
    assert prefill == ["p", "prefill", "-", "-", "-", "-", "-", "31ms", "serving"]
    assert decode == [
        "chat-decode-1", "decode", "3", "0", "26%", "1235", "999ms", "1.00s", "serving",
    ]  # fmt: skip
    assert gateway == ["chat-gateway-1", "gateway", "1", *["-"] * 5, "serving"]


@pytest.mark.parametrize(
    ("meta", "ready", "state"),
    [
        ({}, "True", "serving"),
        ({}, "False", "not ready"),
        ({"annotations": {names.DRAIN: "2026-01-01T00:00:00Z"}}, "True", "draining"),
        ({"annotations": {names.DRAIN: ""}, "deletionTimestamp": "x"}, "True", "leaving"),
    ],
)
def test_a_pods_state_is_what_gateways_see(meta: Any, ready: str, state: str) -> None:
    one = pod(**meta)
    one["status"]["conditions"][0]["status"] = ready
    assert as_data([(one, Load())], {})[0]["state"] == state
    (line,) = top_table([(one, Load())]).splitlines()[1:]
    assert line.endswith("does not answer" if state == "serving" else state)


def test_data_has_every_number_that_is_known() -> None:
    of = Load(1, 2, 3, 0.5, 40.0, 0.2, 0.03)
    models = {("a", "chat"): "m"}
    assert as_data([(pod("g", "gateway"), Load()), (pod(), of)], models) == [
        {
            "namespace": "a", "fleet": "chat", "model": "m", "pod": "chat-decode-1",
            "role": "decode", "state": "serving", "running": 1, "waiting": 2, "leases": 3,
            "kvUse": 0.5, "tokensPerSecond": 40.0, "ttftP90Seconds": 0.2, "tpotP90Seconds": 0.03,
        },
        {"namespace": "a", "fleet": "chat", "model": "m", "pod": "g", "role": "gateway",
         "state": "serving"},
    ]  # fmt: skip


GATEWAY_PAGE = """argosy_gateway_inflight_requests {flying}
argosy_gateway_waiting_requests 2
# TYPE argosy_gateway_output_tokens histogram
argosy_gateway_output_tokens_bucket{{le="+Inf"}} 1
argosy_gateway_output_tokens_count 1
argosy_gateway_output_tokens_sum {tokens}
# TYPE argosy_gateway_ttft_seconds histogram
argosy_gateway_ttft_seconds_bucket{{role_mode="a",le="0.2"}} 5
argosy_gateway_ttft_seconds_bucket{{role_mode="b",le="0.2"}} 5
argosy_gateway_ttft_seconds_bucket{{role_mode="a",le="+Inf"}} 5
argosy_gateway_ttft_seconds_bucket{{role_mode="b",le="+Inf"}} 5
# TYPE argosy_gateway_tpot_seconds histogram
argosy_gateway_tpot_seconds_bucket{{le="0.1"}} 4
argosy_gateway_tpot_seconds_bucket{{le="+Inf"}} 4
"""


def test_a_gateways_work_is_what_it_sent_on() -> None:
    before, after = (scrape(GATEWAY_PAGE.format(flying=n, tokens=10 * n)) for n in (3, 7))
    assert load(before, after, 4.0, "gateway") == Load(
        running=5, waiting=2, tokens_per_s=10.0, ttft_s=pytest.approx(0.18),
        tpot_s=pytest.approx(0.09),
    )  # fmt: skip
    alone = scrape("argosy_gateway_inflight_requests 3\n")
    assert load(None, alone, 4.0, "gateway") == Load(running=3)
    assert load(None, scrape(""), 4.0, "gateway") == Load()


def test_without_requests_between_two_looks_the_times_are_those_of_all() -> None:
    page = scrape(PAGE.format(running=1, tokens=100, fast=10, all=10))
    of = load(page, page, 2.0, "decode")
    assert of.ttft_s == pytest.approx(0.09)
    assert of.tokens_per_s == 0
    assert load(page, page, 0.0, "decode").tokens_per_s is None
    assert load(scrape(""), page, 2.0, "decode").tokens_per_s is None
    assert load(page, scrape(""), 2.0, "decode").tokens_per_s is None
    again = scrape(PAGE.format(running=1, tokens=100, fast=0, all=4))  # it began again
    assert load(page, again, 2.0, "decode").ttft_s == pytest.approx(0.19)


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({1.0: 0, 2.0: 10, 4.0: 20, INF: 20}, 0.75, 3.0),
        ({1.0: 0, 2.0: 10, 4.0: 20, INF: 20}, 0.5, 2.0),
        ({1.0: 0, 2.0: 10, 4.0: 20, INF: 40}, 0.9, 4.0),
        ({1.0: 10, INF: 10}, 0.5, 0.5),
        ({1.0: 10, INF: 10}, 1.0, 1.0),
        ({1.0: 0, INF: 0}, 0.5, None),
        ({}, 0.5, None),
        ({1.0: 1, INF: 1}, 0.9, 0.9),
    ],
)
def test_a_quantile_is_on_the_line_between_two_edges(
    counts: dict[float, float], share: float, seconds: float | None
) -> None:
    assert quantile(counts, share) == (None if seconds is None else pytest.approx(seconds))


def test_streams_are_what_must_end() -> None:
    assert Load(running=1, waiting=2).streams == 3
    assert Load(running=1, waiting=2, leases=4).streams == 7
    assert Load(running=1).streams is None
    assert Load(waiting=1).streams is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("2m30s", 150), ("1.5h", 5400), ("1d", 86400), ("2600ms", 3)]
)
def test_units_of_durations_add_up(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


def test_refusals_are_these_sentences() -> None:
    mine = [pod(), pod("chat-decode-0"), pod("chat-gateway-1", "gateway")]
    mine.append(pod("chat-fetch-1", "fetch"))
    assert refusal("none", "a", None, mine) == (
        "there is no pod none in namespace a: its engine pods are chat-decode-0, chat-decode-1"
    )
    assert refusal("none", "a", None, mine[2:]) == (
        "there is no pod none in namespace a: it has no engine pods"
    )
    assert refusal("nginx", "a", pod("nginx", labels=None), []) == (
        "nginx is no pod of a fleet: it has no label serving.argosy.dev/fleet"
    )
    assert refusal("forged", "a", pod("forged"), mine) == (
        "forged carries the label of fleet chat and does not belong to it: no Deployment of the "
        "fleet made it"
    )
    assert refusal("chat-gateway-1", "a", mine[2], mine) == (
        "chat-gateway-1 is a gateway pod: it drains by itself when it is deleted (`kubectl delete "
        "pod chat-gateway-1`), because its Service sends it nothing more"
    )


def test_only_pods_of_the_same_role_take_over() -> None:
    other = pod("chat-prefill-1", "prefill")
    assert left_serving(pod(), [pod(), other]) == (
        "warning: no other decode pod of chat serves; requests wait, or are refused, until one does"
    )


def test_progress_without_leases_is_a_count() -> None:
    assert progress("p", Load(running=2, waiting=1)) == "p still has 3 requests"
    assert progress("p", Load(running=0, waiting=0, leases=2)) == (
        "p still has 0 requests, and holds the KV of 2 prompts"
    )
    assert progress("p", Load()) == "p does not say what it still computes"
