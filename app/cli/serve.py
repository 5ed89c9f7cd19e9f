"""`nexuskv serve`: the API on a Postgres that is there. Callers need keys."""

import os

from rich.console import Console

from app.cli.inputs import check_policy, clear_ready_file, read_fixtures
from app.cli.options import (
    LISTEN_DEFAULT,
    POLICY_DEFAULT,
    DatabaseUrl,
    Fixtures,
    Listen,
    LogLevel,
    PolicyFile,
    ReadyFile,
    failure,
    required_url,
)
from app.cli.secret_files import given_handle_secret
from app.cli.server import Listening, ServerRun, bind
from app.cli.worker_env import worker_settings
from app.errors import NexusError
from app.logging import configure_logging
from app.settings import Settings


class _Serve(ServerRun):
    def announce(self, listening: Listening) -> None:
        Console(stderr=True).print(f"NexusKV answers on {listening.base_url}", highlight=False)


def serve_command(
    *,
    listen: Listen = LISTEN_DEFAULT,
    fixture: Fixtures = None,
    ready_file: ReadyFile = None,
    policy: PolicyFile = POLICY_DEFAULT,
    log_level: LogLevel = "info",
    database_url: DatabaseUrl = None,
) -> None:
    """Serve the API on an existing Postgres. Every caller needs an API key.

    Handles are signed with NEXUSKV_HANDLE_SECRET, or the content of the file that
    NEXUSKV_HANDLE_SECRET_FILE names; replicas share it. Two secrets, separated by a comma, allow a
    rotation: the first signs, both verify.
    """
    url = required_url(database_url)
    try:
        configure_logging(log_level)
        secret = given_handle_secret(os.environ)
        if secret is None:
            raise failure(
                "no handle secret: set NEXUSKV_HANDLE_SECRET (`openssl rand -hex 32` makes one), "
                "or NEXUSKV_HANDLE_SECRET_FILE",
                exit_code=2,
            )
        settings = Settings(
            database_url=url,
            handle_secret=secret,
            policy_file=policy,
            **worker_settings(os.environ),
        )
        check_policy(policy)
        states = read_fixtures(fixture or ())
        if ready_file is not None:
            clear_ready_file(ready_file)
        with bind(listen) as bound:
            _Serve(settings, bound, fixtures=states, ready_file=ready_file).run()
    except (NexusError, OSError, ValueError) as error:
        raise failure(error.message if isinstance(error, NexusError) else str(error)) from None
