"""Everything one API process is made of, wired once; nothing here decides anything."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Final

import structlog

from app.calibration.keeper import CalibrationKeeper
from app.clock import Clock, IdSource
from app.contract.enums import TransferBackend
from app.control.auth import Access
from app.control.health import PolicyFacts, ReadinessFacts, ReadinessProbe
from app.control.keyring import KeyRing
from app.control.repository import get_or_create_secret
from app.db.migrate import schema_status
from app.db.session import Database
from app.decisions.recording import Recording
from app.decisions.retention import HistoryLimits
from app.decisions.retention_rounds import HistoryKeeper
from app.engines.backed import BackedRegistry, BackedStates
from app.engines.parts import engine_parts
from app.errors import NexusError
from app.execution.backend import ProtocolBackend
from app.execution.repository import claims_forget, transfers_forget
from app.execution.worker_backend import WorkerBackend
from app.host_list import HostAllowList
from app.index.matcher import StateIndex
from app.index.registry import StateRegistry
from app.index.scopes import TenantHashing
from app.index.sync import IndexSync
from app.lifecycle.costs import StoredCosts
from app.lifecycle.estimate import Estimate
from app.lifecycle.keeping import Keeping
from app.lifecycle.lookup import Lookup
from app.lifecycle.materialize import Materialize
from app.lifecycle.materialize_plan import Workers
from app.lifecycle.move import Move
from app.lifecycle.observe import Observer
from app.lifecycle.plan import Planning
from app.lifecycle.prefetch import Prefetching
from app.lifecycle.register import StateIntake
from app.lifecycle.sink_reports import SinkReports
from app.lifecycle.steps import Steps
from app.lifecycle.tally import Tally
from app.metrics import Metrics
from app.planner.calibrate import CalibrationLimits
from app.policy.document import load_policy
from app.policy.provider import PolicyProvider
from app.policy.store import PolicyStore
from app.profiles.document import read_profile
from app.profiles.provider import ProfileProvider
from app.profiles.store import ProfileStore
from app.scraped_metrics import FollowedGauges, PolicyGauges
from app.settings import REFERENCE_PROFILE_FILE, Settings
from app.topology.directory import WorkerDirectory
from app.topology.hosts import VARIABLE as WORKER_HOSTS
from app.topology.intake import WorkerIntake
from app.topology.topology_provider import TopologyProvider
from app.topology.topology_store import TopologyStore
from app.transfer.client import WorkerClient
from app.transfer.sink_ids import SinkIds
from app.transfer.tokens import TokenKeys
from nexuskv_core import IMPLEMENTATION

# The name of the row, not the secret.
_HASH_ROW: Final = "hash"
_HASH_SECRET_BYTES: Final = 32
_STARTUP_RETRY_S: Final = 0.5
_CLAIM_INTERVAL_S: Final = 60.0
_CLAIM_BATCH_ROWS: Final = 1_000
_KEY_INTERVAL_S: Final = 0.5
log = structlog.get_logger("nexuskv.services")


class Services:
    """The parts of one process. `start` begins the background tasks and returns at once."""

    def __init__(self, settings: Settings, clock: Clock, ids: IdSource) -> None:
        self.settings = settings
        self.clock = clock
        self.ids = ids
        self.policy = load_policy(settings.policy_file.read_bytes())
        self.metrics = Metrics(version=version("nexuskv"), implementation=IMPLEMENTATION)
        self.database = Database(
            settings.database_url,
            pool_connections=settings.pool_connections,
            statement_timeout_s=settings.statement_timeout_s,
        )
        # Readiness must not queue behind requests for a connection.
        self._probe_database = Database(settings.database_url, pool_connections=1)
        self.hashing = TenantHashing()
        self.index = StateIndex(self.hashing)
        self.registry = StateRegistry(self.database, self.index, clock, ids)
        self.sync = IndexSync(
            self.database,
            self.index,
            clock,
            interval_s=settings.sync_interval_s,
            stale_s=settings.sync_stale_s,
        )
        self.keyring = KeyRing(self.database, clock)
        self.access = Access(self.keyring, keyless_loopback=settings.keyless_loopback)
        self.recording = Recording(settings, self.database, clock, ids)
        self.spool = self.recording.spool
        self.history = HistoryKeeper(
            self.database,
            clock,
            HistoryLimits(
                settings.history_days, settings.rollup_minute_days, settings.rollup_hour_days
            ),
        )
        self.policies = PolicyStore(self.database, clock)
        self.policy_provider = PolicyProvider(self.database, self.policy, clock)
        self._make_planning()
        self.keeping = Keeping(self.spool, self.policy_provider, wait_s=settings.group_wait_s)
        self._make_engines()
        self._make_workers()
        self.backed_registry = BackedRegistry(self.registry)
        self.intake = StateIntake(self.registry, self.policy_provider, self.metrics)
        self._make_plans()
        self._make_pipeline()
        self.loaded = asyncio.Event()
        self.draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self.metrics.watch_index(self.index.stats)
        self.metrics.watch_decisions(self.spool)
        self.metrics.watch_recording(self.recording, self.keeping)
        self.metrics.watch_history(self.history)
        self.metrics.watch_policy(self._policy_gauges, self.policies)
        self.metrics.watch_pipeline(self.tally)
        self.metrics.watch_plans(self.planning.reservations, self.prefetching.budgets)
        self.metrics.watch_sink_reports(self.sink_reports.results)
        self.probe = ReadinessProbe(self._facts(), clock, self.metrics)

    def _make_planning(self) -> None:
        """What plans are made by: cost profiles, the topology, and what outcomes teach of both."""
        built_in = read_profile(REFERENCE_PROFILE_FILE.read_bytes())
        self.profile_store = ProfileStore(self.database, self.clock)
        self.profiles = ProfileProvider(self.database, built_in, self.clock)
        self.topology_store = TopologyStore(self.database, self.clock)
        self.topology = TopologyProvider(self.database, self.clock)
        self.metrics.watch_planning(self._profile_gauges, self._topology_gauges)
        self.calibration = CalibrationKeeper(
            self.database,
            lambda model, hardware: self.profiles.current.best(model, hardware).profile,
            lambda: self.topology.current.links,
            lambda: CalibrationLimits(
                self.policy_provider.current.policy.cost_bounds.max_calibration_step
            ),
            self.clock,
        )
        self.metrics.watch_calibration(self.calibration)
        self.costs = StoredCosts(self.profiles, self.topology, self.calibration)

    def _make_engines(self) -> None:
        """What engines say of their caches: who they are, their events, and queries."""
        parts = engine_parts(self.settings, self.database, self.clock, self.ids, self.hashing)
        self.engines = parts.engines
        self.engine_intake = parts.intake
        self.matcher = parts.matcher
        self._engine_follower = parts.follower
        self.metrics.watch_engines(parts.engines, parts.stats, parts.matcher)
        self.index_stats = parts.stats
        if parts.port is not None:
            self.metrics.watch_index_port(parts.port)

    def _make_workers(self) -> None:
        """Who moves bytes: the registry, and the client that gives orders."""
        settings = self.settings
        self.worker_keys = TokenKeys(settings.worker_secrets) if settings.worker_secrets else None
        self.workers = WorkerDirectory(
            self.database,
            self.clock,
            interval_s=settings.sync_interval_s,
            silence_s=settings.worker_silence_s,
        )
        self.sink_reports = SinkReports(self.database, self.spool, self.clock)
        self.steps = Steps()
        self.tally = Tally()
        self.worker_intake = WorkerIntake(
            self.database,
            self.workers,
            HostAllowList(settings.worker_hosts, WORKER_HOSTS),
            self.clock,
            silence_s=settings.worker_silence_s,
            lost_s=settings.worker_lost_s,
            on_sink_event=self.sink_reports.take,
            on_gone=self.sink_reports.gone,
            on_new_instance=self.sink_reports.lost,
        )
        self.worker_client = WorkerClient(self.workers.get, self.worker_keys, self.clock)
        self.metrics.watch_workers(
            self.workers.counts, self.worker_intake.results, self.worker_client
        )

    def _make_plans(self) -> None:
        """What makes plans, from what this process knows."""
        self.planning = Planning(
            self.matcher,
            self.index,
            self.workers,
            sink=self.spool,
            policies=self.policy_provider,
            costs=self.costs,
            topologies=self.topology,
            engines=self.engines,
            clock=self.clock,
            ids=self.ids,
        )

    def _make_pipeline(self) -> None:
        """The three slices of the pipeline."""
        self.lookup = Lookup(
            self.index,
            self.spool,
            self.policy_provider,
            self.workers,
            BackedStates(self.engines, self.index, self.matcher, self.clock),
            clock=self.clock,
            ids=self.ids,
            max_candidates=self.settings.max_candidates,
            source_handle_ttl_s=self.settings.source_handle_ttl_s,
        )
        observer = Observer(
            self.spool,
            self.policy_provider,
            self.index,
            self.costs,
            clock=self.clock,
            ids=self.ids,
            tally=self.tally,
        )
        self.estimate = Estimate(
            self.database,
            observer,
            self.workers,
            clock=self.clock,
            ids=self.ids,
            option_ttl_s=self.settings.option_ttl_s,
        )
        workers = Workers(
            self.workers,
            self.worker_client,
            ProtocolBackend(),
            {backend: WorkerBackend(backend, self.worker_client) for backend in TransferBackend},
            self.settings.transfer_deadline_s,
            self.clock,
            SinkIds(self.settings.worker_secrets) if self.settings.worker_secrets else None,
        )
        self.materialize = Materialize(
            self.database,
            observer,
            workers,
            self.steps,
            clock=self.clock,
            claim_ttl_s=self.settings.claim_ttl_s,
        )
        self.move = Move(self.database, observer, workers, self.steps, clock=self.clock)
        self.prefetching = Prefetching(
            self.database, self.move, observer, self.costs,
            topologies=self.topology, policies=self.policy_provider, clock=self.clock,
        )  # fmt: skip

    def _facts(self) -> ReadinessFacts:
        return ReadinessFacts(
            schema_status=lambda: schema_status(self._probe_database),
            keys_loaded=lambda: self.keyring.loaded,
            index_loaded=lambda: self.sync.loaded,
            policy=self._policy_facts,
            decisions_alive=lambda: self.recording.alive,
            draining=lambda: self.draining,
            implementation=IMPLEMENTATION,
        )

    def _policy_facts(self) -> PolicyFacts:
        status = self.policy_provider.status()
        return PolicyFacts(
            status.label, status.loaded, None if status.fault is None else status.fault.reason
        )

    def _policy_gauges(self) -> PolicyGauges:
        status = self.policy_provider.status()
        return PolicyGauges(
            self.policy_provider.current.number or 0,
            status.stale_s,
            status.fault is not None,
            self.policy_provider.changes,
        )

    def _profile_gauges(self) -> FollowedGauges:
        status = self.profiles.status()
        return FollowedGauges(
            status.in_force, status.stale_s, status.fault is not None, self.profiles.changes
        )

    def _topology_gauges(self) -> FollowedGauges:
        status = self.topology.status()
        return FollowedGauges(
            status.version or 0, status.stale_s, status.fault is not None, self.topology.changes
        )

    async def start(self) -> None:
        """Start to record, and to load what Postgres holds as soon as it answers.

        Raises SpoolInUseError, OSError where there is no place to record.
        """
        self.recording.start()
        self._spawn(self._load(), "load")

    async def stop(self) -> None:
        """Stop the background tasks, store what was decided, close the database."""
        self.draining = True
        for task in self._tasks:
            task.cancel()
        await self.sync.stop()
        await self.workers.stop()
        await self._engine_follower.stop()
        await self.prefetching.stop()
        await self.steps.settled()
        await self.worker_client.stop()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        left = await self.recording.stop()
        if left:
            log.error(
                "decisions_not_stored_at_shutdown",
                rows=left,
                kept=self.settings.spool_dir is not None,
            )
        await self.database.close()
        await self._probe_database.close()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))

    async def _load(self) -> None:
        """Waits for Postgres however long it takes: readiness says no until then."""
        self._spawn(self.keyring.watch(_KEY_INTERVAL_S), "keys")
        self._spawn(self.policy_provider.watch(), "policy")
        self._spawn(self.profiles.watch(), "profiles")
        self._spawn(self.topology.watch(), "topology")
        self._spawn(self.calibration.watch(), "calibration")
        secret = await hash_secret(self.database, self.ids)
        self.hashing.adopt(secret)
        self.sync.start()
        self.workers.start()
        self._engine_follower.start()
        await self.sync.wait_loaded()
        await self.workers.wait_loaded()
        await self._engine_follower.wait_loaded()
        await self.policy_provider.wait_loaded()
        await self.profiles.wait_loaded()
        await self.topology.wait_loaded()
        await self.calibration.wait_loaded()
        self._spawn(self.history.watch(), "history")
        self._spawn(self.calibration.watch_learning(), "learning")
        self._spawn(self._forget_claims(), "claims")
        self._spawn(self.worker_intake.watch_lost(), "lost workers")
        self.loaded.set()

    async def _forget_claims(self) -> None:
        keep = timedelta(seconds=self.settings.consumed_retention_s)
        while True:
            try:
                forgotten = _CLAIM_BATCH_ROWS
                while forgotten >= _CLAIM_BATCH_ROWS:
                    before = self.clock.now() - keep
                    async with self.database.write() as session:
                        forgotten = await claims_forget(session, before, _CLAIM_BATCH_ROWS)
                        forgotten += await transfers_forget(session, before, _CLAIM_BATCH_ROWS)
            except Exception as error:  # noqa: BLE001 - old claims are clutter, not a fault
                log.warning("claims_not_forgotten", cause=_cause(error))
            await asyncio.sleep(_CLAIM_INTERVAL_S)


async def hash_secret(database: Database, ids: IdSource) -> bytes:
    """The deployment's, made by who asks first; waits for the database however long it takes."""
    failing = False
    while True:
        try:
            async with database.write() as session:
                return await get_or_create_secret(
                    session, _HASH_ROW, ids.random_bytes(_HASH_SECRET_BYTES)
                )
        except Exception as error:  # noqa: BLE001 - absent server, absent schema: wait for both
            if not failing:
                log.warning("waiting_for_database", cause=_cause(error))
            failing = True
        await asyncio.sleep(_STARTUP_RETRY_S)


def _cause(error: Exception) -> str:
    return error.internal or error.message if isinstance(error, NexusError) else repr(error)
