"""Who owns what, before a real API server: pause, hands, foreign objects, restarts, leaders."""

import time

import pytest
import yaml

from local.demo.kube import condition
from tests.reconcile.conftest import FLEET

pytestmark = pytest.mark.cluster


def test_a_paused_fleet_gets_no_write_but_status(running):
    running.patch(paused=True)
    running.until_seen()
    service = running.get("services", "chat")
    running.kubectl("delete", "service", "chat")
    running.patch(roles={"colocated": {"replicas": {"min": 2}}})
    running.until_seen()
    assert condition(running.fleet(), "Reconciling")["reason"] == "Paused"
    assert running.get("services", "chat") is None
    assert [d["spec"]["replicas"] for d in running.engines()] == [1]
    running.patch(paused=False)
    again = running.until("the Service is back", lambda: running.get("services", "chat"))
    assert again["metadata"]["uid"] != service["metadata"]["uid"]
    running.until("2 replicas", lambda: running.engines()[0]["spec"]["replicas"] == 2)


def test_a_hand_edit_is_put_back_and_its_author_named(running):
    before = running.get("services", "chat")["spec"]["ports"][0]["targetPort"]
    patch = '[{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 9999}]'
    words = ("--type=json", "-p", patch, "--field-manager=alice")
    running.kubectl("patch", "service", "chat", *words)

    def put_back():
        return running.get("services", "chat")["spec"]["ports"][0]["targetPort"] == before

    running.until("the port is put back", put_back)
    told = running.until("the Event", lambda: running.events("PutBack"))
    assert "alice" in told[0]
    assert "Service chat" in told[0]


@pytest.mark.long
def test_a_tug_of_war_over_one_field_is_few_writes_and_a_condition(running):
    writes = 'argosy_operator_writes_total{kind="Service",verb="apply"}'
    path = f"/api/v1/namespaces/{running.namespace}/services/chat"
    patch = [{"op": "replace", "path": "/spec/ports/0/targetPort", "value": 9999}]
    kind = {"Content-Type": "application/json-patch+json"}
    before, until = running.operators[0].metric(writes), time.monotonic() + 10
    while time.monotonic() < until:
        words = {"params": {"fieldManager": "alice"}, "headers": kind, "json": patch}
        running.kube.http.patch(path, **words).raise_for_status()
        time.sleep(0.05)
    assert 1 <= running.operators[0].metric(writes) - before <= 15

    def named():
        return condition(running.fleet(), "FieldConflict").get("status") == "True"

    running.until("FieldConflict", named)
    assert "alice changed spec.ports" in condition(running.fleet(), "FieldConflict")["message"]
    until_told(running, "PutBack", "times in a row")
    running.until("the port is put back", lambda: port_of(running) != 9999, 70)


def until_told(world, reason, words):
    """Until an Event says so. A round publishes its Events after its other writes."""
    world.until(f"{reason}: {words}", lambda: any(words in note for note in world.events(reason)))


def port_of(world):
    return world.get("services", "chat")["spec"]["ports"][0]["targetPort"]


@pytest.mark.long
def test_leader_and_standby_outlive_a_restart_of_the_api_server(running, cluster):
    second = running.operator("two")
    running.until("it waits", lambda: second.metric("process_start_time_seconds"))
    cluster.restart("kube-apiserver")
    until = time.monotonic() + 40
    while time.monotonic() < until:
        assert second.process.poll() is None, "the standby ended"
        time.sleep(0.5)
    running.patch(roles={"colocated": {"replicas": {"min": 2}}})
    running.until("2 replicas", lambda: running.engines()[0]["spec"]["replicas"] == 2, 60)


def test_a_deleted_child_comes_back(running):
    running.kubectl("delete", "service", "chat")
    running.until("the Service", lambda: running.get("services", "chat"))
    name = running.engines()[0]["metadata"]["name"]
    running.kubectl("delete", "deployment", name)
    running.until("the Deployment", lambda: running.get("deployments", name))
    until_told(running, "CreatedAgain", name)
    running.until_ready()


def test_a_foreign_object_with_a_childs_name_is_named_and_untouched(world):
    world.operator()
    world.kubectl("create", "service", "clusterip", "chat", "--tcp=80:80")
    foreign = world.get("services", "chat")
    world.kubectl("apply", "-f", "-", given=yaml.safe_dump(FLEET))

    def named():
        return condition(world.fleet(), "NameConflict").get("status") == "True"

    world.until("NameConflict", named)
    assert "Service/chat" in condition(world.fleet(), "NameConflict")["message"]
    world.until("the engines come all the same", world.engines)
    assert world.get("services", "chat") == foreign


def test_a_restarted_operator_writes_nothing_at_a_fixed_point(running):
    running.until_at_rest()
    running.operators[0].stop()
    fleet = running.fleet()
    second = running.operator("two")
    running.until("a round", lambda: second.metric("argosy_operator_reconcile_total") >= 1)
    time.sleep(3)  # for what its watches still deliver
    assert second.metric("argosy_operator_writes_total") == 0
    assert running.fleet() == fleet


def test_when_the_leader_is_killed_the_next_one_acts_within_twenty_seconds(running):
    second = running.operator("two")
    running.until("it waits", lambda: second.metric("process_start_time_seconds"))
    assert second.metric("argosy_operator_leader") == 0
    running.operators[0].kill()
    killed = time.monotonic()
    running.patch(roles={"colocated": {"replicas": {"min": 2}}})
    running.until("2 replicas", lambda: running.engines()[0]["spec"]["replicas"] == 2, 25)
    assert time.monotonic() - killed <= 20
    lease = running.get("leases", "argosy-operator")
    assert lease["spec"]["holderIdentity"].startswith("two_")


def test_a_standby_follows_at_once_when_the_leader_ends_in_order(running):
    second = running.operator("two")
    running.until("it waits", lambda: second.metric("process_start_time_seconds"))
    running.operators[0].stop()
    running.until("it leads", lambda: second.metric("argosy_operator_leader") == 1, 6)
