"""Transfers that plans of this process have chosen and that are thought to run still.

A plan's transfer takes its share of a link from when it is chosen until it should be there; then
the share is free again, whatever became of it.
"""

from collections import Counter
from heapq import heappop, heappush
from typing import Final, NamedTuple

from app.clock import Clock
from app.contract.enums import TierKind
from app.planner.links import NO_LINKS, Links

MAX_RESERVATIONS: Final = 65_536


class Reserved(NamedTuple):
    """One transfer, until when; the earliest first."""

    until_us: int
    number: int
    tenant: str
    source: str
    target: str
    tier: TierKind | None


class Reservations:
    """On the event loop's thread. `refused` counts those beyond the limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: list[Reserved] = []
        self._numbers = 0
        self._tenants: Counter[str] = Counter()
        self._tiers: Counter[tuple[str, TierKind | None]] = Counter()
        self._base = NO_LINKS
        self._links = NO_LINKS
        self.refused = 0

    def __len__(self) -> int:
        self._expire()
        return len(self._running)

    def links(self, known: Links) -> Links:
        """The links of a topology, with what runs on them now."""
        self._expire()
        if known is not self._base:
            self._base, self._links = known, known.copy()
            for one in self._running:
                self._links.begin(one.source, one.target)
        return self._links

    def running(self, tenant: str) -> int:
        """How many of a tenant's transfers run."""
        self._expire()
        return self._tenants[tenant]

    def reading(self, node: str, tier: TierKind) -> int:
        """How many transfers read a tier of a node."""
        self._expire()
        return self._tiers[node, tier]

    def take(
        self, tenant: str, source: str, target: str, took_us: int, tier: TierKind | None = None
    ) -> bool:
        """Reserve a transfer that ends in so long, from a tier of the source; False where there are
        too many.
        """
        self._expire()
        if len(self._running) >= MAX_RESERVATIONS:
            self.refused += 1
            return False
        self._numbers += 1
        until_us = self._clock.monotonic_us() + took_us
        one = Reserved(until_us, self._numbers, tenant, source, target, tier)
        heappush(self._running, one)
        self._tenants[tenant] += 1
        self._tiers[source, tier] += 1
        self._links.begin(source, target)
        return True

    def _expire(self) -> None:
        now_us = self._clock.monotonic_us()
        while self._running and self._running[0].until_us <= now_us:
            one = heappop(self._running)
            self._tenants[one.tenant] -= 1
            if not self._tenants[one.tenant]:
                del self._tenants[one.tenant]
            self._tiers[one.source, one.tier] -= 1
            if not self._tiers[one.source, one.tier]:
                del self._tiers[one.source, one.tier]
            self._links.begin(one.source, one.target, -1)
