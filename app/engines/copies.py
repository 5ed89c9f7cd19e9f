"""Copies of the index in a file, so that what engines told is there after a restart.

A copy says of each engine which frame was the last one. What it holds is not known before it is
proven that no frame is missing since: the copy is hidden until then. One that cannot be used is
refused, and the index begins empty.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Final

import msgspec
import structlog

from app.clock import Clock
from app.engines.registration import EngineKey, EngineSpec
from app.engines.views import EngineView, SavedView
from app.errors import NexusError
from app.index.scopes import TenantHashing
from app.settings import Settings
from nexuskv_core import IMPLEMENTATION, BlockIndex
from nexuskv_core.snapshots import SnapshotError

_FORMAT: Final = 1
# What the first lines of a copy have room for; and what that may come to.
_MAX_PACKED_BYTES: Final = 500_000
_MAX_BYTES: Final = 64 * 1024 * 1024
_MODE: Final = 0o600
_US_PER_S: Final = 1_000_000
log = structlog.get_logger("nexuskv.index")


class _Saved(msgspec.Struct, frozen=True):
    key: EngineKey
    # Of the registration; its salts are not for a file.
    spec: bytes
    view: SavedView


class _Contents(msgspec.Struct, frozen=True):
    """`check` tells the deployment by its secret. `leaving`: streams that are nobody's any more."""

    format: int
    check: bytes
    engines: list[_Saved]
    leaving: list[int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Contents)


class Copies:
    """Gives engines back what they had in the copy that was read, and writes new ones."""

    def __init__(
        self,
        path: Path,
        core: BlockIndex,
        hashing: TenantHashing,
        clock: Clock,
        *,
        interval_s: float,
        read: _Contents | None = None,
    ) -> None:
        self._path = path
        self._core = core
        self._hashing = hashing
        self._clock = clock
        self._interval_s = interval_s
        self._written: bytes | None = None
        # Of a copy that was read, whose deployment is not asked yet.
        self._check = None if read is None else read.check
        self._read = {} if read is None else {one.key: one for one in read.engines}
        self._foreign = False
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if read is not None:
            self._close(read.leaving)

    # ---- what was read

    def claim(self, view: EngineView) -> None:
        """Resume a view that begins, where the copy has its engine, registered as it is now."""
        saved = self._read.pop(view.spec.key, None)
        if saved is None:
            return
        try:
            if not self._ours():
                self._close_all([saved])
                self.abandon()
                return
            if saved.spec == _digest(view.spec):
                view.resume(saved.view)
                return
        except (NexusError, ValueError) as error:
            log.warning("engine_not_resumed", instance_id=view.spec.instance_id, cause=str(error))
        self._close_all([saved])

    def abandon(self) -> None:
        """All engines are known: what nobody claimed leaves the index."""
        with suppress(NexusError):
            # Also where no engine is registered that it could be refused to.
            self._ours()
        left = list(self._read.values())
        self._read.clear()
        self._close_all(left)

    def _ours(self) -> bool:
        """Whether the copy is of this deployment. Raises as TenantHashing."""
        if self._check is not None and self._check != _check_of(self._hashing):
            log.warning("block_index_copy_refused", cause="it is of another deployment")
            self._foreign = True
        self._check = None
        return not self._foreign

    def _close_all(self, engines: Iterable[_Saved]) -> None:
        for one in engines:
            self._close(one.view.shelves.streams())

    def _close(self, streams: Iterable[int]) -> None:
        for stream in streams:
            self._core.close_stream(stream)

    # ---- what is written

    def start(self, save: Callable[[], Awaitable[None]]) -> None:
        """Calls `save` now and then, until `stop`."""
        self._task = asyncio.create_task(self._run(save), name="copies of the index")

    async def stop(self) -> None:
        """Returns once no copy is being written."""
        self._ending.set()
        if self._task is not None:
            await self._task

    async def save(self, views: Sequence[EngineView], leaving: Sequence[int]) -> None:
        """Write a copy if something changed. Nothing may be stored meanwhile. `leaving`: streams
        that are none of these views', and still open."""
        engines = [
            _Saved(view.spec.key, _digest(view.spec), saved)
            for view in views
            if (saved := view.saved()) is not None
        ]
        contents = _Contents(_FORMAT, _check_of(self._hashing), engines, list(leaving))
        encoded = _encoder.encode(contents)
        if encoded == self._written:
            return
        packed = zlib.compress(encoded, 6)
        if len(packed) > _MAX_PACKED_BYTES or len(encoded) > _MAX_BYTES:
            log.warning("block_index_not_saved", cause="engines have too many places for a copy")
            return
        began_us = self._clock.monotonic_us()
        try:
            # Frames wait for it: nobody who ends this may leave it half done.
            await _finished(asyncio.to_thread(self._write, packed))
        except OSError as error:
            log.warning("block_index_not_saved", cause=str(error))
            return
        self._written = encoded
        log.info(
            "block_index_saved",
            engines=len(engines),
            blocks=self._core.stats()["blocks"],
            seconds=(self._clock.monotonic_us() - began_us) / _US_PER_S,
        )

    def _write(self, packed: bytes) -> None:
        self._core.snapshot(self._path, packed)
        self._path.chmod(_MODE)

    async def _run(self, save: Callable[[], Awaitable[None]]) -> None:
        while not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._ending.wait()
                    return
            try:
                await save()
            except Exception:
                # Without copies a restart costs more; nothing else depends on them.
                log.exception("block_index_not_saved")


