"""Bytes from worker to worker: they arrive whole, or the documented failure says why not.

After each test the fixture looks for pins, blocks, sinks and transfers that were left behind.
"""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.transfer.frames import FetchAnswer, FetchStatus, frame, trailer
from app.transfer.tokens import Direction
from tests.process.waiting import until
from tests.worker.evil import request_of, stating, whole
from tests.worker.rig import MIB, checksum, some_bytes

DATA = some_bytes(2 * MIB + 5)
BACKENDS = ["baseline_transport", "staged_copy"]
PLACES = ["remote", "local"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [1, 4096, len(DATA)])
def test_bytes_arrive_in_a_sink(workers, backend, place, count):
    source, target = workers
    source = target if place == "local" else source
    data = DATA[:count]
    source.put("p", data)
    sink = target.new_sink(count)
    known = {"checksum": checksum(data), "payload_bytes": count}
    done = target.transfer(source, "p", "s", target_sink_id=sink, backend=backend, known=known)
    assert done["transfer_us"] > 0
    assert done == {
        "session_id": "s",
        "status": "completed",
        "backend": backend,
        "source_worker": source.node,
        "payload_id": "p",
        "target_sink_id": sink,
        "target_payload_id": None,
        "bytes_transferred": count,
        "checksum": checksum(data),
        "transfer_us": done["transfer_us"],
        "failure": None,
        "detail": None,
    }
    assert target.content(sink).content == data
    assert target.finish(sink, "consume").json()["state"] == "consumed"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", PLACES)
def test_bytes_arrive_as_a_payload(workers, backend, place):
    source, target = workers
    source = target if place == "local" else source
    source.put("p", DATA)
    done = target.transfer(source, "p", "s", target_payload_id="copy", backend=backend)
    assert done["status"] == "completed"
    assert target.get("copy").content == DATA
    source.put("p", DATA[::-1])
    again = target.transfer(source, "p", "t", target_payload_id="copy", backend=backend)
    assert again["status"] == "completed"
    assert target.get("copy").content == DATA[::-1]


def test_a_session_is_one_transfer(workers):
    source, target = workers
    sink = target.new_sink(len(DATA))
    missing = target.transfer(source, "p", "s", target_sink_id=sink)
    assert (missing["status"], missing["failure"]) == ("failed", "payload_missing")
    assert target.sink_facts(sink)["state"] == "open"
    source.put("p", DATA)
    done = target.transfer(source, "p", "s", target_sink_id=sink)
    assert done["status"] == "completed"
    source.delete("p")
    assert target.transfer(source, "p", "s", target_sink_id=sink) == done
    assert target.session("s", "p", sink).json() == done
    assert target.session("s", "p", sink, "DELETE").json() == done
    other = target.new_sink(len(DATA))
    conflict = target.send(target.order(source, "p", "s", target_sink_id=other))
    assert (conflict.status_code, conflict.json()["code"]) == (409, "transfer_conflict")
    assert target.session("s", "p").status_code == 403
    assert target.session("unknown", "p").status_code == 404
    assert target.of("rival").session("s", "p", sink).status_code == 404


def test_orders_that_are_not_valid(workers):
    _, target = workers
    for targets in ({}, {"target_sink_id": "s", "target_payload_id": "q"}):
        answer = target.send(target.order(target, "p", "s", **targets))
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    wrong = target.order(target, "p", "s", target_sink_id="s", backend="teleport")
    assert target.send(wrong).json()["errors"][0]["pointer"] == "/backend"
    for backend in ("rdma", "zero_copy"):
        failed = target.transfer(target, "p", backend, target_sink_id="s", backend=backend)
        assert failed["failure"] == "backend_unsupported"
    order = target.order(target, "p", "s", target_sink_id="s")
    other = target.ask("POST", "/v1/transfers", Direction.TRANSFER, "p", "other", json=order)
    assert other.status_code == 403


def test_what_the_order_knows_must_be_so(workers):
    source, target = workers
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    for number, (known, failure) in enumerate(
        [({"checksum": "0" * 32}, "checksum_mismatch"), ({"payload_bytes": 1}, "size_mismatch")]
    ):
        for worker in (source, target):
            worker.put("p", DATA)
            session = f"{worker.node}-{number}"
            failed = target.transfer(worker, "p", session, target_sink_id=sink, known=known)
            assert failed["failure"] == failure
            assert failed["bytes_transferred"] == 0
    small = target.new_sink(len(DATA) - 1)
    assert target.transfer(source, "p", "x", target_sink_id=small)["failure"] == "size_mismatch"
    gone = target.transfer(source, "p", "y", target_sink_id="none")
    assert gone["failure"] == "sink_missing"
    assert target.sink_facts(sink)["state"] == "open"


