import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.cli.trace import trace_app
from app.cli.trace_format import read_trace
from app.cli.trace_generate import LONGEST_INPUT_BLOCKS, generate

runner = CliRunner()
PINNED = [
    {"timestamp": 372, "input_length": 80, "output_length": 8, "hash_ids": [0, 1, 2, 3, 4]},
    {"timestamp": 554, "input_length": 111, "output_length": 5, "hash_ids": [0, 1, 2, 3, 4, 5, 6]},
    {
        "timestamp": 880,
        "input_length": 146,
        "output_length": 6,
        "hash_ids": [0, 1, 2, 3, 4, 5, 7, 8, 9, 10],
    },
]


def generated(*arguments):
    result = runner.invoke(trace_app, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def test_a_seed_fixes_the_trace_on_every_machine():
    first = generated("--requests", "3", "--seed", "7", "--block-tokens", "16")
    assert first == generated("--requests", "3", "--seed", "7", "--block-tokens", "16")
    assert first != generated("--requests", "3", "--seed", "8", "--block-tokens", "16")
    assert [json.loads(line) for line in first.splitlines()] == PINNED


def test_out_writes_the_same_bytes_to_a_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    generated("--requests", "5", "--out", str(path))
    assert path.read_bytes() == generated("--requests", "5")


@pytest.mark.parametrize("option", ["--requests", "--block-tokens"])
def test_zero_is_refused(option):
    assert runner.invoke(trace_app, ["generate", option, "0"]).exit_code == 2


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(-(2**40), 2**40), block_tokens=st.sampled_from([1, 16, 512]))
def test_every_trace_obeys_the_format(seed, block_tokens):
    raw = generated("--requests", "120", f"--seed={seed}", "--block-tokens", str(block_tokens))
    items = list(read_trace(io.BytesIO(raw), block_tokens=block_tokens))
    assert len(items) == 120
    longest = max(item.request.input_length for item in items)
    assert longest <= LONGEST_INPUT_BLOCKS * block_tokens
    stamps = [item.request.timestamp for item in items]
    assert stamps == sorted(stamps)
    firsts = list(dict.fromkeys(i for item in items for i in item.request.hash_ids))
    assert firsts == list(range(len(firsts)))


def test_a_trace_has_shared_prompts_growing_turns_cold_requests_and_partial_blocks():
    requests = list(generate(requests=400, seed=0, block_tokens=512))
    ids = [request.hash_ids for request in requests]
    earlier_blocks: set[int] = set()
    cold = grown = shared = repeated = 0
    for index, chain in enumerate(ids):
        cold += chain[0] not in earlier_blocks
        shared += chain[0] in earlier_blocks
        grown += any(len(c) > 6 and chain[: len(c) - 1] == c[:-1] for c in ids[:index])
        repeated += chain in ids[:index]
        earlier_blocks.update(chain)
    partial = sum(request.input_length % 512 != 0 for request in requests)
    assert min(cold, repeated) >= 5
    assert min(grown, shared) >= 100
    assert partial > 350
