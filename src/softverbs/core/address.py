"""Address vectors and address handles: where a peer is, and the path there (ibv_create_ah(3))."""

try:
    import cython
except ImportError:
    from softverbs import _cython as cython

if not cython.compiled:
    from softverbs.core.egress import Path
    from softverbs.core.host import Host
    from softverbs.core.regions import ProtectionDomain


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
        """
        self.dgid = dgid
        self.sgid_index = sgid_index
        self.flow_label = flow_label
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class
        self.sl = sl
        self.port_num = port_num
        self.is_global = is_global


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
        """Ends the handle (ibv_destroy_ah(3)); datagrams that name it and have not left complete in error."""
        if not self.closed:
            self.closed = True
            self.port.remove_address(self)
            self.pd.use(-1)
