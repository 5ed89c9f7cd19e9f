import asyncio
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.db.embedded import EmbeddedPostgres, PostgresStartError
from app.db.postgres_binaries import find_binaries
from app.db.postgres_process import ServerRecord, fingerprint_of
from tests.db.conftest import Place, kill, query, said, wait_for

# Starts a server, says its pid, and stays until it is killed or its input ends.
PARENT = """
    import os, pathlib, sys
    from app.db import postgres_process
    from app.db.embedded import EmbeddedPostgres, PostgresStartError
    if "EXEC" in os.environ:
        postgres_process._EXEC = pathlib.Path(os.environ["EXEC"])
    server = EmbeddedPostgres(
        pathlib.Path(os.environ["DATA_DIR"]),
        durable=False,
        shared_dir=pathlib.Path(os.environ["SHARED_DIR"]),
    )
    try:
        url = server.start()
    except PostgresStartError as error:
        print("refused", error, flush=True)
    else:
        print("ready", server.pid, url, flush=True)
    sys.stdin.read()
"""
# postgres_exec.py as it would be on a system without a parent-death signal.
DEAF_EXEC = """
import os, sys
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
os.execv(sys.argv[4], sys.argv[4:])
"""


def start_in_child(place: Place, **env: str) -> tuple["subprocess.Popen[str]", int, str]:
    """A child process that holds a running server; the server's pid and URL."""
    child = place.child(PARENT, env=env)
    pid, url = said(child, "ready").split()
    return child, int(pid), url


def gone(pid: int) -> bool:
    return fingerprint_of(pid) is None


def a_dead_pid() -> int:
    finished = subprocess.Popen(["true"])
    finished.wait()
    return finished.pid


def test_it_starts_a_server_of_its_own_and_keeps_the_data(place: Place) -> None:
    server = place.server()
    url = server.start()
    pid = server.pid
    assert pid is not None
    assert query(url, "SELECT current_user || '@' || current_database()") == "nexuskv@nexuskv"
    query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    with pytest.raises(RuntimeError, match="already"):
        server.start()
    server.stop()
    server.stop()
    assert server.pid is None
    assert gone(pid)
    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.url

    assert query(server.start(), "SELECT n FROM kept") == 7
    assert "not properly shut down" not in server.log_path.read_text()


def test_a_with_block_starts_and_stops_it(place: Place) -> None:
    with place.server() as server:
        pid = server.pid
        assert pid is not None
        assert query(server.url, "SELECT 1") == 1
    assert gone(pid)


