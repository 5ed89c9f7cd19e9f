"""One decision: why it was answered so, its eight steps, its candidates, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Row
from starlette.responses import Response

from app.console.reasons import AFTERWARDS, ENDINGS, said
from app.console.rendering import page
from app.console.visit import Visit
from app.console.words import amount, duration, exact, plain, version
from app.contract.transitions import LifecycleState
from app.decisions.candidates import Candidate, candidates
from app.decisions.record import DecisionKind, DecisionOutcome, OutcomeStatus
from app.decisions.repository import DecisionHistory, DecisionRepository

_S: Final = LifecycleState
_FALLEN: Final = frozenset({_S.RECOMPUTED.value, _S.SKIPPED.value})
# Step, the states of a path that say that it was taken, and what it does.
_STEPS: Final[tuple[tuple[str, frozenset[str], str], ...]] = (
    ("Describe", frozenset({_S.DESCRIBED.value}), "what is asked for"),
    ("Match", frozenset({_S.MATCHED.value}), "states that begin as the request does"),
    ("Validate", frozenset({_S.VALIDATED.value}), "whether they are safe to reuse"),
    ("Plan", frozenset({_S.PLANNED.value}), "from where, by what, at which cost"),
    ("Reserve", frozenset({_S.RESERVED.value}), "the option, so that nobody uses it twice"),
    ("Execute", frozenset({_S.MATERIALIZED.value}), "bring the bytes"),
    ("Commit or fall back", _FALLEN | {_S.MATERIALIZED.value}, "hand over, or compute again"),
    ("Observe", frozenset({_S.OBSERVED.value}), "what really happened"),
)
_WITHOUT_STATE: Final = frozenset(
    {
        DecisionOutcome.MISS, DecisionOutcome.UNKNOWN, DecisionOutcome.EXCLUDED,
        DecisionOutcome.REJECTED, DecisionOutcome.UNAVAILABLE,
    }
)  # fmt: skip


_PLANNED: Final = {"reuse": "reuse", "transfer": "bring the state", "recompute": "compute it again"}


@dataclass(frozen=True, slots=True)
class Step:
    """One of the eight. `state` is `done`, `earlier`, `later`, `fell_back` or `not_reached`."""

    name: str
    does: str
    state: str
    note: str
    # From the beginning of the chain to the decision that took it; None where none did.
    after_us: float | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """The answer to "why did this request recompute": a question, and sentences."""

    question: str
    sentences: Sequence[str]
    do: str


async def decision_page(visit: Visit) -> Response:
    """Raises NOT_FOUND, also for a decision of another tenant."""
    decision_id = visit.request.path_params["decision_id"]
    async with visit.services.database.read() as session:
        found = await DecisionRepository(session).history(
            decision_id, tenants=visit.principal.tenants
        )
    decision = found.decision
    return page(
        visit,
        "decision.html",
        one=decision,
        found=found,
        why=why(found),
        steps=steps(found),
        candidates=candidates(decision),
        what_it_is=what_it_is,
        unlisted=_ruled_out(decision) - len(decision.excluded or ()),
        longest_us=max((one.predicted_us or 0 for one in candidates(decision)), default=0),
        afterwards={status.value: text for status, text in AFTERWARDS.items()},
        said=said,
    )


def why(found: DecisionHistory) -> Why:
    """In plain words how this ended. The chain's later failure explains an earlier hit, too."""
    one = found.decision
    told = [f"{ENDINGS[DecisionOutcome(one.outcome)]}"]
    explained = said(one.fallback_reason) if one.fallback_reason else None
    if explained is not None:
        told.append(explained.what)
    if one.kind == DecisionKind.LOOKUP and one.excluded:
        told.append(_best_excluded(one))
    recomputed = one.outcome in _WITHOUT_STATE
    do = explained.do if explained is not None else ""
    for later in _failed_later(found):
        recomputed, reason = True, said(later.fallback_reason)
        told.append(f"A later {later.kind} of the same chain ended {plain(later.outcome)}:"
                    f" {reason.what}")  # fmt: skip
        do = do or reason.do
    ends = [row.status for row in found.outcomes]
    told += [AFTERWARDS[OutcomeStatus(status)] for status in dict.fromkeys(ends)]
    if one.kind == DecisionKind.PLAN:
        question = f"Why {_PLANNED.get(one.action, 'this')}?"
    elif recomputed:
        question = "Why did this request recompute?"
    elif one.kind in (DecisionKind.PREFETCH, DecisionKind.STORE):
        question = "Why was this state moved?"
    else:
        question = "Why was state reused?"
        told.append(_gain(found))
    return Why(question, [text for text in told if text], do)


