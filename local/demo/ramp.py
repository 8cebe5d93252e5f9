"""The ramp: a simulated 70B fleet under open-loop load, and the minute of rest after it."""

import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from local.demo import rest
from local.demo.answer import fleet_path, slowest_start_s
from local.demo.errors import CommandError, DemoError
from local.demo.figures import DemoFigures
from local.demo.kube import Kube, is_ready
from local.demo.places import prometheus
from local.demo.places.place import NAMESPACE, SYSTEM, Place
from local.demo.traffic import score
from local.demo.traffic.plan import RAMP, arrivals
from local.demo.traffic.watch import Records, Watch, roles
from local.demo.view import Board, console, say

MANIFEST = Path("examples/sim-70b.yaml")
REST_S = 60


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
    limits = score.Limits(
        _seconds(fleet["spec"]["slo"]["ttft"]["target"]),
        _seconds(fleet["spec"]["slo"]["tpot"]["target"]),
    )
    records = Records(out / "requests.jsonl")
    watch = _play(place, name, records, limits)
    ended = time.monotonic()
    seen = records.read()
    _score(figures, seen, limits, watch)
    # Matplotlib takes a second to import: after the load, not before it.
    from local.demo.traffic import picture

    picture.draw(out / "ramp.png", watch.readings, seen, limits)
    _explain(kube, name)
    _rest(place, figures, name, fleet, ended)


def _play(place: Place, name: str, records: Records, limits: score.Limits) -> Watch:
    url = place.publish(name)
    path = records.path
    path.unlink(missing_ok=True)
    say(f"{len(arrivals())} requests in {sum(p.seconds for p in RAMP):.0f} s (open loop) to {url}")
    command = [sys.executable, "-m", "local.demo.traffic.client", url, name, str(path)]
    with Board() as board:
        watch = Watch(place.kube, fleet_path(name), records, limits, board.show)
        client = subprocess.Popen(command)
        watch.start()
        try:
            client.wait(timeout=sum(p.seconds for p in RAMP) + 120)
        finally:
            if client.poll() is None:
                client.kill()
            watch.stop()
    if client.returncode:
        raise DemoError(f"the load client ended with exit status {client.returncode}")
    return watch


def _score(
    figures: DemoFigures, seen: list[score.Seen], limits: score.Limits, watch: Watch
) -> None:
    planned = len(arrivals())
    outcomes = [record.outcome for record in seen]
    figures.put("requests_total", len(seen))
    figures.put("requests_planned", planned)
    figures.put("requests_lost", outcomes.count("lost") + planned - len(seen))
    figures.put("requests_shed", outcomes.count("shed"))
    figures.put("requests_refused", outcomes.count("refused"))
    phases = score.after_settling(seen, limits)
    for phase, (share, count) in zip(RAMP, phases, strict=True):
        say(f"phase {phase.name}: {share or 0:.1%} of {count} requests met the SLO after settling")
    figures.put("attainment_after_settling", min(share or 0.0 for share, _ in phases))
    figures.put("attainment_whole_ramp", score.attainment(seen, limits) or 0.0)
    figures.put("scored_requests_per_phase_min", min(count for _, count in phases))
    figures.put("settling_s", score.settling_s(seen, limits))
    figures.put("client_late_p99_s", statistics.quantiles([r.late_s for r in seen], n=100)[98])
    figures.put("prefill_replicas_max", max(r.prefill[0] for r in watch.readings))
    figures.put("decode_replicas_max", max(r.decode[0] for r in watch.readings))
    busy = [r.cpu_share for r in watch.readings]
    figures.put("cpu_busy_share_p95", statistics.quantiles(busy, n=20)[18])
    gpu_seconds = sum(
        (b.at_s - a.at_s) * a.gpus for a, b in zip(watch.readings, watch.readings[1:], strict=False)
    )
    figures.put("gpu_hours", gpu_seconds / 3600)


def _explain(kube: Kube, name: str) -> None:
    try:
        explained = kube.kubectl("argosy", "explain", name, "-n", NAMESPACE).rstrip()
        console.print(explained, markup=False, soft_wrap=True)
    except CommandError as error:
        say(str(error))


def _rest(
    place: Place, figures: DemoFigures, name: str, fleet: dict[str, Any], ended: float
) -> None:
    """Wait until the replicas are at minimum and all windows have passed; then watch a minute."""
    spec = fleet["spec"]
    minimum = {
        role: spec.get("roles", {}).get(role, {}).get("replicas", {}).get("min", 1)
        for role in ("prefill", "decode")
    }

    def settled(status_of: dict[str, Any]) -> bool:
        prefill, decode, _ = roles(status_of.get("status", {}))
        return prefill == (minimum["prefill"],) * 2 and decode == (minimum["decode"],) * 2

    hold = _seconds(spec["autoscaling"]["scaleDown"]["stabilization"])
    window = _seconds(spec["metrics"].get("rateWindow", "60s"))
    try:
        place.kube.wait(
            fleet_path(name), settled, timeout_s=2 * hold + 10, what="replicas at minimum"
        )
        back = True
    except TimeoutError as error:
        say(str(error))
        back = False
    figures.put("replicas_back_at_min", back)
    figures.put("operator_rss_mib", prometheus.operator_rss_mib(place))
    if place.audit_log is None:
        return
    # The scaling law's longest window is that of attainment: the hold or two rate windows. For the
    # operator it ends at the first tick after the first scrape behind it, plus half a tick of work.
    interval, scrape = _seconds(spec["autoscaling"]["interval"]), spec["metrics"]["scrapeInterval"]
    passed = ended + max(hold, 2 * window) + _seconds(scrape) + 1.5 * interval
    say(f"at rest: waiting until the law's windows end, then counting writes for {REST_S} s")
    time.sleep(max(0.0, passed - time.monotonic()))
    begin = datetime.now(UTC).isoformat()
    time.sleep(REST_S)
    written = rest.writes(
        place.audit_log, begin, datetime.now(UTC).isoformat(), (NAMESPACE, SYSTEM)
    )
    figures.put("writes_at_rest_per_minute", 60 * len(written) / REST_S)
    for line in written[:10]:
        say(f"written at rest: {line}")


def _seconds(text: str) -> float:
    for unit, factor in (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(unit) and text.removesuffix(unit).replace(".", "").isdigit():
            return float(text.removesuffix(unit)) * factor
    raise ValueError(f"{text!r} is not a duration: write 500ms, 20s, 5m or 1h")
