"""What the policy costs in CPU: whole lookups and whole estimates, with it and without.

The slices of the pipeline as the service wires them, in one process: index, directory of workers,
verdicts, catalog, cost model and observer are the real ones. Decisions are taken and dropped, and
Postgres is a row in memory, so that nothing but CPU of this process is measured. Without the policy
every tier is read and every backend may act, and nothing is asked; runs with and without alternate,
and the least of each counts, since the machine is shared. The lookup hits; the estimate is between
two workers with two backends, of which each shipped policy takes one.
"""

import asyncio
import gc
import resource
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import cast
from unittest import mock

from app.bridge.wire import BridgeDecoder
from app.clock import SystemClock, SystemIds
from app.contract.enums import TierKind, TransferBackend
from app.contract.registration import parse_registration, registration_bytes
from app.contract.verdict import Mismatch
from app.control.keys import Principal, Scope
from app.db.session import Database
from app.decisions.record import Decision, Outcome, PendingDecision
from app.engines.backed import Backed
from app.execution.catalog import BackendRegistration, Order, Rejection, Selection, incapable
from app.execution.grants import SourceGrant
from app.index.matcher import Candidate, Freshness
from app.index.registered import ScopeIdentity
from app.index.registry import stored_row
from app.index.repository import StoredState
from app.lifecycle import estimate, placing
from app.lifecycle.caller import Caller
from app.lifecycle.estimate import Estimate, Priced
from app.lifecycle.lookup import Hit, Lookup
from app.lifecycle.observe import Observer
from app.lifecycle.queries import EstimateQuery, LookupQuery
from app.policy.document import ExecutionPolicy, load_policy
from app.policy.provider import ActivePolicy
from app.services import Services
from app.settings import Settings
from app.transfer.wire import Heartbeat, WorkerLoad
from benchmarks.report import Bar, Report
from benchmarks.service import lookup_body, registration

POLICIES = Path(__file__).resolve().parent.parent / "policies"
SECRET = "benchmark-" + "0" * 32
TOKENS = 128
# Short runs, and many: on a shared machine only some of them are left alone.
ROUNDS = 800
CALLS = 25
LOOKUPS_A_CALL = 16
LIMIT_US = 5.0

Run = Callable[[int], None]


class Recorder:
    """Takes decisions as the writer does, and keeps none."""

    def __init__(self) -> None:
        self.taken = 0

    def record(self, _decision: Decision) -> None:
        self.taken += 1

    def defer(self, _pending: PendingDecision) -> None:
        self.taken += 1

    def record_outcome(self, _outcome: Outcome) -> None:
        self.taken += 1


class OneRow:
    """In place of Postgres: the one state that is asked for."""

    @asynccontextmanager
    async def read(self) -> AsyncIterator[None]:
        yield None


class OpenLookup(Lookup):
    """A lookup that asks no policy: what `Lookup` does, but for the tier."""

    def _reach(self, candidate: Candidate) -> Mismatch | None:
        state = candidate.state
        if state.payload is not None:
            worker, payload_id = state.payload
            status = self._directory.status(worker, state.registered_us, state.tenant, payload_id)
            assert status == "available"
        return None


class NoEngines:
    """No engine backs a state here."""

    def find(self, _scope: ScopeIdentity, _tokens: object) -> Backed:
        return Backed([], unknown=False)


def first_able(
    registrations: Sequence[BackendRegistration], order: Order, _policy: ExecutionPolicy
) -> Selection:
    """What `select` does, but for the policy: whatever can is admitted, in the order offered."""
    rejected: list[Rejection] = []
    admitted: list[BackendRegistration] = []
    paths = frozenset(path.backend for path in order.descriptor.transfer_paths)
    for offer in registrations:
        rejection = incapable(offer, order, paths)
        if rejection is not None:
            rejected.append(rejection)
        else:
            admitted.append(offer)
    wanted = order.preferred or admitted[0].backend
    for offer in admitted:
        if offer.backend is wanted and offer.available:
            return Selection(offer, None, tuple(rejected))
    raise AssertionError("every backend of the benchmark is available")


