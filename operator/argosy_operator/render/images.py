"""The images of a fleet's pods: those that the operator was installed with, and those that it has.

A fleet keeps the images that it runs when the operator gets others (`spec.imageUpdates`), so that
an upgrade of the operator replaces no pod. A fleet that goes over to another engine takes the
operator's gateways with it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from argosy_operator.api.v1alpha1 import ServingDeployment
from argosy_operator.api.v1alpha1.template import PodTemplate
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.objects import Object, seconds
from argosy_operator.core.snapshot.revision import TEMPLATES, as_rolled_out, revision


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
    """The images that the fleet has or rolls out; `default` where it has none.

    The status has them since the fleet's first round. A fleet from before that field has those of
    its own `deployments`: the default if it gives one of their revisions, since no edit by hand
    changes a revision, else those of the newest Deployment.
    """
    said = fleet.status.images
    chosen = {name: str(getattr(default, name)) for name in ("engine", "gateway")}
    newest_first = sorted(deployments, key=_made_at, reverse=True)
    revisions = {d["metadata"].get("labels", {}).get(names.REVISION) for d in newest_first}
    for container in chosen:
        if container == "gateway" and _leaves_our_engine(fleet, newest_first):
            continue
        noted = getattr(said, container) if said is not None else None
        if noted is None and container == "engine" and _gives(fleet, default, revisions):
            continue
        images = filter(None, (_image(deployment, container) for deployment in newest_first))
        chosen[container] = noted or next(images, chosen[container])
    return default.having(chosen)


def _leaves_our_engine(fleet: ServingDeployment, deployments: Iterable[Object]) -> bool:
    """Whether a fleet of our engine goes over to another one. Its gateways may be of an operator
    that did not know other engines, and would then take every answer for one of a wrong pod."""
    if fleet.spec.engine.type == "argosy":
        return False
    templates = [d["spec"].get("template") or {} for d in deployments if _image(d, "engine")]
    marks = ((t.get("metadata") or {}).get("annotations") or {} for t in templates)
    return any(names.ENGINE not in annotations for annotations in marks)


def _gives(fleet: ServingDeployment, default: Images, revisions: Collection[str | None]) -> bool:
    """Whether the default engine image gives one of these revisions."""
    # While the gateways get a certificate, engines are those of the fleet without it.
    before = as_rolled_out(fleet, {}, engine_image=default.engine, called=False)
    return any(
        revision(one, engine_image=default.engine, template=template) in revisions
        for one in (fleet, before)
        for template in TEMPLATES
    )


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
