import asyncio
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

import app.control.models
import app.decisions.models
import app.engines.models
import app.execution.models
import app.index.models
import app.policy.models
import app.profiles.models
import app.quota.models
import app.topology.models  # noqa: F401
from app.db.base import Base
from app.db.migrate import (
    MIGRATIONS_DIR,
    SchemaAheadError,
    SchemaStatus,
    downgrade,
    schema_drift,
    schema_status,
    upgrade,
)
from app.db.session import Database
from app.decisions.record import OutcomeStatus
from app.errors import ErrorCode, NexusError
from tests.decisions.rows import a_decision, an_outcome, store

HEAD = ScriptDirectory(str(MIGRATIONS_DIR)).get_current_head()

OBJECTS = """
SELECT 'relation ' || relkind::text || ' ' || relname FROM pg_class
  WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'function ' || proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'type ' || typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname = 'history'
UNION ALL SELECT 'view ' || viewname FROM pg_views WHERE schemaname = 'history'
ORDER BY 1
"""
DEFINITIONS = """
SELECT c.relname || '.' || a.attname || ' #' || a.attnum || ' '
    || format_type(a.atttypid, a.atttypmod)
    || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
    AND NOT c.relispartition AND a.attnum > 0
UNION ALL SELECT 'constraint ' || k.conname || ' ' || pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
  WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
  WHERE c.relnamespace = 'public'::regnamespace AND NOT c.relispartition
UNION ALL SELECT 'partitioned ' || relname || ' ' || pg_get_partkeydef(oid)
  FROM pg_class WHERE relkind = 'p'
"""


async def column(url: str, statement: str) -> list[Any]:
    async with Database(url) as database, database.read() as session:
        return list((await session.scalars(text(statement))).all())


async def status_of(url: str) -> SchemaStatus:
    async with Database(url) as database:
        return await schema_status(database)


async def set_revision(url: str, revision: str) -> None:
    async with Database(url) as database, database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = :r"), {"r": revision})


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory(str(MIGRATIONS_DIR)).get_heads()) == 1


def test_file_names_begin_with_a_day_and_sort_in_order_of_revision() -> None:
    scripts = list(ScriptDirectory(str(MIGRATIONS_DIR)).walk_revisions())
    names = [script.path.rpartition("/")[2] for script in reversed(scripts)]
    assert names == sorted(names)
    assert all(re.match(r"\d{4}-\d{2}-\d{2}-\d{4}_[a-z0-9_]+\.py$", name) for name in names)


@pytest.mark.parametrize("direction", ["upgrade", "downgrade"])
def test_every_migration_begins_by_limiting_its_locks_and_statements(direction: str) -> None:
    scripts = list(ScriptDirectory(str(MIGRATIONS_DIR)).walk_revisions())
    output = io.StringIO()
    config = Config(output_buffer=output)
    config.set_main_option("script_location", str(MIGRATIONS_DIR))
    config.set_main_option("path_separator", "os")
    if direction == "upgrade":
        command.upgrade(config, "base:head", sql=True)
    else:
        command.downgrade(config, "head:base", sql=True)
    sql = output.getvalue()
    migrations = re.split(r"-- Running (?:up|down)grade .*\n", sql)[1:]
    assert len(migrations) == len(scripts)
    for migration in migrations:
        assert re.match(
            r"\s*SET LOCAL lock_timeout = '\d+s';\s*SET LOCAL statement_timeout = '\d+s';",
            migration,
        ), migration[:200]


async def test_up_down_up_leaves_nothing_behind(empty_database_url: str) -> None:
    assert await status_of(empty_database_url) == SchemaStatus(None, str(HEAD), "absent")
    await upgrade(empty_database_url)
    assert (await status_of(empty_database_url)).state == "current"
    first = await column(empty_database_url, OBJECTS)
    assert "relation p decision" in first

    await downgrade(empty_database_url, "base")
    left = [name for name in await column(empty_database_url, OBJECTS) if "alembic" not in name]
    assert left == []
    assert (await status_of(empty_database_url)).state == "absent"

    await upgrade(empty_database_url)
    assert await column(empty_database_url, OBJECTS) == first


async def test_sums_that_are_there_say_what_was_used_also_after_an_upgrade_that_was_cut_short(
    database: Database, database_url: str
) -> None:
    outcomes = [
        an_outcome(a_decision(), kind=kind, status=status)
        for kind in ("materialize", "lookup")
        for status in (OutcomeStatus.CONSUMED, OutcomeStatus.COMPLETED)
        for _ in range(3)
    ]
    await store(database, [], outcomes)
    used = "SELECT kind, status, step, used FROM outcome_rollup WHERE used > 0 ORDER BY step"
    await downgrade(database_url, "3e9b51d7c0f4")
    async with database.write() as session:
        # What came that far before it was cut short.
        await session.execute(text("ALTER TABLE outcome_rollup ADD used bigint NOT NULL DEFAULT 0"))
    await upgrade(database_url)
    async with database.read() as session:
        found = [tuple(row) for row in (await session.execute(text(used))).all()]
    assert found == [("materialize", "consumed", step, 3) for step in ("day", "hour", "minute")]


