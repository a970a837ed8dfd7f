# SPDX-License-Identifier: MIT
"""A client of the server in Python: what the C driver does, plainly. The protocol's tables are the server's own."""

import ctypes
import mmap
import os
import socket
import time
from array import array
from typing import Any

from tests import words
from tests.guard import Guard

from softverbs.core.memory.raw import barrier
from softverbs.core.queues.rings import VALUES
from softverbs.server import abi
from softverbs.server._layout import CONTROL
from softverbs.server.session import CREDENTIALS

INLINE, SIGNALED = 8, 2
RESET, INIT, RTR, RTS, ERR = 0, 1, 2, 3, 6
RC, UC, UD, XRC_SEND, XRC_RECV = 2, 3, 4, 9, 10
SEND, WRITE, READ, FETCH_ADD = 2, 0, 4, 6
TO_INIT = 1 | 1 << 3 | 1 << 4 | 1 << 5
TO_RTR = 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15
TO_RTS = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13
EVERYTHING_ALLOWED = 1 | 2 | 4 | 8
WAIT_S = 20


#: What is to be closed at the end of a test.
OPENED: "list[Connection]" = []


def close_all() -> None:
    """Closes every connection that this process has made."""
    while OPENED:
        OPENED.pop().close()


class Refused(Exception):
    """The device has refused a command."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"errno {code}: {reason}")
        self.code = code
        self.reason = reason


class Gone(Exception):
    """The device has ended the connection."""


class Mapped:
    """Shared memory, by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        self.map = mmap.mmap(descriptor, size)
        os.close(descriptor)

    def load(self, offset: int, code: str = "Q") -> int:
        return words.load(self.map, offset, code)

    def store(self, offset: int, value: int, code: str = "Q") -> None:
        words.store(self.map, offset, value, code)