def test_the_cluster_is_what_the_service_expects(place: Place) -> None:
    url = place.server().start()
    settings = {
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "max_connections": "60",
        "listen_addresses": "",
        "data_checksums": "on",
    }
    for name, value in settings.items():
        assert query(url, f"SELECT current_setting('{name}')") == value, name
    own = "FROM pg_database WHERE datname = current_database()"
    assert query(url, f"SELECT datcollate || ' ' || datctype {own}") == "C C.UTF-8"
    assert query(url, "SELECT upper('é')") == "É"
    assert query(url, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False


def test_it_is_durable_unless_told_otherwise(place: Place) -> None:
    statement = (
        "SELECT string_agg(current_setting(name), ' ') FROM"
        " unnest(ARRAY['fsync', 'synchronous_commit', 'full_page_writes']) AS name"
    )
    for durable, expected in ((True, "on on on"), (False, "off off off")):
        with EmbeddedPostgres(
            place.data_dir, durable=durable, shared_dir=place.shared_dir
        ) as server:
            assert query(server.url, statement) == expected


def test_it_is_not_on_our_terminal_and_sees_none_of_our_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXUSKV_HANDLE_SECRET", "hunter2")
    monkeypatch.setenv("PGPORT", "9")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=1MB")
    server = place.server()
    server.start()
    assert server.pid is not None
    # A Ctrl-C reaches the whole session of a terminal; the service stops its server in order.
    assert os.getsid(server.pid) != os.getsid(0)
    environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"PATH=" in environment
    assert b"hunter2" not in environment
    assert b"PGOPTIONS" not in environment


async def test_it_starts_inside_a_running_event_loop(place: Place) -> None:
    assert asyncio.get_running_loop().is_running()
    with place.server() as server:
        assert server.pid is not None


def test_it_outlives_the_thread_that_started_it(place: Place) -> None:
    server = place.server()
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    # A parent-death signal bound to that thread would have begun the shutdown by now.
    assert query(server.url, "SELECT pg_sleep(0.2)::text") == ""
    assert server.pid is not None
    assert "shutdown request" not in server.log_path.read_text()


def test_it_stops_when_the_process_ends_without_stopping_it(place: Place) -> None:
    child, pid, _ = start_in_child(place)
    child.communicate()
    assert child.returncode == 0
    wait_for(lambda: gone(pid), "the server ends with its parent")
    log = (place.data_dir / "postgres.log").read_text()
    assert "database system is shut down" in log


def test_it_stops_when_its_parent_is_killed_and_the_next_start_has_the_data(place: Place) -> None:
    child, pid, url = start_in_child(place)
    query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    kill(child)
    wait_for(lambda: gone(pid), "the server ends with its killed parent")
    assert query(place.server().start(), "SELECT n FROM kept") == 7


def test_a_start_right_after_the_kill_waits_for_the_old_server(place: Place) -> None:
    child, pid, url = start_in_child(place)
    query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    child.kill()
    server = place.server()
    assert query(server.start(), "SELECT n FROM kept") == 7
    assert gone(pid)
    assert server.pid != pid


def test_a_server_that_outlived_its_parent_is_restarted_under_the_new_one(place: Place) -> None:
    deaf = place.path / "deaf_exec.py"
    deaf.write_text(DEAF_EXEC)
    child, pid, url = start_in_child(place, EXEC=str(deaf))
    query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    kill(child)
    assert query(url, "SELECT n FROM kept") == 7
    assert not gone(pid)

    server = place.server()
    with capture_logs() as logs:
        assert query(server.start(), "SELECT n FROM kept") == 7
    assert {"event": "stopping_leftover_postgres", "pid": pid, "log_level": "info"} in logs
    assert gone(pid)
    assert "not properly shut down" not in server.log_path.read_text()


def test_a_killed_server_is_recovered_at_the_next_start(place: Place) -> None:
    server = place.server(durable=True)
    query(server.start(), "CREATE TABLE kept AS SELECT 7 AS n")
    pid = server.pid
    assert pid is not None
    os.kill(pid, 9)
    wait_for(lambda: server.pid is None, "the death is noticed")
    server.stop()
    # Its children may hold the shared memory for a moment longer.
    assert query(server.start(), "SELECT n FROM kept") == 7


def test_a_server_that_dies_is_revived_on_the_same_url_with_its_data(place: Place) -> None:
    server = place.server(durable=True)
    url = server.start()
    assert server.revive() is False
    query(url, "CREATE TABLE kept AS SELECT 7 AS n")
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.pid is None, "the server is gone")
    assert server.revive() is True
    assert server.url == url
    assert server.pid not in (None, pid)
    assert query(url, "SELECT n FROM kept") == 7


def test_two_supervisors_do_not_share_a_cluster(place: Place) -> None:
    first = place.server()
    url = first.start()
    with pytest.raises(PostgresStartError, match=rf"pid {os.getpid()}\).*--data-dir"):
        place.server().start()
    assert query(url, "SELECT 1") == 1
    first.stop()
    place.server().start()


def test_of_two_starts_at_once_one_wins(place: Place) -> None:
    children = [place.child(PARENT) for _ in range(2)]
    answers = [(child.pid, first_answer(child)) for child in children]
    ready = [pid for pid, line in answers if line.startswith("ready ")]
    refused = [line for _, line in answers if line.startswith("refused ")]
    assert len(ready) == 1
    assert len(refused) == 1
    assert f"pid {ready[0]}" in refused[0] or "pid unknown" in refused[0]


