"""What a process has of engines: an index that it writes itself, or a view of another's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.clock import Clock, IdSource
from app.db.session import Database
from app.engines.addresses import HOSTS_VARIABLE, EngineAddresses
from app.engines.backed import BackedRegistry
from app.engines.copies import index_of
from app.engines.directory import EngineDirectory
from app.engines.intake import EngineIntake
from app.engines.matching import EngineMatcher
from app.engines.mirror import EngineMirror
from app.engines.port_client import ForwardedIntake, IndexPortClient
from app.engines.service import Engines, EngineService
from app.engines.spaces import Spaces
from app.host_list import HostAllowList
from app.index.matcher import StateIndex
from app.index.registry import StateRegistry
from app.index.scopes import TenantHashing
from app.settings import Settings
from nexuskv_core import BlockIndex


class Follower(Protocol):
    """What keeps the engines up to date in the background."""

    def start(self) -> None:
        """Begins."""

    async def stop(self) -> None:
        """Ends."""

    async def wait_loaded(self) -> None:
        """Returns once engines are known, or the writer of the index is given up for now."""


@dataclass(frozen=True, slots=True)
class EngineParts:
    """`stats` are those of the index; `port` is None where this process writes it."""

    engines: Engines
    intake: EngineService
    matcher: EngineMatcher
    follower: Follower
    stats: Callable[[], Mapping[str, int]]
    port: IndexPortClient | None = None


@dataclass(frozen=True, slots=True)
class OwnIndex:
    """The index and what is written to it."""

    core: BlockIndex
    spaces: Spaces
    directory: EngineDirectory
    intake: EngineIntake


def own_index(
    settings: Settings,
    database: Database,
    clock: Clock,
    ids: IdSource,
    hashing: TenantHashing,
    *,
    shared: bool = False,
) -> OwnIndex:
    """`shared`: in memory that other processes may read."""
    core, copies = index_of(settings, clock, hashing, shared=shared)
    spaces = Spaces(hashing)
    directory = EngineDirectory(
        database,
        clock,
        core,
        spaces,
        interval_s=settings.sync_interval_s,
        stale_s=settings.engine_stale_s,
        copies=copies,
    )
    hosts = HostAllowList(settings.engine_hosts, HOSTS_VARIABLE)
    addresses = EngineAddresses(hosts, settings.engine_schemes)
    # Nobody asks its index of states: who answers requests follows the table.
    states = BackedRegistry(StateRegistry(database, StateIndex(hashing), clock, ids))
    intake = EngineIntake(database, directory, addresses, states, clock)
    return OwnIndex(core, spaces, directory, intake)


def engine_parts(
    settings: Settings, database: Database, clock: Clock, ids: IdSource, hashing: TenantHashing
) -> EngineParts:
    """Of an API process; a reader of another's index where the settings name its socket."""
    if settings.index_socket is not None:
        return _reading(settings.index_socket, settings, clock, hashing)
    own = own_index(settings, database, clock, ids, hashing)
    directory = own.directory
    matcher = EngineMatcher(own.core, directory, own.spaces, stale_after_us=directory.stale_us)
    return EngineParts(directory, own.intake, matcher, directory, own.core.stats)


def _reading(socket: Path, settings: Settings, clock: Clock, hashing: TenantHashing) -> EngineParts:
    mirror = EngineMirror(clock, round(settings.engine_stale_s * 1_000_000))
    client = IndexPortClient(socket, mirror)
    # Until a writer is there it reads an index in which nothing is.
    matcher = EngineMatcher(
        BlockIndex(max_blocks=1),
        mirror,
        Spaces(hashing),
        stale_after_us=mirror.stale_us,
        away=mirror.away,
    )
    mirror.follow = matcher.follow
    return EngineParts(mirror, ForwardedIntake(client), matcher, client, mirror.stats, client)
