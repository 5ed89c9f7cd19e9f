"""Templates, and the answers made of them."""

from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.console import words
from app.console.session import COOKIE, COOKIE_PATH, LIFETIME_S
from app.console.visit import Visit
from app.control.keys import Scope

_HERE: Final = Path(__file__).parent
STATIC: Final = _HERE / "static"
# Path, label, the scope that a key needs to see it (None: any), and its icon's name.
PLACES: Final[tuple[tuple[str, str, Scope | None], ...]] = (
    ("/console", "Overview", None),
    ("/console/decisions", "Decisions", Scope.DECISIONS_READ),
    ("/console/policies", "Policies", Scope.POLICIES_READ),
    ("/console/states", "States", Scope.STATES_READ),
    ("/console/engines", "Engines", Scope.ENGINES_READ),
    ("/console/workers", "Workers", Scope.WORKERS_READ),
)


def _static_version() -> str:
    """Changes with every change of a static file, so that browsers may keep them."""
    digest = sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


STATIC_VERSION: Final = _static_version()


def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    for name in (
        "duration", "amount", "count", "exact", "share", "moment", "clock", "plain", "short",
        "version", "flat",
    ):  # fmt: skip
        found.filters[name] = getattr(words, name)
    found.globals["version_of_service"] = version("nexuskv")
    found.globals["static"] = lambda path: f"/console/static/{path}?v={STATIC_VERSION}"
    return found


_TEMPLATES: Final = _environment()


def page(visit: Visit, template: str, *, status: int = 200, **values: Any) -> Response:
    """The template as an answer; the visit's cookie goes with it where it brought none.

    Not where another site sent the browser: it held its cookie back, and is to keep it.
    """
    places = [
        (path, label) for path, label, scope in PLACES if scope is None or visit.allows(scope)
    ]
    now: datetime = visit.services.clock.now()
    content = _TEMPLATES.get_template(template).render(
        visit=visit, places=places if visit.signed_in else [], now=now, Scope=Scope, **values
    )
    response = HTMLResponse(content, status_code=status)
    if visit.is_new and visit.is_of_own_site:
        keep(visit, response)
    return response


def keep(visit: Visit, response: Response) -> None:
    """Leave the visit's session with the browser."""
    response.set_cookie(
        COOKIE,
        visit.sessions.seal(visit.session),
        max_age=LIFETIME_S,
        path=COOKIE_PATH,
        secure=visit.is_secure,
        httponly=True,
        samesite="strict",
    )


def go(path: str) -> Response:
    """After a form: a page that can be loaded again without sending it again."""
    return RedirectResponse(path, status_code=303)
