"""`nexuskv topology`: put the nodes, engines and links of a fleet, and read them."""

from pathlib import Path
from typing import Annotated, Any, Final

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli.documents import AsJson, Why, as_yaml, media_type_of, print_json, read_document, said
from app.cli.options import failure
from app.cli.policy_report import folded, second
from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)
from app.topology.document import MAX_TOPOLOGY_BYTES

topology_app = typer.Typer(
    name="topology",
    help="Put the nodes, engines and links of a fleet, and read them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)

_PAGE_ITEMS: Final = 100
_MAX_LISTED: Final = 1000
_VERSION_HEX_DIGITS: Final = 16
_LISTS: Final = ("nodes", "engines", "links", "tiers")
# As YAML, which people read, a document may have no more elements than some hundreds of these have.
_MOST_AS_YAML: Final = 300


@topology_app.command("put")
def put(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The topology, YAML or JSON; `-` reads standard input."
        ),
    ],
    *,
    expected: Annotated[
        int | None,
        typer.Option(
            "--expect",
            min=0,
            metavar="VERSION",
            help="Refuse unless this version is in force; 0 for none yet.",
        ),
    ] = None,
    message: Why = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Make a document the topology in force; every replica follows within a second."""
    text = read_document(file, MAX_TOPOLOGY_BYTES)
    params = said(message)
    if expected is not None:
        params["expected_version"] = str(expected)
    with ServiceClient(url, key, key_file) as client:
        status, stored = client.put(
            "/v1/topology", content=text, content_type=media_type_of(text), params=params
        )
    if as_json:
        print_json({"created": status == 201, "topology": stored})
        return
    done = "is in force now" if status == 201 else "was in force already"
    digits = stored["content_sha256"][:_VERSION_HEX_DIGITS]
    typer.echo(f"Topology {stored['version']} {done}: sha256:{digits}")


@topology_app.command("show")
def show(
    version: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[VERSION]", help="A version, else the one in force."),
    ] = None,
    *,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Print a topology as YAML, a large one as JSON."""
    with ServiceClient(url, key, key_file) as client:
        if version is None:
            answer = client.get("/v1/topology")
            found, fault = answer["topology"], answer["fault"]
        else:
            none = f"There is no topology {version}; `nexuskv topology list` shows those there are"
            answer = found = client.get(f"/v1/topology/{version}", unless_found=none)
            fault = None
    if as_json:
        print_json(answer)
        return
    if found is None:
        raise failure("there is no topology yet; `nexuskv topology put FILE` stores one")
    document = found["document"]
    if sum(len(document.get(name, ())) for name in _LISTS) > _MOST_AS_YAML:
        typer.echo(orjson.dumps(document).decode())
        return
    # Comments, so that the output is a topology again.
    typer.echo(_heading(found, fault))
    typer.echo(as_yaml(document), nl=False)


@topology_app.command("list")
def list_all(
    *,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """List versions of the topology, newest first."""
    found: list[dict[str, Any]] = []
    path = "/v1/topology/versions"
    with ServiceClient(url, key, key_file) as client:
        page = client.get(path, page_size=_PAGE_ITEMS)
        found += page["items"]
        while page["next_cursor"] is not None and len(found) < _MAX_LISTED:
            page = client.get(path, page_size=_PAGE_ITEMS, cursor=page["next_cursor"])
            found += page["items"]
    more = page["next_cursor"] is not None
    if as_json:
        print_json({"items": found, "complete": not more})
        return
    if not found:
        typer.echo("No topology yet; `nexuskv topology put FILE` stores one.")
        return
    Console().print(_table(found))
    if more:
        typer.echo(f"There are older ones; these are the newest {len(found)}.")


def _heading(found: dict[str, Any], fault: dict[str, Any] | None) -> str:
    state = "in force" if found["in_force"] else "not in force"
    digits = found["content_sha256"][:_VERSION_HEX_DIGITS]
    counts = ", ".join(f"{len(found['document'].get(name, ()))} {name}" for name in _LISTS)
    lines = [
        f"topology {found['version']} ({state}), sha256:{digits}: {counts}",
        f"put {second(found['created_at'])} by {found['key_id']}",
        *(found["message"] or "").splitlines(),
    ]
    if fault is not None:
        lines.append(f"topology {fault['version']} cannot be used here:")
        lines += fault["reason"].splitlines()
    return "\n".join(f"# {line}" for line in lines)


def _table(topologies: list[dict[str, Any]]) -> Table:
    table = Table(
        *folded("Version", "In force", "sha256", "Put", "By", "Message"),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for one in topologies:
        cells = (
            str(one["version"]),
            "yes" if one["in_force"] else "",
            one["content_sha256"][:_VERSION_HEX_DIGITS],
            second(one["created_at"]),
            one["key_id"],
            one["message"] or "",
        )
        table.add_row(*(Text(cell) for cell in cells), style="bold" if one["in_force"] else None)
    return table
