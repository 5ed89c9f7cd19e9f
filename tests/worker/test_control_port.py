"""Payloads and sinks over HTTP: what is stored is what is read, and bad requests are told so."""

import socket

import httpx
import pytest

from app.transfer.tokens import Direction, Grant
from app.transfer.wire import CHECKSUM_HEADER
from tests.process.waiting import until
from tests.worker.rig import KEYS, MIB, Worker, checksum, now_s, some_bytes

D = Direction


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    # What a worker asks for is a token of its own, and no API key.
    assert "key" not in answer.json()["title"]
    assert status not in (401, 403) or "worker token" in answer.json()["title"]


def test_a_payload_is_stored_read_described_replaced_and_deleted(workers):
    worker, _ = workers
    data = some_bytes(3 * MIB + 17)
    made = worker.put("p", data, **{CHECKSUM_HEADER: checksum(data)})
    assert made.status_code == 201
    assert made.headers[CHECKSUM_HEADER] == checksum(data)
    assert made.json() == {
        "payload_id": "p",
        "tenant": worker.tenant,
        "payload_bytes": len(data),
        "checksum": checksum(data),
        "tier": "host_dram",
        "pins": 0,
    }
    assert worker.put("p", data).status_code == 200
    got = worker.get("p")
    assert got.content == data
    assert got.headers[CHECKSUM_HEADER] == checksum(data)
    assert worker.facts("p").json() == made.json()
    other = some_bytes(1000)
    assert worker.put("p", other).status_code == 200
    assert worker.get("p").content == other
    assert worker.delete("p").json()["checksum"] == checksum(other)
    for gone in (worker.get("p"), worker.facts("p"), worker.delete("p")):
        refused(gone, 404, "not_found")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=10-19", slice(10, 20)),
        ("bytes=995-2000", slice(995, 1000)),
        ("bytes=400-", slice(400, 1000)),
        ("bytes=-3", slice(997, 1000)),
        ("bytes=-5000", slice(0, 1000)),
    ],
)
def test_one_range(workers, asked, found):
    worker, _ = workers
    data = some_bytes(1000)
    worker.put("p", data)
    got = worker.get("p", range=asked)
    assert got.status_code == 206
    assert got.content == data[found]
    assert got.headers["content-range"] == f"bytes {found.start}-{found.stop - 1}/1000"
    head = worker.get("p", method="HEAD", range=asked)
    assert (head.status_code, head.content) == (206, b"")
    assert head.headers["content-length"] == str(found.stop - found.start)


def test_ranges_that_are_none(workers):
    worker, _ = workers
    worker.put("p", b"0123456789")
    for outside in ("bytes=10-", "bytes=10-12", "bytes=-0"):
        answer = worker.get("p", range=outside)
        refused(answer, 416, "range_not_satisfiable")
        assert answer.headers["content-range"] == "bytes */10"
    for ignored in ("bytes=0-1,3-4", "pages=1-2", "bytes=5-2", "bytes=-", "bytes=a-b"):
        assert worker.get("p", range=ignored).status_code == 200


def test_uploads_that_are_refused_leave_nothing(workers):
    worker, _ = workers
    refused(worker.put("p", b"abc", **{CHECKSUM_HEADER: "0" * 32}), 400, "checksum_mismatch")
    refused(worker.put("p", b"abc", **{CHECKSUM_HEADER: "xyz"}), 400, "invalid_field")
    refused(worker.put("p", b""), 400, "invalid_content_length")
    refused(worker.put("-bad", b"abc"), 400, "invalid_field")
    refused(worker.put("x" * 256, b"abc"), 400, "invalid_field")
    chunked = worker.ask("PUT", "/v1/payloads/p", D.PUT_PAYLOAD, "p", content=iter([b"abc"]))
    refused(chunked, 411, "length_required")
    refused(worker.put("p", bytes(33 * MIB)), 413, "request_too_large")
    refused(worker.get("p"), 404, "not_found")


