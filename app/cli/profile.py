"""`nexuskv profile`: import cost profiles into a service, read them, fit them to measurements."""

from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.console import Console

from app.cli.documents import AsJson, Why, as_yaml, media_type_of, print_json, read_document, said
from app.cli.options import failure
from app.cli.policy_report import findings_table
from app.cli.profile_fit import FittedProfile, Naming, fit_profile
from app.cli.profile_points import PointError, read_points
from app.cli.profile_report import (
    calibration_table,
    fit_json,
    fit_tables,
    in_force_heading,
    profile_heading,
    profiles_table,
)
from app.cli.service_client import (
    DEFAULT_URL,
    ServiceClient,
    ServiceKey,
    ServiceKeyFile,
    ServiceUrl,
)
from app.errors import FieldError, NexusError
from app.planner.profile import Profile
from app.policy.text import MAX_DOCUMENT_BYTES
from app.profiles.document import read_profile
from app.settings import REFERENCE_PROFILE_FILE, STARTING_PROFILES

profile_app = typer.Typer(
    name="profile",
    help="Import cost profiles, read them, fit them to measurements.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
)

_PAGE_ITEMS: Final = 100
_MAX_LISTED: Final = 1000
_MAX_SOURCE_CHARS: Final = 2_048
_USAGE: Final = 2
_NOUN: Final = "cost profile"

Model = Annotated[str | None, typer.Option("--model", help="The model; empty for any.")]
Hardware = Annotated[str | None, typer.Option("--hardware", help="The hardware; empty for any.")]


@profile_app.command("import")
def import_files(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="Profiles, YAML or JSON; `-` reads standard input."),
    ] = None,
    *,
    starting_set: Annotated[
        bool, typer.Option("--starting-set", help="Also those that come with NexusKV.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check them, without a service.")
    ] = False,
    message: Why = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Store profiles in the service, which brings them into force; the same content is stored once.

    All of them are checked before the first is stored.
    """
    chosen = list(files or ())
    if starting_set:
        chosen += sorted(STARTING_PROFILES.glob("*.yaml"))
    if not chosen:
        raise failure("name files to import, or --starting-set", exit_code=_USAGE)
    texts = [(file, read_document(file, MAX_DOCUMENT_BYTES)) for file in chosen]
    profiles = [_checked(file, text) for file, text in texts]
    if dry_run:
        _say_valid(texts, profiles, as_json=as_json)
        return
    stored = []
    with ServiceClient(url, key, key_file) as client:
        for _, text in texts:
            stored.append(_stored(client, text, message))
            if not as_json:
                typer.echo(_stored_line(stored[-1]))
    if as_json:
        print_json({"imported": stored})


@profile_app.command("list")
def list_all(
    *,
    name: Annotated[str | None, typer.Option("--name", help="Only versions of this name.")] = None,
    model: Model = None,
    hardware: Hardware = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """List stored profiles, newest first."""
    given = {"name": name, "model": model, "hardware": hardware}
    filters = {field: value for field, value in given.items() if value is not None}
    found: list[dict[str, Any]] = []
    with ServiceClient(url, key, key_file) as client:
        page = client.get("/v1/profiles", page_size=_PAGE_ITEMS, **filters)
        found += page["items"]
        while page["next_cursor"] is not None and len(found) < _MAX_LISTED:
            cursor = page["next_cursor"]
            page = client.get("/v1/profiles", page_size=_PAGE_ITEMS, cursor=cursor, **filters)
            found += page["items"]
    more = page["next_cursor"] is not None
    if as_json:
        print_json({"items": found, "complete": not more})
        return
    if not found:
        typer.echo("No such profiles; `nexuskv profile import --starting-set` stores some.")
        return
    Console().print(profiles_table(found))
    if more:
        typer.echo(f"There are older ones; these are the newest {len(found)}.")


@profile_app.command("show")
def show(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[NUMBER|NAME]", help="A version, or the newest of a name."),
    ] = None,
    *,
    model: Model = None,
    hardware: Hardware = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Print a profile as YAML: a stored one, or the one in force for a model on hardware."""
    if which is not None and (model is not None or hardware is not None):
        raise failure("name a profile, or --model and --hardware, not both", exit_code=_USAGE)
    with ServiceClient(url, key, key_file) as client:
        if which is None:
            asked = {"model": model or "", "hardware": hardware or ""}
            found = client.get("/v1/profiles/in-force", **asked)
            heading = in_force_heading(found)
        else:
            found = _one(client, which)
            heading = profile_heading(found)
    if as_json:
        print_json(found)
        return
    # Comments, so that the output is a profile again.
    typer.echo(heading)
    typer.echo(as_yaml(found["document"]), nl=False)


