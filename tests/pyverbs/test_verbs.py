# SPDX-License-Identifier: MIT
"""The manual pages' functions: an object or None, 0 or the value of errno, results through ctypes."""

import ctypes
import errno
import gc
import logging
import os
import threading
import time
from typing import Any

import pytest

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import GID
from softverbs.pyverbs.comp_cntr import CompCntrInitAttr
from softverbs.pyverbs.cq import CqInitAttrEx, PollCqAttr
from softverbs.pyverbs.device import AsyncEvent, CompCntrCaps, Context, DeviceAttr, DeviceAttrEx, PortAttr
from softverbs.pyverbs.providers.efa.efadv import EfaCompCntr, EfaCompCntrInitAttr
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QPAttachCompCntrAttr, QPAttr, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR
from softverbs.verbs import queues

ATTACH = QPAttachCompCntrAttr(e.IBV_QP_ATTACH_COMP_CNTR_OP_SEND)


def refused(code: int, words: str) -> None:
    """The last call set errno and said why."""
    assert ctypes.get_errno() == code
    assert words in verbs.last_reason()


def test_every_function_is_documented_and_exported() -> None:
    for name in verbs.__all__:
        assert getattr(verbs, name).__doc__, name
    families = {
        "ibv_create_cq",
        "ibv_destroy_cq",
        "ibv_resize_cq",
        "ibv_poll_cq",
        "ibv_req_notify_cq",
        "ibv_get_cq_event",
        "ibv_ack_cq_events",
        "ibv_create_cq_ex",
        "ibv_cq_ex_to_cq",
        "ibv_start_poll",
        "ibv_next_poll",
        "ibv_end_poll",
        "ibv_wc_read_opcode",
        "ibv_create_comp_channel",
        "ibv_destroy_comp_channel",
        "ibv_create_comp_cntr",
        "ibv_destroy_comp_cntr",
        "ibv_set_comp_cntr",
        "ibv_set_err_comp_cntr",
        "ibv_inc_comp_cntr",
        "ibv_inc_err_comp_cntr",
        "ibv_read_comp_cntr",
        "ibv_read_err_comp_cntr",
        "ibv_query_comp_cntr_caps",
        "ibv_qp_attach_comp_cntr",
        "ibv_open_device",
        "ibv_close_device",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_reg_mr",
        "ibv_dereg_mr",
        "ibv_create_qp",
        "ibv_destroy_qp",
        "ibv_modify_qp",
        "ibv_query_qp",
        "ibv_post_send",
        "ibv_post_recv",
    }
    assert families <= set(verbs.__all__)


def test_counters(rig: Any) -> None:
    counter = verbs.ibv_create_comp_cntr(rig.context, CompCntrInitAttr())
    value = ctypes.c_uint64(99)
    for pointer in (value, ctypes.byref(value), ctypes.pointer(value)):
        value.value = 99
        assert verbs.ibv_read_comp_cntr(counter, pointer) == 0
        assert value.value == 0
    assert verbs.ibv_set_comp_cntr(counter, 5) == 0
    assert verbs.ibv_inc_comp_cntr(counter, 2) == 0
    assert verbs.ibv_set_err_comp_cntr(counter, 7) == 0
    assert verbs.ibv_inc_err_comp_cntr(counter, 1) == 0
    verbs.ibv_read_comp_cntr(counter, value)
    assert value.value == 7
    assert verbs.ibv_read_err_comp_cntr(counter, value) == 0
    assert value.value == 8
    assert verbs.ibv_set_comp_cntr(counter, -1) == errno.EINVAL
    refused(errno.EINVAL, "value is -1")
    assert verbs.ibv_read_comp_cntr(counter, None) == errno.EINVAL
    refused(errno.EINVAL, "value is NULL")
    assert verbs.ibv_read_comp_cntr(None, value) == errno.EINVAL
    refused(errno.EINVAL, "comp_cntr is NULL: CompCntr is expected")
    qp = rig.qp()
    assert verbs.ibv_qp_attach_comp_cntr(qp, counter, ATTACH) == 0
    assert verbs.ibv_qp_attach_comp_cntr(qp, counter, ATTACH) == errno.EBUSY
    assert verbs.ibv_destroy_comp_cntr(counter) == errno.EBUSY
    refused(errno.EBUSY, "attached")
    assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_destroy_comp_cntr(counter) == 0
    assert verbs.ibv_destroy_comp_cntr(counter) == errno.EINVAL
    refused(errno.EINVAL, "closed")


