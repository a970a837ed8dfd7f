# SPDX-License-Identifier: MIT
"""XRC domains, and target QPs that several open (ibv_open_xrcd(3), ibv_open_qp(3))."""

import ctypes
import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pyverbs.services import (
    SRQ_MASK,
    XRCD_MASK,
    Scene,
    initiator,
    stock,
    target,
    xrc_pair,
    xrcd,
    xsrq,
)
from tests.pyverbs.world import ALL, World, fill, refused

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPInitAttrEx, QPOpenAttr, open_qp
from softverbs.pyverbs.srq import SRQ, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

SUCCESS = e.IBV_WC_SUCCESS


@pytest.fixture
def one(build: Any) -> World:
    made: World = build()
    return made


@pytest.fixture
def name(tmp_path: Path) -> Iterator[int]:
    """A descriptor of a file that names a domain."""
    fd = os.open(tmp_path / "domain", os.O_RDONLY | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


# -- domains


def test_a_file_names_a_domain(one: World, name: int, tmp_path: Path) -> None:
    assert "O_CREAT" in refused(errno.EAGAIN, xrcd, one.a, name, 0)
    first = xrcd(one.a, name)
    second = xrcd(one.a, name, 0)
    again = os.open(tmp_path / "domain", os.O_RDONLY)
    third = xrcd(one.a, again, os.O_CREAT)
    os.close(again)
    assert first.handle == second.handle == third.handle
    other = xrcd(one.a)
    assert other.handle != first.handle
    assert "O_EXCL" in refused(errno.EINVAL, xrcd, one.a, name, os.O_CREAT | os.O_EXCL)
    first.close()
    third.close()
    assert second.handle == xrcd(one.a, name, 0).handle
    second.close()
    gc.collect()
    fresh = xrcd(one.a, name, os.O_CREAT | os.O_EXCL)
    assert fresh.handle > 0


def test_a_domain_is_not_confused_with_a_later_file_of_the_same_number(one: World, tmp_path: Path) -> None:
    path = tmp_path / "gone"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    first = xrcd(one.a, fd)
    os.close(fd)
    path.unlink()
    later = [os.open(tmp_path / f"later{number}", os.O_RDWR | os.O_CREAT, 0o600) for number in range(50)]
    domains = [xrcd(one.a, fd, os.O_CREAT | os.O_EXCL) for fd in later]
    assert len({first.handle, *(domain.handle for domain in domains)}) == 51
    for fd in later:
        os.close(fd)


def test_contexts_of_a_device_share_a_domain(one: World, name: int) -> None:
    """What XRC is for: one makes the connection, another owns the queue that a message is for."""
    other = Context(device=one.b.device)
    mine, theirs = xrcd(one.b, name), XRCD(other, XRCDInitAttr(XRCD_MASK, 0, name))
    pd, cq, memory = PD(other), CQ(other, 16), bytearray(64)
    mr = MR(pd, memory, ALL)
    attr = SrqInitAttrEx(8)
    attr.comp_mask, attr.srq_type = SRQ_MASK, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = pd, theirs, cq
    queue = SRQ(other, attr)
    queue.post_recv(RecvWR(10, 1, [SGE(mr.buf, 64, mr.lkey)]))
    ini, _ = xrc_pair(one, mine)
    fill(one.a.memory, b"to the other")
    wr = one.a.wr(e.IBV_WR_SEND, 1, 12)
    wr.set_qp_type_xrc(queue.get_srq_num())
    ini.post_send(wr)
    one.settle()
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [10]
    assert memory[:12] == b"to the other"
    other.close()


def test_devices_do_not_share_domains(one: World, name: int) -> None:
    xrcd(one.a, name)
    first = xrcd(one.a, name)
    assert "O_CREAT" in refused(errno.EAGAIN, xrcd, one.b, name, 0)
    assert first.handle > 0


@pytest.mark.parametrize(
    ("mask", "fd", "code", "words"),
    [
        (0, -1, errno.EINVAL, "both"),
        (e.IBV_XRCD_INIT_ATTR_FD, -1, errno.EINVAL, "both"),
        (7, -1, errno.EOPNOTSUPP, "comp_mask"),
        (XRCD_MASK, 999_999, errno.EBADF, "fd=999999"),
        (XRCD_MASK, -2, errno.EBADF, "fd=-2"),
    ],
)
def test_attributes_of_a_domain_that_cannot_be_had(one: World, mask: int, fd: int, code: int, words: str) -> None:
    assert words in refused(code, XRCD, one.a.context, XRCDInitAttr(mask, os.O_CREAT, fd))


def test_arguments_that_are_none(one: World) -> None:
    for junk in (None, 5, "x", object(), one.a.pd):
        assert "Context is expected" in refused(errno.EINVAL, XRCD, junk, XRCDInitAttr(XRCD_MASK, 0, -1))
        assert "XRCDInitAttr is expected" in refused(errno.EINVAL, XRCD, one.a.context, junk)
        if junk is not None:
            for holder in (SrqInitAttrEx(), QPInitAttrEx(), QPOpenAttr()):
                assert "XRCD is expected" in refused(errno.EINVAL, setattr, holder, "xrcd", junk)
        assert "is expected" in refused(errno.EINVAL, open_qp, one.a.context, junk)
        assert "is expected" in refused(errno.EINVAL, open_qp, junk, QPOpenAttr())


def test_no_more_domains_than_the_device_has(build: Any, name: int) -> None:
    side = build(max_xrcd=1).a
    domain = xrcd(side, name)
    assert xrcd(side, name).handle == domain.handle
    assert "XRC domain" in refused(errno.ENOMEM, xrcd, side)
    domain.close()
    gc.collect()
    xrcd(side).close()


def test_a_domain_in_use_stays(one: World, name: int) -> None:
    domain, other = xrcd(one.b, name), xrcd(one.b, name)
    queue, qp = xsrq(one.b, domain), target(one.b, domain)
    assert verbs.ibv_close_xrcd(domain) == errno.EBUSY
    assert "2 SRQs or QPs" in verbs.last_reason()
    assert verbs.ibv_close_xrcd(other) == 0, "nothing was made with this one"
    assert verbs.ibv_close_xrcd(other) == errno.EINVAL
    assert verbs.ibv_destroy_srq(queue) == 0
    assert verbs.ibv_close_xrcd(domain) == errno.EBUSY
    assert verbs.ibv_destroy_qp(qp) == 0
    assert verbs.ibv_close_xrcd(domain) == 0


def test_closing_a_domain_closes_what_was_made_with_it(one: World) -> None:
    domain = xrcd(one.b)
    queue, qp = xsrq(one.b, domain), target(one.b, domain)
    domain.close()
    domain.close()
    assert (queue.srq, qp.qp, qp.context) == (0, 0, None)
    assert "closed" in refused(errno.EINVAL, lambda: domain.handle)
    with pytest.raises(PyverbsError, match="closed"):
        target(one.b, domain)


def test_what_was_made_keeps_its_domain(world: World) -> None:
    scene = Scene(world).connect()
    del scene.domain
    gc.collect()
    stock(world.b, scene.srqs[0], 10)
    scene.send(0)
    assert scene.receives(0) == [(10, SUCCESS)]


def test_a_queue_of_a_queue_pair_that_is_gone_goes_on(world: World) -> None:
    scene = Scene(world).connect()
    scene.tgt.close()
    ini, _ = xrc_pair(world, scene.domain)
    stock(world.b, scene.srqs[0], 10)
    wr = scene.wr(0)
    ini.post_send(wr)
    world.settle()
    assert scene.receives(0) == [(10, SUCCESS)]


@pytest.mark.row("2: Destroy while used")
def test_a_cq_is_closed_after_its_queues(one: World) -> None:
    cq = CQ(one.b.context, 8)
    queue = xsrq(one.b, xrcd(one.b), cq)
    assert verbs.ibv_destroy_cq(cq) == errno.EBUSY
    cq.close()
    assert queue.srq == 0


def test_things_of_another_context_are_refused(one: World) -> None:
    other = Context(device=one.b.device)
    domain = XRCD(other, XRCDInitAttr(XRCD_MASK, os.O_CREAT, -1))
    attr = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=domain)
    assert "xrcd belongs to another context" in refused(errno.EINVAL, QP, one.b.context, attr)
    assert "xrcd belongs to another context" in refused(errno.EINVAL, xsrq, one.b, domain)
    assert "xrcd belongs to another context" in refused(errno.EINVAL, open_qp, one.b.context, QPOpenAttr(xrcd=domain))
    other.close()


