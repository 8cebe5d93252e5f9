"""The template of the installation over whole rounds: engines keep theirs, gateways follow."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

from argosy_operator.api.model import PodTemplate
from tests.shell.store import Store
from tests.shell.test_images import OLD, PARKED, rounds

LIMITED = {"name": "engine", "resources": {"limits": {"cpu": "2"}}}
POOL = PodTemplate(spec={"nodeSelector": {"pool": "llm"}, "containers": [LIMITED]})
OTHER = replace(OLD, template=POOL)


def templates(store: Store, ending: str) -> dict[str, Any]:
    """Pod templates of the Deployments, by name, whose name contains the ending."""
    return {
        name: deepcopy(child["spec"]["template"])
        for (kind, name), child in store.objects.items()
        if kind == "Deployment" and ending in name
    }


async def test_a_new_template_replaces_gateways_and_no_engine() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    engines, gateways = templates(store, "colocated"), templates(store, "gateway")
    await rounds(store, OTHER)
    assert templates(store, "colocated") == engines
    ((name, front),) = templates(store, "gateway").items()
    assert front["spec"]["nodeSelector"] == {"pool": "llm"}
    assert "nodeSelector" not in gateways[name]["spec"]


async def test_a_new_template_comes_with_the_next_revision() -> None:
    store = Store(roles=PARKED)
    await rounds(store, OLD)
    before = templates(store, "colocated")
    store.fleet["spec"]["engine"] = {"maxNumSeqs": 8}
    store.fleet["metadata"]["generation"] = 2
    await rounds(store, OTHER)
    (added,) = (t for name, t in templates(store, "colocated").items() if name not in before)
    assert added["spec"]["nodeSelector"] == {"pool": "llm"}
    assert added["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "2"
