"""What an engine holds after frames of it, in the order in which they came."""

from collections import Counter

from app.engines.events import Batch
from app.engines.fields import WireError
from app.engines.holdings import Holdings
from app.engines.stream import Order, Sequence
from app.engines.wire import decode_batch

StreamKey = tuple[bytes, int | None]


class Stream:
    """One publisher: an engine's data parallel rank on one topic."""

    def __init__(self) -> None:
        self.sequence = Sequence()
        self.holdings = Holdings()


class Replay:
    """Takes frames in and counts what they told."""

    def __init__(self) -> None:
        self._streams: dict[StreamKey, Stream] = {}
        self.frames = 0
        self.events = 0
        # Frames that were there already.
        self.repeated = 0
        # Of frames that could not be read, why, and how often.
        self.refused: Counter[str] = Counter()
        self.skipped_types: Counter[str] = Counter()
        self.unknown_fields: Counter[str] = Counter()

    @property
    def gaps(self) -> int:
        """How often frames were lost, or could not be read, within a stream."""
        return sum(stream.sequence.gaps for stream in self._streams.values())

    @property
    def epochs(self) -> int:
        """How many processes published: one a stream, and one more each time it began anew."""
        return sum(stream.sequence.epoch for stream in self._streams.values())

    @property
    def removed_unknown(self) -> int:
        """Removals of blocks that were not known to be there."""
        return sum(stream.holdings.removed_unknown for stream in self._streams.values())

    def take(self, topic: bytes, number: int, payload: bytes) -> None:
        """Take one frame in. One that cannot be read is as good as lost."""
        self.frames += 1
        try:
            batch = decode_batch(payload)
        except WireError as error:
            self.refused[str(error)] += 1
            self._lost(topic, number, payload)
            return
        stream = self._streams.setdefault((topic, batch.dp_rank), Stream())
        place = stream.sequence.take(number, payload)
        if place.order is Order.AGAIN:
            self.repeated += 1
            return
        if place.order is Order.NEW_EPOCH:
            stream.holdings.drop()
        elif place.order is Order.GAP:
            stream.holdings.doubt()
        self._apply(stream, batch)

    def counts(self, *, doubtful: bool = False) -> dict[str, dict[int, int]]:
        """Blocks by medium and group, over all streams: held, or in doubt since a gap."""
        found: dict[str, Counter[int]] = {}
        for stream in self._streams.values():
            held = stream.holdings.doubtful() if doubtful else stream.holdings.counts()
            for medium, groups in held.items():
                found.setdefault(medium, Counter()).update(groups)
        return {medium: dict(sorted(found[medium].items())) for medium in sorted(found)}

    def _apply(self, stream: Stream, batch: Batch) -> None:
        for event in batch.events:
            stream.holdings.apply(event)
        self.events += len(batch.events)
        self.skipped_types.update(batch.skipped_types)
        self.unknown_fields.update(batch.unknown_fields)

    def _lost(self, topic: bytes, number: int, payload: bytes) -> None:
        """Of which rank it was, nobody can tell: every stream of the topic may have lost it.

        A stream that begins later has missed it by its number.
        """
        for (name, _), stream in self._streams.items():
            if name != topic:
                continue
            place = stream.sequence.take(number, payload)
            if place.order is Order.AGAIN:
                continue
            if place.order is Order.NEW_EPOCH:
                stream.holdings.drop()
            else:
                stream.holdings.doubt()
            if not place.lost:
                stream.sequence.gaps += 1
