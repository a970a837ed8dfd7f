# SPDX-License-Identifier: MIT
"""What a device reports about itself is what it does."""

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.pyverbs.world import World, refused

from softverbs import verbs
from softverbs.core.base import limits
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import DM, AllocDmAttr, Context, DeviceAttr, DeviceAttrEx, GIDEntry, PortAttr
from softverbs.pyverbs.mr import MW
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.qp import QP, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

PRESENT = (
    "XRC MEM_WINDOW MEM_WINDOW_TYPE_2B MEM_MGT_EXTENSIONS SRQ_RESIZE RC_RNR_NAK_GEN CURR_QP_STATE_MOD "
    "PORT_ACTIVE_EVENT SYS_IMAGE_GUID BAD_PKEY_CNTR BAD_QKEY_CNTR"
)
ABSENT = "AUTO_PATH_MIG RAW_MULTI MEM_WINDOW_TYPE_2A RESIZE_MAX_WR UD_IP_CSUM RC_IP_CSUM"


@pytest.fixture
def context(world: World) -> Context:
    return world.a.context


def test_capabilities(context: Context) -> None:
    attr = context.query_device()
    for name in PRESENT.split():
        assert attr.device_cap_flags & getattr(e, f"IBV_DEVICE_{name}"), name
        assert f"IBV_DEVICE_{name}" in str(attr)
    for name in ABSENT.split():
        assert not attr.device_cap_flags & getattr(e, f"IBV_DEVICE_{name}"), name
    assert attr.vendor_id == 0xFFFFFF
    assert attr.page_size_cap >= 4096
    assert attr.max_total_mcast_qp_attach == attr.max_mcast_grp * attr.max_mcast_qp_attach


def test_extended_capabilities(context: Context) -> None:
    attr = context.query_device_ex()
    assert attr.device_cap_flags_ex & 0xFFFFFFFF == attr.orig_attr.device_cap_flags
    assert attr.device_cap_flags_ex >> 38 == 0b111  # FLUSH_GLOBAL, FLUSH_PERSISTENT, ATOMIC_WRITE
    assert (attr.completion_timestamp_mask, attr.hca_core_clock) == (2**64 - 1, 10**6)  # ns
    assert (attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period) == (65535, 65535)
    assert attr.odp_caps.general_caps == e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT
    caps = attr.odp_caps
    send, recv, write = e.IBV_ODP_SUPPORT_SEND, e.IBV_ODP_SUPPORT_RECV, e.IBV_ODP_SUPPORT_WRITE
    assert caps.ud_odp_caps == send | recv | e.IBV_ODP_SUPPORT_SRQ_RECV
    assert caps.uc_odp_caps == caps.ud_odp_caps | write
    assert caps.rc_odp_caps == 0xFF
    assert caps.xrc_odp_caps == caps.uc_odp_caps & ~recv | e.IBV_ODP_SUPPORT_READ | e.IBV_ODP_SUPPORT_ATOMIC
    assert attr.phys_port_cnt_ex == attr.orig_attr.phys_port_cnt == 1
    for absent in (attr.tso_caps, attr.rss_caps, attr.packet_pacing_caps, attr.tm_caps, attr.pci_atomic_caps):
        assert not any(vars(absent).values())
    assert (attr.max_wq_type_rq, attr.raw_packet_caps) == (0, 0)


#: Option, attribute, what makes one object more; and the errno past the limit.
COUNTS: list[tuple[str, str, Callable[[World], Any], int]] = [
    ("max_qp", "max_qp", lambda w: w.a.qp(), errno.ENOMEM),
    ("max_cq", "max_cq", lambda w: CQ(w.a.context, 4), errno.ENOMEM),
    ("max_pd", "max_pd", lambda w: PD(w.a.context), errno.ENOMEM),
    ("max_srq", "max_srq", lambda w: SRQ(w.a.pd, SrqInitAttr(SrqAttr(4, 1))), errno.ENOMEM),
    ("max_ah", "max_ah", lambda w: AH(w.a.pd, attr=_way(w)), errno.ENOMEM),
    ("max_mw", "max_mw", lambda w: MW(w.a.pd, e.IBV_MW_TYPE_2), errno.ENOMEM),
]


def _way(world: World) -> AHAttr:
    return AHAttr(gr=GlobalRoute(world.b.context.query_gid(1, 0)), is_global=1, port_num=1)


@pytest.mark.parametrize(("option", "name", "make", "code"), COUNTS, ids=[row[0] for row in COUNTS])
def test_so_many_and_no_more(
    build: Callable[..., World], option: str, name: str, make: Callable[[World], Any], code: int
) -> None:
    world = build("network", **{option: 3})
    assert getattr(world.a.context.query_device(), name) == 3
    kept = []
    for _ in range(10):
        try:
            kept.append(make(world))
        except Exception:
            break
    assert 1 <= len(kept) <= 3
    refused(code, make, world)
    kept.pop().close()
    make(world).close()


