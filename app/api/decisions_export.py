"""`GET /v1/decisions/export`: the chosen decisions as one file."""

from typing import Annotated, Any, Final

from fastapi import Query
from fastapi.responses import Response

from app.api.declared import errors_of
from app.api.long_answers import LongAnswer, Places
from app.decisions.export import MEDIA_TYPES, ExportPages, encoder_of, export_bytes
from app.decisions.schemas import ExportQuery
from app.dependencies import DecisionsReader, ServicesDep
from app.errors import ErrorCode

# Each reads as fast as its client takes it.
MAX_EXPORTS: Final = 2


class ExportRoute:
    """The route, and the places of the exports of one process."""

    def __init__(self) -> None:
        self._places = Places(MAX_EXPORTS, "exports")

    async def serve(
        self,
        query: Annotated[ExportQuery, Query()],
        principal: DecisionsReader,
        services: ServicesDep,
    ) -> Response:
        """Every chosen decision of one moment, newest first, with its inputs. An answer whose end
        is missing was cut, and is not the whole of them.
        """
        pages = ExportPages(services.database, query.chosen(principal))
        await pages.begin()
        pieces = export_bytes(pages, encoder_of(query.format))
        return LongAnswer(
            pieces,
            self._places,
            media_type=MEDIA_TYPES[query.format],
            headers={
                "content-disposition": f'attachment; filename="decisions.{query.format}"',
                "cache-control": "no-store",
            },
        )


def export_responses() -> dict[int | str, dict[str, Any]]:
    """What the route answers with, for OpenAPI."""
    schema = {"type": "string", "format": "binary"}
    file = {
        "description": "The file, in the format asked for.",
        "content": {media_type: {"schema": schema} for media_type in MEDIA_TYPES.values()},
    }
    return {200: file} | errors_of(ErrorCode.UNKNOWN_FIELD, ErrorCode.TENANT_FORBIDDEN)
