"""`nexuskv policy`: check policies offline; upload, activate and read them in a service."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from app.cli.documents import AsJson, Why, as_yaml, media_type_of, print_json, read_document, said
from app.cli.options import failure
from app.cli.policy_report import (
    activation_line,
    findings_table,
    policies_table,
    policy_heading,
    warnings_table,
)
from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)
from app.errors import FieldError, NexusError
from app.policy.advice import warnings
from app.policy.document import load_policy
from app.policy.text import MAX_DOCUMENT_BYTES

policy_app = typer.Typer(
    name="policy",
    help="Check execution policies, upload them, activate them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)

_PAGE_ITEMS: Final = 100
_MAX_LISTED: Final = 1000

Document = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The policy, YAML or JSON; `-` reads standard input."),
]
Number = Annotated[
    int, typer.Argument(min=1, metavar="N", help="The number that `nexuskv policy list` shows.")
]


@policy_app.command("validate")
def validate(file: Document, *, as_json: AsJson = False) -> None:
    """Check a policy here, without a service. Exits with 1 when it is not valid."""
    text = read_document(file, MAX_DOCUMENT_BYTES)
    try:
        policy = load_policy(text)
    except NexusError as error:
        found = error.errors or (FieldError("", error.code, error.message),)
        if as_json:
            print_json(
                {
                    "valid": False,
                    "content_sha256": None,
                    "errors": [
                        {
                            "pointer": finding.pointer,
                            "code": finding.code,
                            "detail": finding.detail,
                            "value": finding.value,
                            "allowed": list(finding.allowed) or None,
                        }
                        for finding in found
                    ],
                    "warnings": [],
                }
            )
        else:
            Console(stderr=True).print(findings_table(str(file), found))
        raise typer.Exit(1) from None
    remarks = warnings(policy)
    if as_json:
        print_json(
            {
                "valid": True,
                "content_sha256": policy.content_sha256,
                "errors": [],
                "warnings": [
                    {"pointer": remark.pointer, "code": remark.code, "detail": remark.detail}
                    for remark in remarks
                ],
            }
        )
        return
    typer.echo(f"{file} is a valid policy: {policy.version}")
    if remarks:
        Console().print(warnings_table(remarks))


@policy_app.command("push")
def push(
    file: Document,
    *,
    activate: Annotated[bool, typer.Option("--activate", help="Also make it active.")] = False,
    message: Why = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Store a policy in the service; the same content is stored once."""
    text = read_document(file, MAX_DOCUMENT_BYTES)
    params = said(message)
    with ServiceClient(url, key, key_file) as client:
        status, stored = client.post(
            "/v1/policies",
            content=text,
            content_type=media_type_of(text),
            params=params,
        )
        activated = None
        if activate:
            _, activated = client.post(f"/v1/policies/{stored['number']}:activate", params=params)
    if as_json:
        print_json({"created": status == 201, "policy": stored, "activated": activated})
        return
    done = "stored" if status == 201 else "was stored already"
    typer.echo(f"Policy {stored['number']} {done}: sha256:{stored['content_sha256'][:16]}")
    if activated is not None:
        typer.echo(activation_line(activated))
    elif not stored["active"]:
        typer.echo(f"It is not active; `nexuskv policy activate {stored['number']}` does that.")


@policy_app.command("activate")
def activate_one(
    number: Number,
    *,
    message: Why = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Make a stored policy the one in force; every replica follows within a second."""
    with ServiceClient(url, key, key_file) as client:
        _, activated = client.post(
            f"/v1/policies/{number}:activate",
            params=said(message),
            unless_found=_no_policy(number),
        )
    if as_json:
        print_json(activated)
        return
    typer.echo(activation_line(activated))


@policy_app.command("list")
def list_all(
    *,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """List stored policies, newest first."""
    found: list[dict[str, Any]] = []
    with ServiceClient(url, key, key_file) as client:
        page = client.get("/v1/policies", page_size=_PAGE_ITEMS)
        found += page["items"]
        while page["next_cursor"] is not None and len(found) < _MAX_LISTED:
            cursor = page["next_cursor"]
            page = client.get("/v1/policies", page_size=_PAGE_ITEMS, cursor=cursor)
            found += page["items"]
    more = page["next_cursor"] is not None
    if as_json:
        print_json({"items": found, "complete": not more})
        return
    if not found:
        typer.echo("No policies yet; `nexuskv policy push FILE` stores one.")
        return
    Console().print(policies_table(found))
    if more:
        typer.echo(f"There are older ones; these are the newest {len(found)}.")


@policy_app.command("show")
def show(
    number: Number,
    *,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Print a stored policy as YAML."""
    with ServiceClient(url, key, key_file) as client:
        policy = client.get(f"/v1/policies/{number}", unless_found=_no_policy(number))
    if as_json:
        print_json(policy)
        return
    # Comments, so that the output is a policy file again.
    typer.echo(policy_heading(policy))
    typer.echo(as_yaml(policy["document"]), nl=False)


@policy_app.command("active")
def active(
    *,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Print the policy in force as YAML. Exits with 1 when the latest one could not be loaded."""
    with ServiceClient(url, key, key_file) as client:
        found = client.get("/v1/policies/active")
    if as_json:
        print_json(found)
    else:
        origin = "the policy file of the process" if found["origin"] == "file" else "an activation"
        typer.echo(f"# in force: {found['label']}, from {origin}")
        typer.echo(as_yaml(found["document"]), nl=False)
    if (fault := found["fault"]) is not None:
        number, reason = fault["activation"]["number"], fault["reason"]
        raise failure(f"policy {number} was activated and cannot be used: {reason}")


def _no_policy(number: int) -> str:
    return f"There is no policy {number}; `nexuskv policy list` shows those there are"
