"""Protection domains: what of memory and QPs may work together."""

import errno
from typing import Any

from softverbs.core.regions import ProtectionDomain
from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.base import Children, Resource
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsUserError


class PD(Resource):
    """A protection domain, ``struct ibv_pd`` (ibv_alloc_pd(3))."""

    _kind = "PD"
    _children = ("_qps", "_mrs")
    _qps: Children
    _mrs: Children

    def __init__(self, creator: Context, **kwargs: Any) -> None:
        """
        :param creator: the open device
        :param kwargs: ``handle``, to import a protection domain, is refused with EOPNOTSUPP
        """
        if not isinstance(creator, Context):
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        if kwargs.get("handle") is not None:
            raise refused("Failed to import PD: not supported", errno.EOPNOTSUPP)
        with creator._guard("Failed to allocate PD") as device:
            self._start(creator, ProtectionDomain(device.port, creator._core))
            creator._pds.add(self)

    @property
    def ctx(self) -> Context | None:
        """The context; None when closed."""
        return self._context

    @property
    def handle(self) -> int:
        """The device's number for it."""
        return int(self._open().handle)

    @property
    def pd(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)
