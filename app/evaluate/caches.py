"""Where blocks are: on devices, in the memory of nodes, and in tiers below; least recently used
first. A block that leaves one tier goes to the next, and from the last it is gone.
"""

from collections import OrderedDict
from collections.abc import Sequence

from app.contract.enums import TierKind


class Caches:
    """What all engines hold. `deeper` are tiers below memory with the blocks that one of them
    holds: `local_ssd` is each node's, any other one the fleet's.
    """

    def __init__(
        self,
        engines: int,
        device_blocks: int,
        host_blocks: int,
        *,
        engines_per_node: int = 1,
        deeper: Sequence[tuple[TierKind, int]] = (),
    ) -> None:
        self.tiers = (TierKind.DEVICE, TierKind.HOST_DRAM, *(tier for tier, _ in deeper))
        self._most = (device_blocks, host_blocks, *(blocks for _, blocks in deeper))
        # By tier and engine, which of that tier's stores is the engine's.
        self._place = [
            [_place(tier, engine, engines_per_node) for engine in range(engines)]
            for tier in self.tiers
        ]
        self._stores = [
            [OrderedDict[int, None]() for _ in range(max(places) + 1)] for places in self._place
        ]
        # By tier and block, a bit for each engine that has it there.
        self._holders: list[dict[int, int]] = [{} for _ in self.tiers]
        self._bits = [
            [
                sum(1 << engine for engine in range(engines) if places[engine] == store)
                for store in range(max(places) + 1)
            ]
            for places in self._place
        ]
        self._all = (1 << engines) - 1
        # What was asked last, as long as nothing has changed.
        self._last: tuple[Sequence[int], list[list[int]]] | None = None
        self._engines = engines

    def prefixes(self, blocks: Sequence[int]) -> list[list[int]]:
        """By tier, of each engine how many leading blocks it has there or in a tier above."""
        if self._last is None or self._last[0] is not blocks:
            self._last = (blocks, self._prefixes(blocks))
        return self._last[1]

    def _prefixes(self, blocks: Sequence[int]) -> list[list[int]]:
        found = [[0] * self._engines for _ in self.tiers]
        alive = [self._all] * len(self.tiers)
        for length, block in enumerate(blocks):
            having = 0
            for level, holders in enumerate(self._holders):
                having |= holders.get(block, 0)
                lost = alive[level] & ~having
                alive[level] ^= lost
                _note(found[level], lost, length)
            if not alive[-1]:
                return found
        for level, left in enumerate(alive):
            _note(found[level], left, len(blocks))
        return found

    def device_prefix(self, engine: int, blocks: Sequence[int]) -> int:
        device = self._stores[0][engine]
        for length, block in enumerate(blocks):
            if block not in device:
                return length
        return len(blocks)

    def room(self, engine: int) -> int:
        """How many more blocks its device takes before one has to leave."""
        return self._most[0] - len(self._stores[0][engine])

    def held_blocks(self) -> list[list[int]]:
        """By tier, how many blocks each of its stores has; for checks."""
        return [[len(store) for store in stores] for stores in self._stores]

    def add(self, engine: int, blocks: Sequence[int]) -> list[int]:
        """They are on the engine's device now, and the most recently used; the last ones first, so
        that a prefix goes after what continues it. Returns those that were not there before.
        """
        self._last = None
        device, bit, holders = self._stores[0][engine], 1 << engine, self._holders[0]
        added = []
        for block in reversed(blocks):
            if block in device:
                device.move_to_end(block)
                continue
            device[block] = None
            holders[block] = holders.get(block, 0) | bit
            added.append(block)
        while len(device) > self._most[0]:
            block, _ = device.popitem(last=False)
            self._left(0, engine, engine, block)
        return added

    def demote(self, engine: int, blocks: Sequence[int]) -> None:
        """They leave the engine's device, as if they had not been used for long."""
        self._last = None
        device = self._stores[0][engine]
        for block in blocks:
            if block in device:
                del device[block]
                self._left(0, engine, engine, block)

    def _left(self, level: int, store: int, engine: int, block: int) -> None:
        """What left a store of one tier goes to the next; `engine` is any that the store is of."""
        while True:
            holders = self._holders[level]
            holders[block] &= ~self._bits[level][store]
            if not holders[block]:
                del holders[block]
            level += 1
            while level < len(self.tiers) and not self._most[level]:
                level += 1
            if level == len(self.tiers):
                return
            store = self._place[level][engine]
            held = self._stores[level][store]
            held[block] = None
            held.move_to_end(block)
            self._holders[level][block] = (
                self._holders[level].get(block, 0) | self._bits[level][store]
            )
            if len(held) <= self._most[level]:
                return
            block, _ = held.popitem(last=False)


def _place(tier: TierKind, engine: int, engines_per_node: int) -> int:
    if tier is TierKind.DEVICE:
        return engine
    return engine // engines_per_node if tier in {TierKind.HOST_DRAM, TierKind.LOCAL_SSD} else 0


def _note(found: list[int], engines: int, length: int) -> None:
    while engines:
        found[(engines & -engines).bit_length() - 1] = length
        engines &= engines - 1
