# SPDX-License-Identifier: MIT
"""What a device and its ports report about themselves. ``device`` re-exports the classes, as pyverbs has them there."""

from softverbs.pyverbs._device_text import (
    guid_format,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    width_to_str,
)
from softverbs.pyverbs._fields import Field, fill, integer, lines, reading
from softverbs.pyverbs.base import PyverbsObject
from softverbs.pyverbs.libibverbs_enums import names_of
from softverbs.pyverbs.utils import gid_str


class DeviceAttr(PyverbsObject):
    """Attributes of a device, ``struct ibv_device_attr`` of ibv_query_device(3). They can only be read."""

    fw_version: str
    node_guid = reading("GUID of the node, network-order bytes in a host integer.", 64)
    sys_image_guid = reading("GUID of the system, likewise.", 64)
    max_mr_size = reading("Largest memory region, bytes.", 64)
    page_size_cap = reading("Page sizes, one bit each.", 64)
    vendor_id = reading("IEEE number of the maker; 0xffffff: none.")
    vendor_part_id = reading("The maker's part number.")
    hw_ver = reading("Version of the device.")
    max_qp = reading("QPs at most.")
    max_qp_wr = reading("Outstanding work requests on a queue of a QP at most.")
    device_cap_flags = reading("IBV_DEVICE_* bits.")
    max_sge = reading("Scatter/gather elements of a work request at most.")
    max_sge_rd = reading("Scatter/gather elements of an RDMA READ at most.")
    max_cq = reading("CQs at most.")
    max_cqe = reading("Entries of a CQ at most.")
    max_mr = reading("Memory regions at most.")
    max_pd = reading("Protection domains at most.")
    max_qp_rd_atom = reading("READs and atomics that a QP serves at once.")
    max_ee_rd_atom = reading("The same of an end-to-end context; there are none.")
    max_res_rd_atom = reading("READs and atomics that the device serves at once.")
    max_qp_init_rd_atom = reading("READs and atomics that a QP asks for at once.")
    max_ee_init_rd_atom = reading("The same of an end-to-end context; there are none.")
    atomic_caps = reading("IBV_ATOMIC_*: atomic against whom.")
    max_ee = reading("End-to-end contexts at most.")
    max_rdd = reading("Reliable datagram domains at most.")
    max_mw = reading("Memory windows at most.")
    max_raw_ipv6_qps = reading("Raw IPv6 QPs at most.")
    max_raw_ethy_qp = reading("Raw Ethertype QPs at most.")
    max_mcast_grp = reading("Multicast groups at most.")
    max_mcast_qp_attach = reading("QPs in one multicast group at most.")
    max_total_mcast_qp_attach = reading("Extension: QPs in all multicast groups at most.")
    max_ah = reading("Address handles at most.")
    max_fmr = reading("Fast memory regions at most.")
    max_map_per_fmr = reading("Maps of one fast memory region at most.")
    max_srq = reading("Shared receive queues at most.")
    max_srq_wr = reading("Outstanding work requests on a shared receive queue at most.")
    max_srq_sge = reading("Scatter/gather elements of such a work request at most.")
    max_pkeys = reading("P_Keys at most.", 16)
    local_ca_ack_delay = reading("Time until the device acknowledges, 4.096 us times 2 to this power.", 8)
    phys_port_cnt = reading("Ports.", 8)

    def __init__(self) -> None:
        fill(self, fw_version="")

    def __str__(self) -> str:
        rows: list[tuple[str, object]] = []
        for label, name in _DEVICE_ROWS:
            value = getattr(self, name)
            if name in ("node_guid", "sys_image_guid"):
                value = guid_format(value)
            elif name in ("max_mr_size", "page_size_cap", "vendor_id"):
                value = hex(value)
            elif name == "device_cap_flags":
                value = translate_device_caps(value)
            rows.append((label, value))
        return lines(22, *rows)


