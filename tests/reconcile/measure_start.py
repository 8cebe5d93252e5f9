"""The operator's start over many paused fleets, and its life without an API server.

`python -m tests.reconcile.measure_start --fleets 1000 --away 150` starts a one-machine cluster,
creates the fleets, starts one operator, and prints one JSON object: rounds that failed, the longest
time between two renewals of the Lease, and the seconds until every fleet was seen. With `--away`
the API server is stopped for so many seconds afterwards, before the eyes of a leader and a standby.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from local.cluster.cluster import Cluster
from local.demo.kube import Kube
from tests.reconcile.conftest import CRDS
from tests.reconcile.operators import GROUP, Operator

NAMESPACE = "many"
LONGEST_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=1000)
    parser.add_argument("--away", type=float, default=0.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="argosy-start-") as folder:
        cluster = Cluster("start", nodes=1, state_dir=Path(folder) / "c")
        cluster.start(tied=True)
        try:
            print(json.dumps(_measure(cluster, asked.fleets, asked.away), indent=1))
        finally:
            cluster.stop()


def _measure(cluster: Cluster, fleets: int, away_s: float) -> dict[str, Any]:
    kube = Kube(cluster.kubeconfig)
    kube.apply_crds(CRDS, timeout_s=60)
    kube.kubectl("create", "namespace", NAMESPACE)
    for number in range(fleets):
        _create(kube, f"chat-{number}")
    one = Operator(kube.kubeconfig, NAMESPACE, "one")
    figures: dict[str, Any] = {"fleets": fleets, "load": os.getloadavg()[0]}
    try:
        figures |= _watch_start(kube, one, fleets)
        if away_s and one.process.poll() is None:
            figures |= _without_server(cluster, kube, one, away_s)
    finally:
        if one.process.poll() is None:
            one.stop()
    return figures


def _create(kube: Kube, name: str) -> None:
    body = {
        "apiVersion": "serving.argosy.dev/v1alpha1",
        "kind": "ServingDeployment",
        "metadata": {"name": name},
        "spec": {"paused": True, "model": {"uri": "sim://opt-13b-a100"}},
    }
    path = f"{GROUP}/namespaces/{NAMESPACE}/servingdeployments"
    kube.http.post(path, json=body).raise_for_status()


def _watch_start(kube: Kube, operator: Operator, fleets: int) -> dict[str, Any]:
    began, renewed, done, failed = time.monotonic(), [], 0.0, 0.0
    renew_times: list[str] = []
    while time.monotonic() - began < LONGEST_S and operator.process.poll() is None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/argosy-operator"
        lease = kube.get(path)
        at = (lease or {"spec": {}})["spec"].get("renewTime")
        if at and at not in renew_times[-1:]:
            renew_times.append(at)
            renewed.append(time.monotonic())
        done = operator.metric('argosy_operator_reconcile_total{result="done"}') or done
        failed = operator.metric('argosy_operator_reconcile_total{result="failed"}') or failed
        if done >= fleets:
            break
        time.sleep(0.2)
    gaps = [later - earlier for earlier, later in pairwise(renewed)]
    return {
        "seen_after_s": round(time.monotonic() - began, 1),
        "rounds_done": done,
        "rounds_failed": failed,
        "longest_between_renewals_s": round(max(gaps, default=0.0), 1),
        "ended_by_itself": operator.process.poll() is not None,
    }


def _without_server(
    cluster: Cluster, kube: Kube, leader: Operator, away_s: float
) -> dict[str, Any]:
    standby = Operator(kube.kubeconfig, NAMESPACE, "two")
    while not standby.metric("process_start_time_seconds"):
        time.sleep(0.2)
    cluster.send_signal("kube-apiserver", signal.SIGSTOP)
    began, unhealthy = time.monotonic(), {"one": 0, "two": 0}
    while time.monotonic() - began < away_s:
        for operator in (leader, standby):
            if operator.process.poll() is None and not operator.healthy():
                unhealthy[operator.name] += 1
        time.sleep(2)
    cluster.send_signal("kube-apiserver", signal.SIGCONT)
    alive = {o.name: o.process.poll() is None for o in (leader, standby)}
    resumed = time.monotonic()
    while not standby.metric("argosy_operator_leader") and time.monotonic() - resumed < 60:
        time.sleep(0.2)
    led = round(time.monotonic() - resumed, 1)
    if standby.process.poll() is None:
        standby.stop()
    return {"unhealthy_answers": unhealthy, "alive_after": alive, "standby_led_after_s": led}


if __name__ == "__main__":
    main()
