"""One plan: what was chosen, the cost of each alternative by term, and why the others lost."""

from starlette.responses import Response

from app.api.plans import plan_explained
from app.console.plan_words import TERMS, bars, called, summary
from app.console.reasons import said
from app.console.rendering import page
from app.console.visit import Visit
from app.lifecycle.plan_told import start_by_us


async def plan_page(visit: Visit) -> Response:
    """Raises NOT_FOUND, also for a decision of another tenant or kind, and NOT_RERUNNABLE."""
    decision_id = visit.request.path_params["decision_id"]
    planned = await plan_explained(visit.services, decision_id, visit.principal.tenants, full=False)
    return page(
        visit,
        "plan.html",
        planned=planned,
        told=planned.told,
        bars=bars(planned.told),
        terms=TERMS,
        summary=summary(planned.told),
        called=called,
        said=said,
        start_by_us=start_by_us(planned.told.chosen),
    )
