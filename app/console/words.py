"""How figures, times and names are written for a person. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

NONE: Final = "–"
_US_PER_S: Final = 1_000_000
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400
_BYTES_STEP: Final = 1_024
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MANY: Final = 100_000


def duration(value_us: float | None) -> str:
    """Microseconds as `850 µs`, `12.4 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if value_us is None:
        return NONE
    if value_us < 0:
        return f"−{duration(-value_us)}"
    if value_us < 1_000:
        return f"{value_us:.0f} µs"
    seconds = value_us / _US_PER_S
    if seconds < _MINUTE_S:
        return f"{_short(value_us / 1_000)} ms" if seconds < 1 else f"{_short(seconds)} s"
    return _long(int(seconds))


def _long(seconds: int) -> str:
    """A minute or more, in its two largest units."""
    for least_s, large, below_s, small in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if seconds >= least_s:
            whole, rest = divmod(seconds, least_s)
            more = f" {rest // below_s} {small}" if rest >= below_s else ""
            return f"{whole:,} {large}{more}"
    return f"{seconds} s"


def amount(value_bytes: int | None) -> str:
    """Bytes as `512 B`, `1.5 MiB`."""
    if value_bytes is None:
        return NONE
    if value_bytes < _BYTES_STEP:
        return f"{value_bytes} B"
    return _scaled(value_bytes, _BYTES_STEP, _UNITS)


def count(value: int | None) -> str:
    """A whole number: `12,345`, and from a hundred thousand on `1.2 M`."""
    if value is None:
        return NONE
    if abs(value) < _MANY:
        return f"{value:,}"
    return _scaled(value, 1_000, ("k", "M", "G", "T"))


def exact(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def share(value: float | None) -> str:
    """A ratio as per cent; a dash where there was nothing to divide by."""
    return NONE if value is None else f"{value * 100:.1f} %"


def moment(value: datetime | None) -> str:
    """A time in UTC to the second."""
    return NONE if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def clock(value: datetime | None) -> str:
    """A time in UTC to the millisecond, with its day."""
    if value is None:
        return NONE
    at = value.astimezone(UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1_000:03d}"


def plain(value: object) -> str:
    """A name of a closed vocabulary as words."""
    return NONE if value is None else str(value).replace("_", " ")


def short(value: object) -> str:
    """The end of an id, which is what differs between neighbours."""
    text = str(value)
    return text if len(text) <= 12 else f"…{text[-8:]}"


def version(label: str) -> str:
    """The policy of a decision: `policy 3`, or `policy file` where none was activated."""
    number, _, rest = label.partition(":")
    digest = rest.rpartition(":")[2][:8]
    return f"file {digest}" if number == "file" else f"#{number} {digest}"


def flat(value: object, at: str = "") -> Iterator[tuple[str, str]]:
    """A JSON value as lines: where, and what stands there."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from flat(item, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list) and value and all(isinstance(one, dict | list) for one in value):
        for number, item in enumerate(value):
            yield from flat(item, f"{at}[{number}]")
    elif isinstance(value, list):
        yield at, ", ".join(map(str, value)) or "none"
    elif isinstance(value, dict):
        yield at, "none"
    elif value is None:
        yield at, NONE
    else:
        yield at, str(value).lower() if isinstance(value, bool) else str(value)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}".removesuffix(".0")


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    power, scaled = 0, value / step
    while abs(scaled) >= step and power < len(units) - 1:
        power, scaled = power + 1, scaled / step
    return f"{_short(scaled)} {units[power]}"
