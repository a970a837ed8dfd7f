# SPDX-License-Identifier: MIT
"""The functions of the manual pages: their arguments, and how they say yes and no.

What makes an object returns it, or None with errno set; the others return 0, or the value of errno.
"""

import ctypes
import errno
import inspect
import os
from typing import Any

import pytest
from tests.pyverbs.world import SEND, WRITE, World

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CqInitAttrEx
from softverbs.pyverbs.device import CompCntrCaps
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import ECE, QPAttachCompCntrAttr, QPAttr, QPInitAttr, QPRateLimitAttr
from softverbs.pyverbs.wr import RecvWR, SendWR

#: Section 3 of the manual: the arguments in their order. True: the function makes an object.
MANUAL = {
    "ibv_create_comp_cntr": ("context cc_attr", True),
    "ibv_destroy_comp_cntr": ("comp_cntr", False),
    "ibv_set_comp_cntr": ("comp_cntr value", False),
    "ibv_set_err_comp_cntr": ("comp_cntr value", False),
    "ibv_inc_comp_cntr": ("comp_cntr amount", False),
    "ibv_inc_err_comp_cntr": ("comp_cntr amount", False),
    "ibv_read_comp_cntr": ("comp_cntr value", False),
    "ibv_read_err_comp_cntr": ("comp_cntr value", False),
    "ibv_query_comp_cntr_caps": ("context caps", False),
    "ibv_qp_attach_comp_cntr": ("qp comp_cntr attr", False),
    "efadv_create_comp_cntr": ("context attr efa_attr inlen", True),
    "ibv_create_cq": ("context cqe cq_context channel comp_vector", True),
    "ibv_destroy_cq": ("cq", False),
    "ibv_create_cq_ex": ("context cq_attr", True),
    "ibv_resize_cq": ("cq cqe", False),
    "ibv_modify_cq": ("cq cq_attr", False),
    "ibv_import_device": ("cmd_fd", True),
    "ibv_query_gid_ex": ("context port_num gid_index entry flags", False),
    "ibv_qp_to_qp_ex": ("qp", True),
    "ibv_wr_start": ("qp", False),
    "ibv_wr_complete": ("qp", False),
    "ibv_wr_abort": ("qp", False),
    "ibv_wr_atomic_cmp_swp": ("qp rkey remote_addr compare swap", False),
    "ibv_wr_atomic_fetch_add": ("qp rkey remote_addr add", False),
    "ibv_wr_atomic_write": ("qp rkey remote_addr atomic_wr", False),
    "ibv_wr_bind_mw": ("qp mw rkey bind_info", False),
    "ibv_wr_local_inv": ("qp invalidate_rkey", False),
    "ibv_wr_rdma_read": ("qp rkey remote_addr", False),
    "ibv_wr_rdma_write": ("qp rkey remote_addr", False),
    "ibv_wr_rdma_write_imm": ("qp rkey remote_addr imm_data", False),
    "ibv_wr_send": ("qp", False),
    "ibv_wr_send_imm": ("qp imm_data", False),
    "ibv_wr_send_inv": ("qp invalidate_rkey", False),
    "ibv_wr_send_tso": ("qp hdr hdr_sz mss", False),
    "ibv_wr_set_inline_data": ("qp addr length", False),
    "ibv_wr_set_inline_data_list": ("qp num_buf buf_list", False),
    "ibv_wr_set_sge": ("qp lkey addr length", False),
    "ibv_wr_set_sge_list": ("qp num_sge sg_list", False),
    "ibv_wr_set_ud_addr": ("qp ah remote_qpn remote_qkey", False),
    "ibv_wr_set_xrc_srqn": ("qp remote_srqn", False),
    "ibv_wr_flush": ("qp rkey remote_addr len type level", False),
    "ibv_req_notify_cq": ("cq solicited_only", False),
    "ibv_get_cq_event": ("channel cq cq_context", False),
    "ibv_ack_cq_events": ("cq nevents", False),
    "ibv_start_poll": ("cq attr", False),
    "ibv_next_poll": ("cq", False),
    "ibv_end_poll": ("cq", False),
    "ibv_create_comp_channel": ("context", True),
    "ibv_destroy_comp_channel": ("channel", False),
    "ibv_open_device": ("device", True),
    "ibv_close_device": ("context", False),
    "ibv_query_device": ("context device_attr", False),
    "ibv_query_port": ("context port_num port_attr", False),
    "ibv_query_gid": ("context port_num index gid", False),
    "ibv_query_pkey": ("context port_num index pkey", False),
    "ibv_get_async_event": ("context event", False),
    "ibv_ack_async_event": ("event", False),
    "ibv_alloc_pd": ("context", True),
    "ibv_dealloc_pd": ("pd", False),
    "ibv_reg_mr": ("pd addr length access", True),
    "ibv_dereg_mr": ("mr", False),
    "ibv_create_qp": ("pd qp_init_attr", True),
    "ibv_destroy_qp": ("qp", False),
    "ibv_modify_qp": ("qp attr attr_mask", False),
    "ibv_query_qp": ("qp attr attr_mask init_attr", False),
    "ibv_post_send": ("qp wr bad_wr", False),
    "ibv_post_recv": ("qp wr bad_wr", False),
    "ibv_open_qp": ("context qp_open_attr", True),
    "ibv_attach_mcast": ("qp gid lid", False),
    "ibv_detach_mcast": ("qp gid lid", False),
    "ibv_bind_mw": ("qp mw mw_bind", False),
    "ibv_modify_qp_rate_limit": ("qp attr", False),
    "ibv_set_ece": ("qp ece", False),
    "ibv_query_ece": ("qp ece", False),
    "ibv_create_srq": ("pd srq_init_attr", True),
    "ibv_create_srq_ex": ("context srq_init_attr_ex", True),
    "ibv_destroy_srq": ("srq", False),
    "ibv_modify_srq": ("srq srq_attr srq_attr_mask", False),
    "ibv_query_srq": ("srq srq_attr", False),
    "ibv_get_srq_num": ("srq srq_num", False),
    "ibv_post_srq_recv": ("srq wr bad_wr", False),
    "ibv_post_srq_ops": ("srq wr bad_wr", False),
    "ibv_open_xrcd": ("context xrcd_init_attr", True),
    "ibv_close_xrcd": ("xrcd", False),
    "ibv_create_ah": ("pd attr", True),
    "ibv_destroy_ah": ("ah", False),
    "ibv_init_ah_from_wc": ("context port_num wc grh ah_attr", False),
    "ibv_create_ah_from_wc": ("pd wc grh port_num", True),
}
JUNK: list[Any] = [None, 5, -1, 2**64, 1.5, "x", b"x", [], {}, object(), ctypes.c_uint64(7), int]
every_function = pytest.mark.parametrize("name", MANUAL)


