"""What operators see of a running service: log lines and metrics, with no secret and no tenant."""

import json

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.engine import make_url

from app.control.keys import Scope
from tests.fixtures.service import SECRET, ServiceProcess, make_key
from tests.fixtures.wire import (
    estimate_body,
    estimated,
    lookup_body,
    materialize_body,
    new_tenant,
    register,
    registration,
    source_handle,
)

PASSWORD = "hunter2-hunter2"
# Digits that appear nowhere else; a token is a prompt's word.
TOKENS = [4242424242, 3131313131]
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
LABELS = {
    "kind", "operation", "code", "le", "result", "route", "method", "status", "reason", "version",
    "implementation", "backend", "limit", "state", "table", "type"
}  # fmt: skip


def test_log_lines_are_json_and_hold_no_secret(serve, database_url) -> None:
    url = make_url(database_url)
    password = url.password or PASSWORD
    env = {"NEXUSKV_DATABASE_URL": url.set(password=password).render_as_string(hide_password=False)}
    key, limited = make_key(database_url), make_key(database_url, Scope.DECISIONS_READ)
    tenant = new_tenant()
    serving = serve("--log-level", "debug", env=env)
    base_url = serving.ready()["base_url"]
    with serving.client(key) as client:
        register(client, registration(tenant, tokens=TOKENS))
        handle = source_handle(client, tenant, tokens=TOKENS)
        option = client.post("/locus/v1/estimate", json=estimate_body(handle)).json()
        secrets = [key, limited, SECRET, password, handle, option["option_handle"]]
        client.post("/locus/v1/materialize", json=materialize_body(option))
        # Refused in every way that could tempt a log line to say with what.
        client.post("/locus/v1/estimate", json=estimate_body(handle, source_state="other"))
        client.post("/locus/v1/estimate", json=estimate_body(handle + "x"))
        client.post("/locus/v1/materialize", json=materialize_body(option, import_id="i-2"))
        client.post("/locus/v1/lookup", json={**lookup_body(tenant, tokens=TOKENS), handle: key})
        client.post("/v1/states", json={"entries": [registration(tenant, tokens=[*TOKENS, -1])]})
        client.get("/v1/states", params={"cursor": handle, "tenant": key, "extra": SECRET})
        client.get(f"/v1/{key}/{handle}/{option['option_handle']}")
        client.get(f"/v1/states/{handle}", headers={"x-request-id": key})
        traced = {"x-request-id": "request-1", "traceparent": TRACEPARENT}
        assert client.get("/v1/decisions", headers=traced).headers["x-request-id"] == "request-1"
        refused = client.post("/locus/v1/estimate", json=estimate_body("nkvs1.x"), headers=traced)
        assert refused.headers["x-request-id"] == "request-1"
        decision_id = refused.headers["x-nexuskv-decision-id"]
    with serving.client(limited) as client:
        client.get("/v1/states")
        client.post("/locus/v1/lookup", json=lookup_body(tenant))
    with serving.client(key[:-1] + ("a" if key[-1] != "a" else "b")) as client:
        secrets.append(client.headers["authorization"].removeprefix("Bearer "))
        client.get("/v1/states")
        client.post("/locus/v1/lookup", json=lookup_body(tenant))
    assert serving.end() == 0

    output = serving.stdout + serving.stderr
    for secret in (*secrets, *map(str, TOKENS)):
        assert secret not in output, output[output.index(secret) - 300 :][:600]
    lines = [json.loads(line) for line in serving.stderr.splitlines() if line.startswith("{")]
    requests = [line for line in lines if line["event"] == "request"]
    assert len(requests) >= 8
    for line in requests:
        assert {"request_id", "trace_id", "method", "path", "status", "duration_us"} <= set(line)
    refusals = [line for line in lines if line["event"] == "bridge_refused"]
    assert len(refusals) >= 5
    assert all(line["request_id"] for line in refusals)
    (own,) = [line for line in requests if line["request_id"] == "request-1"]
    assert (own["trace_id"], own["path"], own["status"]) == (TRACE_ID, "/v1/decisions", 200)
    (bridge,) = [line for line in refusals if line["request_id"] == "request-1"]
    assert bridge["trace_id"] == TRACE_ID
    assert bridge["decision_id"] == decision_id
    assert bridge["code"] == "source_handle_mismatch"
    # Besides them only what is said to a person, and that is not JSON.
    others = [line for line in serving.stderr.splitlines() if not line.startswith("{")]
    assert others == [f"NexusKV answers on {base_url}"]


def scraped(service: ServiceProcess) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with service.client("") as client:
        text = client.get("/metrics").raise_for_status().text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_move_and_name_no_tenant(service: ServiceProcess) -> None:
    tenant = new_tenant()
    before = scraped(service)
    with service.client() as client:
        register(client, registration(tenant))
        option = estimated(client, tenant)
        client.post("/locus/v1/materialize", json=materialize_body(option))
        client.post("/locus/v1/materialize", json=materialize_body(option, import_id="i-2"))
        client.post("/locus/v1/lookup", json=lookup_body(tenant, tokens=[1]))
        (state,) = client.get("/v1/states", params={"tenant": tenant}).json()["items"]
        client.delete(f"/v1/states/{state['state_id']}")
        client.get(f"/nothing/{tenant}")
    after = scraped(service)

    def moved(name: str, **labels: str) -> float:
        at = (name, tuple(sorted(labels.items())))
        return after[at] - before.get(at, 0)

    consumed = "materialization_option_consumed"
    assert moved("nexuskv_bridge_requests_total", operation="lookup", code="ok") == 2
    assert moved("nexuskv_bridge_requests_total", operation="estimate", code="ok") == 1
    assert moved("nexuskv_bridge_requests_total", operation="materialize", code="ok") == 1
    assert moved("nexuskv_bridge_requests_total", operation="materialize", code=consumed) == 1
    assert moved("nexuskv_bridge_latency_seconds_count", operation="lookup") == 2
    assert moved("nexuskv_lookup_results_total", result="hit") == 1
    assert moved("nexuskv_lookup_results_total", result="miss") == 1
    assert moved("nexuskv_state_registrations_total", result="created") == 1
    assert moved("nexuskv_state_deletions_total") == 1
    # One for each of the five, and the outcomes of what was consumed and what was not reused.
    assert moved("nexuskv_decisions_recorded_total") >= 5
    one = {"route": "/v1/states/{state_id}", "method": "DELETE", "status": "2xx"}
    assert moved("nexuskv_http_requests_total", **one) == 1
    none = {"route": "unmatched", "method": "GET", "status": "4xx"}
    assert moved("nexuskv_http_requests_total", **none) == 1
    assert after["nexuskv_decisions_lost_total", (("reason", "no_room"),)] == 0
    labels = {name for _, pairs in after for name, _ in pairs}
    assert labels <= LABELS
    values = {value for _, pairs in after for _, value in pairs}
    assert not [value for value in values if tenant in value or state["state_id"] in value]


def test_metrics_as_openmetrics(service: ServiceProcess) -> None:
    with service.client("") as client:
        answer = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