class Bench:
    """Both slices over one registered state of worker `wa`, which `wb` may take."""

    def __init__(self) -> None:
        self.settings = Settings(
            database_url="postgresql://nobody@127.0.0.1/none",
            handle_secret=SECRET,
            worker_secrets=(SECRET,),
        )
        self.clock, self.ids, self.recorder = SystemClock(), SystemIds(), Recorder()
        self.loop = asyncio.new_event_loop()
        self.services = Services(self.settings, self.clock, self.ids)
        self.services.hashing.adopt(sha256(SECRET.encode()).digest())
        since = datetime(2026, 1, 1, tzinfo=UTC)
        for name in ("wa", "wb"):
            self.services.workers.note_stored(name, self._heartbeat(name), since)
        self.stored = self._state()
        self.services.index.upsert(stored_row(self.stored))
        self.caller = Caller(Principal("bench", frozenset({Scope.BRIDGE}), None), None, 0)
        self.query = self._lookup_query()

    def run_lookups(self, kind: type[Lookup]) -> Run:
        services = self.services
        sought = kind(
            services.index,
            self.recorder,
            services.policy_provider,
            services.workers,
            clock=self.clock,
            ids=self.ids,
            max_candidates=self.settings.max_candidates,
            source_handle_ttl_s=self.settings.source_handle_ttl_s,
        )

        def run(calls: int) -> None:
            # As long as a run of estimates, so that both are as well measured.
            for _ in range(calls * LOOKUPS_A_CALL):
                found = sought.run(self.query, self.caller, Freshness.CURRENT)
                assert type(found) is Hit

        return run

    def run_estimates(self) -> Run:
        services = self.services
        observer = Observer(
            self.recorder, services.policy_provider, services.index, services.costs,
            clock=self.clock, ids=self.ids, tally=services.tally,
        )  # fmt: skip
        priced = Estimate(
            cast(Database, OneRow()), observer, services.workers,
            clock=self.clock, ids=self.ids, option_ttl_s=self.settings.option_ttl_s,
        )  # fmt: skip
        hit = self._hit()
        query = EstimateQuery(
            grant=hit.grant,
            source_state=self.stored.entry_id,
            source_locator=self.stored.locator,
            source_tier=self.stored.tier,
            target_digest=bytes(16),
            target_id="t",
            target_engine_id="e",
            target_engine_generation=1,
            target_residency="wb",
        )

        async def ask(calls: int) -> None:
            for _ in range(calls):
                assert type(await priced.run(query, self.caller)) is Priced

        def run(calls: int) -> None:
            self.loop.run_until_complete(ask(calls))

        return run

    async def named(self, _session: None, _grant: SourceGrant) -> StoredState:
        return self.stored

    def _hit(self) -> Hit:
        services = self.services
        found = Lookup(
            services.index, self.recorder, services.policy_provider, services.workers, NoEngines(),
            clock=self.clock, ids=self.ids, max_candidates=1, source_handle_ttl_s=3_600,
        ).run(self.query, self.caller, Freshness.CURRENT)  # fmt: skip
        assert isinstance(found, Hit)
        return found

    def _lookup_query(self) -> LookupQuery:
        decoded = BridgeDecoder().lookup(lookup_body(0, TOKENS))
        identity = decoded.identity
        scope = ScopeIdentity(
            identity.tenant,
            identity.namespace,
            identity.model,
            identity.engine_family,
            identity.semantic_type,
        )
        return LookupQuery(scope, decoded.tokens, decoded.evidence, decoded.evidence_number)

    def _heartbeat(self, name: str) -> Heartbeat:
        return Heartbeat(
            schema_version="nexuskv.worker.v1",
            instance_id=str(self.ids.uuid7()),
            url=f"http://{name}:1",
            data_address=f"{name}:2",
            backends=(TransferBackend.BASELINE_TRANSPORT, TransferBackend.STAGED_COPY),
            tiers=(TierKind.HOST_DRAM,),
            load=WorkerLoad(2**30, 0, 0, 1, 0, 0),
        )

    def _state(self) -> StoredState:
        document = registration(0, TOKENS)
        document["entry"]["location"]["locator"] = "node://wa/state/p"
        # Every path: that the shipped policies differ in theirs is what is measured.
        document["entry"]["descriptor"]["transfer_paths"] = []
        registered = parse_registration(document)
        entry = registered.entry
        key, now = entry.identity.key, self.clock.now()
        body = registration_bytes(registered)
        return StoredState(
            state_id=self.ids.uuid7(),
            tenant=key.tenant,
            entry_id=entry.identity.entry_id,
            generation=entry.identity.version.generation,
            lineage=entry.identity.version.lineage,
            namespace=key.namespace,
            model=key.model,
            engine_family=key.engine_family,
            semantic_type=key.semantic_type,
            tier=entry.location.tier.value,
            locator=entry.location.locator,
            token_count=len(key.tokens),
            content_hash=sha256(body).digest(),
            created_at=now,
            updated_at=now,
            deleted_at=None,
            body=body.decode(),
            tokens=array("I", key.tokens).tobytes(),
        )


