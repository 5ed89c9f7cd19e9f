"""Bodies of `/v1/match`: what is accepted, what is refused and how, by both decoders."""

import base64
import itertools
import json
import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from app.api import match_schemas as schemas
from app.api.match_refusals import judge
from app.api.match_wire import decode_json, decode_packed
from app.errors import ErrorCode, NexusError

QUERY = {"tenant": "t", "model": "m", "tokens": [1, 2, 3]}
SCOPE = {"engine_family": "vllm", "semantic_type": "attention_kv"}
PUBLISHED = json.loads((Path(__file__).parents[2] / "openapi" / "v1.json").read_text())
SCHEMA = Draft202012Validator(
    {"$ref": "#/components/schemas/MatchQueries", "components": PUBLISHED["components"]}
)


def body(*queries: Any) -> bytes:
    return json.dumps({"queries": list(queries)}).encode()


def refused(raw: bytes) -> tuple[ErrorCode, list[str]]:
    with pytest.raises(NexusError) as caught:
        decode_json(raw)
    return caught.value.code, [found.pointer for found in caught.value.errors]


def test_a_prompt_has_the_same_tokens_in_every_form() -> None:
    packed = array("I", [1, 2, 2**32 - 1]).tobytes()
    text = base64.b64encode(packed).decode()
    plain, b64 = decode_json(
        body(
            QUERY | {"tokens": [1, 2, 2**32 - 1]},
            {"tenant": "t", "model": "m", "tokens_b64": text},
        )
    )
    url = decode_packed(b"tenant=t&model=m&lora=po%C3%A9t", packed)
    assert bytes(memoryview(plain.tokens)) == b64.tokens == url.tokens == packed
    assert (plain.wanted, url.wanted.lora) == (b64.wanted, "poét")


def test_hashes_are_integers_of_either_sign_or_hexadecimal() -> None:
    (asked,) = decode_json(body({"tenant": "t", "model": "m", "hashes": [1, -1, "ff" * 32]}))
    assert asked.names is not None
    assert list(asked.names[:2]) == [1, 2**64 - 1]
    assert 0 <= asked.names[2] < 2**64


@pytest.mark.parametrize(
    ("raw", "code", "pointers"),
    [
        (b"{", ErrorCode.INVALID_JSON, []),
        (b"[]", ErrorCode.INVALID_BODY, [""]),
        (b"{}", ErrorCode.MISSING_FIELD, ["/queries"]),
        (body(), ErrorCode.INVALID_FIELD, ["/queries"]),
        (body(*[QUERY] * 65), ErrorCode.INVALID_FIELD, ["/queries"]),
        (body(QUERY | {"tenant": ""}), ErrorCode.INVALID_FIELD, ["/queries/0/tenant"]),
        (body(QUERY | {"model": "a\0b"}), ErrorCode.INVALID_FIELD, ["/queries/0/model"]),
        (body(QUERY, QUERY | {"hue": 1}), ErrorCode.UNKNOWN_FIELD, ["/queries/1/hue"]),
        (body(QUERY | {"tokens": [1, "2"]}), ErrorCode.INVALID_FIELD, ["/queries/0/tokens"]),
        (body(QUERY | {"tokens": None}), ErrorCode.INVALID_FIELD, ["/queries/0"]),
        (body(QUERY | {"hashes": [1]}), ErrorCode.INVALID_FIELD, ["/queries/0"]),
        (
            body({"tenant": "t", "model": "m", "hashes": [1], "states": SCOPE}),
            ErrorCode.INVALID_FIELD,
            ["/queries/0/states"],
        ),
        (
            body({"tenant": "t", "model": "m", "tokens_b64": "AAA="}),
            ErrorCode.INVALID_FIELD,
            ["/queries/0/tokens_b64"],
        ),
        (
            body({"tenant": "t", "model": "m", "hashes": ["xy"]}),
            ErrorCode.INVALID_FIELD,
            ["/queries/0/hashes"],
        ),
        (
            body(QUERY | {"extra_keys": [[2**64]]}),
            ErrorCode.INVALID_FIELD,
            ["/queries/0/extra_keys"],
        ),
        (
            body(QUERY | {"extra_keys": [[[[[[[[1]]]]]]]]}),
            ErrorCode.INVALID_FIELD,
            ["/queries/0/extra_keys"],
        ),
    ],
)
def test_what_is_refused_is_named(raw: bytes, code: ErrorCode, pointers: list[str]) -> None:
    assert refused(raw) == (code, pointers)


