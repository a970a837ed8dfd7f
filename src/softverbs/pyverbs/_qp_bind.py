# SPDX-License-Identifier: MIT
"""Binding of memory windows of type 1, which is a verb of its own (ibv_bind_mw(3))."""

import errno
from typing import TYPE_CHECKING

from softverbs.core.queues.wr import SendWR
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import instance, refused
from softverbs.pyverbs.mr import MW, MWBind

if TYPE_CHECKING:
    from softverbs.pyverbs.qp import QP

_BINDERS = (e.IBV_QPT_RC, e.IBV_QPT_UC, e.IBV_QPT_XRC_SEND)


def bind_window(qp: "QP", mw: MW, mw_bind: MWBind) -> None:
    """Posts the work that binds a window; see ``QP.bind_mw``."""
    instance(mw, MW, "mw")
    instance(mw_bind, MWBind, "mw_bind")
    with qp._guard("Failed to Bind MW", verb="bind_mw"):
        info = mw_bind.info
        info._check(mw)
        if qp.qp_type not in _BINDERS:
            raise refused(f"a QP of type {qp.qp_type} cannot bind: RC, UC and XRC_SEND can")
        mw._open()
        if info.mr._open().pd is not mw._open().pd:
            raise refused("window and region are of different protection domains", errno.EPERM)
        wr = SendWR(mw_bind.wr_id, e.IBV_WR_BIND_MW, send_flags=mw_bind.send_flags)
        wr._set_bind(mw, info)
        qp._post_send(wr)
        mw.rkey = wr.rkey
