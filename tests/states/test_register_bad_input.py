"""Bad bodies of `POST /v1/states`: the documented problem, nothing stored, and no 500."""

import json
import socket

import httpx
import pytest

from app.control.keys import Scope
from tests.fixtures.wire import new_tenant, registration
from tests.states.pages import listed, refusal

LIMIT_BYTES = 8 * 1024 * 1024
DEEP = 100_000


def post(client, body, **headers):
    headers = {"content-type": "application/json"} | headers
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post("/v1/states", content=content, headers=headers)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"entries": [{]}', "invalid_json"),
        (b"\xff\xfe", "invalid_json"),
        (b'{"entries": [{"a": NaN}]}', "invalid_json"),
        (b'{"entries": [{"a": Infinity}]}', "invalid_json"),
        (b'{"entries": ["\\ud800"]}', "invalid_json"),
        (b'{"entries": ' + b"[" * DEEP + b"]" * DEEP + b"}", "invalid_json"),
        (b'{"entries": [' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"]}", "invalid_json"),
        (b"[]", "invalid_body"),
        (b'"text"', "invalid_body"),
        (b"null", "invalid_body"),
        (b"{}", "missing_field"),
        (b'{"entries": [], "more": 1}', "unknown_field"),
        (b'{"entries": []}', "invalid_field"),
        (b'{"entries": {}}', "invalid_field"),
        (b'{"entries": null}', "invalid_field"),
    ],
)
def test_a_body_that_is_no_batch(service, body, code):
    with service.client() as client:
        assert refusal(post(client, body)) == (400, code)


def test_unknown_fields_of_the_body_are_named_and_cut_short(service):
    with service.client() as client:
        answer = post(client, {"entries": [], "a/b": 1, "x" * 100_000: 1})
    assert refusal(answer) == (400, "unknown_field")
    pointers = [found["pointer"] for found in answer.json()["errors"]]
    assert pointers[0] == "/a~1b"
    assert len(answer.content) < 2_000


@pytest.mark.parametrize(
    ("path", "value", "code", "status"),
    [
        ("entry/more", 1, "unknown_field", 400),
        ("entry/identity/key/more", 1, "unknown_field", 400),
        ("entry/identity/version/generation", True, "invalid_field", 400),
        ("entry/identity/version/generation", -1, "invalid_field", 400),
        ("entry/identity/version/generation", 2**32, "invalid_field", 400),
        ("entry/identity/version/generation", 10**30, "invalid_field", 400),
        ("entry/identity/version/generation", 1.0, "invalid_field", 400),
        ("entry/identity/version/generation", "1", "invalid_field", 400),
        ("entry/identity/entry_id", "", "invalid_field", 400),
        ("entry/identity/entry_id", "a\x00b", "invalid_field", 400),
        ("entry/identity/entry_id", "x" * 513, "invalid_field", 400),
        ("entry/location/locator", "node://\x00", "invalid_field", 400),
        ("entry/location/tier", "tape", "invalid_field", 400),
        ("entry/descriptor/layout_metadata", {"\x00": "x"}, "invalid_field", 400),
        ("entry/policy_hint/reusable", "yes", "invalid_field", 400),
        ("entry/policy_hint", None, "invalid_field", 400),
        ("entry", [], "invalid_field", 400),
        ("validation/input_fingerprint", "", "invalid_field", 400),
        ("entry/descriptor/schema_version", "v2", "unsupported_nexuskv_schema", 422),
        ("entry/descriptor/semantic_type", "magic", "unsupported_identity", 422),
    ],
)
def test_a_bad_field_is_pointed_at(service, path, value, code, status):
    tenant = new_tenant()
    entry = registration(tenant)
    *parents, name = path.split("/")
    holder = entry
    for parent in parents:
        holder = holder[parent]
    holder[name] = value
    with service.client() as client:
        answer = post(client, {"entries": [entry]})
        assert listed(client, tenant=tenant) == []
    assert refusal(answer) == (status, code)
    [result] = answer.json()["results"]
    findings = result["error"]["errors"]
    assert (result["status"], result["error"]["code"]) == (status, code)
    assert any(found["pointer"].startswith(f"/{path}") for found in findings), findings
    assert code in {found["code"] for found in findings}


@pytest.mark.parametrize(
    "tokens", [[], [True], [-1], [2**32], [1.5], ["1"], [None], None, "1,2", [10**30]]
)
def test_bad_tokens(service, tokens):
    tenant = new_tenant()
    with service.client() as client:
        answer = post(client, {"entries": [registration(tenant, tokens=tokens)]})
    assert refusal(answer) == (400, "invalid_field")
    pointers = [found["pointer"] for found in answer.json()["results"][0]["error"]["errors"]]
    assert any("/tokens" in pointer for pointer in pointers), pointers


def test_a_million_tokens_fit_and_one_more_does_not(service):
    tenant = new_tenant()
    # Both keys name the tokens: a body of one million just fits when they are short.
    with service.client() as client:
        for count, status in ((1_000_001, 400), (1_000_000, 201)):
            entry = registration(tenant, tokens=[7] * count)
            text = json.dumps({"entries": [entry]}, separators=(",", ":")).encode()
            assert len(text) < LIMIT_BYTES
            assert post(client, text).status_code == status
        [state] = listed(client, tenant=tenant)
    assert state["token_count"] == 1_000_000


def test_keys_that_differ_are_refused_at_the_field(service):
    entry = json.loads(json.dumps(registration(new_tenant())))
    entry["reuse_key"]["identity"]["model"] = "another"
    with service.client() as client:
        answer = post(client, {"entries": [entry]})
    [found] = answer.json()["results"][0]["error"]["errors"]
    assert found["pointer"] == "/entry/identity/key/model"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_8_mib_is_answered(service, chunked):
    def chunks():
        for _ in range(9 * 16):
            yield b" " * 65_536

    with service.client() as client:
        content = chunks() if chunked else b" " * (LIMIT_BYTES + 1)
        assert refusal(client.post("/v1/states", content=content)) == (413, "request_too_large")
        assert client.get("/livez").status_code == 200


def test_a_body_of_exactly_8_mib_is_read(service):
    tenant = new_tenant()
    text = json.dumps({"entries": [registration(tenant)]}).encode()
    with service.client() as client:
        assert post(client, text + b" " * (LIMIT_BYTES - len(text))).status_code == 201


def test_a_body_of_another_type_is_refused(service):
    with service.client() as client:
        answer = post(client, {"entries": []}, **{"content-type": "text/plain"})
    assert refusal(answer) == (415, "unsupported_media_type")


def test_who_may_register(service):
    tenant = new_tenant()
    entry = {"entries": [registration(tenant)]}
    readers = service.key(Scope.STATES_READ, Scope.BRIDGE, Scope.DECISIONS_READ, tenants=(tenant,))
    for key, expected in (("", (401, "unauthorized")), (readers, (403, "forbidden"))):
        with service.client(key) as client:
            assert refusal(post(client, entry)) == expected
    with service.client() as client:
        assert listed(client, tenant=tenant) == []


def test_a_body_is_not_read_for_who_has_no_key(service):
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=10) as raw:
        raw.sendall(
            b"POST /v1/states HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 8000000\r\n\r\n"
        )
        # Not one byte of the body was sent, and the answer is there.
        assert raw.recv(65_536).startswith(b"HTTP/1.1 401 ")
