#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One side of the interoperability test: a verbs program that does what it is told.

    peer.py PACKAGE [DEVICE]

PACKAGE is ``pyverbs`` (rdma-core's own, in the virtual machine) or ``softverbs.pyverbs`` (ours, on the host). The rest
of the program is the same for both: that it runs unchanged on the two is part of what is tested.

Orders come as lines of JSON on standard input, ``{"do": NAME, ...arguments}``, and each is answered by one line on
standard output: ``{"ok": RESULT}`` or ``{"error": TEXT, "errno": NUMBER}``. The orders are the public methods of Peer.
"""

import importlib
import ipaddress
import itertools
import json
import os
import random
import sys
import time
from typing import Any, Optional

GUARD = 64  # bytes before and after the data that no transfer may touch
FILL = 0x5A  # what the guards, and memory that waits for data, hold
OPERATIONS = ("SEND", "RECV", "RDMA_READ", "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE")
GRH = 40  # bytes that come before a datagram
QKEY = 0x11111111
EVERYBODY = 0xFFFFFF  # the QP number of multicast
ATOMICS = ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD")
MTU = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}  # enum ibv_mtu


class Verbs:
    """The verbs classes, from one package or the other: the only place that knows which."""

    def __init__(self, package: str) -> None:
        def load(name: str) -> Any:
            return importlib.import_module(f"{package}.{name}")

        self.device, self.pd, self.mr, self.cq = load("device"), load("pd"), load("mr"), load("cq")
        self.qp, self.wr, self.addr = load("qp"), load("wr"), load("addr")
        try:
            self.enums = load("libibverbs_enums")
        except ImportError:  # rdma-core before version 50
            self.enums = load("enums")
        try:
            self.counters: Any = load("comp_cntr")
        except ImportError:  # rdma-core before version 65
            self.counters = None

    def flag(self, *names: str) -> int:
        """The sum of the constants IBV_<name>."""
        return sum(int(getattr(self.enums, "IBV_" + name)) for name in names)


class End:
    """One queue pair, with its own completion queue, buffer and counters."""

    def __init__(self, verbs: Verbs, context: Any, pd: Any, options: "dict[str, Any]") -> None:
        self.verbs = verbs
        self.options = options
        rights = ["ACCESS_LOCAL_WRITE"] + ["ACCESS_" + right for right in options["rights"]]
        self.cq = verbs.cq.CQ(context, 256)
        self.pd = pd
        self.datagrams = options["type"] == "UD"
        self.header = options["size"] + 2 * GUARD  # where the header of a datagram is put
        self.mr = verbs.mr.MR(pd, self.header + (GRH if self.datagrams else 0), verbs.flag(*rights))
        self.handles: "list[Any]" = []  # address handles: to the peer, and to a multicast group
        self.remote: "dict[str, Any]" = {}
        cap = verbs.qp.QPCap(max_send_wr=256, max_recv_wr=64, max_send_sge=2, max_recv_sge=2)
        init = verbs.qp.QPInitAttr(
            qp_type=verbs.flag("QPT_" + options["type"]),
            scq=self.cq,
            rcq=self.cq,
            cap=cap,
            sq_sig_all=options["signal_all"],
        )
        self.qp = verbs.qp.QP(pd, init)
        self.counters: "dict[str, Any]" = {}
        if verbs.counters is not None:
            for name in OPERATIONS:
                kind = verbs.flag("COMP_CNTR_TYPE_" + options["counters"])
                counter = verbs.counters.CompCntr(context, verbs.counters.CompCntrInitAttr(cntr_type=kind))
                bit = verbs.flag("QP_ATTACH_COMP_CNTR_OP_" + name)
                self.qp.attach_comp_cntr(counter, verbs.qp.QPAttachCompCntrAttr(op_mask=bit))
                self.counters[name] = counter

    def connect(self, remote: "dict[str, Any]") -> None:
        """RESET to RTS, towards what the other side's ``open`` said."""
        verbs, options, self.remote = self.verbs, self.options, remote
        attr = verbs.qp.QPAttr(port_num=1)
        attr.pkey_index = 0
        attr.qp_access_flags = verbs.flag("ACCESS_LOCAL_WRITE", *("ACCESS_" + right for right in options["qp_rights"]))
        attr.ah_attr = self.way(remote["gid"])
        attr.dest_qp_num = remote["qpn"]
        attr.path_mtu = MTU[options["mtu"]]
        attr.rq_psn, attr.sq_psn = remote["psn"], options["psn"]
        attr.max_rd_atomic = attr.max_dest_rd_atomic = options["rd_atomic"]
        attr.min_rnr_timer = options["min_rnr_timer"]
        attr.timeout, attr.retry_cnt, attr.rnr_retry = options["timeout"], options["retry_cnt"], options["rnr_retry"]
        if self.datagrams:
            attr.qkey = QKEY
            self.handles.append(verbs.addr.AH(self.pd, attr=attr.ah_attr))
        self.qp.to_rts(attr)

    def way(self, gid: str) -> Any:
        """The address vector to a GID."""
        addr = self.verbs.addr
        route = addr.GlobalRoute(dgid=addr.GID(gid), sgid_index=self.options["gid_index"], hop_limit=64)
        return addr.AHAttr(gr=route, is_global=1, port_num=1)

    def elements(self, length: int, offset: int) -> "list[Any]":
        """Where a message is to be put; the header of a datagram apart from it."""
        sge = self.verbs.wr.SGE
        elements = [sge(self.mr.buf + GUARD + offset, length, self.mr.lkey)]
        if not self.datagrams:
            return elements
        return [sge(self.mr.buf + self.header, GRH, self.mr.lkey), *(elements if length else [])]

    def close(self) -> None:
        """Children first; counters last, because a counter that is attached cannot be destroyed."""
        for item in (self.qp, *self.handles, self.mr, self.cq, *self.counters.values()):
            item.close()


def gid_text(address: str) -> str:
    """The GID of an IP address, as pyverbs writes it."""
    return ipaddress.IPv6Address("::ffff:" + address if "." in address else address).exploded


class Peer:
    """The orders. Offsets are counted from the first byte after the guard."""

    def __init__(self, package: str, device: Optional[str]) -> None:
        self.verbs = Verbs(package)
        self.package = package
        if device is None:
            device = self.verbs.device.get_device_list()[0].name.decode()
        self.context = self.verbs.device.Context(name=device)
        self.pd = self.verbs.pd.PD(self.context)
        self.ends: "dict[int, End]" = {}
        self.names = itertools.count(1)

    def hello(self) -> "dict[str, Any]":
        """What this side is: package, GIDs as IPv6 addresses, whether it has completion counters."""
        gids = []
        for index in range(16):
            try:
                gids.append(ipaddress.IPv6Address(str(self.context.query_gid(1, index))).exploded)
            except Exception:  # the table ends
                break
        python = ".".join(map(str, sys.version_info[:3]))
        has_counters = self.verbs.counters is not None
        return {"package": self.package, "python": python, "gids": gids, "counters": has_counters}

    def open(self, **options: Any) -> "dict[str, Any]":
        """Makes a queue pair and its buffer. The answer is what the other side's ``connect`` wants."""
        end = End(self.verbs, self.context, self.pd, options)
        name = next(self.names)
        self.ends[name] = end
        gid = str(self.context.query_gid(1, options["gid_index"]))
        return {
            "end": name,
            "qpn": end.qp.qp_num,
            "psn": options["psn"],
            "gid": gid,
            "rkey": end.mr.rkey,
            "addr": end.mr.buf + GUARD,
        }

    def connect(self, end: int, remote: "dict[str, Any]") -> None:
        """To RTS."""
        self.ends[end].connect(remote)

    def close(self, end: int) -> None:
        """Closes everything of ``end``."""
        self.ends.pop(end).close()

    def close_qp(self, end: int) -> None:
        """Closes the queue pair only: the other side then talks to nobody."""
        self.ends[end].qp.close()

    def clear(self, end: int, length: int, offset: int = 0) -> None:
        """``length`` bytes at ``offset``, and the guards on both sides of them, hold FILL."""
        size = length + 2 * GUARD
        self.ends[end].mr.write(bytes([FILL]) * size, size, offset)

    def fill(self, end: int, seed: int, length: int, offset: int = 0) -> None:
        """Random bytes that depend on ``seed`` only."""
        if length:
            self.ends[end].mr.write(random.Random(seed).randbytes(length), length, GUARD + offset)

    def check(self, end: int, seed: Optional[int], length: int, offset: int = 0) -> Optional[str]:
        """None if the bytes of ``seed`` (None: FILL) are there and the guards are whole; else the first difference."""
        guard = bytes([FILL]) * GUARD
        data = bytes([FILL]) * length if seed is None else random.Random(seed).randbytes(length)
        want = guard + data + guard
        got = bytes(self.ends[end].mr.read(len(want), offset))
        if got == want:
            return None
        at = next(i for i in range(len(want)) if got[i] != want[i])
        count = sum(a != b for a, b in zip(got, want, strict=True))
        return f"byte {at - GUARD} of {length} is {got[at]:#04x}, not {want[at]:#04x}; {count} bytes differ"

    def store(self, end: int, value: int, offset: int = 0) -> None:
        """A 64-bit integer of this machine."""
        self.ends[end].mr.write(value.to_bytes(8, sys.byteorder), 8, GUARD + offset)

    def load(self, end: int, offset: int = 0) -> int:
        """A 64-bit integer of this machine."""
        return int.from_bytes(bytes(self.ends[end].mr.read(8, GUARD + offset)), sys.byteorder)

    def recv(self, end: int, length: int, offset: int = 0, wr_id: int = 0) -> None:
        """Posts a receive."""
        it = self.ends[end]
        elements = it.elements(length, offset)
        it.qp.post_recv(self.verbs.wr.RecvWR(wr_id=wr_id, num_sge=len(elements), sg=elements))

    def post(self, end: int, requests: "list[dict[str, Any]]") -> None:
        """Posts send work requests: op, length, offset, wr_id, flags, imm, rkey, addr, operands, pieces."""
        for request in requests:
            self.ends[end].qp.post_send(self._request(self.ends[end], request))

    def _request(self, it: End, request: "dict[str, Any]") -> Any:
        wr, op, length = self.verbs.wr, request["op"], request["length"]
        first = it.mr.buf + GUARD + request.get("offset", 0)
        cut = length // 3 if request.get("pieces", 1) == 2 else 0
        elements = [wr.SGE(first + cut, length - cut, it.mr.lkey)]
        if cut:
            elements.insert(0, wr.SGE(first, cut, it.mr.lkey))
        result = wr.SendWR(
            wr_id=request.get("wr_id", 0),
            opcode=self.verbs.flag("WR_" + op),
            num_sge=len(elements),
            sg=elements,
            imm_data=request.get("imm", 0),
            send_flags=self.verbs.flag(*("SEND_" + flag for flag in request.get("flags", ["SIGNALED"]))),
        )
        if it.datagrams:
            many = request.get("many", False)
            result.set_wr_ud(it.handles[many], EVERYBODY if many else it.remote["qpn"], request.get("qkey", QKEY))
        elif op in ATOMICS:
            result.set_wr_atomic(request["rkey"], request["addr"], *request["operands"])
        elif op.startswith("RDMA_"):
            result.set_wr_rdma(request["rkey"], request["addr"])
        return result

    def poll(self, end: int, count: int, seconds: float) -> "list[dict[str, Any]]":
        """Up to ``count`` completions; fewer when ``seconds`` are over."""
        result: "list[dict[str, Any]]" = []
        cq, stop = self.ends[end].cq, time.monotonic() + seconds
        while True:
            number, completions = cq.poll(count - len(result))
            for wc in completions[:number]:
                fields = {"wr_id": wc.wr_id, "status": wc.status, "opcode": wc.opcode, "byte_len": wc.byte_len}
                fields.update(
                    imm=wc.imm_data, flags=wc.wc_flags, qpn=wc.qp_num, reason=getattr(wc, "reason", ""), src=wc.src_qp
                )
                result.append(fields)
            if len(result) >= count or time.monotonic() >= stop:
                return result
            if not number:
                time.sleep(0.0002)

    def grh(self, end: int) -> str:
        """The header of the last datagram, in hexadecimal digits."""
        it = self.ends[end]
        return bytes(it.mr.read(GRH, it.header)).hex()

    def attach(self, end: int, group: str) -> None:
        """Makes the queue pair a member of a multicast group; pyverbs has nothing for that.

        :param group: IP address
        """
        self.ends[end].qp.attach_mcast(self._group(group), 0)

    def detach(self, end: int, group: str) -> None:
        """Ends the membership."""
        self.ends[end].qp.detach_mcast(self._group(group), 0)

    def aim(self, end: int, group: str) -> None:
        """From now on requests with ``many`` go to that group."""
        it = self.ends[end]
        it.handles[1:] = [self.verbs.addr.AH(self.pd, attr=it.way(gid_text(group)))]

    def _group(self, group: str) -> Any:
        return self.verbs.addr.GID(gid_text(group))

    def count(self, end: int) -> "dict[str, list[int]]":
        """Completions and errors of each operation's counter; empty where the package has no counters."""
        return {name: [counter.read(), counter.read_err()] for name, counter in self.ends[end].counters.items()}

    def stats(self) -> "dict[str, int]":
        """The device's statistics; empty where the package has none."""
        return dict(getattr(self.context, "stats", dict)())

    def state(self, end: int) -> int:
        """The queue pair's state, as the device says (enum ibv_qp_state)."""
        attr, _ = self.ends[end].qp.query(self.verbs.flag("QP_STATE"))
        return int(attr.qp_state)


def main() -> None:
    """Serves orders until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not get between the answers
    peer = Peer(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"ok": getattr(peer, order.pop("do"))(**order)}
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            answer = {"error": text, "errno": getattr(error, "error_code", None)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    for name in list(peer.ends):
        peer.close(name)
    peer.pd.close()
    peer.context.close()


if __name__ == "__main__":
    main()
