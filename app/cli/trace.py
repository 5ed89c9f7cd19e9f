"""`nexuskv trace`: make request traces."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from app.cli.trace_format import MAX_INPUT_TOKENS
from app.cli.trace_generate import LONGEST_INPUT_BLOCKS, generate

trace_app = typer.Typer(
    help="Make request traces.", no_args_is_help=True, rich_markup_mode="markdown"
)


@trace_app.callback()
def trace() -> None:
    """Make request traces."""


@trace_app.command("generate")
def generate_command(
    requests: Annotated[int, typer.Option(min=1, help="How many requests.")] = 200,
    seed: Annotated[int, typer.Option(help="The same seed gives the same trace.")] = 0,
    block_tokens: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_INPUT_TOKENS // LONGEST_INPUT_BLOCKS, help="Tokens a hash id stands for."
        ),
    ] = 512,
    out: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="The file to write; standard output if none."),
    ] = None,
) -> None:
    """Write a trace of chats that share system prompts, one JSON object a line."""
    lines = (
        msgspec.json.encode(request) + b"\n"
        for request in generate(requests=requests, seed=seed, block_tokens=block_tokens)
    )
    if out is None:
        sys.stdout.buffer.writelines(lines)
        return
    with out.open("wb") as file:
        file.writelines(lines)
