"""The process of one system under test: it does what a line on standard input says.

A line is `{"do": NAME, ...}`; the answer is one line, `{"ok": ...}` or `{"error": TEXT}`. Only the
calls of the system itself are timed; their arguments are made before, and what a call is given was
touched just before it, as it would be by whoever made it.
"""

import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks import core_work as work

CLOCK_PAIRS = 10_000
BATCH = 32


class System(Protocol):
    """What is told and asked. `prepare` gives the calls that `load` times."""

    forms: tuple[str, ...]
    # Knows how far a chain reaches, and not who has it.
    only_best: bool

    def fresh(self) -> None: ...
    def prepare(self, requests: Sequence[work.Request], block_tokens: int, how: str) -> Any: ...
    def apply(self, prepared: Any) -> None: ...
    def question(self, query: work.Query, block_tokens: int, form: str) -> Any: ...
    def again(self, question: Any) -> Any: ...
    def ask(self, form: str) -> Callable[[Any], Any]: ...
    def answer(self, found: Any) -> dict[int, int]: ...
    def allocated(self) -> int: ...


def resident_bytes() -> int:
    """After giving back what can be given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def clock_ns() -> int:
    """What reading the clock twice costs: taken off every single call."""
    clock = time.perf_counter_ns
    return min(-clock() + clock() for _ in range(CLOCK_PAIRS))


class Child:
    def __init__(self, system: System) -> None:
        self.system = system
        self.requests: list[work.Request] = []
        self.parts: list[list[work.Request]] = []
        self.block_tokens = work.BLOCK_TOKENS
        self.kept: dict[tuple[int, str], Any] = {}
        self.questions: dict[tuple[int, str, str], list[Any]] = {}
        self.before = 0

    def workload(self, blocks: int) -> dict[str, int]:
        self.requests = work.synthetic(blocks)
        self.parts = list(work.slices(self.requests))
        self.block_tokens = work.BLOCK_TOKENS
        distinct, held = work.totals(self.requests)
        return {"parts": len(self.parts), "distinct": distinct, "held": held}

    def trace(self, path: str, block_tokens: int, limit: int) -> dict[str, int]:
        self.requests = work.trace(Path(path), block_tokens, limit)
        self.block_tokens = block_tokens
        self.kept.clear()
        self.kept[-1, "keys"] = [
            (
                self.system.question(
                    work.Query(request.chain, request.blocks), block_tokens, self.system.forms[0]
                ),
                self.system.prepare([request], block_tokens, "keys"),
            )
            for request in self.requests
        ]
        distinct, held = work.totals(self.requests)
        return {"requests": len(self.requests), "distinct": distinct, "held": held}

    def settle(self) -> None:
        """Reach the working state of a load, so that it is not counted as the index.

        Almost nothing is stored for it: an allocator may keep what it once had.
        """
        self.system.prepare(self.parts[0], self.block_tokens, "keys")
        self.system.apply(self.system.prepare(self.parts[0][:1], self.block_tokens, "keys"))
        self.system.fresh()
        self.before = resident_bytes()

    def fresh(self) -> None:
        self.system.fresh()
        gc.collect()

    def load(self, part: int, how: str = "keys", *, keep: bool = False) -> int:
        """Nanoseconds of one part's stores."""
        prepared = self.kept.get((part, how))
        if prepared is None:
            prepared = self.system.prepare(self.parts[part], self.block_tokens, how)
            if keep:
                self.kept[part, how] = prepared
        gc.disable()
        begin = time.perf_counter_ns()
        self.system.apply(prepared)
        spent = time.perf_counter_ns() - begin
        gc.enable()
        return spent

    def memory(self) -> dict[str, int]:
        return {"rss": resident_bytes() - self.before, "allocated": self.system.allocated()}

    def find(self, blocks: int, kind: str, form: str) -> dict[str, Any]:
        """One round: the median of all queries, and what each was answered."""
        wanted = (blocks, kind, form)
        if wanted not in self.questions:
            self.questions[wanted] = self._questions(*wanted)
        clock, ask, again = time.perf_counter_ns, self.system.ask(form), self.system.again
        spent, answers = [], []
        group = BATCH if form == "batch" else 1
        gc.disable()
        for question in self.questions[wanted]:
            warm = again(question) if group == 1 else [again(each) for each in question]
            begin = clock()
            found = ask(warm)
            spent.append(clock() - begin)
            answers.append(found)
        gc.enable()
        flat = answers if group == 1 else [each for found in answers for each in found]
        return {
            "ns": (median(spent) - clock_ns()) / group if spent else None,
            "queries": len(spent),
            "answers": [sorted(self.system.answer(found).items()) for found in flat],
        }

    def _questions(self, blocks: int, kind: str, form: str) -> list[Any]:
        made = [
            self.system.question(query, self.block_tokens, form)
            for query in work.queries(self.requests, blocks, kind)
        ]
        if form != "batch":
            return made
        return [made[at : at + BATCH] for at in range(0, len(made) - BATCH + 1, BATCH)]

    def replay(self) -> dict[str, Any]:
        """The trace from an empty index on: find, then store, request by request."""
        self.fresh()
        ask = self.system.ask(self.system.forms[0])
        apply, again, clock = self.system.apply, self.system.again, time.perf_counter_ns
        find_ns = store_ns = 0
        answers = []
        gc.disable()
        for question, prepared in self.kept[-1, "keys"]:
            warm = again(question)
            begin = clock()
            found = ask(warm)
            middle = clock()
            apply(prepared)
            store_ns += clock() - middle
            find_ns += middle - begin
            answers.append(found)
        gc.enable()
        return {
            "find_ns": find_ns,
            "store_ns": store_ns,
            "answers": [sorted(self.system.answer(found).items()) for found in answers],
        }

    def describe(self) -> dict[str, Any]:
        return {"forms": self.system.forms, "only_best": self.system.only_best}


def answer_lines(make: Callable[[], object]) -> None:
    """Until standard input ends. The process is pinned before anything is made."""
    os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the system itself prints
    made = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if made is None:
                made = make()
            answer = {"ok": getattr(made, command.pop("do"))(**command)}
        except Exception:  # noqa: BLE001 - the other end reports it
            answer = {"error": traceback.format_exc(limit=-3)}
        out.write(json.dumps(answer) + "\n")
        out.flush()


def serve(make: Callable[[], System]) -> None:
    answer_lines(lambda: Child(make()))
