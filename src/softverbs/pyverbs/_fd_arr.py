# SPDX-License-Identifier: MIT
"""A list of file descriptors, for those who open devices without the kernel's verbs; this device needs none."""

from collections.abc import Sequence

from softverbs.pyverbs._fields import integer, lines, refused
from softverbs.pyverbs.base import PyverbsObject


class FdArr(PyverbsObject):
    """File descriptors, ``struct ibv_fd_arr``."""

    def __init__(self, arr: Sequence[int] = (), count: int = 0) -> None:
        """
        :param arr: the file descriptors
        :param count: how many of them count
        """
        if not 0 <= count <= len(arr):
            raise refused(f"FdArr count={count}, but arr has {len(arr)}")
        #: The file descriptors that count.
        self.arr = [integer(fd, "FdArr arr", signed=True) for fd in arr[:count]]

    def close(self) -> None:
        """Forgets them; the files stay open. Twice does nothing."""
        self.arr = []

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.arr)

    def __str__(self) -> str:
        return lines(20, ("Number of fd in arr", self.count), ("FDs in arr", str(self.arr)))
