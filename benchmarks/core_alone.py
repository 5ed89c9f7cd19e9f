"""Our index by itself, a process for each role: `python -m benchmarks.core_alone CORES`.

Roles that run at the same time are told when to begin and to end, by the clock that all share.
"""

import ctypes
import gc
import os
import random
import threading
import time
from array import array
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import core_work as work
from benchmarks.core_child import answer_lines, clock_ns
from benchmarks.core_nexus import KEY_BYTES, SCOPE_KEY, Nexus
from nexuskv_core import BlockIndex, BusyError, chain

CHURN_CHAINS, CHURN_KEPT = 256, 128
EVICT_BYTES = 256 << 20
CHASE_BYTES = 1 << 30
CHASE_STEPS = 1_000_000
GROWTH_CHAIN_STORES = 16
BATCH = 256


class Alone:
    def __init__(self) -> None:
        self.index: Any = None
        self.requests: list[work.Request] = []
        self.questions: dict[int, list[bytes]] = {}
        self.chases: dict[bool, Any] = {}
        self.churned: list[tuple[array, bytes]] = []

    # ---- growth

    def growth(self, blocks: int) -> dict[str, Any]:
        """Chains of random keys in stores of 512; each store timed by itself."""
        index, draw = BlockIndex(), random.Random(3)
        holder = index.open_holder(index.open_stream())
        walls, cpus = [], []
        wall, cpu = time.perf_counter_ns, time.thread_time_ns
        parent = None
        gc.disable()
        for number in range(blocks // work.STORE_BLOCKS):
            keys = draw.randbytes(KEY_BYTES * work.STORE_BLOCKS)
            names = array("Q", draw.randbytes(8 * work.STORE_BLOCKS))
            parent = None if number % GROWTH_CHAIN_STORES == 0 else parent
            cpu_begin, begin = cpu(), wall()
            index.store(holder, names, keys, parent=parent)
            walls.append(wall() - begin)
            cpus.append(cpu() - cpu_begin)
            parent = names[-1]
        gc.enable()
        return {
            "longest_ms": max(walls) / 1e6,
            "longest_cpu_ms": max(cpus) / 1e6,
            "median_us": median(walls) / 1e3,
            "p999_us": sorted(walls)[int(len(walls) * 0.999)] / 1e3,
            "stores": len(walls),
            "million_blocks_a_s": len(walls) * work.STORE_BLOCKS / sum(walls) * 1e3,
        }

    # ---- an index, made or taken over

    def workload(self, blocks: int) -> None:
        self.requests = work.synthetic(blocks)

    def fill(self, blocks: int, *, shared: bool) -> dict[str, Any]:
        self.workload(blocks)
        holder = Nexus(shared=shared)
        for part in work.slices(self.requests):
            holder.apply(holder.prepare(part, work.BLOCK_TOKENS, "keys"))
        self.index = holder.index
        return {"pid": os.getpid(), "fd": self.index.fd() if shared else None}

    def attach(self, pid: int, fd: int) -> None:
        """A process reads another one's index by its memory file."""
        handle = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY)
        self.index = BlockIndex.attach(handle)

    def snapshot(self, path: str) -> dict[str, Any]:
        begin = time.perf_counter()
        self.index.snapshot(path)
        return {"s": time.perf_counter() - begin, "bytes": Path(path).stat().st_size}

    def question(self) -> str:
        return self._questions(128, 1)[0].hex()

    def restore(self, path: str, question: str) -> dict[str, Any]:
        """In a new process: at which moment the first answer was there."""
        keys = bytes.fromhex(question)
        begin = time.monotonic()
        self.index, _ = BlockIndex.restore(path)
        found = self.index.reach(keys)
        ready = time.monotonic()
        if max(found.values(), default=0) != len(keys) // KEY_BYTES:
            raise AssertionError("the copy does not know what was stored")
        return {"ready_at_s": ready, "restore_s": ready - begin}

    # ---- roles

    def churn(self, begin_at_s: float, end_at_s: float) -> dict[str, float] | None:
        """Stores and removes at full rate. None when told too late."""
        draw, index = random.Random(4), self.index
        chains = self.churned = self.churned or [
            (
                array("Q", draw.randbytes(8 * work.STORE_BLOCKS)),
                draw.randbytes(KEY_BYTES * work.STORE_BLOCKS),
            )
            for _ in range(CHURN_CHAINS)
        ]
        holder = index.open_holder(index.open_stream())
        kept: deque[array] = deque()
        stored = at = 0
        if not _wait_until(begin_at_s):
            index.close_holder(holder)
            return None
        while time.monotonic() < end_at_s:
            names, keys = chains[at % CHURN_CHAINS]
            index.store(holder, names, keys)
            stored += len(names)
            kept.append(names)
            if len(kept) > CHURN_KEPT:
                index.remove(holder, kept.popleft())
            at += 1
        spent = time.monotonic() - begin_at_s
        index.close_holder(holder)
        index.sweep()
        return {"million_blocks_a_s": stored / spent / 1e6}

    def ask(self, blocks: int, begin_at_s: float, end_at_s: float) -> dict[str, float] | None:
        """One find after the other; how long each took. None when told too late."""
        questions = self._questions(blocks, 1_024)
        reach, clock, spent = self.index.reach, time.perf_counter_ns, []
        busy = at = wrong = 0
        if not _wait_until(begin_at_s):
            return None
        gc.disable()
        end_ns = clock() + int((end_at_s - begin_at_s) * 1e9)
        while (begin := clock()) < end_ns:
            question = questions[at % len(questions)]
            try:
                found = reach(question)
            except BusyError:
                busy += 1
            else:
                wrong += max(found.values(), default=0) != blocks
            spent.append(clock() - begin)
            at += 1
        gc.enable()
        if wrong:
            raise AssertionError(f"{wrong} of {at} answers were wrong")
        spent.sort()
        return {
            "finds_a_s": at / (end_at_s - begin_at_s),
            "p50_us": spent[at // 2] / 1e3,
            "p99_us": spent[int(at * 0.99)] / 1e3,
            "worst_us": spent[-1] / 1e3,
            "busy": busy,
        }

    def threads(self, count: int, blocks: int, duration_s: float) -> float:
        """Finds a second of so many threads, in batches."""
        questions = self._questions(blocks, 1_024)
        batches = [questions[at : at + BATCH] for at in range(0, len(questions), BATCH)]
        ready, done = threading.Barrier(count + 1), [0] * count

        def run(me: int) -> None:
            ready.wait()
            end = time.monotonic() + duration_s
            at = me
            while time.monotonic() < end:
                self.index.reach_many(batches[at % len(batches)])
                done[me] += len(batches[at % len(batches)])
                at += 1

        threads = [threading.Thread(target=run, args=(me,)) for me in range(count)]
        for thread in threads:
            thread.start()
        ready.wait()
        begin = time.monotonic()
        for thread in threads:
            thread.join()
        return sum(done) / (time.monotonic() - begin)

    # ---- cold

    def chase(self, library: str, *, huge: bool) -> float:
        """Nanoseconds of a dependent read over 1 GiB."""
        chase = ctypes.CDLL(library)
        chase.chase_make.restype = ctypes.c_void_p
        chase.chase_walk.restype = ctypes.c_double
        if huge not in self.chases:
            self.chases[huge] = ctypes.c_void_p(
                chase.chase_make(ctypes.c_size_t(CHASE_BYTES), ctypes.c_int(huge))
            )
        if not self.chases[huge].value:
            raise MemoryError("no memory for the chase")
        walked = chase.chase_walk(ctypes.byref(self.chases[huge]), ctypes.c_size_t(CHASE_STEPS))
        return float(walked)

    def cold(self, library: str, blocks: int, count: int) -> dict[str, float]:
        """Median of finds whose part of the index is in no cache; the code and the keys are.

        Before each of them everything is evicted, and a chain of another family is looked up in the
        same way: clock and interpreter are code, too.
        """
        chase = ctypes.CDLL(library)
        queries = work.queries(self.requests, blocks, "hit")
        if not queries:
            raise LookupError(f"no chain has {blocks} blocks")
        questions = [(query.chain[0].start, _keys(query)) for query in queries]
        reach, clock, spent = self.index.reach, time.perf_counter_ns, []
        for at, (family, keys) in enumerate(questions[:count]):
            others = [other for start, other in questions[at + 1 :] + questions if start != family]
            chase.chase_evict(ctypes.c_size_t(EVICT_BYTES))
            took = 0
            for one in (*others[:1], keys):
                copied = bytes(memoryview(one))
                begin = clock()
                found = reach(copied)
                took = clock() - begin
            spent.append(took)
            if max(found.values(), default=0) != blocks:
                raise AssertionError("a cold find is wrong")
        return {"cold_ns": median(spent) - clock_ns(), "finds": len(spent)}

    def _questions(self, blocks: int, count: int) -> list[bytes]:
        if blocks not in self.questions:
            queries = work.queries(self.requests, blocks, "hit")[:count]
            self.questions[blocks] = [_keys(query) for query in queries]
        return self.questions[blocks]


def _keys(query: work.Query) -> bytes:
    return chain(SCOPE_KEY, work.chain_tokens(query.chain, work.BLOCK_TOKENS), work.BLOCK_TOKENS)


def _wait_until(begin_at_s: float) -> bool:
    """False when it is past already."""
    left = begin_at_s - time.monotonic()
    if left > 0:
        time.sleep(left)
    return left > 0


if __name__ == "__main__":
    answer_lines(Alone)