@profile_app.command("calibration")
def calibration(
    *,
    model: Model = None,
    hardware: Hardware = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Show what outcomes have taught: by what factor each part of a profile is corrected."""
    chosen = {"model": model, "hardware": hardware}
    with ServiceClient(url, key, key_file) as client:
        found = client.get(
            "/v1/calibration",
            **{name: value for name, value in chosen.items() if value is not None},
        )
    if as_json:
        print_json(found)
        return
    if not found["parts"]:
        typer.echo(
            "Nothing is learnt yet. Transfers teach by themselves; runtimes report prefills:"
        )
        typer.echo('POST /v1/decisions/ID/outcome with {"detail": {"prefill_us": ...}} of a plan.')
        return
    Console().print(calibration_table(found["parts"]))
    if found["left_off"]:
        typer.echo(f"{found['left_off']} more are left off; --model and --hardware choose.")


@profile_app.command("fit")
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="POINTS...",
            help="Measured points, CSV with a heading or JSONL: `tokens,prefill_us`, or "
            "`tier,remote,bytes,transfer_us`.",
        ),
    ],
    *,
    base: Annotated[
        Path,
        typer.Option(
            "--base",
            metavar="FILE",
            help="The profile for what no point tells of.",
            show_default="the reference",
        ),
    ] = REFERENCE_PROFILE_FILE,
    name: Annotated[str | None, typer.Option("--name", help="Its name, else the base's.")] = None,
    model: Model = None,
    hardware: Hardware = None,
    keep_schedule: Annotated[
        bool, typer.Option("--keep-schedule", help="Leave the base's scheduling time as it is.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the profile here.")
    ] = None,
    imported: Annotated[
        bool, typer.Option("--import", help="Store the profile in the service.")
    ] = False,
    message: Why = None,
    as_json: AsJson = False,
    url: ServiceUrl = DEFAULT_URL,
    key: ServiceKey = None,
    key_file: ServiceKeyFile = None,
) -> None:
    """Fit a profile to measured points, and show how far it is off at each of them."""
    beginning = _checked(base, read_document(base, MAX_DOCUMENT_BYTES))
    naming = Naming(name, model, hardware, _source(files, beginning))
    fitted = _fitted(files, beginning, naming, keep_schedule=keep_schedule)
    document: dict[str, Any] = msgspec.to_builtins(fitted.profile)
    text = as_yaml(document)
    if out is not None:
        _write(out, text)
    stored = None
    if imported:
        with ServiceClient(url, key, key_file) as client:
            stored = _stored(client, text.encode(), message)
    if as_json:
        print_json({**fit_json(fitted, document), "imported": stored})
        return
    typer.echo(text)
    for table in fit_tables(fitted):
        Console().print(table)
    if out is not None:
        typer.echo(f"Written to {out}.")
    if stored is not None:
        typer.echo(_stored_line(stored))


def _fitted(
    files: list[Path], base: Profile, naming: Naming, *, keep_schedule: bool
) -> FittedProfile:
    try:
        return fit_profile(read_points(files), base, naming, keep_schedule=keep_schedule)
    except PointError as error:
        raise failure(str(error)) from None
    except NexusError as error:
        raise failure(f"no profile holds what fits best: {error.message}") from None


def _source(files: list[Path], base: Profile) -> str:
    names = ", ".join(file.name for file in files)
    text = f"Fitted to the points of {names}. The rest is of {base.name} {base.version}."
    return f"{text} {base.source}"[:_MAX_SOURCE_CHARS]


def _checked(file: Path, text: bytes) -> Profile:
    try:
        return read_profile(text)
    except NexusError as error:
        found = error.errors or (FieldError("", error.code, error.message),)
        Console(stderr=True).print(findings_table(str(file), found, _NOUN))
        raise typer.Exit(1) from None


def _say_valid(texts: list[tuple[Path, bytes]], profiles: list[Profile], *, as_json: bool) -> None:
    pairs = [(str(file), profile) for (file, _), profile in zip(texts, profiles, strict=True)]
    if as_json:
        print_json({"valid": [{"file": name, "version": one.version} for name, one in pairs]})
        return
    for name, profile in pairs:
        typer.echo(f"{name} is a valid {_NOUN}: {profile.version}")


def _stored(client: ServiceClient, text: bytes, message: str | None) -> dict[str, Any]:
    status, profile = client.post(
        "/v1/profiles", content=text, content_type=media_type_of(text), params=said(message)
    )
    return {"created": status == 201, "profile": profile}


def _stored_line(stored: dict[str, Any]) -> str:
    profile = stored["profile"]
    done = "stored" if stored["created"] else "was stored already"
    scope = f"{profile['model'] or 'any model'} on {profile['hardware'] or 'any hardware'}"
    state = "in force" if profile["in_force"] else "not in force: a newer one is"
    return f"Profile {profile['number']} ({profile['name']}) {done}; for {scope}, {state}."


def _one(client: ServiceClient, which: str) -> dict[str, Any]:
    missing = f"There is no profile {which}; `nexuskv profile list` shows those there are"
    number = which
    if not (which.isascii() and which.isdecimal()):
        items = client.get("/v1/profiles", name=which, page_size=1)["items"]
        if not items:
            raise failure(missing)
        number = str(items[0]["number"])
    found: dict[str, Any] = client.get(f"/v1/profiles/{number}", unless_found=missing)
    return found


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise failure(f"cannot write {out}: {error.strerror}", exit_code=_USAGE) from None
