"""Reading operators' documents: what YAML and JSON mean here, and what is refused."""

import json
import sys
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ErrorCode, NexusError
from app.policy.document import load_policy
from app.policy.text import MAX_DEPTH, MAX_DOCUMENT_BYTES, MAX_ELEMENTS, parse_document


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: no\nb: on\nc: yes", {"a": "no", "b": "on", "c": "yes"}),
        ("a: true\nb: False", {"a": True, "b": False}),
        ("a: 1:30\nb: 0o17\nc: 1_000", {"a": "1:30", "b": "0o17", "c": "1_000"}),
        ("a: 2026-08-01", {"a": "2026-08-01"}),
        ("a: '1'\nb: \"true\"", {"a": "1", "b": "true"}),
        ("a: -7\nb: +7\nc: 007", {"a": -7, "b": 7, "c": 7}),
        ("a: 1.5\nb: 1e3\nc: .5", {"a": 1.5, "b": 1000.0, "c": 0.5}),
        ("a:\nb: ~\nc: null", {"a": None, "b": None, "c": None}),
        ("1: x\ntrue: y", {"1": "x", "true": "y"}),
        ("<<: {a: 1}", {"<<": {"a": 1}}),
        ("{a: [1, b]}", {"a": [1, "b"]}),
        ('{"a": "\\/\\ud83d\\ude00",\t"b": []}', {"a": "/😀", "b": []}),
        ("- 1\n- [2]", [1, [2]]),
        ("", None),
        ("# only a comment", None),
    ],
)
def test_what_a_document_means(text: str, value: Any) -> None:
    assert parse_document(text) == value
    assert parse_document(text.encode()) == value


def refused(text: str | bytes) -> NexusError:
    with pytest.raises(NexusError) as caught:
        parse_document(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("a: 1\na: 2", "/a"),
        ('{"a": 1, "a": 2}', "/a"),
        ('{"a": {"b~/": [1, {"c": 1, "c": 1}]}}', "/a/b~0~1/1/c"),
        ("{a: {b: 1, b: 2}}", "/a/b"),
        ("a: 1\n'a': 2", "/a"),
        ("a: &x [1]", "/a"),
        ("a: &x 1\nb: *x", "/a"),
        ("a: *x", "/a"),
        ("a: !!int 3", "/a"),
        ("a: !!python/object/apply:os.getcwd []", "/a"),
        ("!x {a: 1}", ""),
        ("? [a]\n: 1", ""),
        ("&k a: 1", ""),
        ("a: 1\n---\nb: 2", ""),
        ("[" + "a," * MAX_ELEMENTS + "a]", ""),
        ('{"a": [' + "[]," * MAX_ELEMENTS + "1]}", ""),
        ("{" + ",".join(f'"{n}":0' for n in range(MAX_ELEMENTS)) + "}", ""),
        ("a: " + "[" * 40 + "]" * 40, "/a" + "/0" * MAX_DEPTH),
        ('{"a":' * 40 + "1" + "}" * 40, "/a" * (MAX_DEPTH + 1)),
        ('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", ""),
    ],
    ids=lambda value: value[:24],
)
def test_what_can_mislead_is_refused_where_it_stands(text: str, pointer: str) -> None:
    error = refused(text)
    assert error.code is ErrorCode.INVALID_FIELD
    assert [finding.pointer for finding in error.errors] == [pointer]


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: b: c", "\ta: 1", "a: \x00", b"\xff\xfe", '{"a": "', "a\ud800", '"a'],
    ids=ascii,
)
def test_what_is_neither_yaml_nor_json_is_refused(text: str | bytes) -> None:
    assert refused(text).code is ErrorCode.INVALID_BODY


def test_the_greatest_depth_is_accepted() -> None:
    depth = MAX_DEPTH
    value = parse_document("[" * depth + "]" * depth)
    for _ in range(depth - 1):
        assert isinstance(value, list)
        (value,) = value
    assert value == []


def test_a_document_over_the_limit_is_refused_unread() -> None:
    assert parse_document("#" * MAX_DOCUMENT_BYTES) is None
    assert refused("#" * (MAX_DOCUMENT_BYTES + 1)).code is ErrorCode.REQUEST_TOO_LARGE
    # Bytes count, not characters.
    assert refused("#" + "é" * (MAX_DOCUMENT_BYTES // 2)).code is ErrorCode.REQUEST_TOO_LARGE


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc/~", max_size=4), inner)
    ),
    max_leaves=12,
)


class _Quoting(yaml.SafeDumper):
    """Writes every text in double quotes."""


_Quoting.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text("abc/~", max_size=4), VALUES))
def test_json_and_yaml_of_one_value_read_the_same(value: dict[str, Any]) -> None:
    """Texts are quoted: PyYAML leaves some plain that are numbers since YAML 1.2, such as 08."""
    assert parse_document(json.dumps(value)) == value
    assert parse_document(yaml.dump(value, Dumper=_Quoting, allow_unicode=True)) == value


def work(text: str) -> int:
    """How many Python and C functions run until the document is refused."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        load_policy(text.encode("utf-8", "surrogatepass")[:MAX_DOCUMENT_BYTES])
    except NexusError:
        return calls
    finally:
        sys.setprofile(None)
    raise AssertionError(f"accepted: {text[:40]}")


N = MAX_DOCUMENT_BYTES
ODD = [
    "a: " + "x" * N,
    'a: "' + "x" * (N - 8) + '"',
    'a: "' + "\\n" * (N // 2 - 8) + '"',
    "a: " + "x " * N,
    "a:\n" + " x\n" * N,
    "a: >\n" + " x\n" * N,
    "#\n" * N,
    "\n" * N,
    " " * N,
    "[" * N,
    "[" + "a," * N,
    "- a\n" * N,
    "{" + "a " * N,
    "? " * N,
    "- " * N,
    "&a " * N,
    "*a\n" * N,
    "a: !" + "a" * N,
    "a: " + "1" * N,
    "a: 1." + "1" * N,
    "a: 1e" + "9" * N,
    "".join(f"k{n}: 1\n" for n in range(N // 8)),
    '{"a":' * N,
    '{"a":' + "[" * 30_000 + "]" * 30_000 + "}",
    '{"a":' + "1" * (N - 8) + "}",
    '{"a":1.' + "1" * (N - 8) + "}",
    '{"a":1e' + "9" * (N - 8) + "}",
    '{"a":"' + "\\ud800" * (N // 6 - 8) + '"}',
    '{"a":[' + "0," * (N // 2 - 8) + "x]}",
    '{"a":[' + "0," * (N // 2 - 8) + "0]}",
    "{" + ",".join('"a":0' for _ in range(N // 8)) + "}",
    "{" + ",".join(f'"u{n}":"' + "x" * 2_000 + '"' for n in range(120)) + "}",
    '{"backend_overlays":{' + ",".join(f'"{n}":{{"x":0}}' for n in range(1_500)) + "}}",
    '{"enabled_transfer_backends":[' + ",".join('"rdma"' for _ in range(4_000)) + "]}",
]


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text[:16]))
def test_an_odd_document_is_refused_with_little_work(text: str) -> None:
    """Of a quarter of a million characters none costs a call: they are read in C, or not at all."""
    assert work(text) < 30 * MAX_ELEMENTS