class Connection:
    """The socket: commands and their responses."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(path)
        self.sequence = 0
        self.descriptors: list[int] = []
        self.sockets = [self.socket]
        self.bells: list[int] = []
        self.control: Mapped | None = None
        OPENED.append(self)

    def call(self, name: str, passing: list[int] | None = None, **values: Any) -> dict[str, Any]:
        self.sequence += 1
        command = abi.COMMANDS[name]
        self.send(abi.pack_request(command, self.sequence, values), passing)
        data = self.receive()
        head = abi.RESPONSE.unpack(data)
        assert head["size"] == len(data) and head["sequence"] == self.sequence
        if head["error"]:
            assert not self.descriptors
            raise Refused(head["error"], data[abi.RESPONSE.size :].decode())
        assert len(data) == abi.RESPONSE.size + command.response.size
        return command.response.unpack(data, abi.RESPONSE.size)

    def send(self, data: bytes, passing: list[int] | None = None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", passing))] if passing else []
        try:
            self.socket.sendmsg([data], rights)
        except OSError as error:
            raise Gone from error

    def receive(self) -> bytes:
        try:
            data, ancillary, _, _ = self.socket.recvmsg(abi.MESSAGE_SIZE, socket.CMSG_SPACE(16))
        except OSError as error:
            raise Gone from error
        if not data:
            raise Gone
        self.descriptors = []
        for _, _, rights in ancillary:
            numbers = array("i")
            numbers.frombytes(rights)
            self.descriptors += numbers
        return data

    def server(self) -> int:
        """The process that serves the socket."""
        credentials = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        return int(CREDENTIALS.unpack(credentials)[0])

    def close(self) -> None:
        for one in self.sockets:
            one.close()
        while self.bells:
            os.close(self.bells.pop())
        if self.control is not None:
            self.control.map.close()


class Client(Connection):
    """A connection after HELLO."""

    def __init__(self, path: str, purpose: int = 0, passing: list[int] | None = None) -> None:
        """passing: descriptors that go with HELLO, and are closed then."""
        super().__init__(path)
        self.guard = Guard()
        guarded = {"guard": self.guard.address, "secret": self.guard.secret}
        self.hello = self.call("HELLO", abi=abi.VERSION, purpose=purpose, passing=passing, **guarded)
        for descriptor in passing or []:
            os.close(descriptor)
        if purpose == 0:
            control, self.doorbell, events = self.descriptors
            self.control = Mapped(control)
            self.events = socket.socket(fileno=events)
            self.events.settimeout(WAIT_S)
            self.sockets.append(self.events)
            self.bells.append(self.doorbell)

    def close(self) -> None:
        super().close()
        self.guard.free()

    def ring(self) -> None:
        """Wakes the device if it sleeps, behind a full barrier."""
        assert self.control is not None
        barrier()
        if not self.control.load(0, "I"):
            os.eventfd_write(self.doorbell, 1)

    def mark(self, number: int) -> None:
        """Says which queue something was posted to (core/queues/marks.py)."""
        assert self.control is not None
        line, marks = CONTROL["MARK_LINE"], CONTROL["CONTROL_MARKS"]
        self.control.map[marks + number] = 1
        while number >= line:
            number = number // line - 1
            self.control.map[marks + number] = 1

    def gid(self) -> bytes:
        return bytes(self.call("QUERY_GID", port_num=1, index=0)["gid"])

    def pd(self) -> int:
        return int(self.call("ALLOC_PD")["handle"])

    def next_event(self) -> dict[str, Any]:
        return abi.RECORDS["async_record"].unpack(self.events.recv(16))


class Channel:
    def __init__(self, client: Client) -> None:
        self.handle = client.call("CREATE_CHANNEL")["handle"]
        self.socket = socket.socket(fileno=client.descriptors[0])
        self.socket.settimeout(WAIT_S)
        client.sockets.append(self.socket)

    def next(self) -> int:
        return int(abi.RECORDS["channel_record"].unpack(self.socket.recv(8))["cq"])


class Cq:
    def __init__(self, client: Client, cqe: int = 64, channel: int = 0, flags: int = 0) -> None:
        self.client = client
        made = client.call("CREATE_CQ", cqe=cqe, channel=channel, flags=flags)
        self.handle = made["handle"]
        self.armings = 0
        self.place(made)

    def place(self, made: dict[str, Any]) -> None:
        self.cqe, self.slots, self.stride, self.offset = made["cqe"], made["slots"], made["stride"], made["offset"]
        self.memory = Mapped(self.client.descriptors[0])
        assert len(self.memory.map) == made["memory_size"]

    def resize(self, cqe: int) -> None:
        self.place(self.client.call("RESIZE_CQ", handle=self.handle, cqe=cqe))

    def arm(self, solicited: bool = False) -> None:
        self.armings += 1
        offset = VALUES["CQ_ARM_SOLICITED" if solicited else "CQ_ARM_ANY"]
        self.memory.store(offset, self.armings << 32 | self.memory.load(VALUES["CQ_TAIL"]) & 0xFFFFFFFF)

    def poll(self) -> "dict[str, int] | None":
        head, tail = self.memory.load(VALUES["CQ_HEAD"]), self.memory.load(VALUES["CQ_TAIL"])
        if head == tail:
            return None
        at = self.offset + (head & self.slots - 1) * self.stride
        fields = {
            "wr_id": "Q", "status": "I", "opcode": "I", "vendor_err": "I", "byte_len": "I", "imm": "I",
            "qp_num": "I", "src_qp": "I", "flags": "I",
        }  # fmt: skip
        found = {name: self.memory.load(at + VALUES["CQ_" + name.upper()], code) for name, code in fields.items()}
        found["index"] = head
        self.memory.store(VALUES["CQ_HEAD"], head + 1)
        return found

    def wait(self, seconds: float = WAIT_S) -> dict[str, int]:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.poll()
            if found is not None:
                return found
            os.sched_yield()
        raise AssertionError("no completion")


class Buffer:
    """Registered memory of this process."""

    def __init__(self, client: Client, pd: int, size: int, access: int = EVERYTHING_ALLOWED) -> None:
        self.data = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.data)
        self.size = size
        values = {"address": self.address, "iova": self.address, "length": size, "access": access}
        made = client.call("REG_MR", pd=pd, **values)
        self.handle, self.lkey, self.rkey = made["handle"], made["lkey"], made["rkey"]

    def element(self, offset: int = 0, length: int | None = None) -> tuple[int, int, int]:
        return self.address + offset, self.size - offset if length is None else length, self.lkey


def _put_elements(memory: Mapped, at: int, elements: list[tuple[int, int, int]]) -> None:
    words.store_elements(memory.map, at, elements)


class Receives:
    """A receive queue: of a QP, or an SRQ."""

    client: Client
    memory: Mapped
    rings: dict[str, int]

    def post_recv(self, wr_id: int, *elements: tuple[int, int, int]) -> None:
        rings, memory = self.rings, self.memory
        tail = memory.load(VALUES["QP_RQ_TAIL"])
        at = rings["rq_offset"] + (tail & rings["rq_slots"] - 1) * rings["rq_stride"]
        memory.store(at + VALUES["RQ_WR_ID"], wr_id)
        memory.store(at + VALUES["RQ_NUM_SGE"], len(elements), "I")
        _put_elements(memory, at + VALUES["RQ_SGES"], list(elements))
        memory.store(VALUES["QP_RQ_TAIL"], tail + 1)
        self.client.mark(rings["mark"])
        self.client.ring()


class Srq(Receives):
    def __init__(self, client: Client, pd: int, max_wr: int = 16, **values: Any) -> None:
        self.client = client
        made = client.call("CREATE_SRQ", pd=pd, max_wr=max_wr, max_sge=2, **values)
        self.handle, self.number = made["handle"], made["srq_num"]
        self.place(made)

    def place(self, made: dict[str, Any]) -> None:
        self.rings = made["rings"]
        self.memory = Mapped(self.client.descriptors[0])

    def resize(self, max_wr: int) -> None:
        self.place(self.client.call("MODIFY_SRQ", handle=self.handle, attr_mask=1, max_wr=max_wr))


class Qp(Receives):
    def __init__(self, client: Client, pd: int, send_cq: Cq | None, recv_cq: Cq | None, **values: Any) -> None:
        self.client = client
        cap = values.pop("cap", None) or {
            "max_send_wr": 16, "max_recv_wr": 16, "max_send_sge": 2, "max_recv_sge": 2, "max_inline_data": 64,
        }  # fmt: skip
        made = client.call(
            "CREATE_QP",
            pd=pd,
            send_cq=send_cq.handle if send_cq else 0,
            recv_cq=recv_cq.handle if recv_cq else 0,
            cap=cap,
            **{"qp_type": RC, **values},
        )
        self.handle, self.number, self.rings = made["handle"], made["qp_num"], made["rings"]
        self.memory = Mapped(client.descriptors[0])

    def modify(self, mask: int, **attr: Any) -> None:
        self.client.call("MODIFY_QP", handle=self.handle, attr_mask=mask, attr=attr)

    def query(self) -> dict[str, Any]:
        return dict(self.client.call("QUERY_QP", handle=self.handle, attr_mask=0)["attr"])

    def to_init(self) -> None:
        self.modify(TO_INIT, qp_state=INIT, port_num=1, qp_access_flags=15)

    def connect(self, gid: bytes, number: int, timeout: int = 14, retry: int = 7) -> None:
        """From INIT to RTS."""
        where = {"dgid": gid, "is_global": 1, "port_num": 1, "hop_limit": 1}
        self.modify(
            TO_RTR, qp_state=RTR, ah_attr=where, path_mtu=3, dest_qp_num=number, rq_psn=7, max_dest_rd_atomic=4,
            min_rnr_timer=1,
        )  # fmt: skip
        self.modify(TO_RTS, qp_state=RTS, timeout=timeout, retry_cnt=retry, rnr_retry=7, sq_psn=7, max_rd_atomic=4)

    def state(self) -> int:
        return self.memory.load(VALUES["QP_STATE"], "I")

    def post_send(
        self, wr_id: int, *elements: tuple[int, int, int], opcode: int = SEND, flags: int = SIGNALED, remote: int = 0,
        rkey: int = 0, inline: bytes | None = None, compare_add: int = 0, swap: int = 0, destination: int = 0,
        ah: int = 0, imm: int = 0,
    ) -> None:  # fmt: skip
        rings, memory = self.rings, self.memory
        tail = memory.load(VALUES["QP_SQ_TAIL"])
        at = rings["sq_offset"] + (tail & rings["sq_slots"] - 1) * rings["sq_stride"]
        memory.store(at + VALUES["SQ_WR_ID"], wr_id)
        memory.store(at + VALUES["SQ_OPCODE"], opcode, "B")
        memory.store(at + VALUES["SQ_FLAGS"], flags | (INLINE if inline is not None else 0), "B")
        memory.store(at + VALUES["SQ_NUM_SGE"], len(elements), "H")
        memory.store(at + VALUES["SQ_IMM"], imm, "I")
        memory.store(at + VALUES["SQ_REMOTE_ADDRESS"], remote)
        memory.store(at + VALUES["SQ_RKEY"], rkey, "I")
        memory.store(at + VALUES["SQ_COMPARE_ADD"], compare_add)
        memory.store(at + VALUES["SQ_SWAP"], swap)
        memory.store(at + VALUES["SQ_DESTINATION"], destination, "I")
        memory.store(at + VALUES["SQ_AH"], ah, "I")
        if inline is not None:
            memory.store(at + VALUES["SQ_LENGTH"], len(inline), "I")
            start = at + VALUES["SQ_SGES"]
            memory.map[start : start + len(inline)] = inline
        else:
            _put_elements(memory, at + VALUES["SQ_SGES"], list(elements))
        memory.store(VALUES["QP_SQ_TAIL"], tail + 1)
        self.client.mark(rings["mark"])
        self.client.ring()


class Side:
    """A client with what a connection needs."""

    def __init__(
        self, path: str, size: int = 4096, channel: bool = False, client: Client | None = None, **values: Any
    ) -> None:
        """client: a connection; by default a new one."""
        self.client = client or Client(path)
        self.pd = self.client.pd()
        self.channel = Channel(self.client) if channel else None
        self.cq = Cq(self.client, channel=self.channel.handle if self.channel else 0)
        self.buffer = Buffer(self.client, self.pd, size)
        self.qp = Qp(self.client, self.pd, self.cq, self.cq, **values)
        self.qp.to_init()

    def connect(self, other: "Side", **values: Any) -> None:
        self.qp.connect(other.client.gid(), other.qp.number, **values)


def pair(path: str, **values: Any) -> tuple[Side, Side]:
    """Two connections to one device, with an RC connection between them."""
    left, right = Side(path, **values), Side(path, **values)
    left.connect(right)
    right.connect(left)
    return left, right
