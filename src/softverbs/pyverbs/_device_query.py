# SPDX-License-Identifier: MIT
"""What a device reports: filled in from its options and its limits (core/base/limits.py), so that it is the truth."""

import errno

from softverbs.core.base import limits
from softverbs.core.wire.gid import GidEntry
from softverbs.device import Device as SoftDevice
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._device_attr import DeviceAttr, DeviceAttrEx, GIDEntry, PortAttr
from softverbs.pyverbs._fields import fill, integer, refused
from softverbs.pyverbs.utils import be64toh

PORT = 1  # the only one
GID_TABLE = 8  # entries, at least
NS_PER_S = 10**9
#: Nobody has registered it: 24 bits of an IEEE company number, all set, as Soft-RoCE has them.
VENDOR_ID = 0xFFFFFF
PAGE_SIZES = 0xFFFFF000  # 4 KiB and every power of two above: memory is not translated in pages here
LINK_UP, DISABLED = 5, 3  # physical states, IBA 14.2.5.6
#: CQ moderation (ibv_modify_cq(3)): the widths of its fields.
MAX_CQ_COUNT = MAX_CQ_PERIOD = 2**16 - 1
CAPABILITIES = (
    e.IBV_DEVICE_BAD_PKEY_CNTR
    | e.IBV_DEVICE_BAD_QKEY_CNTR
    | e.IBV_DEVICE_UD_AV_PORT_ENFORCE
    | e.IBV_DEVICE_CURR_QP_STATE_MOD
    | e.IBV_DEVICE_PORT_ACTIVE_EVENT
    | e.IBV_DEVICE_SYS_IMAGE_GUID
    | e.IBV_DEVICE_RC_RNR_NAK_GEN
    | e.IBV_DEVICE_SRQ_RESIZE
    | e.IBV_DEVICE_MEM_WINDOW
    | e.IBV_DEVICE_XRC
    | e.IBV_DEVICE_MEM_MGT_EXTENSIONS
    | e.IBV_DEVICE_MEM_WINDOW_TYPE_2B
)
#: Bits that only ``device_cap_flags_ex`` has room for, as the kernel numbers them (enum ib_uverbs_device_cap_flags):
#: FLUSH_GLOBAL, FLUSH_PERSISTENT, ATOMIC_WRITE.
CAPABILITIES_EX = 1 << 38 | 1 << 39 | 1 << 40

_ODP_UD = e.IBV_ODP_SUPPORT_SEND | e.IBV_ODP_SUPPORT_RECV | e.IBV_ODP_SUPPORT_SRQ_RECV
_ODP_UC = _ODP_UD | e.IBV_ODP_SUPPORT_WRITE
_ODP_CONNECTED = _ODP_UC | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC
_ODP_RC = _ODP_CONNECTED | e.IBV_ODP_SUPPORT_FLUSH | e.IBV_ODP_SUPPORT_ATOMIC_WRITE
_ODP_XRC = _ODP_CONNECTED & ~e.IBV_ODP_SUPPORT_RECV  # its receives come from shared queues only


def device_attr(device: SoftDevice) -> DeviceAttr:
    """The attributes of ibv_query_device(3).

    :param device: whose lock is held
    """
    options = device.options
    attr = DeviceAttr()
    guid = be64toh(device.guid)
    fill(attr, fw_version=_version(), node_guid=guid, sys_image_guid=guid, vendor_id=VENDOR_ID)
    fill(attr, max_mr_size=limits.MAX_MR_SIZE, page_size_cap=PAGE_SIZES, device_cap_flags=CAPABILITIES)
    fill(attr, max_qp=options.max_qp, max_qp_wr=options.max_qp_wr, max_sge=limits.MAX_SGE, max_sge_rd=limits.MAX_SGE)
    fill(attr, max_cq=options.max_cq, max_cqe=options.max_cqe, max_mr=options.max_mr, max_pd=options.max_pd)
    fill(attr, max_qp_rd_atom=limits.MAX_RD_ATOMIC, max_res_rd_atom=limits.MAX_RD_ATOMIC * options.max_qp)
    fill(attr, max_qp_init_rd_atom=limits.MAX_RD_ATOMIC, atomic_caps=e.IBV_ATOMIC_HCA)
    fill(attr, max_mw=options.max_mw, max_ah=options.max_ah)
    fill(attr, max_srq=options.max_srq, max_srq_wr=options.max_srq_wr, max_srq_sge=limits.MAX_SGE)
    fill(attr, max_mcast_grp=limits.MAX_MCAST_GRP, max_mcast_qp_attach=limits.MAX_MCAST_QP_ATTACH)
    fill(attr, max_total_mcast_qp_attach=limits.MAX_MCAST_GRP * limits.MAX_MCAST_QP_ATTACH)
    fill(attr, max_pkeys=limits.MAX_PKEYS, local_ca_ack_delay=15, phys_port_cnt=1)
    return attr


