"""What the published document says of a worker's answers, and whether an answer is one of them."""

import re
from functools import cache
from typing import Any

import httpx
import jsonschema

from app.worker.openapi import worker_document

METHODS = {"get", "head", "put", "post", "delete"}


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of every one."""
    return [
        (method, path, operation)
        for path, item in worker_document()["paths"].items()
        for method, operation in item.items()
    ]


def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    """Of a schema that may refer to the document's components."""
    root = schema | {"components": worker_document()["components"]}
    return jsonschema.Draft202012Validator(root)


def component(name: str) -> dict[str, Any]:
    found: dict[str, Any] = worker_document()["components"]["schemas"][name]
    return found


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))), path)
        for path in sorted(worker_document()["paths"], key=lambda path: ("{" in path[-9:], path))
    ]


def operation_at(method: str, path: str) -> dict[str, Any] | None:
    """The operation that a request is; None when the document has none for it."""
    for pattern, template in _patterns():
        if pattern.fullmatch(path):
            found: dict[str, Any] | None = worker_document()["paths"][template].get(method.lower())
            if found is not None:
                return found
    return None


def check_answer(method: str, path: str, answer: httpx.Response) -> None:
    """Fail unless the document declares this status, media type, headers and body."""
    operation = operation_at(method, path)
    if operation is None:
        assert answer.status_code in (404, 405)
        return
    where = f"{method} {path}: {answer.status_code}"
    declared = operation["responses"].get(str(answer.status_code))
    assert declared is not None, where
    required = {name for name, one in declared["headers"].items() if one.get("required")}
    assert required <= set(answer.headers), (where, required - set(answer.headers))
    if answer.status_code == 401:
        assert answer.headers["www-authenticate"] == "Bearer"
    if method == "HEAD":
        assert declared["content"] == {}
        return
    media_type = answer.headers["content-type"].partition(";")[0]
    assert set(declared["content"]) == {media_type}, where
    schema = declared["content"][media_type]["schema"]
    if media_type.endswith("json"):
        body = answer.json()
        validator(schema).validate(body)
        name = schema.get("$ref", "").rpartition("/")[2]
        # Nothing is answered that is not published.
        assert not name or set(body) == set(component(name)["properties"]), where
