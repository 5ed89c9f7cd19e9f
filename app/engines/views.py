"""What one publisher told, as far as it is known: its frames in order, its blocks in the index.

A view that missed something says so: what an engine holds is then unknown, until it clears all or
begins anew. What it stores from then on is held all the same.
"""

from collections import Counter, OrderedDict
from enum import StrEnum
from itertools import repeat
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

from app.engines.events import NOWHERE, Batch, Cleared, Event, Origin, PackedHashes, Removed, Stored
from app.engines.fields import WireError
from app.engines.origins import Origins
from app.engines.registration import EngineSpec
from app.engines.shelves import Group, Lane, SavedShelves, Shelves
from app.engines.spaces import Spaces
from app.engines.stream import Order, Sequence, Taken
from app.engines.tallies import MAX_COUNT, Tallies, add_names, plus
from app.engines.wire import decode_batch
from nexuskv_core import BlockIndex, IndexFullError

# Frames that are known again, so that one that comes late a second time is no restart.
_RECENT_FRAMES: Final = 256


class ViewState(StrEnum):
    """What can be said of an engine's blocks."""

    PENDING = "pending"  # no frame yet
    LIVE = "live"  # everything that it told is here
    UNKNOWN = "unknown"  # frames are missing: it may hold more than is known, and nothing else
    STALE = "stale"  # nothing was heard for too long; by the clock of who asks


_STATE_NUMBERS: Final = {state: number for number, state in enumerate(ViewState)}


class ViewStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A view at one moment. Times are microseconds since 1970, None before there was one."""

    state: ViewState
    epoch: int
    last_sequence: int | None
    frames: int
    repeated_frames: int
    gaps: int
    lost_frames: int
    refused_frames: int
    last_refusal: str | None
    # Of another data parallel rank than is registered, and the one seen last.
    other_rank_frames: int
    other_rank: int | None
    events: dict[str, int]
    skipped_types: dict[str, int]
    unknown_fields: dict[str, int]
    # By medium and group.
    blocks: dict[str, dict[int, int]]
    groups: dict[int, Group]
    # The block size of the last store that had another one than is registered.
    other_block_tokens: int | None
    # Engine hashes that came as bytes.
    byte_names: int
    quarantined: int
    quarantine_bytes: int
    quarantine_dropped: int
    tallies: Tallies
    # Blocks of events that were another one's, by why, and events that are missing by their own
    # numbers.
    left_out: dict[str, int]
    lost_events: int
    # Frames that the index had no room for; each is as good as lost.
    index_full: int
    last_frame_at_us: int | None
    last_event_at_us: int | None
    # By the publisher's clock, of its last frame that said so, and ours minus it.
    publisher_at_us: int | None
    lag_us: int | None
    # What it holds is of a copy, and not shown before the next frame proves that none is missing.
    awaits_proof: bool = False


class SavedView(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of the index says of a view."""

    state: ViewState
    epoch: int
    # The frame taken last, and its digest.
    number: int
    digest: int
    last_frame_at_us: int | None
    lag_us: int | None
    shelves: SavedShelves
    backend: str | None = None


