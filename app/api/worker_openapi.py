"""What FastAPI cannot see of `/v1/workers`: heartbeats are decoded by the wire's own types."""

from typing import Any, Final

import msgspec

from app.api.workers import HEARTBEAT_SCHEMA
from app.transfer.wire import Heartbeat

_REF: Final = "#/components/schemas/"
# The bridge's models have some of the wire's names.
_PREFIX: Final = "Worker"
_UUID: Final = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


def add_workers(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the body of heartbeats, and how the list leads on."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    _, wire = msgspec.json.schema_components([Heartbeat], ref_template=f"{_REF}{_PREFIX}{{name}}")
    # Defaults are Python values; one round trip leaves JSON values only.
    plain = msgspec.json.decode(msgspec.json.encode(wire))
    components.update({_PREFIX + name: schema for name, schema in plain.items()})
    instance = components[HEARTBEAT_SCHEMA]["properties"]["instance_id"]
    instance["pattern"] = _UUID
    paths = document["paths"]
    one = paths["/v1/workers/{name}"]
    paths["/v1/workers"]["get"]["responses"]["200"]["links"] = {
        "GetWorker": _link(one["get"], "$response.body#/items/0/name")
    }
    one["put"]["responses"]["200"]["links"] = {
        "GetWorker": _link(one["get"], "$request.path.name"),
        "ForgetWorker": _link(one["delete"], "$request.path.name"),
    }
    return document


def _link(operation: dict[str, Any], name: str) -> dict[str, Any]:
    return {"operationId": operation["operationId"], "parameters": {"name": name}}