def test_all_queries_together_have_at_most_a_million_tokens() -> None:
    half = {"tenant": "t", "model": "m", "tokens_b64": base64.b64encode(bytes(2_000_004)).decode()}
    assert len(decode_json(body(half))) == 1
    assert refused(body(half, half))[0] is ErrorCode.QUERY_TOO_LARGE


NULLS = b",".join([b"null"] * 40_000)
NUMBERS = b",".join(b"%d" % number for number in range(40_000))
MANY = b",".join([b"1"] * 2_000_000)


def with_field(field: bytes, times: int = 1, prompt: bytes = b"") -> bytes:
    query = b'{"tenant":"t","model":"m",%s%s}' % (prompt, field)
    return b'{"queries":[%s]}' % b",".join([query] * times)


@pytest.mark.parametrize(
    ("raw", "code", "pointers"),
    [
        (with_field(b'"hashes":[%s]' % NUMBERS), None, []),
        (with_field(b'"hashes":[%s]' % NUMBERS, 2), ErrorCode.QUERY_TOO_LARGE, []),
        (with_field(b'"hashes":[%s]' % MANY), ErrorCode.QUERY_TOO_LARGE, []),
        (
            with_field(b'"hashes":[%s]' % b",".join([b'"ab"'] * 40_000)),
            ErrorCode.QUERY_TOO_LARGE,
            [],
        ),
        (with_field(b'"extra_keys":[%s]' % NULLS, 1, b'"tokens":[1],'), None, []),
        (
            with_field(b'"extra_keys":[%s]' % NULLS, 2, b'"tokens":[1],'),
            ErrorCode.QUERY_TOO_LARGE,
            [],
        ),
        (
            with_field(b'"extra_keys":[[%s]]' % NUMBERS, 1, b'"tokens":[1],'),
            ErrorCode.QUERY_TOO_LARGE,
            [],
        ),
        (
            with_field(b'"extra_keys":[%s]' % MANY, 1, b'"tokens":[1],'),
            ErrorCode.QUERY_TOO_LARGE,
            [],
        ),
        (
            with_field(b",".join(b'"u%d":1' % at for at in range(500_000))),
            ErrorCode.UNKNOWN_FIELD,
            ["/queries/0/u0"],
        ),
        (with_field(b'"lora":[%s]' % MANY), ErrorCode.INVALID_FIELD, ["/queries/0/lora"]),
        (b"[%s]" % MANY, ErrorCode.INVALID_BODY, [""]),
        (b'{"queries":[%s' % MANY, ErrorCode.INVALID_FIELD, ["/queries/0"]),
        (b'{"queries":[{"tenant":' + b" " * 200_000, ErrorCode.INVALID_JSON, []),
    ],
    ids=itertools.count(),
)
def test_what_one_request_may_cost_is_bounded(
    raw: bytes, code: ErrorCode | None, pointers: list[str]
) -> None:
    began = time.process_time()
    if code is None:
        decode_json(raw)
    else:
        assert refused(raw) == (code, pointers)
    # Some hundredths; what has no bound takes seconds.
    assert time.process_time() - began < 1


def test_of_many_faults_the_first_are_named() -> None:
    many = {f"u{at}": 1 for at in range(500)}
    code, pointers = refused(body(*[QUERY | many] * 10))
    assert code is ErrorCode.UNKNOWN_FIELD
    assert pointers == [f"/queries/0/u{at}" for at in range(20)]
    bad = {"tokens": [-1] * 5_000, "hashes": [None] * 5_000, "extra_keys": [1] * 5_000}
    code, pointers = refused(body(*[QUERY | bad | {"hue": 1}] * 2))
    assert pointers[:2] == ["/queries/0/extra_keys/0", "/queries/0/tokens/0"]
    assert len(pointers) < 20