def first_answer(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return next(line for line in child.stdout if line.startswith(("ready ", "refused ")))


@pytest.mark.parametrize("whose", ["nobody's", "another process's", "no number"])
def test_a_stale_postmaster_pid_does_not_stop_a_start(place: Place, whose: str) -> None:
    server = place.server()
    query(server.start(), "CREATE TABLE kept AS SELECT 7 AS n")
    account = server.cluster.account
    server.stop()
    sleeper = subprocess.Popen(["sleep", "600"], **account.spawn_as)
    try:
        pid = {
            "nobody's": str(a_dead_pid()),
            "another process's": str(sleeper.pid),
            "no number": "",
        }[whose]
        data = server.cluster.data_dir
        for path in (data / "postmaster.pid", data.parent / "run" / ".s.PGSQL.5432.lock"):
            path.write_text(f"{pid}\n{data}\n1700000000\n5432\n{data.parent / 'run'}\n\n")
            os.chown(path, account.uid, account.gid)
            path.chmod(0o600)
        assert query(server.start(), "SELECT n FROM kept") == 7
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_record_of_a_pid_that_is_another_process_by_now_is_ignored(place: Place) -> None:
    server = place.server()
    server.start()
    home = server.cluster.home
    server.stop()
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        ServerRecord(sleeper.pid, "another boot:1", str(place.path / "no-socket")).write(
            home / "postgres.json"
        )
        server.start()
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_server_somebody_else_started_on_the_cluster_is_left_alone(place: Place) -> None:
    server = place.server()
    server.start()
    cluster = server.cluster
    server.stop()
    foreign = subprocess.Popen(
        [
            find_binaries().program("postgres"),
            *("-D", str(cluster.data_dir), "-c", "listen_addresses="),
            *("-c", f"unix_socket_directories={cluster.private_dir / 'run'}"),
        ],
        stderr=subprocess.DEVNULL,
        **cluster.account.spawn_as,
    )
    try:
        pid_file = cluster.data_dir / "postmaster.pid"
        wait_for(pid_file.exists, "the foreign server is up")
        with pytest.raises(PostgresStartError, match=f"did not start \\(pid {foreign.pid}\\)"):
            server.start()
        assert foreign.poll() is None
    finally:
        foreign.terminate()
        foreign.wait()
    server.start()


def test_a_failed_start_says_why_and_leaves_nothing_behind(place: Place) -> None:
    server = place.server()
    server.start()
    server.stop()
    settings = server.cluster.data_dir / "postgresql.auto.conf"
    good = settings.read_text()
    settings.write_text("no_such_setting = 1\n")
    with pytest.raises(PostgresStartError, match="no_such_setting"):
        server.start()
    assert server.pid is None
    assert not (server.cluster.home / "postgres.json").exists()
    settings.write_text(good)
    place.server().start()


def test_a_cluster_of_another_major_version_is_refused_with_the_way_out(place: Place) -> None:
    server = place.server()
    server.start()
    server.stop()
    (server.cluster.data_dir / "PG_VERSION").write_text("11\n")
    with pytest.raises(PostgresStartError, match="made by Postgres 11") as caught:
        server.start()
    assert "dump" in str(caught.value)
    assert "--data-dir" in str(caught.value)


def test_an_initialisation_cut_short_is_done_again(place: Place) -> None:
    server = place.server()
    server.start()
    server.stop()
    cluster = server.cluster
    # As a kill during initdb leaves it.
    cluster.data_dir.rename(cluster.private_dir / "data.new")
    (cluster.private_dir / "data.new" / "PG_VERSION").unlink()
    assert query(server.start(), "SELECT 1") == 1
    assert not (cluster.private_dir / "data.new").exists()
