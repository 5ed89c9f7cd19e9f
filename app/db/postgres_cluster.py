"""The cluster on disk: where it lives, how it is made, what it is started with.

    HOME/postgres.lock, .json, .log     written by the supervisor, never by the server's user
    HOME/pg_hba.conf, pg_ident.conf     who may connect, rewritten at each start
    HOME/postgres/  (0700)              of the server's user: data/ and run/ (the socket)

As root the supervisor writes nothing below HOME/postgres: that user could put links there.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.db.postgres_account import (
    Account,
    PostgresStartError,
    account_for,
    can_traverse,
    current_user,
    make_directories,
    make_private,
)
from app.db.postgres_binaries import Binaries
from app.db.postgres_process import server_environment, serves_directory

SUPERUSER = "postgres"
ROLE = "nexuskv"
PORT = 5432

# A socket's address holds 107 bytes and a NUL; what a URL carries unquoted is fewer still.
_SOCKET_PATH_BYTES = 107
_SOCKET_NAME = f".s.PGSQL.{PORT}"
_URL_SAFE_PATH = re.compile(r"[A-Za-z0-9_./+-]+")
_INITDB_TIMEOUT_S = 300
# Sized for one process on a laptop; a deployment that outgrows it brings its own Postgres.
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "port": str(PORT),
    "max_connections": "60",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "max_parallel_workers_per_gather": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "jit": "off",
    "log_checkpoints": "off",
    "logging_collector": "off",
}
_VOLATILE: Mapping[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}
log = structlog.get_logger()


def make_data_dir(path: Path) -> None:
    """Create a data directory so that the server's user can reach its part; an existing one stays.

    As root that is 0711: others may pass, not list, and each file inside has its own mode.
    """
    make_directories(path, 0o711 if os.geteuid() == 0 else 0o700)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster and the user it belongs to."""

    home: Path
    account: Account

    @property
    def private_dir(self) -> Path:
        return self.home / "postgres"

    @property
    def data_dir(self) -> Path:
        return self.private_dir / "data"

    def initialise(self, binaries: Binaries, *, durable: bool) -> None:
        """Make the cluster unless it exists. It appears whole, by a rename, or not at all.

        Raises PostgresStartError for a cluster of another major version.
        """
        make_private(self.private_dir, self.account)
        version_file = self.data_dir / "PG_VERSION"
        if version_file.exists():
            _check_version(version_file.read_text().strip(), self.data_dir, binaries)
            return
        unfinished = self.private_dir / "data.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [
            binaries.program("initdb"),
            *("--pgdata", str(unfinished), "--username", SUPERUSER),
            # The C collation sorts by code point and never changes under an index; the C.UTF-8
            # character type knows letters beyond ASCII.
            *("--encoding", "UTF8", "--locale", "C", "--lc-ctype", "C.UTF-8"),
            *("--auth-local", "peer", "--auth-host", "reject", "--data-checksums"),
            *(() if durable else ("--no-sync",)),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            cwd="/",
            env=server_environment(),
            timeout=_INITDB_TIMEOUT_S,
            **self.account.spawn_as,
        )
        if done.returncode != 0:
            raise PostgresStartError(
                f"initdb failed as the user {self.account.name}:\n{done.stdout}{done.stderr}"
            )
        unfinished.rename(self.data_dir)

    def clear_leftovers(self) -> None:
        """Remove the files by which a dead server still claims the cluster and its socket.

        Postgres itself refuses to start while any process has the dead server's pid. Raises
        PostgresStartError when a living server, not started by us, uses the cluster.
        """
        pid_file = self.data_dir / "postmaster.pid"
        try:
            first_line = pid_file.read_text().split("\n", 1)[0].strip()
        except FileNotFoundError:
            first_line = ""
        pid = int(first_line) if first_line.isdecimal() else 0
        if pid > 0 and serves_directory(pid, self.data_dir):
            raise PostgresStartError(
                f"A Postgres that NexusKV did not start (pid {pid}) uses {self.data_dir}."
                " Stop it, then try again."
            )
        if pid_file.exists():
            log.info("removing_stale_postmaster_pid", pid=pid)
            pid_file.unlink()
        for name in (_SOCKET_NAME, f"{_SOCKET_NAME}.lock"):
            (self.private_dir / "run" / name).unlink(missing_ok=True)

    def make_socket_dir(self) -> Path:
        """A directory for the socket, 0700, whose path is short enough for one.

        HOME/postgres/run where it fits, else a new one below XDG_RUNTIME_DIR, /run or /tmp.
        """
        inside = self.private_dir / "run"
        if _holds_socket(inside):
            make_private(inside, self.account)
            return inside
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        for parent in (Path(runtime), Path("/run"), Path("/tmp")):  # noqa: S108  (mkdtemp below)
            if not (parent.is_absolute() and os.access(parent, os.W_OK | os.X_OK)):
                continue
            if not can_traverse(parent, self.account):
                continue
            made = Path(tempfile.mkdtemp(prefix="nexuskv-", dir=parent))
            if _holds_socket(made):
                if os.geteuid() == 0:
                    os.chown(made, self.account.uid, self.account.gid)
                return made
            made.rmdir()
        raise PostgresStartError(
            f"No directory for the socket: {inside} is too long for one (or has characters a URL"
            " cannot carry), and neither /run nor /tmp is writable. Give a shorter --data-dir."
        )

    def discard_socket_dir(self, socket_dir: Path) -> None:
        """Remove a socket directory made outside HOME; the one inside stays."""
        if socket_dir != self.private_dir / "run":
            shutil.rmtree(socket_dir, ignore_errors=True)

    def settings(self, socket_dir: Path, *, durable: bool) -> dict[str, str]:
        """The server's configuration; it overrides whatever the cluster's own file says."""
        return {
            **_SETTINGS,
            **({} if durable else _VOLATILE),
            "unix_socket_directories": str(socket_dir),
            "hba_file": str(self.home / "pg_hba.conf"),
            "ident_file": str(self.home / "pg_ident.conf"),
        }

    def write_access_files(self) -> None:
        """Let the user we run as, and no other, connect as the superuser and as the service."""
        user = current_user()
        hba = "local all all peer map=nexuskv\n"
        ident = "".join(f'nexuskv "{user}" {role}\n' for role in (SUPERUSER, ROLE))
        for name, content in (("pg_hba.conf", hba), ("pg_ident.conf", ident)):
            path = self.home / name
            path.write_text(content)
            path.chmod(0o644)


