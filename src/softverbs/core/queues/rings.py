# SPDX-License-Identifier: MIT
"""Rings of fixed slots in plain memory: send queue, receive queue, completion queue.

The layout is data: a C driver in another process fills the same bytes. Integers are in host order, at these
offsets (bytes). A scatter/gather element is ``addr`` (8), ``length`` (4), ``lkey`` (4), as ``struct ibv_sge``.
"""

import errno

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.memory.raw import Block, copy, load_acquire64, store64, store_release64

#: Bytes before the slots in memory that is shared with a program: the indices, each in a cache line of its own.
RING_HEADER = 4096
# 64 bits each but for the state; they only grow (a CQ's tail goes back where entries are purged).
CQ_TAIL = 0  # device: entries written
CQ_HEAD = 64  # program: entries taken
# Program: what it has armed (ibv_req_notify_cq(3)), a word for any completion and one for solicited ones. Low 32 bits:
# of the tail that it saw; above them a number, another with each arming. 0: never.
CQ_ARM_ANY = 128
CQ_ARM_SOLICITED = 136
QP_SQ_TAIL = 0  # program: work requests written
QP_SQ_TAKEN = 64  # device: of them copied
QP_SQ_HEAD = 128  # device: of them retired
QP_RQ_TAIL = 192  # the same of the receive queue, and of an SRQ
QP_RQ_TAKEN = 256
QP_RQ_HEAD = 320
QP_STATE = 384  # device: enum ibv_qp_state, 32 bits

# A scatter/gather element.
SGE_SIZE = 16
SGE_LENGTH = 8
SGE_LKEY = 12

# Send queue slot. What follows SQ_PRIVATE belongs to the device.
SQ_WR_ID = 0
SQ_OPCODE = 8
SQ_FLAGS = 9
SQ_NUM_SGE = 10
SQ_IMM = 12  # immediate data, or the rkey to invalidate, or a new memory window key
SQ_REMOTE_ADDRESS = 16  # bind: start of the window
SQ_RKEY = 24  # bind: the window's key before; UD: the Q_Key
SQ_LENGTH = 28  # payload, bytes
SQ_COMPARE_ADD = 32  # bind: length of the window; flush: bytes to flush
SQ_SWAP = 40  # bind: lkey of the memory region, access rights << 32; flush: placement type, selectivity level << 4
SQ_FIRST_PSN = 48
SQ_LAST_PSN = 52
SQ_RESPONSES = 56  # responses of a READ that have arrived
SQ_STATE = 60
SQ_DESTINATION = 64  # UD: number of the peer's QP; XRC: number of the peer's SRQ
SQ_AH = 68  # UD: handle of the address handle
SQ_SGES = 80  # or the inline payload

# SQ_OPCODE of a work request that is wrong: came through shared memory. The opcode it had is in SQ_RESPONSES.
SQ_REFUSED = 12

# SQ_STATE
WQE_POSTED = 0
WQE_STARTED = 1

# Receive queue slot.
RQ_WR_ID = 0
RQ_NUM_SGE = 8
RQ_LENGTH = 12
RQ_SGES = 16

# Completion queue slot.
CQ_WR_ID = 0
CQ_STATUS = 8
CQ_OPCODE = 12
CQ_VENDOR_ERR = 16
CQ_BYTE_LEN = 20
CQ_IMM = 24
CQ_QP_NUM = 28
CQ_SRC_QP = 32
CQ_FLAGS = 36
CQ_PKEY_INDEX = 40
CQ_SLID = 42
CQ_SL = 44
CQ_DLID_PATH_BITS = 45
CQ_TIMESTAMP = 48
# What polling the entry frees: the number of a send queue (``Host.enter_ring``) << 32, and the low 32 bits of the index
# behind the work request. 0: nothing.
CQ_FREES = 56
CQ_SLOT = 64

_LOW_32 = 0xFFFFFFFF

#: The same for Python: the names above are C variables where the core is compiled.
VALUES = {
    "RING_HEADER": RING_HEADER, "CQ_TAIL": CQ_TAIL, "CQ_HEAD": CQ_HEAD,
    "CQ_ARM_ANY": CQ_ARM_ANY, "CQ_ARM_SOLICITED": CQ_ARM_SOLICITED, "QP_SQ_TAIL": QP_SQ_TAIL,
    "QP_SQ_TAKEN": QP_SQ_TAKEN, "QP_SQ_HEAD": QP_SQ_HEAD, "QP_RQ_TAIL": QP_RQ_TAIL, "QP_RQ_TAKEN": QP_RQ_TAKEN,
    "QP_RQ_HEAD": QP_RQ_HEAD, "QP_STATE": QP_STATE, "SGE_SIZE": SGE_SIZE, "SGE_LENGTH": SGE_LENGTH,
    "SGE_LKEY": SGE_LKEY, "SQ_WR_ID": SQ_WR_ID, "SQ_OPCODE": SQ_OPCODE, "SQ_FLAGS": SQ_FLAGS,
    "SQ_NUM_SGE": SQ_NUM_SGE, "SQ_IMM": SQ_IMM, "SQ_REMOTE_ADDRESS": SQ_REMOTE_ADDRESS, "SQ_RKEY": SQ_RKEY,
    "SQ_LENGTH": SQ_LENGTH, "SQ_COMPARE_ADD": SQ_COMPARE_ADD, "SQ_SWAP": SQ_SWAP, "SQ_FIRST_PSN": SQ_FIRST_PSN,
    "SQ_LAST_PSN": SQ_LAST_PSN, "SQ_RESPONSES": SQ_RESPONSES, "SQ_STATE": SQ_STATE, "SQ_DESTINATION": SQ_DESTINATION,
    "SQ_AH": SQ_AH, "SQ_SGES": SQ_SGES, "RQ_WR_ID": RQ_WR_ID, "RQ_NUM_SGE": RQ_NUM_SGE, "RQ_LENGTH": RQ_LENGTH,
    "RQ_SGES": RQ_SGES, "CQ_WR_ID": CQ_WR_ID, "CQ_STATUS": CQ_STATUS, "CQ_OPCODE": CQ_OPCODE,
    "CQ_VENDOR_ERR": CQ_VENDOR_ERR, "CQ_BYTE_LEN": CQ_BYTE_LEN, "CQ_IMM": CQ_IMM, "CQ_QP_NUM": CQ_QP_NUM,
    "CQ_SRC_QP": CQ_SRC_QP, "CQ_FLAGS": CQ_FLAGS, "CQ_PKEY_INDEX": CQ_PKEY_INDEX, "CQ_SLID": CQ_SLID, "CQ_SL": CQ_SL,
    "CQ_DLID_PATH_BITS": CQ_DLID_PATH_BITS, "CQ_TIMESTAMP": CQ_TIMESTAMP, "CQ_FREES": CQ_FREES,
    "CQ_SLOT": CQ_SLOT,
}  # fmt: skip


