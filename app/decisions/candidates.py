"""What a decision could have come to: each candidate, what it would cost, and why it lost. Pure.

Read from what was recorded. Rows of older versions say less, and so do their candidates.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from sqlalchemy import Row

from app.contract.enums import ExclusionReason, TierKind
from app.decisions.record import Action, DecisionKind, DecisionOutcome, LostReason
from app.decisions.recorded_costs import costs_of
from app.planner.cost import CostProfile, Provenance, Term, total_us
from app.planner.transfer_costs import ProfileCosts

_CARRIED_OUT: Final = frozenset(
    {
        DecisionOutcome.ESTIMATED,
        DecisionOutcome.MATERIALIZED,
        DecisionOutcome.ACKNOWLEDGED,
        DecisionOutcome.TRANSFERRED,
    }
)
_PLACES: Final = frozenset({ExclusionReason.UNAVAILABLE, ExclusionReason.POLICY_DENIED})
_TIERS: Final = frozenset(tier.value for tier in TierKind)
ENGINE: Final = "engine"


class Candidate(Struct, frozen=True):
    """One way to go. `lost` is None for what was chosen; `detail` says more of it.

    `terms` are in microseconds and sum up to `predicted_us`; both are empty where nothing was known
    to price it by. A state is priced by its tier, before anybody says where it is wanted.
    """

    kind: Literal["state", "backend", "engine", "recompute"]
    name: str
    lost: str | None
    detail: str = ""
    classification: str | None = None
    matched_tokens: int | None = None
    tier: str | None = None
    predicted_us: int | None = None
    terms: tuple[Term, ...] = ()

    @property
    def chosen(self) -> bool:
        return self.lost is None


def candidates(one: Row[Any]) -> list[Candidate]:
    """Of a decision: the chosen one first, then the others as they were looked at. None of a plan,
    whose alternatives are explained from its own record.
    """
    if one.kind == DecisionKind.PLAN:
        return []
    inputs = one.inputs if isinstance(one.inputs, dict) else {}
    costs = costs_of(inputs)
    # A lookup is priced before anybody says where the state is wanted.
    plain = costs if isinstance(costs, CostProfile) else None
    ways = _states(one, plain) if one.kind == DecisionKind.LOOKUP else _ways(one, inputs)
    return sorted([*ways, *_computing(one, costs)], key=lambda each: not each.chosen)


def _states(one: Row[Any], profile: CostProfile | None) -> Iterator[Candidate]:
    match = one.match or {}
    if one.entry_id is not None:
        yield _state(match | {"entry_id": one.entry_id, "reason": None}, profile)
    for lost in (*(one.excluded or ()), *match.get("runners_up", ())):
        yield _state(lost, profile)


def _state(found: Mapping[str, Any], profile: CostProfile | None) -> Candidate:
    terms = _bringing(found, profile)
    # Where it lies is no difference.
    field = None if found["reason"] in _PLACES else found.get("field")
    return Candidate(
        "state",
        found["entry_id"],
        found["reason"],
        f"differs in {field}" if field else "",
        found.get("classification"),
        found.get("matched_tokens"),
        found.get("tier"),
        total_us(terms) if terms else None,
        terms,
    )


def _bringing(found: Mapping[str, Any], profile: CostProfile | None) -> tuple[Term, ...]:
    """Of a part, the share of the whole: its descriptor is not at hand."""
    tier, tokens, whole = found.get("tier"), found.get("token_count"), found.get("payload_bytes")
    matched = found.get("matched_tokens") or 0
    if profile is None or tier not in _TIERS:
        return ()
    if whole is None or not tokens:
        moved, source = matched * profile.default_bytes_per_token, Provenance.DEFAULT
    elif matched >= tokens:
        moved, source = whole, Provenance.PROFILE
    else:
        moved, source = -(-whole * matched // tokens), Provenance.DEFAULT
    return profile.bringing(TierKind(tier), moved, source)


def _ways(one: Row[Any], inputs: Mapping[str, Any]) -> Iterator[Candidate]:
    """The backends that could have brought it; the profile has one price for all of them."""
    terms = _terms((one.estimate or {}).get("terms", ()))
    # What was promised with the option is what counts; the terms are of now.
    priced = (one.predicted_us, terms) if terms else (None, ())
    lost = None if one.outcome in _CARRIED_OUT else one.fallback_reason
    situation = inputs.get("situation") or {}
    about = (None, one.matched_tokens, one.tier)
    if one.backend is not None:
        yield Candidate("backend", _named(situation, one.backend), lost, "", *about, *priced)
    elif situation.get("ends") == ENGINE:
        yield Candidate("engine", ENGINE, lost, "by its own way", *about, *priced)
    refused = [each for each in one.excluded or () if "registration" in each]
    for each in refused:
        yield Candidate(
            "backend", each["registration"], each["reason"], each.get("detail", ""),
            *about, *priced,
        )  # fmt: skip
    named = {
        one.backend and _named(situation, one.backend),
        *(each["registration"] for each in refused),
    }
    for offer in situation.get("offers", ()):
        # It could have brought it, too.
        if one.backend is not None and offer["name"] not in named:
            lower = LostReason.LOWER_PRIORITY.value
            yield Candidate("backend", offer["name"], lower, "", *about, *priced)


def _named(situation: Mapping[str, Any], backend: str) -> str:
    """A worker's offer is called after the worker."""
    return f"{situation['target_residency']}/{backend}" if situation else backend


def _terms(listed: Sequence[Mapping[str, Any]]) -> tuple[Term, ...]:
    return tuple(
        Term(term["name"], term["value_us"], Provenance(term["provenance"])) for term in listed
    )


def _computing(one: Row[Any], profile: CostProfile | ProfileCosts | None) -> Iterable[Candidate]:
    """Computing it again, which is always there; of a miss, the whole prompt."""
    tokens = one.matched_tokens or one.query_tokens
    if not tokens or one.outcome in {DecisionOutcome.REJECTED, DecisionOutcome.REPLAYED}:
        return ()
    terms = profile.computing(tokens) if profile is not None else ()
    predicted_us = total_us(terms) if terms else one.recompute_us
    lost = _not_computed(one, predicted_us)
    return (Candidate("recompute", "recompute", lost, "", None, tokens, None, predicted_us, terms),)


def _not_computed(one: Row[Any], recompute_us: int | None) -> str | None:
    if one.action == Action.RECOMPUTE:
        return None
    if one.kind == DecisionKind.LOOKUP:
        return LostReason.STATE_FOUND.value
    if one.action == Action.SKIP:
        return LostReason.POLICY_SKIPS.value
    dearer = None in {recompute_us, one.predicted_us} or recompute_us > one.predicted_us
    return (LostReason.DEARER if dearer else LostReason.CALLER_DECIDES).value
