"""A worker that dies in the middle of a transfer: the other one is as it was, and tries again."""

import signal

from tests.process.waiting import until
from tests.worker.evil import relay
from tests.worker.rig import MIB, some_bytes

# More than all the socket buffers on the way hold.
BIG = some_bytes(24 * MIB)


def test_the_source_is_killed_and_comes_back(workers, start_worker, evil):
    _, target = workers
    source = start_worker("source")
    source.put("p", BIG)
    evil.script = relay(evil, source, "p", MIB)
    sink = target.new_sink(len(BIG))
    order = {"target_sink_id": sink, "wait_s": 0}
    assert target.transfer(evil.address, "p", "s", **order)["status"] == "in_flight"
    assert evil.reached.wait(20)
    source.kill()
    evil.go_on.set()
    until(lambda: target.session("s", "p", sink).json()["failure"], "the transfer ends")
    assert target.session("s", "p", sink).json()["failure"] == "source_unreachable"
    assert target.sink_facts(sink)["state"] == "open"
    assert not target.leaks()
    reborn = start_worker("source")
    failed = target.transfer(reborn, "p", "t", target_sink_id=sink)
    assert failed["failure"] in ("payload_missing", "source_unreachable")
    reborn.of(target.tenant).put("p", BIG)
    assert target.transfer(reborn, "p", "t", target_sink_id=sink)["status"] == "completed"
    assert target.content(sink).content == BIG


def test_a_source_that_was_stopped_and_killed_before_it_answered(workers, start_worker):
    _, target = workers
    source = start_worker("source")
    source.put("p", BIG)
    sink = target.new_sink(len(BIG))
    source.command.process.send_signal(signal.SIGSTOP)
    target.transfer(source, "p", "s", target_sink_id=sink, wait_s=0)
    assert target.sink_facts(sink)["state"] == "filling"
    source.kill()
    ended = target.transfer(source, "p", "s", target_sink_id=sink)
    assert ended["failure"] == "source_unreachable"


def test_the_destination_is_killed(workers, start_worker, evil):
    source, _ = workers
    source.put("p", BIG)
    evil.script = relay(evil, source, "p", MIB)
    target = start_worker("target", tenant=source.tenant)
    sink = target.new_sink(len(BIG))
    target.transfer(evil.address, "p", "s", target_sink_id=sink, wait_s=0)
    assert evil.reached.wait(20)
    assert source.metrics()["nexuskv_worker_pins"] == 1
    target.kill()
    evil.go_on.set()
    until(lambda: not source.leaks(), "the source lets go")
    reborn = start_worker("target", tenant=source.tenant)
    assert reborn.ready["instance_id"] != target.ready["instance_id"]
    assert reborn.session("s", "p", sink).status_code == 404
    again = reborn.new_sink(len(BIG), sink_id=sink)
    assert reborn.transfer(source, "p", "s", target_sink_id=again)["status"] == "completed"
    assert reborn.content(again).content == BIG
