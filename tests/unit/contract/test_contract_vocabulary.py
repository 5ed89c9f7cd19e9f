"""The types against the published contract, and the generated schemas against the types."""

from typing import Any

import jsonschema
import msgspec
import pytest
from contract_documents import (
    query_for,
    recurrent_document,
    registration_document,
    shared_document,
)
from msgspec import inspect

from app.contract import descriptor, entry, enums, match
from app.contract.dtypes import dtype_bits
from app.contract.execution import BackendActionResult, TransferSession
from app.contract.match import MatchResult, PartialHitPlan
from app.contract.registration import parse_registration
from app.contract.schema import EXECUTION_FILE, STATE_CONTRACT_FILE, schemas

NAMES = {
    "string": (inspect.StrType, inspect.LiteralType),
    "int": inspect.IntType,
    "bool": inspect.BoolType,
}
BEYOND = {
    "CacheEntry": {
        "model_revision",
        "adapter_revision",
        "parallel",
        "layer_scope",
        "position_convention",
        "checkpoint",
    }
}


def published() -> Any:
    return shared_document("state_contract.v1.idl.json")


def wire_type(info: inspect.Type) -> str:
    """A field's type as the published contract writes it."""
    match info:
        case inspect.Metadata(type=inner):
            return wire_type(inner)
        case inspect.UnionType(types=members):
            (inner,) = [m for m in members if not isinstance(m, inspect.NoneType)]
            return f"optional[{wire_type(inner)}]"
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"list[{wire_type(item)}]"
        case inspect.DictType(key_type=key, value_type=value):
            return f"map[{wire_type(key)},{wire_type(value)}]"
        case inspect.StructType(cls=cls) | inspect.EnumType(cls=cls):
            return cls.__name__
    return next(name for name, kinds in NAMES.items() if isinstance(info, kinds))


def test_the_enums_are_the_published_ones() -> None:
    for name, members in published()["enums"].items():
        enum = getattr(enums, name)
        assert [member.name for member in enum] == members
        assert [member.value for member in enum] == [member.lower() for member in members]


def test_the_objects_have_the_published_fields() -> None:
    for name, described in published()["objects"].items():
        module = next(m for m in (descriptor, entry, match) if hasattr(m, name))
        info = inspect.type_info(getattr(module, name))
        assert isinstance(info, inspect.StructType)
        assert info.forbid_unknown_fields
        beyond = BEYOND.get(name, set())
        fields = {f.encode_name: wire_type(f.type) for f in info.fields}
        assert {k: v for k, v in fields.items() if k not in beyond} == {
            field["name"]: field["type"] for field in described["fields"]
        }
        assert beyond <= set(fields)


EXECUTION = {
    "StateSliceDescriptor": "granularity, token_count, token_start, block_id?, page_id?",
    "PayloadDescriptor": (
        "descriptor_id, engine_family, semantic_type, state_slice, byte_size_hint?"
    ),
    "PayloadLocation": "tier?, buffer_kind?, device_class?, locator?, handle_kind",
    "PayloadHandle": "handle_id, location, descriptor, ownership, opaque_ref?",
    "TransferRequest": (
        "action_kind, source_handle?, desired_target, transfer_backend?, degraded_from?, "
        "required_capability?, fallback_reason?"
    ),
    "TransferResult": "status, result_handle?, intermediate_handle?, detail?",
    "TransferSession": "session_id, request, result",
    "BackendActionResult": (
        "requested_kind, executed_kind, status, final_disposition, backend_name, "
        "selected_backend?, source, target, degraded, fallback_reason?, payload_handle?, "
        "transfer_session?, detail?"
    ),
}


@pytest.mark.parametrize("name", EXECUTION)
def test_the_execution_objects_have_their_fields(name: str) -> None:
    schema = schemas()[EXECUTION_FILE]["$defs"][name]
    fields = EXECUTION[name].split(", ")
    assert set(schema["properties"]) == {field.removesuffix("?") for field in fields}
    assert set(schema["required"]) == {field for field in fields if not field.endswith("?")}
    assert schema["additionalProperties"] is False


