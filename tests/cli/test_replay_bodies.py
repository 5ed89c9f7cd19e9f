import msgspec
import pytest

from app.bridge.wire import BridgeDecoder
from app.cli.replay_bodies import (
    LookupAnswer,
    ReplayScope,
    entry_id,
    estimate_body,
    lookup_body,
    registration_body,
)
from app.cli.replay_tokens import TokenSource
from app.cli.trace_format import MAX_INPUT_TOKENS, TraceRequest
from app.contract.registration import parse_registration
from app.contract.rules import extent_unit_tokens
from app.contract.sizes import payload_bytes

SCOPE = ReplayScope("t", "n", "m", "vllm", "gqa_kv", block_tokens=512)
REQUEST = TraceRequest(0, 1300, 1, (0, 1, 2))
TOKENS = TokenSource(512)


def registration(scope=SCOPE, request=REQUEST):
    stored = TOKENS.full_blocks(request)
    assert stored is not None
    return msgspec.json.decode(registration_body(scope, request, stored))["entries"][0]


def test_the_service_accepts_what_is_registered():
    parsed = parse_registration(registration())
    assert parsed.entry.identity.key.tokens == TOKENS.tokens(REQUEST)[:1024].tolist()
    descriptor = parsed.entry.descriptor
    assert extent_unit_tokens(descriptor) == 512
    assert payload_bytes(descriptor, 1024) == 2 * 80 * 1024 * 8 * 128 * 2


def test_a_lookup_of_the_stored_tokens_carries_the_registered_evidence():
    stored = TOKENS.full_blocks(REQUEST)
    assert stored is not None
    body = lookup_body(SCOPE, stored)
    assert BridgeDecoder().lookup(body).identity.namespace == "n"
    asked = msgspec.json.decode(body)
    assert registration()["validation"] == {
        "model_identity": asked["locus_model_identity"],
        "input_semantic_identity": asked["locus_input_semantic_identity"],
        "input_fingerprint": asked["input_fingerprint"],
    }


def test_equal_prefixes_register_the_same_bytes():
    longer = TraceRequest(9, 1500, 7, (0, 1, 5))
    assert registration() == registration(request=longer)


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "u"},
        {"namespace": "u"},
        {"model": "u"},
        {"engine_family": "sglang"},
        {"semantic_type": "mha_kv"},
        {"block_tokens": 16},
    ],
)
def test_entry_ids_differ_by_scope(changes):
    fields = {name: getattr(SCOPE, name) for name in ReplayScope.__dataclass_fields__}
    other = ReplayScope(**{**fields, **changes})
    assert entry_id(SCOPE, (0, 1)) != entry_id(other, (0, 1))


def test_entry_ids_differ_by_chain():
    assert len({entry_id(SCOPE, ids) for ids in [(0,), (1,), (0, 1), (1, 0), (0, 1, 2)]}) == 5


def test_the_longest_input_fits_a_body_of_8_mib_when_registered():
    length = MAX_INPUT_TOKENS // 512 * 512
    longest = TraceRequest(0, length, 1, tuple(range(length // 512)))
    stored = TOKENS.full_blocks(longest)
    assert stored is not None
    assert len(registration_body(SCOPE, longest, stored)) <= 8 * 1024 * 1024


def answer(**compatibility):
    verdict = {"reusable": True, "fallback_to_recompute": False, "reason": ""}
    entry = {
        "identity": {"entry_id": "e", "key": {"tokens": [1]}},
        "location": {"tier": "host_dram", "locator": "node://replay/state/e"},
    }
    result = {
        "classification": "partial",
        "matched_extent": {"units": 512, "granularity": "block"},
        "entry": entry,
        "compatibility": {**verdict, **compatibility},
        "validation": {"source_handle": "h"},
    }
    decoded = msgspec.json.decode(msgspec.json.encode({"match_result": result}), type=LookupAnswer)
    assert decoded.match_result is not None
    return decoded.match_result


def test_an_estimate_names_the_matched_state():
    estimate = BridgeDecoder().estimate(estimate_body(answer()))
    assert (estimate.source_state, estimate.source_handle) == ("e", "h")
    assert estimate.source_locator == "node://replay/state/e"


def test_a_match_that_the_service_advises_against_serves_nothing():
    assert answer().usable_tokens == 512
    assert answer(reusable=False).usable_tokens == 0
    assert answer(fallback_to_recompute=True).usable_tokens == 0
