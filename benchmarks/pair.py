"""The bare other end of a socket: sends a memfd's bytes by `sendfile`, once for each byte it gets.

`python -m benchmarks.pair BYTES` prints its port. The yardstick of `benchmarks.worker`: no
protocol, no checksum, no token, one connection.
"""

import os
import socket
import sys


def main() -> None:
    payload_bytes = int(sys.argv[1])
    fd = os.memfd_create("pair", os.MFD_CLOEXEC)
    os.write(fd, os.urandom(payload_bytes))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        connection, _ = listening.accept()
        with connection:
            while connection.recv(1):
                place = 0
                while place < payload_bytes:
                    place += os.sendfile(connection.fileno(), fd, place, payload_bytes - place)


if __name__ == "__main__":
    main()