def test_xrc_domains(build: Callable[..., World]) -> None:
    world = build("network", max_xrcd=2)
    mask = e.IBV_XRCD_INIT_ATTR_FD | e.IBV_XRCD_INIT_ATTR_OFLAGS
    kept = [XRCD(world.a.context, XRCDInitAttr(mask, os.O_CREAT, -1)) for _ in range(2)]
    refused(errno.ENOMEM, XRCD, world.a.context, XRCDInitAttr(mask, os.O_CREAT, -1))
    assert len(kept) == 2


def test_sizes(world: World) -> None:
    context = world.a.context
    attr = context.query_device()
    cq = world.a.cq
    with SRQ(world.a.pd, SrqInitAttr(SrqAttr(attr.max_srq_wr, attr.max_srq_sge))):
        pass
    refused(errno.EINVAL, SRQ, world.a.pd, SrqInitAttr(SrqAttr(attr.max_srq_wr + 1, 1)))
    refused(errno.EINVAL, SRQ, world.a.pd, SrqInitAttr(SrqAttr(1, attr.max_srq_sge + 1)))
    for name, most in (("max_send_wr", attr.max_qp_wr), ("max_recv_sge", attr.max_sge), ("max_send_sge", attr.max_sge)):
        init = QPInitAttr(e.IBV_QPT_RC, None, cq, cq, None, QPCap(**{name: most + 1}))
        assert name in refused(errno.EINVAL, QP, world.a.pd, init)
    assert attr.max_mr_size == limits.MAX_MR_SIZE


def test_device_memory(context: Context) -> None:
    most = context.query_device_ex().max_dm_size
    assert most > 0
    with DM(context, AllocDmAttr(length=most)):
        refused(errno.ENOMEM, DM, context, AllocDmAttr(length=most))
    with DM(context, AllocDmAttr(length=most)):
        pass


def test_port(world: World) -> None:
    attr = world.a.context.query_port(1)
    assert (attr.state, attr.phys_state) == (e.IBV_PORT_ACTIVE, 5)
    assert attr.port_cap_flags & e.IBV_PORT_CM_SUP
    assert attr.port_cap_flags & e.IBV_PORT_IP_BASED_GIDS
    assert (attr.bad_pkey_cntr, attr.qkey_viol_cntr, attr.lid, attr.sm_lid, attr.lmc) == (0, 0, 0, 0, 0)
    assert "Active (4)" in str(attr)


def test_the_gid_table_must_fit(context: Context) -> None:
    assert len(context.query_gid_table(4)) == 4
    with pytest.raises(Exception, match="max_entries is 3, the table has 4") as caught:
        context.query_gid_table(3)
    assert (caught.value.error_code, caught.value.errno) == (-errno.EINVAL, errno.EINVAL)  # type: ignore[attr-defined]


def test_empty_entries_of_the_gid_table(context: Context) -> None:
    assert context.query_port(1).gid_tbl_len == 8
    for index in (4, 7):
        assert not any(context.query_gid(1, index).raw)
        for ask in (context.query_gid_ex, context.query_gid_type):
            assert f"entry {index} of the GID table is empty" in refused(errno.ENODATA, ask, 1, index)
    refused(errno.EINVAL, context.query_gid, 1, 8)


def test_functions(world: World) -> None:
    context = world.a.context
    attr, extended, port, entry = DeviceAttr(), DeviceAttrEx(), PortAttr(), GIDEntry()
    assert verbs.ibv_query_device(context, attr) == 0
    assert attr.max_srq == limits.MAX_SRQ
    assert verbs.ibv_query_device_ex(context, None, extended) == 0
    assert extended.max_dm_size > 0
    assert verbs.ibv_query_port(context, 1, port) == 0
    assert verbs.ibv_query_gid_ex(context, 1, 0, entry, 0) == 0
    assert entry.gid_str() == str(context.query_gid(1, 0))
    assert verbs.ibv_query_gid_ex(context, 1, 9, entry, 0) == errno.EINVAL
    assert verbs.ibv_query_gid_ex(context, 1, 4, entry, 0) == errno.ENODATA
    table: list[Any] = []
    assert verbs.ibv_query_gid_table(context, table, 8, 0) == 4
    assert [found.gid_index for found in table] == [0, 1, 2, 3]
    assert verbs.ibv_query_gid_table(context, table, 0, 0) == -errno.EINVAL
    assert verbs.ibv_import_device(-1) is None
