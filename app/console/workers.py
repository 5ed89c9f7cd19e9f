"""The workers that move bytes: their tiers, what they hold and do, and who has fallen silent."""

from starlette.responses import Response

from app.console.rendering import page
from app.console.visit import Visit
from app.topology.intake import MAX_WORKERS


async def workers_page(visit: Visit) -> Response:
    """Every worker that has registered and was not forgotten; from memory, whatever is away."""
    services = visit.services
    found = services.workers.workers()[:MAX_WORKERS]
    return page(
        visit,
        "workers.html",
        workers=found,
        silent=[worker for worker in found if not worker.available],
        silence_us=round(services.settings.worker_silence_s * 1_000_000),
    )