_DEVICE_ROWS = (
    ("FW version", "fw_version"),
    ("Node guid", "node_guid"),
    ("Sys image GUID", "sys_image_guid"),
    ("Max MR size", "max_mr_size"),
    ("Page size cap", "page_size_cap"),
    ("Vendor ID", "vendor_id"),
    ("Vendor part ID", "vendor_part_id"),
    ("HW version", "hw_ver"),
    ("Max QP", "max_qp"),
    ("Max QP WR", "max_qp_wr"),
    ("Device cap flags", "device_cap_flags"),
    ("Max SGE", "max_sge"),
    ("Max SGE RD", "max_sge_rd"),
    ("MAX CQ", "max_cq"),
    ("Max CQE", "max_cqe"),
    ("Max MR", "max_mr"),
    ("Max PD", "max_pd"),
    ("Max QP RD atom", "max_qp_rd_atom"),
    ("Max EE RD atom", "max_ee_rd_atom"),
    ("Max res RD atom", "max_res_rd_atom"),
    ("Max QP init RD atom", "max_qp_init_rd_atom"),
    ("Max EE init RD atom", "max_ee_init_rd_atom"),
    ("Atomic caps", "atomic_caps"),
    ("Max EE", "max_ee"),
    ("Max RDD", "max_rdd"),
    ("Max MW", "max_mw"),
    ("Max raw IPv6 QPs", "max_raw_ipv6_qps"),
    ("Max raw ethy QP", "max_raw_ethy_qp"),
    ("Max mcast group", "max_mcast_grp"),
    ("Max mcast QP attach", "max_mcast_qp_attach"),
    ("Max AH", "max_ah"),
    ("Max FMR", "max_fmr"),
    ("Max map per FMR", "max_map_per_fmr"),
    ("Max SRQ", "max_srq"),
    ("Max SRQ WR", "max_srq_wr"),
    ("Max SRQ SGE", "max_srq_sge"),
    ("Max PKeys", "max_pkeys"),
    ("local CA ack delay", "local_ca_ack_delay"),
    ("Phys port count", "phys_port_cnt"),
)


class QueryDeviceExInput(PyverbsObject):
    """What ibv_query_device_ex(3) may be asked; nothing so far."""

    def __init__(self, comp_mask: int) -> None:
        """
        :param comp_mask: 0
        """
        self.comp_mask = integer(comp_mask, "QueryDeviceExInput.comp_mask")


class ODPCaps(PyverbsObject):
    """What on-demand paging can do, per transport: nothing special, the device never pins memory."""

    general_caps = reading("IBV_ODP_* bits.", 64)
    rc_odp_caps = reading("IBV_ODP_SUPPORT_* bits of RC.")
    uc_odp_caps = reading("IBV_ODP_SUPPORT_* bits of UC.")
    ud_odp_caps = reading("IBV_ODP_SUPPORT_* bits of UD.")
    xrc_odp_caps = Field("IBV_ODP_SUPPORT_* bits of XRC.")

    def __str__(self) -> str:
        transports = names_of("ibv_odp_transport_cap_bits")
        rows = (
            ("ODP General caps", self.general_caps, names_of("ibv_odp_general_caps")),
            ("RC ODP caps", self.rc_odp_caps, transports),
            ("UD ODP caps", self.ud_odp_caps, transports),
            ("UC ODP caps", self.uc_odp_caps, transports),
            ("XRC ODP caps", self.xrc_odp_caps, transports),
        )
        return "".join(f"{name}: {str_from_flags(flags, names)}\n" for name, flags, names in rows)


class PCIAtomicCaps(PyverbsObject):
    """Atomics over PCI: none, there is no PCI."""

    fetch_add = reading("Sizes of fetch and add.", 16)
    swap = reading("Sizes of swap.", 16)
    compare_swap = reading("Sizes of compare and swap.", 16)


class TSOCaps(PyverbsObject):
    """TCP segmentation offload: none."""

    max_tso = reading("Longest payload, bytes.")
    supported_qpts = reading("QP types, one bit each.")


