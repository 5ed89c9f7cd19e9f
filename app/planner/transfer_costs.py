"""One transfer by a cost profile: the planner's model for a single target. Pure.

    T_transfer = lookup + restore + sync + latency + bytes / bandwidth
    T_compute  = schedule + recompute

Whole microseconds, each term rounded up, so that a sum is never less than what it is of.
"""

from math import ceil
from typing import Any, Final

from msgspec import Struct

from app.contract.enums import TierKind
from app.contract.limits import MAX_I63
from app.planner.cost import Locality, Provenance, Term, TransferEstimate, node_of, total_us
from app.planner.links import NO_LINKS, Link, Links
from app.planner.profile import Profile

_SLOWEST_BYTES_PER_US: Final = 1_000.0


class ProfileCosts(Struct, frozen=True):
    """Prices by a profile, and by what the topology knows of the link in between."""

    profile: Profile
    links: Links = NO_LINKS
    # Of the target, as far as it is known.
    hardware: str = ""

    @property
    def name(self) -> str:
        """The profile, and which version of it."""
        return f"{self.profile.name}@{self.profile.version}"

    def link(self, locator: str, target_residency: str) -> Link:
        """From where a state lies to where it is wanted; NO_LINK where that is not known."""
        return self.links.get(node_of(locator) or "", target_residency)

    def estimate(
        self,
        *,
        tier: TierKind,
        locator: str,
        target_residency: str,
        payload_bytes: int | None,
        tokens: int,
    ) -> TransferEstimate:
        """Unknown bytes are the profile's default for each token, and a tier without a path is read
        at 1 GB/s; both terms say so.
        """
        local = node_of(locator) == target_residency
        known = payload_bytes is not None
        moved = payload_bytes or 0
        if not known:
            moved = ceil(tokens * self.profile.default_bytes_per_token)
        took_us, source = self._transfer(tier, moved, self.link(locator, target_residency), local)
        terms = (
            *self._overheads(),
            Term("restore", ceil(self.profile.restore_us), Provenance.PROFILE),
            Term("bytes", took_us, source if known else Provenance.DEFAULT),
        )
        return TransferEstimate(
            transfer_us=total_us(terms),
            payload_bytes=payload_bytes,
            terms=terms,
            locality=Locality.LOCAL if local else Locality.REMOTE,
            topology_path=None if local else f"{tier}->device@{target_residency}",
        )

    def computing(self, tokens: int) -> tuple[Term, ...]:
        """The terms of computing the state of so many tokens again, without context."""
        prefill = self.profile.prefill
        recompute_us = ceil(min(prefill.recompute_us(tokens, 0), MAX_I63))
        return (
            Term("schedule", ceil(prefill.schedule_us), Provenance.PROFILE),
            Term(
                "recompute",
                recompute_us,
                Provenance.MEASURED if prefill.measured else Provenance.PROFILE,
            ),
        )

    def recompute_us(self, tokens: int) -> int:
        """Scheduling a prefill and running it, at most 2^63-1."""
        return total_us(self.computing(tokens))

    def _overheads(self) -> tuple[Term, ...]:
        named = (("lookup", self.profile.lookup_us), ("sync", self.profile.sync_us))
        return tuple(
            Term(name, ceil(value_us), Provenance.PROFILE) for name, value_us in named if value_us
        )

    def _transfer(
        self, tier: TierKind, moved_bytes: int, link: Link, local: bool
    ) -> tuple[int, Provenance]:
        path = self.profile.path(tier, remote=not local)
        if link.bytes_per_us:
            latency_us, rate, source = link.latency_us, link.bytes_per_us, Provenance.MEASURED
        elif path is not None:
            latency_us, rate = path.latency_us, path.bytes_per_us
            source = Provenance.MEASURED if path.measured else Provenance.PROFILE
        else:
            latency_us, rate, source = 0.0, _SLOWEST_BYTES_PER_US, Provenance.UNKNOWN
        took_us = latency_us + moved_bytes * (1 + link.in_flight) / rate
        # The least bandwidth there is makes any transfer endless.
        return ceil(min(took_us, MAX_I63)), source


def recorded_link(costs: ProfileCosts, locator: str, target_residency: str) -> list[float] | None:
    """For a record: what was known of the link, None for nothing."""
    link = costs.link(locator, target_residency)
    return [*link] if link.bytes_per_us else None


def costs_from(profile: Profile, link: Any, locator: str, target_residency: str) -> ProfileCosts:
    """From a record. Raises ValueError, TypeError for a link that is none."""
    if link is None:
        return ProfileCosts(profile)
    latency_us, rate, in_flight, most = map(float, link)
    nodes = (node_of(locator) or "", target_residency)
    known = {nodes: Link(latency_us, rate, int(in_flight), int(most))}
    return ProfileCosts(profile, Links(nodes, known))
