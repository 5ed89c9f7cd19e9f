"""Tokens for fetching: a worker calls only whom the API vouched for, and gets only what was meant.

After each test the fixture looks for pins, blocks, sinks and transfers that were left behind.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import jwt
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import NexusError
from app.transfer.frames import CONFIRMATION, FetchRequest, frame
from app.transfer.tokens import Direction, Grant, TokenKeys
from tests.worker.evil import request_of
from tests.worker.rig import KEYS, MIB, SECRET, Worker, now_s, some_bytes

DATA = some_bytes(MIB + 5)
D = Direction
ELSEWHERE = "127.0.0.1:9"


@contextmanager
def uncalled() -> Iterator[str]:
    """The address of a socket that nobody may connect to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        yield f"{host}:{port}"
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def signed(grant: Grant, *, ago_s: int = 0, keys: TokenKeys = KEYS) -> str:
    return keys.sign(grant, now_s=now_s() - ago_s, ttl_s=60)


def right(source: Worker, target: Worker, sink: str, address: str) -> Grant:
    """What an order of `p` into a sink needs."""
    return Grant(
        source.node,
        target.tenant,
        D.FETCH,
        payload_id="p",
        sink_id=sink,
        target_worker=target.node,
        data_address=address,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"worker": "node-z"},
        {"tenant": "stranger"},
        {"direction": D.GET_PAYLOAD},
        {"direction": D.TRANSFER},
        {"payload_id": "q"},
        {"payload_id": ""},
        {"sink_id": "another"},
        {"sink_id": ""},
        {"target_payload_id": "copy"},
        {"sink_id": "", "target_payload_id": "copy"},
        {"target_worker": "node-z"},
        {"target_worker": ""},
        {"data_address": ELSEWHERE},
        {"data_address": ""},
    ],
    ids=str,
)
def test_a_target_asks_nobody_with_a_token_for_something_else(workers, change):
    source, target = workers
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    with uncalled() as address:
        grant = msgspec.structs.replace(right(source, target, sink, address), **change)
        known = {"token": signed(grant), "data_address": address}
        refused(target, source, sink, known)


@pytest.mark.parametrize(
    "known",
    [
        {"token": None},
        {"token": "garbage"},
        {"token": "x" * 10_000},
        {"data_address": None},
        {"data_address": ELSEWHERE},
    ],
    ids=str,
)
def test_a_target_asks_nobody_without_a_token_for_the_address(workers, known):
    source, target = workers
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    with uncalled() as address:
        given_to_it = {
            "token": signed(right(source, target, sink, address)),
            "data_address": address,
        }
        refused(target, source, sink, given_to_it | known)


def test_a_target_asks_nobody_with_a_token_that_is_over_or_of_another_secret(workers):
    source, target = workers
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    foreign = TokenKeys(["another-secret-" + "f" * 32])
    with uncalled() as address:
        grant = right(source, target, sink, address)
        for token in (
            signed(grant, ago_s=66),
            signed(grant, ago_s=-60),
            signed(grant, keys=foreign),
        ):
            refused(target, source, sink, {"token": token, "data_address": address})
    # Within the clocks' leeway it still is one.
    grant = right(source, target, sink, source.data_address)
    known = {"token": signed(grant, ago_s=62)}
    done = target.transfer(source, "p", "late", target_sink_id=sink, known=known)
    assert done["status"] == "completed"


def refused(target: Worker, source: Worker, sink: str, known: dict[str, object]) -> None:
    failed = target.transfer(source, "p", "s", target_sink_id=sink, known=known)
    assert (failed["status"], failed["failure"]) == ("failed", "source_refused"), failed
    assert failed["detail"].startswith("not asked: ")
    assert failed["bytes_transferred"] == 0
    assert target.sink_facts(sink)["state"] == "open"
    assert not target.leaks()


def test_a_payload_of_its_own_needs_neither_token_nor_address(workers):
    _, target = workers
    target.put("p", DATA)
    sink = target.new_sink(len(DATA))
    with uncalled() as address:
        known = {"token": "garbage", "data_address": address}
        done = target.transfer(target, "p", "s", target_sink_id=sink, known=known)
    assert done["status"] == "completed"


