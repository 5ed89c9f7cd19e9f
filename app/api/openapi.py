"""What FastAPI cannot see of `/v1/states`: its bodies are decoded by the contract's own types."""

from typing import Any, Final

import msgspec
from pydantic.json_schema import models_json_schema

from app.api.state_schemas import RegisterProblem, StateBatch
from app.contract.registration import Registration

_REF: Final = "#/components/schemas/"
# The bridge's models have some of the contract's names.
_PREFIX: Final = "Contract"


def add_states(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the bodies of registrations, and how their answers lead on."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    models = [(StateBatch, "validation"), (RegisterProblem, "serialization")]
    _, definitions = models_json_schema(models, ref_template=_REF + "{model}")  # type: ignore[arg-type]
    components.update(definitions["$defs"])
    (registration,), contract = msgspec.json.schema_components(
        [Registration], ref_template=f"{_REF}{_PREFIX}{{name}}"
    )
    # Defaults are Python values (tuples, enums); one round trip leaves JSON values only.
    plain = msgspec.json.decode(msgspec.json.encode(contract))
    components.update({_PREFIX + name: schema for name, schema in plain.items()})
    components[StateBatch.__name__]["properties"]["entries"]["items"] = registration
    _add_links(document["paths"])
    return document


def _add_links(paths: dict[str, Any]) -> None:
    states, one = paths["/v1/states"], paths["/v1/states/{state_id}"]
    for operation, status, pointer in (
        ("post", "200", "/results/0/state_id"),
        ("post", "201", "/results/0/state_id"),
        ("get", "200", "/items/0/state_id"),
    ):
        states[operation]["responses"][status]["links"] = {
            name: {
                "operationId": one[method]["operationId"],
                "parameters": {"state_id": f"$response.body#{pointer}"},
            }
            for name, method in (("GetState", "get"), ("DeleteState", "delete"))
        }
    decisions, one = paths["/v1/decisions"], paths["/v1/decisions/{decision_id}"]
    decisions["get"]["responses"]["200"]["links"] = {
        "GetDecision": {
            "operationId": one["get"]["operationId"],
            "parameters": {"decision_id": "$response.body#/items/0/decision_id"},
        }
    }
