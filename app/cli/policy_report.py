"""What `nexuskv policy` prints: findings, warnings, lists, headings."""

from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.table import Column, Table
from rich.text import Text

from app.errors import FieldError
from app.policy.advice import PolicyWarning

# As many as the label of a policy has.
_VERSION_HEX_DIGITS: Final = 16


def findings_table(name: str, found: Sequence[FieldError], noun: str = "policy") -> Table:
    """Why a document is none of its kind: where, what is wrong, and what stands there."""
    table = Table(
        *folded("Where", "Code", "What is wrong", "Value"), title=f"{name} is not a valid {noun}"
    )
    for finding in found:
        cells = (finding.pointer or "/", finding.code.value, finding.detail, finding.value or "")
        table.add_row(*(Text(cell) for cell in cells))
    return table


def warnings_table(remarks: Sequence[PolicyWarning]) -> Table:
    """What a valid policy says that its author may not have meant."""
    table = Table(*folded("Where", "Warning", "What it means"))
    for remark in remarks:
        cells = (remark.pointer, remark.code.value, remark.detail)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def policies_table(policies: Sequence[dict[str, Any]]) -> Table:
    """`items` of a page of policies."""
    table = Table(
        *folded("Number", "Active", "sha256", "Stored", "By", "Message"),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    # Whole, so that it can be found in the label that decisions record.
    table.columns[2].min_width = _VERSION_HEX_DIGITS
    for policy in policies:
        cells = (
            str(policy["number"]),
            "yes" if policy["active"] else "",
            policy["content_sha256"][:_VERSION_HEX_DIGITS],
            second(policy["created_at"]),
            policy["key_id"],
            policy["message"] or "",
        )
        style = "bold" if policy["active"] else None
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table


def policy_heading(policy: dict[str, Any]) -> str:
    """Number, origin and message of one version, as lines of comment."""
    state = "active" if policy["active"] else "not active"
    digits = policy["content_sha256"][:_VERSION_HEX_DIGITS]
    lines = [
        f"policy {policy['number']} ({state}), sha256:{digits}",
        f"stored {second(policy['created_at'])} by {policy['key_id']}",
        *(policy["message"] or "").splitlines(),
    ]
    return "\n".join(f"# {line}" for line in lines)


def activation_line(activated: dict[str, Any]) -> str:
    """What an activation has done."""
    activation = activated["activation"]
    since = second(activation["activated_at"])
    if activated["changed"]:
        return f"Policy {activation['number']} is active since {since}."
    return f"Policy {activation['number']} was active already, since {since}."


def folded(*headers: str) -> list[Column]:
    """Columns that break what does not fit, and cut nothing."""
    return [Column(header, overflow="fold") for header in headers]


def second(moment: str) -> str:
    return moment[:19].replace("T", " ") + " UTC"
