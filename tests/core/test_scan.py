"""The token scanner against JSON itself, compiled and plain side by side."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nexuskv_core import PrefixIndex, _scan, reference

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
SPACE = st.text(" \t\r\n", max_size=2)
KEY = b"0123456789abcdef"


@pytest.fixture(params=[_scan.TokenText, reference.TokenText], ids=["compiled", "reference"])
def scanner(request):
    return request.param


@given(tokens=TOKENS, spaces=st.lists(SPACE, min_size=4, max_size=4))
def test_a_list_is_read_as_json_reads_it(tokens, spaces):
    before, after, inside, around = spaces
    text = before + "[" + inside + (around + "," + inside).join(map(str, tokens)) + "]" + after
    assert json.loads(text) == tokens
    for kind in (_scan.TokenText, reference.TokenText):
        scanned = kind(text.encode())
        assert scanned.tolist() == tokens
        assert len(scanned) == len(tokens)
        for count in {0, len(tokens) // 2, len(tokens)}:
            assert json.loads(b"[" + scanned.json_prefix(count) + b"]") == tokens[:count]
        with pytest.raises(ValueError, match="not so many"):
            scanned.json_prefix(len(tokens) + 1)


@given(st.text('[]0123456789,.-+eE \n"tx{}', max_size=12))
@example("[01]")
@example("[1,]")
@example("[,1]")
@example("[-0]")
@example("[4294967296]")
@example("[4294967295]")
@example("[99999999999999999999999]")
@example("[1 2]")
@example("[1]]")
@example("")
def test_what_is_no_list_of_tokens_is_refused(text):
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    good = (
        isinstance(value, list)
        and all(type(item) is int and 0 <= item < 2**32 for item in value)
        and not re.search(r"[-.eE]", text)
    )
    for kind in (_scan.TokenText, reference.TokenText):
        if good:
            assert kind(text.encode()).tolist() == value
        else:
            with pytest.raises(ValueError, match="not a JSON array"):
                kind(text.encode())


def test_bytes_that_are_not_text_are_refused(scanner):
    for text in (b"[\xff]", b"[1\x00]", b"\x00[1]", "[١]".encode()):
        with pytest.raises(ValueError, match="not a JSON array"):
            scanner(text)


def test_it_is_a_read_only_buffer_that_outlives_its_name():
    view = memoryview(_scan.TokenText(b"[1, 2, 4294967295]"))
    assert (view.format, view.itemsize, view.readonly) == ("I", 4, True)
    assert view.tolist() == [1, 2, 2**32 - 1]
    assert memoryview(_scan.TokenText(b"[]")).tolist() == []


def test_the_index_takes_it_like_a_list():
    index = PrefixIndex()
    tokens = list(range(40))
    index.add(KEY, tokens, 1, rule=0, unit_tokens=1, partial=True, order=0)
    text = json.dumps(tokens[:33]).encode()
    by_text = index.match(KEY, _scan.TokenText(text))
    by_list = index.match(KEY, tokens[:33])
    assert by_text.candidates == by_list.candidates == [(1, 2, 33)]
    assert by_text.identity == by_list.identity
    plain = reference.PrefixIndex()
    assert plain.match(KEY, reference.TokenText(text)).identity == by_list.identity
