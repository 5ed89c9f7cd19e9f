"""`nexuskv migrate`: the database brought to the schema of this version."""

import asyncio

import typer

from app.cli.options import DatabaseUrl, LogLevel, database_failure, failure, required_url
from app.clock import SystemClock
from app.db.migrate import SchemaAheadError, schema_status, upgrade
from app.db.session import Database
from app.decisions.partitions import ensure_partitions
from app.errors import NexusError
from app.logging import configure_logging


def migrate_command(*, database_url: DatabaseUrl = None, log_level: LogLevel = "info") -> None:
    """Bring the database to the newest schema, and make the history's next day partitions.

    Safe to run from several places at once: one works, the others wait.
    """
    url = required_url(database_url)
    try:
        configure_logging(log_level)
        typer.echo(asyncio.run(_migrate(url)))
    except NexusError as error:
        raise database_failure(error, url) from None
    except (SchemaAheadError, OSError, ValueError) as error:
        raise failure(str(error)) from None


async def _migrate(url: str) -> str:
    await upgrade(url)
    database = Database(url, pool_connections=1)
    try:
        await ensure_partitions(database, SystemClock().now())
        status = await schema_status(database)
    finally:
        await database.close()
    return f"schema {status.current} ({status.state})"
