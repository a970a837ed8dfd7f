# SPDX-License-Identifier: MIT
"""Queue pairs through the Python face: states, attributes, posting lists, what is refused."""

import errno
from typing import Any

import pytest

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import GID, AHAttr, GlobalRoute
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPAttr
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

MASK = 0x1FFFFF


def test_creation_reports_the_actual_sizes(rig: Any) -> None:
    init = rig.init_attr(max_send_wr=5, max_inline_data=0)
    with rig.qp(max_send_wr=5) as qp:
        _, found = qp.query(e.IBV_QP_CAP)
        assert found.max_send_wr >= 5
        assert found.send_cq is rig.cq
        assert found.qp_type == e.IBV_QPT_RC
        assert found.sq_sig_all == 0
        assert init.max_send_wr == 5


@pytest.mark.parametrize(
    ("asked", "sge", "room"), [(1, 2, 48), (64, 4, 112), (65, 1, 112), (20, 32, 560), (1024, 1, 1024)]
)
def test_the_room_of_a_slot_for_inline_data_is_the_programs(rig: Any, asked: int, sge: int, room: int) -> None:
    """As with NICs: programs that ask for less than they can make use of look at what they have got."""
    init = rig.init_attr(max_send_sge=sge, max_inline_data=asked)
    with QP(rig.pd, init) as qp:
        assert init.max_inline_data == qp.query(e.IBV_QP_CAP)[0].cap.max_inline_data == room
    again = rig.init_attr(max_send_sge=sge, max_inline_data=room)
    QP(rig.pd, again).close()
    assert again.max_inline_data == room


def test_who_asks_for_no_inline_data_gets_none(rig: Any) -> None:
    init = rig.init_attr(max_send_sge=4, max_inline_data=0)
    with QP(rig.pd, init):
        assert init.max_inline_data == 0


def test_steps_and_query(rig: Any) -> None:
    first, second = rig.qp(), rig.qp()
    assert first.qp_state == e.IBV_QPS_RESET
    attr = rig.attr(second.qp_num)
    first.to_init(attr)
    assert attr.qp_state == first.qp_state == e.IBV_QPS_INIT
    first.to_rtr(attr)
    assert first.qp_state == e.IBV_QPS_RTR
    first.to_rts(attr)
    assert first.qp_state == e.IBV_QPS_RTS
    found, _ = first.query(MASK)
    for name in ("dest_qp_num", "path_mtu", "timeout", "retry_cnt", "rnr_retry", "min_rnr_timer", "max_rd_atomic",
                 "max_dest_rd_atomic", "qp_access_flags", "pkey_index", "port_num", "rq_psn", "sq_psn"):  # fmt: skip
        assert getattr(found, name) == getattr(attr, name), name
    assert found.qp_state == found.cur_qp_state == e.IBV_QPS_RTS
    assert str(found.ah_attr) == str(attr.ah_attr)
    assert found.cap.max_send_wr >= 16
    assert "RTS" in str(first)
    first.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert first.qp_state == e.IBV_QPS_ERR
    first.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
    assert first.query(1)[0].qp_state == e.IBV_QPS_RESET


def test_missing_and_invalid_attributes_are_both_named(rig: Any) -> None:
    qp = rig.qp()
    with pytest.raises(PyverbsRDMAError, match=r"missing .*IBV_QP_PORT.*not allowed .*IBV_QP_SQ_PSN") as caught:
        qp.modify(QPAttr(), e.IBV_QP_STATE | e.IBV_QP_SQ_PSN | e.IBV_QP_PKEY_INDEX)
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(PyverbsRDMAError, match="RESET to RTS"):
        qp.modify(QPAttr(qp_state=e.IBV_QPS_RTS), e.IBV_QP_STATE)
    for mask in (-1, 2**32, "x"):
        with pytest.raises(PyverbsRDMAError, match="comp_mask"):
            qp.modify(QPAttr(), mask)
    with pytest.raises(PyverbsRDMAError, match="attr_mask"):
        qp.query("x")


@pytest.mark.parametrize(
    ("name", "value"),
    [("port_num", 2), ("pkey_index", 1), ("rq_psn", 2**24), ("timeout", 32), ("rnr_retry", 8), ("path_mtu", 9)],
)
def test_attributes_out_of_range(rig: Any, name: str, value: int) -> None:
    qp = rig.qp()
    attr = rig.attr(qp.qp_num)
    setattr(attr, name, value)
    with pytest.raises(PyverbsRDMAError, match=f"{name}={value}"):
        qp.to_rts(attr)


def test_an_address_that_cannot_be(rig: Any) -> None:
    for ah, words in (
        (AHAttr(), "is_global"),
        (AHAttr(is_global=1, gr=GlobalRoute(rig.gid, sgid_index=5)), "sgid_index"),
        (AHAttr(is_global=1, gr=GlobalRoute(GID("fe80:0000:0000:0000:0000:0000:0000:0001"))), "IP version"),
    ):
        qp = rig.qp()
        attr = rig.attr(qp.qp_num)
        attr.ah_attr = ah
        with pytest.raises(PyverbsRDMAError, match=words):
            qp.to_rtr(attr)