def test_a_token_for_a_copy_is_for_that_copy(workers):
    source, target = workers
    source.put("p", DATA)
    for copy, failure in (("copy", None), ("other", "source_refused")):
        grant = Grant(
            source.node,
            target.tenant,
            D.FETCH,
            payload_id="p",
            target_worker=target.node,
            target_payload_id="copy",
            data_address=source.data_address,
        )
        known = {"token": signed(grant)}
        done = target.transfer(source, "p", copy, target_payload_id=copy, known=known)
        assert done["failure"] == failure
    assert target.facts("other").status_code == 404


def asked(address: str, request: FetchRequest) -> bytes:
    """Everything that a data port says to a request."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(frame(request) + CONFIRMATION)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


@pytest.mark.parametrize(
    "change",
    [
        {"asked": "q"},
        {"sink_id": "another"},
        {"sink_id": None},
        {"sink_id": None, "target_payload_id": "s"},
        {"target_payload_id": "copy"},
        {"target_worker": "node-y"},
    ],
    ids=str,
)
def test_a_source_gives_nothing_for_another_payload_or_target_than_the_tokens(workers, change):
    source, _ = workers
    for payload in ("p", "q"):
        source.put(payload, DATA)
    answer = asked(source.data_address, request_of(source, "p", **change))
    assert b'"status":"unauthorized"' in answer
    assert len(answer) < 1000
    assert not source.leaks()


def test_a_source_gives_nothing_for_a_token_that_is_over_or_another_workers(workers):
    source, other = workers
    source.put("p", DATA)
    good = Grant(
        source.node, source.tenant, D.FETCH, "p", "s", target_worker="x", data_address=ELSEWHERE
    )
    for token, status in (
        (signed(good, ago_s=66), b"unauthorized"),
        (signed(msgspec.structs.replace(good, worker=other.node)), b"unauthorized"),
        (signed(msgspec.structs.replace(good, direction=D.GET_PAYLOAD)), b"unauthorized"),
        (signed(msgspec.structs.replace(good, tenant="stranger")), b"missing"),
    ):
        answer = asked(source.data_address, FetchRequest(token, "p", "x", "s"))
        assert b'"status":"' + status + b'"' in answer
        assert len(answer) < 1000
    assert not source.leaks()
    assert DATA in asked(source.data_address, FetchRequest(signed(good), "p", "x", "s"))


def test_an_address_that_another_worker_has_now_gives_nothing(workers):
    source, target = workers
    source.put("p", DATA)
    sink = target.new_sink(len(DATA))
    # The token was issued when `moved` listened where `source` does now.
    grant = msgspec.structs.replace(
        right(source, target, sink, source.data_address), worker="moved"
    )
    known = {"worker": "moved", "token": signed(grant)}
    failed = target.transfer(source, "p", "s", target_sink_id=sink, known=known)
    assert failed["failure"] == "source_refused"
    assert failed["detail"].startswith("unauthorized: ")
    assert target.sink_facts(sink)["state"] == "open"


def test_both_secrets_of_a_rotation_vouch(start_worker, workers):
    source, target = workers
    source.put("p", DATA)
    newer = "n" * 40
    rotating = start_worker(
        "rotating", tenant=target.tenant, env={"NEXUSKV_WORKER_SECRET": f"{newer},{SECRET}"}
    )
    for secret in (newer, SECRET):
        sink = rotating.new_sink(len(DATA))
        grant = right(source, rotating, sink, ELSEWHERE)
        known = {
            "token": signed(grant, keys=TokenKeys([secret])),
            "data_address": ELSEWHERE,
        }
        # Nobody listens there: it was asked, so the token was taken.
        failed = rotating.transfer(source, "p", secret[:8], target_sink_id=sink, known=known)
        assert failed["failure"] == "source_unreachable"


def test_connections_are_used_again_and_replaced_when_the_source_has_closed_them(workers):
    source, target = workers
    source.put("p", DATA)

    def pull(number: int) -> None:
        sink = target.new_sink(len(DATA))
        done = target.transfer(source, "p", f"s{number}", target_sink_id=sink)
        assert done["status"] == "completed", done
        assert target.content(sink).content == DATA
        target.finish(sink, "discard")

    before = source.metrics()["nexuskv_worker_data_connections"]
    for number in range(5):
        pull(number)
    assert source.metrics()["nexuskv_worker_data_connections"] <= max(before, 1)
    # As many rest as a source has at all: the next ones take their places, nobody is turned away.
    busy = 'nexuskv_worker_fetches_total{status="busy"}'
    turned_away = source.metrics()[busy]
    resting = [rested(source) for _ in range(64)]
    try:
        for number in range(5, 10):
            pull(number)
        resting += [rested(source) for _ in range(64)]
        pull(10)
    finally:
        for connection in resting:
            connection.close()
    assert source.metrics()[busy] == turned_away


def rested(source: Worker) -> socket.socket:
    """A connection that has had its payload and asks for nothing more."""
    host, port = source.data_address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(frame(request_of(source, "p")))
    read = connection.makefile("rb")
    found = b""
    while DATA not in found:
        found += read.read1(1 << 20)
    while len(found) < found.index(DATA) + len(DATA) + 20:
        found += read.read1(1 << 20)
    connection.sendall(CONFIRMATION)
    return connection


TEXTS = st.text("abc-._~ä", max_size=12)
GRANTS = st.builds(
    Grant,
    worker=st.text("abc", min_size=1),
    tenant=TEXTS,
    direction=st.sampled_from(D),
    payload_id=TEXTS,
    sink_id=TEXTS,
    target_worker=TEXTS,
    target_payload_id=TEXTS,
    data_address=TEXTS,
)


@given(GRANTS)
def test_a_token_says_what_was_signed_to_its_worker_only(grant):
    token = KEYS.sign(grant, now_s=1000, ttl_s=10)
    assert KEYS.verify(token, worker=grant.worker, now_s=1005) == grant
    for worker, at_s in ((grant.worker + "x", 1005), (grant.worker, 1015), (grant.worker, 994)):
        with pytest.raises(NexusError, match="expired, or signed for another worker"):
            KEYS.verify(token, worker=worker, now_s=at_s)


@settings(max_examples=300)
@given(GRANTS, st.integers(0, 400), st.sampled_from("Aa0_-.=+é"))
def test_a_token_is_good_exactly_when_a_json_web_token_is(grant, place, letter):
    token = KEYS.sign(grant, now_s=1000, ttl_s=10)
    place %= len(token)
    changed = token[:place] + letter + token[place + 1 :]
    try:
        KEYS.verify(changed, worker=grant.worker, now_s=1005)
    except NexusError:
        good = False
    else:
        good = True
    try:
        options = {"verify_exp": False, "verify_iat": False}
        jwt.decode(changed, SECRET, ["HS256"], options=options, audience=grant.worker)
    except (jwt.PyJWTError, ValueError):
        assert not good
    else:
        assert good


@given(GRANTS)
def test_tokens_of_another_make_are_read_too(grant):
    claims = jwt.decode(KEYS.sign(grant, now_s=1000, ttl_s=10), options={"verify_signature": False})
    for headers in (None, {"kid": "k"}):
        token = jwt.encode(claims, SECRET, "HS256", headers=headers)
        assert KEYS.verify(token, worker=grant.worker, now_s=1005) == grant
    for token in (
        jwt.encode(claims, SECRET, "HS384"),
        jwt.encode(claims, None, "none"),
        jwt.encode(claims | {"iss": "else"}, SECRET, "HS256"),
        jwt.encode({**claims, "exp": "1010"}, SECRET, "HS256"),
        jwt.encode({name: claims[name] for name in claims if name != "sub"}, SECRET, "HS256"),
    ):
        with pytest.raises(NexusError):
            KEYS.verify(token, worker=grant.worker, now_s=1005)
