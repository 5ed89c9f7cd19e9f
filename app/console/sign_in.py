"""Signing in with an API key, and out again."""

from starlette.responses import Response

from app.console.rendering import go, keep, page
from app.console.session import COOKIE, COOKIE_PATH
from app.console.visit import HOME, SIGN_IN, Visit, safe_next

_MAX_KEY_CHARS = 128


async def sign_in_page(visit: Visit) -> Response:
    """The form; who is signed in already goes on."""
    onward = safe_next(visit.request.query_params.get("next", HOME))
    if visit.signed_in:
        return go(onward)
    return page(visit, "sign_in.html", onward=onward, refused=False)


async def sign_in(visit: Visit) -> Response:
    """Exchange an API key for a session. The key is looked at once and kept nowhere.

    Raises OVERLOADED when too many unknown keys are being tried, DATABASE_UNAVAILABLE.
    """
    fields = await visit.form()
    onward = safe_next(fields.get("next", HOME))
    key = fields.get("key", "").strip()
    principal = None
    if key.isascii() and 0 < len(key) <= _MAX_KEY_CHARS:
        principal = await visit.services.keyring.find_or_load(b"Bearer " + key.encode())
    if principal is None:
        return page(visit, "sign_in.html", status=403, onward=onward, refused=True)
    # A new one: what was known of the session before signing in is worth nothing after it.
    visit.session = visit.sessions.begin(principal.key_id)
    response = go(onward)
    keep(visit, response)
    return response


async def sign_out(visit: Visit) -> Response:
    """The browser forgets its session. The key goes on to hold until it is revoked."""
    await visit.form()
    response = go(SIGN_IN)
    response.delete_cookie(COOKIE, path=COOKIE_PATH, secure=visit.is_secure, httponly=True,
                           samesite="strict")  # fmt: skip
    return response
