"""What was told and is not in the index, by why."""

from collections import Counter
from typing import Final

import msgspec

# Of all that is counted: what a message can carry, and a database, and a scrape.
MAX_COUNT: Final = (1 << 63) - 1
# Of distinct names that are told apart.
_MAX_NAMES: Final = 64
_OTHER_NAMES: Final = "(others)"


class Tallies(msgspec.Struct):
    """What came with events and is not in the index, and why; in blocks, but for the first."""

    # Stores whose blocks have another number of tokens than is registered. They are in the index.
    wrong_block_size: int = 0
    # Nobody's here; of them, those with a salt that is not registered.
    unattributed: int = 0
    salted_unknown: int = 0
    # Moved to another place, and not known.
    unknown_names: int = 0
    # Removed from where they were not.
    removed_unknown: int = 0
    # Whose place in a chain is not said, or that more than one chain may have had before them.
    unplaced: int = 0
    # Beyond the number of places, shapes and groups a publisher may have.
    beyond_limits: int = 0
    # With something in them, multimodal inputs, that is not to be understood.
    unclear: int = 0


def plus(counted: int, more: int) -> int:
    """The sum, or what a counter can carry at most."""
    return min(counted + more, MAX_COUNT)


def add_names(counter: Counter[str], found: dict[str, int]) -> None:
    """Count names that come from outside: those beyond a number of them as one."""
    for name, times in found.items():
        kept = name if name in counter or len(counter) < _MAX_NAMES else _OTHER_NAMES
        counter[kept] += times
