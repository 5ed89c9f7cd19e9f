"""`nexuskv` as it is, but that lookups record nothing: what recording costs is the difference."""

from typing import Any

from app.cli import main
from app.lifecycle.lookup import Lookup


def _nothing(*_: Any, **__: Any) -> None:
    """In place of encoding a lookup and appending it to the spool."""


if __name__ == "__main__":
    Lookup._observe = _nothing  # type: ignore[method-assign]
    main()