def device_attr_ex(device: SoftDevice) -> DeviceAttrEx:
    """The attributes of ibv_query_device_ex(3). What is not filled in, segmentation, hashing, pacing, tag matching,
    raw packets, the device has not.

    :param device: whose lock is held
    """
    attr = DeviceAttrEx()
    attr.orig_attr = device_attr(device)
    fill(attr, completion_timestamp_mask=2**64 - 1, hca_core_clock=NS_PER_S // 1000, phys_port_cnt_ex=1)
    fill(attr, device_cap_flags_ex=attr.orig_attr.device_cap_flags | CAPABILITIES_EX)
    fill(attr, max_dm_size=device.options.max_dm_size)
    fill(attr.odp_caps, general_caps=e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT)
    fill(attr.odp_caps, rc_odp_caps=_ODP_RC, uc_odp_caps=_ODP_UC, ud_odp_caps=_ODP_UD, xrc_odp_caps=_ODP_XRC)
    fill(attr.cq_mod_caps, max_cq_count=MAX_CQ_COUNT, max_cq_period=MAX_CQ_PERIOD)
    return attr


def _version() -> str:
    """The version of this package: the device has no other firmware."""
    from importlib.metadata import PackageNotFoundError, version  # slow, and seldom asked for

    try:
        return version("softverbs")
    except PackageNotFoundError:
        return "0"


def port_attr(device: SoftDevice) -> PortAttr:
    """The attributes of ibv_query_port(3), of this moment.

    :param device: whose lock is held
    """
    port = device.port
    attr = PortAttr()
    up = port.up
    fill(attr, state=e.IBV_PORT_ACTIVE if up else e.IBV_PORT_DOWN, phys_state=LINK_UP if up else DISABLED)
    fill(attr, max_mtu=e.IBV_MTU_4096, active_mtu=port.active_mtu, max_msg_sz=limits.MAX_MESSAGE_SIZE)
    fill(attr, gid_tbl_len=gid_table_length(device), pkey_tbl_len=limits.MAX_PKEYS)
    fill(attr, port_cap_flags=e.IBV_PORT_IP_BASED_GIDS | e.IBV_PORT_CM_SUP, max_vl_num=1)
    fill(attr, bad_pkey_cntr=port.stats()["dropped_pkey"], qkey_viol_cntr=port.qkey_violations)
    fill(attr, active_width=1, active_speed=8, link_layer=e.IBV_LINK_LAYER_ETHERNET, flags=e.IBV_QPF_GRH_REQUIRED)
    return attr


def check_port(port_num: int) -> None:
    """Refuses another port than the only one."""
    if integer(port_num, "port_num") != PORT:
        raise refused(f"port_num is {port_num}: the device has one port, number {PORT}")


def check_index(index: int, count: int, table: str) -> int:
    """``index``, where it is inside of a table of ``count`` entries."""
    number = integer(index, "index", signed=True)
    if not 0 <= number < count:
        raise refused(f"index {number} is outside of the {table} table, which has {count} entries")
    return number


def check_flags(flags: int) -> None:
    """Refuses flags, of which none is known."""
    if integer(flags, "flags"):
        raise refused(f"flags={flags:#x}: no bit of it is known")


def gid_table_length(device: SoftDevice) -> int:
    """Entries of the GID table: more than are used, as with other devices. The used ones come first."""
    return max(GID_TABLE, len(device.port.gid_table.entries) + 1)


def gid_at(device: SoftDevice, port_num: int, index: int) -> GidEntry | None:
    """An entry of the GID table; None where it is empty."""
    check_port(port_num)
    number = check_index(index, gid_table_length(device), "GID")
    entries: list[GidEntry] = device.port.gid_table.entries
    return entries[number] if number < len(entries) else None


def used_gid_at(device: SoftDevice, port_num: int, index: int) -> GidEntry:
    """The same; ENODATA where it is empty."""
    entry = gid_at(device, port_num, index)
    if entry is None:
        raise refused(f"entry {index} of the GID table is empty", errno.ENODATA)
    return entry


def gid_entry(entry: GidEntry, index: int) -> GIDEntry:
    """The same as ``struct ibv_gid_entry``."""
    from softverbs.pyverbs.addr import host_order

    return GIDEntry(host_order(entry.gid[:8]), host_order(entry.gid[8:]), index, PORT, entry.kind)
