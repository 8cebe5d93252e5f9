"""Pod templates that stand: a newer operator renders them otherwise, and replaces no pod for it.

Each Deployment notes what its pod template was made from (`names.INPUTS`, a digest of fields of the
spec) and by which number of the rendering code (`names.TEMPLATE`). Where the inputs are the same
and only the number differs, the Deployment keeps the template that it has, whichever operator is
the newer one.
"""

from collections.abc import Iterable

from argosy_operator.core.fleet import names
from argosy_operator.core.fleet.objects import Object, digest


def noted(deployment: Object, inputs: object, template: int) -> Object:
    """The rendered Deployment with a note of its inputs and of the number of its template."""
    meta = deployment["metadata"]
    notes = {names.INPUTS: digest(inputs), names.TEMPLATE: str(template)}
    annotations = (meta.get("annotations") or {}) | notes
    return {**deployment, "metadata": {**meta, "annotations": annotations}}


def made_from(deployments: Iterable[Object], inputs: object) -> Object | None:
    """The Deployment whose pods were made from the same inputs, in whatever template."""
    same = digest(inputs)
    return next((d for d in deployments if _note(d, names.INPUTS) == same), None)


def standing(rendered: Object, live: Object | None) -> Object:
    """What to apply: `rendered`, with the pod template of `live` if another number of the rendering
    code made it from the same inputs."""
    if live is None or _note(live, names.INPUTS) != _note(rendered, names.INPUTS):
        return rendered
    number = _note(live, names.TEMPLATE)
    if number == _note(rendered, names.TEMPLATE):
        return rendered
    meta = rendered["metadata"]
    annotations = meta["annotations"] | {names.TEMPLATE: number}
    spec = {**rendered["spec"], "template": live["spec"]["template"]}
    return {**rendered, "metadata": {**meta, "annotations": annotations}, "spec": spec}


def _note(deployment: Object, name: str) -> str | None:
    return (deployment["metadata"].get("annotations") or {}).get(name)
