"""The plan while it is being made, and what each step reports: a reason and a message.

`core/plan.py` keeps the steps of a round in order. The log prints them at level debug, and
`kubectl argosy explain --plan` prints them on a terminal.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from argosy_law.decision import Decision
from argosy_law.rollout import Split
from argosy_operator.api.v1alpha1 import RoleName
from argosy_operator.core.snapshot.actions import Action, Event
from argosy_operator.core.snapshot.objects import ChildKey
from argosy_operator.core.snapshot.pods import Pod
from argosy_operator.core.snapshot.snapshot import LoopMemory
from argosy_operator.core.steps.canary import Trial


class StepReason(StrEnum):
    """Why a step did what it did. REASONS says which step reports which, and what it means."""

    BEING_DELETED = "BeingDeleted"
    NOT_BEING_DELETED = "NotBeingDeleted"
    APPLYING_CHILDREN = "ApplyingChildren"
    NAME_TAKEN = "NameTaken"
    CHILDREN_UP_TO_DATE = "ChildrenUpToDate"
    MODEL_IN_PLACE = "ModelInPlace"
    MODEL_FETCHED = "ModelFetched"
    FETCHING_MODEL = "FetchingModel"
    MAKING_JOB = "MakingJob"
    LEARNT_READ = "LearntRead"
    LEARNT_UNREADABLE = "LearntUnreadable"
    NOTHING_TO_READ = "NothingToRead"
    DECIDED = "Decided"
    BETWEEN_DECISIONS = "BetweenDecisions"
    AT_MINIMUM = "AtMinimum"
    AT_ZERO = "AtZero"
    WAKING = "Waking"
    EXTERNAL_OWNER = "ExternalOwner"
    ANY_GPU = "AnyGPU"
    GPU_TYPES_STAY = "GPUTypesStay"
    GPU_TYPES_CHANGE = "GPUTypesChange"
    NO_GPU_TYPE_HAS_ROOM = "NoGPUTypeHasRoom"
    CREATING_WORKLOADS = "CreatingWorkloads"
    WORKLOADS_EXIST = "WorkloadsExist"
    SETTINGS_IN_USE = "SettingsInUse"
    SETTINGS_PENDING = "SettingsPending"
    SETTINGS_REFUSED = "SettingsRefused"
    WRITING_LEARNT = "WritingLearnt"
    LEARNT_KEPT = "LearntKept"
    SCALING_ROLES = "ScalingRoles"
    ROLES_AT_TARGET = "RolesAtTarget"
    ROLE_FLIP_OFF = "RoleFlipOff"
    NO_FLIP_NEEDED = "NoFlipNeeded"
    FLIP_WAITS = "FlipWaits"
    FLIP_DRAINS = "FlipDrains"
    FLIPPING = "Flipping"
    ROLE_CHANGING = "RoleChanging"
    NOTHING_TO_RECYCLE = "NothingToRecycle"
    RECYCLE_WAITS = "RecycleWaits"
    RECYCLING = "Recycling"
    RECYCLE_GIVEN_UP = "RecycleGivenUp"
    SCALING_DEPLOYMENTS = "ScalingDeployments"
    DEPLOYMENTS_AT_TARGET = "DeploymentsAtTarget"
    WAITING_FOR_NEW_REVISION = "WaitingForNewRevision"
    RETIRING_OLD_REVISION = "RetiringOldRevision"
    NO_OLD_REVISION = "NoOldRevision"
    NEW_PODS_START = "NewPodsStart"
    OLD_PODS_LEAVE = "OldPodsLeave"
    SURGE_TOO_SMALL = "SurgeTooSmall"
    ROLLOUT_PAUSED = "RolloutPaused"
    CANARY_SERVES = "CanaryServes"
    CANARY_UNDECIDED = "CanaryUndecided"
    CANARY_LOST = "CanaryLost"
    WAITING_AFTER_FAILURE = "WaitingAfterFailure"
    RETRYING_FAILED_ACTIONS = "RetryingFailedActions"
    NO_FAILED_ACTION = "NoFailedAction"
    WAITING_AFTER_CONFLICT = "WaitingAfterConflict"
    REVERTING_CHANGES = "RevertingChanges"
    NO_FIELD_CONFLICT = "NoFieldConflict"
    PAUSED = "Paused"
    NOT_PAUSED = "NotPaused"
    NOTHING_FAILED = "NothingFailed"
    FAILURE_HELD = "FailureHeld"
    GOING_BACK = "GoingBack"
    NOTHING_REFUSED = "NothingRefused"
    REVISION_REFUSED = "RevisionRefused"
    REFUSAL_DROPPED = "RefusalDropped"
    HISTORY_WAITS = "HistoryWaits"
    RECORDING_HISTORY = "RecordingHistory"
    HISTORY_KEPT = "HistoryKept"


REASONS: dict[str, dict[StepReason, str]] = {
    "skip_if_deleting": {
        StepReason.BEING_DELETED: "Kubernetes deletes the children with the fleet, and the plan "
        "ends here",
        StepReason.NOT_BEING_DELETED: "the plan goes on",
    },
    "heed_refusal": {
        StepReason.NOTHING_REFUSED: "the spec's revision runs, or is rolled out",
        StepReason.REVISION_REFUSED: "the spec's revision is refused, and another one of the "
        "history runs, or is rolled out, in its place",
        StepReason.REFUSAL_DROPPED: "the mark in status has no effect and is removed: the spec "
        "asks for another revision now, or the history has nothing to run in its place",
    },
    "apply_children": {
        StepReason.APPLYING_CHILDREN: "children are missing, differ from what is rendered, or are "
        "not needed any more",
        StepReason.NAME_TAKEN: "an object of another owner has the name of a child; it is not "
        "touched",
        StepReason.CHILDREN_UP_TO_DATE: "every child that exists is as rendered",
    },
    "fetch_model": {
        StepReason.MODEL_IN_PLACE: "the model is used where it is",
        StepReason.MODEL_FETCHED: "the model is in its claim, and its commit is part of the "
        "revision",
        StepReason.FETCHING_MODEL: "a Job fetches the model; no engine pod of it is made before",
        StepReason.MAKING_JOB: "the Job that fetches the model is made, or made again",
        StepReason.NAME_TAKEN: "an object of another owner has the name of the Job or its claim; "
        "it is not touched",
    },
    "read_learnt": {
        StepReason.LEARNT_READ: "the law goes on with what an operator had learnt before",
        StepReason.LEARNT_UNREADABLE: "what was kept cannot be used; the law begins anew",
        StepReason.NOTHING_TO_READ: "nothing was kept, or it was read in an earlier round",
    },
    "choose_targets": {
        StepReason.DECIDED: "the scaling law decided from fresh metrics",
        StepReason.BETWEEN_DECISIONS: "the scaling law is not due; replicas stay within their "
        "bounds",
        StepReason.AT_MINIMUM: "without an SLO, or under policy None, replicas.min is the target",
        StepReason.AT_ZERO: "no requests arrive, and spec.autoscaling.scaleToZero is set: no "
        "engine pods until the next request",
        StepReason.WAKING: "a request waits in a gateway of a fleet at zero: replicas.min is the "
        "target",
        StepReason.EXTERNAL_OWNER: "under policy External, and with advisory, the ServingRoles are "
        "the target, within the bounds",
    },
    "roll_out": {
        StepReason.NO_OLD_REVISION: "only the current revision has Deployments",
        StepReason.FETCHING_MODEL: "the model of the new revision is fetched; the old pods serve",
        StepReason.NEW_PODS_START: "pods of the new revision start, in a number that the strategy "
        "and maxSurgeGPUs allow; the old pods have the rest of the targets",
        StepReason.OLD_PODS_LEAVE: "old pods drain, because new ones serve in their place or need "
        "their GPUs",
        StepReason.SURGE_TOO_SMALL: "nothing can begin: the last complete set of old pods does not "
        "leave before a new one serves, and maxSurgeGPUs leaves no room for one",
        StepReason.ROLLOUT_PAUSED: "rollout.paused is true: the pods of all revisions stay, and "
        "the old one grows with the targets",
        StepReason.CANARY_SERVES: "pods of the new revision get the canary's share of the requests",
        StepReason.CANARY_UNDECIDED: "the canary's time is over, and its verdicts do not show yet "
        "how good the new revision is; it stays at its share",
        StepReason.CANARY_LOST: "the new revision misses the SLO more often than the old one; it "
        "stays at its share until it is refused, the spec is put back, or it is promoted",
    },
    "go_back": {
        StepReason.NOTHING_FAILED: "no rollout goes on, or none that has failed and can go back",
        StepReason.FAILURE_HELD: "the rollout has failed, and by rollout.onFailure it stays",
        StepReason.GOING_BACK: "the rollout has failed: status.refused is written, and the newest "
        "other revision of the history takes its place",
    },
    "create_workloads": {
        StepReason.CREATING_WORKLOADS: "ServingRoles or Deployments are missing and are created",
        StepReason.WORKLOADS_EXIST: "every role has its ServingRole and its Deployment",
    },
    "scale_roles": {
        StepReason.SCALING_ROLES: "the targets are written to the ServingRoles, where they outlive "
        "the operator",
        StepReason.ROLES_AT_TARGET: "every ServingRole has its target",
        StepReason.EXTERNAL_OWNER: "under policy External, and with advisory, others write the "
        "ServingRoles",
    },
    "choose_gpu_types": {
        StepReason.ANY_GPU: "no role has gpuTypes",
        StepReason.GPU_TYPES_STAY: "the roles keep their types",
        StepReason.GPU_TYPES_CHANGE: "a role goes to a cheaper type, or leaves one that has no "
        "room; the next round rolls it out",
        StepReason.NO_GPU_TYPE_HAS_ROOM: "pods find no node, and the role's other types had no "
        "room within the last day",
    },
    "flip_roles": {
        StepReason.ROLE_FLIP_OFF: "pods keep the role that they were made for",
        StepReason.NO_FLIP_NEEDED: "no role has a started pod too many while the other lacks "
        "a loaded one",
        StepReason.FLIP_WAITS: "a flip would help, but may not be now: pods start and leave "
        "instead",
        StepReason.FLIP_DRAINS: "the pod that is to change its role finishes its work; no new pod "
        "is started for it meanwhile, for at most a cold start",
        StepReason.FLIPPING: "an empty pod gets the other role",
        StepReason.ROLE_CHANGING: "a pod was flipped, and Kubernetes or its engine follows",
    },
    "recycle_pods": {
        StepReason.NOTHING_TO_RECYCLE: "no pod fails to hand over KV caches with partners that "
        "hand them over with others",
        StepReason.RECYCLE_WAITS: "a pod is to be replaced because its handovers fail, but may not "
        "be now",
        StepReason.RECYCLING: "a pod whose handovers fail is replaced: another one starts, then it "
        "drains and goes",
        StepReason.RECYCLE_GIVEN_UP: "the replacement did not become ready in time, and the pod "
        "stays",
    },
    "scale_deployments": {
        StepReason.SCALING_DEPLOYMENTS: "Deployments move to the targets; pods drain before they "
        "go",
        StepReason.DEPLOYMENTS_AT_TARGET: "every Deployment has its target",
    },
    "retire_old_revisions": {
        StepReason.WAITING_FOR_NEW_REVISION: "old pods serve until the new revision has its pods "
        "ready",
        StepReason.RETIRING_OLD_REVISION: "the new revision serves; old pods drain and go",
        StepReason.NO_OLD_REVISION: "only the current revision has Deployments",
    },
    "record_history": {
        StepReason.HISTORY_WAITS: "pods of other revisions are left, or no complete set serves: "
        "the rollout is not complete",
        StepReason.RECORDING_HISTORY: "the revision that runs is written as the newest of the "
        "history, and what is more than ten revisions old goes",
        StepReason.HISTORY_KEPT: "the revision that runs is the newest in the history",
    },
    "await_settings": {
        StepReason.SETTINGS_IN_USE: "no gateway says that it uses other settings than those of the "
        "spec, or RolledOut is True of its generation",
        StepReason.SETTINGS_PENDING: "a gateway uses older settings, or does not say which; the "
        "next round comes soon",
        StepReason.SETTINGS_REFUSED: "a gateway cannot use the settings of the spec",
    },
    "write_learnt": {
        StepReason.WRITING_LEARNT: "what the law has learnt is written, so that it outlives the "
        "operator",
        StepReason.LEARNT_KEPT: "it was written lately, or nothing was learnt since",
    },
    "back_off_failed_actions": {
        StepReason.WAITING_AFTER_FAILURE: "actions that failed, and what needs them, wait for the "
        "next attempt",
        StepReason.RETRYING_FAILED_ACTIONS: "actions that failed are tried again, after all others",
        StepReason.NO_FAILED_ACTION: "no action of this plan failed when it was last tried",
    },
    "back_off_field_conflicts": {
        StepReason.WAITING_AFTER_CONFLICT: "another writer repeats a change, so reverting it waits",
        StepReason.REVERTING_CHANGES: "changes of another writer are reverted",
        StepReason.NO_FIELD_CONFLICT: "nothing is reverted",
    },
    "skip_if_paused": {
        StepReason.PAUSED: "spec.paused is true: nothing is written but status",
        StepReason.NOT_PAUSED: "the actions are carried out",
    },
}
"""What each reason means, by the step that reports it; docs/reference/plan.md is made of it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan, as it went in this round."""

    name: str
    """The function in the chain of `core/plan.py`."""
    reason: StepReason
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}: {self.message}"


LOOK_AGAIN_S = 300.0
"""How long a fleet rests if no step asks for less. Watches report changes much sooner; this catches
what a watch missed."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Every step returns a new one: with its actions and events, and with a `Step`."""

    memory: LoopMemory
    """What the next round will know."""
    actions: tuple[Action, ...] = ()
    """In the order in which they are carried out."""
    events: tuple[Event, ...] = ()
    steps: tuple[Step, ...] = ()
    """What each step reported, in the order of the chain."""
    running: str = ""
    """Name of the step that runs now."""
    final: bool = False
    """The remaining steps of the chain have nothing to do."""
    wake_s: float = LOOK_AGAIN_S
    """The next round comes after so many seconds at the latest."""
    foreign: tuple[ChildKey, ...] = ()
    """Objects of other owners that have the name of a child."""
    model: Mapping[str, object] | None = None
    """The model that was fetched, as status writes it, if this round found it out."""
    targets: Mapping[RoleName, int] = field(default_factory=dict)
    """Wanted pods per role."""
    decision: Decision | None = None
    """What the scaling law decided in this round; None if it did not run, or changed nothing
    between two runs."""
    record: Mapping[str, object] | None = None
    """The inputs of that decision, from which it can be repeated. None if replicas stay."""
    scaled: bool = False
    """The decision changes replicas."""
    figures_due: bool = False
    """Status may update what users got, even if only the numbers changed."""
    rolling: bool = False
    """Deployments of old revisions exist beside the current one."""
    split: Split | None = None
    """How the targets are divided between the revisions; None without old ones."""
    trial: Trial | None = None
    """What is known of the rollout's canary; None without one, and before its pods serve."""
    settled: frozenset[RoleName] = frozenset()
    """Roles whose Deployments stay as they are in this round, because a pod goes from one to the
    other."""
    held: Mapping[RoleName, int] = field(default_factory=dict)
    """What a role's Deployment gets instead of its target, because a pod is to be flipped to it."""
    leaving: tuple[Pod, ...] = ()
    """Pods that were chosen for removal, now or earlier."""

    def replicas(self, role: RoleName) -> int:
        """Replicas that the role's Deployment of the current revision is to have."""
        return self.targets[role] if self.split is None else self.split.new.get(role, 0)

    def act(self, *actions: Action) -> "Draft":
        return replace(self, actions=self.actions + actions)

    def event(self, *events: Event) -> "Draft":
        return replace(self, events=self.events + events)

    def within(self, wake_s: float) -> "Draft":
        return replace(self, wake_s=min(self.wake_s, wake_s))

    def step(self, reason: StepReason, message: str) -> "Draft":
        """Report the step that runs now. Every step calls it once, when it returns."""
        return replace(self, steps=(*self.steps, Step(self.running, reason, message)))
