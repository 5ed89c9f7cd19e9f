"""One worker put together: its memory, what is in it, its two ports, its heartbeat."""

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from app.clock import Clock, IdSource
from app.transfer.sink_ids import SinkIds
from app.transfer.tokens import TokenKeys
from app.transfer.wire import NewSink, WorkerLoad
from app.worker.access import Access
from app.worker.arena import Arena
from app.worker.data_port import DataPort
from app.worker.heartbeat import Heartbeats
from app.worker.http import create_worker_app
from app.worker.metrics import Labelled, Plain, WorkerMetrics
from app.worker.outbox import Outbox
from app.worker.payloads import Payloads
from app.worker.sinks import Sinks
from app.worker.sources import Sources
from app.worker.transfers import Transfers

_SWEEP_S: Final = 1.0
_FLUSH_S: Final = 5.0

_log = structlog.get_logger("nexuskv.worker")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """`url` and `data_address` are where others reach the two ports; no `api_url`: alone."""

    node: str
    dram_bytes: int
    secrets: tuple[str, ...]
    url: str
    data_address: str
    api_url: str | None = None


class WorkerNode:
    """Must be made inside a running event loop. Raises ArenaError, ValueError for a bad secret."""

    def __init__(
        self, settings: NodeSettings, data_socket: socket.socket, clock: Clock, ids: IdSource
    ) -> None:
        keys = TokenKeys(settings.secrets)
        self.instance_id = str(ids.uuid7())
        self.outbox = Outbox()
        self.arena = Arena(settings.dram_bytes)
        self.payloads = Payloads(self.arena, on_gone=self.outbox.gone, on_kept=self.outbox.kept)
        sink_ids = SinkIds(settings.secrets)

        def name_sink(tenant: str, spec: NewSink, unique: UUID) -> str:
            return sink_ids.make(
                settings.node,
                tenant,
                spec.engine_id,
                engine_generation=spec.engine_generation,
                payload_bytes=spec.payload_bytes,
                unique=unique,
            )

        self.sinks = Sinks(self.payloads, clock, ids, emit=self.outbox.put, name=name_sink)
        self.sources = Sources(keys, settings.node, clock)
        self.transfers = Transfers(settings.node, self.payloads, self.sinks, self.sources, clock)
        self.data_port = DataPort(data_socket, self.payloads, keys, clock, node=settings.node)
        self.heartbeats = None
        if settings.api_url is not None:
            self.heartbeats = Heartbeats(
                settings.api_url,
                keys,
                self.outbox,
                clock,
                ids,
                node=settings.node,
                instance_id=self.instance_id,
                url=settings.url,
                data_address=settings.data_address,
                load=self.load,
            )
        metrics = WorkerMetrics(
            gauges=self._gauges,
            counters=self._counters,
            labelled_gauges=self._labelled_gauges,
            labelled_counters=self._labelled_counters,
        )
        self.app = create_worker_app(
            self.payloads,
            self.sinks,
            self.transfers,
            Access(keys, settings.node, clock),
            metrics=metrics,
            clock=clock,
            ids=ids,
            ready=lambda: self._serving,
        )
        self._serving = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.data_port.start()
        self._tasks.append(asyncio.create_task(self._sweep()))
        if self.heartbeats is not None:
            self._tasks.append(asyncio.create_task(self.heartbeats.run()))
        self._serving = True

    def refuse_new(self) -> None:
        """Before the end: not ready any more, and no new transfer begins."""
        self._serving = False
        self.transfers.refuse_new()
        if self.heartbeats is not None:
            self.heartbeats.stopping = True

    async def stop(self, grace_s: float) -> None:
        """Let transfers in and out end or cut them off, tell the API the rest, and close."""
        self.refuse_new()
        await asyncio.gather(
            self.transfers.drain(grace_s), asyncio.to_thread(self.data_port.close, grace_s)
        )
        self.sources.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.heartbeats is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self.heartbeats.flush()
            await self.heartbeats.close()
        self.arena.close()

    def load(self) -> WorkerLoad:
        """What the worker holds and does now."""
        return WorkerLoad(
            capacity_bytes=self.arena.capacity_bytes,
            used_bytes=self.arena.used_bytes,
            pinned_bytes=self.arena.pinned_bytes,
            payloads=len(self.payloads),
            sinks=len(self.sinks),
            transfers=self.transfers.running,
        )

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                self.sinks.sweep()
                self.transfers.sweep()
                self.sources.sweep()
            except Exception:  # noqa: BLE001 - one failed sweep must not be the last
                _log.exception("sweep_failed")

    def _gauges(self) -> Plain:
        arena = self.arena
        return {
            "nexuskv_worker_capacity_bytes": ("Memory of the arena.", arena.capacity_bytes),
            "nexuskv_worker_used_bytes": ("Memory that is taken.", arena.used_bytes),
            "nexuskv_worker_pinned_bytes": ("Memory that is being read.", arena.pinned_bytes),
            "nexuskv_worker_largest_hole_bytes": (
                "The longest free piece.",
                arena.holes.largest_bytes,
            ),
            "nexuskv_worker_blocks": ("Blocks that are taken.", arena.blocks),
            "nexuskv_worker_pins": ("Readers and writers of blocks.", arena.pins),
            "nexuskv_worker_payloads": ("Payloads held.", len(self.payloads)),
            "nexuskv_worker_transfers": ("Transfers that run or wait.", self.transfers.running),
            "nexuskv_worker_data_connections": (
                "Open connections of the data port.",
                self.data_port.connections,
            ),
            "nexuskv_worker_events_pending": (
                "Sink events that the API has yet to take.",
                self.outbox.pending,
            ),
        }

    def _counters(self) -> Plain:
        beats = self.heartbeats
        return {
            "nexuskv_worker_evictions": ("Payloads evicted for room.", self.payloads.evictions),
            "nexuskv_worker_received_bytes": (
                "Verified bytes of completed transfers.",
                self.transfers.received_bytes,
            ),
            "nexuskv_worker_sent_bytes": ("Bytes sent to workers.", self.data_port.sent_bytes),
            "nexuskv_worker_fetches_broken": (
                "Fetches whose connection failed.",
                self.data_port.broken,
            ),
            "nexuskv_worker_events_dropped": (
                "Sink events that found the outbox full.",
                self.outbox.dropped_events,
            ),
            "nexuskv_worker_gone_dropped": (
                "Gone payloads that found the outbox full.",
                self.outbox.dropped_gone,
            ),
            "nexuskv_worker_heartbeats": ("Heartbeats taken.", beats.sent if beats else 0),
            "nexuskv_worker_heartbeats_failed": (
                "Heartbeats not taken.",
                beats.failed if beats else 0,
            ),
        }

    def _labelled_gauges(self) -> Labelled:
        counts = {state.value: number for state, number in self.sinks.counts().items()}
        return {"nexuskv_worker_sinks": ("Sinks that hold memory.", "state", counts)}

    def _labelled_counters(self) -> Labelled:
        return {
            "nexuskv_worker_transfer_results": (
                "Transfers that ended, by how.",
                "result",
                self.transfers.results,
            ),
            "nexuskv_worker_fetches": (
                "Fetches by what was answered.",
                "status",
                {status.value: number for status, number in self.data_port.fetches.items()},
            ),
        }
