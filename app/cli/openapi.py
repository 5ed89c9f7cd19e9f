"""`nexuskv openapi`: the published documents, generated; a test compares them with the files."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.contract.schema import schemas
from app.main import create_app
from app.settings import Settings
from app.worker.openapi import worker_document

# Building the app connects to nothing, so neither value is used.
_DOCUMENT_SETTINGS = Settings(
    database_url="postgresql://nobody@127.0.0.1:1/none", handle_secret="0" * 64
)


def documents() -> dict[str, dict[str, Any]]:
    """File name to document: the API, the workers' port, and the JSON Schemas of the contract."""
    return {
        "v1.json": create_app(_DOCUMENT_SETTINGS).openapi(),
        "worker-v1.json": worker_document(),
        **schemas(),
    }


def rendered(document: dict[str, Any]) -> str:
    """The text of a file; sorted, so that a diff shows changes and nothing else."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def openapi_command(
    *,
    out: Annotated[Path, typer.Option("--out", help="The folder to write to.")] = Path("openapi"),
) -> None:
    """Write the OpenAPI documents and the contract's JSON Schemas."""
    out.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (out / name).write_text(rendered(document), encoding="utf-8")
        typer.echo(out / name)
