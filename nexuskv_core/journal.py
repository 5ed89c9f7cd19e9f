"""What was done to a block index, call by call, and doing it again: for faults that are to be
looked at in another process, in the oracle, or under a sanitizer.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

# Calls that change an index, and the arguments of them that are bytes.
WRITES: Final = frozenset(
    {
        "open_stream", "open_holder", "close_stream", "close_holder", "sweep", "set_progress",
        "store", "store_tokens", "hold", "remove",
    }
)  # fmt: skip
_BYTES: Final = "bytes:"


class Journal:
    """An index whose changes are told, one line of JSON each, before they are made."""

    def __init__(self, index: Any, tell: Callable[[bytes], object]) -> None:
        self._index = index
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._index, name)
        if name not in WRITES:
            return call

        def told(*arguments: Any, **named: Any) -> Any:
            self._tell(json.dumps([name, _plain(arguments), _plain(named)]).encode())
            return call(*arguments, **named)

        return told


def replay(lines: Iterable[bytes], index: Any) -> int:
    """Do it again to an empty index, which may be another implementation; how many calls.

    A call that raised raises again, and is passed over as it was. Raises ValueError for a line that
    is none of a journal.
    """
    done = 0
    for line in lines:
        try:
            name, arguments, named = json.loads(line)
            call = getattr(index, name) if name in WRITES else None
        except (ValueError, TypeError) as error:
            raise ValueError("not a line of a journal") from error
        if call is None:
            raise ValueError(f"not a change of an index: {name}")
        done += 1
        try:
            call(*_back(arguments), **_back(named))
        except (ValueError, OverflowError, RuntimeError):
            continue
    return done


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _BYTES + value.hex()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, memoryview) or hasattr(value, "tolist"):
        return [int(each) for each in value]
    return value


def _back(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(_BYTES):
        return bytes.fromhex(value.removeprefix(_BYTES))
    if isinstance(value, dict):
        return {name: _back(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_back(each) for each in value]
    return value
