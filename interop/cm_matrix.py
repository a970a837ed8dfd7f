#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""cm_matrix.py --vm COMMAND [--families IPv4,IPv6]: the connection manager against that of Linux and rdma-core.

Runs every case of cm.py with the server here and the client in the machine, and the other way round; then rdma-core's
rping and mckey against the same cases. COMMAND runs a command in the machine, where cm.py lies in /host. Prints one
line a case; the exit status says whether all passed.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ADDRESSES = {"IPv4": ("10.77.0.1", "10.77.0.2"), "IPv6": ("fd77::1", "fd77::2")}
OWN = ("client ends", "server ends", "reject", "nobody", "synchronous", "datagram", "rping")
GROUP = "239.1.2.3"
PATIENCE = 60  # seconds that a case may take; emulation is slow


class Matrix:
    """Runs cases and counts."""

    def __init__(self, machine, program):
        self.machine = machine
        self.ours = [sys.executable, "-B", os.path.join(HERE, "cm.py")]
        self.theirs = [*machine, "python3", program]
        self.port = 7400
        self.only = ""
        self.passed = self.failed = 0

    def next_port(self):
        self.port += 1
        return str(self.port)

    def run(self, what, server, client, ready="listening"):
        """One case: starts the server, waits until it has said ``ready``, runs the client."""
        if self.only not in what:
            return
        started = time.monotonic()
        problem = ""
        process = subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = self._until(process, ready)
            done = subprocess.run(client, capture_output=True, text=True, timeout=PATIENCE, check=False)
            if done.returncode:
                problem = f"client: {(done.stdout + done.stderr).strip()[-300:]}"
            said += process.communicate(timeout=PATIENCE)[0]
            if process.returncode:
                problem += f" server: {said.strip()[-300:]}"
        except subprocess.TimeoutExpired as error:
            problem = f"it hangs: {error}"
        finally:
            process.kill()
            process.wait()
        self.passed, self.failed = self.passed + (not problem), self.failed + bool(problem)
        print(f"{'FAIL' if problem else 'ok':5} {time.monotonic() - started:5.1f} s  {what}  {problem}", flush=True)

    def _until(self, process, ready):
        said = ""
        assert process.stdout is not None
        while ready not in said:
            line = process.stdout.readline()
            if not line:
                break
            said += line
        return said

    def cases(self, family):
        """Every case of cm.py, both ways."""
        here, there = ADDRESSES[family]
        for case in OWN:
            port = self.next_port()
            ours, theirs = (["client", case, there, port], ["server", case, there, port])
            self.run(f"{family} {case}, server there", [*self.theirs, *theirs], [*self.ours, *ours])
            port = self.next_port()
            ours, theirs = (["server", case, here, port], ["client", case, here, port])
            self.run(f"{family} {case}, server here", [*self.ours, *ours], [*self.theirs, *theirs])

    def programs(self, family):
        """rping; and mckey over IPv4."""
        here, there = ADDRESSES[family]
        port = self.next_port()
        command = f"(rping -s -a {there} -C 3 -S 64 -v -p {port}; echo ended $?) & {self._listens(port)} wait"
        client = [*self.ours, "client", "rping", there, port]
        self.run(f"{family} rping -s there", [*self.machine, "sh", "-c", command], client)
        port = self.next_port()
        rping = ["rping", "-c", "-a", here, "-C", "3", "-S", "64", "-V", "-p", port]
        self.run(f"{family} rping -c there", [*self.ours, "server", "rping", here, port], [*self.machine, *rping])
        if family == "IPv4":
            mckey = ["stdbuf", "-oL", "mckey", "-m", GROUP, "-b", there, "-C", "10", "-S", "100"]
            client = [*self.ours, "client", "mckey", here, GROUP]
            self.run("IPv4 mckey receives there", [*self.machine, *mckey], client, "receiving")
            server = [*self.ours, "server", "mckey", here, GROUP]
            self.run("IPv4 mckey sends there", server, [*self.machine, *mckey, "-s"])

    @staticmethod
    def _listens(port):
        """Shell text that waits until somebody listens on a port, and says so."""
        return f"until rdma resource show cm_id | grep -q 'LISTEN.*:{port}'; do sleep 0.1; done; echo listening;"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vm", required=True)
    parser.add_argument("--families", default="IPv4,IPv6")
    parser.add_argument("--program", default="/host/cm.py", help="where cm.py is, in the machine")
    parser.add_argument("--cases-only", action="store_true", help="without rping and mckey")
    parser.add_argument("--only", default="", help="cases with this text in their name")
    options, _ = parser.parse_known_args()
    matrix = Matrix(options.vm.split(), options.program)
    matrix.only = options.only
    for family in options.families.split(","):
        with contextlib.suppress(KeyboardInterrupt):
            matrix.cases(family)
            if not options.cases_only:
                matrix.programs(family)
    print(f"{matrix.passed} passed, {matrix.failed} failed")
    return int(matrix.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
