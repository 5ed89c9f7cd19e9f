"""What a command line names is read and judged before anything slow or lasting begins."""

from collections.abc import Iterable
from pathlib import Path

from app.bridge.fixture import load_fixture
from app.contract.registration import Registration
from app.errors import NexusError
from app.policy.document import load_policy


class InputError(ValueError):
    """An option names something that cannot be used; the message says which and why."""


def check_policy(path: Path) -> None:
    """Raises InputError when the policy cannot be read or is not valid."""
    try:
        load_policy(path.read_bytes())
    except OSError as error:
        raise InputError(f"--policy: cannot read {path}: {error.strerror}") from None
    except NexusError as error:
        findings = "".join(f"\n  {found.pointer}: {found.detail}" for found in error.errors)
        raise InputError(f"--policy: {path}: {error.message}{findings}") from None


def read_fixtures(paths: Iterable[Path]) -> list[list[Registration]]:
    """The states of each fixture. Raises InputError naming the file and the entry."""
    try:
        return [load_fixture(path) for path in paths]
    except NexusError as error:
        raise InputError(f"--fixture: {error.message}") from None


def clear_ready_file(path: Path) -> None:
    """Removes what an earlier run left: whoever waits for the file must not find that one.

    Raises InputError when the file could not be written later.
    """
    if not path.parent.is_dir():
        raise InputError(f"--ready-file: there is no directory {path.parent}")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--ready-file: cannot replace {path}: {error.strerror}") from None
