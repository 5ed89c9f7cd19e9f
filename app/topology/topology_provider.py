"""The topology in force in this process: `current` is one attribute, replaced whole by a poll.

Whoever took `current` keeps it. What cannot be read never comes into force; the last good one
stays.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

import structlog

from app.clock import Clock
from app.contract.enums import TierKind
from app.db.follow import DEFAULT_INTERVAL_S, Follower
from app.db.session import Database
from app.errors import NexusError
from app.planner.links import NO_LINKS, Link, Links
from app.topology.document import Engine, TopologyDocument, load_topology
from app.topology.topology_repository import (
    StoredTopology,
    latest_version,
    topology_below,
    topology_by_version,
)

_log = structlog.get_logger("nexuskv.topology")


class TierCapacity(NamedTuple):
    """How much a tier of a node holds, and how many transfers it takes at once; 0 is no limit."""

    capacity_bytes: int
    max_in_flight: int


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology as it is in force; `version` is None while nothing was ever put.

    `engine_nodes` and `engines` are by engine id, `tiers` by node and tier.
    """

    version: int | None = None
    links: Links = NO_LINKS
    engine_nodes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    tiers: Mapping[tuple[str, TierKind], TierCapacity] = field(
        default_factory=lambda: MappingProxyType({})
    )
    engines: Mapping[str, Engine] = field(default_factory=lambda: MappingProxyType({}))


NO_TOPOLOGY_YET = Topology()


class UnreadableError(Exception):
    """A stored topology that this build cannot use."""


@dataclass(frozen=True, slots=True)
class TopologyFault:
    """A stored version that could not come into force, why, and since when."""

    version: int
    reason: str
    since: datetime


@dataclass(frozen=True, slots=True)
class TopologyStatus:
    """How sure this process is of its topology. `fault` is None while the latest is in force."""

    version: int | None
    loaded: bool
    stale_s: float
    fault: TopologyFault | None


class TopologyProvider(Follower):
    """Follows the latest version. Postgres away: the last known topology stays in force.

    `changes` counts how often another one came into force.
    """

    def __init__(
        self, database: Database, clock: Clock, *, interval_s: float = DEFAULT_INTERVAL_S
    ) -> None:
        super().__init__("topology", self._follow, clock, interval_s=interval_s)
        self._database = database
        self._now = clock.now
        self._seen = 0
        self._fault: TopologyFault | None = None
        self.changes = 0
        self.current = NO_TOPOLOGY_YET

    def status(self) -> TopologyStatus:
        return TopologyStatus(self.current.version, self.loaded, self.stale_s(), self._fault)

    async def _follow(self) -> None:
        async with self._database.read() as session:
            latest = await latest_version(session)
            if latest == self._seen:
                return
            stored = await topology_by_version(session, latest)
        if stored is None or latest < self._seen:
            # Another database, or an older copy of it: what is known is not from there.
            self._adopt(NO_TOPOLOGY_YET)
        if stored is not None:
            await self._load(stored)
        self._seen = latest

    async def _load(self, stored: StoredTopology) -> None:
        try:
            self._adopt(await _loaded(stored))
        except UnreadableError as error:
            # Written by a newer build, say: this one does not know all of it.
            self._refuse(stored.version, str(error))
            if self.current.version is None:
                await self._load_older(stored.version)

    async def _load_older(self, version: int) -> None:
        """A process that has just started takes the newest that it can read."""
        while version:
            async with self._database.read() as session:
                stored = await topology_below(session, version)
            if stored is None:
                return
            version = stored.version
            with suppress(UnreadableError):
                found, fault = await _loaded(stored), self._fault
                self._adopt(found)
                self._fault = fault
                return

    def _adopt(self, found: Topology) -> None:
        self._fault = None
        self.current, before = found, self.current
        self.changes += 1
        _log.info("topology_in_force", version=found.version, before=before.version)

    def _refuse(self, version: int, reason: str) -> None:
        self._fault = TopologyFault(version, reason, self._now())
        _log.error(
            "topology_not_usable",
            version=version,
            reason=reason,
            in_force=self.current.version,
        )


def topology_of(document: TopologyDocument, version: int | None) -> Topology:
    """The document as plans use it. Takes tens of milliseconds where it is large."""
    known = {
        pair: Link(
            latency_us=link.latency_us,
            bytes_per_us=link.bandwidth_bytes_per_us,
            max_in_flight=link.max_in_flight,
        )
        for link in document.links
        for pair in link.directions()
    }
    return Topology(
        version,
        Links([node.name for node in document.nodes], known),
        MappingProxyType({one.engine_id: one.node for one in document.engines}),
        MappingProxyType(
            {
                (one.node, one.tier): TierCapacity(one.capacity_bytes, one.max_in_flight)
                for one in document.tiers
            }
        ),
        MappingProxyType({one.engine_id: one for one in document.engines}),
    )


async def _loaded(stored: StoredTopology) -> Topology:
    """Raises UnreadableError, whose text says why."""
    try:
        return await asyncio.to_thread(_read, stored)
    except NexusError as error:
        raise UnreadableError(error.message) from error


def _read(stored: StoredTopology) -> Topology:
    if sha256(stored.document.encode()).digest() != stored.content_sha256:
        raise UnreadableError("the stored document differs from its digest")
    return topology_of(load_topology(stored.document), stored.version)
