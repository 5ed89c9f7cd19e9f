"""The whole suite in two processes, for two cores: `python -m tests.lanes [PYTEST OPTIONS]`.

Beside most of the tests with services, one after the other, run those that compute and some others.
Their output follows at the end. The status is that of the lane that failed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
BESIDE = [
    "tests/api/test_schemathesis.py",
    "tests/bridge",
    "tests/cli",
    "tests/console",
    "tests/core",
    "tests/db",
    "tests/decisions",
    "tests/deploy",
    "tests/engines",
    "tests/faults",
    "tests/index",
    "tests/policies",
    "tests/tidy",
    "tests/topology",
    "tests/unit",
]


def lane(arguments: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """A pytest of its own; `output` None is ours."""
    command = [sys.executable, "-m", "pytest", *arguments, *sys.argv[1:]]
    return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def main() -> int:
    """0 where both lanes passed."""
    others = ["tests", *(f"--ignore={path}" for path in BESIDE)]
    with tempfile.TemporaryFile() as output:
        beside = lane(["-p", "no:cacheprovider", *BESIDE], output)
        try:
            status = lane(others, None).wait()
            status = beside.wait() or status
        finally:
            beside.kill()
        output.seek(0)
        sys.stdout.write(output.read().decode(errors="replace"))
    return status


if __name__ == "__main__":
    sys.exit(main())