def fails(name: str, *args: Any) -> int:
    """Calls what must be refused, and returns the errno by the function's convention."""
    ctypes.set_errno(0)
    result = getattr(verbs, name)(*args)
    if MANUAL[name][1]:
        assert result is None
        result = ctypes.get_errno()
    assert isinstance(result, int) and result > 0
    assert verbs.last_reason()
    return result


@pytest.fixture
def one(build: Any) -> Any:
    return build()


@every_function
def test_arguments_are_named_and_ordered_as_in_the_manual(name: str) -> None:
    assert list(inspect.signature(getattr(verbs, name)).parameters) == MANUAL[name][0].split()
    assert getattr(verbs, name).__doc__


@every_function
@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: type(junk).__name__ if junk is not int else "class")
def test_what_is_no_object_is_refused_by_the_convention(name: str, junk: Any) -> None:
    """Nothing but the convention: no exception, whatever is passed."""
    arguments = MANUAL[name][0].split()
    code = fails(name, *[junk] * len(arguments))
    assert code in (errno.EINVAL, errno.ENODEV, errno.EBADF)


def test_readers_of_a_completion_refuse_what_is_no_queue() -> None:
    """They return the value itself, so that a refusal can only be an exception; but one of ours."""
    readers = [name for name in verbs.__all__ if name.startswith("ibv_wc_read_") and name != "ibv_wc_read_tm_info"]
    assert len(readers) >= 12
    for name in readers:
        for junk in JUNK:
            with pytest.raises(PyverbsError):
                getattr(verbs, name)(junk)


