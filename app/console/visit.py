"""One request to the console: who looks, what they may see, and whether a form is really theirs.

A form is taken when all of this holds: the session's own token is in it (or in the header that htmx
sends), the Origin is ours where the browser sent one, and Sec-Fetch-Site does not say that another
site sent it. The token alone would do; the others end what a leaked token could begin.

A page that is reached by a link on another site brings no cookie, since that is SameSite=Strict.
Such a visit is answered with a page that asks for itself again: that request is same-origin and
brings the cookie, so links to a decision work from anywhere. It only ever applies to GET.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote

from starlette.requests import Request

from app.console.session import COOKIE, Session, Sessions
from app.control.auth import is_own_origin
from app.control.keys import LOOPBACK_KEY_ID, Principal, Scope
from app.errors import ErrorCode, NexusError
from app.http_limits import read_body
from app.services import Services

CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"
HOME: Final = "/console"
SIGN_IN: Final = "/console/sign-in"
MAX_FORM_BYTES: Final = 64 * 1024
_MAX_FIELDS: Final = 32
_MAX_NEXT_CHARS: Final = 2048
_FORM_TYPE: Final = "application/x-www-form-urlencoded"
_OWN_SITES: Final = ("same-origin", "none", None)
_NO_KEY: Final = Principal("", frozenset(), frozenset())


@dataclass(slots=True)
class Visit:
    """A request, its session (a new one where it brought none), and whose it is.

    `principal` has no scope where nobody has signed in; `ended` says that somebody had.
    """

    request: Request
    services: Services
    sessions: Sessions
    session: Session
    is_new: bool
    principal: Principal = _NO_KEY
    ended: bool = False

    @property
    def signed_in(self) -> bool:
        return self.principal is not _NO_KEY

    @property
    def keyless(self) -> bool:
        """Whether this is the machine's own user, who needs no key."""
        return self.principal.key_id == LOOPBACK_KEY_ID

    @property
    def is_fragment(self) -> bool:
        """Whether htmx asks for a part of the page; history and boosts want it whole."""
        headers = self.request.headers
        return "hx-request" in headers and headers.get("hx-history-restore-request") != "true"

    @property
    def form_token(self) -> str:
        return self.sessions.form_token(self.session)

    @property
    def here(self) -> str:
        """The path and query of this request."""
        url = self.request.url
        return f"{url.path}?{url.query}" if url.query else url.path

    @property
    def is_secure(self) -> bool:
        """Whether the browser came by https, also to a proxy before us."""
        forwarded = self.request.headers.get("x-forwarded-proto", "")
        return "https" in (self.request.url.scheme, forwarded.partition(",")[0].strip())

    @property
    def is_of_own_site(self) -> bool:
        """Whether no other site had a part in this request, as far as the browser says."""
        return self.request.headers.get("sec-fetch-site") in _OWN_SITES

    def allows(self, scope: Scope) -> bool:
        return self.principal.allows(scope)

    def arrives_from_elsewhere(self) -> bool:
        """Whether a link on another site led here, so that the cookie was held back."""
        headers = self.request.headers
        return (
            self.request.method == "GET"
            and self.is_new
            and not self.is_of_own_site
            and headers.get("sec-fetch-mode") == "navigate"
        )

    async def form(self) -> dict[str, str]:
        """The fields of a form of this session; of one that is given twice, the last.

        Raises FORBIDDEN for a form that is not its own, REQUEST_TOO_LARGE, INVALID_BODY.
        """
        request = self.request
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _FORM_TYPE:
            raise NexusError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"Send a form as {_FORM_TYPE}")
        body = await read_body(request.scope, request.receive, MAX_FORM_BYTES)
        try:
            fields = dict(
                parse_qsl(
                    body.decode("ascii"),
                    keep_blank_values=True,
                    max_num_fields=_MAX_FIELDS,
                    errors="strict",
                )
            )
        except ValueError as error:
            raise NexusError(ErrorCode.INVALID_BODY, "The form cannot be read") from error
        token = fields.pop(CSRF_FIELD, "") or request.headers.get(CSRF_HEADER, "")
        self._check_own(token)
        return fields

    def _check_own(self, token: str) -> None:
        request = self.request
        own = (
            not self.is_new
            and self.is_of_own_site
            and ("origin" not in request.headers or is_own_origin(request.scope))
            and self.sessions.is_form_token(self.session, token)
        )
        if not own:
            raise NexusError(
                ErrorCode.FORBIDDEN,
                "The form did not come from a page of this session, so nothing was changed. Open"
                " the page again and repeat what you did",
            )


async def visit_of(request: Request, services: Services, sessions: Sessions) -> Visit:
    """Raises DATABASE_UNAVAILABLE when the key of a session cannot be looked up now."""
    session = sessions.open(request.cookies.get(COOKIE, ""))
    visit = Visit(request, services, sessions, session or sessions.begin(), session is None)
    if session is not None and session.key_id:
        principal = await services.keyring.of_id(session.key_id)
        if principal is not None:
            visit.principal = principal
            return visit
        visit.ended = True
    if (found := services.access.of_own_page(request.scope)) is not None:
        visit.principal = found
    return visit


def sign_in_path(visit: Visit) -> str:
    """Where to sign in, to come back to where one was."""
    return f"{SIGN_IN}?next={quote(visit.here, safe='/')}"


def safe_next(given: str) -> str:
    """A path of the console to go on to; the overview for anything else."""
    inside = given == HOME or given.startswith((HOME + "/", HOME + "?"))
    plain = given.isascii() and given.isprintable() and "\\" not in given
    return given if inside and plain and len(given) <= _MAX_NEXT_CHARS else HOME
