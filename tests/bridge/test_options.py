"""Estimate and materialize: handles, options, claims and retries."""

import threading

import pytest

from app.control.keys import Scope
from tests.fixtures.service import decisions_of
from tests.fixtures.wire import (
    TOKENS,
    error_code,
    estimate_body,
    estimated,
    lookup_body,
    matched,
    materialize_body,
    new_tenant,
    register,
    registration,
    source_handle,
)


def estimate(client, body):
    return client.post("/locus/v1/estimate", json=body)


def materialize(client, body):
    return client.post("/locus/v1/materialize", json=body)


@pytest.fixture
def tenant(service):
    tenant = new_tenant()
    with service.client() as client:
        register(client, registration(tenant))
    return tenant


def test_the_whole_story_is_one_chain_of_decisions(service, tenant):
    with service.client() as client:
        option = estimated(client, tenant)
        assert option["locality"] == "local"
        assert option["topology_path"] is None
        receipt = materialize(client, materialize_body(option))
        assert receipt.status_code == 200
        history = decisions_of(client, 3, tenant=tenant)
        detail = client.get(f"/v1/decisions/{history[0]['decision_id']}").json()
    body = receipt.json()
    assert body["bytes_transferred"] == 0
    assert body["receipt"]["namespace"] == "nexuskv.protocol-transfer-receipt.v1"
    assert body["evidence"]["level"] == "protocol"
    assert body["evidence"]["physical_transfer_verified"] is False
    assert body["evidence"]["import_id"] == "import-1"
    last, middle, first = history
    assert [item["kind"] for item in history] == ["materialize", "estimate", "lookup"]
    assert last["parent_id"] == middle["decision_id"]
    assert middle["parent_id"] == first["decision_id"]
    assert {item["root_id"] for item in history} == {first["decision_id"]}
    assert last["path"] == [
        "described", "matched", "validated", "planned", "reserved", "skipped", "observed",
    ]  # fmt: skip
    assert [item["decision_id"] for item in detail["chain"]] == [
        first["decision_id"],
        middle["decision_id"],
        last["decision_id"],
    ]
    # Nothing was moved by us, and nothing says that it was.
    assert detail["outcomes"][0]["status"] == "registered"
    assert detail["outcomes"][0]["physical"] is False


def test_estimate_prices_the_bytes_of_the_matched_tokens(service, tenant):
    # 4 layers x 40 tokens x 8 heads x 64 in 16 bits = 163,840 bytes; at 200 GB/s: 1 us + 50 us.
    with service.client() as client:
        remote = estimated(client, tenant, target_residency="node-b")
    assert remote["estimated_transfer_micros"] == 51
    assert remote["locality"] == "remote"
    assert remote["topology_path"] == "host_dram->device@node-b"


def test_handles_bind_state_and_location(service, tenant):
    with service.client() as client:
        handle = source_handle(client, tenant)
        for changes, code in (
            ({"source_state": "another"}, "source_state_mismatch"),
            ({"source_locator": "node://node-b/state/state-1"}, "source_location_mismatch"),
            ({"source_tier": "local_ssd"}, "source_location_mismatch"),
            ({"source_handle": handle[:-1] + ("A" if handle[-1] != "A" else "B")}, None),
            ({"source_handle": "nkvs1.AAAA"}, None),
            ({"source_handle": "\x01"}, None),
        ):
            answer = estimate(client, estimate_body(handle, **changes))
            assert error_code(answer) == (409, code or "source_handle_mismatch"), changes


def test_a_superseded_or_deleted_state_ends_its_handles(service, tenant):
    with service.client() as client:
        handle = source_handle(client, tenant)
        register(client, registration(tenant, generation=2))
        assert error_code(estimate(client, estimate_body(handle))) == (
            409,
            "source_handle_mismatch",
        )
        option = estimated(client, tenant)
        handle = source_handle(client, tenant)
        state_id = client.get("/v1/states", params={"tenant": tenant}).json()["items"][0][
            "state_id"
        ]
        assert client.delete(f"/v1/states/{state_id}").status_code == 204
        assert error_code(estimate(client, estimate_body(handle))) == (
            409,
            "source_handle_mismatch",
        )
        assert error_code(materialize(client, materialize_body(option))) == (
            409,
            "source_state_mismatch",
        )


