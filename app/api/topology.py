"""`/v1/topology`: the nodes, engines and links of the fleet, put whole and kept in versions."""

from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Path, Query, Request, Response

from app.api.declared import errors_of, list_errors, one_errors
from app.api.documents import (
    REFUSED,
    EntityTags,
    document_body,
    entity_tag,
    expected_numbers,
    names_tag,
    require_document,
)
from app.api.openapi import TOPOLOGY_SCHEMA
from app.api.topology_schemas import (
    TopologyDetail,
    TopologyFaultView,
    TopologyInForce,
    TopologyPage,
    TopologyQuery,
    TopologyUpload,
    TopologyView,
)
from app.contract.limits import MAX_I63
from app.dependencies import ServicesDep, TopologyReader, TopologyWriter
from app.errors import ErrorCode
from app.paging import decode_cursor, encode_cursor
from app.topology.topology_repository import StoredTopology, TopologySummary
from app.topology.topology_store import NO_TOPOLOGY, no_topology

_CURSOR_KIND: Final = "topologies"
_NONE_YET: Final = entity_tag(NO_TOPOLOGY, "0" * 64)

Version = Annotated[int, Path(ge=1, le=MAX_I63, description="The version.")]


def topology_router() -> APIRouter:
    """The routes of the topology."""
    router = APIRouter(tags=["topology"])
    done = errors_of(*REFUSED, ErrorCode.TOPOLOGY_CHANGED)
    done[201] = {"model": TopologyView, "description": "It is the topology in force now."}
    router.put(
        "/v1/topology",
        summary="Put the topology",
        responses=done,
        response_description="It was the topology in force already.",
        openapi_extra=document_body(TOPOLOGY_SCHEMA),
    )(put_topology)
    active = errors_of()
    active[304] = {"description": "It is the one that If-None-Match names."}
    router.get(
        "/v1/topology",
        summary="The topology in force",
        response_model=TopologyInForce,
        responses=active,
    )(get_topology)
    router.get(
        "/v1/topology/versions", summary="List versions of the topology", responses=list_errors()
    )(list_topologies)
    router.get(
        "/v1/topology/{version}",
        summary="One version of the topology",
        response_model=TopologyDetail,
        responses=one_errors(),
    )(get_topology_version)
    return router


async def put_topology(
    request: Request,
    response: Response,
    query: Annotated[TopologyUpload, Query()],
    *,
    principal: TopologyWriter,
    services: ServicesDep,
    if_match: EntityTags = None,
) -> TopologyView:
    """Make the document, YAML or JSON, the topology in force: here at once, on every replica within
    a second. Putting what is in force changes nothing and is 200. With `If-Match` or
    `expected_version` it is 412 when another version than the one read is in force.
    """
    require_document(request)
    stored, created = await services.topology_store.put(
        await request.body(),
        principal.key_id,
        query.message,
        expected=_expected(if_match, query.expected_version),
    )
    if created:
        await services.topology.refresh_now()
    response.status_code = 201 if created else 200
    response.headers["Location"] = f"/v1/topology/{stored.version}"
    response.headers["ETag"] = entity_tag(stored.version, stored.content_sha256.hex())
    return TopologyView(**_summary(stored, stored.version))


async def get_topology(
    _: TopologyReader, services: ServicesDep, if_none_match: EntityTags = None
) -> Response:
    """The latest version, with an `ETag`, and what this process plans with."""
    stored = await services.topology_store.latest()
    tag = _NONE_YET if stored is None else entity_tag(stored.version, stored.content_sha256.hex())
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if if_none_match is not None and names_tag(if_none_match, tag):
        return Response(status_code=304, headers=headers)
    status = services.topology.status()
    fault = status.fault
    shown = {
        "topology": None if stored is None else _whole(stored, stored.version),
        "known_version": status.version,
        "fault": None
        if fault is None
        else TopologyFaultView.model_validate(fault).model_dump(mode="json"),
    }
    return _answer(shown, headers)


async def list_topologies(
    query: Annotated[TopologyQuery, Query()], _: TopologyReader, services: ServicesDep
) -> TopologyPage:
    """Versions, newest first."""
    after = decode_cursor(_CURSOR_KIND, {}, query.cursor, int) if query.cursor else None
    found, latest = await services.topology_store.page(after, query.page_size + 1)
    page = found[: query.page_size]
    more = len(found) > len(page)
    return TopologyPage(
        items=[TopologyView(**_summary(topology, latest)) for topology in page],
        next_cursor=encode_cursor(_CURSOR_KIND, {}, page[-1].version) if more else None,
    )


async def get_topology_version(
    version: Version, _: TopologyReader, services: ServicesDep
) -> Response:
    """One version, as decisions that record it were made with."""
    found = await services.topology_store.get(version)
    if found is None:
        raise no_topology(version)
    return _answer(_whole(*found), {})


def _expected(if_match: str | None, version: int | None) -> frozenset[int] | None:
    """The versions that may be in force; None where any may."""
    named = expected_numbers(if_match)
    if version is None:
        return named
    return frozenset({version}) if named is None else named & {version}


def _answer(shown: dict[str, Any], headers: dict[str, str]) -> Response:
    return Response(orjson.dumps(shown), media_type="application/json", headers=headers)


def _whole(stored: StoredTopology, latest: int) -> dict[str, Any]:
    summary = TopologyView(**_summary(stored, latest)).model_dump(mode="json")
    # As it is stored: of megabytes, reading and writing again would keep everybody waiting.
    return summary | {"document": orjson.Fragment(stored.document)}


def _summary(topology: TopologySummary, latest: int) -> dict[str, Any]:
    return {
        "version": topology.version,
        "content_sha256": topology.content_sha256.hex(),
        "message": topology.message,
        "key_id": topology.key_id,
        "created_at": topology.created_at,
        "in_force": topology.version == latest,
    }
