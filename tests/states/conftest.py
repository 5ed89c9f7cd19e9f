"""What the tests of `/v1/states` share."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


@pytest.fixture
def own_threads() -> Callable[[Callable[[int], Any], Iterable[int]], list[Any]]:
    """Runs a call for each number, all at the same time; the results in order."""

    def run(call: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
        chosen = list(numbers)
        with ThreadPoolExecutor(len(chosen)) as threads:
            return list(threads.map(call, chosen))

    return run