# -- opened queue pairs


def test_a_target_is_opened_by_its_number(world: World, name: int) -> None:
    """Who opens it can move it through its states; it ends with the last who has it."""
    domain = xrcd(world.b, name)
    made = target(world.b, domain)
    other = Context(device=world.b.device)
    theirs = XRCD(other, XRCDInitAttr(XRCD_MASK, 0, name))
    opened = open_qp(other, QPOpenAttr(15, made.qp_num, theirs, "mine"))
    assert (opened.qp_num, opened.qp_type, opened.qp_context) == (made.qp_num, e.IBV_QPT_XRC_RECV, "mine")
    ini = initiator(world.a)
    attr = world.attr(made, ini.qp_num)
    opened.to_rts(attr)
    assert made.qp_state == opened.qp_state == e.IBV_QPS_RTS
    ini.to_rts(world.attr(ini, opened.qp_num))
    made.close()
    assert opened.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RTS
    queue = xsrq(world.b, domain)
    stock(world.b, queue, 10)
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(queue.get_srq_num())
    ini.post_send(wr)
    world.settle()
    assert (10, SUCCESS) in [entry for side in {world.a, world.b} for entry in side.done()]
    number = opened.qp_num
    assert verbs.ibv_destroy_qp(opened) == 0
    assert "no QP" in refused(errno.EINVAL, open_qp, world.b.context, QPOpenAttr(qp_num=number, xrcd=domain))
    other.close()


