# SPDX-License-Identifier: MIT
"""Parameters of connections and of multicast groups."""

from typing import TYPE_CHECKING

from softverbs.cm.events import Param
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs._cm_address import AddrInfo
from softverbs.pyverbs._fields import Field, instance, integer, refused
from softverbs.pyverbs.addr import AHAttr
from softverbs.pyverbs.base import PyverbsObject

if TYPE_CHECKING:
    from softverbs.pyverbs._cm_event import CMEvent


class ConnParam(PyverbsObject):
    """What the two sides tell each other of a connection, ``struct rdma_conn_param`` (rdma_connect(3))."""

    responder_resources = Field("Extension: READs and atomics that this side takes at once.", 8)
    initiator_depth = Field("Extension: READs and atomics that this side asks for at once.", 8)
    flow_control = Field("Extension: whether there is flow control of the hardware.", 8)
    retry_count = Field("Extension: how often a message is sent again, 0 to 7.", 8)
    rnr_retry_count = Field("Extension: how often, where the peer has no receive; 7: for ever.", 8)
    srq = Field("Extension: whether the QP has a shared receive queue.", 8)
    qpn = Field("Number of the QP, where it is not the CMID's.")

    def __init__(
        self,
        resources: int = 1,
        depth: int = 1,
        flow_control: int = 0,
        retry: int = 5,
        rnr_retry: int = 5,
        srq: int = 0,
        qp_num: int = 0,
        data_len: int = 0,
    ) -> None:
        """
        :param resources: READs and atomics that this side takes at once
        :param depth: READs and atomics that this side asks for at once
        :param flow_control: whether there is flow control of the hardware
        :param retry: how often a message is sent again, 0 to 7
        :param rnr_retry: how often, where the peer has no receive; 7: for ever
        :param srq: whether the QP has a shared receive queue; where the QP is the CMID's, it is known
        :param qp_num: number of the QP, where it is not the CMID's
        :param data_len: room for private data, bytes: connect 56 and accept 196; for datagrams 180 and 136
        """
        self.responder_resources = resources
        self.initiator_depth = depth
        self.flow_control = flow_control
        self.retry_count = retry
        self.rnr_retry_count = rnr_retry
        self.srq = srq
        self.qpn = qp_num
        self._room = integer(data_len, "ConnParam data_len", 8)
        self._data = b""

    @property
    def private_data(self) -> bytes:
        """What the peer is told."""
        return self._data

    def set_private_data(self, data: bytes) -> None:
        """Sets what the peer is told; what the room does not hold is cut off.

        :param data: bytes
        """
        if self._room and data:
            self._data = bytes(data[: self._room])

    def _param(self, qp_num: int, srq: bool) -> Param:
        """The same for the connection manager.

        :param qp_num: of the CMID's QP; 0: it has none
        :param srq: whether that has a shared receive queue
        """
        return Param(
            self._data,
            self.responder_resources,
            self.initiator_depth,
            self.flow_control,
            self.retry_count,
            self.rnr_retry_count,
            int(srq) if qp_num else self.srq,
            qp_num or self.qpn,
        )

    def __str__(self) -> str:
        rows = (
            ("responder resources", self.responder_resources),
            ("initiator depth", self.initiator_depth),
            ("flow control", self.flow_control),
            ("retry count", self.retry_count),
            ("rnr retry count", self.rnr_retry_count),
            ("srq", self.srq),
            ("qp number", self.qpn),
        )
        return "Connection parameters: \n" + "".join(f"{name:<4}: {value:<4}\n" for name, value in rows)


class JoinMCAttrEx(PyverbsObject):
    """How to join a multicast group, ``struct rdma_cm_join_mc_attr_ex`` (rdma_join_multicast_ex(3))."""

    comp_mask = Field("Which fields are valid, RDMA_CM_JOIN_MC_ATTR_*.")
    join_flags = Field("RDMA_MC_JOIN_FLAG_FULLMEMBER or RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER.")

    def __init__(self, addr: AddrInfo, comp_mask: int = 0, join_flags: int = 0) -> None:
        """
        :param addr: the group, as a source address
        :param comp_mask: which fields are valid, RDMA_CM_JOIN_MC_ATTR_* bits; both are needed
        :param join_flags: whether only to send
        """
        instance(addr, AddrInfo, "JoinMCAttrEx addr")
        self._addr = addr
        self.comp_mask = comp_mask
        self.join_flags = join_flags

    def _checked(self, what: str) -> bool:
        """Whether only to send; refuses what makes no sense (EINVAL)."""
        both = ce.RDMA_CM_JOIN_MC_ATTR_ADDRESS | ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
        if self.comp_mask != both:
            raise refused(f"{what}: comp_mask={self.comp_mask:#x}: {both:#x} is needed")
        if self.join_flags > ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER:
            raise refused(f"{what}: join_flags={self.join_flags}: not known")
        return self.join_flags == ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER


class UDParam(PyverbsObject):
    """Where a peer takes datagrams, ``struct rdma_ud_param``: from an event of the connection manager."""

    def __init__(self, cm_event: "CMEvent") -> None:
        """
        :param cm_event: ESTABLISHED of a CMID for datagrams, or MULTICAST_JOIN
        :raises PyverbsRDMAError: EINVAL for an event that tells nothing of the kind
        """
        from softverbs.pyverbs._cm_event import CMEvent

        instance(cm_event, CMEvent, "UDParam cm_event")
        event = cm_event._open()
        if event.vector is None:
            raise refused(f"UDParam: {cm_event.event_str()} tells nothing of datagrams")
        self._ah_attr = AHAttr._of(event.vector)
        self._qp_num = event.qp_num
        self._qkey = event.qkey

    @property
    def qp_num(self) -> int:
        """Number of the QP."""
        return self._qp_num

    @property
    def qkey(self) -> int:
        """Its Q_Key."""
        return self._qkey

    @property
    def ah_attr(self) -> AHAttr:
        """Where it is: what an AH is made of."""
        return self._ah_attr._copy()
