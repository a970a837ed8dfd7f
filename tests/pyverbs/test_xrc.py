"""XRC: one connection reaches any receive queue of a process (IBA annex A14; ibv_open_xrcd(3), ibv_open_qp(3))."""

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
    connect,
    initiator,
    make,
    srq,
    stock,
    target,
    xrc_pair,
    xrcd,
    xsrq,
)
from tests.pyverbs.world import ALL, CAP, OPS, World, fill, pattern, refused, set_state, set_word, values, word

from softverbs import verbs
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.cq import CQ
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsError
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPCap, QPInitAttr, QPInitAttrEx, QPOpenAttr, open_qp
from softverbs.pyverbs.srq import SRQ, SrqInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

SUCCESS = e.IBV_WC_SUCCESS


class Scene:
    """Side ``a`` has an initiator; side ``b`` its target, in a domain with two receive queues, with a CQ each."""

    def __init__(self, world: World, **changes: Any) -> None:
        self.world = world
        self.domain = xrcd(world.b)
        self.sent = CQ(world.a.context, 256)
        self.came = [CQ(world.b.context, 256) for _ in range(2)]
        self.srqs = [xsrq(world.b, self.domain, cq) for cq in self.came]
        self.ini, self.tgt = initiator(world.a, self.sent), target(world.b, self.domain)
        self.changes = changes

    def connect(self) -> "Scene":
        connect(self.world, self.ini, self.tgt, **self.changes)
        return self

    def wr(self, index: int, opcode: int = e.IBV_WR_SEND, wr_id: int = 1, length: int = 8, **what: Any) -> SendWR:
        wr = self.world.a.wr(opcode, wr_id, length, **what)
        wr.set_qp_type_xrc(self.srqs[index].get_srq_num())
        return wr

    def send(self, index: int, *args: Any, **what: Any) -> None:
        self.ini.post_send(self.wr(index, *args, **what))
        self.world.settle()

    def sends(self) -> list[tuple[int, int]]:
        return self.world.a.done(self.sent)

    def receives(self, index: int) -> list[tuple[int, int]]:
        return self.world.b.done(self.came[index])


@pytest.fixture
def scene(world: World) -> Scene:
    return Scene(world).connect()


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


# -- messages


@pytest.mark.parametrize("length", [0, 1, 1024, 1025, 10_000])
def test_a_message_goes_to_the_queue_that_it_names(world: World, length: int) -> None:
    scene = Scene(world).connect()
    stock(world.b, scene.srqs[0], 10, length=10_000)
    stock(world.b, scene.srqs[1], 20, length=10_000, offset=20_000)
    fill(world.a.memory, pattern(length))
    scene.send(1, e.IBV_WR_SEND_WITH_IMM, 1, length, imm=5)
    assert scene.sends() == [(1, SUCCESS)]
    assert scene.receives(0) == []
    (wc,) = world.b.poll(scene.came[1])
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (20, SUCCESS, e.IBV_WC_RECV, length)
    assert (wc.wc_flags, wc.imm_data, wc.qp_num) == (e.IBV_WC_WITH_IMM, 5, scene.tgt.qp_num)
    assert world.b.memory[20_000 : 20_000 + length] == pattern(length)
    scene.send(0, e.IBV_WR_SEND, 2, length)
    assert scene.receives(0) == [(10, SUCCESS)]


def test_messages_to_two_queues_over_one_connection(world: World) -> None:
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(10), length=3000, spread=3000, offset=30_000 * index)
    order = [0, 1, 1, 0, 1, 0, 0, 0, 1, 1]
    for number, index in enumerate(order):
        fill(world.a.memory, bytes([number]) * 2500, 2500 * number)
        scene.ini.post_send(scene.wr(index, e.IBV_WR_SEND, number, 2500, offset=2500 * number))
    world.settle()
    assert scene.sends() == [(number, SUCCESS) for number in range(10)]
    for index in range(2):
        numbers = [number for number, which in enumerate(order) if which == index]
        assert scene.receives(index) == [(position, SUCCESS) for position in range(len(numbers))]
        starts = [30_000 * index + 3000 * position for position in range(len(numbers))]
        assert [world.b.memory[start] for start in starts] == numbers


