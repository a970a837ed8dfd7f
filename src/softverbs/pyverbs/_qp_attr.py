# SPDX-License-Identifier: MIT
"""Attributes of queue pairs. ``qp`` re-exports the classes, as pyverbs has them there."""

from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, flag_names, instance, integer, lines, reading
from softverbs.pyverbs._fields import fill as _fill
from softverbs.pyverbs._slots import CqSlot, Slot
from softverbs.pyverbs.addr import AHAttr
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject
from softverbs.pyverbs.cq import CQ, CQEX
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.srq import SRQ
from softverbs.pyverbs.utils import access_flags_to_str, mig_state_to_str, mtu_to_str, qp_state_to_str, qp_type_to_str
from softverbs.pyverbs.xrcd import XRCD

CAP_NAMES = ("max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data")
_MASK_BITS = {1: "PD", 2: "XRCD", 4: "Create Flags", 8: "Max TSO header", 16: "Indirection Table", 32: "RX hash"}
_CREATE_BITS = {
    1: "Block self mcast loopback",
    2: "Scatter FCS",
    4: "CVLAN stripping",
    8: "Source QPN",
    16: "PCI write end padding",
}


class _CapFields(PyverbsObject):
    """The members of ``struct ibv_qp_cap``."""

    max_send_wr = Field("Outstanding work requests on the send queue, at least.")
    max_recv_wr = Field("Outstanding work requests on the receive queue, at least.")
    max_send_sge = Field("Scatter/gather elements of a send work request, at least.")
    max_recv_sge = Field("Scatter/gather elements of a receive work request, at least.")
    max_inline_data = Field("Bytes that can be posted inline, at least.")


class QPCap(_CapFields):
    """Sizes of a QP's queues, ``struct ibv_qp_cap`` of ibv_create_qp(3)."""

    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        """
        :param max_send_wr: outstanding work requests on the send queue, at least
        :param max_recv_wr: outstanding work requests on the receive queue, at least
        :param max_send_sge: scatter/gather elements of a send work request, at least
        :param max_recv_sge: scatter/gather elements of a receive work request, at least
        :param max_inline_data: bytes that can be posted inline, at least
        """
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data

    def __str__(self) -> str:
        return lines(
            20,
            ("max send wrs", self.max_send_wr),
            ("max recv wrs", self.max_recv_wr),
            ("max send sges", self.max_send_sge),
            ("max recv sges", self.max_recv_sge),
            ("max inline data", self.max_inline_data),
        )


def _copy_caps(source: Any, target: Any) -> None:
    for name in CAP_NAMES:
        setattr(target, name, getattr(source, name))


def _cap_rows(source: Any) -> tuple[tuple[str, object], ...]:
    return (
        ("max send WR", source.max_send_wr),
        ("max recv WR", source.max_recv_wr),
        ("max send SGE", source.max_send_sge),
        ("max recv SGE", source.max_recv_sge),
        ("max inline data", source.max_inline_data),
    )


class _InitAttr(_CapFields):
    """What QPInitAttr and QPInitAttrEx have in common."""

    send_cq = CqSlot("CQ of the send queue.")
    recv_cq = CqSlot("CQ of the receive queue.")
    srq = Slot(SRQ, "Shared receive queue instead of an own one, or None.")
    qp_type = Field("IBV_QPT_RC and so on.")
    sq_sig_all = Field("Not 0: every send work request makes a completion.", signed=True)

    def _set(
        self, qp_type: int, qp_context: object, scq: Any, rcq: Any, srq: Any, cap: QPCap | None, sq_sig_all: int
    ) -> None:
        if cap is not None:
            self.cap = cap
        self.qp_context = qp_context
        self.send_cq = scq
        self.recv_cq = rcq
        self.srq = srq
        self.qp_type = qp_type
        self.sq_sig_all = sq_sig_all

    @property
    def cap(self) -> QPCap:
        """Sizes of the queues: a copy. Creation replaces them by the actual ones."""
        return QPCap(*(getattr(self, name) for name in CAP_NAMES))

    @cap.setter
    def cap(self, val: QPCap) -> None:
        instance(val, QPCap, "cap")
        _copy_caps(val, self)


