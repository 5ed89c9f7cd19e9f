"""Where blocks are: the device and the memory of every engine, least recently used first."""

from collections import OrderedDict
from collections.abc import Container, Sequence


class Caches:
    """What all engines hold. A block that leaves a device goes to its node's memory."""

    def __init__(self, engines: int, device_blocks: int, host_blocks: int) -> None:
        self._device = [OrderedDict[int, None]() for _ in range(engines)]
        self._host = [OrderedDict[int, None]() for _ in range(engines)]
        self._most = (device_blocks, host_blocks)
        # By block, a bit for each engine: what is on its device, and in either of its tiers.
        self._on_device: dict[int, int] = {}
        self._anywhere: dict[int, int] = {}
        self._all = (1 << engines) - 1
        self._engines = engines

    def prefixes(self, blocks: Sequence[int]) -> tuple[list[int], list[int]]:
        """Of each engine how many leading blocks its device has, and its two tiers together."""
        return self._prefix(blocks, self._on_device), self._prefix(blocks, self._anywhere)

    def _prefix(self, blocks: Sequence[int], holders: dict[int, int]) -> list[int]:
        found, alive = [0] * self._engines, self._all
        for length, block in enumerate(blocks):
            having = alive & holders.get(block, 0)
            lost = alive ^ having
            while lost:
                engine = (lost & -lost).bit_length() - 1
                found[engine] = length
                lost &= lost - 1
            alive = having
            if not alive:
                return found
        while alive:
            found[(alive & -alive).bit_length() - 1] = len(blocks)
            alive &= alive - 1
        return found

    def device_prefix(self, engine: int, blocks: Sequence[int]) -> int:
        device = self._device[engine]
        for length, block in enumerate(blocks):
            if block not in device:
                return length
        return len(blocks)

    def host(self, engine: int) -> Container[int]:
        """What the memory of the engine's node has of it."""
        return self._host[engine]

    def add(self, engine: int, blocks: Sequence[int]) -> None:
        """They are on the engine's device now, and the most recently used; the last ones first, so
        that a prefix goes after what continues it."""
        device, bit = self._device[engine], 1 << engine
        for block in reversed(blocks):
            if block in device:
                device.move_to_end(block)
                continue
            device[block] = None
            self._on_device[block] = self._on_device.get(block, 0) | bit
            self._anywhere[block] = self._anywhere.get(block, 0) | bit
        while len(device) > self._most[0]:
            block, _ = device.popitem(last=False)
            self._on_device[block] &= ~bit
            self._demote(engine, block, bit)

    def _demote(self, engine: int, block: int, bit: int) -> None:
        host = self._host[engine]
        if self._most[1]:
            host[block] = None
            host.move_to_end(block)
        if len(host) > self._most[1]:
            block, _ = host.popitem(last=False)
        elif self._most[1]:
            return
        if not self._on_device.get(block, 0) & bit:
            self._anywhere[block] &= ~bit
