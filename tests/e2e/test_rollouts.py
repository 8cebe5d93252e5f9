"""The chart's operator.imageRollouts: so many fleets take newer default images at one time."""

from collections.abc import Callable, Iterator

import pytest

from local.demo.places.place import helm_install
from tests.e2e.installed import FLEET, Installed

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(420)]
FLEETS = ("first", "second")
REVISION = "serving.argosy.dev/revision"
NEWER = {name: f"ghcr.io/argosy-serving/{name}:next" for name in ("engine", "gateway")}
TAKEN_S = 240
"""The operator waits a minute until it knows all fleets, then they roll out one after the other."""


@pytest.fixture
def fleets(argosy: Installed, install_chart: Callable[..., None]) -> Iterator[tuple[str, ...]]:
    """Two fleets that keep their images, and no others, which would take the one place."""
    argosy.kubectl("delete", "sd", "--all")
    for name in FLEETS:
        argosy.apply(name, mode="colocated")
    for name in FLEETS:
        argosy.until_ready(name)
    yield FLEETS
    argosy.kubectl("delete", "sd", *FLEETS, "--wait=false")
    install_chart()


def rolling(argosy: Installed) -> set[str]:
    """Fleets with engine Deployments of two revisions, in one look at all of them."""
    path = f"/apis/apps/v1/namespaces/{argosy.namespace}/deployments"
    found = argosy.kube.get(path, labelSelector=f"{FLEET},{REVISION}")
    assert found is not None
    labels = [one["metadata"]["labels"] for one in found["items"]]
    of = [name for name, _ in {(one[FLEET], one[REVISION]) for one in labels}]
    return {name for name in of if of.count(name) > 1}


def images(argosy: Installed, name: str) -> set[str]:
    """What the fleet's pods run."""
    return {pod["spec"]["containers"][0]["image"] for pod in argosy.pods(name)}


def test_with_one_place_one_fleet_after_the_other_takes_newer_images(
    argosy: Installed, fleets: tuple[str, ...]
) -> None:
    values = ",".join(f"images.{name}={image}" for name, image in NEWER.items())
    helm_install(argosy.kube, "--set", values, "--set", "operator.imageRollouts=1")

    def statuses() -> list[dict[str, object]]:
        return [(argosy.fleet(name) or {}).get("status", {}) for name in fleets]

    argosy.until("both wait", lambda: all(s.get("newerImages") == NEWER for s in statuses()), 60)
    looks, newer = list[set[str]](), set(NEWER.values())

    def taken() -> bool:
        # Read first: a fleet that begins between the two reads is then seen as rolling.
        with_newer = all(s.get("images") == NEWER for s in statuses())
        looks.append(rolling(argosy))
        return with_newer and not looks[-1]

    argosy.until("both have the newer images", taken, TAKEN_S)
    assert {name for look in looks for name in look} == set(fleets)
    assert max(map(len, looks)) == 1
    for name in fleets:
        argosy.until_ready(name)
        # Gateways are replaced one after the other, beside the engines.
        argosy.until(
            f"{name} has only newer images", lambda name=name: images(argosy, name) == newer, 60
        )
