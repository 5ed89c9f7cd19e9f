"""How commands take operators' documents in, and print what a service answers."""

import sys
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import yaml

from app.cli.options import failure

_USAGE = 2
# libyaml's writer; a PyYAML that was built without it has its own, which takes ten times as long.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Why = Annotated[
    str | None,
    typer.Option("--message", "-m", help="Why, for whoever reads the history."),
]


def read_document(file: Path, limit_bytes: int) -> bytes:
    """At most one byte more than a document may have, so that a wrong file does not fill memory.

    `-` is standard input. What cannot be read is a usage error.
    """
    try:
        if str(file) == "-":
            return sys.stdin.buffer.read(limit_bytes + 1)
        with file.open("rb") as opened:
            return opened.read(limit_bytes + 1)
    except OSError as error:
        raise failure(f"cannot read {file}: {error.strerror}", exit_code=_USAGE) from None


def media_type_of(text: bytes) -> str:
    """What to send a document as."""
    return "application/json" if text.lstrip().startswith(b"{") else "application/yaml"


def said(message: str | None) -> dict[str, str]:
    """The query parameters of a message."""
    return {} if message is None else {"message": message}


def as_yaml(document: dict[str, Any]) -> str:
    """A document as people write them."""
    text: str = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text


def print_json(value: Any) -> None:
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
