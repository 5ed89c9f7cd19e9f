"""A process that is killed comes back with everything that was answered."""

from tests.fixtures.wire import (
    error_code,
    estimated,
    matched,
    materialize_body,
    register,
    registration,
)


def test_what_was_answered_survives_kill_9(own_service):
    with own_service.client() as client:
        created, gone, _ = register(
            client,
            registration("t"),
            registration("t", "gone", tokens=[1, 2]),
            registration("u"),
        )
        assert client.delete(f"/v1/states/{gone['state_id']}").status_code == 204
        used, unused = estimated(client, "t"), estimated(client, "t")
        receipt = client.post("/locus/v1/materialize", json=materialize_body(used))
        assert receipt.status_code == 200
    own_service.kill()
    own_service.start()
    with own_service.client() as client:
        # The first request after it is ready.
        found = matched(client, "t")
        assert found["entry"]["identity"]["entry_id"] == "state-1"
        assert matched(client, "u") is not None
        assert matched(client, "t", tokens=[1, 2]) is None
        again = client.post("/locus/v1/materialize", json=materialize_body(used))
        assert again.json() == receipt.json()
        other = client.post(
            "/locus/v1/materialize", json=materialize_body(used, import_id="import-2")
        )
        assert error_code(other) == (409, "materialization_option_consumed")
        # An option that was estimated before and not used is still good.
        body = materialize_body(unused, import_id="import-3")
        assert client.post("/locus/v1/materialize", json=body).status_code == 200
        states = client.get("/v1/states", params={"tenant": "t"}).json()["items"]
    assert [state["state_id"] for state in states] == [created["state_id"]]
    assert own_service.stop() == 0
