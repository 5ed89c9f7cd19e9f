"""What prefetches of this process take of their budgets.

Bytes and bandwidth of a tenant are taken until its prefetch has ended; of a tier what was brought
until it should be used, for then it is cached state like any other.
"""

from collections import Counter
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from app.clock import Clock
from app.contract.enums import TierKind
from app.errors import ErrorCode, NexusError
from app.planner.prefetch import PrefetchBudget, PrefetchCase, bytes_per_us
from app.policy.document import PrefetchBudgetsPolicy
from app.topology.topology_provider import Topology

MAX_RUNNING: Final = 1_024
# Of copies that wait for their use.
MAX_HELD: Final = 65_536
# Places that were left wait for their time, until they are more than the others and these.
_FEW: Final = 64


class Taken(NamedTuple):
    """One prefetch's part, to be given back."""

    tenant: str
    place: tuple[str, TierKind]
    moved_bytes: int
    bytes_per_us: float
    number: int


class PrefetchBudgets:
    """On the event loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bytes: Counter[str] = Counter()
        self._rates: dict[str, float] = {}
        self._writing: Counter[tuple[str, TierKind]] = Counter()
        self._held: Counter[tuple[str, TierKind]] = Counter()
        # By number what holds a place in a tier, and when each should have been used.
        self._copies: dict[int, tuple[tuple[str, TierKind], int]] = {}
        self._until: list[tuple[int, int]] = []
        self._numbers = 0
        self.running = 0

    def budget(
        self,
        tenant: str,
        place: tuple[str, TierKind],
        policy: PrefetchBudgetsPolicy,
        topology: Topology,
    ) -> PrefetchBudget:
        """The limits of a tenant at a tier of a node, and what is taken of them now."""
        self._expire()
        capacity = topology.tiers.get(place)
        return PrefetchBudget(
            policy.max_bytes_in_flight,
            self._bytes[tenant],
            policy.max_bytes_per_us,
            self._rates.get(tenant, 0.0),
            0 if capacity is None else capacity.capacity_bytes,
            policy.max_tier_share,
            self._held[place],
            0 if capacity is None else capacity.max_in_flight,
            self._writing[place],
            policy.min_use_probability,
        )

    def take(self, tenant: str, place: tuple[str, TierKind], case: PrefetchCase) -> Taken:
        """Raises OVERLOADED where as many run as there may."""
        if self.running >= MAX_RUNNING or len(self._copies) >= MAX_HELD:
            raise NexusError(
                ErrorCode.OVERLOADED, f"{self.running} prefetches run here; try again later"
            )
        self._numbers += 1
        taken = Taken(tenant, place, case.moved_bytes, bytes_per_us(case), self._numbers)
        self.running += 1
        self._bytes[tenant] += taken.moved_bytes
        self._rates[tenant] = self._rates.get(tenant, 0.0) + taken.bytes_per_us
        self._writing[place] += 1
        self._held[place] += taken.moved_bytes
        self._copies[taken.number] = (place, taken.moved_bytes)
        until_us = self._clock.monotonic_us() + round(case.use_within_us)
        heappush(self._until, (until_us, taken.number))
        return taken

    def give_back(self, taken: Taken, *, brought: bool) -> None:
        """It has ended; what it brought keeps its place in the tier until it should be used."""
        if not brought:
            self._leave(taken.number)
            if len(self._until) > 2 * len(self._copies) + _FEW:
                self._until = [one for one in self._until if one[1] in self._copies]
                heapify(self._until)
        self.running -= 1
        self._bytes[taken.tenant] -= taken.moved_bytes
        self._writing[taken.place] -= 1
        self._rates[taken.tenant] -= taken.bytes_per_us
        if self._bytes[taken.tenant] <= 0:
            # Sums of floats leave a rest.
            del self._bytes[taken.tenant], self._rates[taken.tenant]

    def _expire(self) -> None:
        now_us = self._clock.monotonic_us()
        while self._until and self._until[0][0] <= now_us:
            self._leave(heappop(self._until)[1])

    def _leave(self, number: int) -> None:
        place, moved_bytes = self._copies.pop(number, (None, 0))
        if place is not None:
            self._held[place] -= moved_bytes