def test_errno_is_left_alone_by_what_succeeds(one: World) -> None:
    ctypes.set_errno(77)
    counter = verbs.ibv_create_comp_cntr(one.a.context, CompCntrInitAttr())
    assert verbs.ibv_inc_comp_cntr(counter, 1) == 0
    assert verbs.ibv_destroy_comp_cntr(counter) == 0
    assert ctypes.get_errno() == 77


@pytest.mark.parametrize(
    "family",
    [
        ("ibv_read_comp_cntr", "ibv_set_comp_cntr", "ibv_inc_comp_cntr"),
        ("ibv_read_err_comp_cntr", "ibv_set_err_comp_cntr", "ibv_inc_err_comp_cntr"),
    ],
)
def test_counter_values_go_through_pointers_to_uint64(one: World, family: tuple[str, str, str]) -> None:
    read, assign, increment = (getattr(verbs, name) for name in family)
    counter = verbs.ibv_create_comp_cntr(one.a.context, CompCntrInitAttr())
    value = ctypes.c_uint64(99)
    assert (read(counter, value), value.value) == (0, 0)
    assert (assign(counter, 2**64 - 1), read(counter, ctypes.byref(value)), value.value) == (0, 0, 2**64 - 1)
    assert (increment(counter, 3), read(counter, ctypes.pointer(value)), value.value) == (0, 0, 2)
    for bad in (-1, 2**64, 1.5, "1", None):
        assert fails(family[1], counter, bad) == errno.EINVAL
        assert fails(family[2], counter, bad) == errno.EINVAL
    for bad in (None, 5, "x", object()):
        assert fails(family[0], counter, bad) == errno.EINVAL
    assert (read(counter, value), value.value) == (0, 2)


@pytest.mark.row("0: create")
@pytest.mark.parametrize(
    ("attr", "code"),
    [
        (CompCntrInitAttr(cntr_type=2), errno.EOPNOTSUPP),
        (CompCntrInitAttr(flags=1), errno.EINVAL),
        (CompCntrInitAttr(comp_mask=1), errno.EINVAL),
    ],
)
def test_creating_a_counter_is_none_with_errno(one: World, attr: CompCntrInitAttr, code: int) -> None:
    assert fails("ibv_create_comp_cntr", one.a.context, attr) == code


@pytest.mark.row("0: create")
def test_the_structures_have_the_members_of_the_manual(one: World) -> None:
    counter = verbs.ibv_create_comp_cntr(one.a.context, CompCntrInitAttr(comp_mask=0, cntr_type=1, flags=0))
    assert counter.context is one.a.context
    assert 0 <= counter.handle < 2**32
    caps = CompCntrCaps()
    assert verbs.ibv_query_comp_cntr_caps(one.a.context, caps) == 0
    assert (caps.max_value, caps.supported_qp_attach_ops) == (2**64 - 1, 0x3F)
    assert caps.max_counters >= 1
    bits = ["SEND", "RECV", "RDMA_READ", "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE"]
    assert [getattr(e, f"IBV_QP_ATTACH_COMP_CNTR_OP_{bit}") for bit in bits] == [1, 2, 4, 8, 16, 32]
    assert (e.IBV_COMP_CNTR_TYPE_WRS, e.IBV_COMP_CNTR_TYPE_BYTES) == (0, 1)