def test_creating_a_counter_can_fail(rig: Any) -> None:
    for attr, code in (
        (CompCntrInitAttr(comp_mask=1), errno.EINVAL),
        (CompCntrInitAttr(flags=1), errno.EINVAL),
        (CompCntrInitAttr(cntr_type=2), errno.EOPNOTSUPP),
    ):
        ctypes.set_errno(0)
        assert verbs.ibv_create_comp_cntr(rig.context, attr) is None
        assert ctypes.get_errno() == code
    assert verbs.ibv_create_comp_cntr(None, CompCntrInitAttr()) is None
    refused(errno.EINVAL, "context is NULL")


def test_reasons_belong_to_a_thread(rig: Any) -> None:
    verbs.ibv_create_comp_cntr(None, None)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(verbs.last_reason()))
    thread.start()
    thread.join()
    assert seen == [""]


def test_queues(rig: Any) -> None:
    assert verbs.ibv_create_cq(rig.context, 0, None, None, 0) is None
    refused(errno.EINVAL, "cqe=0")
    channel = verbs.ibv_create_comp_channel(rig.context)
    cq = verbs.ibv_create_cq(rig.context, 8, "mine", channel, 0)
    assert cq.cqe == 8
    assert verbs.ibv_resize_cq(cq, 9) == 0
    assert verbs.ibv_resize_cq(cq, 0) == errno.EINVAL
    assert verbs.ibv_destroy_comp_channel(channel) == errno.EBUSY
    first, _ = rig.pair(cq)
    assert verbs.ibv_destroy_cq(cq) == errno.EBUSY
    assert verbs.ibv_req_notify_cq(cq, 0) == 0
    assert verbs.ibv_post_send(first, rig.write(wr_id=4), None) == 0
    queue, context = ctypes.py_object(), [None]
    assert verbs.ibv_get_cq_event(channel, ctypes.byref(queue), context) == 0
    assert queue.value is cq
    assert context == ["mine"]
    assert verbs.ibv_ack_cq_events(cq, 2) == errno.EINVAL
    assert verbs.ibv_ack_cq_events(cq, 1) == 0
    os.set_blocking(channel.fd, False)
    assert verbs.ibv_get_cq_event(channel, queue, None) == errno.EAGAIN
    found: list[Any] = []
    assert verbs.ibv_poll_cq(cq, 5, found) == 1
    assert found[0].wr_id == 4
    assert verbs.ibv_poll_cq(cq, 5, found) == 0
    assert verbs.ibv_poll_cq(cq, -1, found) == -errno.EINVAL
    assert verbs.ibv_poll_cq(cq, 1, None) == -errno.EINVAL
    for qp in rig.kept:
        assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_destroy_cq(cq) == 0
    assert verbs.ibv_poll_cq(cq, 1, found) == -errno.EINVAL
    assert verbs.ibv_destroy_comp_channel(channel) == 0


def test_destroying_a_queue_waits_for_acknowledgements(
    rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queues, "PATIENCE", 0.05)
    first, second = rig.pair()
    rig.cq.req_notify()
    first.post_send(rig.write())
    rig.channel.get_cq_event(rig.cq)
    first.close()
    second.close()
    started = time.monotonic()
    timer = threading.Timer(0.3, rig.cq.ack_events, [1])
    timer.start()
    with caplog.at_level(logging.WARNING, "softverbs.verbs"):
        assert verbs.ibv_destroy_cq(rig.cq) == 0
    assert time.monotonic() - started >= 0.25
    timer.join()
    (record,) = caplog.records
    assert "waits for acknowledgements: 1 completion events were read, 0 acknowledged" in record.getMessage()


def test_extended_queues(rig: Any) -> None:
    assert verbs.ibv_create_cq_ex(rig.context, CqInitAttrEx(comp_mask=8)) is None
    assert verbs.ibv_create_cq_ex(rig.context, CqInitAttrEx(wc_flags=e.IBV_WC_EX_WITH_CVLAN)) is None
    refused(errno.EOPNOTSUPP, "CVLAN")
    flags = e.IBV_WC_STANDARD_FLAGS | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    flags |= e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    cq = verbs.ibv_create_cq_ex(rig.context, CqInitAttrEx(8, wc_flags=flags))
    assert verbs.ibv_cq_ex_to_cq(cq) is cq
    first, _ = rig.pair(cq)
    assert verbs.ibv_start_poll(cq, None) == errno.ENOENT
    assert verbs.ibv_end_poll(cq) == errno.EINVAL
    first.post_send(rig.write(wr_id=6))
    rig.run()
    assert verbs.ibv_start_poll(cq, PollCqAttr()) == 0
    assert (cq.wr_id, cq.status) == (6, 0)
    assert verbs.ibv_wc_read_opcode(cq) == e.IBV_WC_RDMA_WRITE
    assert verbs.ibv_wc_read_qp_num(cq) == first.qp_num
    for name in dir(verbs):
        if name.startswith("ibv_wc_read_") and not name.endswith(("cvlan", "flow_tag", "tm_info")):
            assert isinstance(getattr(verbs, name)(cq), int)
    assert verbs.ibv_next_poll(cq) == errno.ENOENT
    assert verbs.ibv_end_poll(cq) == 0
    assert verbs.ibv_next_poll(cq) == errno.EINVAL


