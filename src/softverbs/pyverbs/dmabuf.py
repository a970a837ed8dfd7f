# SPDX-License-Identifier: MIT
"""Memory of a GPU as DMA-BUF: there is none."""

import errno

from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.base import PyverbsCM


class DmaBuf(PyverbsCM):
    """Memory of a GPU. This device works with the memory of processes only: every creation is refused."""

    def __init__(self, size: int, gpu: int = 0, gtt: int = 0) -> None:
        """
        :param size: bytes
        :param gpu: number of the GPU
        :param gtt: whether system memory that the GPU has mapped is wanted
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        raise refused(
            f"Failed to allocate dmabuf of size {size} on gpu {gpu}: this device has no access to memory of a GPU",
            errno.EOPNOTSUPP,
        )
