"""A process that writes to a block index at full rate: `python -m tests.core.block_writer SOCKET`.

It sends the index's file descriptor, and then stores, removes and drops until it is killed. Chain
number n is `pattern(n)`. Number 0 is stored first and stays; odd ones come and go from the end, so
that any prefix of them may be there; number -1 is never stored.
"""

import os
import random
import socket
import sys

from nexuskv_core._blocks import BlockIndex

BLOCKS = 400
CHAINS = 40


def pattern(number: int) -> tuple[list[int], bytes]:
    """Names and keys; half of the chains begin with the first 100 blocks of number 0."""
    made = random.Random(number)
    names = [made.getrandbits(64) for _ in range(BLOCKS)]
    keys = made.randbytes(16 * BLOCKS)
    if number > 0 and number % 2:
        first_names, first = pattern(0)
        names[:100], keys = first_names[:100], first[:1600] + keys[1600:]
    return names, keys


def write(index: BlockIndex, parent: int | None = None) -> None:
    """Ends when its parent process has."""
    chains = [pattern(number) for number in range(CHAINS)]
    pinned = index.open_holder(index.open_stream(b"pinned"))
    index.store(pinned, *chains[0])
    made = random.Random(0)
    holder = index.open_holder(index.open_stream(b"churn"))
    while parent is None or os.getppid() == parent:
        names, keys = chains[made.randrange(1, CHAINS)]
        index.store(holder, names, keys)
        names, _ = chains[made.randrange(1, CHAINS)]
        index.remove(holder, names[: made.randrange(50, BLOCKS) : -1])
        if made.random() < 0.001:
            index.close_stream(index.stream_of(holder))
            holder = index.open_holder(index.open_stream(b"churn"))


def main(handle: int) -> None:
    """Announce the index, and write."""
    index = BlockIndex(shared=True, max_blocks=10_000)
    with socket.socket(fileno=handle) as connection:
        socket.send_fds(connection, [b"here"], [index.fd()])
        write(index, os.getppid())


if __name__ == "__main__":
    main(int(sys.argv[1]))
