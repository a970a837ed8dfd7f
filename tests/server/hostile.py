# SPDX-License-Identifier: MIT
"""What a hostile program sends: commands at random, with handles that exist or not, and rings full of nonsense."""

import ctypes
import os
import random
import struct
from contextlib import suppress
from typing import Any

from tests import words
from tests.server.client import (
    UC,
    UD,
    XRC_RECV,
    XRC_SEND,
    Buffer,
    Client,
    Connection,
    Cq,
    Gone,
    Mapped,
    Qp,
    Refused,
    Srq,
)

from softverbs.core.queues.rings import VALUES
from softverbs.server import abi
from softverbs.server._layout import CONTROL

_EDGES = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**63 - 1, 2**63, 2**64 - 1)
_WIDTHS = {"u8": 8, "u16": 16, "u32": 32, "u64": 64}
#: Which kind of object a command is about, without its first word, and what a member refers to.
_KIND_OF_COMMAND = {
    "PD": "PD", "MR": "MR", "DM": "DM", "DM_MR": "MR", "MW": "MW", "CHANNEL": "CHANNEL", "CQ": "CQ",
    "EVENTS": "CQ", "REASON": "CQ", "QP": "QP", "AH": "AH", "SRQ": "SRQ", "XRCD": "XRCD", "COMP_CNTR": "COUNTER",
    "ERR_COMP_CNTR": "COUNTER",
}  # fmt: skip
_KIND_OF_MEMBER = {
    "pd": "PD", "dm": "DM", "channel": "CHANNEL", "send_cq": "CQ", "recv_cq": "CQ", "cq": "CQ", "srq": "SRQ",
    "xrcd": "XRCD", "qp": "QP", "counter": "COUNTER",
}  # fmt: skip
#: The same of the commands of the connection manager.
_KIND_OF_CM_MEMBER = {"id": "CM ID", "channel": "CM CHANNEL", "handle": "CM CHANNEL"}
#: IP addresses that are named: nothing leaves this host.
_ADDRESSES = (bytes([127, 0, 0, 1]), bytes([127, 9, 9, 9]), bytes(4), bytes(15) + b"\1", bytes(16))
#: Values that are often right.
_LIKELY = {
    "port_num": (1,), "comp_mask": (0,), "flags": (0, 1, 2), "access": (0, 1, 7, 15, 31, 65), "type": (0, 1, 2),
    "comp_vector": (0,), "qp_type": (2, 3, 4, 9, 10), "srq_type": (0, 1), "abi": (abi.VERSION,), "purpose": (0, 1),
    "qp_state": (0, 1, 2, 3, 6), "attr_mask": (1, 1, 1 | 8 | 16 | 32, 1 | 16 | 32 | 64), "pkey_index": (0,),
    "qp_access_flags": (0, 15), "index": (0,), "srq_limit": (0, 1), "is_global": (1,), "sgid_index": (0,),
    "log_align_req": (0, 3), "has_fd": (0,), "max_recv_sge": (0, 1, 32), "max_send_sge": (1, 32),
    "ps": (0x106, 0x111, 2), "port": (0, 7, 7, 8), "level": (0,), "optname": (0, 1, 2, 3), "send_only": (1,),
    "max_inline_data": (0, 64), "op_mask": (1, 63), "dgid": (bytes(10) + b"\xff\xff\x7f\0\0\1",),
    "external": (0, 1, 2, 3),
}  # fmt: skip
_MEMORY = ctypes.create_string_buffer(8192)
_SCALARS = ("SQ_TAIL", "SQ_TAKEN", "SQ_HEAD", "RQ_TAIL", "RQ_TAKEN", "RQ_HEAD", "STATE")


