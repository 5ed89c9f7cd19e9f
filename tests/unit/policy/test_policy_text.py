"""Reading operators' documents: what YAML and JSON mean here, and what is refused."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import ErrorCode, NexusError
from app.policy.text import MAX_DEPTH, MAX_DOCUMENT_BYTES, parse_document


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
        ("[" + "a," * 10_000 + "a]", ""),
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
