"""The engines whose KV events are followed: how each stands, and what is wrong with it."""

from typing import Final

from starlette.responses import Response

from app.api.engine_schemas import DoctorQuery, EngineQuery
from app.api.engines import examine, list_engines, may_see, statuses_of
from app.console.rendering import page
from app.console.visit import Visit
from app.engines.doctor import diagnose
from app.engines.intake import no_engine
from app.engines.registration import EngineKey
from app.paging import MAX_CURSOR_CHARS

PAGE_ITEMS: Final = 100


async def engines_page(visit: Visit) -> Response:
    """All engines that the key may see, with the doctor's findings of each."""
    cursor = visit.request.query_params.get("cursor", "")[: MAX_CURSOR_CHARS + 1] or None
    query = EngineQuery(model=None, page_size=PAGE_ITEMS, cursor=cursor)
    found = await list_engines(query, visit.principal, visit.services)
    asked = DoctorQuery(engine=None, dp_rank=None)
    report = await examine(asked, visit.principal, visit.services)
    reports = {(one.instance_id, one.dp_rank): one for one in report.reports}
    return page(visit, "engines.html", items=found.items, more=found.next_cursor, reports=reports)


async def engine_page(visit: Visit) -> Response:
    """One engine: its stream, its blocks by tier, what was left out, and the doctor's findings."""
    params = visit.request.path_params
    key = EngineKey(params["instance_id"], params["dp_rank"])
    engine = visit.services.engines.get(key)
    if engine is None or not may_see(visit.principal, engine):
        raise no_engine()
    statuses = await statuses_of(visit.services, visit.principal, [engine])
    if not statuses:
        raise no_engine()
    status = statuses[0]
    forgotten = visit.services.index_stats()["forgotten"]
    diagnosis = diagnose(status, visit.services.clock.now_us(), forgotten)
    return page(visit, "engine.html", engine=status, view=status.view, diagnosis=diagnosis)
