"""Stores that cannot be placed: blocks whose parent nobody has told of, and blocks of nobody."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.engines.events import Stored

# Of one publisher. A token takes 4 bytes.
MAX_WAITING_BLOCKS: Final = 65_536
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
MAX_OUTSIDERS: Final = 65_536
_EVENT_BYTES: Final = 512
_NAME_BYTES: Final = 128


class Waiting:
    """A store, the u64 names of its parent and blocks, and those that were removed meanwhile."""

    __slots__ = ("event", "held_bytes", "names", "parent", "removed")

    def __init__(self, event: Stored, parent: int, names: Sequence[int]) -> None:
        self.event = event
        self.parent = parent
        self.names = names
        self.removed: set[int] = set()
        self.held_bytes = _EVENT_BYTES + len(event.tokens) + _NAME_BYTES * len(names)

    @property
    def gone(self) -> bool:
        """Whether nothing of it is there any more."""
        return len(self.removed) >= len(set(self.names))


class Quarantine:
    """Stores that wait for their parent, oldest first; the oldest make room for new ones.

    They are never placed anywhere else: a chain without its beginning is another chain.
    """

    def __init__(
        self, max_blocks: int = MAX_WAITING_BLOCKS, max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._max_blocks = max_blocks
        self._max_bytes = max_bytes
        # In the order in which they came: what a dictionary keeps.
        self._waiting: dict[Waiting, None] = {}
        self._by_parent: dict[int, dict[Waiting, None]] = {}
        self._by_name: dict[int, dict[Waiting, None]] = {}
        self._latest: dict[tuple[int, int, str, int], Waiting] = {}
        self.blocks = 0
        self.held_bytes = 0
        # Blocks that made room and were not placed.
        self.dropped = 0

    def __len__(self) -> int:
        """Stores that wait."""
        return len(self._waiting)

    def add(self, event: Stored, parent: int, names: Sequence[int]) -> None:
        """Keep a store until `adopt` is told of its parent. The same store again is there again."""
        key = (parent, names[0], event.medium, event.group)
        before = self._latest.get(key)
        if before is not None and before.event == event:
            before.removed.clear()
            return
        added = self._latest[key] = Waiting(event, parent, names)
        self._waiting[added] = None
        self._by_parent.setdefault(parent, {})[added] = None
        for name in names:
            self._by_name.setdefault(name, {})[added] = None
        self.blocks += len(names)
        self.held_bytes += added.held_bytes
        while self.blocks > self._max_blocks or self.held_bytes > self._max_bytes:
            oldest = next(iter(self._waiting))
            self.dropped += len(oldest.names)
            self._forget(oldest)

    def adopt(self, names: Iterable[int]) -> list[Waiting]:
        """The stores that waited for one of these, which wait no more."""
        found = [one for name in names for one in self._by_parent.get(name, ())]
        for one in found:
            self._forget(one)
        return found

    def remove(
        self, names: Iterable[int], medium: str, group: int, tenant: str | None = None
    ) -> int:
        """Blocks that are no more at this place; how many of them waited."""
        removed = 0
        for name in names:
            for one in list(self._by_name.get(name, ())):
                event = one.event
                if (event.medium, event.group) != (medium, group):
                    continue
                if tenant not in (None, event.tenant):
                    continue
                removed += name not in one.removed
                one.removed.add(name)
                if one.gone:
                    self._forget(one)
        return removed

    def clear(self, medium: str | None = None, tenant: str | None = None) -> None:
        """Nothing is there any more; at one medium, of one tenant, where it is named."""
        for one in list(self._waiting):
            if medium in (None, one.event.medium) and tenant in (None, one.event.tenant):
                self._forget(one)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting)

    def _forget(self, one: Waiting) -> None:
        if one not in self._waiting:
            return
        del self._waiting[one]
        self.blocks -= len(one.names)
        self.held_bytes -= one.held_bytes
        key = (one.parent, one.names[0], one.event.medium, one.event.group)
        if self._latest.get(key) is one:
            del self._latest[key]
        _unlist(self._by_parent, one.parent, one)
        for name in set(one.names):
            _unlist(self._by_name, name, one)


class Outsiders:
    """Names of blocks that are nobody's here, so that those that follow them are known, too.

    The latest are kept; what follows an older one waits in vain in the quarantine.
    """

    def __init__(self, max_names: int = MAX_OUTSIDERS) -> None:
        self._max_names = max_names
        self._names: dict[int, None] = {}

    def __contains__(self, name: int) -> bool:
        return name in self._names

    def add(self, names: Iterable[int]) -> None:
        for name in names:
            self._names.pop(name, None)
            self._names[name] = None
        while len(self._names) > self._max_names:
            del self._names[next(iter(self._names))]

    def clear(self) -> None:
        self._names.clear()


def _unlist(lists: dict[int, dict[Waiting, None]], name: int, one: Waiting) -> None:
    left = lists.get(name)
    if left is not None:
        left.pop(one, None)
        if not left:
            del lists[name]
