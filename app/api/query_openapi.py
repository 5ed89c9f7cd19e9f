"""What FastAPI cannot see of queries: bodies that their own decoders read."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.api import indexer_schemas, match_schemas

_REF: Final = "#/components/schemas/{model}"
_MODELS: Final[tuple[type[BaseModel], ...]] = (
    match_schemas.MatchQueries,
    indexer_schemas.IndexerRegistration,
    indexer_schemas.IndexerRemoval,
    indexer_schemas.IndexerQueryBody,
    indexer_schemas.IndexerHashQuery,
)
_HEADERS: Final = {
    "X-NexusKV-Match": {
        "description": "`unknown`: nothing matched, and an engine that is not live may have it.",
        "schema": {"type": "string", "enum": ["hit", "miss", "unknown"]},
    },
    "X-NexusKV-Tier-Counting": {
        "description": "What a tier's number counts: it alone, or it with every nearer one.",
        "schema": {"type": "string", "enum": ["only", "cumulative"]},
    },
}


def add_queries(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the bodies of queries, and the headers of their answers."""
    _, definitions = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template=_REF
    )
    components = document.setdefault("components", {}).setdefault("schemas", {})
    components.update(definitions["$defs"])
    components["MatchQuery"]["oneOf"] = [
        _given("tokens", without=("tokens_b64", "hashes")),
        _given("tokens_b64", without=("tokens", "hashes")),
        _given("hashes", without=("tokens", "tokens_b64", "states")),
    ]
    for name in ("IndexerRegistration", "IndexerRemoval"):
        components[name]["anyOf"] = [_given("modelname"), _given("model_name")]
    components["IndexerQueryBody"]["anyOf"] = [_given("model"), _given("model_name")]
    components["IndexerHashQuery"]["anyOf"] = [
        _given("model", hashes, without=("model_name",))
        for hashes in ("seq_hashes", "block_hash", "block_hashes")
    ] + [_given("model_name", "block_hashes", without=("cache_salt",))]
    paths = document["paths"]
    for path in ("/indexer/query", "/indexer/query_by_hash"):
        paths[path]["post"]["responses"]["200"]["headers"] = _HEADERS
    return document


def _given(*names: str, without: Sequence[str] = ()) -> dict[str, Any]:
    """A schema of bodies that have these, and not null."""
    properties: dict[str, Any] = {name: {"not": {"type": "null"}} for name in names}
    properties |= {name: {"type": "null"} for name in without}
    return {"required": list(names), "properties": properties}