def action_document() -> dict[str, Any]:
    """A rejected rdma transfer that ended in recomputing."""
    target = {"handle_kind": "sink", "tier": "device", "device_class": "cuda"}
    handle = {
        "handle_id": "h1",
        "location": {"handle_kind": "file", "locator": "node://n1/state/p9"},
        "descriptor": {
            "descriptor_id": "d",
            "engine_family": "vllm",
            "semantic_type": "mha_kv",
            "state_slice": {"granularity": "token", "token_count": 4, "token_start": 0},
        },
        "ownership": "borrowed",
    }
    request = {"action_kind": "materialize", "desired_target": target, "source_handle": handle}
    session = {
        "session_id": "s1",
        "request": request | {"transfer_backend": "rdma", "required_capability": "full"},
        "result": {"status": "rejected", "detail": "no route"},
    }
    return {
        "requested_kind": "materialize",
        "executed_kind": "recompute",
        "status": "fallback",
        "final_disposition": "recompute",
        "backend_name": "rdma-0",
        "source": handle["location"],
        "target": target,
        "degraded": False,
        "fallback_reason": "no_transfer_path",
        "payload_handle": handle,
        "transfer_session": session,
    }


def match_document() -> dict[str, Any]:
    registration = registration_document()
    return {
        "classification": "prefix",
        "matched_key": registration["reuse_key"],
        "requested_key": registration["reuse_key"],
        "matched_extent": {"units": 4, "granularity": "block"},
        "entry": registration["entry"],
        "remaining": {"tokens": [], "fetch_required": True, "recompute_required": False},
        "compatibility": {"reusable": True, "fallback_to_recompute": False, "reason": ""},
    }


def plan_document() -> dict[str, Any]:
    return {
        "disposition": "partial_reuse",
        "reusable": {"tokens": [1, 5], "source_tier": "local_ssd"},
        "remaining": {"tokens": [8], "fetch_required": True, "recompute_required": True},
        "entry": recurrent_document()["entry"],
    }


@pytest.mark.parametrize(
    ("file", "cls", "document"),
    [
        (EXECUTION_FILE, BackendActionResult, action_document()),
        (EXECUTION_FILE, TransferSession, action_document()["transfer_session"]),
        (STATE_CONTRACT_FILE, MatchResult, match_document()),
        (STATE_CONTRACT_FILE, PartialHitPlan, plan_document()),
    ],
)
def test_a_document_passes_its_schema_and_its_type_unchanged(
    file: str, cls: type, document: Any
) -> None:
    validator = jsonschema.Draft202012Validator(schemas()[file])
    validator.validate(document)
    assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(document, cls))) == document
    assert not validator.is_valid(document | {"surprise": 1})


def test_the_schemas_are_schemas_and_stay_the_same() -> None:
    for schema in schemas().values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert msgspec.json.encode(schemas()) == msgspec.json.encode(schemas())
    assert list(schemas()) == [STATE_CONTRACT_FILE, EXECUTION_FILE]


def test_the_published_fixture_passes_the_schema() -> None:
    validator = jsonschema.Draft202012Validator(schemas()[STATE_CONTRACT_FILE])
    for document in shared_document("locus_bridge.v1.conformance.json")["entries"]:
        validator.validate(document)


def test_values_cannot_be_changed() -> None:
    state = parse_registration(registration_document())
    for value in (state, state.entry, state.entry.descriptor, query_for(state)):
        with pytest.raises(AttributeError):
            setattr(value, value.__struct_fields__[0], None)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("bfloat16", 16),
        ("torch.float16", 16),
        ("float8_e4m3fn", 8),
        ("int4", 4),
        ("float32", 32),
        ("float17", None),
        ("", None),
    ],
)
def test_the_width_of_an_element(dtype: str, bits: int | None) -> None:
    assert dtype_bits(dtype) == bits
