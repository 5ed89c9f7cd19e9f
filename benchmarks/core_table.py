"""The table of `make bench-core`: bars, and reasons where there is no figure for one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.core_peers import Process
from benchmarks.report import Bar, Report

_BEGAN = time.monotonic()


class DifferentAnswerError(Exception):
    """Two systems do not say the same of the same work: no figure of either counts."""


def say(text: str) -> None:
    """Progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured beside what, how often, and where peers may be installed from."""

    names: Sequence[str]
    rounds: int
    wheels: str | None


@dataclass(slots=True)
class Table:
    """A report whose bars may also have a reason in the place of a figure."""

    report: Report
    missing: list[tuple[str, str]] = field(default_factory=list)

    def row(self, what: str, **figures: Any) -> None:
        self.report.rows.append({"what": what, **figures})

    def at_least(self, name: str, value: float, bar: float, unit: str = "times") -> None:
        self.report.bars.append(Bar(name, value, unit, bar, True))

    def at_most(self, name: str, value: float, bar: float, unit: str) -> None:
        self.report.bars.append(Bar(name, value, unit, bar, False))

    def absent(self, name: str, why: str) -> None:
        self.missing.append((name, why))
        self.report.rows.append({"what": name, "absent": why})

    def show(self) -> None:
        """What was found; the single rounds are in the file only."""
        self._show_finds()
        rows = [row for row in self.report.rows if not {"round", "absent", "kind"} & row.keys()]
        Report(self.report.name, self.report.commands, rows, self.report.bars).show()
        if self.missing:
            print("\n  not measured:")
            for name, why in self.missing:
                print(f"  {name}: {why}")

    def _show_finds(self) -> None:
        """A line for each length and kind, a column for each system and form."""
        found = [row for row in self.report.rows if row["what"] == "find"]
        columns = sorted({(row["system"], row["form"]) for row in found})
        width = 14
        for size in sorted({row["index_blocks"] for row in found}):
            print(f"\nfind, us at {size:,} blocks")
            print(" " * 18 + "".join(f"{name:>{width}}" for name, _ in columns))
            print(" " * 18 + "".join(f"{form:>{width}}" for _, form in columns))
            cells: dict[tuple[int, str], dict[tuple[str, str], float]] = {}
            for row in found:
                if row["index_blocks"] == size:
                    line = cells.setdefault((row["blocks"], row["kind"]), {})
                    line[row["system"], row["form"]] = row["us"]
            for (blocks, kind), line in cells.items():
                figures = [f"{line[each]:.2f}" if each in line else "" for each in columns]
                print(f"  {blocks:>8,} {kind:<7}" + "".join(f"{one:>{width}}" for one in figures))


def compare(what: str, processes: Sequence[Process], answers: Mapping[str, Any]) -> None:
    """Query by query and block by block, against the first one's. Raises DifferentAnswerError."""
    first = processes[0]
    for other in processes[1:]:
        pairs = zip(answers[first.name], answers[other.name], strict=True)
        for number, (expected, found) in enumerate(pairs):
            if other.only_best:
                expected = [[-1, max(blocks for _, blocks in expected)]] if expected else []  # noqa: PLW2901
            if expected != found:
                raise DifferentAnswerError(
                    f"{what}, query {number}: {first.name} says {expected}, {other.name} {found} "
                    "([worker, blocks])"
                )