def test_an_upload_that_breaks_off_leaves_nothing(workers):
    worker, _ = workers
    used = worker.metrics()["nexuskv_worker_used_bytes"]
    url = httpx.URL(worker.url)
    head = (
        f"PUT /v1/payloads/p HTTP/1.1\r\nhost: x\r\ncontent-length: {4 * MIB}\r\n"
        f"authorization: Bearer {worker.token(D.PUT_PAYLOAD, 'p')}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port)) as connection:
        connection.sendall(head.encode() + bytes(MIB))
        until(
            lambda: worker.metrics()["nexuskv_worker_used_bytes"] >= used + 4 * MIB,
            "the upload has its memory",
        )
        assert worker.get("p").status_code == 404
    until(lambda: worker.metrics()["nexuskv_worker_used_bytes"] == used, "its memory is free again")
    assert worker.get("p").status_code == 404


def test_a_reader_finishes_what_was_replaced_and_evicted_under_it(start_worker):
    worker = start_worker("node-r", dram_bytes=16 * MIB)
    old = some_bytes(12 * MIB)
    worker.put("p", old)
    path = worker.url + "/v1/payloads/p"
    headers = {"authorization": f"Bearer {worker.token(D.GET_PAYLOAD, 'p')}"}
    with worker.http.stream("GET", path, headers=headers) as reading:
        chunks = reading.iter_bytes(MIB)
        read = next(chunks)
        assert worker.put("p", b"new").status_code == 200
        assert worker.delete("p").status_code == 200
        refused(worker.put("q", bytes(8 * MIB)), 507, "worker_full")
        read += b"".join(chunks)
    assert read == old
    until(lambda: not worker.leaks(), "the reader's pin is gone")
    assert worker.put("q", bytes(8 * MIB)).status_code == 201


def test_a_full_arena_refuses_and_is_as_it_was(start_worker):
    worker = start_worker("node-f", dram_bytes=8 * MIB)
    sinks = [worker.new_sink(3 * MIB) for _ in range(2)]
    worker.put("kept", some_bytes(MIB))
    refused(worker.sink(4 * MIB), 507, "worker_full")
    refused(worker.put("p", bytes(3 * MIB)), 507, "worker_full")
    failed = worker.transfer(worker, "kept", "s", target_sink_id=sinks[0], backend="staged_copy")
    assert failed["failure"] == "size_mismatch"
    assert worker.get("kept").status_code == 200
    assert not worker.leaks()
    worker.finish(sinks[1], "discard")
    # Its room and the rest of the arena are neighbours once the payload between them is evicted.
    assert worker.sink(5 * MIB).status_code == 201
    refused(worker.get("kept"), 404, "not_found")


def test_a_sink_is_made_once_filled_read_and_consumed(workers):
    worker, _ = workers
    data = some_bytes(100_000)
    worker.put("p", data)
    sink = worker.new_sink(len(data), sink_id="mine")
    assert worker.sink(len(data), sink_id="mine").status_code == 200
    refused(worker.sink(len(data) + 1, sink_id="mine"), 409, "sink_conflict")
    refused(worker.content(sink), 409, "sink_not_complete")
    refused(worker.finish(sink, "consume"), 409, "sink_not_complete")
    done = worker.transfer(worker, "p", "s", target_sink_id=sink)
    assert done["status"] == "completed"
    assert (done["bytes_transferred"], done["checksum"]) == (len(data), checksum(data))
    assert worker.content(sink).content == data
    assert worker.content(sink, range="bytes=5-9").content == data[5:10]
    assert worker.sink_facts(sink)["state"] == "complete"
    assert worker.sink_facts(sink)["session_id"] == "s"
    refused(worker.finish(sink, "consume", generation=2), 409, "stale_generation")
    refused(worker.finish(sink, "consume"), 409, "stale_generation")
    assert worker.finish(sink, "discard", reason="too late").json()["state"] == "discarded"
    assert worker.finish(sink, "discard").status_code == 200
    refused(worker.finish(sink, "consume"), 409, "stale_generation")
    refused(worker.content(sink), 409, "sink_not_complete")
    assert worker.sink_facts(sink)["state"] == "discarded"


def test_nothing_more_happens_for_an_older_generation(workers):
    worker, _ = workers
    worker.put("p", bytes(4096))
    old = worker.new_sink(4096, generation=3)
    new = worker.new_sink(4096, generation=4)
    refused(worker.sink(4096, generation=3), 409, "stale_generation")
    failed = worker.transfer(worker, "p", "s", target_sink_id=old)
    assert failed["failure"] == "stale_generation"
    wrong = worker.transfer(worker, "p", "t", target_sink_id=new, engine_generation=3)
    assert wrong["failure"] == "stale_generation"
    done = worker.transfer(
        worker, "p", "u", target_sink_id=new, engine_id="engine-1", engine_generation=4
    )
    assert done["status"] == "completed"
    assert worker.finish(old, "discard", generation=3).status_code == 200
    assert worker.finish(new, "consume", generation=4).json()["state"] == "consumed"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"payload_bytes": 0, "engine_id": "e", "engine_generation": 1}, "/payload_bytes"),
        ({"payload_bytes": 1, "engine_id": "e"}, "/engine_generation"),
        ({"payload_bytes": 1, "engine_id": "e", "engine_generation": 1, "x": 1}, "/x"),
        (
            {"payload_bytes": 1, "engine_id": "e", "engine_generation": 1, "sink_id": "a/b"},
            "/sink_id",
        ),
        (
            {"payload_bytes": 1, "engine_id": "e", "engine_generation": 2**32},
            "/engine_generation",
        ),
    ],
)
def test_orders_for_sinks_that_are_not_valid(workers, body, pointer):
    answer = workers[0].ask("POST", "/v1/sinks", D.CREATE_SINK, json=body)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_requests_that_no_route_takes(workers):
    worker, _ = workers
    refused(worker.http.get(worker.url + "/v1/else"), 404, "not_found")
    wrong = worker.http.patch(worker.url + "/v1/payloads/p")
    refused(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "DELETE, GET, HEAD, PUT"
    big = worker.ask("POST", "/v1/sinks", D.CREATE_SINK, content=b"x" * 70_000)
    refused(big, 413, "request_too_large")
    refused(worker.ask("POST", "/v1/sinks", D.CREATE_SINK, content=b"{"), 400, "invalid_json")


def test_tokens_open_what_they_name_and_nothing_else(workers):
    worker, other = workers
    worker.put("p", b"secret")
    path = worker.url + "/v1/payloads/p"

    def get(grant: Grant, *, ago_s: int = 0) -> httpx.Response:
        signed = KEYS.sign(grant, now_s=now_s() - ago_s, ttl_s=60)
        return worker.http.get(path, headers={"authorization": f"Bearer {signed}"})

    right = Grant(worker.node, worker.tenant, D.GET_PAYLOAD, "p")
    assert get(right).content == b"secret"
    refused(get(right, ago_s=120), 401, "unauthorized")
    refused(get(Grant(other.node, worker.tenant, D.GET_PAYLOAD, "p")), 401, "unauthorized")
    refused(get(Grant(worker.node, worker.tenant, D.GET_PAYLOAD, "q")), 403, "forbidden")
    refused(get(Grant(worker.node, worker.tenant, D.GET_PAYLOAD)), 403, "forbidden")
    refused(get(Grant(worker.node, worker.tenant, D.FETCH, "p")), 403, "forbidden")
    refused(get(Grant(worker.node, "rival", D.GET_PAYLOAD, "p")), 404, "not_found")
    for header in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic eA=="}):
        refused(worker.http.get(path, headers=header), 401, "unauthorized")
    refused(worker.of("rival").delete("p"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v1/payloads/p"),
        ("GET", "/v1/payloads/p/facts"),
        ("DELETE", "/v1/payloads/p"),
        ("POST", "/v1/sinks"),
        ("GET", "/v1/sinks/s"),
        ("GET", "/v1/sinks/s/content"),
        ("POST", "/v1/sinks/s:consume"),
        ("POST", "/v1/sinks/s:discard"),
        ("POST", "/v1/transfers"),
        ("GET", "/v1/transfers/s"),
        ("DELETE", "/v1/transfers/s"),
    ],
)
def test_every_route_asks_for_its_own_token(workers, method, path):
    worker, _ = workers
    bare = worker.http.request(method, worker.url + path, content=b"{}")
    refused(bare, 401, "unauthorized")
    order = worker.order(worker, "p", "s", target_sink_id="s")
    body = order if path == "/v1/transfers" else {}
    refused(worker.ask(method, path, D.REGISTER, json=body), 403, "forbidden")


def test_another_tenants_sink_is_not_found(workers):
    worker, _ = workers
    sink = worker.new_sink(4096)
    rival: Worker = worker.of("rival")
    answer = rival.ask("GET", f"/v1/sinks/{sink}", D.READ_SINK, sink=sink)
    refused(answer, 404, "not_found")
    refused(rival.finish(sink, "discard"), 404, "not_found")
    rival.put("p", bytes(4096))
    failed = rival.transfer(rival, "p", "s", target_sink_id=sink)
    assert failed["failure"] == "sink_missing"
    assert worker.finish(sink, "discard").status_code == 200