def settle(data_dir: Path, shared_dir: Path) -> Cluster:
    """Decide where the cluster of `data_dir` lives and whose it is; make the directory if absent.

    Root's server user may be unable to reach `data_dir`, whose permissions are not ours to change:
    then the cluster gets a place below `shared_dir` whose name follows from the given path.
    """
    make_data_dir(data_dir)
    given = Cluster(data_dir, account_for(data_dir / "postgres"))
    if can_traverse(data_dir, given.account):
        return given
    if given.private_dir.exists():
        raise PostgresStartError(
            f"{data_dir} holds a cluster of the user {given.account.name}, who cannot reach it any"
            " more. Make every directory above it enterable (chmod o+x)."
        )
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:16]
    home = shared_dir / "clusters" / name
    make_data_dir(home)
    moved = Cluster(home, account_for(home / "postgres"))
    if not can_traverse(home, moved.account):
        raise PostgresStartError(
            f"The user {moved.account.name} can reach neither {data_dir} nor {home}."
            " Make every directory above one of them enterable (chmod o+x)."
        )
    log.info(
        "cluster_lives_elsewhere",
        data_dir=str(data_dir),
        cluster=str(home),
        reason=f"the user {moved.account.name} cannot reach the data directory",
    )
    return moved


def _check_version(found: str, data_dir: Path, binaries: Binaries) -> None:
    if found != str(binaries.major):
        raise PostgresStartError(
            f"The cluster in {data_dir} was made by Postgres {found}, and the binaries in"
            f" {binaries.bin_dir} are {binaries.version}. Install Postgres {found} again; or dump"
            " the database with it and restore into a new --data-dir; or, if the data may go,"
            " move that directory away."
        )


def _holds_socket(directory: Path) -> bool:
    path = str(directory / _SOCKET_NAME)
    return len(os.fsencode(path)) <= _SOCKET_PATH_BYTES and bool(_URL_SAFE_PATH.fullmatch(path))
