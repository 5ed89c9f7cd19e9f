"""A question to the planner, from what is asked and what the indexes know.

Whatever is not proven to be the same state is no source: engines' blocks of another epoch, layout
or revision, registered states without evidence or with another one, tiers that the policy bars.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from app.contract.compatibility import Mismatch, compare
from app.contract.enums import DeviceClass, MatchClassification, TierKind
from app.contract.rules import ReuseRule
from app.engines.plans import Seen
from app.engines.reach import Tier
from app.engines.registration import EngineKey, EngineSpec
from app.index.matcher import Candidate
from app.lifecycle.placing import Directory
from app.lifecycle.plan_query import AskedTarget, EngineHolding, PlanQuery
from app.lifecycle.state_lines import Line, Sizes
from app.planner.cost import node_of
from app.planner.links import Links
from app.planner.profile import Profile
from app.planner.question import CostBounds, PlanExclusion, Question, Source, Target
from app.policy.document import ExecutionPolicy, QuotaMode
from app.policy.evaluate import ruling
from app.topology.topology_provider import Topology

MAX_SOURCES: Final = 256
_TIERS: Final = {
    Tier.GPU: TierKind.DEVICE,
    Tier.CPU: TierKind.HOST_DRAM,
    Tier.DISK: TierKind.LOCAL_SSD,
    Tier.REMOTE: TierKind.REMOTE_SHARED,
}
_TIER_ORDER: Final = {tier: place for place, tier in enumerate(TierKind)}


class Costs(Protocol):
    """What computing and bringing costs, of a model on hardware."""

    def profile(self, model: str, hardware: str) -> Profile:
        """Of those that are known the one that fits best; there always is one."""


class Origin(NamedTuple):
    """What a source is, beside what the planner needs: an engine's own blocks, or a state."""

    kind: str
    name: str
    engine: EngineKey | None = None
    generation: int | None = None
    # On which its descriptor says that it can be; empty for any.
    devices: tuple[DeviceClass, ...] = ()


class Note(NamedTuple):
    """What of a question was not as its caller said, or is not known."""

    about: str
    note: str


class Asked(NamedTuple):
    """A question with what its sources are, notes on it, and the hardware of its targets."""

    question: Question
    origins: tuple[Origin, ...]
    notes: tuple[Note, ...]
    hardware: tuple[str, ...] = ()


