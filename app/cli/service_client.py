"""How a command asks a running service: the address, the key, and refusals as a person reads them.

One attempt and one time limit: a person, or a script, decides whether to try again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import httpx
import orjson
import typer

from app.cli.options import failure
from app.cli.secret_files import SecretFileError, read_secret
from app.errors import ErrorCode
from app.settings import DEFAULT_LISTEN

DEFAULT_URL: Final = f"http://{DEFAULT_LISTEN}"
TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# The service speaks of headers, to programs; here it is options that bring a key.
KEY_ADVICE: Final = (
    "give a key with --key, --key-file or NEXUSKV_KEY; `nexuskv up` says where the admin.key is "
    "that it made"
)
_USAGE: Final = 2

ServiceUrl = Annotated[
    str,
    typer.Option(
        "--url", envvar=["NEXUSKV_URL", "NEXUSKV_API_URL"], help="Where the service answers."
    ),
]
ServiceKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar=["NEXUSKV_KEY", "NEXUSKV_API_KEY"],
        show_default=False,
        help="The API key; a loopback service may need none.",
    ),
]
ServiceKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        help="Read the API key from a file that only its owner may read.",
    ),
]


class ServiceClient:
    """Asks one service with one key. Every failure ends the command with a message."""

    def __init__(self, url: str, key: str | None, key_file: Path | None) -> None:
        key = given_key(key, key_file)
        self._url = checked_url(url)
        self._http = httpx.Client(
            base_url=self._url,
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=TIMEOUT_S,
            # A key must not travel to a proxy that the environment happens to name.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *, unless_found: str | None = None, **params: str | int) -> Any:
        """The decoded body of a 2xx; `unless_found` says a 404 in a command's words."""
        return self._decoded(self._ask("GET", path, unless_found, params=params))

    def post(
        self,
        path: str,
        *,
        content: bytes = b"",
        content_type: str | None = None,
        params: Mapping[str, str] | None = None,
        unless_found: str | None = None,
    ) -> tuple[int, Any]:
        """The status and the decoded body of a 2xx; `unless_found` as for `get`."""
        headers = {} if content_type is None else {"content-type": content_type}
        response = self._ask(
            "POST", path, unless_found, content=content, headers=headers, params=params
        )
        return response.status_code, self._decoded(response)

    def put(
        self,
        path: str,
        *,
        content: bytes,
        content_type: str,
        params: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """The status and the decoded body of a 2xx."""
        headers = {"content-type": content_type}
        response = self._ask("PUT", path, None, content=content, headers=headers, params=params)
        return response.status_code, self._decoded(response)

    def _ask(
        self, method: str, path: str, unless_found: str | None, **options: Any
    ) -> httpx.Response:
        try:
            with self._http.stream(method, path, **options) as response:
                self._read(response)
        except httpx.TimeoutException:
            raise failure(f"{self._url} did not answer within {TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise failure(
                f"no answer from {self._url}: {reason}. Is the service running there? --url or "
                "NEXUSKV_URL names another"
            ) from None
        if not response.is_success:
            raise failure(_refusal(response, unless_found))
        return response

    def _read(self, response: httpx.Response) -> None:
        """Takes the body in, which a stream leaves to its reader, up to the limit."""
        announced = response.headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > MAX_ANSWER_BYTES:
            raise failure(f"{self._url} sends more than {MAX_ANSWER_BYTES} bytes")
        response.read()

    def _decoded(self, response: httpx.Response) -> Any:
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError:
            raise failure(f"{self._url} does not answer as NexusKV does") from None


def checked_url(url: str) -> str:
    """The URL, if a client can use it; else a usage error."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise typer.BadParameter(str(error), param_hint="--url") from error
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise typer.BadParameter("must be http://HOST:PORT or https://…", param_hint="--url")
    return url


def given_key(key: str | None, key_file: Path | None) -> str | None:
    """The key to send, None for none; a usage error for one that no header can carry.

    The file wins: it is named on this command line, a variable may be left from another.
    """
    if key_file is not None:
        try:
            key = read_secret(key_file)
        except SecretFileError as error:
            raise failure(f"--key-file: {error}", exit_code=_USAGE) from None
        if key is None:
            raise failure(f"--key-file: there is no file {key_file}", exit_code=_USAGE)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise failure("--key: an API key holds printable ASCII only", exit_code=_USAGE)
    return key or None


def _refusal(response: httpx.Response, unless_found: str | None) -> str:
    """What a problem document says, finding by finding; its status for anything else."""
    try:
        problem = orjson.loads(response.content)
        missing = problem["code"] == ErrorCode.NOT_FOUND and unless_found is not None
        detail = unless_found if missing else problem["detail"]
        lines = [f"{detail} ({response.status_code} {problem['code']})"]
        lines += [
            f"  {finding['pointer'] or '/'}: {finding['detail']}{_found(finding.get('value'))}"
            for finding in problem["errors"]
        ]
        if problem["code"] == ErrorCode.UNAUTHORIZED:
            lines.append(f"  {KEY_ADVICE}")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"{response.request.url} answered {response.status_code} {response.reason_phrase}"
    return "\n".join(lines)


def _found(value: str | None) -> str:
    return "" if value is None else f"; it is {value}"