def test_queue_pairs(rig: Any) -> None:
    assert verbs.ibv_create_qp(rig.pd, QPInitAttr(e.IBV_QPT_RAW_PACKET, scq=rig.cq, rcq=rig.cq)) is None
    refused(errno.EOPNOTSUPP, "qp_type")
    qp = verbs.ibv_create_qp(rig.pd, rig.init_attr())
    attr = rig.attr(qp.qp_num)
    assert verbs.ibv_modify_qp(qp, attr, e.IBV_QP_STATE) == errno.EINVAL
    refused(errno.EINVAL, "missing IBV_QP_ACCESS_FLAGS")
    mask = e.IBV_QP_STATE | e.IBV_QP_PKEY_INDEX | e.IBV_QP_PORT | e.IBV_QP_ACCESS_FLAGS
    assert verbs.ibv_modify_qp(qp, attr, mask) == 0
    found, init = QPAttr(), QPInitAttr()
    assert verbs.ibv_query_qp(qp, found, mask, init) == 0
    assert (found.qp_state, init.qp_type) == (e.IBV_QPS_INIT, e.IBV_QPT_RC)
    qp.to_rts(attr)
    bad = ctypes.py_object()
    good, wrong = rig.write(), SendWR(5, e.IBV_WR_SEND, 3, sg=[SGE(0, 1, 0)] * 3)
    good.next_wr = wrong
    assert verbs.ibv_post_send(qp, good, ctypes.pointer(bad)) == errno.EINVAL
    assert bad.value is wrong
    assert verbs.ibv_post_recv(qp, RecvWR(1), bad) == 0
    assert verbs.ibv_post_recv(qp, RecvWR(1, 3, [SGE(0, 1, 0)] * 3), bad) == errno.EINVAL
    assert bad.value.num_sge == 3
    assert verbs.ibv_post_send(qp, None, None) == errno.EINVAL
    ex = QPInitAttrEx(e.IBV_QPT_RC, scq=rig.cq, rcq=rig.cq, pd=rig.pd, comp_mask=e.IBV_QP_INIT_ATTR_PD)
    assert verbs.ibv_destroy_qp(verbs.ibv_create_qp_ex(rig.context, ex)) == 0
    assert verbs.ibv_create_qp_ex(rig.context, None) is None
    assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_destroy_qp(qp) == errno.EINVAL


def test_memory(rig: Any) -> None:
    pd = verbs.ibv_alloc_pd(rig.context)
    assert verbs.ibv_alloc_pd(None) is None
    memory = bytearray(64)
    mr = verbs.ibv_reg_mr(pd, memory, 32, e.IBV_ACCESS_LOCAL_WRITE)
    assert mr.length == 32
    again = verbs.ibv_reg_mr_iova(pd, mr.buf, 8, 0x10000, e.IBV_ACCESS_LOCAL_WRITE)
    assert (again.iova, again.buf) == (0x10000, mr.buf)
    assert verbs.ibv_reg_mr(pd, memory, 65, 0) is None
    refused(errno.EINVAL, "the buffer has 64 bytes")
    assert verbs.ibv_reg_mr(pd, 8, 8, 0) is None
    refused(errno.EFAULT, "not mapped")
    assert verbs.ibv_reg_mr(pd, "x", 8, 0) is None
    assert verbs.ibv_dealloc_pd(pd) == errno.EBUSY
    assert verbs.ibv_dereg_mr(mr) == 0
    with pytest.raises(TypeError):
        memory.append("x")
    memory.append(1)
    assert verbs.ibv_dereg_mr(again) == 0
    assert verbs.ibv_dealloc_pd(pd) == 0
    assert verbs.ibv_dealloc_pd(pd) == errno.EINVAL


