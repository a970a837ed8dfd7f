# SPDX-License-Identifier: MIT
"""Packet sequence numbers: 24-bit serial arithmetic (IBA 9.7.2).

A PSN follows 0xFFFFFF with 0, so "before" and "after" mean the shorter way round. Nothing else in the core may
compare PSNs with ``<`` or subtract them: the compiled and the uncompiled build would answer differently.
"""

MASK = 0xFFFFFF


def add(psn: int, n: int) -> int:
    """The PSN ``n`` places after ``psn``; before it where ``n`` is negative."""
    return psn + n & MASK


def next(psn: int) -> int:  # noqa: A001 - always used as psn.next
    """The PSN after ``psn``."""
    return psn + 1 & MASK


def diff(a: int, b: int) -> int:
    """How many places ``a`` is after ``b``, in [-2^23, 2^23): negative if it is before."""
    distance = a - b & MASK
    return (distance ^ 0x800000) - 0x800000