class RSSCaps(PyverbsObject):
    """Receive-side scaling: none."""

    supported_qpts = reading("QP types, one bit each.")
    max_rwq_indirection_tables = reading("Tables at most.")
    rx_hash_fields_mask = reading("Fields that can be hashed.", 64)
    rx_hash_function = reading("Hash functions.", 8)
    max_rwq_indirection_table_size = reading("Entries of a table at most.")


class PacketPacingCaps(PyverbsObject):
    """Packet pacing: none."""

    qp_rate_limit_min = reading("Slowest rate, kbit/s.")
    qp_rate_limit_max = reading("Fastest rate, kbit/s.")
    supported_qpts = reading("QP types, one bit each.")


class TMCaps(PyverbsObject):
    """Tag matching: none."""

    max_rndv_hdr_size = reading("Longest rendezvous header, bytes.")
    max_num_tags = reading("Tags at most.")
    flags = reading("IBV_TM_CAP_* bits.")
    max_ops = reading("Outstanding operations at most.")
    max_sge = reading("Scatter/gather elements at most.")


class CQModerationCaps(PyverbsObject):
    """CQ moderation: none."""

    max_cq_count = reading("Completions before an event at most.", 16)
    max_cq_period = reading("Time before an event at most, microseconds.", 16)


class DeviceAttrEx(PyverbsObject):
    """Attributes of a device, ``struct ibv_device_attr_ex`` of ibv_query_device_ex(3)."""

    comp_mask = Field("Which fields are valid.")
    completion_timestamp_mask = reading("Valid bits of a completion's timestamp; 0 for none.", 64)
    hca_core_clock = reading("Ticks of the timestamp clock, kHz.", 64)
    device_cap_flags_ex = reading("IBV_DEVICE_* bits, 64 of them.", 64)
    max_wq_type_rq = reading("Work queues at most.")
    raw_packet_caps = reading("IBV_RAW_PACKET_CAP_* bits.")
    max_dm_size = reading("Device memory, bytes.", 64)
    phys_port_cnt_ex = reading("Ports.")

    def __init__(self) -> None:
        #: The attributes that ibv_query_device(3) gives.
        self.orig_attr = DeviceAttr()
        self.odp_caps = ODPCaps()
        self.tso_caps = TSOCaps()
        self.pci_atomic_caps = PCIAtomicCaps()
        self.rss_caps = RSSCaps()
        self.packet_pacing_caps = PacketPacingCaps()
        self.tm_caps = TMCaps()
        self.cq_mod_caps = CQModerationCaps()


class CompCntrCaps(PyverbsObject):
    """What completion counters can do, ``struct ibv_comp_cntr_caps`` of ibv_query_comp_cntr_caps(3)."""

    max_counters = reading("Counters at most.")
    max_value = reading("Largest value; beyond it a counter wraps to zero.", 64)
    supported_qp_attach_ops = reading("IBV_QP_ATTACH_COMP_CNTR_OP_* bits that can be attached.")


