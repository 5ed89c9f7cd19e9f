"""Long work on the event loop's thread, done in slices between which others have a turn."""

import asyncio
from typing import Final

# In tokens hashed once: some milliseconds.
_SLICE_COST: Final = 1_000_000


class Slices:
    """Of one request."""

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self, cost: int) -> bool:
        """True where others had a turn."""
        self._spent += cost
        if self._spent < _SLICE_COST:
            return False
        self._spent = 0
        await asyncio.sleep(0)
        return True
