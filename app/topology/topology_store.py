"""Versions of the topology: each put whole, never changed; the highest is in force."""

import asyncio
from hashlib import sha256
from typing import Final

from app.clock import Clock
from app.contract.limits import MAX_I63
from app.contract.messages import check_message
from app.db.session import Database
from app.errors import ErrorCode, NexusError
from app.topology.document import MAX_TOPOLOGY_BYTES, canonical_bytes, load_topology
from app.topology.topology_repository import (
    StoredTopology,
    TopologySummary,
    insert_topology,
    latest_summary,
    latest_version,
    lock_topology,
    topologies_page,
    topology_by_version,
)

# `expected` of `put` when the caller requires that nothing was ever put.
NO_TOPOLOGY: Final = 0
# A large document takes a thread a second; others wait their turn.
_READS_AT_ONCE: Final = 1


class TopologyStore:
    """The stored topologies. Every method raises DATABASE_UNAVAILABLE when Postgres is away."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    async def put(
        self,
        text: bytes | str,
        author: str,
        message: str | None = None,
        *,
        expected: frozenset[int] | None = None,
    ) -> tuple[TopologySummary, bool]:
        """Make a document the topology in force, for every replica within their next poll; its
        version, and whether that is new.

        Putting what is in force changes nothing, so that a retry is safe, whatever `expected` says.
        `expected` holds the versions one of which must be in force (NO_TOPOLOGY for none yet):
        TOPOLOGY_CHANGED when it is another. Raises what `load_topology` raises, with every finding.
        """
        check_message(message)
        async with self._reads:
            document, digest = await asyncio.to_thread(_canonical, text)
        async with self._database.write() as session:
            await lock_topology(session)
            before = await latest_summary(session)
            if before is not None and before.content_sha256 == digest:
                return before, False
            version = NO_TOPOLOGY if before is None else before.version
            if expected is not None and version not in expected:
                raise _changed(version)
            stored = await insert_topology(
                session,
                content_sha256=digest,
                document=document,
                now=self._clock.now(),
                key_id=author,
                message=message,
            )
        return stored, True

    async def get(self, version: int) -> tuple[StoredTopology, int] | None:
        """One version, and the latest; None when there is none."""
        if not 1 <= version <= MAX_I63:
            return None
        async with self._database.read() as session:
            stored = await topology_by_version(session, version)
            return None if stored is None else (stored, await latest_version(session))

    async def latest(self) -> StoredTopology | None:
        """What is in force for every replica; None when nothing was ever put."""
        async with self._database.read() as session:
            return await topology_by_version(session, await latest_version(session))

    async def page(self, after: int | None, limit_rows: int) -> tuple[list[TopologySummary], int]:
        """At most `limit_rows` versions below the version `after`, newest first, and the latest."""
        async with self._database.read() as session:
            latest = await latest_version(session)
            return await topologies_page(session, after, limit_rows), latest


def _canonical(text: bytes | str) -> tuple[str, bytes]:
    """What is stored of a document, and its digest.

    Raises REQUEST_TOO_LARGE also where only what is stored, which every process reads, would be.
    """
    document = canonical_bytes(load_topology(text))
    if len(document) > MAX_TOPOLOGY_BYTES:
        limit = f"The document must have at most {MAX_TOPOLOGY_BYTES} bytes, each number as 1.0"
        raise NexusError(ErrorCode.REQUEST_TOO_LARGE, limit)
    return document.decode(), sha256(document).digest()


def no_topology(version: int) -> NexusError:
    return NexusError(
        ErrorCode.NOT_FOUND,
        "There is no such topology; GET /v1/topology/versions lists them",
        internal=f"topology {version}",
    )


def _changed(version: int) -> NexusError:
    now = "none" if version == NO_TOPOLOGY else f"version {version}"
    return NexusError(
        ErrorCode.TOPOLOGY_CHANGED,
        f"The topology in force is not the expected one: it is {now}. GET /v1/topology, then "
        "decide again",
    )