def nothing(connection, _):
    connection.close()


def garbage(connection, _):
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)


def long_header(connection, _):
    connection.sendall(b"NKVD\x02\x00\x00\x00\x7f\xff\xff\xff")


def no_checksum(connection, _):
    connection.sendall(stating(DATA, checksum=None))


def half_a_header(connection, _):
    connection.sendall(stating(DATA)[:20])


def half_the_bytes(connection, _):
    connection.sendall(stating(DATA) + DATA[: MIB + 1])


def all_but_the_end(connection, _):
    connection.sendall(stating(DATA) + DATA)


def too_many(connection, _):
    connection.sendall(stating(DATA) + DATA + b"x" + trailer(checksum(DATA)))


def other_size(connection, _):
    connection.sendall(stating(DATA, payload_bytes=len(DATA) + 1) + DATA)


def huge_size(connection, _):
    connection.sendall(stating(DATA, payload_bytes=2**62))


def other_bytes(connection, _):
    connection.sendall(stating(DATA) + DATA[::-1] + trailer(checksum(DATA)))


def two_checksums(connection, _):
    connection.sendall(stating(DATA) + DATA + trailer(checksum(b"")))


def refusal(connection, _):
    connection.sendall(frame(FetchAnswer(FetchStatus.BUSY)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (nothing, "source_refused"),
        (garbage, "source_refused"),
        (long_header, "source_refused"),
        (no_checksum, "source_refused"),
        (refusal, "source_refused"),
        (half_a_header, "source_refused"),
        (half_the_bytes, "source_unreachable"),
        (all_but_the_end, "source_unreachable"),
        (too_many, "size_mismatch"),
        (other_size, "size_mismatch"),
        (huge_size, "size_mismatch"),
        (other_bytes, "checksum_mismatch"),
        (two_checksums, "checksum_mismatch"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_source_that_lies_or_breaks(workers, evil, backend, script, failure):
    _, target = workers
    sink = target.new_sink(len(DATA))
    evil.script = lambda connection: script(connection, evil)
    failed = target.transfer(evil.address, "p", "s", target_sink_id=sink, backend=backend)
    assert (failed["status"], failed["failure"]) == ("failed", failure), failed["detail"]
    assert failed["bytes_transferred"] == 0
    assert target.content(sink).json()["code"] == "sink_not_complete"
    evil.script = lambda connection: connection.sendall(whole(DATA))
    done = target.transfer(evil.address, "p", "s", target_sink_id=sink, backend=backend)
    assert done["status"] == "completed"
    assert target.content(sink).content == DATA


def test_a_source_that_is_not_there(workers):
    _, target = workers
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
    sink = target.new_sink(1)
    for number, address in enumerate([f"{host}:{port}", "127.0.0.1:0", "no.such.host.invalid:1"]):
        failed = target.transfer(address, "p", f"s{number}", target_sink_id=sink)
        assert failed["failure"] == "source_unreachable"


@pytest.mark.parametrize("sent", [0, 30, MIB], ids=["nothing", "part of a frame", "some bytes"])
def test_a_source_that_hangs_is_given_up_at_the_deadline(workers, evil, sent):
    _, target = workers

    def hang(connection):
        connection.sendall(whole(DATA)[:sent])
        evil.hang(connection)

    evil.script = hang
    sink = target.new_sink(len(DATA))
    failed = target.transfer(evil.address, "p", "s", target_sink_id=sink, deadline_s=0.3)
    assert (failed["status"], failed["failure"]) == ("failed", "deadline")
    assert target.sink_facts(sink)["state"] == "open"


def test_a_running_transfer_is_joined_outlives_its_caller_and_is_cancelled(workers, evil):
    _, target = workers

    def stop_in_the_middle(connection):
        connection.sendall(whole(DATA)[:MIB])
        evil.hang(connection)

    evil.script = stop_in_the_middle
    sink = target.new_sink(len(DATA))
    order = {"target_sink_id": sink, "wait_s": 0}
    assert target.transfer(evil.address, "p", "s", **order)["status"] == "in_flight"
    assert evil.reached.wait(10)
    assert target.transfer(evil.address, "p", "s", **order)["status"] == "in_flight"
    assert target.sink_facts(sink)["state"] == "filling"
    assert target.transfer(target, "p", "t", target_sink_id=sink)["failure"] == "sink_not_open"
    cancelled = target.session("s", "p", sink, "DELETE").json()
    assert (cancelled["status"], cancelled["failure"]) == ("cancelled", "cancelled")
    assert target.sink_facts(sink)["state"] == "open"
    evil.script = lambda connection: connection.sendall(whole(DATA))
    done = target.transfer(evil.address, "p", "s", target_sink_id=sink)
    assert done["status"] == "completed"


def test_a_sink_that_is_discarded_while_it_fills_stops_its_transfer(workers, evil):
    _, target = workers

    def stop_in_the_middle(connection):
        connection.sendall(whole(DATA)[:MIB])
        evil.hang(connection)

    evil.script = stop_in_the_middle
    sink = target.new_sink(len(DATA))
    target.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0)
    assert evil.reached.wait(10)
    assert target.finish(sink, "discard").json()["state"] == "discarded"
    ended = target.transfer(evil.address, "p", "s", target_sink_id=sink)
    assert ended["failure"] in ("cancelled", "sink_not_open")
    until(lambda: not target.leaks(), "the memory is free again")


def test_a_newer_generation_stops_what_would_become_visible(workers, evil):
    _, target = workers

    def wait(connection):
        connection.sendall(whole(DATA)[:MIB])
        evil.reached.set()
        assert evil.go_on.wait(10)
        connection.sendall(whole(DATA)[MIB:])

    evil.script = wait
    sink = target.new_sink(len(DATA), generation=1)
    target.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0)
    assert evil.reached.wait(10)
    target.new_sink(1, generation=2)
    evil.go_on.set()
    until(
        lambda: target.session("s", "p", sink).json()["failure"] == "stale_generation",
        "the transfer ends",
    )
    assert target.sink_facts(sink)["state"] == "open"


@pytest.mark.parametrize("place", PLACES)
def test_of_racing_transfers_into_one_sink_one_wins(workers, place):
    source, target = workers
    source = target if place == "local" else source
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    with ThreadPoolExecutor(8) as threads:
        ended = list(
            threads.map(
                lambda number: target.transfer(source, "p", f"s{number}", target_sink_id=sink),
                range(8),
            )
        )
    assert sorted(one["status"] for one in ended) == ["completed"] + ["failed"] * 7
    assert {one["failure"] for one in ended} == {None, "sink_not_open"}
    assert target.content(sink).content == DATA


def test_many_transfers_at_once_wait_for_their_turn(workers):
    source, target = workers
    source.put("p", DATA[:MIB])
    sinks = [target.new_sink(MIB) for _ in range(24)]
    with ThreadPoolExecutor(24) as threads:
        ended = list(
            threads.map(
                lambda sink: target.transfer(source, "p", f"s-{sink}", target_sink_id=sink), sinks
            )
        )
    assert {one["status"] for one in ended} == {"completed"}
    for sink in sinks:
        assert target.finish(sink, "consume").status_code == 200


def test_a_destination_that_takes_nothing_does_not_keep_a_payload_for_itself(workers):
    source, _ = workers
    data = some_bytes(12 * MIB)
    source.put("p", data)
    host, port = source.data_address.rsplit(":", 1)
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(frame(request_of(source, "p")))
        until(lambda: source.metrics()["nexuskv_worker_pins"] == 1, "the payload is pinned")
        # It is replaced meanwhile; the bytes on their way are still the old ones.
        source.put("p", b"new")
        connection.settimeout(10)
        received = connection.recv(1 << 20)
        while len(received) < 2 * MIB:
            received += connection.recv(1 << 20)
        assert data[: 2 * MIB - 4096] in received
    until(lambda: not source.leaks(), "the pin goes with the connection")


def test_the_data_port_answers_nonsense_with_a_frame(workers):
    source, _ = workers
    host, port = source.data_address.rsplit(":", 1)
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"NKVD\x03\x00\x00\x00\x00\x00\x00\x00"):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        assert b'"status":"bad_request"' in answer