def measure_policy(report: Report, _rounds: int) -> None:
    """The bars on what each shipped policy adds to a lookup and to an estimate."""
    bench = Bench()
    try:
        with mock.patch.object(estimate, "named_state", bench.named):
            measure(bench, report)
    finally:
        bench.loop.close()


def measure(bench: Bench, report: Report) -> None:
    """Rows and bars."""
    added: dict[str, float] = {}
    for path in sorted(POLICIES.glob("*.yaml")):
        policy = load_policy(path.read_bytes())
        bench.services.policy_provider.current = ActivePolicy(policy, path.stem, None)
        lookups = (bench.run_lookups(Lookup), bench.run_lookups(OpenLookup))
        estimates = bench.run_estimates()
        lookups_us = [us / LOOKUPS_A_CALL for us in least_us(*lookups)]
        for name, calls, (with_us, without_us) in (
            ("lookup", CALLS * LOOKUPS_A_CALL, lookups_us),
            ("estimate", CALLS, least_us(estimates, without_policy(estimates))),
        ):
            report.rows.append(
                {
                    "what": f"{name} under {path.stem}",
                    "cpu_us": with_us,
                    "cpu_without_policy_us": without_us,
                    "policy_adds_us": with_us - without_us,
                    "runs": ROUNDS,
                    "calls": calls,
                }
            )
            added[name] = max(added.get(name, 0.0), with_us - without_us)
    assert bench.recorder.taken >= 2 * len(added) * ROUNDS * CALLS
    for name, worst_us in added.items():
        bar = (
            f"policy: CPU added to {'an' if name == 'estimate' else 'a'} {name}, the most of three"
        )
        report.bars.append(Bar(bar, worst_us, "us", LIMIT_US, False))


def without_policy(run: Run) -> Run:
    """The same with a choice that asks no policy."""

    def opened(calls: int) -> None:
        # Not with a mock's patch: it costs more than what is measured.
        chosen, placing.select = placing.select, first_able
        try:
            run(calls)
        finally:
            placing.select = chosen

    return opened


def least_us(*runs: Run) -> list[float]:
    """Microseconds of CPU a call, by getrusage: the least of each, the runs taking turns."""
    found: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run(CALLS)
    with no_collection():
        for _ in range(ROUNDS):
            for run, seen in zip(runs, found, strict=True):
                before = cpu_us()
                run(CALLS)
                seen.append((cpu_us() - before) / CALLS)
    return [min(seen) for seen in found]


def cpu_us() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
