"""The worker that a command starts beside the API: why it ended is told where it is started."""

import json

from app.cli.worker_child import WorkerChild
from tests.control.logs import captured_logs
from tests.process.waiting import until
from tests.worker.rig import SECRET


def test_a_worker_that_cannot_start_is_told_with_its_reason(tmp_path):
    (tmp_path / "worker-w.log").write_text("what an earlier process said\n")
    child = WorkerChild(
        "w", api_url="http://127.0.0.1:1", secret=SECRET, dram_bytes=2**60, directory=tmp_path
    )

    def ended():
        child.ensure()
        return child.ended

    try:
        with captured_logs() as stream:
            reason = until(ended, "the worker ended")
    finally:
        child.stop()
    assert f"cannot take {2**60} bytes of memory" in reason
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [one["reason"] for one in told if one["event"] == "worker_ended"] == [reason]