def test_two_connections_share_a_queue(world: World) -> None:
    domain = xrcd(world.b)
    queue = xsrq(world.b, domain, CQ(world.b.context, 64))
    pairs = [xrc_pair(world, domain) for _ in range(2)]
    stock(world.b, queue, 10, 11, 12)
    for number, index in enumerate((1, 0, 1)):
        wr = world.a.wr(e.IBV_WR_SEND, number)
        wr.set_qp_type_xrc(queue.get_srq_num())
        pairs[index][0].post_send(wr)
        world.settle()
    found = [(wc.wr_id, wc.qp_num) for wc in world.b.poll(queue._cq)]
    assert found == [(10, pairs[1][1].qp_num), (11, pairs[0][1].qp_num), (12, pairs[1][1].qp_num)]


def test_memory_operations(scene: Scene) -> None:
    world = scene.world
    fill(world.a.memory, pattern(3000))
    scene.send(0, e.IBV_WR_RDMA_WRITE, 1, 3000, at=40_000)
    assert world.b.memory[40_000:43_000] == pattern(3000)
    set_word(world.b.memory, 41, 50_000)
    scene.send(0, e.IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 8, offset=5000, at=50_000, operands=(1, 0))
    assert word(world.b.memory, 50_000) == 42
    assert word(world.a.memory, 5000) == 41
    scene.send(1, e.IBV_WR_ATOMIC_CMP_AND_SWP, 3, 8, offset=5000, at=50_000, operands=(42, 7))
    scene.send(1, e.IBV_WR_RDMA_READ, 4, 2000, offset=10_000, at=40_000)
    assert world.a.memory[10_000:12_000] == pattern(3000)[:2000]
    assert word(world.b.memory, 50_000) == 7
    stock(world.b, scene.srqs[1], 20)
    scene.send(1, e.IBV_WR_RDMA_WRITE_WITH_IMM, 5, 100, at=40_000, imm=9)
    assert scene.sends() == [(wr_id, SUCCESS) for wr_id in range(1, 6)]
    (wc,) = world.b.poll(scene.came[1])
    assert (wc.wr_id, wc.opcode, wc.imm_data) == (20, e.IBV_WC_RECV_RDMA_WITH_IMM, 9)


def test_the_rights_are_those_of_the_domain_of_the_named_queue(world: World) -> None:
    """The target has no protection domain: a request may touch what the SRQ that it names may touch."""
    scene = Scene(world)
    other = PD(world.b.context)
    attr = SrqInitAttrEx(8)
    attr.comp_mask, attr.srq_type = SRQ_MASK, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = other, scene.domain, world.b.cq
    elsewhere = SRQ(world.b.context, attr)
    scene.connect()
    scene.send(0, e.IBV_WR_RDMA_WRITE, 1, at=40_000)
    assert scene.sends() == [(1, SUCCESS)]
    wr = world.a.wr(e.IBV_WR_RDMA_WRITE, 2, at=40_000)
    wr.set_qp_type_xrc(elsewhere.get_srq_num())
    scene.ini.post_send(wr)
    world.settle()
    assert scene.sends() == [(2, e.IBV_WC_REM_ACCESS_ERR)]


def test_a_queue_that_is_none_is_refused(world: World) -> None:
    scene = Scene(world).connect()
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(0xFFFFFE)
    scene.ini.post_send(wr)
    world.settle()
    (wc,) = world.a.poll(scene.sent)
    assert wc.status == e.IBV_WC_REM_INV_REQ_ERR
    assert "SRQ" in wc.reason
    assert scene.tgt.qp_state == e.IBV_QPS_ERR