class EngineView:
    """One publisher's frames, one after the other, on the event loop's thread."""

    def __init__(self, spec: EngineSpec, core: BlockIndex, spaces: Spaces) -> None:
        self.spec = spec
        self.state = ViewState.PENDING
        # From 1, one more with each process of the engine; 0 before the first frame.
        self.epoch = 0
        self.last_sequence: int | None = None
        # When the last frame came, and by how much the publisher's clock was behind ours then.
        self.last_frame_at_us: int | None = None
        # Of a frame, or of a connection over which the next one would have come.
        self.heard_at_us: int | None = None
        self.lag_us: int | None = None
        self._spaces = spaces
        self._shelves = Shelves(spec, core, spaces)
        self._origins = Origins(spec)
        # What it was when it was saved, until it is proven that no frame is missing since.
        self._resumed: ViewState | None = None
        self._sequence = Sequence()
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._frames = 0
        self._repeated = 0
        self._lost_frames = 0
        self._lost_events = 0
        self._refused = 0
        self._last_refusal: str | None = None
        self._other_rank_frames = 0
        self._other_rank: int | None = None
        self._other_block_tokens: int | None = None
        self._byte_names = 0
        self._index_full = 0
        self._events: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()
        self._unknown_fields: Counter[str] = Counter()
        self._last_event_at_us: int | None = None
        self._publisher_at_us: int | None = None

    # ---- what queries read

    @property
    def lanes(self) -> list[Lane]:
        """Its streams in the index."""
        return [] if self.awaits_proof else list(self._shelves.lanes.values())

    @property
    def groups(self) -> dict[int, Group]:
        """Its KV cache groups by number, as its events describe them. Not to be changed."""
        return self._shelves.groups

    def state_at(self, now_us: int, stale_after_us: int) -> ViewState:
        """`state`, or STALE where nothing was heard for longer than that."""
        heard = self.heard_at_us
        if heard is not None and now_us - heard > stale_after_us and self.state is ViewState.LIVE:
            return ViewState.STALE
        return self.state

    # ---- copies

    @property
    def awaits_proof(self) -> bool:
        """Whether what it holds is of a copy, and not known to be there still."""
        return self._resumed is not None

    @property
    def tail(self) -> tuple[int, int] | None:
        """Number and digest of the frame taken last."""
        return self._sequence.tail

    @property
    def streams(self) -> list[int]:
        """All that are its own in the index, also those that no query is to see."""
        return [lane.stream for lane in self._shelves.lanes.values()]

    def saved(self) -> SavedView | None:
        """For a copy of the index; None for one that has told nothing."""
        if self._sequence.tail is None:
            return None
        number, digest = self._sequence.tail
        return SavedView(
            state=self._resumed or self.state,
            epoch=self.epoch,
            number=number,
            digest=digest,
            last_frame_at_us=self.last_frame_at_us,
            lag_us=self.lag_us,
            shelves=self._shelves.saved(),
            backend=self._origins.backend,
        )

    def resume(self, saved: SavedView) -> None:
        """Begin as it was saved, and unknown until the next frame, or the last one once more, shows
        that nothing is missing. For a view that has told nothing.

        Raises ValueError where the index is not as it was, and as TenantHashing.
        """
        self._shelves.resume(saved.epoch, saved.shelves)
        self._origins.backend = saved.backend
        self._sequence.resume(saved.epoch, saved.number, saved.digest)
        self._recent[saved.number] = saved.digest
        self.epoch, self.last_sequence = saved.epoch, saved.number
        self.last_frame_at_us, self.lag_us = saved.last_frame_at_us, saved.lag_us
        self.state, self._resumed = ViewState.UNKNOWN, saved.state

    def confirm(self, now_us: int) -> None:
        """The process that published its last frame is there still: it is as it was."""
        if self._resumed is None or self.last_sequence is None:
            return
        self._show()
        self.heard_at_us = now_us
        at_us = self.last_frame_at_us or now_us
        self._shelves.progress(self.last_sequence, at_us, _STATE_NUMBERS[self.state])

    def _show(self) -> None:
        if self._resumed is not None:
            self.state, self._resumed = self._resumed, None
            self._spaces.changes += 1

    # ---- frames

    def missing(self, number: int, payload: bytes | None = None) -> range | None:
        """The frames that were lost before this one, None where it is next or was there before.

        To be taken first, in their order, by whoever can get them: a frame that is taken while
        frames before it are missing ends what is known of the engine. Only by its payload a number
        that was there can be told from a restarted publisher's; without, it is taken for the same.
        """
        last = self._sequence.last
        before = self._recent.get(number)
        if before is not None and (payload is None or xxh3_64_intdigest(payload) == before):
            return None
        first = 0 if last is None or number <= last else last + 1
        return range(first, number) if number > first else None

    def take(self, number: int, payload: bytes, *, now_us: int) -> Taken:
        """Take a frame in; `now_us` is when it came, in microseconds since 1970."""
        digest = xxh3_64_intdigest(payload)
        if self._recent.get(number) == digest:
            self.confirm(now_us)
            self._heard(now_us)
            self._repeated += 1
            return Taken(Order.AGAIN)
        batch: Batch | None = None
        refused = None
        try:
            batch = decode_batch(payload)
        except WireError as error:
            refused = str(error)
        if batch is not None and batch.of_another(self.spec.dp_rank):
            self._other_rank_frames += 1
            self._other_rank = batch.dp_rank
            return Taken(None, refused=f"a frame of data parallel rank {batch.dp_rank}, not of "
                         f"{self.spec.dp_rank}")  # fmt: skip
        self._heard(now_us)
        self._frames += 1
        order, lost = self._sequence.take(number, payload)
        self.epoch, self.last_sequence = self._sequence.epoch, number
        self._remember(order, number, digest)
        self._order(order, lost)
        if batch is None:
            self._refused += 1
            self._last_refusal = refused
            self._doubt()
        else:
            self._apply(batch, now_us)
        self._shelves.progress(number, now_us, _STATE_NUMBERS[self.state])
        return Taken(order, 0 if batch is None else len(batch.events), lost, refused)

    def alive(self, now_us: int) -> None:
        """Its connection stands, and nothing is missing: silence means that nothing changed."""
        self.heard_at_us = now_us

    def expect_anew(self) -> None:
        """All frames come once more, from the first one on: a new epoch, also where it is not."""
        self._recent.clear()

    def doubt(self) -> None:
        """Something of it was lost that no sequence tells of."""
        self._doubt()

    def close(self) -> None:
        """The engine is not registered any more: nothing of it is in the index."""
        self._begin(same_process=False)
        self.state = ViewState.PENDING

    def status(self) -> ViewStatus:
        """Everything there is to say; it walks over its places, and is for people."""
        shelves = self._shelves
        return ViewStatus(
            state=self.state,
            epoch=self.epoch,
            last_sequence=self.last_sequence,
            frames=self._frames,
            repeated_frames=self._repeated,
            gaps=self._sequence.gaps,
            lost_frames=self._lost_frames,
            refused_frames=self._refused,
            last_refusal=self._last_refusal,
            other_rank_frames=self._other_rank_frames,
            other_rank=self._other_rank if self._other_rank_frames else self._origins.other_rank,
            events=dict(self._events),
            skipped_types=dict(self._skipped),
            unknown_fields=dict(self._unknown_fields),
            blocks={} if self.awaits_proof else shelves.blocks(),
            groups=dict(shelves.groups),
            other_block_tokens=self._other_block_tokens,
            byte_names=self._byte_names,
            quarantined=shelves.quarantine.blocks,
            quarantine_bytes=shelves.quarantine.held_bytes,
            quarantine_dropped=shelves.quarantine.dropped,
            tallies=msgspec.structs.replace(shelves.tallies),
            left_out=dict(self._origins.left_out),
            lost_events=self._lost_events,
            index_full=self._index_full,
            last_frame_at_us=self.last_frame_at_us,
            last_event_at_us=self._last_event_at_us,
            publisher_at_us=self._publisher_at_us,
            lag_us=self.lag_us,
            awaits_proof=self.awaits_proof,
        )

    # ---- inside

    def _heard(self, now_us: int) -> None:
        self.last_frame_at_us = self.heard_at_us = now_us

    def _remember(self, order: Order, number: int, digest: int) -> None:
        if order is Order.NEW_EPOCH:
            self._recent.clear()
        self._recent[number] = digest
        if len(self._recent) > _RECENT_FRAMES:
            self._recent.popitem(last=False)

    def _order(self, order: Order, lost: int) -> None:
        self._lost_frames = plus(self._lost_frames, lost)
        if order is Order.NEW_EPOCH:
            self._begin(same_process=False)
            self.state = ViewState.UNKNOWN if lost else ViewState.LIVE
        elif lost:
            self._doubt()
        elif self.state is ViewState.PENDING:
            self._begin(same_process=False)
            self.state = ViewState.LIVE
        else:
            self._show()

    def _doubt(self) -> None:
        """Nothing is known to be there: its streams are closed, new ones open as it stores."""
        self._begin(same_process=True)
        self.state = ViewState.UNKNOWN

    def _begin(self, *, same_process: bool) -> None:
        self._resumed = None
        self._shelves.begin(self.epoch, same_process=same_process)
        self._origins.begin(same_process=same_process)

    def _apply(self, batch: Batch, now_us: int) -> None:
        if batch.at_s > 0:
            self._publisher_at_us = min(int(batch.at_s * 1_000_000), MAX_COUNT)
            self.lag_us = now_us - self._publisher_at_us
        if batch.events:
            self._last_event_at_us = now_us
        add_names(self._skipped, batch.skipped_types)
        add_names(self._unknown_fields, batch.unknown_fields)
        origins = batch.origins or repeat(NOWHERE)
        for event, said in zip(batch.events, origins, strict=False):
            own = event if said is NOWHERE else self._judged(event, said)
            if own is None:
                continue
            self._events[type(event).__name__] += 1
            try:
                self._shelves.apply(own)
            except (IndexFullError, MemoryError):
                # Part of the event may be there: as good as a lost frame.
                self._index_full += 1
                self._doubt()
                return
            except Exception:
                self._doubt()
                raise
            if not isinstance(own, Cleared):
                self._note_hashes(own)
            elif own.medium is own.tenant is None and self.state is ViewState.UNKNOWN:
                self.state = ViewState.LIVE

    def _judged(self, event: Event, said: Origin) -> Event | None:
        """None for another one's. A hole in the events' own numbers is as good as lost frames."""
        own, missing = self._origins.judge(event, said)
        if missing:
            self._lost_events = plus(self._lost_events, missing)
            self._sequence.gaps += 1
            self._doubt()
        return own

    def _note_hashes(self, event: Stored | Removed) -> None:
        hashes = event.hashes
        if not isinstance(hashes, PackedHashes) and hashes and isinstance(hashes[0], bytes):
            self._byte_names += 1
        if isinstance(event, Stored) and event.block_size not in (0, self.spec.block_tokens):
            self._other_block_tokens = event.block_size