class Asking:
    """One question being made."""

    def __init__(
        self,
        query: PlanQuery,
        policy: ExecutionPolicy,
        seen: Mapping[EngineKey, Seen],
        *,
        registered: Callable[[EngineKey], EngineSpec | None],
        costs: Costs,
        topology: Topology,
        directory: Directory,
        sizes: Sizes,
        running: int,
        reading: Callable[[str, TierKind], int],
    ) -> None:
        self._query = query
        self._policy = policy
        self._seen = seen
        self._registered = registered
        self._costs = costs
        self._topology = topology
        self._directory = directory
        self._sizes = sizes
        self._running = running
        self._reading = reading
        self._notes: list[Note] = []
        self._backends: dict[tuple[TierKind, DeviceClass | None], str | None] = {}
        # Of the target at each place what it was described as.
        self._asked = tuple(query.targets)
        # Of these a process runs that was not heard of: what the one before it had is gone.
        self._begun = {one.key for one in self._asked if self._is_ahead(one)}

    def question(
        self, holdings: Sequence[EngineHolding], states: Sequence[Candidate], links: Links
    ) -> Asked:
        """Holdings of engines and states that matched, in any order."""
        trusted = [one for one in holdings if self._stands(one)]
        near = {one.key: one for one in trusted}
        targets = tuple(self._target(one, near.get(one.key)) for one in self._asked)
        pairs = [*self._of_engines(holdings, trusted), *self._of_states(states)]
        # What may not be used takes nobody's place.
        pairs.sort(
            key=lambda pair: (
                pair[0].excluded is not None,
                -pair[0].tokens,
                _TIER_ORDER[pair[0].tier],
                pair[1],
            )
        )
        if len(pairs) > MAX_SOURCES:
            self._notes.append(Note("sources", f"{len(pairs) - MAX_SOURCES} others left off"))
        sources = tuple(source for source, _ in pairs[:MAX_SOURCES])
        origins = tuple(origin for _, origin in pairs[:MAX_SOURCES])
        bounds = self._policy.cost_bounds
        question = Question(
            self._query.tokens_count,
            targets,
            sources,
            links,
            self._query.deadline_us,
            CostBounds(bounds.deviations, bounds.min_gain_us, bounds.max_queue_us),
            barred=self._barred(targets, sources, origins),
        )
        hardware = tuple(self._hardware(one.key, one.hardware) for one in self._asked)
        return Asked(question, origins, tuple(self._notes), hardware)

    # ---- targets

    def _target(self, asked: AskedTarget, near: EngineHolding | None) -> Target:
        name, seen = _shown(asked.key), self._seen.get(asked.key)
        excluded, local = None, 0
        if seen is None and self._runs_another(asked.key):
            excluded = PlanExclusion.INCOMPATIBLE
            self._notes.append(Note(name, "it runs another model, revision or layout"))
        elif seen is None:
            self._notes.append(Note(name, "engine not registered: nothing is known of its cache"))
        elif asked.generation is not None and asked.generation < seen.view.epoch:
            excluded = PlanExclusion.UNKNOWN_GENERATION
            self._notes.append(Note(name, f"it is generation {seen.view.epoch} now"))
        elif asked.key in self._begun:
            self._notes.append(Note(name, "a generation not heard of: its cache is not counted"))
        elif near is not None:
            local = near.tiers[Tier.GPU].only if Tier.GPU in near.tiers else 0
        block = asked.block_tokens or (seen.block_tokens if seen is not None else None)
        free = None
        if asked.free_blocks is not None and block is not None:
            free = asked.free_blocks * block
        elif asked.free_blocks is not None:
            self._notes.append(Note(name, "free_blocks without block_tokens: not counted"))
        return Target(
            name,
            asked.generation or (seen.view.epoch if seen is not None else 0),
            self._node(asked.key, asked.residency),
            self._profile(asked.key, asked.hardware),
            local,
            asked.queue_depth,
            asked.running_prefill_tokens,
            asked.running_decode_tokens,
            free,
            excluded,
        )

    def _runs_another(self, key: EngineKey) -> bool:
        """Whether the tenant's engine is registered as something else than is asked for."""
        spec = self._registered(key)
        return spec is not None and self._query.wanted.tenant in spec.tenants

    def _is_of_others(self, key: EngineKey) -> bool:
        """Of such an engine nothing is told, nor that it is there."""
        if key in self._seen:
            return False
        spec = self._registered(key)
        return spec is not None and self._query.wanted.tenant not in spec.tenants

    def _is_ahead(self, asked: AskedTarget) -> bool:
        seen = self._seen.get(asked.key)
        return seen is not None and (asked.generation or 0) > seen.view.epoch

    def _node(self, key: EngineKey, residency: str | None = None) -> str:
        """Where an engine is; one of which nobody says is a node of its own."""
        seen = self._seen.get(key)
        registered = None if seen is None else seen.view.spec.node
        told = None
        if residency is None and not self._is_of_others(key):
            told = self._topology.engine_nodes.get(key.instance_id)
        return residency or told or registered or key.instance_id

    # ---- sources

    def _stands(self, holding: EngineHolding) -> bool:
        """Whether what was said of an engine is of its process as it is now, and heard."""
        seen = self._seen.get(holding.key)
        if seen is None or holding.stale or holding.key in self._begun:
            return False
        return holding.epoch is None or holding.epoch == seen.view.epoch

    def _of_engines(
        self, holdings: Sequence[EngineHolding], trusted: Sequence[EngineHolding]
    ) -> Iterator[tuple[Source, Origin]]:
        stands = {id(one) for one in trusted}
        for holding in holdings:
            seen, name = self._seen.get(holding.key), _shown(holding.key)
            line = None if seen is None else self._line_of(seen)
            known = line or Line(0.0, self._profile(holding.key).default_bytes_per_token)
            origin = Origin("engine", name, holding.key, None if seen is None else seen.view.epoch)
            not_known = None if id(holding) in stands else _not_known(holding)
            node = self._node(holding.key)
            for tier, reached in holding.tiers.items():
                tokens = reached.only if tier is Tier.GPU else reached.cumulative
                # Who was asked before may say anything; there is no more of it than the prompt.
                tokens = min(tokens, self._query.tokens_count)
                if not tokens:
                    continue
                kind = _TIERS.get(tier)
                source = Source(
                    f"{name}:{tier.value}",
                    node,
                    kind or TierKind.OBJECT_STORE,
                    tokens,
                    known.bytes_per_token,
                    known.fixed_bytes,
                    line is not None,
                    excluded=not_known or self._unreadable(node, kind),
                )
                yield source, origin

    def _profile(self, key: EngineKey, hardware: str | None = None) -> Profile:
        return self._costs.profile(self._query.wanted.model, self._hardware(key, hardware))

    def _hardware(self, key: EngineKey, told: str | None) -> str:
        if told is not None:
            return told
        if self._is_of_others(key):
            return ""
        engine = self._topology.engines.get(key.instance_id)
        return (engine.hardware if engine is not None else None) or ""

    def _line_of(self, seen: Seen) -> Line | None:
        """Of an engine's blocks, by the descriptor of a state that is registered with it."""
        for state in seen.view.spec.states:
            if state.entry.identity.key.model == self._query.wanted.model:
                return self._sizes.of(state.entry.descriptor)
        return None

    def _of_states(self, states: Sequence[Candidate]) -> Iterator[tuple[Source, Origin]]:
        for candidate in states:
            state = candidate.state
            line = self._sizes.of(state.entry.descriptor)
            known = line or Line(0.0, self._profile(EngineKey("")).default_bytes_per_token)
            worker = state.payload[0] if state.payload else None
            location = state.entry.location
            node = worker or node_of(location.locator) or location.locator
            yield (
                Source(
                    state.entry_id,
                    node,
                    location.tier,
                    candidate.matched_tokens,
                    known.bytes_per_token,
                    known.fixed_bytes,
                    line is not None,
                    state.partial and state.rule is ReuseRule.PREFIX_CLOSED,
                    self._state_excluded(candidate) or self._unreadable(node, location.tier),
                ),
                Origin(
                    "state",
                    state.entry_id,
                    None,
                    state.generation,
                    state.entry.descriptor.materialization.device_classes,
                ),
            )

    def _unreadable(self, node: str, tier: TierKind | None) -> PlanExclusion | None:
        """A tier that nobody knows, or that as many transfers read as it takes."""
        if tier is None:
            return PlanExclusion.NO_PATH
        known = self._topology.tiers.get((node, tier))
        most = 0 if known is None else known.max_in_flight
        return PlanExclusion.LINK_BUSY if 0 < most <= self._reading(node, tier) else None

    def _state_excluded(self, candidate: Candidate) -> PlanExclusion | None:
        state, evidence = candidate.state, self._query.evidence
        if evidence is None:
            return PlanExclusion.INCOMPATIBLE
        exact = candidate.classification is MatchClassification.EXACT
        verdict = compare(state.entry, state.evidence, evidence, exact=exact)
        if isinstance(verdict, Mismatch):
            return PlanExclusion.INCOMPATIBLE
        if state.payload is None:
            return None
        worker, payload_id = state.payload
        status = self._directory.status(worker, state.registered_us, state.tenant, payload_id)
        return PlanExclusion.UNAVAILABLE if status == "unavailable" else None

    # ---- pairs

    def _barred(
        self, targets: Sequence[Target], sources: Sequence[Source], origins: Sequence[Origin]
    ) -> dict[tuple[int, int], PlanExclusion]:
        """Targets that are alike are judged once."""
        found: dict[tuple[int, int], PlanExclusion] = {}
        alike: dict[tuple[_Layout | None, DeviceClass | None], list[int]] = {}
        for at, asked in enumerate(self._asked):
            alike.setdefault((self._layout(asked), asked.device_class), []).append(at)
        for place, (source, origin) in enumerate(zip(sources, origins, strict=True)):
            if source.excluded is not None:
                continue
            for (layout, device), places in alike.items():
                reason = self._kept_apart(source, origin, layout, device)
                if reason is not None:
                    found |= {(at, place): reason for at in places}
        quota = self._policy.quota_admission_policy
        if quota.mode is QuotaMode.ENFORCED:
            self._over_quota(found, targets, sources, origins)
        return found

    def _layout(self, asked: AskedTarget) -> "_Layout | None":
        """None for a target of which nobody says it."""
        seen, layout = self._seen.get(asked.key), asked.parallel_layout
        if seen is not None:
            spec = seen.view.spec
            return _Layout(
                spec.revision, spec.block_tokens, spec.layout if layout is None else layout
            )
        if layout is None or asked.block_tokens is None:
            return None
        return _Layout(self._query.wanted.revision or "", asked.block_tokens, layout)

    def _kept_apart(
        self, source: Source, origin: Origin, layout: "_Layout | None", device: DeviceClass | None
    ) -> PlanExclusion | None:
        if origin.engine is not None:
            # Blocks of one engine are another's only where both lay them out alike.
            spec = self._seen[origin.engine].view.spec
            if layout != _Layout(spec.revision, spec.block_tokens, spec.layout):
                return PlanExclusion.INCOMPATIBLE
        elif origin.devices and device is not None and device not in origin.devices:
            return PlanExclusion.INCOMPATIBLE
        key = (source.tier, device)
        if key not in self._backends:
            self._backends[key] = backend_for(self._policy, source.tier, device)
        return None if self._backends[key] else PlanExclusion.POLICY_DENIED

    def _over_quota(
        self,
        found: dict[tuple[int, int], PlanExclusion],
        targets: Sequence[Target],
        sources: Sequence[Source],
        origins: Sequence[Origin],
    ) -> None:
        """What a tenant may not move at once, or by one more; an engine's own is its own."""
        quota = self._policy.quota_admission_policy
        full = 0 < quota.max_concurrent_transfers <= self._running
        for place, (source, origin) in enumerate(zip(sources, origins, strict=True)):
            for at, (asked, target) in enumerate(zip(self._asked, targets, strict=True)):
                if origin.engine == asked.key or (at, place) in found:
                    continue
                more = max(0, source.tokens - target.local_tokens)
                moved = source.fixed_bytes + source.bytes_per_token * more
                if full or 0 < quota.max_payload_bytes < moved:
                    found[at, place] = PlanExclusion.QUOTA


class _Layout(NamedTuple):
    """What blocks of two engines must have in common for one's to be the other's."""

    revision: str
    block_tokens: int
    layout: str


def backend_for(policy: ExecutionPolicy, tier: TierKind, device: DeviceClass | None) -> str | None:
    """The backend that goes first among those that may read the tier into a device."""
    told = ruling(policy, (tier, TierKind.DEVICE, device, None, None))
    able = [backend for backend, denied in told.denials.items() if denied is None]
    return min(able, key=lambda one: told.priorities[one]).value if able else None


def _shown(key: EngineKey) -> str:
    return f"{key.instance_id}/{key.dp_rank}" if key.dp_rank else key.instance_id


def _not_known(holding: EngineHolding) -> PlanExclusion:
    return PlanExclusion.UNAVAILABLE if holding.stale else PlanExclusion.UNKNOWN_GENERATION
