"""What `nexuskv profile fit` makes of measured points: a profile, and how far it is off. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from app.cli.profile_points import PREFILL, Part, PointError
from app.planner.fit import Point, fit_path, fit_prefill
from app.planner.profile import Path, Prefill, Profile, load_profile

_PREFILL_TERMS: Final = 3
_PATH_TERMS: Final = 2


class Compared(NamedTuple):
    """One point, and what the fitted profile says of it."""

    part: Part
    point: Point
    predicted_us: float

    @property
    def off(self) -> float:
        """The error as a part of what was observed; positive where too long was predicted."""
        return self.predicted_us / self.point.took_us - 1


class FittedPart(NamedTuple):
    """`error` is the root mean square of the relative errors; `terms` are the coefficients."""

    part: Part
    points: int
    error: float
    terms: dict[str, float]


class FittedProfile(NamedTuple):
    profile: Profile
    parts: tuple[FittedPart, ...]
    compared: tuple[Compared, ...]


class Naming(NamedTuple):
    """What the fitted profile is called and is of; None is as the base says."""

    name: str | None = None
    model: str | None = None
    hardware: str | None = None
    source: str | None = None


def fit_profile(
    points: Mapping[Part, Sequence[Point]],
    base: Profile,
    naming: Naming,
    *,
    keep_schedule: bool = False,
) -> FittedProfile:
    """The base with what the points say of prefill and of each path.

    `keep_schedule` leaves the base's scheduling time as it is. Points that are no more than the
    terms of their part lie on it, and tell nothing of its uncertainty: then that is the base's.
    Raises PointError, which names the
    part that its points do not suffice for, and NexusError for a profile beyond its bounds.
    """
    prefill, paths = base.prefill, base.paths
    parts: list[FittedPart] = []
    for part, measured in points.items():
        try:
            if part == PREFILL:
                known_us = base.prefill.schedule_us if keep_schedule else None
                prefill = fit_prefill(measured, schedule_us=known_us)
                parts.append(_of_prefill(prefill, len(measured)))
                if len(measured) <= _PREFILL_TERMS - keep_schedule:
                    unknown = base.prefill.uncertainty
                    prefill = msgspec.structs.replace(prefill, uncertainty=unknown)
            else:
                path = fit_path(measured, _like(part))
                parts.append(_of_path(part, path, len(measured)))
                if len(measured) <= _PATH_TERMS:
                    path = msgspec.structs.replace(path, uncertainty=_uncertainty(base, part))
                paths = (path, *(one for one in paths if not _replaces(path, one)))
        except ValueError as error:
            raise PointError(f"{part}: {error}") from None
    profile = _checked(base, prefill, paths, naming)
    compared = tuple(
        Compared(part, point, _predicted_us(profile, part, point))
        for part, measured in points.items()
        for point in measured
    )
    return FittedProfile(profile, tuple(parts), compared)


def _like(part: Part) -> Path:
    """What a fitted path is beside its figures: for any backend."""
    assert part.tier is not None
    return Path(part.tier, 0.0, 1.0, 0.0, part.remote)


def _uncertainty(base: Profile, part: Part) -> float:
    assert part.tier is not None
    path = base.path(part.tier, remote=bool(part.remote))
    return base.prefill.uncertainty if path is None else path.uncertainty


def _replaces(path: Path, other: Path) -> bool:
    return (path.tier, path.remote, path.backend) == (other.tier, other.remote, other.backend)


def _checked(base: Profile, prefill: Prefill, paths: tuple[Path, ...], naming: Naming) -> Profile:
    """As a document and back: a fit may leave the bounds of a profile. Raises NexusError."""
    given = {name: value for name, value in naming._asdict().items() if value is not None}
    document: dict[str, Any] = msgspec.to_builtins(base)
    document |= {"prefill": msgspec.to_builtins(prefill)}
    document |= {"paths": [msgspec.to_builtins(path) for path in paths]}
    return load_profile(document | given)


def _of_prefill(prefill: Prefill, points: int) -> FittedPart:
    terms = {
        "schedule_us": prefill.schedule_us,
        "per_token_us": prefill.per_token_us,
        "per_pair_us": prefill.per_pair_us,
    }
    return FittedPart(PREFILL, points, prefill.uncertainty, terms)


def _of_path(part: Part, path: Path, points: int) -> FittedPart:
    terms = {"latency_us": path.latency_us, "bytes_per_us": path.bytes_per_us}
    return FittedPart(part, points, path.uncertainty, terms)


def _predicted_us(profile: Profile, part: Part, point: Point) -> float:
    if part.tier is None:
        return profile.prefill.schedule_us + profile.prefill.recompute_us(point.size, 0)
    path = next(one for one in profile.paths if (one.tier, one.remote) == (part.tier, part.remote))
    return path.latency_us + point.size / path.bytes_per_us