@pytest.mark.parametrize("depth", [7, 300, 985, 990, 1_000, 1_010, 1_100, 100_000])
def test_what_is_nested_deep_is_refused(depth: int) -> None:
    nested = b'"extra_keys":[[' + b"[" * depth + b"]" * depth + b"]]"
    assert refused(with_field(nested, 1, b'"tokens":[1],'))[0] in {
        ErrorCode.INVALID_FIELD, ErrorCode.INVALID_JSON, ErrorCode.INVALID_BODY,
        ErrorCode.QUERY_TOO_LARGE,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["AAAAAB==", "AAAAAA=", "AAAAAA==\n", "AAAA", "AAAAAAAAAAB=", "é"])
def test_base64_is_taken_as_published(text: str) -> None:
    query = {"tenant": "t", "model": "m", "tokens_b64": text}
    assert refused(body(query)) == (ErrorCode.INVALID_FIELD, ["/queries/0/tokens_b64"])
    # What reads the schema here takes a newline at the end for none.
    assert SCHEMA.is_valid({"queries": [query]}) == text.endswith("\n")


@pytest.mark.parametrize(
    ("query", "packed", "pointer"),
    [
        (b"model=m", b"", "/query/tenant"),
        (b"tenant=t&model=m&hue=1", b"", "/query/hue"),
        (b"tenant=t&tenant=t&model=m", b"", "/query/tenant"),
        (b"tenant=%ff&model=m", b"", "/query"),
        (b"tenant=t&model=" + b"m" * 600, b"", "/query"),
        (b"tenant=t&model=m", b"abc", ""),
    ],
)
def test_what_is_refused_of_a_packed_prompt_is_named(query, packed, pointer) -> None:
    with pytest.raises(NexusError) as caught:
        decode_packed(query, packed)
    assert [found.pointer for found in caught.value.errors] == [pointer]


TEXTS = st.sampled_from([None, 1, "", "x", "é", "a\0", "x" * 600])
FIELDS = {
    "tenant": TEXTS, "model": TEXTS, "revision": TEXTS, "layout": TEXTS, "instance_id": TEXTS,
    "lora": TEXTS, "cache_salt": TEXTS,
    "extra_keys": st.sampled_from([None, [], [None], [["a"]], [1], [[{"b": 1}]], "x"]),
    "tokens": st.sampled_from([None, [], [1], [2**32], [-1], [1.5], [True], "x", {}]),
    "tokens_b64": st.sampled_from([None, "", "AAAAAA==", "AAAAAB==", 1]),
    "hashes": st.sampled_from([None, [], [1], [-(2**63)], [2**64], ["ab"], ["a"], [None]]),
    "block_tokens": st.sampled_from([None, 1, 0, 2**21, "1"]),
    "states": st.sampled_from([None, {}, SCOPE, 1]),
    "hue": st.just(1),
}  # fmt: skip


# A few fields of all: dictionaries with a choice about each are slow to make.
SOME = st.lists(
    st.sampled_from(sorted(FIELDS)).flatmap(lambda name: FIELDS[name].map(lambda v: (name, v))),
    max_size=4,
).map(dict)


@given(
    SOME,
    st.lists(st.sampled_from(sorted(FIELDS)), max_size=3).map(dict.fromkeys),
    st.sampled_from(["tokens", "tokens_b64", "hashes"]),
)
def test_both_decoders_and_the_published_schema_accept_the_same(given, nulls, prompt) -> None:
    good = {"tokens": [1], "tokens_b64": "AAAAAA==", "hashes": [1]}[prompt]
    value = {"queries": [{"tenant": "t", "model": "m", prompt: good} | given | nulls]}

    def accepts(decode, given) -> bool:
        try:
            decode(given)
        except NexusError:
            return False
        return True

    by_model = accepts(lambda given: judge(given, schemas.MatchQueries), value)
    assert accepts(decode_json, json.dumps(value).encode()) == by_model
    assert SCHEMA.is_valid(value) == by_model
