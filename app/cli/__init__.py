"""The `nexuskv` command."""

from importlib.metadata import version
from typing import Annotated

import typer

from app.cli.demo import demo_command
from app.cli.doctor import doctor_command
from app.cli.evaluate import evaluate_command
from app.cli.history import history_app
from app.cli.index import index_app
from app.cli.keys import keys_app
from app.cli.migrate import migrate_command
from app.cli.openapi import openapi_command
from app.cli.plan import plan_app
from app.cli.policy import policy_app
from app.cli.profile import profile_app
from app.cli.replay import replay_command
from app.cli.serve import serve_command
from app.cli.topology import topology_app
from app.cli.trace import trace_app
from app.cli.up import up_command
from app.cli.worker import worker_command
from app.cli.workers import workers_command

cli = typer.Typer(
    name="nexuskv",
    help="Is this model state safe to reuse, is it worth it, from where, and what happened.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"nexuskv {version('nexuskv')}")
        raise typer.Exit


@cli.callback()
def _options(
    *,
    _: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Say which this is."),
    ] = False,
) -> None:
    """What `nexuskv` takes without a command."""


cli.command("up")(up_command)
cli.command("demo")(demo_command)
cli.command("serve")(serve_command)
cli.command("worker")(worker_command)
cli.command("migrate")(migrate_command)
cli.add_typer(keys_app, name="keys")
cli.command("workers")(workers_command)
cli.command("doctor")(doctor_command)
cli.add_typer(policy_app, name="policy")
cli.add_typer(plan_app, name="plan")
cli.add_typer(profile_app, name="profile")
cli.add_typer(topology_app, name="topology")
cli.command("replay")(replay_command)
cli.command("evaluate")(evaluate_command)
cli.add_typer(history_app, name="history")
cli.add_typer(index_app, name="index")
cli.add_typer(trace_app, name="trace")
cli.command("openapi")(openapi_command)


def main() -> None:
    """The entry point of the console script."""
    cli()
