"""The ramp: a simulated 70B fleet under open-loop load, and the minute of rest after it."""

import json
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGKILL
from typing import Any

import yaml

from local.demo import rest
from local.demo.answer import fleet_path, slowest_start_s
from local.demo.errors import CommandError, DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import Kube, is_ready
from local.demo.places import prometheus
from local.demo.places.place import NAMESPACE, SYSTEM, Place
from local.demo.traffic import pods, score
from local.demo.traffic.plan import RAMP, arrivals
from local.demo.traffic.score import seconds
from local.demo.traffic.watch import Records, Watch
from local.demo.view import Board, console, say

MANIFEST = Path("examples/sim-70b.yaml")
REST_S = 60
IDLE_LIMIT_S = 60
"""Time for the law's windows to end: the longest is that of attainment, 15 s in the manifest."""
CLIENT_START_S = 30.0
"""Longest silence of the load client at its start."""
PLAN_S = sum(phase.seconds for phase in RAMP)


def apply(place: Place) -> None:
    """Apply the simulated fleet, once Prometheus runs: without it nothing is scaled."""
    if place.is_complete:
        place.kube.kubectl("apply", "-n", NAMESPACE, "-f", str(MANIFEST))


def run(place: Place, figures: DemoFigures, out: Path) -> None:
    """Play the plan against the fleet, score it, draw it, and count writes at rest."""
    fleet = yaml.safe_load(MANIFEST.read_text())
    name = fleet["metadata"]["name"]
    kube = place.kube
    kube.wait(fleet_path(name), is_ready, timeout_s=60, what=f"fleet {name} Ready")
    prometheus.wait_scraped(place, name)
    start_s = slowest_start_s(kube, name)
    figures.put("sim_engine_start_s", start_s)
    say(
        f"fleet {name} is Ready: its engines are simulated, so their cold start of "
        f"{start_s:.0f} s is a process start; real weights of this size take minutes"
    )
    limits = score.limits_of(fleet["spec"]["slo"])
    records = Records(out / "requests.jsonl")
    watch = _play(place, name, records, limits)
    seen = records.read()
    lines = "".join(json.dumps(asdict(reading)) + "\n" for reading in watch.readings)
    (out / "readings.jsonl").write_text(lines)
    judge(figures, seen, limits, watch)
    # Matplotlib takes a second to import: after the load, not before it.
    from local.demo.traffic import picture

    picture.draw(out / "ramp.png", watch.readings, seen, limits)
    _explain(kube, name)
    _rest(place, figures, name, fleet)
    figures.put("container_restarts", sum(_restarts(kube, watch).values()))


def _play(place: Place, name: str, records: Records, limits: score.Limits) -> Watch:
    url = place.publish(name)
    path = records.path
    path.unlink(missing_ok=True)
    say(f"{len(arrivals())} requests in {PLAN_S:.0f} s (open loop) to {url}")
    words = ["-m", "local.demo.traffic.client", url, name, str(path)]
    with Board() as board:
        watch = Watch(place.kube, NAMESPACE, name, fleet_path(name), records, limits, board.show)
        client = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)
        try:
            watch.start(second_0(client))
            client.wait(timeout=PLAN_S + 120)
        except subprocess.TimeoutExpired as error:
            raise DemoError("some requests have no end two minutes after the plan's") from error
        finally:
            if client.poll() is None:
                client.kill()
            watch.stop()
    if client.returncode:
        raise DemoError(f"the load client ended with exit status {client.returncode}")
    return watch


def second_0(client: subprocess.Popen[str], within_s: float = CLIENT_START_S) -> float:
    """When the client says that its plan begins, on the monotonic clock. DemoError if it ends or
    says nothing within `within_s`."""
    assert client.stdout is not None
    too_late = threading.Timer(within_s, client.kill)
    too_late.start()
    try:
        line = client.stdout.readline()
    finally:
        too_late.cancel()
    if line:
        return float(line)
    status = client.wait()
    how = f"was silent for {within_s:.0f} s" if status == -SIGKILL else f"ended with {status}"
    raise DemoError(f"the load client {how} at its start")


