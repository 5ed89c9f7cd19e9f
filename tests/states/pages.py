"""What the tests of `/v1/states` share."""

from typing import Any

import httpx

PROBLEM = "application/problem+json"


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a problem document, whose shape is checked on the way."""
    assert answer.headers["content-type"] == PROBLEM, answer.text
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["detail"]
    assert body["type"] == f"urn:nexuskv:error:{body['code']}"
    return answer.status_code, body["code"]


def state_id_of(client: httpx.Client, tenant: str, entry_id: str = "state-1") -> str:
    found = listed(client, tenant=tenant, entry_id=entry_id)
    assert len(found) == 1
    return str(found[0]["state_id"])


def listed(client: httpx.Client, **params: Any) -> list[dict[str, Any]]:
    """Every item of a list, page by page."""
    items: list[dict[str, Any]] = []
    while True:
        page = client.get("/v1/states", params=params).raise_for_status().json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        assert page["items"], "a page that is not the last one is not empty"
        params["cursor"] = page["next_cursor"]
