"""A plan: describe, match, validate, plan, observe. Nothing is moved, and nothing is asked of a
database: what the indexes, profiles and the topology of this process say is what it is made from.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

import msgspec

from app.clock import Clock, IdSource
from app.contract.enums import MatchClassification
from app.contract.transitions import LifecycleState, path
from app.decisions.record import (
    INPUTS_VERSION,
    Decision,
    DecisionKind,
    DecisionOutcome,
    made_at,
)
from app.engines.answers import Match
from app.engines.matching import EngineMatcher
from app.engines.registration import EngineKey, EngineSpec
from app.engines.service import KnownEngine
from app.engines.slices import Slices
from app.engines.views import ViewState
from app.errors import ErrorCode, NexusError
from app.index.matcher import Candidate, Freshness, StateIndex
from app.lifecycle.caller import Caller, Refused
from app.lifecycle.keeping import DecisionSink, durability_of
from app.lifecycle.observe import Policies
from app.lifecycle.placing import Directory
from app.lifecycle.plan_query import EngineHolding, PlanQuery
from app.lifecycle.plan_question import Asked, Asking, Costs
from app.lifecycle.plan_record import ACTIONS, record_of
from app.lifecycle.plan_told import Teller, ToldPlan, excluded
from app.lifecycle.reservations import Reservations
from app.lifecycle.state_lines import Sizes
from app.planner.choose import Plan, PlanAction, plan
from app.planner.explain import considered
from app.planner.links import NO_LINK, Links
from app.planner.question import Question
from app.policy.provider import ActivePolicy
from app.topology.topology_provider import Topology
from nexuskv_core import TokenText

MAX_STATES: Final = 64
_SHARE_BITS: Final = 32
_S = LifecycleState
_REUSED: Final = (_S.DESCRIBED, _S.MATCHED, _S.VALIDATED, _S.PLANNED)
_COMPUTED: Final = (_S.DESCRIBED, _S.RECOMPUTED, _S.OBSERVED)


class PlanCosts(Costs, Protocol):
    """Costs, and what is learnt of links."""

    def links(self, base: Links) -> Links:
        """The links of a topology as they are known now."""


class Topologies(Protocol):
    """Where the topology in force is read."""

    @property
    def current(self) -> Topology: ...


class Registrations(Protocol):
    """Every engine that is registered, whoever may see it."""

    def get(self, key: EngineKey) -> KnownEngine | None:
        """None where nothing is registered under the key; may raise INDEX_AWAY."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan that was made. `decision_id` is None for a dry run, which is not recorded.

    `engines` says whether what engines hold is known: hit, miss or unknown; `states` likewise of
    registered ones.
    """

    told: ToldPlan
    decision_id: UUID | None
    made_us: int
    policy_version: str
    topology_version: int | None
    engines: str
    states: str


class Planning:
    """Makes plans from what this process knows."""

    def __init__(
        self,
        matcher: EngineMatcher,
        index: StateIndex,
        directory: Directory,
        *,
        sink: DecisionSink,
        policies: Policies,
        costs: PlanCosts,
        topologies: Topologies,
        engines: Registrations,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._matcher = matcher
        self._index = index
        self._directory = directory
        self._sink = sink
        self._policies = policies
        self._costs = costs
        self._topologies = topologies
        self._engines = engines
        self._clock = clock
        self._ids = ids
        self._sizes = Sizes()
        self.reservations = Reservations(clock)

    async def run(
        self,
        query: PlanQuery,
        caller: Caller,
        freshness: Freshness,
        *,
        dry_run: ActivePolicy | None = None,
        full: bool = False,
    ) -> Planned | Refused:
        """One decision is recorded, unless it is a dry run under a policy of its own, or the key
        lacks the tenant.
        """
        if not caller.principal.may_use(query.wanted.tenant):
            forbidden = NexusError(
                ErrorCode.TENANT_FORBIDDEN, "this key may not act for that tenant"
            )
            return Refused(forbidden, None)
        decision_id = self._ids.uuid7()
        active = dry_run or self._policies.current
        match = await self._match(query)
        now_us = self._clock.now_us()
        topology = self._topologies.current
        asked = self._asked(query, match, active, topology)
        explore = explores(decision_id, active.policy.cost_bounds.exploration_share)
        if explore and dry_run is None:
            question = msgspec.structs.replace(asked.question, explore=True)
            asked = asked._replace(question=question)
        try:
            found = plan(asked.question)
        except NexusError as error:
            return Refused(_unusable(error, asked), None)
        devices = tuple(target.device_class for target in query.targets)
        teller = Teller(asked, active.policy, devices)
        told = teller.plan(found, considered(asked.question, found) if full else None)
        planned = Planned(
            told,
            None if dry_run else decision_id,
            now_us,
            active.label,
            topology.version,
            match.result if match is not None else "previous",
            freshness.value,
        )
        if dry_run is None:
            # Its record has what ran on the links before it: its own transfer is none of that.
            self._observe(decision_id, query, caller, freshness, active, planned, asked, found)
            self._reserve(query.wanted.tenant, found)
        return planned

    async def _match(self, query: PlanQuery) -> Match | None:
        """What engines have of the prompt; None where that was asked before."""
        if query.tokens is None:
            return None
        return await self._matcher.match_in_slices(
            query.wanted,
            query.tokens,
            Slices(),
            now_us=self._clock.now_us(),
            extra_keys=query.extra_keys,
        )

    def _asked(
        self, query: PlanQuery, match: Match | None, active: ActivePolicy, topology: Topology
    ) -> Asked:
        asking = Asking(
            query,
            active.policy,
            self._matcher.engines(query.wanted),
            registered=self._registered,
            costs=self._costs,
            topology=topology,
            directory=self._directory,
            sizes=self._sizes,
            running=self.reservations.running(query.wanted.tenant),
            reading=self.reservations.reading,
        )
        holdings = _holdings(match) if match is not None else list(_previous(query))
        return asking.question(
            holdings,
            self._states(query),
            self.reservations.links(self._costs.links(topology.links)),
        )

    def _registered(self, key: EngineKey) -> EngineSpec | None:
        try:
            found = self._engines.get(key)
        except NexusError as error:
            if error.code is not ErrorCode.INDEX_AWAY:
                raise
            return None
        return None if found is None else found.spec

    def _states(self, query: PlanQuery) -> list[Candidate]:
        """Registered states that match; of those that matched before, those that are still there,
        as they were.
        """
        if query.tokens is not None:
            if query.scope is None:
                return []
            tokens = query.tokens
            words = tokens if isinstance(tokens, TokenText) else memoryview(tokens).cast("I")
            return self._index.match(query.scope, words, max_candidates=MAX_STATES).candidates
        assert query.previous is not None
        found = []
        for holding in query.previous.states:
            state = self._index.get(query.wanted.tenant, holding.entry_id)
            if state is None or state.generation != holding.generation:
                continue
            if state.scope.model != query.wanted.model:
                continue
            whole = holding.matched_tokens == query.previous.tokens
            kind = MatchClassification.EXACT if whole else MatchClassification.PREFIX
            matched = min(holding.matched_tokens, state.token_count or holding.matched_tokens)
            found.append(Candidate(state, kind, matched))
        return found

    def _reserve(self, tenant: str, found: Plan) -> None:
        chosen = found.chosen
        if chosen.source is not None:
            self.reservations.take(
                tenant,
                chosen.source.node,
                chosen.target.node,
                round(chosen.priced.transfer_us),
                chosen.source.tier,
            )

    def _observe(  # noqa: PLR0917 - of one caller, which has them all
        self,
        decision_id: UUID,
        query: PlanQuery,
        caller: Caller,
        freshness: Freshness,
        active: ActivePolicy,
        planned: Planned,
        asked: Asked,
        found: Plan,
    ) -> None:
        told = planned.told
        chosen, source = told.chosen, told.chosen.source
        recomputes = found.chosen.action is PlanAction.RECOMPUTE
        self._sink.record(
            Decision(
                decision_id=decision_id,
                created_at=made_at(decision_id),
                tenant=query.wanted.tenant,
                namespace=query.namespace,
                model=query.wanted.model,
                kind=DecisionKind.PLAN,
                outcome=DecisionOutcome.PLANNED,
                fallback_reason=_why_computed(told) if recomputes else None,
                identity_hash=None,
                parent_id=None,
                root_id=decision_id,
                key_id=caller.principal.key_id,
                trace_id=caller.trace_id,
                policy_version=active.label,
                entry_id=source.name if source is not None and source.kind == "state" else None,
                state_id=None,
                match=None,
                compatibility=None,
                excluded=_json(excluded(found.excluded)),
                estimate=_json(chosen),
                selected_path=chosen.path,
                path=list(path(*(_COMPUTED if recomputes else _REUSED))),
                index_revision=self._index.revision,
                latency_us=self._clock.monotonic_us() - caller.started_us,
                inputs=_inputs(query, planned, asked, found),
                action=ACTIONS[found.chosen.action].value,
                backend=source.backend if source is not None else None,
                tier=source.tier if source is not None else None,
                target=found.chosen.target.engine_id,
                freshness=freshness.value,
                durability=durability_of(active.policy, DecisionKind.PLAN).value,
                query_tokens=query.tokens_count,
                matched_tokens=chosen.reused_tokens,
                predicted_us=chosen.total_us,
                recompute_us=told.fallback.total_us,
            )
        )


def _inputs(query: PlanQuery, planned: Planned, asked: Asked, found: Plan) -> str:
    devices = tuple(target.device_class for target in query.targets)
    return _json(
        {
            "v": INPUTS_VERSION,
            "engines": planned.engines,
            "link": _link(asked.question, found),
            "plan": record_of(asked, devices, planned.topology_version),
        }
    )


def _link(question: Question, found: Plan) -> list[float] | None:
    """By which link the transfer was priced, None without one."""
    source, target = found.chosen.source, found.chosen.target
    link = NO_LINK if source is None else question.links.get(source.node, target.node)
    return [*link] if link.bytes_per_us else None


def _why_computed(told: ToldPlan) -> str:
    """The reason by which the best state was not used; of none, that there was none."""
    lost = [way.lost for way in told.alternatives if way.source is not None and way.lost]
    if lost:
        return lost[0]
    return told.excluded[0].reason if told.excluded else "cache_miss"


def _holdings(match: Match) -> list[EngineHolding]:
    return [
        EngineHolding(
            EngineKey(one.instance_id, one.dp_rank),
            one.tiers,
            one.epoch,
            one.state in {ViewState.STALE, ViewState.PENDING},
        )
        for one in match.candidates
    ]


def _previous(query: PlanQuery) -> tuple[EngineHolding, ...]:
    assert query.previous is not None
    return query.previous.engines


def explores(decision_id: UUID, share: float) -> bool:
    """A share of all requests, by what is random in their ids."""
    if not share:
        return False
    digest = blake2b(decision_id.bytes, digest_size=4, person=b"explore").digest()
    return bool(int.from_bytes(digest) < share * 2**_SHARE_BITS)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _unusable(error: NexusError, asked: Asked) -> NexusError:
    """With what is known of each target that may not be used."""
    why = "; ".join(f"{note.about}: {note.note}" for note in asked.notes)
    return NexusError(error.code, f"{error.message} ({why})" if why else error.message)
