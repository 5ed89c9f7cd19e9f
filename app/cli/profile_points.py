"""Measured points for `nexuskv profile fit`: CSV with a heading, or a JSON object a line.

Prefill: `tokens`, `prefill_us`. Paths: `tier`, `remote` (optional), `bytes`, `transfer_us`. A file
may hold both; a row is one or the other.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.contract.enums import TierKind
from app.planner.fit import Point

MAX_POINTS: Final = 100_000
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
_PREFILL: Final = ("tokens", "prefill_us")
_PATH: Final = ("bytes", "transfer_us")
_COLUMNS: Final = frozenset({*_PREFILL, *_PATH, "tier", "remote"})
_REMOTE: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class PointError(Exception):
    """A file or a row of it that cannot be used; the text says which, and why."""


class Part(NamedTuple):
    """What a point is of: prefill where `tier` is None, else a path. `remote` None is any."""

    tier: TierKind | None = None
    remote: bool | None = None

    def __str__(self) -> str:
        if self.tier is None:
            return "prefill"
        where = {True: "remote", False: "local", None: ""}[self.remote]
        return f"{self.tier.value} {where}".rstrip()


PREFILL: Final = Part()


def read_points(files: list[Path]) -> dict[Part, list[Point]]:
    """The points of all files by what they are of, prefill first. Raises PointError."""
    found: dict[Part, list[Point]] = {}
    count = 0
    for file in files:
        for where, row in _rows(file):
            part, point = _point(where, row)
            found.setdefault(part, []).append(point)
            count += 1
            if count > MAX_POINTS:
                raise PointError(f"{where}: at most {MAX_POINTS:,} points")
    if not found:
        raise PointError(f"no points in {', '.join(map(str, files))}")
    return dict(sorted(found.items(), key=lambda item: str(item[0]) != str(PREFILL)))


def _rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise PointError(f"{file}: at most {MAX_FILE_BYTES} bytes")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PointError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PointError(f"{file} is not UTF-8") from None
    lines = text.splitlines()
    if text.lstrip().startswith("{"):
        yield from _json_rows(file, lines)
        return
    reader = csv.DictReader(lines, skipinitialspace=True)
    try:
        _check_columns(f"{file}:1", reader.fieldnames or ())
        for row in reader:
            where = f"{file}:{reader.line_num}"
            if None in row or None in row.values():
                raise PointError(f"{where}: has another number of columns than the heading")
            yield where, {name: value for name, value in row.items() if value.strip()}
    except csv.Error as error:
        raise PointError(f"{file}:{reader.line_num}: {error}") from None


def _json_rows(file: Path, lines: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise PointError(f"{where}: is not a JSON object") from None
        if not isinstance(row, dict):
            raise PointError(f"{where}: is not a JSON object")
        _check_columns(where, row)
        yield where, {name: value for name, value in row.items() if value is not None}


def _check_columns(where: str, names: Any) -> None:
    unknown = [str(name) for name in names if name not in _COLUMNS]
    if unknown:
        known = ", ".join(sorted(_COLUMNS))
        raise PointError(f"{where}: unknown column {unknown[0]!r}; known are {known}")


def _point(where: str, row: Mapping[str, Any]) -> tuple[Part, Point]:
    is_prefill = any(name in row for name in _PREFILL)
    if is_prefill == any(name in row for name in (*_PATH, "tier", "remote")):
        raise PointError(
            f"{where}: give either tokens and prefill_us, or tier, bytes and transfer_us"
        )
    size_name, took_name = _PREFILL if is_prefill else _PATH
    point = Point(_positive(where, row, size_name), _positive(where, row, took_name))
    if is_prefill:
        return PREFILL, point
    return Part(_tier(where, row), _remote(where, row)), point


def _positive(where: str, row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    if value is None:
        raise PointError(f"{where}: {name} is missing")
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool):
        raise PointError(f"{where}: {name} must be a number, and is {value!r}")
    if not isfinite(number) or number <= 0:
        raise PointError(f"{where}: {name} must be finite and above 0, and is {value}")
    return number


def _tier(where: str, row: Mapping[str, Any]) -> TierKind:
    value = row.get("tier")
    try:
        return TierKind(str(value).strip())
    except ValueError:
        known = ", ".join(tier.value for tier in TierKind)
        raise PointError(f"{where}: tier must be one of {known}, and is {value!r}") from None


def _remote(where: str, row: Mapping[str, Any]) -> bool | None:
    value = row.get("remote")
    if value is None or isinstance(value, bool):
        return value
    found = _REMOTE.get(str(value).strip().lower())
    if found is None:
        raise PointError(f"{where}: remote must be true, false or empty, and is {value!r}")
    return found
