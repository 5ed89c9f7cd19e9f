"""Bad input over HTTP: each gets the documented error, in the shape of this wire, and no 500."""

import json
import re
import socket
import time
from pathlib import Path

import httpx
import pytest

from app.control.keys import Scope
from tests.fixtures.wire import (
    error_code,
    estimate_body,
    lookup_body,
    matched,
    materialize_body,
    new_tenant,
    register,
    registration,
)

BIG = 8 * 1024 * 1024
OPTION = {"option_id": "opt_" + "0" * 32, "option_handle": "nkvo1.x"}


def post(client, operation, body, **options):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(f"/locus/v1/{operation}", content=content, **options)


def without(field, body):
    return {name: value for name, value in body.items() if name != field}


@pytest.mark.parametrize(
    ("operation", "valid"),
    [
        ("lookup", lookup_body("tenant")),
        ("estimate", estimate_body("nkvs1.x")),
        ("materialize", materialize_body(OPTION)),
    ],
)
def test_malformed_bodies(service, operation, valid):
    deep = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    cases = [
        (b"", (400, "invalid_json")),
        (b"{", (400, "invalid_json")),
        (b"\xff\xfe", (400, "invalid_json")),
        (b'{"a": NaN}', (400, "invalid_json")),
        (deep, (400, "invalid_json")),
        (b"[]", (400, "invalid_body")),
        (b'"text"', (400, "invalid_body")),
        (b"null", (400, "invalid_body")),
        (without("schema_version", valid), (400, "missing_field")),
        ({**valid, "extra": 1}, (400, "unknown_field")),
        ({**valid, "schema_version": 1}, (400, "invalid_field")),
        (
            {**valid, "schema_version": "locus.nexuskv-bridge.v2"},
            (422, "unsupported_bridge_schema"),
        ),
        (
            {"schema_version": "locus.nexuskv-bridge.v9", "new": 1},
            (422, "unsupported_bridge_schema"),
        ),
    ]
    with service.client() as client:
        for body, expected in cases:
            assert error_code(post(client, operation, body)) == expected, body[:80]


def test_lookup_bodies(service):
    valid = lookup_body("tenant")

    def tokens(*values):
        return {**valid, "identity": {**valid["identity"], "tokens": list(values)}}

    cases = [
        ({**valid, "nexuskv_schema_version": "v2"}, (422, "unsupported_nexuskv_schema")),
        (tokens(True), (400, "invalid_field")),
        (tokens(-1), (400, "invalid_field")),
        (tokens(2**32), (400, "invalid_field")),
        (tokens(1.0), (400, "invalid_field")),
        (tokens("1"), (400, "invalid_field")),
        (tokens(*([1] * 1_000_001)), (413, "query_too_large")),
        ({**valid, "identity": {**valid["identity"], "tenant": ""}}, (400, "invalid_field")),
        ({**valid, "identity": {**valid["identity"], "tenant": "a\x00"}}, (400, "invalid_field")),
        ({**valid, "locus_model_identity": {}}, (400, "missing_field")),
        ({**valid, "input_fingerprint": None}, (400, "invalid_field")),
    ]
    with service.client() as client:
        for body, expected in cases:
            assert error_code(post(client, "lookup", body)) == expected
        assert post(client, "lookup", tokens(*([1] * 1_000_000))).status_code == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_8_mib_is_answered(service, chunked):
    def chunks():
        for _ in range(9 * 16):
            yield b" " * 65_536

    with service.client() as client:
        content = chunks() if chunked else b" " * (BIG + 1)
        answer = client.post("/locus/v1/lookup", content=content)
        assert error_code(answer) == (413, "request_too_large")
        # The service goes on with whoever comes next.
        assert client.get("/healthz").status_code == 200


def test_a_body_of_exactly_8_mib_is_read(service):
    tenant = new_tenant()
    text = json.dumps(lookup_body(tenant)).encode()
    with service.client() as client:
        answer = post(client, "lookup", text + b" " * (BIG - len(text)))
    assert answer.status_code == 200


@pytest.mark.parametrize("length", ["abc", "-1", "1e3", "99999999999999999999999"])
def test_an_invalid_content_length_is_answered_in_the_wires_shape(service, length):
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=10) as raw:
        raw.sendall(
            f"POST /locus/v1/lookup HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {service.admin_key}\r\n"
            f"content-length: {length}\r\n\r\n".encode()
        )
        answer = b""
        while chunk := raw.recv(65_536):
            answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] in (b"400", b"413")
    code = json.loads(body)["error"]["code"]
    assert code in ("invalid_content_length", "request_too_large")


