"""One process's registry of workers on a real database, with a clock that tests set."""

from typing import Any
from uuid import UUID

from sqlalchemy import text

from app.clock import SystemIds
from app.contract.enums import TierKind, TransferBackend
from app.db.session import Database
from app.host_list import HostAllowList
from app.settings import DEFAULT_WORKER_HOSTS
from app.topology.directory import WorkerDirectory
from app.topology.hosts import VARIABLE
from app.topology.intake import WorkerIntake
from app.transfer.wire import GonePayload, Heartbeat, SinkEvent, WorkerLoad
from tests.control.clock import SetClock

IDS = SystemIds()
SILENCE_S = 5.0
LOAD = WorkerLoad(
    capacity_bytes=1 << 20, used_bytes=4096, pinned_bytes=0, payloads=1, sinks=0, transfers=0
)


def instance() -> str:
    return str(UUID(bytes=IDS.uuid7().bytes))


def heartbeat(instance_id: str, **changes: Any) -> Heartbeat:
    fields = {
        "schema_version": "nexuskv.worker.v1",
        "url": "http://127.0.0.1:7100",
        "data_address": "127.0.0.1:7101",
        "backends": (TransferBackend.BASELINE_TRANSPORT, TransferBackend.STAGED_COPY),
        "tiers": (TierKind.HOST_DRAM,),
        "load": LOAD,
    }
    return Heartbeat(instance_id=instance_id, **(fields | changes))


def sink_event(sink_id: str = "sink-1", **changes: Any) -> SinkEvent:
    fields = {"tenant": "t", "state": "consumed", "at_us": 1, "payload_bytes": 4096}
    return SinkEvent(event_id=instance(), sink_id=sink_id, **(fields | changes))


def gone(*payload_ids: str, tenant: str = "t") -> tuple[GonePayload, ...]:
    return tuple(GonePayload(tenant, payload_id) for payload_id in payload_ids)


class WallClock(SetClock):
    """A clock whose two readings of wall time agree."""

    def now_us(self) -> int:
        return 1_767_225_600_000_000 + self.us


class Replica:
    """What one API process knows of workers."""

    def __init__(self, database: Database, clock: WallClock | None = None, **hooks: Any) -> None:
        self.clock = clock or WallClock()
        self.database = database
        self.directory = WorkerDirectory(database, self.clock, interval_s=0.01, silence_s=SILENCE_S)
        self.intake = WorkerIntake(
            database,
            self.directory,
            HostAllowList(DEFAULT_WORKER_HOSTS, VARIABLE),
            self.clock,
            silence_s=SILENCE_S,
            **hooks,
        )

    async def beat(self, name: str, instance_id: str, **changes: Any):
        return await self.intake.heartbeat(name, heartbeat(instance_id, **changes))

    async def watch(self, seconds: float) -> None:
        """Time passes, and polls succeed all the while."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            await self.directory.poll()

    def status(
        self,
        name: str = "node-a",
        registered_us: int | None = None,
        tenant: str = "t",
        payload_id: str = "p",
    ) -> str:
        at_us = self.clock.now_us() if registered_us is None else registered_us
        return self.directory.status(name, at_us, tenant, payload_id)


async def make_silent(database: Database, name: str, seconds: float = 60) -> None:
    """As if its last heartbeat had been so long ago."""
    statement = "UPDATE worker SET heartbeat_at = heartbeat_at - :ago * interval '1 second'"
    async with database.write() as session:
        await session.execute(
            text(f"{statement} WHERE name = :name"), {"ago": seconds, "name": name}
        )
