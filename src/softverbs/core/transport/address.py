# SPDX-License-Identifier: MIT
"""Address vectors and address handles: where a peer is, and the path there (ibv_create_ah(3))."""

import errno

try:
    import cython
except ImportError:
    from softverbs import _cython as cython
from softverbs.core.base.errors import PyverbsRDMAError

if not cython.compiled:
    from softverbs.core.base.host import Host
    from softverbs.core.memory.regions import ProtectionDomain
    from softverbs.core.wire.egress import Path

#: ``enum ibv_rate`` (ibv_create_ah(3)), Gbit/s; 0 is IBV_RATE_MAX, no limit.
RATES = {
    2: 2.5, 3: 10, 4: 30, 5: 5, 6: 20, 7: 40, 8: 60, 9: 80, 10: 120, 11: 14, 12: 56, 13: 112, 14: 168, 15: 25,
    16: 100, 17: 200, 18: 300, 19: 28, 20: 50, 21: 400, 22: 600, 23: 800, 24: 1200,
}  # fmt: skip


def pace_of(static_rate: int) -> int:
    """The time that a byte takes at a static rate, ns / 1,024, rounded up; 0 for no limit.

    :param static_rate: ``enum ibv_rate``
    :raises PyverbsRDMAError: EINVAL where it is none of these
    """
    if static_rate == 0:
        return 0
    rate = RATES.get(static_rate)
    if rate is None:
        raise PyverbsRDMAError(f"ah_attr.static_rate={static_rate} is no value of enum ibv_rate", errno.EINVAL)
    return -int(-8 * 1024 // rate)


class AddressVector:
    """Where a peer is: ``struct ibv_ah_attr`` as a RoCE device needs it."""

    def __init__(
        self,
        dgid: bytes,
        sgid_index: int = 0,
        flow_label: int = 0,
        hop_limit: int = 64,
        traffic_class: int = 0,
        sl: int = 0,
        port_num: int = 1,
        is_global: bool = True,
        static_rate: int = 0,
    ) -> None:
        """
        :param dgid: GID of the peer, 16 bytes
        :param sgid_index: which own GID to send from
        :param flow_label: 20 bits
        :param hop_limit: hops; 0 for the default
        :param traffic_class: 8 bits
        :param sl: service level
        :param port_num: 1
        :param is_global: whether there is a GRH, which RoCE needs
        :param static_rate: limit of the rate that packets leave at, ``enum ibv_rate``; 0 for none
        """
        self.dgid = dgid
        self.sgid_index = sgid_index
        self.flow_label = flow_label
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class
        self.sl = sl
        self.port_num = port_num
        self.is_global = is_global
        self.static_rate = static_rate

    def with_flow_label(self, flow_label: int) -> "AddressVector":
        """The same address with another flow label."""
        return AddressVector(
            self.dgid,
            self.sgid_index,
            flow_label,
            self.hop_limit,
            self.traffic_class,
            self.sl,
            self.port_num,
            self.is_global,
            self.static_rate,
        )


class AddressHandle:
    """An address handle: the path that datagrams to one address take."""

    def __init__(self, port: Host, pd: ProtectionDomain, vector: AddressVector) -> None:
        """
        :param port: the port that it belongs to
        :param pd: its protection domain
        :param vector: where it leads; a unicast or a multicast GID
        :raises PyverbsRDMAError: EINVAL where this port cannot send there, ENOMEM past ``max_ah``
        """
        self.port = port
        self.pd = pd
        self.vector = vector
        self.path: Path = port.path_to(vector)
        self.closed = False
        self.handle = port.enter_address(self)
        pd.use(1)

    def close(self) -> None:
        """Ends the handle (ibv_destroy_ah(3)); datagrams that were posted with it still leave."""
        if not self.closed:
            self.closed = True
            self.port.remove_address(self)
            self.pd.use(-1)
