"""Sections `pods` laid over each other: the nearer one counts."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from argosy_operator.api.v1alpha1.pods.resources import PodResources
from argosy_operator.api.v1alpha1.pods.settings import PodSettings
from argosy_operator.api.v1alpha1.pods.volumes import Volume

_NOTHING = PodSettings()
"""Sections are immutable, so that one serves all; to make and check one takes long."""


def merged(layers: Iterable[PodSettings]) -> PodSettings:
    """One section of several, the farthest first."""
    whole = _NOTHING
    for layer in layers:
        update = {
            name: join(getattr(whole, name), getattr(layer, name))
            for name, join in JOINS.items()
            if getattr(layer, name)
        }
        # Not checked again: two sections together may have more items than one may.
        whole = whole.model_copy(update=update)
    return whole


def _both(far: Mapping[str, str], near: Mapping[str, str]) -> dict[str, str]:
    return {**far, **near}


def _all(far: tuple[Any, ...], near: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*far, *(item for item in near if item not in far))


def _by_name(far: tuple[Any, ...], near: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple({item.name: item for item in (*far, *near)}.values())


def _volumes(far: tuple[Volume, ...], near: tuple[Volume, ...]) -> tuple[Volume, ...]:
    names = {volume.name for volume in near}
    paths = {volume.mount_path for volume in near}
    kept = (v for v in far if v.name not in names and v.mount_path not in paths)
    return (*kept, *near)


def _resources(far: PodResources, near: PodResources) -> PodResources:
    return near.over(far)


def _nearest(far: Any, near: Any) -> Any:  # noqa: ARG001
    return near


JOINS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "labels": _both,
        "annotations": _both,
        "node_selector": _both,
        "tolerations": _all,
        "affinity": _nearest,
        "topology_spread": _nearest,
        "priority_class_name": _nearest,
        "scheduler_name": _nearest,
        "runtime_class_name": _nearest,
        "service_account_name": _nearest,
        "image_pull_secrets": _by_name,
        "user_ids": _nearest,
        "root_filesystem": _nearest,
        "resources": _resources,
        "shared_memory": _nearest,
        "env": _by_name,
        "env_from": _all,
        "volumes": _volumes,
    }
)
"""How each field of a nearer section joins that of a farther one."""
