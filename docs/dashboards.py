"""The dashboards of the chart, as Grafana reads them: panels in a table, their JSON generated.

Written by `python -m docs.generate --write` into `charts/argosy/files/dashboards`. Each query is of
series that the programs have, and finds data under load (tests/e2e/test_dashboards.py).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 8
"""Of a panel; a row of Grafana is 24 wide."""


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `kind` is Grafana's word for it."""

    title: str
    about: str
    """What a reader may conclude from it, in a sentence or two."""
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    most: float | None = None
    """Upper end of the axis."""


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    query: str
    several: bool = False
    """Several values may be chosen; all are at first."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    name: str
    """Of the file, and part of the uid."""
    title: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]


def of_fleet(name: str, *more: str) -> str:
    """Series of the chosen fleet's pods."""
    return _selector(name, 'namespace="$namespace"', 'fleet="$fleet"', *more)


def of_engines(name: str, *more: str) -> str:
    return of_fleet(name, 'role=~"$role"', *more)


def about_fleet(name: str, *more: str) -> str:
    """Series of the operator about the chosen fleet."""
    return _selector(name, 'fleet_namespace="$namespace"', 'fleet_name="$fleet"', *more)


def of_operator(name: str, *more: str) -> str:
    return _selector(name, 'namespace="$namespace"', *more)


def _selector(name: str, *matchers: str) -> str:
    return f"{name}{{{','.join(matchers)}}}"


def rate(series: str) -> str:
    return f"rate({series}[$__rate_interval])"


def total(series: str, by: str = "") -> str:
    """Per second, summed."""
    return f"sum{f' by ({by})' if by else ''} ({rate(series)})"


def mean(histogram: str, by: str, of: Any = of_engines, *more: str) -> str:
    up, down = total(of(f"{histogram}_sum", *more), by), total(of(f"{histogram}_count", *more), by)
    return f"{up} / {down}"


def quantiles(
    histogram: str, of: Any = of_fleet, by: str = "", legend: str = ""
) -> Iterator[Query]:
    for share in (0.5, 0.9, 0.99):
        inside = total(of(f"{histogram}_bucket"), f"{by}, le" if by else "le")
        yield Query(f"histogram_quantile({share}, {inside})", f"{legend}p{share * 100:g}")


VERDICTS = "argosy_slo_requests_total"
JUDGED = total(of_fleet(VERDICTS))
SERVING = 'state="serving"'
BOTH = ('ttft="ok"', 'tpot="ok"')
FLEET_VARIABLES = (
    Variable("namespace", "label_values(argosy_requests_received_total, namespace)"),
    Variable(
        "fleet", 'label_values(argosy_requests_received_total{namespace="$namespace"}, fleet)'
    ),
)

