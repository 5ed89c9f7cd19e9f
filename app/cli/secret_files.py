"""Files that only their owner may read: made once, never loosened."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

_MODE = 0o600


class SecretFileError(ValueError):
    """A secret file cannot be used; the message says what to do."""


def read_secret(path: Path) -> str | None:
    """The stripped content; None when there is no file.

    Raises SecretFileError when others may read it, or it is no regular file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretFileError(f"cannot read {path}: {error.strerror}") from None
    with os.fdopen(fd, encoding="utf-8") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise SecretFileError(f"{path} is not a regular file")
        if mode & 0o077:
            raise SecretFileError(f"others may read {path}; run `chmod 600 {path}`")
        return file.read().strip()


def given_handle_secret(env: Mapping[str, str]) -> str | None:
    """The signing secret of `NEXUSKV_HANDLE_SECRET` or of `NEXUSKV_HANDLE_SECRET_FILE`.

    None when neither is set. Raises SecretFileError when the file is absent, or others may read it.
    """
    return _given(env, "NEXUSKV_HANDLE_SECRET", "NEXUSKV_HANDLE_SECRET_FILE")


def given_worker_secrets(env: Mapping[str, str]) -> tuple[str, ...]:
    """The one or two secrets of `NEXUSKV_WORKER_SECRET` or of `NEXUSKV_WORKER_SECRET_FILE`.

    Two are separated by comma or white space; empty when neither is set. Raises SecretFileError
    when the file is absent, or others may read it.
    """
    return _parts(_given(env, "NEXUSKV_WORKER_SECRET", "NEXUSKV_WORKER_SECRET_FILE") or "")


def worker_secrets_in(path: Path, named_by: str) -> tuple[str, ...]:
    """The secrets in this file; what is raised begins with the option that named it."""
    return _parts(_content(path, named_by))


def _given(env: Mapping[str, str], variable: str, file_variable: str) -> str | None:
    if secret := env.get(variable):
        return secret
    if name := env.get(file_variable):
        return _content(Path(name), file_variable)
    return None


def _content(path: Path, named_by: str) -> str:
    try:
        # Orchestrators mount secrets as links to the file of the current version.
        secret = read_secret(path.resolve())
    except SecretFileError as error:
        raise SecretFileError(f"{named_by}: {error}") from None
    if secret is None:
        raise SecretFileError(f"{named_by}: there is no file {path}")
    return secret


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[\s,]+", text) if part)


def write_secret(path: Path, content: str) -> None:
    """Writes the file whole, mode 0600 from its first byte on; takes the place of an older one."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    staged.unlink(missing_ok=True)
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(content + "\n")
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
