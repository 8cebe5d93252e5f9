"""`kubectl argosy explain --plan`: what the operator would do next, without writing anything.

It is a round of the operator's own code (`shell/gather.py`, then `core/plan.py`) with the user's
kubeconfig. The gate of its `ApiCluster` is closed, so it cannot write. What only the operator knows
is left out, and the output says so: what it measured and learnt, what failed, how busy engines are.
"""

import json
import time
from dataclasses import dataclass, replace

from argosy_operator.adapters.protocols import Cluster, Measurement
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.api.v1alpha1.status import RoleStatus
from argosy_operator.core.plan import Plan, plan
from argosy_operator.core.snapshot import names
from argosy_operator.core.snapshot.actions import Action, Scale, key_of
from argosy_operator.core.snapshot.objects import Object, is_owned
from argosy_operator.core.snapshot.pods import Load
from argosy_operator.core.snapshot.snapshot import Clock, LoopMemory, VerdictsRead
from argosy_operator.core.steps.draft import REASONS
from argosy_operator.render.common import Images, installed_by_gateways, kept_images
from argosy_operator.shell.gather import Sources, gather

UNKNOWN = (
    "what the scaling law measured and learnt: see its last decision in `kubectl argosy explain`",
    "the fleet's share of a GPU budget that fleets have in common",
    "pauses after failed writes and field conflicts: every action counts as not tried before",
    "differences that the operator accepts because a webhook makes them again",
    "how busy the engines are: a draining pod counts as not finished before its time-out",
)
"""What this command cannot know."""


class _Nothing:
    """In place of Prometheus and the engines, which are not asked."""

    async def measure(self, *_: object, **__: object) -> Measurement:
        raise AssertionError("the scaling law is never due in a dry run")

    async def verdicts(self, *_: object, **__: object) -> VerdictsRead:
        return VerdictsRead(problem="a dry run asks for no verdicts")

    async def load(self, *_: object, **__: object) -> Load | None:
        return None

    async def drain(self, *_: object, **__: object) -> bool:
        raise AssertionError("a dry run carries nothing out")

    take_work_again = drain


@dataclass(frozen=True, slots=True)
class DryRun:
    """A plan, and what it rests on."""

    fleet: ServingDeployment
    images: Images
    revision: str
    plan: Plan


async def dry_run(
    cluster: Cluster, raw: Object, default: Images, engine_image: str | None = None
) -> DryRun:
    """The plan for a ServingDeployment as the API server returned it.

    `default` are the images if the fleet has no pods yet; `engine_image` is the operator's default
    image as the user knows it. Without it the fleet's own counts as the default, so that a fleet
    of imageUpdates: Follow has nothing to follow. Raises ClusterError if the user may not list one
    of the fleet's children, and ValueError if the fleet is not valid.
    """
    fleet = ServingDeployment.model_validate(raw)
    selector = f"{names.FLEET}={fleet.name}"
    deployments = await cluster.list("Deployment", fleet.namespace, selector)
    owned = [d for d in deployments if is_owned(d, fleet.metadata.uid)]
    images = kept_images(fleet, owned, default)
    job = None
    if fleet.spec.model.fetch is not None:
        job = await cluster.get("Job", fleet.namespace, names.fetch_job(fleet.name))
    images = replace(
        images,
        engine=engine_image or images.engine,
        template=installed_by_gateways(owned, images.template),
        # A Job of another image would be made again.
        fetch=_image_of(job, fleet.metadata.uid) or images.fetch,
    )
    roles = fleet.status.roles
    shown: dict[RoleName, RoleStatus | None] = {
        "prefill": roles.prefill,
        "decode": roles.decode,
        "colocated": roles.colocated,
    }
    memory = LoopMemory(
        decide_at=float("inf"),
        targets={role: status.desired for role, status in shown.items() if status},
    )
    nothing, clock = _Nothing(), Clock(time.time(), time.monotonic())
    snapshot = await gather(Sources(cluster, nothing, nothing, images), fleet, memory, clock)
    shown_images = replace(images, engine=snapshot.images["engine"])
    return DryRun(fleet, shown_images, snapshot.revision, plan(snapshot))


def _image_of(job: Object | None, uid: str) -> str:
    """The image of the Job that fetches the model; "" if the fleet with this uid has none."""
    if job is None or not is_owned(job, uid):
        return ""
    return str(job["spec"]["template"]["spec"]["containers"][0]["image"])


def dry_run_output(run: DryRun, output: str) -> str:
    """What `explain --plan` prints; `output` is "text" or "json"."""
    return _json(run) if output == "json" else _text(run)


def _text(run: DryRun) -> str:
    """Steps with reason and message, actions in order, and what is assumed or unknown."""
    steps, actions = run.plan.draft.steps, run.plan.actions
    wide = max(len(step.name) for step in steps), max(len(step.reason) for step in steps)
    lines = [f"Plan for fleet {run.fleet.name}, computed by this command; nothing was written", ""]
    lines += [
        f"  {step.name:<{wide[0]}}  {step.reason:<{wide[1]}}  {step.message}" for step in steps
    ]
    lines += ["", "Actions in their order" if actions else "No actions"]
    lines += [f"  {in_words(action)}" for action in actions]
    lines += ["", f"Assumed: engine image {run.images.engine} (else give --engine-image)"]
    lines += ["", "Not known here (the operator's log at --log-level debug has its own steps)"]
    lines += [f"  {unknown}" for unknown in UNKNOWN]
    return "\n".join(lines)


def _json(run: DryRun) -> str:
    body = {
        "steps": [
            {
                "step": step.name,
                "reason": step.reason,
                "meaning": REASONS[step.name][step.reason],
                "message": step.message,
            }
            for step in run.plan.draft.steps
        ],
        "actions": [in_words(action) for action in run.plan.actions],
        "revision": run.revision,
        "images": {"engine": run.images.engine, "gateway": run.images.gateway},
    }
    return json.dumps(body, indent=2, ensure_ascii=False)


def in_words(action: Action) -> str:
    """The action's key; for Scale with the number."""
    number = f" to {action.replicas}" if isinstance(action, Scale) else ""
    return f"{key_of(action)}{number}"