class PortAttr(PyverbsObject):
    """Attributes of a port, ``struct ibv_port_attr`` of ibv_query_port(3). They can only be read."""

    state = reading("IBV_PORT_ACTIVE and so on.")
    max_mtu = reading("Largest path MTU, IBV_MTU_*.")
    active_mtu = reading("Largest path MTU that the link carries, IBV_MTU_*.")
    gid_tbl_len = reading("Entries of the GID table.")
    port_cap_flags = reading("IBV_PORT_* capability bits.")
    max_msg_sz = reading("Longest message, bytes.")
    bad_pkey_cntr = reading("Packets with a wrong P_Key.")
    qkey_viol_cntr = reading("Packets with a wrong Q_Key.")
    pkey_tbl_len = reading("Entries of the P_Key table.", 16)
    lid = reading("LID; 0 over Ethernet.", 16)
    sm_lid = reading("LID of the subnet manager; 0 over Ethernet.", 16)
    lmc = reading("LID mask; 0 over Ethernet.", 8)
    max_vl_num = reading("Virtual lanes.", 8)
    sm_sl = reading("Service level of the subnet manager.", 8)
    subnet_timeout = reading("Propagation delay of the subnet, 4.096 us times 2 to this power.", 8)
    init_type_reply = reading("How the subnet manager initialised the port.", 8)
    active_width = reading("Lanes, as a code: 1 is 1X.", 8)
    active_speed = reading("Speed of a lane, as a code: 8 is 10 Gbit/s.", 8)
    phys_state = reading("Physical state: 5 is link up.", 8)
    link_layer = reading("IBV_LINK_LAYER_ETHERNET and so on.", 8)
    flags = reading("IBV_QPF_GRH_REQUIRED.", 8)
    port_cap_flags2 = reading("More capability bits.", 16)
    active_speed_ex = reading("Speed of a lane, as a wide code; 0 where the narrow one says it.")

    def __str__(self) -> str:
        return lines(
            24,
            ("Port state", port_state_to_str(self.state)),
            ("Max MTU", translate_mtu(self.max_mtu)),
            ("Active MTU", translate_mtu(self.active_mtu)),
            ("SM lid", self.sm_lid),
            ("Port lid", self.lid),
            ("lmc", hex(self.lmc)),
            ("Link layer", translate_link_layer(self.link_layer)),
            ("Max message size", hex(self.max_msg_sz)),
            ("Port cap flags", translate_port_cap_flags(self.port_cap_flags)),
            ("Port cap flags 2", translate_port_cap_flags2(self.port_cap_flags2)),
            ("max VL num", self.max_vl_num),
            ("Bad Pkey counter", self.bad_pkey_cntr),
            ("Qkey violations counter", self.qkey_viol_cntr),
            ("GID table len", self.gid_tbl_len),
            ("Pkey table len", self.pkey_tbl_len),
            ("SM sl", self.sm_sl),
            ("Subnet timeout", self.subnet_timeout),
            ("Init type reply", self.init_type_reply),
            ("Active width", width_to_str(self.active_width)),
            ("Active speed", speed_to_str(self.active_speed, self.active_speed_ex)),
            ("Phys state", phys_state_to_str(self.phys_state)),
            ("Flags", self.flags),
        )


class GIDEntry(PyverbsObject):
    """An entry of a port's GID table, ``struct ibv_gid_entry`` of ibv_query_gid_ex(3)."""

    gid_subnet_prefix = reading("First 8 bytes of the GID, network-order bytes in a host integer.", 64)
    gid_interface_id = reading("Last 8 bytes of the GID, likewise.", 64)
    gid_index = reading("Index in the table.")
    port_num = reading("Port.")
    gid_type = reading("IBV_GID_TYPE_ROCE_V2 and so on.")
    ndev_ifindex = reading("Index of the network interface; 0 where it is not known.")

    def __init__(
        self,
        subnet_prefix: int = 0,
        interface_id: int = 0,
        gid_index: int = 0,
        port_num: int = 0,
        gid_type: int = 0,
        ndev_ifindex: int = 0,
    ) -> None:
        """
        :param subnet_prefix: first 8 bytes of the GID, network-order bytes in a host integer
        :param interface_id: last 8 bytes, likewise
        :param gid_index: index in the table
        :param port_num: port
        :param gid_type: IBV_GID_TYPE_*
        :param ndev_ifindex: index of the network interface
        """
        fill(self, gid_subnet_prefix=subnet_prefix, gid_interface_id=interface_id, gid_index=gid_index)
        fill(self, port_num=port_num, gid_type=gid_type, ndev_ifindex=ndev_ifindex)

    def gid_str(self) -> str:
        """The GID's text: eight groups of four hexadecimal digits."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return lines(
            24,
            ("GID", self.gid_str()),
            ("GID Index", self.gid_index),
            ("Port number", self.port_num),
            ("GID type", translate_gid_type(self.gid_type)),
            ("Ndev ifindex", self.ndev_ifindex),
        )