def test_unknown_operations_and_methods_are_not_found(service):
    with service.client() as client:
        for method, path in (
            ("GET", "/locus/v1/lookup"),
            ("PUT", "/locus/v1/estimate"),
            ("POST", "/locus/v1/prefetch"),
            ("POST", "/locus/v2/lookup"),
            ("POST", "/healthz"),
        ):
            assert error_code(client.request(method, path)) == (404, "not_found"), path


def test_callers_without_a_valid_key(service):
    bodies = {"lookup": lookup_body("t"), "estimate": estimate_body("h")}
    for key in ("", "nkv_000000000000_" + "a" * 43, "nonsense", service.admin_key + "x"):
        with service.client(key) as client:
            for operation, body in bodies.items():
                answer = post(client, operation, body)
                assert error_code(answer) == (401, "unauthorized"), key
                assert answer.headers["www-authenticate"] == "Bearer"


def test_two_credentials_are_refused(service):
    pairs = [("authorization", f"Bearer {service.admin_key}")] * 2
    with httpx.Client(base_url=service.url) as client:
        answer = client.post("/locus/v1/lookup", json=lookup_body("t"), headers=pairs)
    assert error_code(answer) == (401, "unauthorized")


def test_a_key_without_the_bridge_scope(service):
    with service.client(service.key(Scope.DECISIONS_READ)) as client:
        assert error_code(post(client, "lookup", lookup_body("t"))) == (403, "tenant_forbidden")


def test_handles_of_other_secrets_and_kinds(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
        handle = matched(client, tenant)["validation"]["source_handle"]
        for wrong in (
            handle.swapcase(),
            handle + "A",
            handle + "=",
            handle[:40],
            "nkvo1." + handle.removeprefix("nkvs1."),
            "é" * 50,
            "x" * 4096,
        ):
            answer = post(client, "estimate", estimate_body(wrong))
            assert error_code(answer) == (409, "source_handle_mismatch"), wrong[:20]
        body = materialize_body({**OPTION, "option_handle": handle})
        assert error_code(post(client, "materialize", body)) == (
            409,
            "materialization_option_mismatch",
        )


def test_errors_echo_no_prompt_and_no_secret(service):
    body = lookup_body("tenant", tokens=[424242424242])
    body["input_fingerprint"] = {"secret": "prompt-text"}
    with service.client() as client:
        text = post(client, "lookup", body).text
    assert "424242424242" not in text
    assert "prompt-text" not in text
    assert "424242424242" not in service.log()
    assert service.admin_key not in service.log()


def resident_mib(service) -> float:
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def test_refusals_are_quick_and_keep_nothing(service):
    def tokens(item):
        text = json.dumps(lookup_body("tenant", tokens=[424242])).encode()
        return text.replace(b"424242", b",".join([item] * 1_000_000))

    many_fields = json.dumps({f"field-{number}": 1 for number in range(400_000)}).encode()
    bodies = [tokens(b"-1"), tokens(b'""'), tokens(b"1").replace(b'{"schema', b'{"x":1,"schema')]
    with service.client() as client:
        for body in (*bodies, many_fields):
            assert post(client, "lookup", body).status_code == 400
        before_mib = resident_mib(service)
        for body in (*bodies, many_fields) * 3:
            begun = time.monotonic()
            assert post(client, "lookup", body).status_code == 400
            # It took 8 to 16 s where every fault was listed; a busy machine may be slow.
            assert time.monotonic() - begun < 4
    assert resident_mib(service) - before_mib < 100


def test_swollen_evidence_is_not_kept(service):
    text = json.dumps(lookup_body("tenant")).encode()
    head, tail = text.split(b'"locus_model_identity": {')
    with service.client() as client:
        post(client, "lookup", text)
        before_mib = resident_mib(service)
        for number in range(20):
            body = b"".join((head, b'"locus_model_identity": {', b" " * (7_000_000 + number), tail))
            assert post(client, "lookup", body).status_code == 200
    assert resident_mib(service) - before_mib < 60


def test_a_head_without_end_is_cut_off(service):
    url = httpx.URL(service.url)
    with socket.create_connection((url.host, url.port), timeout=30) as raw:
        raw.sendall(b"POST /locus/v1/lookup HTTP/1.1\r\nhost: x\r\nx: ")
        answer = b""
        try:
            for _ in range(64):
                raw.sendall(b"a" * 65_536)
        except ConnectionError:
            pass
        try:
            while chunk := raw.recv(65_536):
                answer += chunk
        except ConnectionError:
            pass
    # A reset may overtake the answer of a server that no longer reads; it must not go on reading.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
    with service.client() as client:
        assert client.get("/healthz").status_code == 200
