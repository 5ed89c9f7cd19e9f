"""What dashboards and rules ask for: every expression and statement with the place it is in."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
RULES = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))

_KEYWORDS = frozenset({"and", "or", "unless", "on", "by", "without", "bool", "offset"})
_FUNCTIONS = frozenset(
    {
        "changes", "clamp_min", "count", "histogram_quantile", "increase", "max", "min", "rate",
        "sum", "time", "vector",
    }
)  # fmt: skip
_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(by|without|on)\s*\(([^)]*)\)")


@dataclass(frozen=True)
class Asked:
    """One expression of PromQL or one statement of SQL."""

    where: str
    text: str


@dataclass(frozen=True)
class Selector:
    """A metric, with (label, operator, value) of its matchers."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def targets(source: str) -> Iterator[Asked]:
    """What panels ask of the data source with that uid."""
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel.get("targets", []):
                if target["datasource"]["uid"] == source:
                    text = target.get("expr") or target["rawSql"]
                    yield Asked(f"{path.stem}: {panel['title']}", text)


def rules(kind: str) -> Iterator[tuple[dict[str, Any], Asked]]:
    """Rules that `record` or `alert`."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if kind in rule:
                    yield rule, Asked(f"{path.stem}: {rule[kind]}", rule["expr"])


def expressions() -> list[Asked]:
    """All PromQL there is, with the variable of Grafana filled in."""
    found = [*targets("nexuskv-prometheus")]
    found += [asked for kind in ("record", "alert") for _, asked in rules(kind)]
    for path in DASHBOARDS:
        for note in json.loads(path.read_text())["annotations"]["list"]:
            found.append(Asked(f"{path.stem}: {note['name']}", note["expr"]))
    return [Asked(one.where, one.text.replace("$__rate_interval", "5m")) for one in found]


def selectors(expression: str) -> list[Selector]:
    """The metrics of an expression; fails for a word that is neither metric nor function."""
    found = []
    bare = _GROUPING.sub(" ", expression)
    bare = re.sub(r"\[\w+(:\w*)?\]", " ", bare)
    for name, matchers in _SELECTOR.findall(bare):
        if name in _KEYWORDS or name in _FUNCTIONS or re.fullmatch(r"e\d+", name):
            continue
        assert name.startswith(("nexuskv", "process_")) or name == "up", f"`{name}`?"
        found.append(Selector(name, tuple(_MATCHER.findall(matchers))))
    assert found, expression
    return found


def groupings(expression: str) -> set[str]:
    """Labels that results are grouped or joined by."""
    outside = _STRING.sub('""', expression)
    return {
        label.strip()
        for _, labels in _GROUPING.findall(outside)
        for label in labels.split(",")
        if label.strip()
    }
