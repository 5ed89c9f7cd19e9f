"""Versions of the policy: what there is, what differs between two, and activating one.

An activation is the same call as `POST /v1/policies/{number}:activate` with `If-Match`: the page
that asks for confirmation holds the entity tag of what was in force when it was made, and the
activation is refused when that has changed meanwhile.
"""

import difflib
from typing import Final, NamedTuple

import msgspec
from starlette.responses import Response

from app.api.policies import activate_policy, etag, get_policy, list_policies
from app.api.policy_schemas import PolicyDetail, PolicyQuery, PolicyUpload
from app.console.rendering import go, page
from app.console.visit import Visit
from app.control.keys import Scope
from app.errors import ErrorCode, NexusError
from app.paging import MAX_CURSOR_CHARS
from app.policy.document import canonical_bytes
from app.policy.store import MAX_MESSAGE_CHARS

PAGE_ITEMS: Final = 50
# Of the one in force: it may be of the file, which is no stored version.
IN_FORCE: Final = "active"
_CONTEXT_LINES: Final = 3


class DiffLine(NamedTuple):
    """A line of a unified difference; `kind` is `added`, `removed`, `place` or `same`."""

    kind: str
    text: str


async def policies_page(visit: Visit) -> Response:
    """The versions, newest first, and what is in force here."""
    cursor = visit.request.query_params.get("cursor", "")[: MAX_CURSOR_CHARS + 1] or None
    query = PolicyQuery(page_size=PAGE_ITEMS, cursor=cursor)
    found = await list_policies(query, visit.principal, visit.services)
    provider = visit.services.policy_provider
    return page(
        visit,
        "policies.html",
        items=found.items,
        next_cursor=found.next_cursor,
        current=provider.current,
        fault=provider.status().fault,
        activated=visit.request.query_params.get("activated"),
    )


async def policy_page(visit: Visit) -> Response:
    """One version: its document, and when it was active."""
    found = await _policy(visit, visit.request.path_params["number"])
    return page(visit, "policy.html", policy=found, may_activate=_may_activate(visit))


async def diff_page(visit: Visit) -> Response:
    """What the canonical documents of two versions say differently."""
    params = visit.request.query_params
    before, after = params.get("from", IN_FORCE), params.get("to", "")
    lines = difference(await _document(visit, before), await _document(visit, after))
    return page(visit, "policy_diff.html", before=before, after=after, lines=lines)


async def confirm_page(visit: Visit) -> Response:
    """What would change, and the form that changes it."""
    found = await _policy(visit, visit.request.path_params["number"])
    provider = visit.services.policy_provider
    # Taken before the document that is compared: a change in between is found by the tag.
    tag = etag(provider)
    proposed = pretty(msgspec.json.encode(found.document))
    lines = difference(await _document(visit, IN_FORCE), proposed)
    return page(
        visit,
        "policy_activate.html",
        policy=found,
        current=provider.current,
        tag=tag,
        lines=lines,
        max_message=MAX_MESSAGE_CHARS,
    )


async def activate(visit: Visit) -> Response:
    """Make the version the one in force. Raises POLICY_CHANGED, NOT_FOUND, FORBIDDEN."""
    fields = await visit.form()
    number: int = visit.request.path_params["number"]
    tag = fields.get("if_match", "")
    if not tag or fields.get("confirmed") != "yes":
        raise NexusError(
            ErrorCode.MISSING_FIELD, "Confirm on the page that shows what changes; nothing was done"
        )
    message = fields.get("message", "").strip() or None
    # The store judges the message, as it does for every caller.
    upload = PolicyUpload.model_construct(message=message)
    result = await activate_policy(number, upload, visit.principal, visit.services, tag)
    return go(f"/console/policies?activated={result.activation.number}")


def difference(before: str, after: str) -> list[DiffLine]:
    """A unified difference with some lines around each change; empty when they are the same."""
    found = difflib.unified_diff(
        before.splitlines(), after.splitlines(), n=_CONTEXT_LINES, lineterm=""
    )
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return [DiffLine(kinds.get(line[0], "same"), line) for line in found][2:]


def pretty(document: bytes) -> str:
    """A canonical document, which is one line of JSON, over several lines."""
    return msgspec.json.format(document, indent=2).decode()


def _may_activate(visit: Visit) -> bool:
    return visit.allows(Scope.POLICIES_ACTIVATE)


async def _policy(visit: Visit, number: int) -> PolicyDetail:
    return await get_policy(number, visit.principal, visit.services)


async def _document(visit: Visit, which: str) -> str:
    """Of a version's number, or of what is in force."""
    if which == IN_FORCE:
        return pretty(canonical_bytes(visit.services.policy_provider.current.policy))
    if not (which.isascii() and which.isdigit() and len(which) < 19):
        raise NexusError(ErrorCode.INVALID_FIELD, "Compare two numbers of versions, or `active`")
    return pretty(msgspec.json.encode((await _policy(visit, int(which))).document))
