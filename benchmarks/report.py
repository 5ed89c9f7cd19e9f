"""What every benchmark leaves behind: `.bench/NAME.json`, and a table for whoever watches.

A bar that is missed is reported like one that holds; the exit code does not depend on it.
"""

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".bench"


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and what it has to reach; `at_least` says from which side."""

    name: str
    value: float
    unit: str
    bar: float
    at_least: bool

    @property
    def holds(self) -> bool:
        return self.value >= self.bar if self.at_least else self.value <= self.bar


@dataclass(slots=True)
class Report:
    """Rows are free-form figures in the order they were measured."""

    name: str
    commands: list[str]
    rows: list[dict[str, Any]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def write(self) -> Path:
        OUT.mkdir(exist_ok=True)
        path = OUT / f"{self.name}.json"
        content = {
            "name": self.name,
            "machine": _machine(),
            "commit": _commit(),
            "commands": self.commands,
            "rows": self.rows,
            "bars": [
                {key: value for key, value in asdict(bar).items() if key != "at_least"}
                | {"direction": "at least" if bar.at_least else "at most", "holds": bar.holds}
                for bar in self.bars
            ],
        }
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        return path

    def show(self) -> None:
        print(f"\n{self.name}")
        for row in self.rows:
            print("  " + "  ".join(f"{key}={_shown(value)}" for key, value in row.items()))
        width = max((len(bar.name) for bar in self.bars), default=0)
        print()
        for bar in self.bars:
            side = ">=" if bar.at_least else "<="
            verdict = "holds" if bar.holds else "MISSED"
            figure = f"{bar.value:10.3f} {bar.unit:<12} {side} {bar.bar:<8g}"
            print(f"  {bar.name:<{width}}  {figure} {verdict}")


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _machine() -> dict[str, Any]:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": sys.version.split()[0]}


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    dirty = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
