"""The states that are registered: a list with filters, and one of them."""

from typing import Final

from pydantic import ValidationError
from starlette.responses import Response

from app.api.state_schemas import StateQuery
from app.api.states import get_state, list_states
from app.console.filters import given, link, refusal
from app.console.rendering import page
from app.console.visit import Visit
from app.contract.enums import EngineFamily, StateSemanticType, TierKind

PAGE_ITEMS: Final = 50
_FILTERS: Final = (
    "tenant", "namespace", "model", "engine_family", "semantic_type", "tier", "entry_id",
)  # fmt: skip


async def states_page(visit: Visit) -> Response:
    """Live states by ascending id, as `GET /v1/states` gives them."""
    chosen = given(visit.request, _FILTERS)
    cursor = visit.request.query_params.get("cursor") or None
    try:
        query = StateQuery.model_validate({**chosen, "page_size": PAGE_ITEMS, "cursor": cursor})
    except ValidationError as error:
        raise refusal(error) from error
    found = await list_states(query, visit.principal, visit.services)
    more = None
    if found.next_cursor is not None:
        more = link("/console/states", {**chosen, "cursor": found.next_cursor})
    return page(
        visit,
        "states_results.html" if visit.is_fragment else "states.html",
        chosen=chosen,
        items=found.items,
        more=more,
        first=cursor is None,
        families=[one.value for one in EngineFamily if one is not EngineFamily.UNKNOWN],
        types=[one.value for one in StateSemanticType],
        tiers=[one.value for one in TierKind],
    )


async def state_page(visit: Visit) -> Response:
    """A state as it was registered; of its tokens only how many they are."""
    found = await get_state(visit.request.path_params["state_id"], visit.principal, visit.services)
    registration = found.registration
    for key in (registration["entry"]["identity"]["key"], registration["reuse_key"]["identity"]):
        key["tokens"] = f"{found.token_count} tokens"
    # The caller's own hash of its prompt is not keyed.
    if (evidence := registration.get("validation")) is not None:
        evidence.pop("input_fingerprint", None)
    return page(visit, "state.html", state=found, registration=registration)