async def test_upgrading_the_newest_schema_does_nothing(database_url: str) -> None:
    before = await column(database_url, OBJECTS)
    with capture_logs() as logs:
        await upgrade(database_url)
    assert logs == []
    assert await column(database_url, OBJECTS) == before


async def test_models_and_migrations_do_not_drift(database_url: str) -> None:
    assert await schema_drift(database_url) == []


async def test_drift_is_seen_when_there_is_some(database: Database, database_url: str) -> None:
    async with database.write() as session:
        await session.execute(text("ALTER TABLE decision DROP COLUMN entry_id CASCADE"))
        await session.execute(text("CREATE TABLE unknown_p (id int)"))
        await session.execute(text("DROP INDEX ix_state_changed_xid"))
    kinds = sorted(difference[0] for difference in await schema_drift(database_url))
    assert kinds == ["add_column", "add_index", "remove_table"]


async def test_models_define_what_migrations_make_to_the_letter(
    database_url: str, empty_database_url: str
) -> None:
    """Alembic's comparison skips checks, key order, index kinds and partitioning."""

    def create(connection: Connection) -> None:
        Base.metadata.create_all(connection)

    async with Database(empty_database_url) as modelled, modelled.write() as session:
        await (await session.connection()).run_sync(create)
    expected = sorted(await column(empty_database_url, DEFINITIONS))
    migrated = [line for line in await column(database_url, DEFINITIONS) if "alembic" not in line]
    assert len(expected) > 100
    assert sorted(migrated) == expected


async def test_processes_that_start_together_migrate_once(empty_database_url: str) -> None:
    with capture_logs() as logs:
        await asyncio.gather(*(upgrade(empty_database_url) for _ in range(4)))
    assert [line["event"] for line in logs] == ["migrating", "migrated"]
    assert (await status_of(empty_database_url)).state == "current"


async def test_waiting_for_another_migration_is_told_and_ends_with_a_clear_error(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.db.migrate._REPORT_EVERY_S", 0.0)
    async with Database(empty_database_url) as another, another.read() as session:
        # The lock's number is part of the agreement between builds, so it is spelt out here.
        await session.execute(text("SELECT pg_advisory_lock(7956583318909708146)"))
        with (
            capture_logs() as logs,
            pytest.raises(NexusError, match="Another process has been migrating") as caught,
        ):
            await upgrade(empty_database_url, wait_s=0.1)
        await session.execute(text("SELECT pg_advisory_unlock_all()"))
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
    assert {line["event"] for line in logs} == {"waiting_for_another_migration"}
    await upgrade(empty_database_url, wait_s=5)
    assert (await status_of(empty_database_url)).state == "current"


async def test_a_migration_gives_way_when_it_cannot_lock_a_table(
    database: Database, database_url: str
) -> None:
    started = datetime.now(UTC)
    async with database.read() as reader:
        await reader.execute(text("SELECT count(*) FROM api_key"))
        with pytest.raises(NexusError) as caught:
            await downgrade(database_url, "base")
    assert "lock timeout" in str(caught.value.internal)
    assert datetime.now(UTC) - started < timedelta(seconds=20)
    # Each migration runs in one transaction, so nothing of the one that failed stays ...
    assert (await schema_status(database)).state == "behind"
    assert {"relation r api_key", "relation p decision"} <= set(await column(database_url, OBJECTS))
    # ... and the way back up is open.
    await upgrade(database_url)
    assert (await schema_status(database)).state == "current"


async def test_a_newer_schema_is_reported_as_ahead_and_left_alone(database_url: str) -> None:
    await set_revision(database_url, "fffffffffff1")
    assert await status_of(database_url) == SchemaStatus("fffffffffff1", str(HEAD), "ahead")
    before = await column(database_url, OBJECTS)
    with pytest.raises(SchemaAheadError, match="fffffffffff1"):
        await upgrade(database_url)
    assert await column(database_url, OBJECTS) == before


async def test_status_and_upgrade_without_a_server_are_unavailable() -> None:
    url = "postgresql://u@/db?host=/nowhere/at/all"
    with pytest.raises(NexusError):
        await status_of(url)
    with pytest.raises(NexusError) as caught:
        await upgrade(url)
    assert caught.value.code is ErrorCode.DATABASE_UNAVAILABLE
