"""What FastAPI cannot see of `/v1/engines`: registrations are decoded by the engines' own type."""

from typing import Any, Final

import msgspec

from app.engines.registration import EngineSpec

_REF: Final = "#/components/schemas/"
# Of the contract's types, which a registration has in it; the bridge's have some of their names.
_PREFIX: Final = "Contract"
_PYTHON_END: Final = b'\\\\Z"'


def add_engines(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the body of a registration, and how the list leads on."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    _, wire = msgspec.json.schema_components([EngineSpec], ref_template=f"{_REF}{_PREFIX}{{name}}")
    # Defaults are Python values; one round trip leaves JSON values only. The end of a text, which
    # is `\Z` to Python alone, is the dollar of everybody else.
    plain = msgspec.json.decode(msgspec.json.encode(wire).replace(_PYTHON_END, b'$"'))
    components.update({_PREFIX + name: schema for name, schema in plain.items()})
    paths = document["paths"]
    operations = {
        "ForgetEngine": paths["/v1/engines/{instance_id}"]["delete"],
        "PushEvents": paths["/v1/engines/{instance_id}/events"]["post"],
    }
    for method, status, pointer in (
        ("post", "201", "/instance_id"),
        ("post", "200", "/instance_id"),
        ("get", "200", "/items/0/instance_id"),
    ):
        paths["/v1/engines"][method]["responses"][status]["links"] = {
            name: {
                "operationId": operation["operationId"],
                "parameters": {
                    "instance_id": f"$response.body#{pointer}",
                    "dp_rank": f"$response.body#{pointer.replace('instance_id', 'dp_rank')}",
                },
            }
            for name, operation in operations.items()
        }
    return document