def test_a_list_is_posted_up_to_what_is_wrong(rig: Any) -> None:
    first, _ = rig.pair()
    last = rig.write(wr_id=3)
    wrong = SendWR(2, e.IBV_WR_RDMA_WRITE, 3, sg=[SGE(rig.mr.buf, 1, rig.mr.lkey)] * 3, next_wr=last)
    wrong.set_wr_rdma(7, 8)
    good = rig.write(wr_id=1)
    good.next_wr = wrong
    bad = SendWR(sg=[], num_sge=0)
    with pytest.raises(PyverbsRDMAError, match="max_send_sge") as caught:
        first.post_send(good, bad)
    assert caught.value.errno == errno.EINVAL
    assert caught.value.bad_wr is wrong
    assert (bad.wr_id, bad.opcode, bad.num_sge, bad.rdma_rkey, bad.rdma_remote_addr) == (2, 0, 3, 7, 8)
    assert bad.next_wr is last
    rig.run()
    assert [wc.wr_id for wc in rig.cq.poll(9)[1]] == [1]


def test_a_list_of_receives_is_posted_up_to_what_is_wrong(rig: Any) -> None:
    first, _ = rig.pair()
    wrong = RecvWR(2, 3, [SGE(rig.mr.buf, 1, rig.mr.lkey)] * 3)
    bad = RecvWR()
    with pytest.raises(PyverbsRDMAError, match="max_recv_sge"):
        first.post_recv(RecvWR(1, 0, None, wrong), bad)
    assert (bad.wr_id, bad.num_sge, bad.next_wr) == (2, 3, None)
    first.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    assert [wc.wr_id for wc in rig.cq.poll(9)[1]] == [1]


def test_every_field_of_what_was_refused_is_copied(rig: Any) -> None:
    first, _ = rig.pair()
    atomic = SendWR(9, e.IBV_WR_ATOMIC_CMP_AND_SWP, 1, 5, [SGE(rig.mr.buf, 9, rig.mr.lkey)], e.IBV_SEND_FENCE)
    atomic.set_wr_atomic(1, 2, 3, 4)
    bad = SendWR(sg=[])
    with pytest.raises(PyverbsRDMAError, match="8 bytes"):
        first.post_send(atomic, bad)
    assert str(bad) == str(atomic)
    again = SendWR(sg=[])
    again.assign(bad)
    assert (again.rdma_rkey, again.rdma_remote_addr, again.send_flags) == (1, 2, e.IBV_SEND_FENCE)


def test_a_full_queue(rig: Any) -> None:
    qp = rig.qp()
    qp.to_init(rig.attr(qp.qp_num))
    for _ in range(16):
        qp.post_recv(rig.recv())
    with pytest.raises(PyverbsRDMAError, match="full") as caught:
        qp.post_recv(rig.recv())
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("wr", [None, 5, "x", [], RecvWR()])
def test_what_is_no_send_request(rig: Any, wr: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="SendWR is expected") as caught:
        rig.qp().post_send(wr)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("wr", [None, 5, "x", [], SendWR(sg=[])])
def test_what_is_no_receive_request(rig: Any, wr: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="RecvWR is expected"):
        rig.qp().post_recv(wr)


@pytest.mark.parametrize("count", ["x", None])
def test_poll_of_no_number(rig: Any, count: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="Failed to poll CQ"):
        rig.cq.poll(count)


def test_posting_in_the_wrong_state(rig: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match=r"Failed to post send: .*RESET"):
        rig.qp().post_send(rig.write())


def test_attaching_is_checked_in_order(rig: Any) -> None:
    qp, counter = rig.qp(), rig.counter()
    for attr, words in ((QPAttachCompCntrAttr(0), "op_mask"), (QPAttachCompCntrAttr(1, 1), "comp_mask")):
        with pytest.raises(PyverbsRDMAError, match=words) as caught:
            qp.attach_comp_cntr(counter, attr)
        assert caught.value.errno == errno.EINVAL
    with pytest.raises(PyverbsRDMAError) as caught:
        qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(64))
    assert caught.value.errno == errno.EOPNOTSUPP
    qp.attach_comp_cntr(counter, QPAttachCompCntrAttr(3))
    with pytest.raises(PyverbsRDMAError) as caught:
        qp.attach_comp_cntr(rig.counter(), QPAttachCompCntrAttr(6))
    assert caught.value.errno == errno.EBUSY


def test_data_of_a_receive(rig: Any) -> None:
    first, second = rig.pair()
    second.post_recv(rig.recv(wr_id=8, length=16))
    rig.mr.write("to the peer", 11)
    first.post_send(SendWR(9, e.IBV_WR_SEND, 1, sg=[SGE(rig.mr.buf, 11, rig.mr.lkey)]))
    rig.run()
    count, completions = rig.cq.poll(9)
    assert count == 2
    assert sorted((wc.wr_id, wc.opcode, wc.status) for wc in completions) == [(8, e.IBV_WC_RECV, 0), (9, 0, 0)]
    assert rig.mr.read(11, 1024) == b"to the peer"
