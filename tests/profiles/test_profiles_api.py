"""`/v1/profiles` over HTTP: uploads, findings, what is in force and why, scopes."""

import json

import httpx
import pytest
import yaml

from app.control.keys import Scope
from app.settings import REFERENCE_PROFILE_FILE
from tests.fixtures.service import ServiceProcess
from tests.profiles.documents import document, text

YAML = {"content-type": "application/yaml"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(module_service: ServiceProcess):
    with module_service.client() as client:
        yield client


def push(client: httpx.Client, content: str, status: int = 201, **params: str) -> dict:
    answer = client.post("/v1/profiles", content=content, headers=JSON, params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def in_force(client: httpx.Client, **params: str) -> dict:
    return client.get("/v1/profiles/in-force", params=params).raise_for_status().json()


def test_a_profile_is_stored_once_and_read_back(client) -> None:
    source = "# why it is so\n" + yaml.safe_dump(document(11, model="once"))
    first = client.post("/v1/profiles", content=source, headers=YAML, params={"message": "new"})
    assert first.status_code == 201
    stored = first.json()
    assert first.headers["location"] == f"/v1/profiles/{stored['number']}"
    assert stored["source"] == source
    assert stored["document"] == document(11, model="once") | {
        "hardware": "", "lookup_us": 0.0, "sync_us": 0.0, "decode_slowdown": 0.0,
        "queued_tokens": 2048.0,
        "prefill": document(11)["prefill"] | {"measured": False},
        "paths": [
            path | {"remote": None, "backend": None, "measured": False}
            for path in document()["paths"]
        ],
    }  # fmt: skip
    assert (stored["message"], stored["in_force"], stored["name"]) == ("new", True, "measured")
    again = push(client, text(11, model="once"), status=200, message="another")
    assert again == stored
    assert client.get(f"/v1/profiles/{stored['number']}").json() == stored


def test_the_best_fitting_one_is_in_force_at_once_and_says_why(client) -> None:
    built_in = in_force(client, model="fits", hardware="h")
    assert (built_in["number"], built_in["fit"]) == (None, "built_in")
    assert built_in["name"] == "reference"
    first = push(client, text(21, model="fits"))
    assert in_force(client, model="fits", hardware="h")["fit"] == "model"
    exact = push(client, text(22, model="fits", hardware="h"))
    found = in_force(client, model="fits", hardware="h")
    assert (found["number"], found["fit"], found["fault"]) == (exact["number"], "exact", None)
    assert found["document"]["prefill"]["per_token_us"] == 22
    assert found["version"] == f"sha256:{exact['content_sha256'][:16]}"
    newer = push(client, text(23, model="fits"))
    assert in_force(client, model="fits", hardware="x")["number"] == newer["number"]
    assert not client.get(f"/v1/profiles/{first['number']}").json()["in_force"]
    # Known content does not come back into force by being sent again.
    assert not push(client, text(21, model="fits"), status=200)["in_force"]
    assert in_force(client)["fit"] == "built_in"


def test_pages_hold_every_version_of_a_filter_once(client) -> None:
    made = [push(client, text(31 + n, name="paged"))["number"] for n in range(5)]
    seen: list[int] = []
    query: dict[str, str | int] = {"page_size": 2, "name": "paged"}
    while True:
        page = client.get("/v1/profiles", params=query).raise_for_status().json()
        seen += [item["number"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == made[::-1]
    query = {"cursor": query["cursor"], "name": "other"}
    assert client.get("/v1/profiles", params=query).json()["code"] == "invalid_cursor"


def changed(**changes) -> str:
    return yaml.safe_dump(document(**changes))


def with_path(**changes) -> str:
    return changed(paths=[document()["paths"][0] | changes])


MISSING = document()
del MISSING["restore_us"]


@pytest.mark.parametrize(
    ("content", "refusal", "pointer"),
    [
        (with_path(bytes_per_us=0), (400, "invalid_field"), "/paths/0/bytes_per_us"),
        (with_path(bytes_per_us=-1), (400, "invalid_field"), "/paths/0/bytes_per_us"),
        (with_path(bytes_per_us=float("inf")), (400, "invalid_field"), "/paths/0/bytes_per_us"),
        (with_path(bytes_per_us=float("nan")), (400, "invalid_field"), "/paths/0/bytes_per_us"),
        (with_path(latency_us=-1), (400, "invalid_field"), "/paths/0/latency_us"),
        (with_path(tier="tape"), (400, "invalid_field"), "/paths/0/tier"),
        (changed(surprise=1), (400, "unknown_field"), "/surprise"),
        (yaml.safe_dump(MISSING), (400, "missing_field"), "/restore_us"),
        ("- a\n- b\n", (400, "invalid_body"), ""),
        ("restore_us: 1\nrestore_us: 2\n", (400, "invalid_field"), "/restore_us"),
        ("a: " + "x" * 300_000, (413, "request_too_large"), None),
        (b"\xff\xfe", (400, "invalid_body"), None),
    ],
)
def test_what_is_no_profile_is_refused_with_a_pointer(
    client, content: str | bytes, refusal: tuple[int, str], pointer: str | None
) -> None:
    before = client.get("/v1/profiles").json()
    answer = client.post("/v1/profiles", content=content, headers=YAML)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == refusal
    if pointer is not None:
        assert [finding["pointer"] for finding in problem["errors"]] == [pointer]
    assert client.get("/v1/profiles").json() == before


def test_the_body_is_a_document_by_its_type(client) -> None:
    answer = client.post("/v1/profiles", content=text(), headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_validation_says_everything_and_stores_nothing(client) -> None:
    before = client.get("/v1/profiles").json()
    good = client.post("/v1/profiles:validate", content=text(41), headers=JSON).json()
    assert good["valid"]
    assert good["errors"] == []
    wrong = text(-1, restore_us="x")
    bad = client.post("/v1/profiles:validate", content=wrong, headers=JSON).json()
    assert (bad["valid"], bad["content_sha256"]) == (False, None)
    assert {error["pointer"]: error["value"] for error in bad["errors"]} == {
        "/prefill/per_token_us": "-1",
        "/restore_us": '"x"',
    }
    assert client.get("/v1/profiles").json() == before
    stored = push(client, text(41))
    assert stored["content_sha256"] == good["content_sha256"]


@pytest.mark.parametrize("number", ["999999999", "0", "-1", str(2**63), "x"])
def test_numbers_that_are_none(client, number: str) -> None:
    expected = 404 if number == "999999999" else 400
    assert client.get(f"/v1/profiles/{number}").status_code == expected


def test_each_scope_does_its_own(module_service, client) -> None:
    stored = push(client, text(51))
    calls = {
        Scope.PROFILES_READ: [
            ("GET", "/v1/profiles"),
            ("GET", "/v1/profiles/in-force"),
            ("GET", f"/v1/profiles/{stored['number']}"),
        ],
        Scope.PROFILES_WRITE: [("POST", "/v1/profiles"), ("POST", "/v1/profiles:validate")],
        Scope.POLICIES_WRITE: [],
    }
    for scope in calls:
        with module_service.client(module_service.key(scope)) as caller:
            for owner, theirs in calls.items():
                for method, path in theirs:
                    content = text(51) if method == "POST" else ""
                    answer = caller.request(method, path, content=content, headers=JSON)
                    assert (answer.status_code == 403) == (owner is not scope), (method, path)


def test_metrics_tell_what_is_in_force_and_how_sure_that_is(client) -> None:
    push(client, text(61, model="metrics"))
    metrics = client.get("/metrics").text
    found = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if "profiles_" in line)
    assert float(found["nexuskv_profiles_in_force"]) >= 1
    assert float(found["nexuskv_profiles_changes_total"]) >= 1
    assert float(found["nexuskv_profiles_faulted"]) == 0
    assert float(found["nexuskv_profiles_stale_seconds"]) < 30


def test_what_is_stored_survives_a_restart(own_service: ServiceProcess) -> None:
    reference = REFERENCE_PROFILE_FILE.read_text()
    with own_service.client() as client:
        stored = client.post("/v1/profiles", content=reference, headers=YAML).json()
        before = in_force(client, model="m")
    own_service.kill()
    own_service.start()
    with own_service.client() as client:
        assert in_force(client, model="m") == before
    assert (before["number"], before["fit"]) == (stored["number"], "any")
    assert json.dumps(before["document"]) == json.dumps(stored["document"])