def check_mapping(address: int) -> None:
    """Refuses what cannot be the address of memory that is shared with a program, with EINVAL."""
    if address == 0 or address & 63:
        raise PyverbsRDMAError(f"shared memory at {address:#x}: it must be aligned to 64 bytes", errno.EINVAL)


class Ring:
    """``size`` slots of ``stride`` bytes, at least 1. ``head`` and ``tail`` only grow; between them slots are taken.

    Where a slot stays in use until a completion is polled, the ring has a ``number``, and the slots from ``polled`` on
    are in use.
    """

    def __init__(self, size: int, stride: int) -> None:
        slots = 1
        while slots < size:
            slots *= 2
        self.mask = slots - 1  # a power of two, since a division costs more than the memory
        self.block = Block(slots * stride)
        self.address = self.block.address
        self.size = size
        self.stride = stride
        self.head = 0
        self.tail = 0
        self.number = 0
        self.polled = 0

    def slot(self, index: int) -> int:
        """Address of the slot of ``index``, which grows like ``head`` and ``tail``."""
        return self.address + (index & self.mask) * self.stride

    def count(self) -> int:
        """How many slots are taken."""
        return self.tail - self.head

    def full(self) -> bool:
        """Whether every slot is taken."""
        return self.tail - self.head >= self.size

    def in_use(self) -> int:
        """How many slots cannot be written to yet."""
        return self.tail - (self.polled if self.number else self.head)

    def frees(self) -> int:
        """What polling the completion of the work request that was retired last frees (``CQ_FREES``)."""
        return self.number << 32 | (self.head & _LOW_32) if self.number else 0

    def free_to(self, index: int) -> None:
        """A completion was polled.

        :param index: low 32 bits of the index behind its work request. One that lies before ``polled`` is of work
            requests that a reset has dropped since.
        """
        fresh = (index - self.polled) & _LOW_32
        if fresh <= self.head - self.polled:
            self.polled += fresh

    def in_memory(self, slots: int, index: int) -> int:
        """As ``slot``, of slots at another address: those in memory that is shared with a program."""
        return slots + (index & self.mask) * self.stride

    def relocate(self, address: int) -> None:
        """Moves the slots to memory of the application, which must be as large as ``block`` and stay until ``restore``.

        :param address: of the memory, a multiple of 64
        """
        copy(address, self.address, self.block.size)
        self.address = address

    def restore(self) -> None:
        """Moves the slots back into ``block``: the application's memory is not touched any more."""
        if self.address != self.block.address:
            copy(self.block.address, self.address, self.block.size)
            self.address = self.block.address


class WorkQueue:
    """A ring of work requests, which a program in another process may fill, through memory that it shares."""

    def __init__(self, max_wr: int, stride: int, header: int) -> None:
        """
        :param max_wr: most work requests
        :param stride: bytes of a slot
        :param header: ``QP_SQ_TAIL`` or ``QP_RQ_TAIL``: where the shared memory has this queue's indices
        """
        self.max_wr = max_wr
        # The smallest queue has one slot: modulo zero has no meaning.
        self.ring = Ring(max(max_wr, 1), stride)
        self.header = header
        #: The memory that is shared with the program which posts, and its slots there; 0: none.
        self.mapping = 0
        self.slots = 0
        self.published = 0

    def map(self, mapping: int, slots: int) -> None:
        """From now on work requests are taken from memory that is shared with a program.

        :param mapping: address of its header, or 0: no longer
        :param slots: address of its slots
        """
        self.mapping = mapping
        self.slots = slots
        if mapping != 0:
            store64(mapping + self.header, self.ring.tail)
            self.published = self.ring.head + 1
            self.publish()

    def publish(self) -> None:
        """Tells the program what has been used: it may use the slots again."""
        if self.published != self.ring.head:
            self.published = self.ring.head
            self.publish_taken()
            store_release64(self.mapping + self.header + (QP_SQ_HEAD - QP_SQ_TAIL), self.ring.head)

    def publish_taken(self) -> None:
        """Tells the program what has been taken."""
        store_release64(self.mapping + self.header + (QP_SQ_TAKEN - QP_SQ_TAIL), self.ring.tail)

    def waiting(self) -> int:
        """How many work requests the program has put there that are not taken yet; -1 where it cannot be so many."""
        ring = self.ring
        tail = load_acquire64(self.mapping + self.header)
        if tail < ring.tail or tail - ring.head > self.max_wr:
            return -1
        return tail - ring.tail
