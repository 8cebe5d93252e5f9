"""The flags of `argosy simulate` and the figures of its result, as tables.

`cli` makes its parser and `result.json` from them, `docs/reference/simulate-flags.md` is generated
from them."""

from dataclasses import dataclass

from argosy_law.estimate.capacity import PRESETS


class UsageError(Exception):
    """A flag that cannot be used; the message says what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag."""

    name: str
    value: str
    """What stands behind it, as help shows it."""
    help: str
    default: str | None = None
    """As it would be written; None: it has none."""
    required: bool = False
    choices: tuple[str, ...] = ()


FLAGS = (
    Flag(
        name="--trace",
        value="FILE",
        help="CSV file of requests; needed unless there are --rates and --lengths",
    ),
    Flag(name="--rates", value="FILE", help="CSV file of rates, from which requests are drawn"),
    Flag(name="--lengths", value="FILE", help="CSV file of requests with the lengths for --rates"),
    Flag(
        name="--scale",
        value="K",
        default="1",
        help="copies of each request, each delayed by 0 to 45 s of its own; 0.5 takes half of "
        "them; with --rates, what the rates are multiplied by",
    ),
    Flag(
        name="--prefix",
        value="WHICH",
        default="none",
        choices=("ideal", "none"),
        help="ideal: a prompt's cached_prefix_tokens are not computed again",
    ),
    Flag(
        name="--warmup",
        value="SECONDS",
        default="300",
        help="requests and GPUs before this are not counted",
    ),
    Flag(
        name="--mode",
        value="MODE",
        default="disaggregated",
        choices=("disaggregated", "colocated"),
        help="colocated: each pod computes prompts and generates answers. Where a flag has P,D, "
        "prefill and decode replicas, it has one number then",
    ),
    Flag(
        name="--profile",
        value="NAME",
        required=True,
        choices=tuple(PRESETS),
        help="what a replica can do; the names of sim:// models",
    ),
    Flag(
        name="--cold",
        value="SECONDS",
        required=True,
        help="from the creation of a pod to its being ready",
    ),
    Flag(name="--ttft", value="SECONDS", required=True, help="limit of the time to first token"),
    Flag(name="--tpot", value="SECONDS", required=True, help="limit of the time per output token"),
    Flag(
        name="--goal",
        value="SHARE",
        default="0.9",
        help="wanted share of requests within both limits, between 0 and 1",
    ),
    Flag(
        name="--policy",
        value="LAW",
        required=True,
        help="goodput: the operator's law. static:P,D: "
        "constant prefill and decode replicas; "
        "static:N of a colocated fleet. hpa, keda, wva, dynamo: other autoscalers' laws",
    ),
    Flag(
        name="--start",
        value="P,D",
        help="replicas that a law starts with, ready; without it, the constant fleet that "
        "gpu_hours_static is taken of",
    ),
    Flag(
        name="--static",
        value="P,D",
        help="the constant fleet of gpu_hours_static, where it is known from an earlier run "
        "(replicas_static in its result): it is not searched for again, and not checked",
    ),
    Flag(
        name="--static-same-engine",
        value="P,D",
        help="the same for gpu_hours_static_same_engine",
    ),
    Flag(
        name="--order",
        value="ORDER",
        default="deadline",
        choices=("fifo", "deadline"),
        help="deadline: the gateway's queue, which fleets with an SLO have by default, sends first "
        "who can still meet the TTFT limit, and streams survive the end of their pod. fifo: every "
        "request is sent at once, prompts are computed in the order in which they came, and "
        "streams end with their pod",
    ),
    Flag(
        name="--first-token",
        value="WHEN",
        default="at-once",
        choices=("at-once", "in-batch", "auto"),
        help="at-once: a first token leaves when its prompt is computed. in-batch: it is held "
        "until its sequence joins a decode batch, at most for 0.9 of the TTFT limit. auto: as the "
        "law of the operator chooses",
    ),
    Flag(
        name="--profile-error",
        value="FACTOR",
        default="1",
        help="the law's prior takes steps to be so many times as long as they are; none: no prior",
    ),
    Flag(
        name="--seed",
        value="N",
        default="0",
        help="of delays, of the moments of scrapes, and of those that fail",
    ),
    Flag(
        name="--ask-gateways",
        value="WHEN",
        default="outage",
        choices=("no", "outage", "yes"),
        help="outage: the operator asks the gateway for its load while the metrics are out. yes: "
        "at each decision, too, as with metrics.askGateways. no: never",
    ),
    Flag(
        name="--scrape-loss",
        value="SHARE",
        default="0",
        help="share of the scrapes that fail, by chance, below 1",
    ),
    Flag(
        name="--outage",
        value="FROM,SECONDS",
        help="from when and for how long the metrics are out: nothing is scraped. The operator's "
        "laws have what the gateway says, if it is asked; the others get no answer, so that "
        "replicas stay as they are",
    ),
    Flag(
        name="--role-flip",
        value="WHETHER",
        default="no",
        choices=("no", "yes"),
        help="yes: a pod that leaves one role becomes a pod of the other one that is to come, in 3 "
        "seconds from when it is empty, as with spec.autoscaling.roleFlip; the goodput law counts "
        "on it",
    ),
    Flag(
        name="--drain-mode",
        value="MODE",
        default="finish",
        choices=("finish", "migrate"),
        help="spec.drain.mode. migrate: the streams of a decode pod that leaves go on at others, "
        "and their KV moves over the links of both",
    ),
    Flag(
        name="--step-down",
        value="PERCENT",
        help="spec.autoscaling.scaleDown.maxStepPercent; default: one replica in a decision",
    ),
    Flag(
        name="--schedules",
        value="START;DURATION;P,D",
        help="windows of spec.autoscaling.schedules with at least P prefill and D decode replicas, "
        "such as '0 8 * * MON-FRI; 10h; 4,6'; several with | between them; the trace begins on a "
        "Monday at 0:00 UTC",
    ),
    Flag(
        name="--max-queue",
        value="N",
        help="as spec.routing.maxQueue of the one gateway: with so many requests in flight the "
        "next one is refused; default: no limit",
    ),
    Flag(
        name="--scale-to-zero",
        value="AFTER,WAIT",
        help="as spec.autoscaling.scaleToZero: how long the gateway has had no request when all "
        "pods go, and how long requests wait for the start, such as 10m,5m; 5m if WAIT is left "
        "out; needs --policy goodput and --order deadline",
    ),
    Flag(name="--gpu-budget", value="N", help="GPUs that a law may use; default: no limit"),
    Flag(
        name="--rollout-at",
        value="SECONDS",
        help="when a new revision is asked for, which then takes the place of the pods that run; "
        "default: never",
    ),
    Flag(
        name="--strategy",
        value="NAME",
        default="Paced",
        choices=("Paced", "BlueGreen", "Recreate"),
        help="of that rollout, as spec.rollout.strategy",
    ),
    Flag(
        name="--surge",
        value="GPUS",
        help="as spec.rollout.maxSurgeGPUs: GPUs that Paced may use beyond those of the wanted "
        "pods; default: those of one set",
    ),
    Flag(
        name="--rollout-speed",
        value="FACTOR",
        default="1",
        help="how quickly the new revision computes, in multiples of the old one; the profile's "
        "prior is that of the old one",
    ),
    Flag(
        name="--rollout-fails",
        value="WHETHER",
        default="no",
        choices=("no", "yes"),
        help="yes: no pod of the new revision becomes ready",
    ),
    Flag(name="--out", value="FILE", required=True, help="where the figures go, as JSON"),
    Flag(
        name="--report",
        value="FILE",
        help="where a page goes that shows the run over time: one HTML file that loads nothing",
    ),
)

