"""A process that reads a block index of another one: `python -m tests.core.block_reader SOCKET`.

A message is one line of JSON; `attach` comes with the index's file descriptor.
"""

import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from nexuskv_core._blocks import BlockIndex

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 30.0


class Reader:
    """The process, from the outside."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(ANSWER_S)
        with closing(theirs):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.core.block_reader", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
            )

    def attach(self, index: BlockIndex) -> None:
        socket.send_fds(self.socket, [b'["attach"]'], [index.fd()])
        assert self._answer() is None

    def ask(self, call: str, *arguments: Any) -> Any:
        self.socket.send(json.dumps([call, *arguments]).encode())
        return self._answer()

    def close(self) -> None:
        self.socket.close()
        self.process.wait(ANSWER_S)

    def _answer(self) -> Any:
        return json.loads(self.socket.recv(1 << 20))


def answers(index: BlockIndex, call: str, arguments: list[Any]) -> Any:
    if call == "find":
        return sorted(index.find(bytes.fromhex(arguments[0])))
    if call == "reach":
        return sorted(index.reach(bytes.fromhex(arguments[0])).items())
    if call == "find_names":
        return sorted(index.find_names(arguments[0], arguments[1]))
    raise ValueError(call)


def main(handle: int) -> None:
    """Answer until the other side is gone."""
    with socket.socket(fileno=handle) as connection:
        index: BlockIndex | None = None
        while True:
            text, handles, _, _ = socket.recv_fds(connection, 1 << 20, 1)
            if not text:
                return
            call, *arguments = json.loads(text)
            if call == "attach":
                index = BlockIndex.attach(handles[0])
                answer = None
            else:
                assert index is not None
                answer = answers(index, call, arguments)
            connection.send(json.dumps(answer).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