FLEET = Dashboard(
    "fleet",
    "Argosy / Fleet",
    FLEET_VARIABLES,
    (
        Panel(
            "Attainment",
            "Share of the requests that met the SLO, and each of its two targets.",
            (
                Query(f"{total(of_fleet(VERDICTS, *BOTH))} / {JUDGED}", "both"),
                Query(f"{total(of_fleet(VERDICTS, BOTH[0]))} / {JUDGED}", "TTFT"),
                Query(f"{total(of_fleet(VERDICTS, BOTH[1]))} / {JUDGED}", "TPOT"),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Error budget",
            "How fast it is spent, by window. At 1 it lasts for 30 days. A window of which less "
            "than half was measured has no rate.",
            (Query(f"max by (window) ({about_fleet('argosy_operator_burn_rate')})", "{{window}}"),),
        ),
        Panel(
            "Misses by reason",
            "What took most of the time of the requests that missed the SLO.",
            (Query(total(of_fleet("argosy_slo_misses_total"), "reason"), "{{reason}}"),),
            "reqps",
        ),
        Panel(
            "Time to first token",
            "From a request's first byte to its first content, as the gateways see it.",
            tuple(quantiles("argosy_gateway_ttft_seconds")),
            "s",
        ),
        Panel(
            "Time per output token",
            "Between the first and the last content, for each further token.",
            tuple(quantiles("argosy_gateway_tpot_seconds")),
            "s",
        ),
        Panel(
            "Requests",
            "What was decided when they came, and goodput: those that met the SLO.",
            (
                Query(total(of_fleet("argosy_requests_received_total"), "outcome"), "{{outcome}}"),
                Query(total(of_fleet(VERDICTS, *BOTH)), "goodput"),
            ),
            "reqps",
        ),
        Panel(
            "Replicas",
            "What each role is to have, and the pods that serve.",
            (
                Query(
                    f"max by (role) ({about_fleet('argosy_operator_replicas')})", "{{role}} wanted"
                ),
                # The label `role` of the target is the gateway's own.
                Query(
                    f"max by (exported_role) ({of_fleet('argosy_gateway_endpoints', SERVING)})",
                    "{{exported_role}} serving",
                ),
            ),
        ),
        Panel(
            "What binds the replicas",
            "The rule of the newest decision for each role; docs/reference/rules.md has them.",
            (
                Query(
                    f"max by (role, rule) ({about_fleet('argosy_operator_bound_by')})",
                    "{{role}}: {{rule}}",
                ),
            ),
            kind="state-timeline",
        ),
        Panel(
            "Conditions",
            "Those that are known. `kubectl describe sd` has their reasons.",
            (Query(f"max by (type) ({about_fleet('argosy_operator_condition')})", "{{type}}"),),
            kind="state-timeline",
        ),
        Panel(
            "In flight and waiting",
            "Accepted requests that have not ended, and those of them in the gateways' queue.",
            (
                Query(f"sum ({of_fleet('argosy_gateway_inflight_requests')})", "in flight"),
                Query(f"sum ({of_fleet('argosy_gateway_waiting_requests')})", "waiting"),
            ),
        ),
        Panel(
            "Retries and resumed streams",
            "Requests that were sent to another pod, and streams that went on at another one.",
            (
                Query(
                    total(of_fleet("argosy_gateway_retries_total"), "reason"), "retry: {{reason}}"
                ),
                Query(
                    total(of_fleet("argosy_gateway_resumed_total"), "reason"),
                    "resumed: {{reason}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "Lengths",
            "Mean tokens of a prompt and of an answer.",
            (
                Query(mean("argosy_gateway_prompt_tokens", "fleet", of_fleet), "prompt"),
                Query(mean("argosy_gateway_output_tokens", "fleet", of_fleet), "answer"),
            ),
        ),
    ),
)

ENGINES = Dashboard(
    "engines",
    "Argosy / Engines",
    (
        *FLEET_VARIABLES,
        Variable(
            "role",
            'label_values(vllm:num_requests_running{namespace="$namespace", fleet="$fleet"}, role)',
            several=True,
        ),
    ),
    (
        Panel(
            "Running sequences",
            "In the batch of each pod.",
            (
                Query(
                    f"sum by (role, pod) ({of_engines('vllm:num_requests_running')})",
                    "{{role}} {{pod}}",
                ),
            ),
        ),
        Panel(
            "Waiting requests",
            "Queued in each pod, or pulling their KV.",
            (
                Query(
                    f"sum by (role, pod) ({of_engines('vllm:num_requests_waiting')})",
                    "{{role}} {{pod}}",
                ),
            ),
        ),
        Panel(
            "KV",
            "Used share of each pod's pool.",
            (
                Query(
                    f"max by (role, pod) ({of_engines('vllm:kv_cache_usage_perc')})",
                    "{{role}} {{pod}}",
                ),
            ),
            "percentunit",
            most=1,
        ),
        Panel(
            "Batch",
            "Mean number of sequences in a step, by what it computes.",
            (Query(mean("argosy_batch_size", "kind"), "{{kind}}"),),
        ),
        Panel(
            "Time of a step",
            "Mean, by what it computes.",
            (
                Query(
                    f"{total(of_engines('argosy_step_seconds_total'), 'kind')} / "
                    f"{total(of_engines('argosy_steps_total'), 'kind')}",
                    "{{kind}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Tokens",
            "Of prompts that got a first token, and of answers.",
            (
                Query(total(of_engines("vllm:prompt_tokens_total"), "role"), "prompt, {{role}}"),
                Query(
                    total(of_engines("vllm:generation_tokens_total"), "role"), "answer, {{role}}"
                ),
            ),
        ),
        Panel(
            "Stages of a request",
            "Mean time in each stage; what grows is what requests wait for.",
            (Query(mean("argosy_request_stage_seconds", "stage"), "{{stage}}"),),
            "s",
        ),
        Panel(
            "What blocks admission",
            "Steps a second in which the first waiting request was not admitted, by what it waits "
            "for.",
            (Query(total(of_engines("argosy_admission_blocked_steps_total"), "by"), "{{by}}"),),
        ),
        Panel(
            "Preemptions",
            "Sequences that gave up their KV for others: the pool is too small for its load.",
            (Query(total(of_engines("argosy_preemptions_total"), "mode"), "{{mode}}"),),
        ),
        Panel(
            "Handovers that fail",
            "Those of the gateways by reason, and pulls of engines by cause. Decode computes the "
            "prompt then.",
            (
                Query(
                    total(of_fleet("argosy_gateway_handovers_failed_total"), "reason"),
                    "gateway: {{reason}}",
                ),
                Query(
                    total(of_engines("argosy_kv_transfer_failures_total"), "cause"),
                    "pull: {{cause}}",
                ),
            ),
        ),
        Panel(
            "Time of a transfer",
            "Of one prompt's KV between engines.",
            tuple(quantiles("argosy_kv_transfer_seconds", of_engines, "side", legend="{{side}} ")),
            "s",
        ),
        Panel(
            "KV held for peers",
            "Prompts under a lease on prefill pods, and prompts that decode computed itself.",
            (
                Query(f"sum ({of_engines('argosy_kv_leases_active')})", "leases"),
                Query(
                    total(of_engines("argosy_local_prefill_fallback_total")), "after a failed pull"
                ),
                Query(total(of_engines("argosy_handovers_saved_total")), "because it costs less"),
            ),
        ),
    ),
)

OPERATOR = Dashboard(
    "operator",
    "Argosy / Operator",
    (Variable("namespace", "label_values(argosy_operator_leader, namespace)"),),
    (
        Panel(
            "Leader",
            "1 for the replica that leads.",
            (Query(f"max by (pod) ({of_operator('argosy_operator_leader')})", "{{pod}}"),),
            most=1,
        ),
        Panel(
            "Rounds",
            "Of all fleets, by how they ended.",
            (Query(total(of_operator("argosy_operator_reconcile_total"), "result"), "{{result}}"),),
        ),
        Panel(
            "Time of a round",
            "Most of it is the API server's and Prometheus' answers.",
            tuple(quantiles("argosy_operator_reconcile_seconds", of_operator)),
            "s",
        ),
        Panel(
            "Queue",
            "Fleets whose round is due and waits for others to end.",
            (Query(f"sum ({of_operator('argosy_operator_rounds_waiting')})", "waiting"),),
        ),
        Panel(
            "Writes",
            "Calls of the API server that change something. A quiet cluster has none.",
            (
                Query(
                    total(of_operator("argosy_operator_writes_total"), "verb, kind"),
                    "{{verb}} {{kind}}",
                ),
            ),
        ),
        Panel(
            "Age of watches",
            "Since the API server last answered the watch of each kind.",
            (
                Query(
                    f"max by (kind) ({of_operator('argosy_operator_watch_age_seconds')})",
                    "{{kind}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Decisions",
            "Of the scaling law, by the rule that bound them.",
            (Query(total(of_operator("argosy_operator_decisions_total"), "reason"), "{{reason}}"),),
        ),
        Panel(
            "Fleets by condition",
            "For each condition the number of fleets in which it is True.",
            (
                Query(
                    "sum by (type) (max by (type, fleet_namespace, fleet_name) "
                    f"({of_operator('argosy_operator_condition')}))",
                    "{{type}}",
                ),
            ),
        ),
        Panel(
            "Replicas",
            "Of all fleets, as they are wanted.",
            (
                Query(
                    "sum by (role) (max by (role, fleet_namespace, fleet_name) "
                    f"({of_operator('argosy_operator_replicas')}))",
                    "{{role}}",
                ),
            ),
        ),
    ),
)

DASHBOARDS = (FLEET, ENGINES, OPERATOR)


def fill(text: str, **variables: str) -> str:
    """Put values into a query as Grafana does, with "All" for a variable that is not given."""
    return re.sub(r"\$(\w+)", lambda found: variables.get(found[1], ".*"), text)


def as_json(dashboard: Dashboard) -> str:
    """The dashboard's file."""
    whole = {
        "uid": f"argosy-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["argosy"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Argosy",
                "tags": ["argosy"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *map(_variable, dashboard.variables),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(whole, indent=1) + "\n"


def _variable(variable: Variable) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": variable.name,
        "type": "query",
        "datasource": DATASOURCE,
        "query": variable.query,
        "refresh": 2,
        "sort": 1,
    }
    if variable.several:
        found |= {"multi": True, "includeAll": True, "allValue": ".*"}
        found["current"] = {"text": "All", "value": "$__all"}
    return found


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    per_row = 24 // WIDTH
    states = panel.kind == "state-timeline"
    words = {"0": {"text": "False"}, "1": {"text": "True"}}
    axis: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        axis["max"] = panel.most
    if states:
        axis = {"mappings": [{"type": "value", "options": words}], "color": {"mode": "thresholds"}}
        steps = [{"color": "orange", "value": None}, {"color": "blue", "value": 1}]
        axis["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number + 1,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": {
            "x": number % per_row * WIDTH,
            "y": number // per_row * HEIGHT,
            "w": WIDTH,
            "h": HEIGHT,
        },
        "fieldConfig": {"defaults": axis, "overrides": []},
        "options": {"showValue": "never", "mergeValues": True}
        if states
        else {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "expr": query.expr,
             "legendFormat": query.legend}
            for at, query in enumerate(panel.queries)
        ],
    }  # fmt: skip
