"""Whether decode pods hold first tokens. `slo.firstToken: Auto` leaves the choice to the law.

`decide` calls it; designs/0016-first-token.md has the reasons.
"""

from collections.abc import Mapping
from dataclasses import replace

from argosy_law.goals import Goals, Inputs, removal_hold_s
from argosy_law.observe import RoleName
from argosy_law.size import sizing
from argosy_law.size.pools import BELOW_REACHABLE, DecodeModel, Limits, Model, PrefillModel
from argosy_law.state import FirstTokens, ScalingState

HELD_UNTIL = 0.9
"""Of the TTFT limit: how long a first token is held at most."""
SAVES = 0.1
"""Share of the GPUs that holding must save: of 20 GPUs at once, 18 are few enough."""
HOLDS_TO_END = 12
"""For how many holds of removals it must save less before it ends: an hour by default.

Holding begins after one hold, because GPUs are lost until then. It never needs more GPUs, so it may
end late. In a small fleet a replica is a tenth: 9 and 8 replicas become 8 and 8 with a little less
load, and the choice would follow the load.
"""


def holds(state: ScalingState, goals: Goals) -> bool:
    """Whether first tokens are held now: as the spec says, or as the law has chosen."""
    if goals.serving.auto_first_token:
        return state.first_tokens.holds
    return goals.serving.first_token == "WithinTarget"  # noqa: S105 (a moment, not a secret)


def hold(
    models: Mapping[RoleName, Model], loads: Mapping[RoleName, sizing.Load], limits: Limits
) -> dict[RoleName, Model]:
    """Return the models of a fleet that holds first tokens, for `HELD_UNTIL` of the TTFT limit at
    most.

    A sequence needs the KV transfer and, at the limit of TPOT, one step until its next token.
    """
    prefill, decode = models.get("prefill"), models.get("decode")
    if not isinstance(prefill, PrefillModel) or not isinstance(decode, DecodeModel):
        return dict(models)
    until_s = HELD_UNTIL * limits.ttft_s - limits.pause_s - limits.tpot_s
    held = sizing.share_held(prefill, loads["prefill"].rate, limits.goal, until_s)
    return {**models, "decode": replace(decode, held=held)}


def choose(
    state: ScalingState, sizes: Mapping[RoleName, sizing.Size], limits: Limits, inputs: Inputs
) -> tuple[ScalingState, dict[str, float]]:
    """Return the state with the choice, and what both ways need, for `explain`.

    The choice changes when the other one was the better for a whole hold of removals, or for
    `HOLDS_TO_END`, in which the metrics were valid. It stays as it is while lengths or capacity are
    guessed, and without load.
    """
    serving, before = inputs.goals.serving, state.first_tokens
    if not serving.auto_first_token:
        # An edit to Auto goes on from what the spec said before.
        return replace(state, first_tokens=FirstTokens(holds(state, inputs.goals))), {}
    if inputs.goals.mode == "colocated" or serving.pulls_first:
        return replace(state, first_tokens=FirstTokens()), {}
    measured = state.lengths.measured and all(role.estimate.learnt for role in state.roles)
    if not measured or set(sizes) != {role.role for role in state.roles}:
        return replace(state, first_tokens=replace(before, other_since=None)), {}
    at_once, held = _gpus(sizes, limits, inputs)
    if before.other_since is not None and state.valid_since is not None:
        before = replace(before, other_since=max(before.other_since, state.valid_since))
    hold_s = max(removal_hold_s(role, inputs.windows) for role in inputs.observations.supply)
    after = follow(before, inputs.now, hold_s, saves=held <= (1 - SAVES) * at_once)
    numbers = {"at_once_gpus": at_once, "held_gpus": held, "holds_first_tokens": after.holds}
    return replace(state, first_tokens=after), {k: float(f"{v:.6g}") for k, v in numbers.items()}


def follow(before: FirstTokens, now: float, hold_s: float, *, saves: bool) -> FirstTokens:
    """Return the choice after one more decision, in which holding `saves` enough or not."""
    if saves == before.holds:
        return replace(before, other_since=None)
    since = now if before.other_since is None else before.other_since
    if now - since >= hold_s * (HOLDS_TO_END if before.holds else 1):
        return FirstTokens(saves)
    return replace(before, other_since=since)


def _gpus(
    sizes: Mapping[RoleName, sizing.Size], limits: Limits, inputs: Inputs
) -> tuple[float, float]:
    """Return the GPUs that the load needs with first tokens at once, and held; weighted by their
    prices, and with the minimum replicas.

    Both for an equal share within the SLO: where short answers miss TPOT at once however many
    replicas there are, for the share that is left.
    """
    goals = inputs.goals
    loads = {role: sizing.Load(size.rate, 0.0) for role, size in sizes.items()}
    at_once = {
        role: replace(size.model, held=0.0) if isinstance(size.model, DecodeModel) else size.model
        for role, size in sizes.items()
    }
    reach = sizing.reach_of(at_once.values()).both - BELOW_REACHABLE

    def needed(models: Mapping[RoleName, Model]) -> float:
        pools = tuple(
            sizing.demanded(models[role], loads[role].rate, inputs.observations.of(role), goals)
            for role in sizes
        )
        counts = sizing.fewest(pools, max(min(limits.goal, reach), 0.0))
        least = (goals.role(role).min for role in sizes)
        return sum(max(n, m) * pool.cost for n, m, pool in zip(counts, least, pools, strict=True))

    return needed(at_once), needed(hold(at_once, loads, limits))