@pytest.mark.row("0: attach")
def test_attaching_is_0_or_errno(one: World) -> None:
    side = one.a
    qp, counter = side.qp(), side.counter()

    def attach(op_mask: int, comp_mask: int = 0) -> int:
        return int(verbs.ibv_qp_attach_comp_cntr(qp, counter, QPAttachCompCntrAttr(op_mask, comp_mask)))

    assert [attach(0), attach(1, 1), attach(64)] == [errno.EINVAL, errno.EINVAL, errno.EOPNOTSUPP]
    assert [attach(SEND), attach(SEND | WRITE), attach(WRITE)] == [0, errno.EBUSY, 0]
    assert fails("ibv_destroy_comp_cntr", counter) == errno.EBUSY
    assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_destroy_comp_cntr(counter) == 0


def test_closed_objects_are_einval(one: World) -> None:
    context = one.a.context
    counter = verbs.ibv_create_comp_cntr(context, CompCntrInitAttr())
    channel = verbs.ibv_create_comp_channel(context)
    cq = verbs.ibv_create_cq(context, 4, None, None, 0)
    extended = verbs.ibv_create_cq_ex(context, CqInitAttrEx(4))
    pd = verbs.ibv_alloc_pd(context)
    mr = verbs.ibv_reg_mr(pd, bytearray(8), 8, 0)
    qp = verbs.ibv_create_qp(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq))
    value = ctypes.c_uint64(5)
    for name, thing in (
        ("ibv_destroy_qp", qp),
        ("ibv_dereg_mr", mr),
        ("ibv_dealloc_pd", pd),
        ("ibv_destroy_cq", extended),
        ("ibv_destroy_cq", cq),
        ("ibv_destroy_comp_channel", channel),
        ("ibv_destroy_comp_cntr", counter),
    ):
        assert getattr(verbs, name)(thing) == 0
        assert fails(name, thing) == errno.EINVAL
        assert "closed" in verbs.last_reason()
    for name, arguments in (
        ("ibv_read_comp_cntr", (counter, value)),
        ("ibv_inc_comp_cntr", (counter, 1)),
        ("ibv_resize_cq", (cq, 5)),
        ("ibv_req_notify_cq", (cq, 0)),
        ("ibv_ack_cq_events", (cq, 0)),
        ("ibv_start_poll", (extended, None)),
        ("ibv_get_cq_event", (channel, ctypes.py_object(), ctypes.py_object())),
        ("ibv_create_qp", (pd, QPInitAttr(e.IBV_QPT_RC))),
        ("ibv_reg_mr", (pd, bytearray(8), 8, 0)),
        ("ibv_post_send", (qp, SendWR(), None)),
        ("ibv_post_recv", (qp, RecvWR(), None)),
        ("ibv_modify_qp", (qp, QPAttr(), 1)),
    ):
        assert fails(name, *arguments) == errno.EINVAL
    assert value.value == 5
    assert verbs.ibv_poll_cq(cq, 1, []) < 0


@pytest.mark.row("0: create")
def test_creating_a_queue_is_none_with_errno(one: World) -> None:
    context = one.a.context
    for arguments in ((0, None, None, 0), (-1, None, None, 0), (4, None, None, -1), (4, None, None, 10**6),
                      (4, None, "channel", 0), ("4", None, None, 0)):  # fmt: skip
        assert fails("ibv_create_cq", context, *arguments) == errno.EINVAL
    cq = verbs.ibv_create_cq(context, 4, "any object", None, 0)
    assert isinstance(cq, CQ)
    assert (cq.cqe, cq.cq_context) == (4, "any object")


def test_poll_returns_how_many_or_a_negative_number(world: World) -> None:
    first, _ = world.pair()
    for wr_id in range(5):
        first.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
    world.run()
    entries: list[Any] = ["old", "old", "old"]
    assert verbs.ibv_poll_cq(world.a.cq, 2, entries) == 2
    assert ([wc.wr_id for wc in entries[:2]], entries[2]) == ([0, 1], "old")
    assert verbs.ibv_poll_cq(world.a.cq, 10, entries) == 3
    assert [wc.wr_id for wc in entries] == [2, 3, 4]
    assert verbs.ibv_poll_cq(world.a.cq, 10, entries) == 0
    for arguments in ((-1, entries), (1, None), ("x", entries)):
        assert verbs.ibv_poll_cq(world.a.cq, *arguments) < 0