def index_of(
    settings: Settings, clock: Clock, hashing: TenantHashing, *, shared: bool
) -> tuple[BlockIndex, Copies | None]:
    """The index of the copy that the settings name, or an empty one; no Copies without a file."""
    empty = BlockIndex(
        max_blocks=settings.block_index_blocks,
        max_bytes=settings.block_index_bytes,
        shared=shared,
    )
    path = settings.block_index_file
    if path is None:
        return empty, None
    if IMPLEMENTATION != "compiled":
        log.warning("block_index_not_saved", cause="the plain-Python index writes no copies")
        return empty, None
    core, read = empty, None
    began_us = clock.monotonic_us()
    try:
        core, read = _read(path, empty, shared=shared)
    except FileNotFoundError:
        log.info("block_index_begun", cause="no copy is there")
    except (OSError, ValueError, KeyError, TypeError, MemoryError, zlib.error) as error:
        log.warning("block_index_copy_refused", path=str(path), cause=str(error))
    else:
        log.info(
            "block_index_restored",
            engines=len(read.engines),
            blocks=core.stats()["blocks"],
            seconds=(clock.monotonic_us() - began_us) / _US_PER_S,
        )
    return core, Copies(
        path, core, hashing, clock, interval_s=settings.block_index_save_s, read=read
    )


def _read(path: Path, empty: BlockIndex, *, shared: bool) -> tuple[BlockIndex, _Contents]:
    """Raises as BlockIndex.restore, and ValueError for a copy that these settings cannot use."""
    if not S_ISREG(path.stat().st_mode):
        # A pipe would be waited for.
        raise SnapshotError("it is no regular file")
    core, packed = BlockIndex.restore(path, shared=shared)
    stats, wanted = core.stats(), empty.stats()
    for name in ("max_blocks", "max_bytes"):
        if stats[name] != wanted[name]:
            raise SnapshotError(f"its {name} is {stats[name]}, not {wanted[name]}")
    unpack = zlib.decompressobj()
    read = _decoder.decode(unpack.decompress(packed, _MAX_BYTES))
    if read.format != _FORMAT:
        raise SnapshotError(f"it is of format {read.format}, not {_FORMAT}")
    return core, read


async def _finished(work: Awaitable[None]) -> None:
    """Await it to its end, also when cancelled; then that is raised."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _check_of(hashing: TenantHashing) -> bytes:
    """Tells the deployment's secret without saying it; no tenant has an empty name."""
    return hashing.block_key(("",), ("a copy of the block index",))


def _digest(spec: EngineSpec) -> bytes:
    """Equal for equal registrations."""
    encoded = msgspec.msgpack.encode(spec, order="deterministic")
    return blake2b(encoded, digest_size=16).digest()
