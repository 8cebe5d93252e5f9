"""How long the steps of one replica take, and closed forms for many decode steps at once.

Constants are those of `argosy_law.estimate.capacity`; `pods` and `fleet` work with them.
"""

from dataclasses import dataclass, field
from math import ceil, inf, sqrt
from typing import Literal

from argosy_law.estimate.capacity import MACHINES, PRESETS, Machine
from argosy_law.goals import Profile

MAX_NUM_SEQS = 256
"""Sequences in a decode batch; the engine's default."""
MAX_NUM_BATCHED_TOKENS = 2048
"""Prompt tokens in a prefill step; the engine's default."""
QUEUE_TIMEOUT_S = 30.0
"""How long a request waits in the gateway's queue; the gateway's default."""
FLIP_S = 3.0
"""From when a pod is empty until it serves in its new role; measured in designs/0013."""
Asks = Literal["no", "outage", "yes"]
HELD_SHARE = 0.9
"""Of the TTFT limit: so long a first token may be held. The rest is for the way to the client."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One pod's hardware and limits."""

    profile: Profile
    """Times of steps, and `kv_tokens`, which bounds what a decode pod holds."""
    machine: Machine
    """Its GPUs, and how fast KV leaves and enters it."""
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS

    @classmethod
    def preset(cls, name: str) -> "Replica":
        """The replica of a `sim://` preset. KeyError for a name that is none."""
        return cls(PRESETS[name], MACHINES[name])

    def transfer_s(self, tokens: int) -> float:
        """Seconds in which the KV of so many tokens goes over one pod's link."""
        return tokens * self.machine.kv_bytes_per_token / self.machine.transfer_bytes_per_s


def steps_s(first_s: float, growth_s: float, steps: int) -> float:
    """Seconds of so many decode steps of one batch, which no sequence joins or leaves meanwhile.

    The context of each sequence grows by one token a step, so a step takes `growth_s` longer than
    the one before: k steps take k·first + growth·k·(k - 1)/2.
    """
    return steps * first_s + growth_s * (steps * (steps - 1) / 2)


def steps_until(first_s: float, growth_s: float, seconds: float) -> int:
    """The fewest steps, at least one, that take `seconds` or longer."""
    if seconds <= first_s:
        return 1
    steps = max(ceil(_steps(first_s, growth_s, seconds)), 1)
    while steps_s(first_s, growth_s, steps) < seconds:
        steps += 1
    while steps > 1 and steps_s(first_s, growth_s, steps - 1) >= seconds:
        steps -= 1
    return steps


def steps_within(first_s: float, growth_s: float, seconds: float) -> int:
    """How many steps have ended after `seconds`."""
    steps = int(_steps(first_s, growth_s, seconds))
    while steps_s(first_s, growth_s, steps + 1) <= seconds:
        steps += 1
    while steps > 0 and steps_s(first_s, growth_s, steps) > seconds:
        steps -= 1
    return steps


def _steps(first_s: float, growth_s: float, seconds: float) -> float:
    """The root of `steps_s` = seconds, which rounding may leave a step off."""
    if seconds <= 0:
        return 0.0
    linear = first_s - growth_s / 2
    root = sqrt(linear * linear + 2 * growth_s * seconds)
    return (root - linear) / growth_s if linear < 0 else 2 * seconds / (linear + root)


@dataclass(frozen=True, slots=True)
class Programs:
    """What the programs around an engine's steps add to an answer; measured in designs/0015."""

    way_s: float = 0.013
    """Of a first token, without any wait: HTTP, the gateway, and the messages by which a decode pod
    has a prompt computed."""
    transfer_s: float = 0.004
    """Of each transfer of KV, beside its bytes over the bandwidth."""
    launched: int = 1
    """Decode steps that are launched while one runs: a request that comes during a step waits for
    its rest and for these. Its first token waits for the rest of a step alone."""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Time from a pod's creation to its being ready: lognormal around the median."""

    median_s: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0: every start takes the median."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What pods of one revision are like, beside those that the fleet has at first."""

    speed: float = 1.0
    """How many of the first's steps one takes in the same time: 0.5 takes twice as long for each.
    """
    starts: bool = True
    """Whether its pods ever become ready. If not, they say so after a cold start."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All that is fixed for a run, apart from the requests and who scales."""

    replica: Replica
    ttft_s: float
    tpot_s: float
    cold: ColdStart = field(default_factory=lambda: ColdStart(0.0))
    drain_s: float = 300.0
    """How long a leaving pod may finish its work; `drain.timeout`'s default."""
    seed: int = 0
    order: Literal["fifo", "deadline"] = "fifo"
    """fifo: the gateway sends each request at once, and engines compute in the order of arrival.
    deadline: the gateway's queue sends first who can still meet the TTFT limit."""
    hold_first_token: bool = False
    """False: a first token leaves when its prompt is computed. True: when its sequence joins a
    decode batch, but not after HELD_SHARE of the TTFT limit unless its prompt took longer."""
    resumes: bool = False
    """Whether a request whose pod ends its drain goes on at another pod, as with our gateway: its
    prompt and what was generated are computed again. If not, it is killed."""
    batching: Literal["chunked", "prefill-first"] = "chunked"
    """How colocated pods compute prompts. chunked: in the steps of decodes, in what these leave of
    a step's tokens. prefill-first: in steps of their own, before any decode goes on."""
    scrape_loss: float = 0.0
    """Share of the scrapes that fail, by chance."""
    outage: tuple[float, float] = (inf, inf)
    """(from, to) in seconds: nothing is scraped and no law gets an answer meanwhile."""
    ask_gateways: Asks = "outage"
    """When the operator asks the gateway for its load: while Prometheus has none, as it does by
    default, or at each decision, as with metrics.askGateways."""
    role_flip: bool = False
    """Whether a pod that leaves one role becomes a pod of the other that is to come, as with
    autoscaling.roleFlip."""
    dwell_s: float = 300.0
    """How long after a flip none goes the other way; `scaleDown.stabilization`'s default."""
    queue_timeout_s: float = inf
    """With order deadline: who has waited in the gateway for so long is refused (429)."""
    max_in_flight: float = inf
    """Requests in the gateway and in pods; with as many the next one is refused (429), as with the
    gateway's --max-queue."""
    wake_timeout_s: float | None = None
    """How long a request may wait that comes while no pods serve, as with `scaleToZero.wait`; then
    it is refused (503). None: no longer than others."""
    programs: Programs | None = None
    """None: engines are told of requests and of KV at once, and answer at once."""
    migrates: bool = False
    """Whether the streams of a decode pod that leaves go on at others with their KV, as with
    `drain.mode: migrate`."""
    speeds: tuple[float, ...] = (1.0,)
    """How fast the pods of a role are, again and again in the order in which they are created: with
    (1, 0.5) every second one takes twice as long for each step."""
