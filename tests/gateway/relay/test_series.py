"""What each event adds to the gateway's series, and what a scrape shows before any event.

Names, labels and meanings are those of docs/reference/metrics.md.
"""

import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from argosy_gateway.config import Slo
from argosy_gateway.relay.metrics import Metrics

SLO = Slo(ttft_s=0.25, tpot_s=0.035)


def samples(metrics):
    """(name, label values in the order of their names) → value, as a scrape reads them."""
    found = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for s in family.samples:
            if not s.name.startswith("process_"):
                found[s.name, *(s.labels[k] for k in sorted(s.labels))] = s.value
    return found


def moved(metrics):
    """What is not 0; buckets apart."""
    return {k: v for k, v in samples(metrics).items() if v and not k[0].endswith("_bucket")}


def test_every_label_value_exists_with_0_from_the_start():
    """rate() over a series that appears with its first event misses that event."""
    metrics = Metrics(SLO)
    metrics.expect_models(["m", "sql"])
    shown = samples(metrics)
    zeros = {key: value for key, value in shown.items() if not key[0].endswith("_bucket")}
    assert set(zeros.values()) == {0.0}
    labelled = {key for key in zeros if len(key) > 1}
    modes, met = ("colocated", "disaggregated"), ("ok", "miss")
    reasons = ("connect", "draining", "closed", "silent")
    reasons += ("server_error", "busy", "wrong_pod", "unproven")
    resumed = ("closed", "silent", "error", "draining")
    handovers = ("connect", "closed", "silent", "busy", "refused", "wrong_pod", "invalid")
    handovers += ("late", "no_kv", "hung")
    misses = ("no_pod", "queue", "retry", "ahead", "prompt", "held")
    misses += ("transfer", "moved", "decode", "shed", "failed")
    roles, states = ("prefill", "decode", "colocated"), ("serving", "draining", "unready")
    received, completed = ("accepted", "shed", "invalid"), ("ok", "failed", "client_gone")
    assert labelled == {
        *(("argosy_requests_received_total", value) for value in received),
        *(("argosy_requests_completed_total", value) for value in completed),
        *(("argosy_gateway_other_requests_total", value) for value in completed),
        *(("argosy_requests_by_model_total", name) for name in ("m", "sql")),
        *(
            (f"argosy_slo_requests_{name}", "default", *revision, mode, tpot, ttft)
            for name, revision in (("total", ("",)), ("at_once_total", ()))
            for mode in modes
            for tpot in met
            for ttft in met
        ),
        *(("argosy_slo_misses_total", reason) for reason in misses),
        ("argosy_gateway_faults_total", ""),
        *(("argosy_gateway_retries_total", reason) for reason in reasons),
        *(("argosy_gateway_resumed_total", reason) for reason in resumed),
        *(("argosy_gateway_handovers_failed_total", reason) for reason in handovers),
        *(("argosy_gateway_endpoints", role, state) for role in roles for state in states),
    }
    assert {key for key in zeros if len(key) == 1} == {
        ("argosy_gateway_inflight_requests",),
        ("argosy_gateway_settings_stale",),
        ("argosy_gateway_waiting_requests",),
        ("argosy_gateway_waiting_prompt_tokens",),
        ("argosy_gateway_retries_refused_total",),
        ("argosy_gateway_prompt_tokens_squared_total",),
        *(
            (f"argosy_gateway_{name}_{part}",)
            for name in ("ttft_seconds", "tpot_seconds", "prompt_tokens", "output_tokens")
            for part in ("count", "sum")
        ),
    }


def edges(metrics, name):
    found = [key[1] for key in samples(metrics) if key[0] == f"{name}_bucket"]
    return sorted(map(float, found))


@pytest.mark.parametrize(
    ("name", "without", "limit"),
    [
        ("argosy_gateway_ttft_seconds", (23, 0.005, 60.0), 0.25),
        ("argosy_gateway_tpot_seconds", (21, 0.001, 2.0), 0.035),
        ("argosy_gateway_prompt_tokens", (16, 1.0, 100_000.0), None),
        ("argosy_gateway_output_tokens", (16, 1.0, 100_000.0), None),
    ],
)
def test_the_limit_of_the_slo_is_an_edge_of_its_own_histogram_alone(name, without, limit):
    """So that the share of requests that meet it is exact."""
    *plain, last = edges(Metrics(None), name)
    assert (len(plain), plain[0], plain[-1], last) == (*without, math.inf)
    added = set(edges(Metrics(SLO), name)) - set(plain) - {math.inf}
    assert added == ({limit} if limit else set())
    assert len(edges(Metrics(SLO), name)) == len(plain) + 1 + bool(limit)
