# SPDX-License-Identifier: MIT
"""Run a program as server and as client, so that both are on the device of one ``softverbs run``.

    both_sides.py PORT PROGRAM [ARGUMENT]...

The server is ``PROGRAM ARGUMENT...``; once it listens on TCP port PORT, the client is the same with ``127.0.0.1``
behind. What the client prints is printed, and what the server prints where one of them fails. Both stay in the session
of this process, so that they end with it.
"""

from __future__ import annotations

import subprocess
import sys
import time

SERVER_END_S = 5.0
LISTENS_S = 10.0


def listening(port: int) -> bool:
    """Whether somebody listens on a TCP port; without connecting, which the server would take for its client."""
    wanted = f":{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name, encoding="ascii") as table:
            if any(row.split()[1].endswith(wanted) and row.split()[3] == "0A" for row in table):
                return True
    return False


def main() -> int:
    """The client's exit status, or 1 if the server did not listen."""
    port, words = int(sys.argv[1]), sys.argv[2:]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            limit = time.monotonic() + LISTENS_S
            while not listening(port):
                if server.poll() is not None or time.monotonic() > limit:
                    return _failed(server)
                time.sleep(0.02)
            status = subprocess.run([*words, "127.0.0.1"], check=False).returncode
            if status:
                return _failed(server)
            try:
                server.communicate(timeout=SERVER_END_S)
            except subprocess.TimeoutExpired:
                pass
            return 0
        finally:
            server.kill()


def _failed(server: subprocess.Popen[str]) -> int:
    """Say what the server has said."""
    server.kill()
    print(server.communicate()[0], file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
