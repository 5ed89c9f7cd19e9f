import io

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cli.trace_format import (
    MAX_INPUT_TOKENS,
    PrefixLedger,
    TraceError,
    TraceRequest,
    read_trace,
)

BLOCK_TOKENS = 4
Trace = list[TraceRequest]


def line(**changes):
    fields = {"timestamp": 0, "input_length": 6, "output_length": 1, "hash_ids": [0, 1]}
    return msgspec.json.encode({**fields, **changes})


def read(*lines, limit=None):
    stream = io.BytesIO(b"\n".join(lines) + b"\n")
    return list(read_trace(stream, block_tokens=BLOCK_TOKENS, limit=limit))


def test_lines_become_requests_in_order_and_blank_lines_are_skipped():
    items = read(line(), b"  ", line(timestamp=2.5, unknown="ignored", input_length=8))
    assert [item.line_number for item in items] == [1, 3]
    assert items[0].request == TraceRequest(0, 6, 1, (0, 1))
    assert items[1].request.timestamp == 2.5


def test_limit_leaves_the_rest_of_the_file_unread():
    assert len(read(line(), line(), b"not json", limit=2)) == 2


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"not json", "malformed"),
        (b"[]", "object"),
        (b'{"timestamp": 0}', "missing required field"),
        (b"\xff\xfe", "malformed"),
        (line(hash_ids=[0, -1]), ">= 0"),
        (line(hash_ids=[0, 2**63]), "int"),
        (line(hash_ids=["0", "1"]), "int"),
        (line(hash_ids=[0, True]), "bool"),
        (line(hash_ids=[0]), "need 2 `hash_ids`, found 1"),
        (line(hash_ids=[0, 1, 2]), "need 2 `hash_ids`, found 3"),
        (line(input_length=0, hash_ids=[]), "at least 1"),
        (line(input_length=-1), ">= 0"),
        (line(input_length=MAX_INPUT_TOKENS + 1), f"<= {MAX_INPUT_TOKENS}"),
        (line(output_length=None), "int"),
        (line(timestamp=-1), ">= 0"),
        (line(hash_ids=[1, 0]), "hash id 1 follows nothing here and id 0 in an earlier request"),
        (line(hash_ids=[0, 0]), "hash id 0 follows id 0 here and nothing in an earlier request"),
    ],
)
def test_a_bad_line_is_named_with_its_fault(bad, said):
    with pytest.raises(TraceError) as caught:
        read(line(), b"", bad)
    assert caught.value.line_number == 3
    assert str(caught.value).startswith("line 3: ")
    assert said in str(caught.value)


def test_a_line_without_end_is_refused_before_it_fills_memory(monkeypatch):
    monkeypatch.setattr("app.cli.trace_format.MAX_LINE_BYTES", 1000)
    with pytest.raises(TraceError, match="line 1: longer than 1000 bytes"):
        read(b"[" * 5000)


@st.composite
def traces(draw) -> Trace:
    """Random walks down a random tree of blocks: equal ids have equal parents by construction."""
    children: dict[tuple[int, int], int] = {}
    requests = []
    for _ in range(draw(st.integers(1, 12))):
        node, ids = -1, []
        for _ in range(draw(st.integers(1, 6))):
            node = children.setdefault((node, draw(st.integers(0, 2))), len(children))
            ids.append(node)
        last = draw(st.integers(1, BLOCK_TOKENS))
        length = (len(ids) - 1) * BLOCK_TOKENS + last
        requests.append(TraceRequest(0, length, 1, tuple(ids)))
    return requests


def brute_force(requests: Trace) -> list[int]:
    """Compare the leading whole blocks of each request with those of every earlier one."""
    whole = [r.hash_ids[: r.input_length // BLOCK_TOKENS] for r in requests]
    best = []
    for index, ids in enumerate(whole):
        shared = [
            sum(1 for depth in range(len(ids)) if ids[: depth + 1] == earlier[: depth + 1])
            for earlier in whole[:index]
        ]
        best.append(max(shared, default=0) * BLOCK_TOKENS)
    return best


@given(traces())
def test_the_bound_is_what_comparing_all_pairs_gives(requests):
    ledger = PrefixLedger(BLOCK_TOKENS)
    assert [ledger.observe(request) for request in requests] == brute_force(requests)


def test_a_partial_last_block_never_counts_even_when_the_request_repeats():
    items = read(line(), line())
    assert [item.reusable_tokens for item in items] == [0, BLOCK_TOKENS]


def test_a_block_counts_only_once_it_was_whole():
    items = read(line(input_length=6), line(input_length=8), line(input_length=8))
    assert [item.reusable_tokens for item in items] == [0, BLOCK_TOKENS, 2 * BLOCK_TOKENS]