@pytest.mark.row("1: Attach: EINVAL")
def test_counters_cannot_be_attached_to_an_opened_queue_pair(one: World) -> None:
    domain = xrcd(one.b)
    made = target(one.b, domain)
    opened = verbs.ibv_open_qp(one.b.context, QPOpenAttr(qp_num=made.qp_num, xrcd=domain))
    assert isinstance(opened, QP)
    counter = one.b.counter()
    for mask in (1, 0, 64):
        attr = QPAttachCompCntrAttr(mask)
        assert "opened XRC QP" in refused(errno.EINVAL, opened.attach_comp_cntr, counter, attr)
    made.attach_comp_cntr(counter, QPAttachCompCntrAttr(2))


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"comp_mask": 0}, "comp_mask"),
        ({"comp_mask": 16 | 11}, "comp_mask"),
        ({"qp_num": 5}, "no QP"),
        ({"qp_type": e.IBV_QPT_RC}, "no QP"),
        ({"xrcd": None}, "xrcd is missing"),
    ],
)
def test_a_queue_pair_that_cannot_be_opened(one: World, members: dict[str, Any], words: str) -> None:
    domain = xrcd(one.b)
    made = target(one.b, domain)
    attr = QPOpenAttr(qp_num=made.qp_num, xrcd=domain)
    for member, value in members.items():
        setattr(attr, member, value)
    assert words in refused(errno.EINVAL, open_qp, one.b.context, attr)


def test_events_go_to_who_still_has_it(world: World) -> None:
    domain = xrcd(world.b)
    ini, made = xrc_pair(world, domain)
    opened = open_qp(world.b.context, QPOpenAttr(qp_num=made.qp_num, xrcd=domain))
    world.b.events()
    made.close()
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(0xFFFFFE)
    ini.post_send(wr)
    world.settle()
    assert opened in [element for _, element in world.b.events()]


def test_an_event_of_a_queue_pair_that_nobody_holds_any_more_is_dropped(world: World) -> None:
    domain = xrcd(world.b)
    ini, made = xrc_pair(world, domain)
    opened = open_qp(world.b.context, QPOpenAttr(qp_num=made.qp_num, xrcd=domain))
    shared = made._target
    opened.close()
    made.close()
    assert shared is not None
    assert shared.owner() is None
    assert ini.qp_state == e.IBV_QPS_RTS


def test_garbage_is_taken_away(build: Any) -> None:
    side = build(max_qp=3, max_xrcd=2).b
    for _ in range(5):
        domain = xrcd(side)
        made = target(side, domain)
        open_qp(side.context, QPOpenAttr(qp_num=made.qp_num, xrcd=domain))
        xsrq(side, domain)
        del domain, made
        gc.collect()


# -- the functions of the manual


def test_the_functions_of_the_manual(one: World, name: int) -> None:
    domain = verbs.ibv_open_xrcd(one.b.context, XRCDInitAttr(XRCD_MASK, os.O_CREAT, name))
    assert isinstance(domain, XRCD)
    queue = xsrq(one.b, domain)
    number = ctypes.c_uint32()
    assert verbs.ibv_get_srq_num(queue, number) == 0
    assert number.value == queue.get_srq_num()
    assert verbs.ibv_open_xrcd(one.b.context, XRCDInitAttr(0, 0, name)) is None
    assert ctypes.get_errno() == errno.EINVAL
    assert verbs.ibv_destroy_srq(queue) == 0
    assert verbs.ibv_close_xrcd(domain) == 0
