"""How an entry may match, and what a match is called."""

from typing import Final

RULE_PREFIX_CLOSED: Final = 0  # exact, prefix, and partial where the entry allows it
RULE_CHECKPOINT: Final = 1  # only the whole entry, its extent never floored
RULE_EXACT_ONLY: Final = 2  # only when the query is the entry

CLASS_EXACT: Final = 0  # the query is the entry
CLASS_PREFIX: Final = 1  # the whole entry is covered and query tokens remain
CLASS_PARTIAL: Final = 2  # the query ends or diverges inside the entry

BLOCK_TOKENS: Final = (2, 4, 8, 16)  # block sizes an index may have
MAX_CANDIDATES: Final = 64
