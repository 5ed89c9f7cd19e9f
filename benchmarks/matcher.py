"""The compiled prefix index alone: look-up time, memory a block, adds and removes.

One million distinct 16-token blocks in families: 64 shared blocks, then 15 endings of 64 blocks
each. Queries are whole entries in random order, so that index lines are cold; a query's own tokens
are warm, as they are after a request was decoded. A time is the least of several rounds' medians.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

from nexuskv_core import IMPLEMENTATION, RULE_PREFIX_CLOSED, PrefixIndex

BLOCK_TOKENS = 16
SHARED_BLOCKS = 64
OWN_BLOCKS = 64
ENDINGS = 15
QUERY_BLOCKS = SHARED_BLOCKS + OWN_BLOCKS
FAMILY_BLOCKS = SHARED_BLOCKS + ENDINGS * OWN_BLOCKS
VOCABULARY_MASK = (131_071).to_bytes(4, "little")
SCOPE_KEY = bytes(range(16))
LOOKUP_BAR_US = 5.0
MEMORY_BAR_BYTES = 64.0


class Row(TypedDict):
    name: str
    value: float
    unit: str


class Bar(Row):
    bar: float
    holds: bool


class Result(TypedDict):
    rows: list[Row]
    bars: list[Bar]


def tokens_of(draw: random.Random, blocks: int) -> array:
    """Random tokens of a vocabulary of 131,072."""
    count = BLOCK_TOKENS * blocks
    wide = draw.getrandbits(32 * count) & int.from_bytes(VOCABULARY_MASK * count, "little")
    return array("I", wide.to_bytes(4 * count, sys.byteorder))


def chains(blocks: int, seed: int) -> Iterator[array]:
    draw = random.Random(seed)
    for _ in range(-(-blocks // FAMILY_BLOCKS)):
        shared = tokens_of(draw, SHARED_BLOCKS)
        for _ in range(ENDINGS):
            yield shared + tokens_of(draw, OWN_BLOCKS)


def store(index: PrefixIndex, tokens: array, entry: int, *, partial: bool) -> None:
    index.add(
        SCOPE_KEY,
        tokens,
        entry,
        rule=RULE_PREFIX_CLOSED,
        unit_tokens=BLOCK_TOKENS,
        partial=partial,
        order=entry,
    )


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(blocks: int, *, partial: bool) -> dict[str, float]:
    """In a process of its own; prints what it found as JSON."""
    for tokens in chains(FAMILY_BLOCKS, seed=9):  # let the allocator reach its working state
        tokens[0] += 0
    gc.collect()
    before = resident_bytes()
    index = PrefixIndex()
    for entry, tokens in enumerate(chains(blocks, seed=1)):
        store(index, tokens, entry, partial=partial)
    del tokens
    gc.collect()
    stats = index.stats()
    return {
        "rss": (resident_bytes() - before) / stats["blocks"],
        "allocated": stats["memory_bytes"] / stats["blocks"],
        "blocks": stats["blocks"],
    }


def memory_in_fresh_process(blocks: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.matcher", "--memory-only", "--blocks", str(blocks)],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def median_us(
    index: PrefixIndex,
    queries: list[array],
    prepare: Callable[[array], object],
    check: Callable[[list], bool],
) -> float:
    """Median time of one `match` over all queries, preparation and checking not counted."""
    spent_ns: list[int] = []
    clock = time.perf_counter_ns
    match = index.match
    for query in queries:
        tokens = prepare(query)
        start = clock()
        found = match(SCOPE_KEY, tokens)
        spent_ns.append(clock() - start)
        if not check(found.candidates):
            raise AssertionError("a look-up gave a wrong answer")
    return statistics.median(spent_ns) / 1000


def lookup_rows(blocks: int, queries_wanted: int, rounds: int, *, partial: bool) -> list[Row]:
    draw = random.Random(2)
    kept: list[tuple[int, array]] = []
    index = PrefixIndex()
    started = time.perf_counter()
    spent_drawing = 0.0
    drawn_at = started
    total = -(-blocks // FAMILY_BLOCKS) * ENDINGS
    wanted = set(draw.sample(range(total), min(queries_wanted, total)))
    for entry, tokens in enumerate(chains(blocks, seed=1)):
        spent_drawing += time.perf_counter() - drawn_at
        store(index, tokens, entry, partial=partial)
        if entry in wanted:
            kept.append((entry, tokens))
        drawn_at = time.perf_counter()
    add_s = time.perf_counter() - started - spent_drawing
    draw.shuffle(kept)
    queries = [tokens for _, tokens in kept]
    longer = [tokens + tokens_of(draw, 1) for tokens in queries]
    halved = [tokens[: 96 * BLOCK_TOKENS] + tokens_of(draw, 32) for tokens in queries]
    misses = [tokens_of(draw, QUERY_BLOCKS) for _ in queries]
    units = QUERY_BLOCKS * BLOCK_TOKENS

    def whole(found: list) -> bool:
        return found[0][2] == units

    def part(found: list) -> bool:
        return found[0][2] == 96 * BLOCK_TOKENS if partial else not found

    def nothing(found: list) -> bool:
        return not found

    as_list, as_buffer = array.tolist, array.__copy__
    kind = "with partial candidates" if partial else "whole entries"
    cases = [
        (f"lookup, u32 buffer, {kind}", queries, as_buffer, whole),
        (f"lookup, list, {kind}", queries, as_list, whole),
        (f"lookup, u32 buffer, one block longer, {kind}", longer, as_buffer, whole),
        (f"lookup, u32 buffer, leaves at block 96, {kind}", halved, as_buffer, part),
        (f"lookup, u32 buffer, miss, {kind}", misses, as_buffer, nothing),
    ]
    best = [float("inf")] * len(cases)
    for _ in range(rounds):  # interleaved, so that a noisy moment does not hit one case alone
        for at, (_, listed, prepare, check) in enumerate(cases):
            best[at] = min(best[at], median_us(index, listed, prepare, check))
    rows: list[Row] = [
        {"name": name, "value": value, "unit": "us"}
        for (name, *_), value in zip(cases, best, strict=True)
    ]
    stored = index.stats()["blocks"]
    started = time.perf_counter()
    for entry in range(total):
        index.remove(entry)
    remove_s = time.perf_counter() - started
    rows.append({"name": f"adds, {kind}", "value": stored / add_s, "unit": "blocks/s"})
    rows.append({"name": f"removes, {kind}", "value": stored / remove_s, "unit": "blocks/s"})
    return rows


def run(*, blocks: int = 1_000_000, queries: int = 2_000, rounds: int = 15) -> Result:
    """Rows of all figures, and the bars they are held to; refuses the plain-Python index."""
    if IMPLEMENTATION != "compiled":
        raise RuntimeError("the benchmark is of the compiled index")
    memory = memory_in_fresh_process(blocks)
    rows = lookup_rows(blocks, queries, rounds, partial=False)
    rows += lookup_rows(blocks, queries, rounds, partial=True)
    rows += [
        {"name": "memory a block, resident", "value": memory["rss"], "unit": "bytes"},
        {"name": "memory a block, allocated", "value": memory["allocated"], "unit": "bytes"},
    ]
    limits = {
        "lookup, u32 buffer, whole entries": LOOKUP_BAR_US,
        "memory a block, resident": MEMORY_BAR_BYTES,
        "memory a block, allocated": MEMORY_BAR_BYTES,
    }
    bars: list[Bar] = [
        {
            "name": f"matcher: {row['name']}, 128 of {blocks:,} blocks",
            "value": row["value"],
            "unit": row["unit"],
            "bar": limits[row["name"]],
            "holds": row["value"] <= limits[row["name"]],
        }
        for row in rows
        if row["name"] in limits
    ]
    return {"rows": rows, "bars": bars}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory-only", action="store_true")
    chosen = parser.parse_args()
    if chosen.memory_only:
        print(json.dumps(measure_memory(chosen.blocks, partial=True)))
        return
    result = run(blocks=chosen.blocks, queries=chosen.queries, rounds=chosen.rounds)
    for row in result["rows"]:
        print(f"{row['name']:<68} {row['value']:>14,.2f} {row['unit']}")
    print()
    for bar in result["bars"]:
        verdict = "holds" if bar["holds"] else "MISSED"
        print(f"{bar['name']:<68} {bar['value']:>8.2f} <= {bar['bar']:g} {bar['unit']}: {verdict}")


if __name__ == "__main__":
    main()
