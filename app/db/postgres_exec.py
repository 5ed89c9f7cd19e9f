"""Become the Postgres user, ask to be stopped when the parent dies, and exec the server.

Run as a script by `app.db.embedded`, never imported: `postgres_exec.py PARENT UID GID PROGRAM ...`.
The order matters: setuid() clears the parent-death signal, so it is set last; a parent that died
before that is noticed by its changed pid. A preexec_fn could do the same, but runs Python code in
the forked image of a process that may have threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, uid: int, gid: int, command: list[str]) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        # SIGINT is Postgres's fast shutdown: sessions are cut, everything is written.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent died before Postgres started")
    os.execv(command[0], command)  # noqa: S606  (the supervisor built the command)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
