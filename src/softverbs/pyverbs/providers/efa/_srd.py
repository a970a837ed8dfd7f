# SPDX-License-Identifier: MIT
"""EFA's own kind of queue pair (SRD) and what goes with it: named here, so that programs can ask, and refused.

SRD is a protocol of EFA's hardware that nobody else speaks; on a RoCE device libefa refuses it in the same way.
"""

import errno
from typing import Any, NoReturn

from softverbs.pyverbs._fields import Field, fill, reading, refused
from softverbs.pyverbs.addr import AH
from softverbs.pyverbs.base import PyverbsObject
from softverbs.pyverbs.cq import CQEX
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.qp import QP
from softverbs.pyverbs.qpex import QPEx


def _refuse(what: str) -> NoReturn:
    raise refused(f"{what}: this is no EFA device", errno.EOPNOTSUPP)


class EfaContext(Context):
    """An open device that can be asked for EFA's attributes."""

    def __init__(self, name: str = "") -> None:
        """
        :param name: the device's name
        """
        super().__init__(name=name)

    def query_efa_device(self) -> NoReturn:
        """EFA's attributes (efadv_query_device(3)); refused with EOPNOTSUPP."""
        _refuse(f"Failed to query efa device {self.name}")


class EfaAH(AH):
    """An address handle that can be asked for EFA's attributes."""

    def query_efa_ah(self) -> NoReturn:
        """EFA's attributes (efadv_query_ah(3)); refused with EOPNOTSUPP."""
        _refuse("Failed to query efa ah")


class EfaMR(MR):
    """A memory region that can be asked for EFA's attributes."""

    def query(self) -> NoReturn:
        """EFA's attributes (efadv_query_mr(3)); refused with EOPNOTSUPP."""
        _refuse("Failed to query EFA MR")


class EfaQPInitAttr(PyverbsObject):
    """What an SRD QP begins with, ``struct efadv_qp_init_attr``."""

    comp_mask = reading("0.", 64)
    driver_qp_type = Field("EFADV_QP_DRIVER_TYPE_SRD.")
    flags = Field("EFADV_QP_FLAGS_* bits.", 16)
    sl = Field("Service level.", 8)
    wr_flags = Field("EFADV_WR_EX_WITH_* bits.")


class EfaDVCQInitAttr(PyverbsObject):
    """What EFA's CQ begins with, ``struct efadv_cq_init_attr``."""

    comp_mask = reading("0.", 64)
    wc_flags = Field("EFADV_WC_EX_WITH_* bits.", 64)

    def __init__(self, wc_flags: int = 0) -> None:
        """
        :param wc_flags: EFADV_WC_EX_WITH_* bits
        """
        fill(self, wc_flags=wc_flags)


class SRDQP(QP):
    """An SRD QP (efadv_create_driver_qp(3)); every creation is refused with EOPNOTSUPP."""

    def __init__(self, pd: Any, init_attr: Any) -> None:
        """
        :param pd: PD
        :param init_attr: QPInitAttr
        """
        _refuse("Failed to create SRD QP")


class SRDQPEx(QPEx):
    """An SRD QP of the extended API (efadv_create_qp_ex(3)); every creation is refused with EOPNOTSUPP."""

    def __init__(self, ctx: Any, attr_ex: Any, efa_init_attr: Any) -> None:
        """
        :param ctx: Context
        :param attr_ex: QPInitAttrEx
        :param efa_init_attr: EfaQPInitAttr
        """
        _refuse("Failed to create SRD QPEx")


class EfaCQ(CQEX):
    """A CQ with EFA's fields (efadv_create_cq(3)); every creation is refused with EOPNOTSUPP."""

    def __init__(self, ctx: Any, attr_ex: Any, efa_init_attr: Any = None) -> None:
        """
        :param ctx: Context
        :param attr_ex: CqInitAttrEx
        :param efa_init_attr: EfaDVCQInitAttr, or None
        """
        _refuse("Failed to create EFA CQ")
