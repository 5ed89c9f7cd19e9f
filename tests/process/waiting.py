"""Waiting for what another process does: by looking again until a deadline, never by a guess."""

import time
from collections.abc import Callable
from typing import TypeVar

POLL_S = 0.02
T = TypeVar("T")


def until(look: Callable[[], T], what: str | Callable[[], str], *, within_s: float = 20.0) -> T:
    """The first truthy answer of `look`; fails the test, naming `what`, after the deadline.

    What changes while it waits is said by a `what` that is called at the end.
    """
    deadline = time.monotonic() + within_s
    while True:
        if found := look():
            return found
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:g} s: {said}")
        time.sleep(POLL_S)
