"""The operator's defaults for pods over whole rounds: engines keep theirs, gateways follow."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from argosy_operator.api.v1alpha1.pods.defaults import PodDefaults
from argosy_operator.core.snapshot import names
from tests.shell.store import Store
from tests.shell.test_images import OLD, PARKED, an_operator_without_user, rounds

POOL = {"nodeSelector": {"pool": "llm"}, "resources": {"limits": {"cpu": "2"}}}
OTHER = replace(OLD, pods=PodDefaults.model_validate({"engines": POOL, "gateways": POOL}))


def templates(store: Store, ending: str) -> dict[str, Any]:
    """Pod templates of the Deployments, by name, whose name contains the ending."""
    return {
        name: deepcopy(child["spec"]["template"])
        for (kind, name), child in store.objects.items()
        if kind == "Deployment" and ending in name
    }


async def test_new_defaults_replace_gateways_and_no_engine() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    engines, gateways = templates(store, "colocated"), templates(store, "gateway")
    await rounds(store, OTHER)
    assert templates(store, "colocated") == engines
    ((name, front),) = templates(store, "gateway").items()
    assert front["spec"]["nodeSelector"] == {"pool": "llm"}
    assert "nodeSelector" not in gateways[name]["spec"]


async def test_new_defaults_come_with_the_next_revision() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    before = templates(store, "colocated")
    store.fleet["spec"]["engine"] = {"maxNumSeqs": 8}
    store.fleet["metadata"]["generation"] = 2
    await rounds(store, OTHER)
    (added,) = (t for name, t in templates(store, "colocated").items() if name not in before)
    assert added["spec"]["nodeSelector"] == {"pool": "llm"}
    assert added["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"


async def test_engines_from_before_there_were_defaults_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store(roles=PARKED)
    with monkeypatch.context() as patch:
        an_operator_without_user(patch)
        await rounds(store, OLD)
    for (kind, name), child in store.objects.items():
        if kind == "Deployment" and "colocated" in name:
            meta, template = child["metadata"], child["spec"]["template"]
            for note in (names.POD_DEFAULTS, names.INPUTS, names.TEMPLATE):
                del meta["annotations"][note]
            del template["spec"]["containers"][0]["resources"]["requests"]
            for label in set(names.recommended("chat")) - {names.MANAGED_BY} | {names.COMPONENT}:
                del template["metadata"]["labels"][label]
    before = templates(store, "colocated")
    await rounds(store, OTHER)
    assert templates(store, "colocated") == before