def test_posting_reports_the_first_request_that_was_not_posted(world: World) -> None:
    first, second = world.pair()
    bad = ctypes.py_object()
    last = world.a.wr(e.IBV_WR_RDMA_WRITE, 3)
    wrong = world.a.wr(e.IBV_WR_RDMA_WRITE, 2, sg=[world.a.sge(1)] * 9)
    good = world.a.wr(e.IBV_WR_RDMA_WRITE, 1)
    good.next_wr, wrong.next_wr = wrong, last
    assert verbs.ibv_post_send(first, good, ctypes.pointer(bad)) == errno.EINVAL
    assert bad.value.wr_id == 2
    wrong_recv = RecvWR(12, 9, [world.b.sge(1)] * 9)
    assert verbs.ibv_post_recv(second, RecvWR(11, 0, None, wrong_recv), ctypes.pointer(bad)) == errno.EINVAL
    assert bad.value.wr_id == 12
    world.run()
    assert world.a.done() == [(1, 0)]


@pytest.mark.row("2: get_cq_event")
def test_the_example_of_the_manual_page(world: World) -> None:
    """ibv_get_cq_event(3), line by line, with 5 writes to be learnt of."""
    channel = verbs.ibv_create_comp_channel(world.a.context)
    ev_ctx, ev_cq = ctypes.py_object("mine"), ctypes.py_object()
    cq = verbs.ibv_create_cq(world.a.context, 16, ev_ctx.value, channel, 0)
    assert cq is not None
    first, _ = world.connect(world.a.qp(cq), world.b.qp())
    assert verbs.ibv_req_notify_cq(cq, 0) == 0
    seen: list[int] = []
    posted = 0
    while len(seen) < 5:
        if posted < 5:
            assert verbs.ibv_post_send(first, world.a.wr(e.IBV_WR_RDMA_WRITE, posted), None) == 0
            posted += 1
        assert verbs.ibv_get_cq_event(channel, ctypes.pointer(ev_cq), ctypes.pointer(ev_ctx)) == 0
        assert (ev_cq.value, ev_ctx.value) == (cq, "mine")
        assert verbs.ibv_ack_cq_events(ev_cq.value, 1) in (None, 0)
        assert verbs.ibv_req_notify_cq(ev_cq.value, 0) == 0
        wc: list[Any] = []
        while verbs.ibv_poll_cq(cq, 1, wc):
            assert wc[0].status == e.IBV_WC_SUCCESS
            seen.append(wc[0].wr_id)
    assert seen == [0, 1, 2, 3, 4]
    os.set_blocking(channel.fd, False)
    while verbs.ibv_get_cq_event(channel, ev_cq, ev_ctx) == 0:
        verbs.ibv_ack_cq_events(cq, 1)
    assert verbs.ibv_destroy_qp(first) == 0
    assert verbs.ibv_destroy_cq(cq) == 0
    assert verbs.ibv_destroy_comp_channel(channel) == 0


def test_vendor_options_and_pacing_through_the_functions(one: World) -> None:
    qp = one.a.qp()
    ece = ECE(5, 6, 7)
    assert verbs.ibv_set_ece(qp, ece) == errno.EOPNOTSUPP
    assert verbs.ibv_set_ece(qp, ECE()) == errno.EOPNOTSUPP
    assert verbs.ibv_query_ece(qp, ece) == 0
    assert (ece.vendor_id, ece.options, ece.comp_mask) == (0, 0, 0)
    assert verbs.ibv_modify_qp_rate_limit(qp, QPRateLimitAttr(1)) == errno.EOPNOTSUPP
    assert verbs.ibv_query_qp_data_in_order(qp, e.IBV_WR_SEND, 0) == 0
    assert verbs.ibv_query_qp_data_in_order(None, "x", None) == 0
    assert "QP is expected" in verbs.last_reason()
