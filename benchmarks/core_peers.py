"""Environments of the peers under `.bench/`, and the processes of all systems under test."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.report import OUT, ROOT

# The core of whoever is measured, one at a time, and that of the driver.
SYSTEM_CORE, DRIVER_CORE = 0, 1
ANSWER_S = 300.0
INSTALL_S = 900.0
DYNAMO = "ai-dynamo-runtime==1.6.1"
SGLANG = "sglang==0.5.23"
# The tree links against torch, 2.11 to 2.14; the build without CUDA is a tenth of the size.
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
OURS = "nexus"


class PeerError(Exception):
    """A system that cannot be measured, and why, in one line."""


def environment(name: str, wheels: str | None) -> Path:
    """Its Python, made with pip where it is not there yet. Raises PeerError."""
    if name == OURS:
        return Path(sys.executable)
    home = OUT / name
    python, done = home / "bin" / "python", home / ".installed"
    wanted = "\n".join(" ".join(each) for each in _packages(name))
    if done.exists() and done.read_text() == wanted:
        return python
    OUT.mkdir(exist_ok=True)
    print(f"installing {name} into {home}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(home)])
    links = ["--find-links", wheels] if wheels else []
    for arguments in _packages(name):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            _run([*command, *links, *arguments])
        except PeerError:
            if TORCH not in arguments:
                raise
            _run([*command, *links, "--extra-index-url", TORCH_INDEX, *arguments])
    done.write_text(wanted)
    return python


def _packages(name: str) -> list[list[str]]:
    if name == "dynamo":
        return [[DYNAMO], ["msgspec>=0.22,<0.23", "orjson>=3.13,<4"]]
    return [[TORCH, "numpy"], ["--no-deps", SGLANG]]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"`{' '.join(command)}` took longer than {INSTALL_S:g} s") from error
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise PeerError(f"`{' '.join(command[-2:])}` failed: {last}")


@dataclass(slots=True, eq=False)
class Process:
    """A child that answers one line with one line."""

    name: str
    process: subprocess.Popen[bytes]
    forms: tuple[str, ...] = ()
    only_best: bool = False

    def send(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(f"{self.name} has ended: {self._last_words()}") from error

    def receive(self, answer_s: float = ANSWER_S) -> Any:
        assert self.process.stdout is not None
        line = _line(self.process.stdout, answer_s)
        if line is None:
            raise PeerError(f"{self.name} did not answer within {answer_s:g} s")
        if not line:
            raise PeerError(f"{self.name} has ended: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error'].strip().splitlines()[-1]}")
        return answer["ok"]

    def call(self, do: str, **arguments: Any) -> Any:
        self.send(do, **arguments)
        return self.receive()

    def _last_words(self) -> str:
        self.process.wait(timeout=10)
        log = (OUT / f"{self.name}.log").read_text(errors="replace").strip()
        return log.splitlines()[-1] if log else f"exit code {self.process.returncode}"


def _line(pipe: IO[bytes], answer_s: float) -> bytes | None:
    """One line; b"" at the end; None when none came in time. Answers do not come unasked."""
    end = time.monotonic() + answer_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        if not selector.select(max(0.0, end - time.monotonic())):
            return None
    return pipe.readline()


@contextmanager
def start(
    name: str, module: str, arguments: Sequence[str], python: Path, **options: Any
) -> Iterator[Process]:
    """`python -m module arguments` in the repository's root, ended at the end."""
    OUT.mkdir(exist_ok=True)
    with (OUT / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [str(python), "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"},
            **options,
        )
        try:
            yield Process(name, process)
        finally:
            process.kill()
            process.wait(timeout=60)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@contextmanager
def system(name: str, wheels: str | None) -> Iterator[Process]:
    """A system under test on its core. Raises PeerError with the reason where it does not run."""
    python = environment(name, wheels)
    with start(name, f"benchmarks.core_{name}", [str(SYSTEM_CORE)], python) as process:
        described = process.call("describe")
        process.forms = tuple(described["forms"])
        process.only_best = described["only_best"]
        yield process
