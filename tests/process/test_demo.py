"""`nexuskv demo` as a newcomer runs it: real bytes, and a receipt that can be checked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import xxhash


def test_the_demos_receipt_is_that_of_the_bytes_in_the_sink(tmp_path: Path) -> None:
    content_file = tmp_path / "content"
    command = [sys.executable, "-m", "app.cli", "demo", "--json", "--tokens", "128"]
    done = subprocess.run(
        [*command, "--content-file", str(content_file)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        # A database or a secret of the environment is not the demo's.
        env=os.environ | {"TMPDIR": str(tmp_path), "NEXUSKV_WORKER_SECRET": "x" * 40},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    content = content_file.read_bytes()
    # 4 layers of keys and values, 2 heads of 64 halves, for 128 tokens.
    assert len(content) == 2 * 4 * 128 * 2 * 64 * 2
    receipt = told["receipt"]
    assert receipt["bytes_transferred"] == len(content)
    assert receipt["receipt"]["namespace"] == "nexuskv.physical-transfer-receipt.v1"
    checksum = xxhash.xxh3_128(content).hexdigest()
    assert receipt["receipt"]["value"].endswith(f":xxh3-128:{checksum}")
    assert receipt["evidence"]["level"] == "physical"
    assert len(told["steps"]) == 9
    history = told["steps"][-1]["facts"]
    assert history["outcomes"] == ["completed", "consumed"]
    assert history["chain"] == [
        "lookup: hit",
        "estimate: estimated",
        "materialize: materialized",
    ]
    # The steps are told on the side, and nothing stays behind.
    assert "The runtime takes it" in done.stderr
    # Not a terminal: nothing is wrapped, so that a line can be searched.
    assert f"value                      {receipt['receipt']['value']}\n" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["content"]


def test_a_prompt_that_is_too_short_is_refused_before_anything_starts() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "demo", "--tokens", "3"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--tokens" in done.stderr