def test_a_queue_of_another_domain_is_refused(world: World) -> None:
    scene = Scene(world)
    other = xsrq(world.b, xrcd(world.b))
    plain = srq(world.b)
    scene.connect()
    stock(world.b, other, 10)
    wr = world.a.wr(e.IBV_WR_SEND, 1)
    wr.set_qp_type_xrc(other.get_srq_num())
    scene.ini.post_send(wr)
    world.settle()
    assert scene.sends() == [(1, e.IBV_WC_REM_INV_REQ_ERR)]
    assert "XRC" in refused(errno.EINVAL, plain.get_srq_num)


def test_an_empty_queue_makes_the_peer_wait(build: Any) -> None:
    world: World = build()
    scene = Scene(world).connect()
    scene.ini.post_send(scene.wr(1))
    world.run()
    assert scene.receives(1) == []
    stock(world.b, scene.srqs[1], 20)
    world.settle()
    assert scene.receives(1) == [(20, SUCCESS)]
    assert scene.sends() == [(1, SUCCESS)]


def test_the_limit_of_an_xrc_queue(world: World) -> None:
    scene = Scene(world).connect()
    world.b.events()
    stock(world.b, scene.srqs[0], 10, 11)
    scene.srqs[0].modify(srq_attr(2), e.IBV_SRQ_LIMIT)
    scene.send(0)
    found = [element for kind, element in world.b.events() if kind == e.IBV_EVENT_SRQ_LIMIT_REACHED]
    assert found == [scene.srqs[0]]


def srq_attr(limit: int) -> Any:
    from softverbs.pyverbs.srq import SrqAttr

    return SrqAttr(srq_limit=limit)


@pytest.mark.parametrize("seed", range(4))
def test_over_a_bad_network_every_message_arrives_once(build: Any, seed: int) -> None:
    world: World = build(faults={"seed": seed, "drop": 0.08, "duplicate": 0.05, "reorder": 0.05})
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(20), length=1500, spread=1500, offset=30_000 * index)
    for number in range(40):
        fill(world.a.memory, bytes([number]) * 1200, 1200 * number)
        scene.ini.post_send(scene.wr(number % 2, e.IBV_WR_SEND, number, 1200, offset=1200 * number))
    world.settle()
    assert scene.sends() == [(number, SUCCESS) for number in range(40)]
    for index in range(2):
        assert scene.receives(index) == [(number, SUCCESS) for number in range(20)]
        contents = [world.b.memory[30_000 * index + 1500 * number] for number in range(20)]
        assert contents == list(range(index, 40, 2))


# -- the queue pairs


def test_the_steps_of_both_types(world: World) -> None:
    scene = Scene(world)
    attr = world.attr(scene.ini, scene.tgt.qp_num)
    for qp in (scene.ini, scene.tgt):
        qp.to_init(attr)
        assert qp.qp_state == e.IBV_QPS_INIT
        qp.to_rtr(attr)
        assert qp.qp_state == e.IBV_QPS_RTR
        qp.to_rts(attr)
        found, init = qp.query(0x1FFFFF)
        assert (found.qp_state, init.qp_type) == (e.IBV_QPS_RTS, qp.qp_type)
    _, init = scene.tgt.query(1)
    assert (init.send_cq, init.recv_cq, init.srq) == (None, None, None)
    _, init = scene.ini.query(1)
    assert (init.send_cq, init.recv_cq, init.max_recv_wr) == (scene.sent, None, 0)
    assert "XRCD_SEND" in str(scene.ini)
    assert "XRCD_RECV" in str(scene.tgt)


def test_neither_has_what_the_other_does(scene: Scene) -> None:
    assert "XRC_RECV" in refused(errno.EINVAL, scene.tgt.post_send, scene.wr(0))
    for qp in (scene.tgt, scene.ini):
        assert "receive" in refused(errno.EINVAL, qp.post_recv, RecvWR(1))


