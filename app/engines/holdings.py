"""What one engine holds by its own names, as its events tell: at each medium, of each group.

After a gap nobody knows what is left: what was held is in doubt until it is stored again, or
everything is cleared. In doubt is neither held nor removed.
"""

from collections import Counter

from app.engines.events import Cleared, EngineHash, Event, Removed, Stored

Shelf = tuple[str, int]


class Holdings:
    """Names of blocks by (medium, group). Sets: what is stored twice is removed once."""

    def __init__(self) -> None:
        self._held: dict[Shelf, set[EngineHash]] = {}
        self._doubtful: dict[Shelf, set[EngineHash]] = {}
        # Removals of what was not there, which change nothing.
        self.removed_unknown = 0

    def apply(self, event: Event) -> None:
        """Take one event in."""
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            self._remove(event)
        else:
            self._clear(event)

    def doubt(self) -> None:
        """Frames were lost: each block may be gone, and none is known to be there."""
        for shelf, names in self._held.items():
            self._doubtful.setdefault(shelf, set()).update(names)
        self._held.clear()

    def drop(self) -> None:
        """Another process publishes now: nothing of the former one is there."""
        self._held.clear()
        self._doubtful.clear()

    def counts(self) -> dict[str, dict[int, int]]:
        """How many blocks are held, by medium and group; nothing is named that has none."""
        return _counted(self._held)

    def doubtful(self) -> dict[str, dict[int, int]]:
        """How many may be there, likewise."""
        return _counted(self._doubtful)

    def _store(self, event: Stored) -> None:
        shelf = (event.medium, event.group)
        self._held.setdefault(shelf, set()).update(event.hashes)
        if shelf in self._doubtful:
            self._doubtful[shelf].difference_update(event.hashes)

    def _remove(self, event: Removed) -> None:
        shelf = (event.medium, event.group)
        held = self._held.get(shelf, set())
        doubtful = self._doubtful.get(shelf, set())
        for name in event.hashes:
            if name in held:
                held.discard(name)
            elif name in doubtful:
                doubtful.discard(name)
            else:
                self.removed_unknown += 1

    def _clear(self, event: Cleared) -> None:
        for shelves in (self._held, self._doubtful):
            for shelf in [one for one in shelves if event.medium in (None, one[0])]:
                del shelves[shelf]


def _counted(shelves: dict[Shelf, set[EngineHash]]) -> dict[str, dict[int, int]]:
    found: dict[str, Counter[int]] = {}
    for (medium, group), names in sorted(shelves.items()):
        if names:
            found.setdefault(medium, Counter())[group] = len(names)
    return {medium: dict(groups) for medium, groups in found.items()}
