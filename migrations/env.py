"""Alembic's environment; `app.db.migrate` hands it a connection.

`alembic revision --autogenerate` for a developer goes through `alembic.ini` and
NEXUSKV_DATABASE_URL instead.
"""

import asyncio
import os

from alembic import context
from sqlalchemy import Connection

import app.calibration.models
import app.control.models
import app.decisions.models
import app.engines.models
import app.execution.models
import app.index.models
import app.policy.models
import app.profiles.models
import app.quota.models
import app.topology.models  # noqa: F401  (each import registers its tables on the metadata)
from app.db.base import Base
from app.db.migrate import is_ours
from app.db.session import create_engine


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=is_ours,
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


def print_sql() -> None:
    context.configure(
        dialect_name="postgresql",
        target_metadata=Base.metadata,
        literal_binds=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_run() -> None:
    engine = create_engine(
        os.environ["NEXUSKV_DATABASE_URL"],
        pool_connections=1,
        connect_timeout_s=10,
        statement_timeout_s=60,
        application_name="nexuskv-alembic",
    )
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


given = context.config.attributes.get("connection")
if context.is_offline_mode():
    print_sql()
elif given is not None:
    run(given)
else:
    asyncio.run(connect_and_run())
