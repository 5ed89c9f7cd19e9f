"""Churn with a hot prefix: `python -m tests.core.block_churn [STORES]`.

Ends with an assertion where the resident memory of this process still grows in its second half, or
the hot prefix is not there.
"""

import random
import sys
from array import array
from pathlib import Path

from nexuskv_core import BlockIndex

MIB = 1 << 20
BLOCKS = 512
BOUND_BYTES = 8 * MIB
# Of the allocator and the interpreter; the index's own memory is bounded.
SPARE_BYTES = 2 * MIB


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def main(stores: int) -> None:
    index = BlockIndex(max_blocks=1 << 20, max_bytes=BOUND_BYTES)
    holder = index.open_holder(index.open_stream(b"stream"))
    made = random.Random(1)
    hot_names, hot = array("Q", made.randbytes(8 * 64)), made.randbytes(16 * 64)
    measured = []
    for number in range(stores):
        index.store(holder, hot_names, hot)
        names, keys = array("Q", made.randbytes(8 * BLOCKS)), made.randbytes(16 * BLOCKS)
        index.store(holder, names, keys, parent=hot_names[-1])
        index.remove(holder, names[number % BLOCKS :])
        assert index.reach(hot) == {holder: 64}, number
        if number % (stores // 10) == 0:
            measured.append(resident_bytes())
    index.check_invariants()
    forgotten = index.stats()["forgotten"]
    resident = [each // MIB for each in measured]
    sys.stdout.write(f"resident MiB {resident}, forgotten blocks {forgotten:,}\n")
    assert forgotten > 50 * stores
    assert index.stats()["memory_bytes"] <= BOUND_BYTES
    assert measured[-1] - measured[len(measured) // 2] <= SPARE_BYTES


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6_000)
