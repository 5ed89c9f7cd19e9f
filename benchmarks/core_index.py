"""Rows of `benchmarks.core` in which systems do the same work: find, store, memory, trace."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import core_work as work
from benchmarks.core_peers import OURS, PeerError, Process, system
from benchmarks.core_table import Plan, Table, compare, say

ALL: Final = (OURS, "dynamo", "sglang")
# Bars of a hit at 1e6 blocks: (blocks, packed, list). At 1e7 half of it.
DYNAMO_BARS: Final = ((16, 10.0, 6.0), (128, 12.0, 5.0), (1_024, 20.0, 4.0), (8_192, 60.0, 4.0))
SGLANG_BARS: Final = ((128, 2.0), (8_192, 4.0))
TOKENS_BAR: Final = 8.0
TOKEN_BLOCKS: Final = 512
STORE_BAR, TRACE_BAR, WIRE_BAR = 5.0, 6.0, 4.0
BYTES_BAR, BYTES_RATIO_BAR = 64.0, 0.4
MILLION: Final = 1_000_000
# (length in blocks, kind, system, form) -> nanoseconds of the least round.
Best = dict[tuple[int, str, str, str], float]


@contextmanager
def systems(names: Sequence[str], plan: Plan, table: Table) -> Iterator[list[Process]]:
    """Those that run; a peer that does not is a row with the reason. Ours has to."""
    with ExitStack() as stack:
        running = []
        for name in names:
            try:
                running.append(stack.enter_context(system(name, plan.wheels)))
            except PeerError as error:
                if name == OURS:
                    raise
                if (name, str(error)) not in table.missing:
                    say(f"{name} does not run: {error}")
                    table.absent(name, str(error))
        yield running


def loaded(running: Sequence[Process], blocks: int, *, memory: bool) -> dict[str, Any]:
    """All parts on each in turn: {"work": ..., name: {"ns": ..., "rss": ...}}."""
    made = [process.call("workload", blocks=blocks) for process in running]
    if any(each != made[0] for each in made):
        raise AssertionError("the systems do not make the same work")
    found: dict[str, Any] = {"work": made[0]}
    for process in running:
        if memory:
            process.call("settle")
        found[process.name] = {"ns": 0}
    parts = made[0]["parts"]
    for part in range(parts):
        for process in running:
            found[process.name]["ns"] += process.call("load", part=part)
        if part % 32 == 31:
            say(f"  {part + 1} of {parts} parts are loaded")
    if memory:
        for process in running:
            found[process.name] |= process.call("memory")
    return found


# ---- find, and bytes a block


def measure_find(table: Table, plan: Plan, blocks: int, *, bars: bool) -> None:
    """Rows of an index of that size, and the bars where that size has some."""
    rounds = plan.rounds
    say(f"find: loading {blocks:,} blocks")
    with systems(plan.names, plan, table) as running:
        found = loaded(running, blocks, memory=True)
        _memory_rows(table, blocks, found, running)
        best: Best = {}
        for number in range(rounds):
            for length, kind, forms in _cases():
                _find_round(running, length, kind, forms, best)
            if number == 0 or number == rounds - 1:
                say(f"  round {number + 1} of {rounds} at {blocks:,} blocks, answers equal")
    for (length, kind, name, form), ns in best.items():
        table.row(
            "find", index_blocks=blocks, blocks=length, kind=kind, system=name, form=form,
            us=ns / 1000,
        )  # fmt: skip
    if bars:
        _find_bars(table, plan, blocks, best)


def _cases() -> list[tuple[int, str, tuple[str, ...]]]:
    plain = ("packed", "list", "array", "batch")
    cases = [(length, kind, plain) for length in work.QUERY_BLOCKS for kind in work.KINDS]
    return [*cases, (TOKEN_BLOCKS, "hit", ("tokens",))]


def _find_round(
    running: Sequence[Process], length: int, kind: str, forms: Sequence[str], best: Best
) -> None:
    answers: dict[str, Any] = {}
    asked = [(one, form) for form in forms for one in running if form in one.forms]
    for process, form in asked:
        result = process.call("find", blocks=length, kind=kind, form=form)
        if result["ns"] is None:
            continue
        key = (length, kind, process.name, form)
        best[key] = min(best.get(key, math.inf), result["ns"])
        if process.name not in answers:
            answers[process.name] = result["answers"]
        elif answers[process.name][: len(result["answers"])] != result["answers"]:
            raise AssertionError(f"{process.name} answers differently as {form}")
    if answers:
        asked_all = [one for one in running if one.name in answers]
        compare(f"find {kind}, {length} blocks", asked_all, answers)


def _find_bars(table: Table, plan: Plan, blocks: int, best: Best) -> None:
    half = 0.5 if blocks > MILLION else 1.0
    at = f"at {blocks:,}"

    def against(name: str, bar: float, length: int, form: str, peer: tuple[str, str]) -> None:
        ours, other = (length, "hit", OURS, form), (length, "hit", *peer)
        if ours in best and other in best:
            table.at_least(name, best[other] / best[ours], bar)
        elif peer[0] in plan.names:
            why = f"{peer[0]} did not run" if ours in best else "no chain is so long"
            table.absent(name, why)

    for length, packed, listed in DYNAMO_BARS:
        for form, bar in (("packed", packed), ("list", listed)):
            name = f"find {length:,} blocks {at}, {form}, of Dynamo's"
            against(name, bar * half, length, form, ("dynamo", "list"))
    for length, bar in SGLANG_BARS:
        name = f"find {length:,} blocks {at}, packed, of SGLang's Rust tree"
        against(name, bar, length, "packed", ("sglang", "array"))
    name = f"8,192 tokens to prefix {at}, hashing included, of Dynamo's"
    against(name, TOKENS_BAR, TOKEN_BLOCKS, "tokens", ("dynamo", "tokens"))


def _memory_rows(
    table: Table, blocks: int, found: dict[str, Any], running: Sequence[Process]
) -> None:
    distinct, held = found["work"]["distinct"], found["work"]["held"]
    per_block = {}
    for process in running:
        figures = found[process.name]
        per_block[process.name] = figures["rss"] / distinct
        table.row(
            "load", index_blocks=blocks, system=process.name, distinct=distinct, held=held,
            bytes_a_block=per_block[process.name], bytes_a_held_block=figures["rss"] / held,
            million_blocks_a_s=held / figures["ns"] * 1000,
            allocated_a_block=figures["allocated"] / distinct,
        )  # fmt: skip
        say(f"  {process.name}: {per_block[process.name]:.1f} bytes a block, "
            f"{held / figures['ns'] * 1000:.2f} M blocks/s")  # fmt: skip
    if blocks < MILLION:
        return
    table.at_most(f"bytes a block at {blocks:,}", per_block[OURS], BYTES_BAR, "bytes")
    if "dynamo" in per_block:
        ratio = per_block[OURS] / per_block["dynamo"]
        table.at_most(f"bytes a block at {blocks:,} of Dynamo's", ratio, BYTES_RATIO_BAR, "of")


# ---- store


def measure_store(table: Table, plan: Plan, blocks: int) -> None:
    """Whole loads from an empty index on, with everything that is passed made beforehand."""
    names, rounds = plan.names, plan.rounds
    for how, bar in (("keys", STORE_BAR), ("wire", WIRE_BAR), ("tokens", None)):
        taking = {"keys": ALL, "wire": (OURS, "dynamo"), "tokens": (OURS,)}[how]
        with systems([name for name in names if name in taking], plan, table) as running:
            made = [process.call("workload", blocks=blocks) for process in running]
            best = {process.name: math.inf for process in running}
            for number in range(rounds):
                spent = _store_round(running, made[0]["parts"], how)
                best = {name: min(best[name], ns) for name, ns in spent.items()}
                if number == 0 or number == rounds - 1:
                    say(f"store by {how}: round {number + 1} of {rounds} at {blocks:,} blocks")
            _equal_after_store(running, blocks)
        for name, ns in best.items():
            table.row("store", how=how, index_blocks=blocks, system=name, blocks=made[0]["held"],
                      million_blocks_a_s=made[0]["held"] / ns * 1000)  # fmt: skip
        if bar is not None:
            name = {
                "keys": f"store {blocks:,} synthetic blocks, Dynamo's JSON built beforehand",
                "wire": f"store {blocks:,} blocks with wire decoding on both sides",
            }[how]
            if "dynamo" in best:
                table.at_least(name, best["dynamo"] / best[OURS], bar)
            elif "dynamo" in names:
                table.absent(name, "dynamo did not run")


def _store_round(running: Sequence[Process], parts: int, how: str) -> dict[str, int]:
    spent = {process.name: 0 for process in running}
    for process in running:
        process.call("fresh")
    for part in range(parts):
        for process in running:
            spent[process.name] += process.call("load", part=part, how=how, keep=True)
    return spent


def _equal_after_store(running: Sequence[Process], blocks: int) -> None:
    for length in (128, 1_024, 8_192):
        answers = {
            process.name: process.call("find", blocks=length, kind="hit", form=process.forms[0])[
                "answers"
            ]
            for process in running
        }
        compare(f"after storing {blocks:,} blocks", running, answers)


# ---- trace


def measure_trace(table: Table, plan: Plan, path: Path, limit: int) -> None:
    names, rounds = plan.names, plan.rounds
    for block_tokens in (work.TRACE_BLOCK_TOKENS, work.BLOCK_TOKENS):
        bar_name = f"trace by {block_tokens} tokens, store, Dynamo's JSON built beforehand"
        if not path.exists():
            why = f"no trace at {path}; name one with --trace"
            say(why)
            table.absent(bar_name, why)
            continue
        with systems(names, plan, table) as running:
            made = [
                process.call(
                    "trace", path=str(path.resolve()), block_tokens=block_tokens, limit=limit
                )
                for process in running
            ]
            say(f"trace by {block_tokens} tokens: {made[0]}")
            finds = {process.name: math.inf for process in running}
            stores = dict(finds)
            for number in range(rounds):
                answers = {}
                for process in running:
                    result = process.call("replay")
                    answers[process.name] = result["answers"]
                    finds[process.name] = min(finds[process.name], result["find_ns"])
                    stores[process.name] = min(stores[process.name], result["store_ns"])
                compare(f"trace by {block_tokens} tokens", running, answers)
                if number == 0 or number == rounds - 1:
                    say(f"  round {number + 1} of {rounds}, answers equal")
        for name, ns in finds.items():
            table.row("trace", block_tokens=block_tokens, system=name, **made[0],
                      find_us_a_request=ns / made[0]["requests"] / 1000,
                      store_us_a_request=stores[name] / made[0]["requests"] / 1000)  # fmt: skip
        if "dynamo" in stores and block_tokens == work.BLOCK_TOKENS:
            table.at_least(bar_name, stores["dynamo"] / stores[OURS], TRACE_BAR)
        elif "dynamo" in names and "dynamo" not in stores:
            table.absent(bar_name, "dynamo did not run")