class QPInitAttr(_InitAttr):
    """How a QP is made, ``struct ibv_qp_init_attr`` of ibv_create_qp(3)."""

    def __init__(
        self,
        qp_type: int = e.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        """
        :param qp_type: IBV_QPT_RC and so on
        :param qp_context: anything; ``QP.qp_context`` returns it
        :param scq: CQ of the send queue
        :param rcq: CQ of the receive queue
        :param srq: shared receive queue, or None
        :param cap: sizes of the queues
        :param sq_sig_all: not 0: every send work request makes a completion
        """
        self._set(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)

    def __str__(self) -> str:
        head = lines(20, ("QP type", qp_type_to_str(self.qp_type)), ("SQ sig. all", self.sq_sig_all))
        return head + "QP caps:\n" + lines(20, *_cap_rows(self), indent="    ")


class QPInitAttrEx(_InitAttr):
    """How a QP is made from a Context, ``struct ibv_qp_init_attr_ex`` of ibv_create_qp_ex(3)."""

    comp_mask = Field("Which of the further fields are valid, IBV_QP_INIT_ATTR_*.")
    pd = Slot(PD, "The protection domain.")
    xrcd = Slot(XRCD, "The XRC domain, of a QP of type XRC_RECV.")
    create_flags = Field("IBV_QP_CREATE_* bits.")
    max_tso_header = Field("Longest header of segmented packets, bytes.", 16)
    source_qpn = Field("Number of a QP to send as.")
    send_ops_flags = Field("IBV_QP_EX_WITH_* bits.", 64)

    def __init__(
        self,
        qp_type: int = e.IBV_QPT_UD,
        qp_context: object = None,
        scq: CQ | CQEX | None = None,
        rcq: CQ | CQEX | None = None,
        srq: SRQ | None = None,
        cap: QPCap | None = None,
        sq_sig_all: int = 0,
        comp_mask: int = 0,
        pd: PD | None = None,
        xrcd: XRCD | None = None,
        create_flags: int = 0,
        max_tso_header: int = 0,
        source_qpn: int = 0,
        hash_conf: Any = None,
        ind_table: Any = None,
        send_ops_flags: int = 0,
    ) -> None:
        """
        :param qp_type: IBV_QPT_RC and so on
        :param qp_context: anything; ``QP.qp_context`` returns it
        :param scq: CQ of the send queue
        :param rcq: CQ of the receive queue
        :param srq: shared receive queue, or None
        :param cap: sizes of the queues
        :param sq_sig_all: not 0: every send work request makes a completion
        :param comp_mask: IBV_QP_INIT_ATTR_* bits: which of the arguments that follow are valid
        :param pd: the protection domain
        :param xrcd: the XRC domain, of a QP of type XRC_RECV
        :param create_flags: IBV_QP_CREATE_* bits; none is supported
        :param max_tso_header: longest header of segmented packets, bytes; not supported
        :param source_qpn: number of a QP to send as; not supported
        :param hash_conf: receive hash; not supported
        :param ind_table: indirection table; not supported
        :param send_ops_flags: IBV_QP_EX_WITH_* bits: operations of the extended interface (``QPEx``)
        """
        self._set(qp_type, qp_context, scq, rcq, srq, cap, sq_sig_all)
        self.comp_mask = comp_mask
        self.pd = pd
        self.xrcd = xrcd
        self.create_flags = create_flags
        self.max_tso_header = max_tso_header
        self.source_qpn = source_qpn
        self.hash_conf = hash_conf
        self.ind_table = ind_table
        self.send_ops_flags = send_ops_flags

    def mask_to_str(self, mask: int) -> str:
        """The names of IBV_QP_INIT_ATTR_* bits, each followed by a space.

        :param mask: the bits
        """
        return flag_names(mask, _MASK_BITS)

    def flags_to_str(self, flags: int) -> str:
        """The names of creation flags as pyverbs counts them, each followed by a space.

        :param flags: the bits
        """
        return flag_names(flags, _CREATE_BITS)

    def __str__(self) -> str:
        return (
            lines(20, ("QP type", qp_type_to_str(self.qp_type)), ("SQ sig. all", self.sq_sig_all))
            + "QP caps:\n"
            + lines(20, *((f"  {name}", value) for name, value in _cap_rows(self)))
            + lines(20, ("comp mask", self.mask_to_str(self.comp_mask)))
            + lines(20, ("create flags", self.flags_to_str(self.create_flags)))
            + lines(20, ("max TSO header", self.max_tso_header), ("Source QPN", self.source_qpn))
        )


class QPAttr(PyverbsObject):
    """Attributes of a QP, ``struct ibv_qp_attr`` of ibv_modify_qp(3) and ibv_query_qp(3)."""

    qp_state = Field("Next state, IBV_QPS_*; of a query: the state.")
    cur_qp_state = Field("State that the QP is taken to be in, IBV_QPS_*.")
    path_mtu = Field("Payload of a packet at most, IBV_MTU_*.")
    path_mig_state = Field("Path migration, IBV_MIG_*.")
    qkey = Field("Q_Key, for UD.")
    rq_psn = Field("Packet sequence number that is expected first, 24 bits.")
    sq_psn = Field("Packet sequence number that is sent first, 24 bits.")
    dest_qp_num = Field("Number of the peer's QP, 24 bits.")
    qp_access_flags = Field("What peers may do, IBV_ACCESS_REMOTE_* bits.")
    pkey_index = Field("Index in the port's P_Key table.", 16)
    alt_pkey_index = Field("The same of the alternate path.", 16)
    en_sqd_async_notify = Field("Not 0: an event tells that the send queue is drained.", 8)
    sq_draining = Field("Not 0: the send queue is draining.", 8)
    max_rd_atomic = Field("READs and atomics that are asked for at once.", 8)
    max_dest_rd_atomic = Field("READs and atomics that are served at once.", 8)
    min_rnr_timer = Field("How long a peer shall wait after RNR NAK, a code of 5 bits (IBA table 45).", 8)
    port_num = Field("Local port.", 8)
    timeout = Field("Time until retransmission, 4.096 us times 2 to this power; 0: for ever.", 8)
    retry_cnt = Field("Retransmissions before giving up, 0 to 7.", 8)
    rnr_retry = Field("Retries after RNR NAK before giving up, 0 to 7; 7: for ever.", 8)
    alt_port_num = Field("Local port of the alternate path.", 8)
    alt_timeout = Field("Time-out of the alternate path.", 8)
    rate_limit = Field("Rate of packets, kbit/s.")

    def __init__(
        self,
        qp_state: int = e.IBV_QPS_INIT,
        cur_qp_state: int = e.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = e.IBV_MTU_1024,
    ) -> None:
        """
        :param qp_state: next state
        :param cur_qp_state: state that the QP is taken to be in
        :param port_num: local port
        :param path_mtu: payload of a packet at most, IBV_MTU_*
        """
        self._cap = QPCap(0, 0, 0, 0, 0)
        self._ah = AHAttr(port_num=0)
        self._alt_ah = AHAttr(port_num=0)
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.port_num = port_num
        self.path_mtu = path_mtu

    @property
    def cap(self) -> QPCap:
        """Sizes of the queues: a copy."""
        return QPCap(*(getattr(self._cap, name) for name in CAP_NAMES))

    @cap.setter
    def cap(self, val: QPCap) -> None:
        instance(val, QPCap, "QPAttr.cap")
        _copy_caps(val, self._cap)

    @property
    def ah_attr(self) -> AHAttr:
        """Address vector of the path: a copy."""
        return self._ah._copy()

    @ah_attr.setter
    def ah_attr(self, val: AHAttr) -> None:
        instance(val, AHAttr, "QPAttr.ah_attr")
        self._ah = val._copy()

    @property
    def alt_ah_attr(self) -> AHAttr:
        """Address vector of the alternate path: a copy."""
        return self._alt_ah._copy()

    @alt_ah_attr.setter
    def alt_ah_attr(self, val: AHAttr) -> None:
        instance(val, AHAttr, "QPAttr.alt_ah_attr")
        self._alt_ah = val._copy()

    def __str__(self) -> str:
        return (
            lines(
                22,
                ("QP state", qp_state_to_str(self.qp_state)),
                ("QP current state", qp_state_to_str(self.cur_qp_state)),
                ("Path MTU", mtu_to_str(self.path_mtu)),
                ("Path mig. state", mig_state_to_str(self.path_mig_state)),
                ("QKey", self.qkey),
                ("RQ PSN", self.rq_psn),
                ("SQ PSN", self.sq_psn),
                ("Dest QP number", self.dest_qp_num),
                ("QP access flags", access_flags_to_str(self.qp_access_flags)),
            )
            + "QP caps:\n"
            + lines(22, *_cap_rows(self._cap), indent="  ")
            + "AH Attr:\n"
            + _ah_lines(self._ah)
            + "Alt. AH Attr:\n"
            + _ah_lines(self._alt_ah)
            + lines(
                22,
                ("PKey index", self.pkey_index),
                ("Alt. PKey index", self.alt_pkey_index),
                ("En. SQD async notify", self.en_sqd_async_notify),
                ("SQ draining", self.sq_draining),
                ("Max RD atomic", self.max_rd_atomic),
                ("Max dest. RD atomic", self.max_dest_rd_atomic),
                ("Min RNR timer", self.min_rnr_timer),
                ("Port number", self.port_num),
                ("Timeout", self.timeout),
                ("Retry counter", self.retry_cnt),
                ("RNR retry", self.rnr_retry),
                ("Alt. port number", self.alt_port_num),
                ("Alt. timeout", self.alt_timeout),
                ("Rate limit", self.rate_limit),
            )
        )


def _ah_lines(ah: AHAttr) -> str:
    text = lines(
        22,
        ("port num", ah.port_num),
        ("sl", ah.sl),
        ("source path bits", ah.src_path_bits),
        ("dlid", ah.dlid),
        ("port num", ah.port_num),
        ("static rate", ah.static_rate),
        ("is global", ah.is_global),
        indent="  ",
    )
    if ah.is_global:
        rows = (("dgid", ah.dgid), ("flow label", ah.flow_label), ("sgid index", ah.sgid_index))
        text += lines(22, *rows, ("hop limit", ah.hop_limit), ("traffic_class", ah.traffic_class), indent="    ")
    return text


class QPAttachCompCntrAttr(PyverbsObject):
    """What a counter counts of a QP, ``struct ibv_qp_attach_comp_cntr_attr`` of ibv_qp_attach_comp_cntr(3)."""

    op_mask = reading("IBV_QP_ATTACH_COMP_CNTR_OP_* bits.")
    comp_mask = reading("Extension: which further fields are valid: none, 0.")

    def __init__(self, op_mask: int = 0, comp_mask: int = 0) -> None:
        """
        :param op_mask: IBV_QP_ATTACH_COMP_CNTR_OP_* bits
        :param comp_mask: Extension (the structure has it, pyverbs leaves it 0): 0
        """
        _fill(self, op_mask=integer(op_mask, "op_mask"), comp_mask=comp_mask)


class ECE(PyverbsCM):
    """Options of a vendor that both ends of a connection must agree on, ``struct ibv_ece`` of ibv_set_ece(3)."""

    vendor_id = Field("The vendor's number (IEEE OUI); 0 for none.")
    options = Field("The vendor's options.")
    comp_mask = Field("Which further fields are valid: none, 0.")

    def __init__(self, vendor_id: int = 0, options: int = 0, comp_mask: int = 0) -> None:
        """
        :param vendor_id: the vendor's number; 0 for none
        :param options: the vendor's options
        :param comp_mask: which further fields are valid
        """
        self.vendor_id = vendor_id
        self.options = options
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        rows = (("Vendor ID", self.vendor_id), ("Options", self.options), ("Comp Mask", self.comp_mask))
        return "ECE:\n" + "".join(f"{name:22}: 0x{value:<20x}\n" for name, value in rows)


class QPRateLimitAttr(PyverbsObject):
    """Limits of the rate that a QP sends at, ``struct ibv_qp_rate_limit_attr`` of ibv_modify_qp_rate_limit(3)."""

    rate_limit = Field("kbit/s; 0 for none.")
    max_burst_sz = Field("Longest burst, bytes.")
    typical_pkt_sz = Field("Typical packet, bytes.", 16)
    comp_mask = Field("Which further fields are valid: none, 0.")

    def __init__(self, rate_limit: int = 0, max_burst_sz: int = 0, typical_pkt_sz: int = 0, comp_mask: int = 0) -> None:
        """
        :param rate_limit: kbit/s; 0 for none
        :param max_burst_sz: longest burst, bytes
        :param typical_pkt_sz: typical packet, bytes
        :param comp_mask: which further fields are valid
        """
        self.rate_limit = rate_limit
        self.max_burst_sz = max_burst_sz
        self.typical_pkt_sz = typical_pkt_sz
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        return lines(
            22,
            ("Rate limit (kbps)", self.rate_limit),
            ("Max burst size", self.max_burst_sz),
            ("Typical packet size", self.typical_pkt_sz),
            ("Comp mask", self.comp_mask),
        )