class Hostile:
    """A hostile program, from a seed."""

    def __init__(self, path: str, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.connections: list[Connection] = []
        self.maps: list[Mapped] = []
        self.handles = 8
        #: Of each connection: the handles that it was given, by kind.
        self.known: dict[Connection, dict[str, list[int]]] = {}
        self.refused = self.accepted = self.ended = 0

    def connection(self) -> Connection:
        """One of a few connections, some of which have said hello."""
        if len(self.connections) < 4:
            if self.random.random() < 0.1:
                made: Connection = Connection(self.path)
            else:
                made = Client(self.path)
            self.connections.append(made)
        return self.random.choice(self.connections)

    def number(self, bits: int) -> int:
        """Any number: a small one, one at an edge, or whatever."""
        choice = self.random.random()
        if choice < 0.5:
            return self.random.randrange(min(self.handles, 1 << bits))
        if choice < 0.8:
            return self.random.choice(_EDGES) & (1 << bits) - 1
        return self.random.getrandbits(bits)

    def handle(self, connection: Connection, command: abi.Command, name: str) -> int | None:
        """A handle for a member that takes one, most often one that exists; None for other members."""
        if command.name.startswith("CM_"):
            kind = _KIND_OF_CM_MEMBER.get(name)
        else:
            of_command = _KIND_OF_COMMAND.get(command.name.split("_", 1)[-1])
            kind = of_command if name == "handle" else _KIND_OF_MEMBER.get(name)
        if kind is None:
            return None
        known = self.known.get(connection, {}).get(kind, [])
        if known and self.random.random() < 0.85:
            return self.random.choice(known[-3:])
        return self.random.choice((0, self.number(32)))

    def value(self, member: abi.Member) -> Any:
        """Something for a member of a structure."""
        if member.type == "cm_address":
            ip = self.random.choice(_ADDRESSES)
            length = len(ip) if self.random.random() < 0.9 else self.number(16)
            return {"ip": ip.ljust(16, b"\0"), "length": length, "port": self.random.choice((0, 7, 8))}
        if member.name in _LIKELY and self.random.random() < 0.7:
            return self.random.choice(_LIKELY[member.name])
        if member.record is not None:
            return {inner.name: self.value(inner) for inner in member.record.members}
        if member.count:
            return self.random.randbytes(member.size)
        if member.type == "i32":
            return self.number(31)
        if member.name.startswith("max_") or member.name == "cqe":
            return self.random.choice((0, 1, 3, 16, 100, self.number(_WIDTHS[member.type])))
        return self.number(_WIDTHS[member.type])

    def command(self, command: abi.Command | None = None) -> None:
        """A command with values at random.

        :param command: which; by default any
        """
        command = command or self.random.choice(list(abi.COMMANDS.values()))
        passing = [0] * self.random.choice((0, 0, 0, 1, 4, 9))
        connection = self.connection()
        values = {}
        for member in command.request.members:
            handle = self.handle(connection, command, member.name)
            values[member.name] = self.value(member) if handle is None else handle
        if isinstance(values.get("address"), int) and self.random.random() < 0.7:
            values["address"] = ctypes.addressof(_MEMORY)
            values["length"] = self.random.choice((1, 8, len(_MEMORY)))
        for name in ("value_address", "error_address"):
            if name in values and self.random.random() < 0.7:
                values[name] = ctypes.addressof(_MEMORY) + self.random.choice((0, 8, 4096, 1))
        try:
            answer = connection.call(command.name, passing, **values)
            self.accepted += 1
            self.note(connection, command, answer)
            self.handles = min(self.handles + 1, 64)
            for descriptor in connection.descriptors:
                self.take(descriptor)
        except Refused:
            self.refused += 1
        except (Gone, AssertionError):
            self.forget(connection)

    def note(self, connection: Connection, command: abi.Command, answer: dict[str, Any]) -> None:
        """Remembers the handles that it is given."""
        known = self.known.setdefault(connection, {})
        kind = _KIND_OF_COMMAND.get(command.name.split("_", 1)[-1])
        if command.name.startswith("CM_"):
            if answer.get("id"):
                known.setdefault("CM ID", []).append(answer["id"])
            kind = "CM CHANNEL"
        if kind and "handle" in answer:
            known.setdefault(kind, []).append(answer["handle"])

    def take(self, descriptor: int) -> None:
        """Maps what it gets, if that is memory."""
        try:
            if os.fstat(descriptor).st_size:
                self.maps.append(Mapped(descriptor))
                return
        except (OSError, ValueError):
            pass
        os.close(descriptor)

    def forget(self, connection: Connection) -> None:
        """A connection that the device has ended."""
        self.known.pop(connection, None)
        self.ended += 1
        if connection in self.connections:
            self.connections.remove(connection)
        connection.close()

    def nonsense(self) -> None:
        """A message that is no request."""
        connection = self.connection()
        size = self.random.choice((1, 15, 16, 17, 40, 200, 4096, 9000))
        data = bytearray(self.random.randbytes(size))
        if size >= 16 and self.random.random() < 0.8:
            struct.pack_into("=II", data, 0, self.random.choice((size, 16, 2**32 - 1)), self.random.randrange(100))
        try:
            connection.send(bytes(data))
            answer = connection.receive()
            for descriptor in connection.descriptors:
                os.close(descriptor)
            assert abi.RESPONSE.unpack(answer)["size"] == len(answer)
        except Gone:
            self.forget(connection)

    def scribble(self) -> None:
        """Writes into memory that it shares with the device."""
        if not self.maps:
            return
        memory = self.random.choice(self.maps)
        size = len(memory.map)
        for _ in range(self.random.randrange(1, 20)):
            at = self.random.randrange(0, size - 8)
            if self.random.random() < 0.5:
                at = VALUES["QP_" + self.random.choice(_SCALARS)] % size
            memory.store(at, self.number(64))
        self.mark()
        if self.random.random() < 0.3 and size > VALUES["RING_HEADER"]:
            for at in range(VALUES["RING_HEADER"], min(size, 16384), 64):
                memory.map[at : at + 64] = self.random.randbytes(64)

    def mark(self) -> None:
        """Marks queues that it has posted to, or not, or that it does not have."""
        for connection in self.connections:
            if connection.control is None:
                continue
            marks = memoryview(connection.control.map)[CONTROL["CONTROL_MARKS"] :]
            for _ in range(self.random.randrange(20)):
                most = self.random.choice((8, 64, 256, len(marks)))
                marks[self.random.randrange(most)] = self.random.choice((1, 255))
            if self.random.random() < 0.1:
                marks[:] = self.random.randbytes(len(marks))
            marks.release()

    def vanish(self) -> None:
        """Closes a connection."""
        self.forget(self.connection())

    def connect(self, steps: int) -> None:
        """Identifiers of the connection manager: at random, and now and then in an order that makes sense."""
        commands = [command for command in abi.COMMANDS.values() if command.name.startswith("CM_")]
        for _ in range(steps):
            self.command(self.random.choice(commands))
            if self.random.random() < 0.1:
                try:
                    self.visit()
                except Refused:
                    self.refused += 1
                except Gone:
                    self.ended += 1

    def visit(self) -> None:
        """One listens, one connects, and both leave in the middle of it, or go on at random."""
        connection = self.connection()
        if not isinstance(connection, Client):
            return
        space = self.random.choice((0x106, 0x111))
        here = {"ip": connection.gid()[12:].ljust(16, b"\0"), "length": 4, "port": self.random.choice((7, 8))}
        ids = []
        for _ in range(2):
            channel = connection.call("CM_CREATE_CHANNEL")["handle"]
            os.close(connection.descriptors[0])
            ids.append(connection.call("CM_CREATE_ID", channel=channel, ps=space, qp_type=4 if space == 0x111 else 2))
            known = self.known.setdefault(connection, {})
            known.setdefault("CM ID", []).append(ids[-1]["id"])
            known.setdefault("CM CHANNEL", []).append(channel)
        listener, asker = (one["id"] for one in ids)
        number = 0
        if space == 0x106:
            cq = Cq(connection)
            number = Qp(connection, connection.pd(), cq, cq).number
        with suppress(Refused):
            connection.call("CM_BIND", id=listener, address=here)
            connection.call("CM_LISTEN", id=listener, backlog=self.number(3))
        connection.call("CM_RESOLVE_ADDR", id=asker, destination=here)
        connection.call("CM_RESOLVE_ROUTE", id=asker)
        connection.call("CM_CONNECT", id=asker, param={"qp_num": number, "private_data_len": self.number(8)})

    def work(self, steps: int) -> None:
        """Does all that at random."""
        for _ in range(steps):
            choice = self.random.random()
            if choice < 0.8:
                self.command()
            elif choice < 0.9:
                self.scribble()
            elif choice < 0.995:
                self.nonsense()
            else:
                self.vanish()

    def slots(self, steps: int) -> None:
        """Connected queue pairs of every type, whose slots hold nonsense with indices that are right."""
        client = Client(self.path)
        pd, cq = client.pd(), Cq(client, cqe=4096, flags=2)
        buffer = Buffer(client, pd, 4096)
        srq = Srq(client, pd)
        qps = self._connected(client, pd, cq, srq)
        ah = client.call("CREATE_AH", pd=pd, attr={"dgid": client.gid(), "is_global": 1, "port_num": 1})["number"]
        try:
            for _ in range(steps):
                owner = self.random.choice([*qps, srq])
                if owner is srq or self.random.random() < 0.3:
                    if owner.rings["rq_slots"]:
                        self._receive(owner, buffer)
                elif owner.rings["sq_slots"]:
                    self._send(owner, buffer, ah)
                client.ring()
                while cq.poll() is not None:
                    pass
                if self.random.random() < 0.01:
                    client.gid()
        except Gone:
            self.ended += 1
        client.close()

    def _connected(self, client: Client, pd: int, cq: Cq, srq: Srq) -> list[Qp]:
        made = [Qp(client, pd, cq, cq), Qp(client, pd, cq, cq, qp_type=UC), Qp(client, pd, cq, cq, srq=srq.handle)]
        made.append(Qp(client, pd, cq, cq, qp_type=UD))
        xrcd = client.call("OPEN_XRCD")["handle"]
        made += [Qp(client, pd, cq, None, qp_type=XRC_SEND), Qp(client, 0, None, None, qp_type=XRC_RECV, xrcd=xrcd)]
        for qp in made[:3]:
            with suppress(Refused):
                qp.to_init()
                qp.connect(client.gid(), qp.number)
        made[1].modify(1, qp_state=0)
        made[1].to_init()
        where = {"dgid": client.gid(), "is_global": 1, "port_num": 1}
        to_rtr = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 20
        made[1].modify(to_rtr, qp_state=2, ah_attr=where, path_mtu=3, dest_qp_num=made[1].number)
        made[1].modify(1 | 1 << 16, qp_state=3)
        made[3].modify(1 | 1 << 4 | 1 << 5 | 1 << 6, qp_state=1, port_num=1, qkey=5)
        made[3].modify(1, qp_state=2)
        made[3].modify(1 | 1 << 16, qp_state=3)
        return made

    def _send(self, qp: Qp, buffer: Buffer, ah: int) -> None:
        memory, rings = qp.memory, qp.rings
        tail = memory.load(VALUES["QP_SQ_TAIL"])
        if tail - memory.load(VALUES["QP_SQ_HEAD"]) >= 16:
            return
        at = rings["sq_offset"] + (tail & rings["sq_slots"] - 1) * rings["sq_stride"]
        memory.map[at : at + rings["sq_stride"]] = self.random.randbytes(rings["sq_stride"])
        if self.random.random() < 0.9:
            memory.store(at + VALUES["SQ_OPCODE"], self.random.randrange(16), "B")
            memory.store(at + VALUES["SQ_FLAGS"], self.random.randrange(16), "B")
            memory.store(at + VALUES["SQ_NUM_SGE"], self.random.choice((0, 1, 2, 3, 65535)), "H")
            memory.store(at + VALUES["SQ_LENGTH"], self.random.choice((0, 64, 65, 2**32 - 1)), "I")
            memory.store(at + VALUES["SQ_RKEY"], self.random.choice((buffer.rkey, 5, 0)), "I")
            memory.store(at + VALUES["SQ_REMOTE_ADDRESS"], buffer.address)
            memory.store(at + VALUES["SQ_DESTINATION"], qp.number, "I")
            memory.store(at + VALUES["SQ_AH"], self.random.choice((ah, 0, 2**32 - 1)), "I")
            length = self.random.choice((0, 8, 4096, 2**32 - 1))
            words.store_elements(memory.map, at + VALUES["SQ_SGES"], [(buffer.address, length, buffer.lkey)])
        memory.store(VALUES["QP_SQ_TAIL"], tail + 1)
        qp.client.mark(rings["mark"])

    def _receive(self, owner: Any, buffer: Buffer) -> None:
        memory = owner.memory
        tail = memory.load(VALUES["QP_RQ_TAIL"])
        if tail - memory.load(VALUES["QP_RQ_HEAD"]) >= 16:
            return
        elements = self.random.choice(((), (buffer.element(),), ((self.number(64), self.number(32), buffer.lkey),)))
        owner.post_recv(tail, *elements)
