"""`/v1/policies` and `/v1/quotas` over HTTP: uploads, findings, activation, conditions, scopes."""

import json
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
import yaml

from app.control.keys import Scope
from app.db.session import Database
from app.policy.document import load_policy
from app.quota.charges import charge
from tests.fixtures.database import run_elsewhere
from tests.fixtures.service import ServiceProcess
from tests.fixtures.wire import new_tenant
from tests.policies.documents import document, quotas, text
from tests.policies.test_policy_provider import activate_raw

POLICIES = Path(__file__).resolve().parents[2] / "policies"
YAML = {"content-type": "application/yaml"}
JSON = {"content-type": "application/json"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def client(policy_service: ServiceProcess):
    with policy_service.client() as client:
        yield client


@pytest.fixture
def operator(policy_service: ServiceProcess):
    """Clients by their scopes."""
    opened: list[httpx.Client] = []

    def make(*scopes: Scope, **options) -> httpx.Client:
        opened.append(policy_service.client(policy_service.key(*scopes, **options)))
        return opened[-1]

    yield make
    for client in opened:
        client.close()


def push(client: httpx.Client, content: str, status: int = 201, **params: str) -> dict:
    answer = client.post("/v1/policies", content=content, headers=JSON, params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def activate(client: httpx.Client, number: int, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post(f"/v1/policies/{number}:activate", headers=named)


def test_a_policy_is_stored_once_and_read_back(client) -> None:
    source = "# why it is so\n" + yaml.safe_dump(document(1001))
    first = client.post(
        "/v1/policies", content=source, headers=YAML, params={"message": "a change"}
    )
    assert first.status_code == 201
    stored = first.json()
    assert first.headers["location"] == f"/v1/policies/{stored['number']}"
    assert stored["source"] == source
    assert load_policy(json.dumps(stored["document"])).content_sha256 == stored["content_sha256"]
    assert (stored["message"], stored["active"], stored["activations"]) == ("a change", False, [])
    assert {"pointer": "/allowed_source_tiers", "code": "unrestricted",
            "detail": "is empty, which means unrestricted"} in stored["warnings"]  # fmt: skip
    again = push(client, text(1001), status=200, message="another")
    assert again == stored
    assert client.get(f"/v1/policies/{stored['number']}").json() == stored


def test_pages_hold_every_version_once(client) -> None:
    made = [push(client, text(2000 + n))["number"] for n in range(5)]
    seen: list[int] = []
    query: dict[str, str | int] = {"page_size": 2}
    while True:
        page = client.get("/v1/policies", params=query).raise_for_status().json()
        seen += [item["number"] for item in page["items"]]
        assert len(page["items"]) <= 2
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == sorted(set(seen), reverse=True)
    assert set(made) <= set(seen)
    altered = client.get("/v1/policies", params={"cursor": "AAAA"})
    assert altered.json()["code"] == "invalid_cursor"


def test_every_finding_is_a_pointer_with_its_value(client) -> None:
    wrong = document(
        enabled_transfer_backends=["staged_copy", "carrier_pigeon"],
        allowed_source_tiers=["device", "device"],
        surprise=True,
    )
    del wrong["default_fallback_behavior"]
    answer = client.post("/v1/policies", content=json.dumps(wrong), headers=JSON)
    assert answer.status_code == 400
    assert answer.headers["content-type"] == "application/problem+json"
    found = {finding["pointer"]: finding for finding in answer.json()["errors"]}
    assert {pointer: finding["code"] for pointer, finding in found.items()} == {
        "/enabled_transfer_backends/1": "invalid_field",
        # The one unknown backend does not hide what the order says of a known one.
        "/backend_priority_order/0": "invalid_field",
        "/allowed_source_tiers/1": "invalid_field",
        "/surprise": "unknown_field",
        "/default_fallback_behavior": "missing_field",
    }
    pigeon = found["/enabled_transfer_backends/1"]
    assert pigeon["value"] == '"carrier_pigeon"'
    assert "zero_copy" in pigeon["allowed"]
    assert "value" not in found["/default_fallback_behavior"]


BOMB = "a: &a [x, x]\n" + "\n".join(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}]"
                                   for n in range(20))  # fmt: skip


@pytest.mark.parametrize(
    ("content", "content_type", "refusal", "hint"),
    [
        (BOMB, "application/yaml", (400, "invalid_field"), "anchors"),
        ("a: 1\na: 2", "text/yaml", (400, "invalid_field"), "twice"),
        ("a: 1\n---\nb: 2", "text/yaml", (400, "invalid_field"), "several"),
        ("!!python/object:os.system {}", "text/yaml", (400, "invalid_field"), "tags"),
        ("[" * 100, "application/json", (400, "invalid_field"), "deeper"),
        ('{"a":' * 100, "application/json", (400, "invalid_field"), "deeper"),
        (": : :", "application/yaml", (400, "invalid_body"), "neither YAML nor JSON"),
        ("", "application/yaml", (400, "invalid_body"), "object"),
        (b"\xff\xfe", "application/yaml", (400, "invalid_body"), "UTF-8"),
        ("a: " + "x" * 300_000, "application/yaml", (413, "request_too_large"), "262144"),
        (text(), "text/plain", (415, "unsupported_media_type"), "application/yaml"),
        (text(), "", (415, "unsupported_media_type"), "application/yaml"),
    ],
)
def test_documents_that_mislead_are_refused(
    client, content: str | bytes, content_type: str, refusal: tuple[int, str], hint: str
) -> None:
    headers = {"content-type": content_type} if content_type else {}
    before = client.get("/v1/policies").json()
    answer = client.post("/v1/policies", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == refusal
    assert hint in answer.text
    assert client.get("/v1/policies").json() == before


def test_validation_says_everything_and_stores_nothing(client) -> None:
    before = client.get("/v1/policies").json()
    good = client.post("/v1/policies:validate", content=text(3001), headers=JSON)
    assert good.status_code == 200
    assert good.json()["valid"]
    assert good.json()["content_sha256"] == load_policy(text(3001)).content_sha256
    assert {warning["code"] for warning in good.json()["warnings"]} == {"unrestricted"}
    wrong = text(3001, allowed_target_tiers=["tape"], default_fallback_behavior="maybe")
    bad = client.post("/v1/policies:validate", content=wrong, headers=JSON)
    assert bad.status_code == 200
    assert not bad.json()["valid"]
    assert bad.json()["content_sha256"] is None
    found = {error["pointer"]: error["value"] for error in bad.json()["errors"]}
    assert found == {"/allowed_target_tiers/0": '"tape"', "/default_fallback_behavior": '"maybe"'}
    no_document = client.post("/v1/policies:validate", content=": : :", headers=YAML)
    assert [error["code"] for error in no_document.json()["errors"]] == ["invalid_body"]
    too_large = client.post("/v1/policies:validate", content="a" * 300_000, headers=YAML)
    assert too_large.status_code == 413
    assert client.get("/v1/policies").json() == before


def test_activation_is_in_force_at_once_and_safe_to_repeat(client) -> None:
    numbers = [push(client, text(4000 + n))["number"] for n in range(2)]
    first = activate(client, numbers[0])
    assert first.status_code == 200
    assert first.json()["changed"]
    active = client.get("/v1/policies/active")
    assert active.json()["activation"] == first.json()["activation"]
    assert active.json()["origin"] == "activation"
    assert active.json()["label"].startswith(f"{numbers[0]}:sha256:")
    assert active.json()["document"]["quota_admission_policy"]["max_entries"] == 4000
    again = activate(client, numbers[0])
    assert again.json() == {**first.json(), "changed": False}
    activate(client, numbers[1])
    shown = client.get(f"/v1/policies/{numbers[0]}").json()
    assert not shown["active"]
    assert [one["number"] for one in shown["activations"]] == [numbers[0]]
    listed = client.get("/v1/policies").json()["items"]
    assert [item["number"] for item in listed if item["active"]] == [numbers[1]]


def test_conditions_keep_two_operators_from_undoing_each_other(client) -> None:
    a, b, c = (push(client, text(5000 + n))["number"] for n in range(3))
    activate(client, a)
    read = client.get("/v1/policies/active")
    tag = read.headers["etag"]
    unchanged = client.get("/v1/policies/active", headers={"if-none-match": f'"x", W/{tag}'})
    assert unchanged.status_code == 304
    assert unchanged.headers["etag"] == tag
    assert not unchanged.content
    assert activate(client, b, if_match=tag).status_code == 200
    assert activate(client, b, if_match=tag).json()["changed"] is False
    for outdated in (tag, f'"x", {tag}', '"nonsense"', f"W/{tag}"):
        refused = activate(client, c, if_match=outdated)
        assert refused.status_code == 412
        assert refused.json()["code"] == "policy_changed"
        assert f"policy {b}" in refused.json()["detail"]
    changed = client.get("/v1/policies/active", headers={"if-none-match": tag})
    assert changed.status_code == 200
    # Back to the same content is not the same activation.
    activate(client, a)
    assert client.get("/v1/policies/active").headers["etag"] != tag
    assert activate(client, c, if_match="*").status_code == 200


@pytest.mark.parametrize("number", ["999999999", "0", "-1", str(2**63), "x", "1.5"])
def test_numbers_that_are_none(client, number: str) -> None:
    expected = 404 if number == "999999999" else 400
    assert client.get(f"/v1/policies/{number}").status_code == expected
    assert client.post(f"/v1/policies/{number}:activate").status_code == expected


def test_each_scope_does_its_own(operator, client) -> None:
    stored = push(client, text(6001))
    reader = operator(Scope.POLICIES_READ)
    writer = operator(Scope.POLICIES_WRITE)
    activator = operator(Scope.POLICIES_ACTIVATE)
    bridge = operator(Scope.BRIDGE)
    calls = {
        reader: [("GET", "/v1/policies"), ("GET", "/v1/policies/active"),
                 ("GET", f"/v1/policies/{stored['number']}")],
        writer: [("POST", "/v1/policies"), ("POST", "/v1/policies:validate")],
        activator: [("POST", f"/v1/policies/{stored['number']}:activate")],
    }  # fmt: skip
    for allowed in calls:
        for owner, theirs in calls.items():
            for method, path in theirs:
                content, headers = (text(6001), JSON) if owner is writer else ("", {})
                answer = allowed.request(method, path, content=content, headers=headers)
                assert (answer.status_code == 403) == (owner is not allowed), (method, path)
                assert bridge.request(method, path, headers=headers).status_code == 403
    activation = activate(client, stored["number"]).json()["activation"]
    assert activation["key_id"] == activator.headers["authorization"].split("_")[1]


def test_a_bad_activation_is_shown_and_the_last_good_policy_decides(policy_service, client) -> None:
    good = push(client, text(7001))["number"]
    activate(client, good)

    async def break_it() -> int:
        async with Database(policy_service.database_url, pool_connections=1) as database:
            return await activate_raw(database, '{"schema_version":"nexuskv.execution_policy.v9"}')

    bad = run_elsewhere(break_it())
    # Activating what cannot be used, here: the poll is then not waited for.
    assert activate(client, bad).status_code == 200
    shown = client.get("/v1/policies/active").json()
    assert shown["activation"]["number"] == good
    assert shown["fault"]["activation"]["number"] == bad
    assert "schema_version" in shown["fault"]["reason"]
    assert client.get(f"/v1/policies/{bad}").json()["warnings"] == []
    tag = client.get("/v1/policies/active").headers["etag"]
    assert activate(client, good, if_match=tag).json()["changed"]
    assert client.get("/v1/policies/active").json()["fault"] is None


def test_the_active_policy_survives_a_restart(own_service: ServiceProcess) -> None:
    with own_service.client() as client:
        assert client.get("/v1/policies/active").json()["origin"] == "file"
        tag = client.get("/v1/policies/active").headers["etag"]
        shared = (POLICIES / "shared-fleet.yaml").read_text()
        number = client.post("/v1/policies", content=shared, headers=YAML).json()["number"]
        assert activate(client, number, if_match=tag).status_code == 200
        before = client.get("/v1/policies/active")
    own_service.kill()
    own_service.start()
    with own_service.client() as client:
        after = client.get("/v1/policies/active")
    assert after.json() == before.json()
    assert after.headers["etag"] == before.headers["etag"]


def test_a_quota_shows_usage_and_the_limits_in_force(policy_service, operator, client) -> None:
    tenant, other = new_tenant(), new_tenant()
    policy = quotas("enforced", payload_bytes=7002, entries=3, transfers=2)
    activate(client, push(client, policy)["number"])

    async def hold() -> None:
        async with (
            Database(policy_service.database_url, pool_connections=1) as database,
            database.write() as session,
        ):
            held = load_policy(policy)
            await charge(session, held, tenant, "c", 4096, now=NOW, expires_at=None)

    run_elsewhere(hold())
    mine = operator(Scope.POLICIES_READ, tenants=(tenant,))
    shown = mine.get(f"/v1/quotas/{tenant}").json()
    assert (shown["mode"], shown["payload_bytes"], shown["entries"], shown["transfers"]) == (
        "enforced", 4096, 1, 0,
    )  # fmt: skip
    assert shown["limits"] == {
        "max_payload_bytes": 7002, "max_entries": 3, "max_concurrent_transfers": 2,
    }  # fmt: skip
    assert shown["policy"] == client.get("/v1/policies/active").json()["label"]
    assert client.get(f"/v1/quotas/{other}").json()["entries"] == 0
    refused = mine.get(f"/v1/quotas/{other}")
    assert (refused.status_code, refused.json()["code"]) == (403, "tenant_forbidden")
