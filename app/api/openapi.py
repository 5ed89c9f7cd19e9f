"""What FastAPI cannot see: the bodies that the contract's and the policy's own types decode."""

from typing import Any, Final

import msgspec
from pydantic.json_schema import models_json_schema

from app.api.plan_schemas import PlanRequest
from app.api.state_schemas import RegisterProblem, StateBatch
from app.contract.evidence import QueryEvidence
from app.contract.registration import Registration
from app.planner.profile import Profile
from app.policy.document import ExecutionPolicyV1, ExecutionPolicyV2
from app.topology.document import TopologyDocument

_REF: Final = "#/components/schemas/"
# The bridge's models have some of the contract's names.
_PREFIX: Final = "Contract"
# Answers have some of the documents' own.
_DOCUMENTS: Final = {
    "Policy": (ExecutionPolicyV1, ExecutionPolicyV2),
    "Cost": (Profile,),
    "Fleet": (TopologyDocument,),
}
POLICY_SCHEMAS: Final = tuple(f"Policy{version.__name__}" for version in _DOCUMENTS["Policy"])
PROFILE_SCHEMA: Final = f"Cost{Profile.__name__}"
TOPOLOGY_SCHEMA: Final = f"Fleet{TopologyDocument.__name__}"


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


def add_documents(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the bodies of policies, profiles and topologies, and how answers
    lead to a version."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for prefix, kinds in _DOCUMENTS.items():
        _, schemas = msgspec.json.schema_components(kinds, ref_template=f"{_REF}{prefix}{{name}}")
        plain = msgspec.json.decode(msgspec.json.encode(schemas))
        components.update({prefix + name: schema for name, schema in plain.items()})
    _add_policy_links(document["paths"])
    _add_version_links(document["paths"])
    return document


def _add_version_links(paths: dict[str, Any]) -> None:
    for one, name, operations in (
        ("/v1/profiles/{number}", "number", (("/v1/profiles", "post"), ("/v1/profiles", "get"))),
        (
            "/v1/topology/{version}",
            "version",
            (("/v1/topology", "put"), ("/v1/topology/versions", "get")),
        ),
    ):
        operation_id = paths[one]["get"]["operationId"]
        for path, method in operations:
            pointer = f"/items/0/{name}" if method == "get" else f"/{name}"
            responses = paths[path][method]["responses"]
            for status in ("200", "201"):
                if status in responses:
                    responses[status]["links"] = {
                        "GetVersion": {
                            "operationId": operation_id,
                            "parameters": {name: f"$response.body#{pointer}"},
                        }
                    }


def _add_policy_links(paths: dict[str, Any]) -> None:
    one, activate = paths["/v1/policies/{number}"], paths["/v1/policies/{number}:activate"]
    operations = {"GetPolicy": one["get"], "ActivatePolicy": activate["post"]}
    for method, status, pointer in (
        ("post", "200", "/number"),
        ("post", "201", "/number"),
        ("get", "200", "/items/0/number"),
    ):
        paths["/v1/policies"][method]["responses"][status]["links"] = {
            name: {
                "operationId": operation["operationId"],
                "parameters": {"number": f"$response.body#{pointer}"},
            }
            for name, operation in operations.items()
        }


def add_plans(document: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI document with the body of a plan's request."""
    components = document.setdefault("components", {}).setdefault("schemas", {})
    _, definitions = models_json_schema(
        [(PlanRequest, "validation")], ref_template=_REF + "{model}"
    )
    components.update(definitions["$defs"])
    _, contract = msgspec.json.schema_components(
        [QueryEvidence], ref_template=f"{_REF}{_PREFIX}{{name}}"
    )
    plain = msgspec.json.decode(msgspec.json.encode(contract))
    components.update({_PREFIX + name: schema for name, schema in plain.items()})
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
    one, report = "/v1/decisions/{decision_id}", "/v1/decisions/{decision_id}/outcome"
    again = "/v1/decisions/{decision_id}/rerun"
    operations = {
        "GetDecision": paths[one]["get"],
        "ReportOutcome": paths[report]["post"],
        "RerunDecision": paths[again]["get"],
    }
    paths["/v1/decisions"]["get"]["responses"]["200"]["links"] = {
        name: {
            "operationId": operation["operationId"],
            "parameters": {"decision_id": "$response.body#/items/0/decision_id"},
        }
        for name, operation in operations.items()
    }
