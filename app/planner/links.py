"""What is known of the links between nodes, in one table. Pure.

Made once for each version of the topology; transfers that begin and end are counted in it.
"""

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

FIELDS: Final = 4
# A table has a row for each pair of nodes.
MAX_NODES: Final = 1_024


class Link(NamedTuple):
    """From one node to another, or within one. Bandwidth 0 is not known: the profile's path holds.

    `max_in_flight` 0 is no limit.
    """

    latency_us: float = 0.0
    bytes_per_us: float = 0.0
    in_flight: int = 0
    max_in_flight: int = 0


NO_LINK: Final = Link()


class Links:
    """Links by the names of nodes. A node that is not among them has none."""

    def __init__(
        self, nodes: Sequence[str] = (), known: Mapping[tuple[str, str], Link] | None = None
    ) -> None:
        """Raises ValueError for more than MAX_NODES nodes, or a link of a node that is none."""
        if len(nodes) > MAX_NODES:
            raise ValueError(f"at most {MAX_NODES} nodes")
        self.place = {name: place for place, name in enumerate(dict.fromkeys(nodes))}
        self.table = array("d", bytes(8 * FIELDS * len(self.place) ** 2))
        # Of the links that carry any transfer, how many.
        self.running: dict[tuple[str, str], int] = {}
        # Of the links that are other than they were made, what they are now.
        self.changed: dict[tuple[str, str], Link] = {}
        for (source, target), link in (known or {}).items():
            at = self._at(source, target)
            if at is None:
                raise ValueError(f"a link from {source} to {target}, which are not both nodes")
            self.table[at : at + FIELDS] = array("d", link)
            if link.in_flight:
                self.running[source, target] = link.in_flight

    def copy(self) -> "Links":
        """Another table of the same content: what is counted in one is not in the other."""
        made = Links()
        made.place, made.table = self.place, self.table[:]
        made.running, made.changed = dict(self.running), dict(self.changed)
        return made

    def get(self, source: str, target: str) -> Link:
        """NO_LINK for what is not known."""
        at = self._at(source, target)
        if at is None:
            return NO_LINK
        latency_us, bytes_per_us, in_flight, most = self.table[at : at + FIELDS]
        return Link(latency_us, bytes_per_us, int(in_flight), int(most))

    def put(self, source: str, target: str, link: Link) -> None:
        """Another latency and bandwidth; what runs on it, and how much may, stays."""
        at = self._at(source, target)
        if at is not None:
            self.table[at : at + 2] = array("d", (link.latency_us, link.bytes_per_us))
            self.changed[source, target] = link

    def begin(self, source: str, target: str, transfers: int = 1) -> None:
        """So many more transfers run on the link; fewer where it is negative."""
        at = self._at(source, target)
        if at is not None:
            self.table[at + 2] = max(0.0, self.table[at + 2] + transfers)
            self.running[source, target] = int(self.table[at + 2])
            if not self.running[source, target]:
                del self.running[source, target]

    def _at(self, source: str, target: str) -> int | None:
        one, two = self.place.get(source), self.place.get(target)
        if one is None or two is None:
            return None
        return FIELDS * (one * len(self.place) + two)


NO_LINKS: Final = Links()
