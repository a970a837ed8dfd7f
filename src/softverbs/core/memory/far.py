# SPDX-License-Identifier: MIT
"""Memory of other processes on the data path of one port: fetched ahead, and placed together.

Every access is a system call, so long messages, which move packet by packet, are not moved packet by packet there:

* What leaves is fetched with the bytes behind it, which the next packets will want (``fetch``). That is forgotten when
  a queue pair's turn to send is over (``forget``).
* What arrives side by side is noted (``put``) and placed by one call (``land``). The bytes have to stay where they are
  until then.

Owner: the port, which lands before it does anything but take the next packet of the same message, so before the link
takes its memory back, too. Queue pairs land before they complete a message. So whatever depends on bytes finds them
placed. Where they cannot be, each packet's are tried alone, and ``missed`` tells which one it was: the queue pair then
refuses that one, as it would have, had the bytes been placed as they came.
"""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.memory.raw import Block, copy, load64, store64
    from softverbs.core.memory.spaces import explain, fetch, place, place_pieces

#: Bytes that are fetched together, at most.
AHEAD = 65536
#: Pieces that are placed together, at most.
MOST = 128
_PAGE = 4096
# struct iovec (readv(2)): an address and a length.
_IOV_SIZE = 16
_IOV_LENGTH = 8


class Far:
    """What was fetched, and what is to be placed."""

    def __init__(self) -> None:
        self.ahead: Block | None = None
        #: Where the fetched bytes are here, where they are from, and how many.
        self.ahead_here = 0
        self.ahead_at = 0
        self.ahead_length = 0
        #: The pieces to be placed, behind one that is the guard's (``memory.place_process``).
        self.pieces = Block((1 + MOST) * _IOV_SIZE)
        self.tags = [0] * 128  # MOST: C wants a literal
        #: What is to be placed: how many pieces, at which far address the first, how many bytes.
        self.count = 0
        self.at = 0
        self.length = 0
        #: The PSN of the packet whose bytes are put now; and of the one whose bytes could not be placed.
        self.tag = 0
        self.missed = 0
        #: Why the last access was refused.
        self.fault = ""

    # -- out of far memory

    def forget(self) -> None:
        """What was fetched ahead may have changed."""
        self.ahead_length = 0

    def fetch(self, destination: int, source: int, length: int, rest: int) -> bool:
        """Copies ``length`` bytes from the far address ``source``; False: ``fault``.

        :param rest: how many bytes from ``source`` on the next packets may want, these included
        """
        if source >= self.ahead_at and source - self.ahead_at + length <= self.ahead_length:
            copy(destination, self.ahead_here + (source - self.ahead_at), length)
            return True
        if rest > length and self._fetch_ahead(source, rest):
            return self.fetch(destination, source, length, 0)
        if fetch(destination, source, length):
            return True
        self.fault = explain()
        return False

    def _fetch_ahead(self, source: int, rest: int) -> bool:
        """Fetches more than is wanted now; False where that is not all there."""
        if self.ahead is None:
            # From the start of a page: the kernel's copy is several times slower to 16 bytes past one.
            self.ahead = Block(AHEAD + _PAGE)
            self.ahead_here = self.ahead.address + _PAGE - 1 & -_PAGE
        self.ahead_at = source
        self.ahead_length = 0
        length = min(rest, AHEAD)
        if not fetch(self.ahead_here, source, length):
            return False
        self.ahead_length = length
        return True

    # -- into far memory

    def begin(self, psn: int) -> None:
        """The bytes that are put from now on came with the packet ``psn``."""
        self.tag = psn
        self.missed = psn

    def put(self, destination: int, source: int, length: int) -> bool:
        """Notes that ``length`` bytes belong at the far address ``destination``; False: others cannot be placed."""
        if self.count > 0 and (destination != self.at + self.length or self.count == MOST):
            if not self.land():
                return False
        if self.count == 0:
            self.at = destination
            self.length = 0
        piece = self.pieces.address + (1 + self.count) * _IOV_SIZE
        store64(piece, source)
        store64(piece + _IOV_LENGTH, length)
        self.tags[self.count] = self.tag
        self.count += 1
        self.length += length
        return True

    def land(self) -> bool:
        """Places what was put; False: ``fault``, and ``missed``. Either way nothing is left to be placed."""
        count = self.count
        self.count = 0
        if count == 0 or place_pieces(self.at, self.pieces.address, count, self.length):
            return True
        return self._land_each(count)

    def _land_each(self, count: int) -> bool:
        """Places pieces one by one, until one cannot be."""
        at = self.at
        for index in range(count):
            piece = self.pieces.address + (1 + index) * _IOV_SIZE
            length = load64(piece + _IOV_LENGTH)
            if not place(at, load64(piece), length):
                self.missed = self.tags[index]
                self.fault = explain()
                return False
            at += length
        return True  # it is there now