def test_creation_with_attributes_goes_to_init(world: World) -> None:
    from softverbs.pyverbs.qp import QPAttr

    domain = xrcd(world.b)
    attr = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=domain)
    with QP(world.b.context, attr, QPAttr()) as qp:
        assert qp.qp_state == e.IBV_QPS_INIT


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"comp_mask": 0}, "needs a Context"),
        ({"comp_mask": e.IBV_QP_INIT_ATTR_PD}, "needs a Context"),
        ({"xrcd": None}, "needs a Context"),
        ({"qp_type": e.IBV_QPT_RC}, "xrcd"),
    ],
)
def test_a_target_that_cannot_be_had(one: World, members: dict[str, Any], words: str) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_XRC_RECV, comp_mask=e.IBV_QP_INIT_ATTR_XRCD, xrcd=xrcd(one.b), pd=one.b.pd)
    for name, value in members.items():
        setattr(attr, name, value)
    assert words in refused(errno.EINVAL, QP, one.b.context, attr)


def test_an_initiator_that_cannot_be_had(one: World) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_XRC_SEND, scq=one.a.cq, cap=QPCap(**CAP))
    assert "names no PD" in refused(errno.EINVAL, QP, one.a.context, attr)
    attr.comp_mask, attr.pd, attr.send_cq = e.IBV_QP_INIT_ATTR_PD, one.a.pd, None
    assert "send_cq is missing" in refused(errno.EINVAL, QP, one.a.context, attr)
    assert "needs a Context" in refused(errno.EINVAL, QP, one.a.pd, QPInitAttr(e.IBV_QPT_XRC_RECV))


def test_an_initiator_from_a_domain(one: World) -> None:
    with QP(one.a.pd, QPInitAttr(e.IBV_QPT_XRC_SEND, scq=one.a.cq, cap=QPCap(**CAP))) as qp:
        assert qp.qp_type == e.IBV_QPT_XRC_SEND


def test_an_xrc_queue_serves_no_other_queue_pair(one: World) -> None:
    domain = xrcd(one.b)
    assert "XRC" in refused(errno.EINVAL, make, one.b, e.IBV_QPT_RC, xsrq(one.b, domain))


def test_the_error_state_flushes(scene: Scene) -> None:
    set_state(scene.ini, e.IBV_QPS_ERR)
    scene.ini.post_send(scene.wr(0))
    assert scene.sends() == [(1, e.IBV_WC_WR_FLUSH_ERR)]
    stock(scene.world.b, scene.srqs[0], 10)
    set_state(scene.tgt, e.IBV_QPS_ERR)
    assert scene.receives(0) == [], "receives belong to the queue, not to the QP"


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


# -- counters (semantics, section 1)


@pytest.mark.row("1: Bit RECV")
def test_counters(world: World) -> None:
    scene = Scene(world)
    here, there = world.a.count_all(scene.ini), world.b.count_all(scene.tgt)
    scene.connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], 10, 11)
    for index, opcode in (
        (0, e.IBV_WR_SEND), (1, e.IBV_WR_SEND_WITH_IMM), (1, e.IBV_WR_RDMA_WRITE_WITH_IMM), (0, e.IBV_WR_RDMA_WRITE),
        (0, e.IBV_WR_RDMA_READ), (1, e.IBV_WR_ATOMIC_FETCH_AND_ADD),
    ):  # fmt: skip
        scene.send(index, opcode, flags=0)
    assert values(here) == {"SEND": (2, 0), "WRITE": (2, 0), "READ": (2, 0)}
    assert values(there) == {"RECV": (3, 0), "REMOTE_WRITE": (2, 0), "REMOTE_READ": (2, 0)}
    assert scene.sends() == []
    set_state(scene.ini, e.IBV_QPS_ERR)
    scene.ini.post_send(scene.wr(0, flags=0))
    assert values(here)["SEND"] == (2, 1)
    assert len(OPS) == 6


# -- real sockets


