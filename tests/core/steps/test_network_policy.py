"""The NetworkPolicy of the engine pods: there by default, gone when it is turned off."""

from tests.support.model import Model, converged, fleet

POLICY = ("NetworkPolicy", "chat-engine")


def test_a_fleet_has_a_policy_from_its_first_round_before_its_pods() -> None:
    model = Model(fleet())
    kinds = [action.obj["kind"] for action in model.round().actions]
    assert kinds.index("NetworkPolicy") < kinds.index("Deployment")
    assert POLICY in model.children


def test_a_policy_that_is_turned_off_is_deleted_and_comes_back_without_new_pods() -> None:
    model = converged()
    pods = set(model.pods)
    model.edit(security={"networkPolicy": False})
    model.converge()
    assert POLICY not in model.children
    model.edit(security={"networkPolicy": True})
    model.converge()
    assert POLICY in model.children
    assert set(model.pods) == pods


def test_a_policy_of_another_owner_is_not_deleted() -> None:
    model = converged(security={"networkPolicy": False})
    labels = {"serving.argosy.dev/fleet": "chat"}
    theirs = {"kind": "NetworkPolicy", "metadata": {"name": "theirs", "uid": "x", "labels": labels}}
    model.children["NetworkPolicy", "theirs"] = {**theirs, "spec": {}}
    assert model.round().actions == ()


def test_an_engine_that_shows_its_metrics_on_its_apis_port_has_that_port_open() -> None:
    others = {"type": "vllm", "image": "v:1"}
    model = converged(model={"uri": "pvc://models"}, engine=others)
    rules = model.children[POLICY]["spec"]["ingress"]
    assert "from" not in rules[0]
    assert ports(model)[0] == (8000, None)


def test_engines_that_move_kv_over_ucx_have_its_ports_open_to_each_other_alone() -> None:
    others = {"type": "vllm", "image": "v:1"}
    model = converged(model={"uri": "pvc://models"}, engine=others, mode="disaggregated")
    assert ports(model)[-2:] == [(5600, None), (5700, 5899)]
    side, ucx = model.children[POLICY]["spec"]["ingress"][-2:]
    assert side["from"] == ucx["from"] == model.children[POLICY]["spec"]["ingress"][2]["from"]


def ports(model: Model) -> list[tuple[int, int | None]]:
    rules = model.children[POLICY]["spec"]["ingress"]
    return [(p["port"], p.get("endPort")) for rule in rules for p in rule["ports"]]


def test_only_a_fleet_that_must_use_nixl_has_its_ports_open_and_to_its_own_engines() -> None:
    usual = [(8000, None), (8001, None), (8002, None)]
    assert ports(converged()) == usual
    assert ports(converged(kvTransfer={"transport": "tcp"})) == usual
    model = converged(kvTransfer={"transport": "nixl"})
    assert ports(model) == [*usual, (8003, 8010)]
    kv, ucx = model.children[POLICY]["spec"]["ingress"][-2:]
    assert kv["from"] == ucx["from"]
