"""What is learnt of: the parts of a profile, and links. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from app.contract.enums import TierKind
from app.planner.calibrate import NEW, Estimator, Part, calibrated
from app.planner.links import Link, Links
from app.planner.profile import Profile

PREFILL: Final = "prefill"
_PATH: Final = "path"
_LINK: Final = "link"
_SIDES: Final = {"local": False, "remote": True}


class PartKey(NamedTuple):
    """Of whom something is learnt; model and hardware are "" for a link."""

    model: str
    hardware: str
    part: str


class Learnt(Struct, frozen=True):
    """An estimator, what its factor is of, and how many changes were found of what it follows."""

    estimator: Estimator
    basis: str
    drifts: int = 0


UNLEARNT: Final = Learnt(NEW, "")


def path_part(tier: TierKind, *, remote: bool) -> str:
    """The name of a path: `path:host_dram:remote`."""
    return f"{_PATH}:{tier.value}:{'remote' if remote else 'local'}"


def link_part(source: str, target: str) -> str:
    """The name of a link; node names have no slash."""
    return f"{_LINK}:{source}/{target}"


def link_basis(link: Link) -> str:
    """A link as the topology has it, whatever runs on it."""
    return f"{link.latency_us:g}+{link.bytes_per_us:g}"


def profile_part(part: str) -> Part | str:
    """As the planner has it; "" for what is no part of a profile."""
    if part == PREFILL:
        return None
    kind, _, rest = part.partition(":")
    tier, _, side = rest.rpartition(":")
    if kind != _PATH or side not in _SIDES or tier not in {one.value for one in TierKind}:
        return ""
    return TierKind(tier), _SIDES[side]


class Calibration:
    """Everything that is learnt, at one moment. Never changes; what is made of it is kept."""

    def __init__(self, known: Mapping[PartKey, Learnt] | None = None, version: int = 0) -> None:
        self.known = dict(known or {})
        self.version = version
        self._by_target: dict[tuple[str, str], dict[Part, Learnt]] = {}
        self._of_links: dict[tuple[str, str], Learnt] = {}
        for key, learnt in self.known.items():
            part = profile_part(key.part)
            if not isinstance(part, str):
                self._by_target.setdefault((key.model, key.hardware), {})[part] = learnt
            elif key.part.startswith(f"{_LINK}:"):
                source, _, target = key.part.removeprefix(f"{_LINK}:").partition("/")
                self._of_links[source, target] = learnt
        self._profiles: dict[tuple[str, str, str], Profile] = {}
        self._links: tuple[Links, Links] | None = None

    def profile(self, base: Profile, model: str, hardware: str) -> Profile:
        """The profile with what was learnt of this target; `base` where nothing was."""
        learnt = self._by_target.get((model, hardware))
        if learnt is None:
            return base
        key = (model, hardware, base.version)
        found = self._profiles.get(key)
        if found is None:
            of_base = {
                part: one.estimator for part, one in learnt.items() if one.basis == base.version
            }
            found = self._profiles[key] = calibrated(base, of_base) if of_base else base
        return found

    def links(self, base: Links) -> Links:
        """The links of a topology with what was learnt of them; `base` where nothing was."""
        if not self._of_links:
            return base
        if self._links is None or self._links[0] is not base:
            self._links = base, self._with_factors(base)
        return self._links[1]

    def _with_factors(self, base: Links) -> Links:
        made = base.copy()
        for (source, target), learnt in self._of_links.items():
            link = base.get(source, target)
            if link.bytes_per_us and learnt.basis == link_basis(link):
                factor = learnt.estimator.factor
                made.put(
                    source,
                    target,
                    link._replace(
                        latency_us=link.latency_us * factor, bytes_per_us=link.bytes_per_us / factor
                    ),
                )
        return made
