# SPDX-License-Identifier: MIT
"""``softverbs devinfo``: what the device reports about itself, laid out as ``ibv_devinfo`` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from softverbs.cli.common import MTUS, Fault, IntRange, open_device, opened
from softverbs.links.base import address_of, is_ipv4
from softverbs.pyverbs import libibverbs_enums as e

if TYPE_CHECKING:
    from softverbs.pyverbs.device import CompCntrCaps, Context, DeviceAttr, DeviceAttrEx, PortAttr

_TAB = 8
_VALUES_AT = 40  # column, of the device
_PORT_VALUES_AT = 48
_ATOMICS = {0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB"}
_STATES = {1: "PORT_DOWN", 2: "PORT_INIT", 3: "PORT_ARMED", 4: "PORT_ACTIVE"}
_LINK_LAYERS = {0: "Unspecified", 1: "InfiniBand", 2: "Ethernet"}
_WIDTHS = {1: "1", 2: "4", 4: "8", 8: "12", 16: "2"}
_PHYS_STATES = {1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION TRAINING", 5: "LINK_UP"}
_SPEEDS = {1: "2.5", 2: "5.0", 4: "10.0", 8: "10.0", 16: "14.0", 32: "25.0", 64: "50.0", 128: "100.0", 256: "200.0"}
_LANES = {1: "1", 2: "2", 3: "4", 4: "8", 5: "15"}

#: Of the device, in order; those of _HEXADECIMAL with ``0x`` in front.
_LIMITS = [
    "max_sge",
    "max_sge_rd",
    "max_cq",
    "max_cqe",
    "max_mr",
    "max_pd",
    "max_qp_rd_atom",
    "max_ee_rd_atom",
    "max_res_rd_atom",
    "max_qp_init_rd_atom",
    "max_ee_init_rd_atom",
]
_MORE_LIMITS = [
    "max_ee",
    "max_rdd",
    "max_mw",
    "max_raw_ipv6_qps",
    "max_raw_ethy_qp",
    "max_mcast_grp",
    "max_mcast_qp_attach",
    "max_ah",
    "max_fmr",
    "max_srq",
    "max_pkeys",
]


@click.command("devinfo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-d", "--ib-dev", "device", metavar="DEV", help="Device: softverbs0, there is no other.")
@click.option("-i", "--ib-port", "port", type=IntRange(1, 255), help="Only this port.")
@click.option("-l", "--list", "names_only", is_flag=True, help="Only the names of the devices.")
@click.option("-v", "--verbose", is_flag=True, help="Every attribute.")
def command(device: str | None, port: int | None, names_only: bool, verbose: bool) -> None:
    """Show what the device reports about itself."""
    with opened(open_device(pcap=""), device) as context:
        if names_only:
            click.echo(f"1 HCA found:\n\t{context.name}\n")
            return
        count = context.query_device().phys_port_cnt
        if port is not None and port > count:
            raise Fault(f"there is no port {port}: {context.name} has {count}")
        click.echo("\n".join(_text(context, port, verbose)))


def row(indent: int, label: str, value: object, at: int) -> str:
    """A line of the layout.

    :param indent: tabs in front
    :param at: column of the value, which tabs lead to
    """
    used = indent * _TAB + len(label) + 1
    tabs = max(1, -(-(at - used) // _TAB))
    return "\t" * indent + f"{label}:" + "\t" * tabs + str(value)


def _text(context: Context, port: int | None, verbose: bool) -> Iterator[str]:
    extended = context.query_device_ex()
    attr = extended.orig_attr
    yield f"hca_id:\t{context.name}"
    yield from (row(1, label, value, _VALUES_AT) for label, value in _identity(attr))
    if verbose:
        yield from _limits(attr)
    yield from _counters(context.query_comp_cntr_caps())
    if verbose:
        yield from _extended(attr, extended, context)
    for number in range(1, attr.phys_port_cnt + 1):
        if port in (None, number):
            yield f"\t\tport:\t{number}"
            found = context.query_port(number)
            yield from (row(3, label, value, _PORT_VALUES_AT) for label, value in _port(found))
            if verbose:
                more = _port_more(found, context.query_port_speed(number))
                yield from (row(3, label, value, _PORT_VALUES_AT) for label, value in more)
                yield from _gids(context, number, found.gid_tbl_len)
            yield ""


def _identity(attr: DeviceAttr) -> Iterator[tuple[str, object]]:
    import softverbs
    from softverbs.pyverbs.device import guid_format

    yield "transport", "InfiniBand (0)"
    yield "fw_ver", attr.fw_version
    yield "node_guid", guid_format(attr.node_guid)
    yield "sys_image_guid", guid_format(attr.sys_image_guid)
    yield "vendor_id", f"0x{attr.vendor_id:04x}"
    yield "vendor_part_id", attr.vendor_part_id
    yield "hw_ver", f"0x{attr.hw_ver:X}"
    yield "board_id", f"softverbs, {softverbs.core_build} core"
    yield "phys_port_cnt", attr.phys_port_cnt


def _flags(names: dict[int, str], prefix: str, bits: int) -> Iterator[str]:
    """A name a line, and what has no name as a number."""
    for bit, name in names.items():
        if bits & bit:
            yield "\t" * 5 + name.removeprefix(prefix)
    unknown = bits & ~sum(names)
    if unknown:
        yield "\t" * 5 + f"Unknown flags: 0x{unknown:X}"


def _limits(attr: DeviceAttr) -> Iterator[str]:
    from softverbs.pyverbs.libibverbs_enums import names_of

    yield row(1, "max_mr_size", f"0x{attr.max_mr_size:x}", _VALUES_AT)
    yield row(1, "page_size_cap", f"0x{attr.page_size_cap:x}", _VALUES_AT)
    yield row(1, "max_qp", attr.max_qp, _VALUES_AT)
    yield row(1, "max_qp_wr", attr.max_qp_wr, _VALUES_AT)
    yield row(1, "device_cap_flags", f"0x{attr.device_cap_flags:08x}", _VALUES_AT)
    yield from _flags(names_of("ibv_device_cap_flags"), "IBV_DEVICE_", attr.device_cap_flags)
    yield from (row(1, name, getattr(attr, name), _VALUES_AT) for name in _LIMITS)
    yield row(1, "atomic_cap", f"{_ATOMICS.get(attr.atomic_caps, 'unknown')} ({attr.atomic_caps})", _VALUES_AT)
    yield from (row(1, name, getattr(attr, name), _VALUES_AT) for name in _MORE_LIMITS)


def _counters(caps: CompCntrCaps) -> Iterator[str]:
    from softverbs.pyverbs.libibverbs_enums import names_of

    yield row(1, "max_comp_cntr", caps.max_counters, _VALUES_AT)
    yield row(1, "max_comp_cntr_value", f"0x{caps.max_value:x}", _VALUES_AT)
    yield "\tcomp_cntr_caps:"
    operations = {
        bit: name.replace("COMP_CNTR_OP_", "") for bit, name in names_of("ibv_qp_attach_comp_cntr_op").items()
    }
    yield from _flags(operations, "IBV_", caps.supported_qp_attach_ops)


def _extended(attr: DeviceAttr, extended: DeviceAttrEx, context: Context) -> Iterator[str]:
    yield row(1, "local_ca_ack_delay", attr.local_ca_ack_delay, _VALUES_AT)
    yield row(1, "general_odp_caps", f"0x{extended.odp_caps.general_caps:x}", _VALUES_AT)
    yield row(1, "completion_timestamp_mask", f"0x{extended.completion_timestamp_mask:016x}", _VALUES_AT)
    yield row(1, "hca_core_clock", f"{extended.hca_core_clock}kHZ", _VALUES_AT)
    yield row(1, "device_cap_flags_ex", f"0x{extended.device_cap_flags_ex:X}", _VALUES_AT)
    yield row(1, "max_tso", extended.tso_caps.max_tso, _VALUES_AT)
    yield row(1, "max_wq_type_rq", extended.max_wq_type_rq, _VALUES_AT)
    yield row(1, "max_num_tags", extended.tm_caps.max_num_tags, _VALUES_AT)
    yield row(1, "max_dm_size", extended.max_dm_size, _VALUES_AT)
    yield row(1, "num_comp_vectors", context.num_comp_vectors, _VALUES_AT)


def _mtu(code: int) -> str:
    return f"{MTUS[code - 1] if 1 <= code <= len(MTUS) else 'invalid MTU'} ({code})"


def _word(words: dict[int, str], number: int, unit: str = "") -> str:
    return f"{words.get(number, 'invalid value')}{unit} ({number})"


def _port(attr: PortAttr) -> Iterator[tuple[str, object]]:
    yield "state", _word(_STATES, attr.state)
    yield "max_mtu", _mtu(attr.max_mtu)
    yield "active_mtu", _mtu(attr.active_mtu)
    yield "sm_lid", attr.sm_lid
    yield "port_lid", attr.lid
    yield "port_lmc", f"0x{attr.lmc:02x}"
    yield "link_layer", _LINK_LAYERS.get(attr.link_layer, "Unknown")


def _port_more(attr: PortAttr, speed: int) -> Iterator[tuple[str, object]]:
    yield "max_msg_sz", f"0x{attr.max_msg_sz:x}"
    yield "port_cap_flags", f"0x{attr.port_cap_flags:08x}"
    yield "port_cap_flags2", f"0x{attr.port_cap_flags2:04x}"
    yield "max_vl_num", _word(_LANES, attr.max_vl_num)
    yield "bad_pkey_cntr", f"0x{attr.bad_pkey_cntr:x}"
    yield "qkey_viol_cntr", f"0x{attr.qkey_viol_cntr:x}"
    yield "sm_sl", attr.sm_sl
    yield "pkey_tbl_len", attr.pkey_tbl_len
    yield "gid_tbl_len", attr.gid_tbl_len
    yield "subnet_timeout", attr.subnet_timeout
    yield "init_type_reply", attr.init_type_reply
    yield "active_width", _word(_WIDTHS, attr.active_width, "X")
    yield "active_speed", _word(_SPEEDS, attr.active_speed_ex or attr.active_speed, " Gbps")
    yield "effective_speed", f"{speed / 10:.1f} Gbps"
    yield "phys_state", _word(_PHYS_STATES, attr.phys_state)


def _gids(context: Context, port: int, count: int) -> Iterator[str]:
    for index in range(count):
        gid = context.query_gid(port, index).raw
        if not any(gid):
            continue
        if context.query_gid_type(port, index) == e.IBV_GID_TYPE_SYSFS_ROCE_V2:
            yield f"\t\t\tGID[{index:3}]:\t\t{_long_name(gid)}, RoCE v2"
        else:
            yield f"\t\t\tGID[{index:3}]:\t\t{gid.hex(':', 2)}, RoCE v1"


def _long_name(gid: bytes) -> str:
    """As ``ibv_devinfo`` writes it: IPv4-mapped addresses keep their prefix."""
    return f"::ffff:{address_of(gid)}" if is_ipv4(gid) else address_of(gid)
