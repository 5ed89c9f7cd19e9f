"""What `nexuskv profile` prints: lists, headings, and how a fit compares."""

from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from app.cli.policy_report import folded, second
from app.cli.profile_fit import FittedProfile

_VERSION_HEX_DIGITS: Final = 16
_WHY: Final = {
    "exact": "of this model on this hardware",
    "model": "of this model on any hardware",
    "hardware": "of any model on this hardware",
    "any": "of any model on any hardware",
    "built_in": "built in: no stored one fits",
}


def profiles_table(profiles: Sequence[dict[str, Any]]) -> Table:
    """`items` of a page of profiles."""
    table = _table("Number", "Name", "Model", "Hardware", "In force", "sha256", "Stored", "Message")
    for profile in profiles:
        cells = (
            str(profile["number"]),
            profile["name"],
            profile["model"] or "any",
            profile["hardware"] or "any",
            "yes" if profile["in_force"] else "",
            profile["content_sha256"][:_VERSION_HEX_DIGITS],
            second(profile["created_at"]),
            profile["message"] or "",
        )
        style = "bold" if profile["in_force"] else None
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def calibration_table(parts: Sequence[dict[str, Any]]) -> Table:
    """What was learnt, a part a line."""
    table = _table("Model", "Hardware", "Part", "Factor", "Error", "Observations", "Changes", "Is")
    for part in parts:
        cells = (
            part["model"] or "–",
            part["hardware"] or "–",
            part["part"],
            f"{part['factor']:.3g}",
            f"{part['error']:.2f}",
            str(part["observations"]),
            str(part["drifts"]),
            "measured" if part["measured"] else "too few yet",
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def profile_heading(profile: dict[str, Any]) -> str:
    """Number, origin and message of one version, as lines of comment."""
    state = "in force" if profile["in_force"] else "not in force"
    digits = profile["content_sha256"][:_VERSION_HEX_DIGITS]
    lines = [
        f"profile {profile['number']} ({state}), sha256:{digits}",
        f"stored {second(profile['created_at'])} by {profile['key_id']}",
        *(profile["message"] or "").splitlines(),
    ]
    return "\n".join(f"# {line}" for line in lines)


def in_force_heading(found: dict[str, Any]) -> str:
    """Which profile is in force and why, as lines of comment."""
    which = "the reference" if found["number"] is None else f"profile {found['number']}"
    lines = [f"in force: {which}, {found['version']}, {_WHY.get(found['fit'], found['fit'])}"]
    if (fault := found["fault"]) is not None:
        lines.append(f"profile {fault['number']} cannot be used here: {fault['reason']}")
    return "\n".join(f"# {line}" for line in "\n".join(lines).splitlines())


def fit_tables(fitted: FittedProfile) -> list[Table]:
    """The error of each part, and of each point."""
    parts = _table("Part", "Points", "Error", "Terms")
    for part in fitted.parts:
        terms = ", ".join(f"{name} {value:.6g}" for name, value in part.terms.items())
        cells = (str(part.part), str(part.points), f"{part.error:.1%}", terms)
        parts.add_row(*(Text(cell) for cell in cells))
    points = _table("Part", "Tokens or bytes", "Observed us", "Predicted us", "Off by")
    for one in fitted.compared:
        values = (
            str(one.part),
            f"{one.point.size:,.0f}",
            f"{one.point.took_us:,.0f}",
            f"{one.predicted_us:,.0f}",
            f"{one.off:+.1%}",
        )
        points.add_row(*(Text(value) for value in values))
    for column in points.columns[1:]:
        column.justify = "right"
    return [parts, points]


def fit_json(fitted: FittedProfile, document: dict[str, Any]) -> dict[str, Any]:
    """The fitted profile with its errors, for programs."""
    return {
        "profile": document,
        "parts": [
            {"part": str(one.part), "points": one.points, "error": one.error, "terms": one.terms}
            for one in fitted.parts
        ],
        "points": [
            {
                "part": str(one.part),
                "size": one.point.size,
                "observed_us": one.point.took_us,
                "predicted_us": one.predicted_us,
                "relative_error": one.off,
            }
            for one in fitted.compared
        ],
    }


def _table(*headers: str) -> Table:
    return Table(*folded(*headers), box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
