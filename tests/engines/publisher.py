"""An engine's event publisher as a process of its own, and the handle by which a test drives it.

Run as a program it publishes one frame a block of one ever longer prompt, numbers them from 0 as
engines do, and answers replays with three or four parts. `drop` numbers frames that are not sent.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import zmq

BLOCK = 4
DEADLINE_S = 20
END = (2**64 - 1).to_bytes(8, "big")


def tokens_of(blocks: int, seed: int = 0) -> list[int]:
    """The first blocks of the prompt that a publisher with this seed tells of."""
    return [1_000_000 * seed + position for position in range(blocks * BLOCK)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Publisher:
    """A running publisher. Every command waits until it is done."""

    def __init__(self, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        ready = self._answer()
        self.endpoint: str = ready["endpoint"]
        self.replay_endpoint: str | None = ready["replay"]

    def subscribed(self) -> "Publisher":
        """Returns once a subscriber is there: what is sent from now on reaches it."""
        self._ask("subscribed")
        return self

    def send(self, frames: int = 1) -> None:
        self._ask("send", frames)

    def drop(self, frames: int = 1) -> None:
        self._ask("drop", frames)

    def event(self, *events: dict[str, Any]) -> None:
        """One frame of these events."""
        self._ask("event", list(events))

    def raw(self, *parts: str) -> None:
        """A message of just these parts, hexadecimal."""
        self._ask("raw", list(parts))

    def hush(self) -> None:
        """Answers no replays from now on, or does so again."""
        self._ask("hush")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)

    def _ask(self, command: str, value: Any = None) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, value]) + "\n")
        self.process.stdin.flush()
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the publisher ended"
        return json.loads(line)


@contextmanager
def publishing(**options: Any) -> Iterator[Publisher]:
    made = Publisher(**options)
    try:
        yield made
    finally:
        made.end()


class Process:
    """What runs in the process."""

    def __init__(
        self,
        *,
        bind: str | None = "tcp://127.0.0.1:*",
        connect: str | None = None,
        replay_parts: int = 0,
        replay_bind: str = "tcp://127.0.0.1:*",
        topic: str = "",
        seed: int = 0,
        rank: int = 0,
        keep: int = 10_000,
    ) -> None:
        context = zmq.Context()
        # As PUB on the wire, and it hears of subscriptions.
        self.out = context.socket(zmq.XPUB)
        self.out.linger = 0
        if connect is not None:
            self.out.connect(connect)
        else:
            self.out.bind(bind)
        self.replay = None
        if replay_parts:
            self.replay = context.socket(zmq.ROUTER)
            self.replay.linger = 0
            self.replay.bind(replay_bind)
        self.replay_parts, self.topic, self.seed = replay_parts, topic.encode(), seed
        self.rank, self.keep = rank, keep
        self.number = self.blocks = 0
        self.hushed = False
        self.kept: list[tuple[int, bytes]] = []

    def run(self) -> None:
        self.say(
            endpoint=self.out.last_endpoint.decode(),
            replay=None if self.replay is None else self.replay.last_endpoint.decode(),
        )
        poller = zmq.Poller()
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        if self.replay is not None:
            poller.register(self.replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.replay in ready:
                self.answer_replay()
            if sys.stdin.fileno() in ready:
                line = sys.stdin.buffer.raw.readline()
                if not line:
                    return
                self.obey(*json.loads(line))

    def obey(self, command: str, value: Any) -> None:
        if command == "subscribed":
            assert self.out.recv()[:1] == b"\x01"
        elif command == "raw":
            self.out.send_multipart([bytes.fromhex(part) for part in value])
        elif command == "hush":
            self.hushed = not self.hushed
        elif command == "event":
            self.publish(value, sent=True)
        else:
            for _ in range(value):
                self.publish([self.next_block()], sent=command == "send")
        self.say()

    def next_block(self) -> dict[str, Any]:
        number = self.blocks
        self.blocks += 1
        name = 1_000 * (self.seed + 1) + number
        return {
            "type": "BlockStored",
            "block_hashes": [name],
            "parent_block_hash": name - 1 if number else None,
            "token_ids": tokens_of(number + 1, self.seed)[-BLOCK:],
            "block_size": BLOCK,
            "medium": "GPU",
        }

    def publish(self, events: list[dict[str, Any]], *, sent: bool) -> None:
        payload = msgspec.msgpack.encode([1.5 + self.number, events, self.rank])
        self.kept = [*self.kept, (self.number, payload)][-self.keep :]
        if sent:
            self.out.send_multipart([self.topic, self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def answer_replay(self) -> None:
        who, delimiter, start = self.replay.recv_multipart()
        assert delimiter == b""
        if self.hushed:
            return
        topic = [self.topic] if self.replay_parts == 4 else []
        for number, payload in self.kept:
            if number >= int.from_bytes(start, "big"):
                reply = [*topic, number.to_bytes(8, "big"), payload]
                self.replay.send_multipart([who, b"", *reply])
        ended = [b""] if topic else []
        self.replay.send_multipart([who, b"", *ended, END, b""])

    def say(self, **found: Any) -> None:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    Process(**json.loads(sys.argv[1])).run()
