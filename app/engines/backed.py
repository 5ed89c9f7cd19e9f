"""Registered states that an engine's blocks back: what is reusable is what its events say.

Such a state is registered with its engine and has no tokens of its own. It says what the blocks are
(descriptor) and under what they were computed (evidence); how much of a prompt is there, the index
of blocks knows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from app.clock import Clock
from app.contract.enums import MatchClassification
from app.contract.findings import refusal
from app.contract.registration import inconsistencies
from app.contract.rules import ReuseRule, allows_partial, extent_unit_tokens, reuse_rule
from app.db.session import WriteSession
from app.engines.answers import HIT, UNKNOWN, Match
from app.engines.matching import EngineMatcher
from app.engines.plans import Filter
from app.engines.registration import EngineKey, EngineSpec
from app.errors import ErrorCode, FieldError, NexusError
from app.index.matcher import Candidate, StateIndex
from app.index.registered import ScopeIdentity, scope_of
from app.index.registry import RegisterStatus, StateRegistry
from nexuskv_core import TokenText


class Backing(NamedTuple):
    """A state without tokens, and the engine whose blocks stand behind it."""

    entry_id: str
    engine: EngineKey


class Registration(Protocol):
    @property
    def spec(self) -> EngineSpec: ...


class Registered(Protocol):
    """The engines there are."""

    @property
    def registrations(self) -> int:
        """Goes up whenever they may be other ones."""

    def engines(self) -> Sequence[Registration]:
        """All of them."""


# Whom to ask, and which states an engine's answer stands for.
_Asked = Mapping[Filter, Mapping[EngineKey, Sequence[Backing]]]


class Backed(NamedTuple):
    """Candidates, and whether an engine that may have more could not be asked."""

    candidates: list[Candidate]
    unknown: bool


_NONE: Final = Backed([], unknown=False)
# The index was away ever since this process began.
_NOT_KNOWN: Final = Backed([], unknown=True)


class BackedStates:
    """Finds states by engines' blocks. Read-only, on the event loop's thread."""

    def __init__(
        self, registered: Registered, index: StateIndex, matcher: EngineMatcher, clock: Clock
    ) -> None:
        self._registered = registered
        self._index = index
        self._matcher = matcher
        self._clock = clock
        self._asked: dict[ScopeIdentity, _Asked] = {}
        self._seen = -1

    def find(self, scope: ScopeIdentity, tokens: TokenText) -> Backed:
        """One candidate a state, in no order; none where no engine serves the scope."""
        if self._seen != self._registered.registrations:
            self._refresh()
        asked = self._asked.get(scope)
        if asked is None:
            return _NONE if self._seen >= 0 else _NOT_KNOWN
        candidates: list[Candidate] = []
        unknown = False
        for wanted, behind in asked.items():
            match = self._matcher.match(wanted, tokens, now_us=self._clock.now_us())
            candidates += self._candidates(scope, behind, match)
            unknown |= match.result == UNKNOWN
        return Backed(candidates, unknown)

    def _refresh(self) -> None:
        seen = self._registered.registrations
        try:
            engines = self._registered.engines()
        except NexusError:
            # The index is away; whom to ask is as it was, and the answer is unknown.
            return
        self._asked = _by_scope(engine.spec for engine in engines)
        self._seen = seen

    def _candidates(
        self,
        scope: ScopeIdentity,
        behind: Mapping[EngineKey, Sequence[Backing]],
        match: Match,
    ) -> Iterator[Candidate]:
        if match.result != HIT:
            return
        for found in match.candidates:
            for backing in behind.get(EngineKey(found.instance_id, found.dp_rank), ()):
                state = self._index.get(scope.tenant, backing.entry_id)
                if state is None or state.scope != scope:
                    continue
                # Never exact: what a fingerprint would have to be equal to, no event says.
                yield Candidate(state, MatchClassification.PREFIX, found.matched_tokens)


# What a state is called: its tenant, and its id there.
StateName = tuple[str, str]


class BackedRegistry:
    """The states of engines, as rows like any other but for their tokens.

    A state is there for as long as a registration names it. It is written in the transaction of
    the engine's own row, so that neither is ever there without the other.
    """

    def __init__(self, registry: StateRegistry) -> None:
        self._registry = registry

    async def store(self, session: WriteSession, spec: EngineSpec, *, again: bool = False) -> None:
        """Raises ENGINE_CONFLICT where a state of that id is there with another content and no
        lower generation. `again`: the engine is registered so; a higher generation stays then."""
        if not spec.states:
            return
        results = await self._registry.store_backed(session, spec.states)
        for state, result in zip(spec.states, results, strict=True):
            identity = state.entry.identity
            higher = result.generation > identity.version.generation
            if result.status is RegisterStatus.CONFLICT and not (again and higher):
                raise NexusError(
                    ErrorCode.ENGINE_CONFLICT,
                    f"the state {identity.entry_id} is, or was, registered otherwise at generation"
                    f" {result.generation}; give it a higher one",
                )

    async def drop(self, session: WriteSession, names: Iterable[StateName]) -> None:
        """Delete what no registration names any more."""
        if left := sorted(names):
            await self._registry.drop_backed(session, left)

    async def follow(self, *specs: EngineSpec | None) -> None:
        """Have the index of this process know at once what became of the states of these."""
        names = {name for spec in specs if spec is not None for name in state_names(spec)}
        if not names:
            return
        # It is stored: where the database is away now, the index's poll learns of it later.
        with suppress(NexusError):
            await self._registry.follow(sorted(names))


def state_names(spec: EngineSpec) -> set[StateName]:
    """Of the states that a registration names."""
    identities = (state.entry.identity for state in spec.states)
    return {(identity.key.tenant, identity.entry_id) for identity in identities}


def check_states(spec: EngineSpec) -> None:
    """Raises INVALID_FIELD with every finding."""
    found = [
        replace(finding, pointer=f"/states/{number}{finding.pointer}")
        for number, state in enumerate(spec.states)
        for finding in (*inconsistencies(state, without_tokens=True), *_unfit(spec, number))
    ]
    if found:
        raise refusal("engine registration", found)


def _unfit(spec: EngineSpec, number: int) -> Iterator[FieldError]:
    entry = spec.states[number].entry
    key, identity = entry.identity.key, "/entry/identity"
    if key.tenant not in spec.tenants:
        yield _invalid(f"{identity}/key/tenant", "must be one of /tenants")
    if reuse_rule(key.semantic_type) is not ReuseRule.PREFIX_CLOSED:
        yield _invalid(f"{identity}/key/semantic_type", "must be a type whose prefixes are states")
    unit = extent_unit_tokens(entry.descriptor)
    if not allows_partial(entry.descriptor) or not unit or spec.block_tokens % unit:
        detail = f"must allow parts of {spec.block_tokens} tokens, the engine's blocks"
        yield _invalid("/entry/descriptor", detail)
    name = (key.tenant, entry.identity.entry_id)
    earlier = (other.entry.identity for other in spec.states[:number])
    if any((other.key.tenant, other.entry_id) == name for other in earlier):
        yield _invalid(f"{identity}/entry_id", "is that of another state of this engine")


def _invalid(pointer: str, detail: str) -> FieldError:
    return FieldError(pointer, ErrorCode.INVALID_FIELD, detail)


def _by_scope(specs: Iterable[EngineSpec]) -> dict[ScopeIdentity, _Asked]:
    """Equal engines are asked in one query."""
    found: dict[ScopeIdentity, dict[Filter, dict[EngineKey, list[Backing]]]] = {}
    for spec in specs:
        for state in spec.states:
            identity = state.entry.identity
            wanted = Filter(identity.key.tenant, spec.model, spec.revision, spec.layout)
            asked = found.setdefault(scope_of(identity.key), {}).setdefault(wanted, {})
            asked.setdefault(spec.key, []).append(Backing(identity.entry_id, spec.key))
    return dict(found)
