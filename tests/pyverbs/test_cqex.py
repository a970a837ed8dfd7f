# SPDX-License-Identifier: MIT
"""Extended completion queues: start_poll, poll_next, end_poll, and what can be read."""

import errno
import threading
from typing import Any

import pytest

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQEX, CqInitAttrEx, PollCqAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.wr import SGE, SendWR

TIMES = e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
READERS = (
    "opcode vendor_err byte_len imm_data qp_num src_qp wc_flags slid sl dlid_path_bits timestamp "
    "completion_wallclock_ns"
)


def test_a_batch(rig: Any) -> None:
    cq = CQEX(rig.context, CqInitAttrEx(16, wc_flags=e.IBV_WC_STANDARD_FLAGS | TIMES))
    first, _ = rig.pair(cq)
    assert cq.start_poll(None) == errno.ENOENT
    for wr_id in (1, 2, 3):
        first.post_send(rig.write(wr_id=wr_id))
    rig.run()
    assert cq.start_poll(PollCqAttr()) == 0
    assert (cq.wr_id, cq.status, cq.read_opcode(), cq.read_qp_num()) == (1, 0, e.IBV_WC_RDMA_WRITE, first.qp_num)
    early = cq.read_timestamp()
    assert early <= rig.device.clock()
    assert cq.read_completion_wallclock_ns() >= early
    for name in READERS.split():
        assert isinstance(getattr(cq, f"read_{name}")(), int)
    assert cq.reason == ""
    for name in ("status", "wr_id"):
        with pytest.raises(AttributeError):
            setattr(cq, name, 1)
    assert cq.poll_next() == 0
    assert cq.wr_id == 2
    cq.end_poll()
    assert cq.start_poll(None) == 0
    assert cq.wr_id == 3
    assert cq.poll_next() == errno.ENOENT
    cq.end_poll()
    assert cq.start_poll(None) == errno.ENOENT


def test_what_was_not_asked_for_cannot_be_read(rig: Any) -> None:
    cq = CQEX(rig.context, CqInitAttrEx(16))
    first, _ = rig.pair(cq)
    with pytest.raises(PyverbsRDMAError, match="no completion is current"):
        _ = cq.status
    first.post_send(rig.write())
    rig.run()
    assert cq.start_poll(None) == 0
    assert cq.read_opcode() == e.IBV_WC_RDMA_WRITE
    for name, flag in (
        ("byte_len", "BYTE_LEN"),
        ("imm_data", "IMM"),
        ("qp_num", "QP_NUM"),
        ("timestamp", "COMPLETION_TIMESTAMP"),
        ("cvlan", "CVLAN"),
        ("flow_tag", "FLOW_TAG"),
        ("tm_info", "TM_INFO"),
    ):
        with pytest.raises(PyverbsRDMAError, match=f"IBV_WC_EX_WITH_{flag}"):
            getattr(cq, f"read_{name}")()
    cq.end_poll()


def test_the_order_of_calls_is_kept(rig: Any) -> None:
    cq = CQEX(rig.context, CqInitAttrEx(16))
    first, _ = rig.pair(cq)
    for call in (cq.poll_next, cq.end_poll):
        with pytest.raises(PyverbsRDMAError, match="start_poll comes first"):
            call()
    for _ in range(2):
        first.post_send(rig.write())
    rig.run()
    assert cq.start_poll(None) == 0
    with pytest.raises(PyverbsRDMAError, match="end_poll comes first"):
        cq.start_poll(None)
    cq.end_poll()
    unknown = PollCqAttr()
    unknown.comp_mask = 1
    assert cq.start_poll(unknown) == errno.EINVAL
    with pytest.raises(PyverbsRDMAError, match="PollCqAttr"):
        cq.start_poll(5)


def test_a_batch_keeps_other_threads_out(rig: Any) -> None:
    cq = CQEX(rig.context, CqInitAttrEx(16))
    first, _ = rig.pair(cq)
    for wr_id in (1, 2):
        first.post_send(rig.write(wr_id=wr_id))
    rig.run()
    seen = []

    def other() -> None:
        cq.start_poll(None)
        seen.append(cq.wr_id)
        cq.end_poll()

    assert cq.start_poll(None) == 0
    thread = threading.Thread(target=other)
    thread.start()
    thread.join(0.05)
    assert seen == []
    assert cq.wr_id == 1
    cq.end_poll()
    thread.join(30)
    assert seen == [2]


def test_two_threads_on_a_single_threaded_queue_are_noticed_in_debug_mode() -> None:
    device = Device(link=Network().link("10.0.0.1"), thread=False, debug=True)
    context = Context(device=device)
    flags = e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED
    cq = CQEX(context, CqInitAttrEx(16, comp_mask=e.IBV_CQ_INIT_ATTR_MASK_FLAGS, flags=flags))
    cq._batch.acquire()
    with pytest.raises(PyverbsRDMAError, match="SINGLE_THREADED"):
        cq.start_poll(None)
    cq._batch.release()
    context.close()
    device.close()


def test_an_error_says_why(rig: Any) -> None:
    cq = CQEX(rig.context)
    first, _ = rig.pair(cq)
    first.post_send(rig.write(rkey=0xDEAD00))
    rig.run()
    assert cq.start_poll(None) == 0
    assert cq.status == e.IBV_WC_REM_ACCESS_ERR
    assert "0xdead00" in cq.reason
    cq.end_poll()


def test_closing_in_the_middle_of_a_batch(rig: Any) -> None:
    cq = CQEX(rig.context)
    first, _ = rig.pair(cq)
    first.post_send(rig.write())
    rig.run()
    assert cq.start_poll(None) == 0
    cq.close()
    with pytest.raises(PyverbsRDMAError, match="CQ is closed"):
        cq.read_opcode()


def test_atomic_result_length(rig: Any) -> None:
    cq = CQEX(rig.context, CqInitAttrEx(16, wc_flags=e.IBV_WC_EX_WITH_BYTE_LEN))
    first, _ = rig.pair(cq)
    wr = SendWR(1, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sg=[SGE(rig.mr.buf, 8, rig.mr.lkey)])
    wr.set_wr_atomic(rig.mr.rkey, rig.mr.buf + 2048, 5)
    first.post_send(wr)
    rig.run()
    assert cq.start_poll(None) == 0
    assert (cq.status, cq.read_byte_len()) == (0, 8)
    cq.end_poll()
    assert int.from_bytes(rig.memory[2048:2056], "little") == 5
