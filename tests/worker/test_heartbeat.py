"""What the API hears: a beat a second, events at once and until they are taken, in order."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transfer.tokens import API_AUDIENCE, Direction
from app.transfer.wire import GonePayload, Heartbeat, SinkEvent
from app.worker.outbox import Outbox
from tests.process.waiting import until
from tests.worker.rig import KEYS, MIB, now_s


class Api:
    """Takes heartbeats as the API does, or refuses them while `status` says so."""

    def __init__(self):
        self.beats = []
        self.status = 200
        # What is answered instead of the usual body.
        self.problem = None
        self.accepts = True
        # Cleared: a beat is taken, and its answer waits.
        self.answers = threading.Event()
        self.answers.set()
        self.problems = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                api.take(self.path, self.headers["authorization"], body)
                api.answers.wait(30)
                self.send_response(api.status)
                self.end_headers()
                beat = api.beats[-1]
                events = [event.event_id for event in beat.events] if api.accepts else []
                answer = {"accepted_events": events, "heartbeat_s": 0.2}
                self.wfile.write(msgspec.json.encode(api.problem or answer))

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def take(self, path, authorization, body):
        try:
            token = authorization.removeprefix("Bearer ")
            grant = KEYS.verify(token, worker=API_AUDIENCE, now_s=now_s())
            assert grant.direction is Direction.REGISTER
            assert path == f"/v1/workers/{grant.tenant}"
            self.beats.append(msgspec.json.decode(body, type=Heartbeat))
        except Exception as error:
            self.problems.append(error)
            raise

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def events(self):
        return [event for beat in self.beats for event in beat.events]

    def gone(self):
        """Tenant and id of each report, in the order of hearing."""
        reports = [report for beat in self.beats for report in beat.gone_payloads]
        return [(report.tenant, report.payload_id) for report in reports]

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def api():
    running = Api()
    yield running
    running.close()
    assert running.problems == []


def test_the_api_hears_what_the_worker_is_and_what_became_of_sinks(start_worker, api):
    worker = start_worker("node-h", "--api-url", api.url, dram_bytes=4 * MIB)
    until(lambda: len(api.beats) >= 2, "two beats")
    beat = api.beats[-1]
    assert beat.url == worker.url
    assert beat.data_address == worker.data_address
    assert beat.instance_id == worker.ready["instance_id"]
    assert beat.load.capacity_bytes == 4 * MIB
    assert {"baseline_transport", "staged_copy"} == set(beat.backends)

    decision = "01890000-0000-7000-8000-000000000001"
    worker.put("p", bytes(1000))
    taken, unwanted = worker.new_sink(1000), worker.new_sink(1000)
    short = worker.new_sink(1000, ttl_s=1)
    worker.transfer(worker, "p", "s", target_sink_id=taken, decision_id=decision)
    worker.finish(taken, "consume")
    worker.finish(unwanted, "discard", reason="prompt changed")
    until(lambda: len(api.events()) == 3, "three events")
    consumed, discarded, expired = api.events()
    assert (consumed.sink_id, consumed.state) == (taken, "consumed")
    assert (consumed.session_id, consumed.decision_id) == ("s", decision)
    assert (consumed.tenant, consumed.payload_bytes) == (worker.tenant, 1000)
    assert (discarded.state, discarded.reason) == ("discarded", "prompt changed")
    assert (expired.sink_id, expired.state) == (short, "expired")

    worker.put("q", bytes(3 * MIB))
    worker.put("r", bytes(2 * MIB))
    until(api.gone, "the evicted payload is reported")
    assert set(api.gone()) == {("acme", "q")}


def test_each_tenants_loss_is_told_once_and_again_when_it_came_back_meanwhile(start_worker, api):
    worker = start_worker("node-n", "--api-url", api.url)
    for tenant in ("acme", "rival"):
        worker.of(tenant).put("p", b"x")
    api.answers.clear()
    worker.delete("p")
    until(api.gone, "the loss is reported, and not answered yet")
    worker.put("p", b"y")
    worker.delete("p")
    worker.of("rival").delete("p")
    api.answers.set()
    until(lambda: len(api.gone()) >= 3, "the later losses are reported")
    beats = len(api.beats)
    until(lambda: len(api.beats) >= beats + 2, "two more beats")
    assert api.gone()[0] == ("acme", "p")
    assert sorted(api.gone()[1:]) == [("acme", "p"), ("rival", "p")]


def test_events_wait_for_an_api_that_is_away_and_for_one_that_takes_none(start_worker, api):
    api.status = 503
    worker = start_worker("node-i", "--api-url", api.url)
    sink = worker.new_sink(1000)
    assert worker.finish(sink, "discard").status_code == 200
    until(lambda: len(api.beats) >= 2, "beats that are refused")
    assert worker.metrics()["nexuskv_worker_events_pending"] == 1
    api.accepts, api.status = False, 200
    until(lambda: worker.metrics()["nexuskv_worker_heartbeats_total"] >= 2, "beats that are taken")
    assert worker.metrics()["nexuskv_worker_events_pending"] == 1
    api.accepts = True
    until(lambda: worker.metrics()["nexuskv_worker_events_pending"] == 0, "the event is taken")
    assert {event.sink_id for event in api.events()} == {sink}


def test_the_last_events_are_told_before_the_end(start_worker, api):
    worker = start_worker("node-j", "--api-url", api.url)
    api.accepts = False
    sink = worker.new_sink(1000)
    worker.finish(sink, "discard")
    until(api.events, "the event was told once")
    refused, api.accepts = len(api.beats), True
    assert worker.command.end() == 0
    # By the last beat, or by one that came just before the end.
    assert sink in {event.sink_id for beat in api.beats[refused:] for event in beat.events}


def warnings(worker):
    return [line for line in worker.command.stderr.splitlines() if '"heartbeat_failed"' in line]


def failed_beats(worker):
    return worker.metrics()["nexuskv_worker_heartbeats_failed_total"]


def test_a_worker_without_its_api_works_and_warns_of_it_once(start_worker):
    quiet = ("--log-level", "warning")
    worker = start_worker("node-k", "--api-url", "http://127.0.0.1:1", *quiet)
    assert worker.put("p", b"x").status_code == 201
    until(lambda: failed_beats(worker) >= 6, "failed beats")
    assert worker.http.get(worker.url + "/readyz").status_code == 200
    assert len(warnings(worker)) == 1
    assert worker.command.end() == 0


def test_a_worker_that_ends_just_after_its_api_says_nothing_of_it(start_worker):
    api = Api()
    worker = start_worker("node-l", "--api-url", api.url, "--log-level", "warning")
    until(lambda: api.beats, "a beat")
    api.close()
    until(lambda: failed_beats(worker), "a failed beat")
    assert worker.command.end() == 0
    said = worker.command.stderr.splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("NexusKV worker node-l answers on")


def test_a_worker_that_is_refused_warns_at_once(start_worker, api):
    api.status = 401
    worker = start_worker("node-m", "--api-url", api.url, "--log-level", "warning")
    until(lambda: warnings(worker), "a warning")
    assert "401" in warnings(worker)[0]


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (401, "unauthorized", "same NEXUSKV_WORKER_SECRET"),
        (403, "worker_host_not_allowed", "NEXUSKV_WORKER_HOSTS"),
        (409, "worker_name_taken", "--node"),
    ],
)
def test_a_refused_worker_says_why_and_what_to_do(start_worker, api, status, code, says):
    api.status = status
    api.problem = {"code": code, "detail": "Because of " + "x" * 100_000}
    worker = start_worker("node-o", "--api-url", api.url, "--log-level", "warning")
    until(lambda: warnings(worker), "a warning")
    found = msgspec.json.decode(warnings(worker)[0])
    assert found["code"] == code
    assert found["reason"].startswith(f"the API answered {status} {code}: Because of xxx")
    assert says in found["reason"]
    assert len(found["reason"]) < 1000
    assert "http" not in found["reason"]


def event(number):
    name = f"01890000-0000-7000-8000-{number:012}"
    return SinkEvent(name, f"s{number}", "acme", "consumed", number, 1)


async def test_a_full_outbox_keeps_the_oldest_and_counts_the_rest():
    outbox = Outbox(max_events=2, max_gone=2)
    for number in range(4):
        outbox.put(event(number))
        outbox.gone("acme", f"p{number}")
    assert [one.sink_id for one in outbox.news().events] == ["s0", "s1"]
    gone = outbox.news().gone_payloads
    assert gone == (GonePayload("acme", "p0"), GonePayload("acme", "p1"))
    assert (outbox.dropped_events, outbox.dropped_gone) == (2, 2)
    outbox.taken([event(0).event_id], outbox.news()._replace(gone_payloads=gone[:1]))
    assert [one.sink_id for one in outbox.news().events] == ["s1"]
    assert outbox.news().gone_payloads == gone[1:]


def test_an_event_that_is_told_again_while_it_is_on_its_way_is_told_again():
    """The API may have taken the first one before it knew what it was about."""
    outbox = Outbox()
    outbox.put(event(0))
    on_its_way = outbox.news()
    outbox.put(event(0))
    outbox.taken([event(0).event_id], on_its_way)
    assert outbox.wake.is_set()
    assert outbox.news().events == (event(0),)
    outbox.taken([event(0).event_id], outbox.news())
    assert not outbox.wake.is_set()
    assert outbox.news().events == ()


def test_what_the_api_did_not_take_waits_for_the_next_beat():
    outbox = Outbox()
    outbox.put(event(0))
    outbox.taken([], outbox.news())
    assert not outbox.wake.is_set()
    assert outbox.news().events == (event(0),)


STEPS = st.tuples(
    st.sampled_from(["gone", "kept", "tell", "answer", "fail"]), st.sampled_from(["acme", "rival"])
)


@given(st.lists(STEPS, max_size=20))
def test_whatever_is_gone_at_last_was_told_since_it_went(steps):
    """A payload of each of two tenants comes and goes while beats are under way, or fail."""
    outbox, told_since, in_flight = Outbox(), {}, None
    for what, tenant in [*steps, ("answer", ""), ("tell", ""), ("answer", "")]:
        if what == "gone":
            outbox.gone(tenant, "p")
            told_since.setdefault(tenant, False)
        elif what == "kept":
            outbox.kept(tenant, "p")
            told_since.pop(tenant, None)
        elif what == "tell" and in_flight is None:
            in_flight = outbox.news()
            told_since |= {one.tenant: True for one in in_flight.gone_payloads}
        elif what == "answer" and in_flight is not None:
            outbox.taken([], in_flight)
            in_flight = None
        elif what == "fail":
            in_flight = None
    assert all(told_since.values())
    assert outbox.news().gone_payloads == ()