def test_one_tenants_handle_with_anothers_locator(service, tenant):
    other = new_tenant()
    with service.client() as client:
        register(client, registration(other, locator="node://node-b/state/state-1"))
        handle = source_handle(client, tenant)
        body = estimate_body(handle, source_locator="node://node-b/state/state-1")
        assert error_code(estimate(client, body)) == (409, "source_location_mismatch")
        assert source_handle(client, other) != handle


def test_a_key_of_another_tenant_learns_nothing(service, tenant):
    with service.client() as client:
        handle = source_handle(client, tenant)
        option = estimated(client, tenant)
    foreign = service.key(Scope.BRIDGE, tenants=(new_tenant(),))
    with service.client(foreign) as client:
        body = estimate_body(handle)
        assert error_code(estimate(client, body)) == (409, "source_handle_mismatch")
        assert error_code(materialize(client, materialize_body(option))) == (
            409,
            "materialization_option_mismatch",
        )
        answer = client.post("/locus/v1/lookup", json=lookup_body(tenant))
        assert error_code(answer) == (403, "tenant_forbidden")


def test_an_option_is_consumed_once_and_its_receipt_is_kept(service, tenant):
    with service.client() as client:
        option = estimated(client, tenant)
        first = materialize(client, materialize_body(option))
        again = materialize(client, materialize_body(option))
        assert first.status_code == again.status_code == 200
        assert again.json() == first.json()
        for changes, code in (
            ({"import_id": "import-2"}, "materialization_option_consumed"),
            ({"import_id": "import-2", "sink_value": "s"}, "materialization_option_consumed"),
            ({"sink_value": "sink-2"}, "materialization_option_mismatch"),
            ({"sink_namespace": "other"}, "materialization_option_mismatch"),
            ({"target_id": "target-2"}, "materialization_target_mismatch"),
            ({"target_engine_id": "engine-2"}, "materialization_target_mismatch"),
            ({"target_engine_generation": 2}, "materialization_target_mismatch"),
            ({"option_id": "opt-1"}, "unknown_materialization_option"),
            ({"option_id": "opt_" + "0" * 32}, "materialization_option_mismatch"),
            ({"option_handle": "nkvo1.AAAA"}, "materialization_option_mismatch"),
        ):
            answer = materialize(client, materialize_body(option, **changes))
            assert error_code(answer) == (409, code), changes
        stored = decisions_of(client, 11, tenant=tenant)
        replays = [item["outcome"] for item in stored if item["kind"] == "materialize"]
    assert replays.count("acknowledged") == 1
    assert replays.count("replayed") == 1
    replayed = next(item for item in stored if item["outcome"] == "replayed")
    assert replayed["path"] == [
        "described", "matched", "validated", "planned", "skipped", "observed",
    ]  # fmt: skip
    assert replayed["model"] == "model-1"


def test_the_handle_of_one_option_does_not_open_another(service, tenant):
    with service.client() as client:
        one, two = estimated(client, tenant), estimated(client, tenant)
        body = materialize_body(one, option_handle=two["option_handle"])
        assert error_code(materialize(client, body)) == (409, "materialization_option_mismatch")


def test_racing_imports_consume_once(service, tenant):
    with service.client() as client:
        option = estimated(client, tenant)
    answers = []
    barrier = threading.Barrier(8)

    def race(number):
        with service.client() as client:
            client.get("/healthz")
            barrier.wait()
            body = materialize_body(option, import_id=f"import-{number}")
            answers.append(materialize(client, body))

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers).count(200) == 1
    refused = {error_code(answer) for answer in answers if answer.status_code != 200}
    assert refused <= {
        (409, "materialization_option_consumed"),
        (503, "materialization_unavailable"),
    }


def test_a_longer_query_prices_and_materializes_its_prefix(service, tenant):
    with service.client() as client:
        result = matched(client, tenant, tokens=[*TOKENS, 1], fingerprint="longer")
        handle = result["validation"]["source_handle"]
        option = estimate(client, estimate_body(handle)).json()
        assert materialize(client, materialize_body(option)).status_code == 200