def judge(figures: DemoFigures, seen: list[score.Seen], limits: score.Limits, watch: Watch) -> None:
    """Put the figures of the ramp. DemoError if the readings do not cover it."""
    if len(seen) < 2:
        raise DemoError("no request of the ramp ended")
    _judge_requests(figures, seen, limits)
    named = (frozenset(watch.names.get(role, ())) for role in pods.ROLES)
    figures.put("answers_from_both_pods", score.from_pods(seen, *named) or 0.0)
    gap = score.longest_gap_s([r.at_s for r in watch.readings], PLAN_S)
    if gap > score.READING_GAP_S:
        raise DemoError(
            f"for {gap:.0f} s of the ramp the fleet's pods were not read, so its replicas and "
            "GPUs are not known: see whether the API server answered"
        )
    figures.put("prefill_replicas_max", max(r.prefill[0] for r in watch.readings))
    figures.put("decode_replicas_max", max(r.decode[0] for r in watch.readings))
    busy = [r.cpu_share for r in watch.readings]
    figures.put("cpu_busy_share_p95", statistics.quantiles(busy, n=20)[18])
    gpu_seconds = sum(
        (b.at_s - a.at_s) * a.gpus for a, b in zip(watch.readings, watch.readings[1:], strict=False)
    )
    figures.put("gpu_hours", gpu_seconds / 3600)


def _judge_requests(figures: DemoFigures, seen: list[score.Seen], limits: score.Limits) -> None:
    planned = [due.at_s for due in arrivals()]
    outcomes = [record.outcome for record in seen]
    figures.put("requests_total", len(seen))
    figures.put("requests_planned", len(planned))
    figures.put("requests_lost", outcomes.count("lost") + score.unseen(seen, planned))
    figures.put("requests_shed", outcomes.count("shed"))
    figures.put("requests_refused", outcomes.count("refused"))
    for record in [r for r in seen if r.outcome != "ok"][:10]:
        say(f"{record.outcome} at {record.due_s:.0f} s: {record.problem}")
    phases = score.after_settling(seen, limits)
    for phase, (share, count) in zip(RAMP, phases, strict=True):
        say(f"phase {phase.name}: {share or 0:.1%} of {count} requests met the SLO after settling")
    figures.put("attainment_after_settling", min(share or 0.0 for share, _ in phases))
    figures.put("attainment_whole_ramp", score.attainment(seen, limits) or 0.0)
    figures.put("scored_requests_per_phase_min", min(count for _, count in phases))
    figures.put("settling_s", score.settling_s(seen, limits))
    figures.put("client_late_p99_s", statistics.quantiles([r.late_s for r in seen], n=100)[98])


def _restarts(kube: Kube, watch: Watch) -> dict[str, int]:
    """Of all pods of the demo that the ramp or its end saw, the operator's included."""
    for namespace in (NAMESPACE, SYSTEM):
        watch.restarts |= pods.restarts(pods.items(kube, f"/api/v1/namespaces/{namespace}/pods"))
    return watch.restarts


def _explain(kube: Kube, name: str) -> None:
    try:
        explained = kube.kubectl("argosy", "explain", name, "-n", NAMESPACE).rstrip()
        console.print(explained, markup=False, soft_wrap=True)
    except CommandError as error:
        say(str(error))


def _rest(place: Place, figures: DemoFigures, name: str, fleet: dict[str, Any]) -> None:
    """Wait until the replicas are at minimum and the fleet is Idle; then watch a minute."""
    spec = fleet["spec"]
    minimum = {
        role: spec.get("roles", {}).get(role, {}).get("replicas", {}).get("min", 1)
        for role in ("prefill", "decode")
    }

    hold = seconds(spec["autoscaling"]["scaleDown"]["stabilization"])
    back = await_minimum(place.kube, name, minimum, 2 * hold + 10)
    figures.put("replicas_back_at_min", back)
    figures.put("operator_rss_mib", prometheus.operator_rss_mib(place))
    if place.audit_log is None:
        return
    say(f"at rest: waiting until status says Idle, then counting writes for {REST_S} s")
    place.kube.wait(fleet_path(name), is_idle, timeout_s=IDLE_LIMIT_S, what=f"fleet {name} Idle")
    begin = datetime.now(UTC)
    time.sleep(REST_S)
    written = rest.writes(place.audit_log, begin, datetime.now(UTC), (NAMESPACE, SYSTEM))
    figures.put("writes_at_rest_per_minute", 60 * len(written) / REST_S)
    figures.put("replicas_back_at_min", back and await_minimum(place.kube, name, minimum, 0))
    for line in written[:10]:
        say(f"written at rest: {line}")


def is_idle(fleet: dict[str, Any]) -> bool:
    """Whether its status says that no request was answered within the law's windows."""
    return bool(fleet.get("status", {}).get("columns", {}).get("slo") == "Idle")


def await_minimum(kube: Kube, name: str, minimum: dict[str, int], timeout_s: float) -> bool:
    """Whether the pods of both roles come down to the minimum, Ready and no more of them."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = pods.look(kube, NAMESPACE, name).roles
        if all(pods.Replicas(n, n, n) == found[role] for role, n in minimum.items()):
            return True
        if time.monotonic() > deadline:
            say(f"the replicas are not at their minimum after {timeout_s:.0f} s: {found}")
            return False
        time.sleep(0.25)