def steps(found: DecisionHistory) -> list[Step]:
    """The eight steps of the chain, as seen from this decision."""
    one = found.decision
    before = {name for row in found.chain if row.created_at < one.created_at for name in row.path}
    after = {name for row in found.chain if row.created_at > one.created_at for name in row.path}
    # Of what the engine takes by itself, nothing is executed and nothing is lost.
    fell = bool(_FALLEN & set(one.path)) and one.outcome in _WITHOUT_STATE
    listed = []
    for name, states, does in _STEPS:
        here = bool(states & set(one.path))
        if here:
            state = "fell_back" if fell and states & _FALLEN else "done"
        elif one.kind == DecisionKind.LOOKUP and name == _ended_at(one):
            # The path goes on from there to computing again.
            state, here = "fell_back", True
        elif states & before and name != "Observe":
            state = "earlier"
        else:
            state = "later" if states & after else "not_reached"
        note = _note(name, one) if here else ""
        if name == "Execute" and one.outcome == DecisionOutcome.ACKNOWLEDGED:
            note = "left to the engine"
        listed.append(Step(name, does, state, note, _after_us(found, states, here=here)))
    return listed


def _ended_at(one: Row[Any]) -> str | None:
    """The step in which a lookup found nothing to be used; None where it did, or was refused."""
    if one.outcome in {DecisionOutcome.HIT, DecisionOutcome.REJECTED}:
        return None
    return "Validate" if one.excluded else "Match"


def _after_us(found: DecisionHistory, states: frozenset[str], *, here: bool) -> float | None:
    """When the first decision that took the step was asked for, from the first of the chain on."""
    began_at = min(row.created_at for row in (found.decision, *found.chain))
    taken = [found.decision] if here else [row for row in found.chain if states & set(row.path)]
    if not taken:
        return None
    after_s: float = (min(row.created_at for row in taken) - began_at).total_seconds()
    return after_s * 1e6


def what_it_is(one: Candidate) -> str:
    """A candidate in words."""
    tokens = "" if one.matched_tokens is None else f"{exact(one.matched_tokens)} tokens"
    where = f" in {plain(one.tier)}" if one.tier else ""
    match one.kind:
        case "state":
            return f"{plain(one.classification)} match, {tokens}{where}"
        case "backend":
            return f"backend, {tokens}{where}" if tokens else "backend"
        case "engine":
            return f"the engine itself, {tokens}{where}"
        case _:
            return f"computing {tokens} again"


def _best_excluded(one: Row[Any]) -> str:
    best = one.excluded[0]
    reason = said(str(best["reason"]))
    where = f" for its {best['field']}" if best.get("field") else ""
    count = _ruled_out(one)
    others = f" {exact(count - 1)} more were ruled out as well." if count > 1 else ""
    if one.outcome == DecisionOutcome.HIT:
        return f"{exact(count)} longer or equal matches were ruled out first."
    said_already = one.fallback_reason == best["reason"]
    what = "" if said_already else f" {reason.what}"
    return (
        f"The longest match was {best['entry_id']} with {exact(best['matched_tokens'])} tokens;"
        f" it was ruled out{where}.{what}{others}"
    )


def _ruled_out(one: Row[Any]) -> int:
    """All of them: the list of a lookup has at most 256."""
    listed = len(one.excluded or ())
    counted: int = (one.match or {}).get("excluded", 0)
    return max(listed, counted)


def _failed_later(found: DecisionHistory) -> list[Row[Any]]:
    one = found.decision
    return [
        row
        for row in found.chain
        if row.created_at > one.created_at and row.outcome in _WITHOUT_STATE and row.fallback_reason
    ]


def _gain(found: DecisionHistory) -> str:
    gains = [row.gain_us for row in found.outcomes if row.gain_us is not None]
    if not gains:
        return ""
    gain_us = sum(gains)
    if gain_us < 0:
        return f"It took {duration(-gain_us)} longer than computing again would have."
    return f"That saved {duration(gain_us)} of computing."


def _note(step: str, one: Row[Any]) -> str:
    fallen = _FALLEN & set(one.path)
    fell = fallen and one.outcome in _WITHOUT_STATE
    asked = f"{exact(one.query_tokens)} tokens of " if one.query_tokens else ""
    seen = (one.match or {}).get("candidates")
    looked = "" if seen is None else f"{exact(seen)} candidate{'' if seen == 1 else 's'}, "
    matched = "none to be used" if not one.matched_tokens else f"{exact(one.matched_tokens)} tokens"
    notes = {
        "Describe": f"{asked}{one.model or 'no model'} for {one.tenant}",
        "Match": looked + (matched if one.kind == DecisionKind.LOOKUP else "the one asked for"),
        "Validate": f"{exact(_ruled_out(one))} ruled out",
        "Plan": _costs(one),
        "Execute": f"by {plain(one.backend)}" if one.backend else "",
        "Commit or fall back": plain(next(iter(fallen))) if fell else "handed over",
        "Observe": f"answered in {duration(one.latency_us)} under {version(one.policy_version)}",
    }
    return notes.get(step, "")


def _costs(one: Row[Any]) -> str:
    estimate = one.estimate or {}
    size = estimate.get("payload_bytes")
    moved = f" for {amount(size)}" if size is not None else ""
    predicted = "" if one.predicted_us is None else f"{duration(one.predicted_us)} to bring it"
    again = "" if one.recompute_us is None else f", {duration(one.recompute_us)} to compute it"
    return f"{predicted}{moved}{again}"
