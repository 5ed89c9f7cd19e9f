"""A decision made again from what was recorded of it, under the same policy or another one. Pure.

Compatibility is not judged again: what was not reusable then is not now. What is judged again is
what a policy can change: tiers, backends, fallbacks, quotas.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from app.contract.enums import Disposition, ExclusionReason, FallbackReason
from app.decisions.record import (
    Action,
    DecisionKind,
    DecisionOutcome,
    LostReason,
)
from app.decisions.recorded_costs import costs_of
from app.errors import ErrorCode, NexusError
from app.execution.catalog import NoSelection, disposition_after
from app.execution.situation import Situation, choose, price
from app.lifecycle.lookup import readable_tiers
from app.planner.cost import CostProfile
from app.planner.transfer_costs import ProfileCosts
from app.policy.document import ExecutionPolicy, QuotaMode
from app.policy.evaluate import FallbackCause
from app.quota.decision import QuotaSeen, exceeded_by

_X: Final = ExclusionReason
_CURRENT: Final = "current"
_USABLE: Final = frozenset({None, LostReason.SHORTER_MATCH, LostReason.RANKED_LOWER})
_MOVES: Final = frozenset({DecisionKind.PREFETCH, DecisionKind.STORE})
_FIRST_VERSION: Final = 2


class Chosen(msgspec.Struct, frozen=True):
    """What a decision comes to before anything is executed. `reason`: why no state is used."""

    action: str
    reason: str | None = None
    entry_id: str | None = None
    matched_tokens: int | None = None
    backend: str | None = None
    predicted_us: int | None = None


def rerun(one: Row[Any], policy: ExecutionPolicy) -> Chosen:
    """Made again under a policy. Raises NOT_RERUNNABLE where the record does not say enough."""
    inputs = one.inputs if isinstance(one.inputs, dict) else {}
    if inputs.get("v", 0) < _FIRST_VERSION:
        raise _not_rerunnable("it was recorded by an older version, which kept less")
    if one.outcome == DecisionOutcome.REPLAYED:
        raise _not_rerunnable("it repeated a stored answer, and nothing was chosen")
    if one.kind == DecisionKind.LOOKUP:
        return _lookup(one, inputs, policy)
    if one.kind == DecisionKind.PLAN:
        raise _not_rerunnable("plans are explained by GET /v1/plans/{id}")
    return _plan(one, inputs, policy)


def recorded(one: Row[Any]) -> Chosen:
    """What was chosen then, in the same terms; of what went wrong afterwards it says nothing."""
    if one.kind == DecisionKind.LOOKUP:
        if one.outcome == DecisionOutcome.HIT:
            return Chosen(Action.REUSE.value, None, one.entry_id, one.matched_tokens)
        return Chosen(one.action, one.fallback_reason)
    about = (one.entry_id, one.matched_tokens)
    situation = one.inputs.get("situation") or {}
    if one.backend is None and situation.get("ends") != "engine":
        return Chosen(one.action, one.fallback_reason, *about)
    quota = one.inputs.get("quota")
    if quota is not None and quota["mode"] == QuotaMode.ENFORCED:
        return Chosen(one.action, one.fallback_reason, *about, one.backend)
    return Chosen(_executes(one), None, *about, one.backend, one.predicted_us)


def _lookup(one: Row[Any], inputs: Mapping[str, Any], policy: ExecutionPolicy) -> Chosen:
    if one.outcome == DecisionOutcome.REJECTED:
        raise _not_rerunnable("it was refused before anything was matched")
    match: Mapping[str, Any] = one.match or {}
    readable = readable_tiers(policy)
    obstacles: list[str] = []
    for found in _in_order(one, match):
        obstacle = _obstacle(found, readable)
        if obstacle is None:
            return Chosen(Action.REUSE.value, None, found["entry_id"], found["matched_tokens"])
        obstacles.append(obstacle)
    known = len(obstacles)
    if match.get("candidates", 0) + match.get("truncated", 0) > known:
        raise _not_rerunnable(f"of its candidates the first {known} were recorded, and all lose")
    return Chosen(Action.RECOMPUTE.value, _why_none(inputs, match, obstacles, one))


def _in_order(one: Row[Any], match: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """As they were looked at. Of a list that was cut the rest is not known."""
    excluded: Sequence[Mapping[str, Any]] = one.excluded or ()
    yield from excluded
    if match.get("excluded", 0) > len(excluded):
        raise _not_rerunnable(f"{match['excluded']} candidates were ruled out, not all recorded")
    if one.entry_id is not None:
        yield {**match, "entry_id": one.entry_id, "reason": None}
    yield from match.get("runners_up", ())


def _obstacle(found: Mapping[str, Any], readable: frozenset[str]) -> str | None:
    reason = found["reason"]
    if reason not in _USABLE and reason not in {_X.POLICY_DENIED, _X.UNAVAILABLE}:
        return str(reason)
    if found["tier"] not in readable:
        return _X.POLICY_DENIED.value
    gone = reason == _X.UNAVAILABLE or found.get("unavailable", False)
    return _X.UNAVAILABLE.value if gone else None


def _why_none(
    inputs: Mapping[str, Any], match: Mapping[str, Any], obstacles: list[str], one: Row[Any]
) -> str:
    if (freshness := inputs.get("freshness")) != _CURRENT:
        return f"index_{freshness}"
    unsure = "engines_unknown"
    if match.get(unsure) or (not obstacles and one.fallback_reason == unsure):
        return unsure
    if not obstacles:
        return FallbackReason.CACHE_MISS.value
    gone = _X.UNAVAILABLE.value
    return gone if gone in obstacles else obstacles[0]


def _plan(one: Row[Any], inputs: Mapping[str, Any], policy: ExecutionPolicy) -> Chosen:
    if inputs.get("situation") is None:
        raise _not_rerunnable("it ended before anything was planned")
    try:
        situation = msgspec.convert(inputs["situation"], Situation)
        seen = msgspec.convert(inputs.get("quota_seen"), QuotaSeen | None)
    except msgspec.ValidationError as error:
        raise _not_rerunnable("its record is of another version") from error
    about = (one.entry_id, situation.tokens)
    predicted_us = price(situation, _costs(inputs)).transfer_us
    if situation.ends == "engine":
        return Chosen(_executes(one), None, *about, None, predicted_us)
    chosen = choose(situation, policy)
    if isinstance(chosen, NoSelection):
        action = _fallen(one, chosen.disposition)
        return Chosen(action, chosen.reason.value, *about)
    backend = chosen.registration.backend.value
    quota = policy.quota_admission_policy
    if seen is not None and quota.mode is QuotaMode.ENFORCED and exceeded_by(quota, seen):
        denied = disposition_after(FallbackCause.POLICY_DENIAL, situation.descriptor, policy)
        reason = FallbackReason.ENGINE_POLICY.value
        return Chosen(_fallen(one, denied), reason, *about, backend)
    return Chosen(_executes(one), None, *about, backend, predicted_us)


def _costs(inputs: Mapping[str, Any]) -> CostProfile | ProfileCosts:
    found = costs_of(inputs)
    if found is None:
        name = inputs.get("cost_profile")
        raise _not_rerunnable(f"the cost profile {name} is not known here")
    return found


def _executes(one: Row[Any]) -> str:
    """What is done when a plan is found: without a backend of ours, the protocol alone."""
    engine = one.kind == DecisionKind.MATERIALIZE and one.backend is None
    by_engine = engine and (one.inputs.get("situation") or {}).get("ends") == "engine"
    return (Action.REGISTER if by_engine else Action.TRANSFER).value


def _fallen(one: Row[Any], disposition: Disposition) -> str:
    """A copy that is not made is not computed either: the state is still where it was."""
    skipped = one.kind in _MOVES or disposition is not Disposition.RECOMPUTE
    return (Action.SKIP if skipped else Action.RECOMPUTE).value


def _not_rerunnable(why: str) -> NexusError:
    return NexusError(ErrorCode.NOT_RERUNNABLE, f"This decision cannot be made again: {why}")
