"""The images of a fleet's pods: those that the operator was installed with, and those that it has.

A fleet keeps the images that it runs when the operator gets others (`spec.imageUpdates`), so that
an upgrade of the operator replaces no pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.core.snapshot.objects import Object, seconds


@dataclass(frozen=True, slots=True)
class Images:
    """What the operator was installed with: images, as in a container's `image`.

    imagePullPolicy is not set: Kubernetes pulls always for the tag latest, else if not present.
    """

    engine: str
    """For fleets without spec.engine.image."""
    gateway: str
    template: PodTemplate = field(default_factory=PodTemplate)
    """What the fleets' own templates are laid over."""
    fetch: str = field(kw_only=True)
    """Of the Jobs that fetch models."""

    def having(self, others: Mapping[str, str]) -> "Images":
        """The same with `others`, by container."""
        return replace(
            self,
            engine=others.get("engine", self.engine),
            gateway=others.get("gateway", self.gateway),
        )


def kept(fleet: ServingDeployment, deployments: Iterable[Object], default: Images) -> Images:
    """Return the images that the fleet has or rolls out, `default` where it has none.

    The status has them since the fleet's first round; without it, such as after a restore, those of
    the newest of the fleet's `deployments` count.
    """
    said, chosen = fleet.status.images, dict[str, str]()
    newest_first = sorted(deployments, key=_made_at, reverse=True)
    for container in ("engine", "gateway"):
        images = filter(None, (_image(deployment, container) for deployment in newest_first))
        noted = getattr(said, container) if said is not None else None
        chosen[container] = noted or next(images, str(getattr(default, container)))
    return default.having(chosen)


def taken(
    fleet: ServingDeployment, deployments: Iterable[Object], default: Images, *, follows: bool
) -> tuple[Images, dict[str, str]]:
    """The images to render, and the operator's default ones that the fleet does not take.

    `follows`: it takes them now, whatever the spec says.
    """
    images = kept(fleet, deployments, default)
    others = newer(fleet, images, default)
    if follows or fleet.spec.image_updates == "Follow":
        return images.having(others), {}
    return images, others


def shown(fleet: ServingDeployment, images: Images) -> dict[str, str]:
    """The images that the fleet's pods are rendered with, by container."""
    return {"engine": fleet.spec.engine.image or images.engine, "gateway": images.gateway}


def newer(fleet: ServingDeployment, used: Images, default: Images) -> dict[str, str]:
    """The operator's default images that the fleet does not have, by container."""
    asked = ("gateway",) if fleet.spec.engine.image else ("engine", "gateway")
    others = {name: getattr(default, name) for name in asked}
    return {name: image for name, image in others.items() if image != getattr(used, name)}


def _image(deployment: Object, container: str) -> str:
    template = deployment["spec"].get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or ()
    return str(next((c.get("image", "") for c in containers if c["name"] == container), ""))


def _made_at(deployment: Object) -> tuple[float, str]:
    meta = deployment["metadata"]
    return seconds(meta.get("creationTimestamp")) or 0.0, str(meta["name"])