FIGURES = {
    "attainment": "share of requests within both limits",
    "attainment_ttft": "share within the limit of TTFT",
    "attainment_tpot": "share within the limit of TPOT",
    "gpu_hours": "GPUs of all pods from creation to deletion, in hours",
    "gpu_hours_static": "the same of the smallest constant fleet that meets the goal on this very "
    "trace, FIFO and first tokens at once; null if none does",
    "gpu_hours_static_same_engine": "the same with the order and first tokens of this run; the "
    "cheaper way of auto",
    "gpu_hours_physical": "what the work takes without waiting, idling or starting",
    "ttft_longest_s": "the longest time to first token of an answered request, in seconds; null "
    "if none was answered",
    "violation_minutes": "minutes of arrival in which fewer requests than the goal met both limits",
    "reversals_per_hour": "per pool: moves within 10 minutes of one in the other direction",
    "requests": "requests that count: those that arrive after the warm-up",
    "requests_killed": "requests that ended with their pod, when its drain ran out of time; "
    "only with --order fifo, or where no other pod of its revision was left in a rollout",
    "requests_refused": "requests that were sent away (429) because they had waited in the "
    "gateway's queue for 30 s, or would have, or (503) because a fleet at zero took longer than "
    "WAIT, all three only with --order deadline; or because of --max-queue",
    "rollout_s": "from the edit until the wanted pods serve and all are of the new revision, in "
    "seconds; null if that was not reached; this and the following are null without --rollout-at",
    "rollout_attainment": "share within both limits of the requests that came in the rollout, or "
    "from the edit on if it did not end",
    "rollout_attainment_without": "the same of the same requests in a run without the rollout",
    "rollout_killed": "requests_killed in the rollout",
    "rollout_gpus_over": "most GPUs over those of the wanted pods, whenever a pod was added in the "
    "rollout: at most the surge",
    "replicas_static": "replicas of gpu_hours_static, as --static takes them",
    "replicas_static_same_engine": "the same of gpu_hours_static_same_engine",
    "wall_s": "how long the command took, in seconds; all other figures follow from the arguments",
}
"""Keys of the result, in their order, and what they mean."""
