# SPDX-License-Identifier: MIT
"""Extended QPs that are connected, and their critical sections: what the tests of QPEx stand on."""

from tests.pyverbs.world import CAP, REMOTE, SIGNALED, Side, World

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.qp import QPCap, QPEx, QPInitAttrEx

RC_OPS = (
    "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM RDMA_READ ATOMIC_CMP_AND_SWP ATOMIC_FETCH_AND_ADD LOCAL_INV "
    "BIND_MW SEND_WITH_INV FLUSH ATOMIC_WRITE"
)
XRC_OPS = RC_OPS.removesuffix(" FLUSH ATOMIC_WRITE")
UC_OPS = "RDMA_WRITE RDMA_WRITE_WITH_IMM SEND SEND_WITH_IMM LOCAL_INV BIND_MW"
UD_OPS = "SEND SEND_WITH_IMM"
QKEY = 0x11111111
FLUSHABLE = e.IBV_ACCESS_FLUSH_GLOBAL | e.IBV_ACCESS_FLUSH_PERSISTENT


def ops(names: str) -> int:
    return sum(getattr(e, f"IBV_QP_EX_WITH_{name}") for name in names.split())


def make(side: Side, names: str = RC_OPS, kind: int = e.IBV_QPT_RC, **cap: int) -> QPEx:
    """A QPEx that may do ``names``."""
    mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
    init = QPInitAttrEx(
        kind, None, side.cq, side.cq, None, QPCap(**{**CAP, **cap}), 0, mask, side.pd, send_ops_flags=ops(names)
    )
    return QPEx(side.context, init)


class Pair:
    """A connected pair of extended QPs."""

    def __init__(self, world: World, **cap: int) -> None:
        self.world = world
        self.a, self.b = world.a, world.b
        self.qp = make(self.a, **cap)
        self.peer = make(self.b)
        rights = REMOTE | FLUSHABLE
        world.connect(self.qp, self.peer, qp_access_flags=rights)

    def begin(self, wr_id: int = 1, flags: int = SIGNALED) -> QPEx:
        self.qp.wr_start()
        self.qp.wr_id = wr_id
        self.qp.wr_flags = flags
        return self.qp

    def end(self, *expected: tuple[int, int]) -> None:
        """Completes the section, and looks at the completions of this side."""
        self.qp.wr_complete()
        self.world.settle()
        assert self.a.done() == list(expected)

    @property
    def there(self) -> tuple[int, int]:
        return self.b.mr.rkey, self.b.mr.buf