def test_devices_and_queries(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from softverbs.pyverbs import device as face

    monkeypatch.setattr(face, "default_device", lambda: rig.device)
    count = ctypes.c_int()
    (entry,) = verbs.ibv_get_device_list(ctypes.byref(count))
    assert count.value == 1
    assert verbs.ibv_get_device_name(entry) == "softverbs0"
    context = verbs.ibv_open_device(entry)
    assert isinstance(context, Context)
    assert verbs.ibv_open_device(None) is None
    attr = DeviceAttr()
    assert verbs.ibv_query_device(context, attr) == 0
    assert attr.max_qp == context.query_device().max_qp
    assert verbs.ibv_get_device_guid(entry) == attr.node_guid
    extended = DeviceAttrEx()
    assert verbs.ibv_query_device_ex(context, None, extended) == 0
    assert extended.orig_attr.max_qp == attr.max_qp
    port = PortAttr()
    assert verbs.ibv_query_port(context, 1, port) == 0
    assert port.state == e.IBV_PORT_ACTIVE
    assert verbs.ibv_query_port(context, 2, port) == errno.EINVAL
    caps = CompCntrCaps()
    assert verbs.ibv_query_comp_cntr_caps(context, caps) == 0
    assert caps.max_counters == 1024
    assert verbs.ibv_query_comp_cntr_caps(context, port) == errno.EINVAL
    gid = GID()
    assert verbs.ibv_query_gid(context, 1, 0, gid) == 0
    assert str(gid) == str(rig.gid)
    pkey = ctypes.c_uint16()
    assert verbs.ibv_query_pkey(context, 1, 0, ctypes.byref(pkey)) == 0
    assert pkey.value == 0xFFFF
    verbs.ibv_free_device_list([entry])
    assert verbs.ibv_close_device(context) == 0
    assert verbs.ibv_query_device(context, attr) == errno.EINVAL
    assert verbs.ibv_wc_status_str(0) == "success"
    assert verbs.ibv_event_type_str(0) == "IBV_EVENT_CQ_ERR"


def test_counters_in_memory_of_the_application(rig: Any) -> None:
    words = (ctypes.c_uint64 * 2)(5, 6)
    attr = verbs.efadv_comp_cntr_init_attr()
    attr.flags = 1
    attr.comp_cntr_ext_mem.ptr = ctypes.addressof(words)
    size = ctypes.sizeof(attr)
    assert size == 80, "as struct efadv_comp_cntr_init_attr"
    counter = verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), attr, size)
    assert verbs.ibv_inc_comp_cntr(counter, 4) == 0
    assert list(words) == [4, 6]
    assert verbs.ibv_destroy_comp_cntr(counter) == 0
    assert verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), attr, 8) is None
    refused(errno.EINVAL, "inlen")
    attr.comp_cntr_ext_mem.type = 1
    assert verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), attr, size) is None
    refused(errno.EOPNOTSUPP, "virtual addresses")
    attr.comp_cntr_ext_mem.type = 0
    attr.comp_cntr_ext_mem.ptr = 8
    assert verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), attr, size) is None
    refused(errno.EFAULT, "not mapped")
    attr.flags = 4
    assert verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), attr, size) is None
    refused(errno.EINVAL, "flags")
    assert verbs.efadv_create_comp_cntr(rig.context, CompCntrInitAttr(), None, size) is None


def test_a_buffer_that_a_counter_lives_in_is_held(rig: Any) -> None:
    value, error = bytearray(8), bytearray(16)
    counter = EfaCompCntr(rig.context, CompCntrInitAttr(), EfaCompCntrInitAttr(value, error))
    counter.inc(3)
    counter.inc_err(2)
    assert (value, error[:8]) == (bytes([3]) + bytes(7), bytes([2]) + bytes(7))
    with pytest.raises(BufferError):
        value.append(1)
    del counter
    gc.collect()
    value.append(1)
    for memory in (bytearray(7), bytes(8)):
        with pytest.raises(PyverbsRDMAError, match="writable buffer"):
            EfaCompCntrInitAttr(memory)
    assert EfaCompCntr(rig.context, CompCntrInitAttr()).read() == 0
    with pytest.raises(PyverbsRDMAError, match="type"):
        EfaCompCntr(rig.context, CompCntrInitAttr(cntr_type=9), EfaCompCntrInitAttr(value))


def test_asynchronous_events(rig: Any) -> None:
    small = verbs.ibv_create_cq(rig.context, 1, None, None, 0)
    first, second = rig.pair(small)
    for _ in range(2):
        first.post_send(rig.write())
    rig.run()
    event = AsyncEvent()
    assert verbs.ibv_get_async_event(rig.context, event) == 0
    assert event.event_type == e.IBV_EVENT_CQ_ERR
    first.close()
    second.close()
    timer = threading.Timer(0.05, verbs.ibv_ack_async_event, [event])
    timer.start()
    assert verbs.ibv_destroy_cq(small) == 0
    timer.join()
    os.set_blocking(rig.context.async_fd, False)
    assert verbs.ibv_get_async_event(rig.context, event) == errno.EAGAIN
    assert verbs.ibv_get_async_event(rig.context, None) == errno.EINVAL
