"""Which operating-system user runs the embedded Postgres, and which paths that user can reach."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Postgres refuses to run as root. No account is created for it: an account outlives the service
# and belongs to whoever runs the machine. `nobody` may own other things too, but the directory is
# 0700, and its processes are as powerless as those of any other account.
_CANDIDATES = ("postgres", "nexuskv", "nobody")


class PostgresStartError(Exception):
    """The embedded Postgres cannot run; the message says what to do about it."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user that owns the cluster and runs the server."""

    name: str
    uid: int
    gid: int

    @property
    def spawn_as(self) -> dict[str, Any]:
        """Arguments of `subprocess` that start a child as this user."""
        if os.geteuid() != 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def current_user() -> str:
    """The name of the user this process runs as. Raises PostgresStartError when it has none."""
    return _by_uid(os.geteuid()).name


def account_for(cluster_parent: Path) -> Account:
    """The owner of an existing cluster, else the user for a new one.

    That is ourselves, or as root the first existing unprivileged account of a short list.
    """
    if os.geteuid() != 0:
        return _by_uid(os.geteuid())
    if cluster_parent.exists():
        owner = cluster_parent.stat().st_uid
        if owner == 0:
            raise PostgresStartError(
                f"{cluster_parent} belongs to root, and Postgres refuses to run as root."
                " Move it aside, or give it to the user that made it."
            )
        return _by_uid(owner)
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise PostgresStartError(
        f"Postgres refuses to run as root, and none of the users {', '.join(_CANDIDATES)} exists."
        " Run NexusKV as an ordinary user, or set NEXUSKV_DATABASE_URL."
    )


def can_traverse(path: Path, account: Account) -> bool:
    """Whether `account` may pass through every directory of an existing `path`, by mode bits."""
    resolved = path.resolve()
    return all(_may_enter(part.stat(), account) for part in (resolved, *resolved.parents))


def make_directories(path: Path, mode: int) -> None:
    """Create what is missing of `path`, each with exactly `mode`; never touch what exists."""
    missing = [part for part in (path, *path.parents) if not part.exists()]
    for part in reversed(missing):
        try:
            part.mkdir(mode=mode)
        except FileExistsError:
            # Made by somebody else meanwhile; what is in the way of `path` itself fails later.
            continue
        part.chmod(mode)


def make_private(path: Path, account: Account) -> None:
    """Create `path`, 0700 and owned by `account`, unless it exists."""
    if path.exists():
        return
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, account.uid, account.gid)


def _by_uid(uid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise PostgresStartError(
            f"The user id {uid} has no name in the password database, and Postgres needs one."
            " Run as a named user, or set NEXUSKV_DATABASE_URL."
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if account.uid == 0:
        return True
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)