def test_over_real_sockets(build: Any) -> None:
    world: World = build("udp")
    scene = Scene(world).connect()
    for index in range(2):
        stock(world.b, scene.srqs[index], *range(10), length=2000, spread=2000, offset=20_000 * index)
    fill(world.a.memory, pattern(40_000))
    for number in range(20):
        scene.ini.post_send(scene.wr(number % 2, e.IBV_WR_SEND, number, 2000, offset=2000 * number))
    found: list[list[Any]] = [[], []]
    world.until(lambda: [found[i].extend(scene.receives(i)) for i in (0, 1)] and len(found[0]) == len(found[1]) == 10)
    assert found == [[(number, SUCCESS) for number in range(10)]] * 2
    arrived = [bytes(world.b.memory[2000 * number : 2000 * number + 2000]) for number in range(20)]
    data = [pattern(40_000)[2000 * number : 2000 * number + 2000] for number in range(20)]
    assert arrived == data[::2] + data[1::2]


# -- what changes under a message


def test_a_read_of_one_domain_and_a_message_to_another(world: World) -> None:
    """The answer of a READ is written while later requests name other queues: its memory is that of its own."""
    scene = Scene(world)
    other, buffer = PD(world.b.context), bytearray(4096)
    mr = MR(other, buffer, ALL)
    attr = SrqInitAttrEx(8)
    attr.comp_mask, attr.srq_type = SRQ_MASK, e.IBV_SRQT_XRC
    attr.pd, attr.xrcd, attr.cq = other, scene.domain, world.b.cq
    elsewhere = SRQ(world.b.context, attr)
    elsewhere.post_recv(RecvWR(5, 1, [SGE(mr.buf, 100, mr.lkey)]))
    scene.connect()
    fill(world.b.memory, pattern(30_000), 30_000)
    read = scene.wr(0, e.IBV_WR_RDMA_READ, 1, 30_000, at=30_000)
    read.next_wr = world.a.wr(e.IBV_WR_SEND, 2, 50, offset=100)
    read.next_wr.set_qp_type_xrc(elsewhere.get_srq_num())
    scene.ini.post_send(read)
    world.settle()
    assert scene.sends() == [(1, SUCCESS), (2, SUCCESS)]
    assert world.a.memory[:30_000] == pattern(30_000)


@pytest.mark.parametrize("what", ["queue", "queue and CQ"])
def test_a_queue_that_is_closed_in_the_middle_of_a_message(build: Any, what: str) -> None:
    world: World = build(wire=True)
    domain, cq = xrcd(world.b), CQ(world.b.context, 64)
    queue = xsrq(world.b, domain, cq)
    ini, made = xrc_pair(world, domain)
    stock(world.b, queue, 10, length=4096)
    held: list[bytes] = []

    def rule(frame: bytes) -> "list[bytes] | None":
        if frame[0] != 0xA2 or held:  # XRC SEND LAST
            return None
        held.append(frame)
        return []

    world.wire.rule = rule
    wr = world.a.wr(e.IBV_WR_SEND, 1, 3000)
    wr.set_qp_type_xrc(queue.get_srq_num())
    ini.post_send(wr)
    world.run()
    assert held
    queue.close()
    if what != "queue":
        cq.close()
    gc.collect()
    world.settle()
    assert world.a.done() == [(1, e.IBV_WC_REM_INV_REQ_ERR)]
    assert made.qp_state == e.IBV_QPS_ERR


@pytest.mark.row("2: Overrun")
def test_an_overrun_of_the_queues_cq_stops_the_target(build: Any) -> None:
    world: World = build()
    domain, cq = xrcd(world.b), CQ(world.b.context, 1)
    queue = xsrq(world.b, domain, cq)
    ini, made = xrc_pair(world, domain)
    stock(world.b, queue, *range(5))
    world.b.events()
    for wr_id in range(4):
        wr = world.a.wr(e.IBV_WR_SEND, wr_id)
        wr.set_qp_type_xrc(queue.get_srq_num())
        ini.post_send(wr)
    world.settle()
    assert (e.IBV_EVENT_CQ_ERR, cq) in world.b.events()
    assert made.qp_state == e.IBV_QPS_ERR
    assert [wc.wr_id for wc in cq.poll(9)[1]] == [0]
