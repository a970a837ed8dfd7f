# SPDX-License-Identifier: MIT
"""Each verb fails on demand, with the errno asked for, and leaves nothing behind; no verb is left out."""

import ast
import errno
import gc
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pyverbs.conftest import ALL_ACCESS, Rig

import softverbs.pyverbs
from softverbs import verbs
from softverbs.core.base.errors import PyverbsRDMAError, PyverbsUserError
from softverbs.device import Device
from softverbs.faults import VERBS, Plan, Rule
from softverbs.faults.verbs import HOT
from softverbs.links.inproc import Network
from softverbs.pyverbs import _mr_kinds as kinds
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs import librdmacm_enums as ce
from softverbs.pyverbs._verb_names import named, verb_of
from softverbs.pyverbs.addr import AH, AHAttr, GlobalRoute
from softverbs.pyverbs.base import Resource
from softverbs.pyverbs.cmid import CMID, AddrInfo
from softverbs.pyverbs.comp_cntr import CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from softverbs.pyverbs.device import DM, AllocDmAttr, Context
from softverbs.pyverbs.mr import DMMR, MR, MW, MWBind, MWBindInfo
from softverbs.pyverbs.pd import PD, TD, ParentDomain, ParentDomainInitAttr, TDInitAttr
from softverbs.pyverbs.providers.efa.efadv import EfaCompCntr
from softverbs.pyverbs.qp import QP, QPAttachCompCntrAttr, QPAttr, QPCap, QPInitAttr
from softverbs.pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from softverbs.pyverbs.wr import SGE
from softverbs.pyverbs.xrcd import XRCD, XRCDInitAttr

GROUP = "0000:0000:0000:0000:0000:ffff:ef01:0203"
SOURCES = Path(softverbs.pyverbs.__path__[0])


@pytest.fixture
def device() -> Iterator[Device]:
    with Device(link=Network().link("10.0.0.1"), thread=False) as made:
        yield made


@pytest.fixture
def rig(device: Device) -> Iterator[Rig]:
    made = Rig(device)
    yield made
    device.faults.clear()
    made.context.close()


def ud(rig: Rig) -> QP:
    init = QPInitAttr(e.IBV_QPT_UD, None, rig.cq, rig.cq, None, QPCap(4, 4, 1, 1, 0), 0)
    return QP(rig.pd, init)


def ud_in_init(rig: Rig) -> QP:
    qp, attr = ud(rig), QPAttr()
    attr.qkey = 1
    qp.to_init(attr)
    return qp


def address(rig: Rig) -> AHAttr:
    return AHAttr(is_global=1, gr=GlobalRoute(rig.gid, hop_limit=64))


def xrcd(rig: Rig) -> XRCD:
    return XRCD(rig.context, XRCDInitAttr(3, 0, -1))


def srq(rig: Rig) -> SRQ:
    return SRQ(rig.pd, SrqInitAttr(SrqAttr(10, 1)))


def dm(rig: Rig) -> DM:
    return DM(rig.context, AllocDmAttr(64))


def buf(rig: Rig) -> Any:
    return kinds.Buf(rig.pd, 4096)


def attachable(rig: Rig) -> tuple[Any, ...]:
    return rig.qp(), rig.counter(), QPAttachCompCntrAttr(1)


def bound(rig: Rig) -> tuple[Any, ...]:
    mr = MR(rig.pd, 4096, ALL_ACCESS | e.IBV_ACCESS_MW_BIND)
    info = MWBindInfo(mr, mr.buf, 64, e.IBV_ACCESS_REMOTE_READ)
    return rig.pair()[0], MW(rig.pd, e.IBV_MW_TYPE_1), MWBind(info, e.IBV_SEND_SIGNALED)


def event(rig: Rig) -> CompChannel:
    """A channel with an event: one that is read and not yet acknowledged would be the CQ's."""
    with rig.device.lock:
        rig.channel._core.push(rig.cq._core)
    return rig.channel


def unread(rig: Rig) -> CQ:
    event(rig).get_cq_event()
    return rig.cq


ZERO = e.IBV_ACCESS_ZERO_BASED
#: Verb -> what makes the objects that its call needs, and the call.
CALLS: dict[str, tuple[Callable[[Rig], Any], Callable[[Rig, Any], Any]]] = {
    "open_device": (lambda rig: None, lambda rig, _: Context(device=rig.device)),
    "alloc_pd": (lambda rig: None, lambda rig, _: PD(rig.context)),
    "alloc_td": (lambda rig: None, lambda rig, _: TD(rig.context, TDInitAttr())),
    "alloc_parent_domain": (lambda rig: None, lambda rig, _: ParentDomain(rig.context, ParentDomainInitAttr(rig.pd))),
    "import_pd": (lambda rig: None, lambda rig, _: PD(rig.context, handle=rig.pd.handle)),
    "reg_mr": (lambda rig: None, lambda rig, _: MR(rig.pd, 4096, ALL_ACCESS)),
    "import_mr": (lambda rig: None, lambda rig, _: MR(rig.pd, handle=rig.mr.handle)),
    "rereg_mr": (
        lambda rig: MR(rig.pd, 4096, ALL_ACCESS),
        lambda rig, mr: mr.rereg(e.IBV_REREG_MR_CHANGE_ACCESS, None, 0, 0, 1),
    ),
    "reg_mr_ex": (buf, lambda rig, made: kinds.MREx(rig.pd, 4096, ALL_ACCESS, buf=made)),
    "reg_dm_mr": (dm, lambda rig, made: DMMR(rig.pd, 64, ZERO | 1, made, 0)),
    "alloc_null_mr": (lambda rig: None, lambda rig, _: kinds.NullMR(rig.pd)),
    "alloc_buf": (lambda rig: None, lambda rig, _: buf(rig)),
    "alloc_mw": (lambda rig: None, lambda rig, _: MW(rig.pd, e.IBV_MW_TYPE_2)),
    "alloc_dm": (lambda rig: None, lambda rig, _: dm(rig)),
    "import_dm": (dm, lambda rig, made: DM(rig.context, handle=made.handle)),
    "memcpy_to_dm": (dm, lambda rig, made: made.copy_to_dm(0, b"abcd", 4)),
    "memcpy_from_dm": (dm, lambda rig, made: made.copy_from_dm(0, 4)),
    "advise_mr": (
        lambda rig: MR(rig.pd, 4096, e.IBV_ACCESS_ON_DEMAND),
        lambda rig, mr: rig.pd.advise_mr(e._IBV_ADVISE_MR_ADVICE_PREFETCH, 1, [SGE(mr.buf, 8, mr.lkey)]),
    ),
    "create_comp_channel": (lambda rig: None, lambda rig, _: CompChannel(rig.context)),
    "create_cq": (lambda rig: None, lambda rig, _: CQ(rig.context, 10)),
    "create_cq_ex": (lambda rig: None, lambda rig, _: CQEX(rig.context, CqInitAttrEx(10))),
    "resize_cq": (lambda rig: None, lambda rig, _: rig.cq.resize(100)),
    "req_notify_cq": (lambda rig: None, lambda rig, _: rig.cq.req_notify()),
    "get_cq_event": (event, lambda rig, channel: channel.get_cq_event()),
    "ack_cq_events": (unread, lambda rig, cq: cq.ack_events(1)),
    "poll_cq": (lambda rig: None, lambda rig, _: rig.cq.poll(1)),
    "create_comp_cntr": (lambda rig: None, lambda rig, _: rig.counter()),
    "efadv_create_comp_cntr": (lambda rig: None, lambda rig, _: EfaCompCntr(rig.context, CompCntrInitAttr())),
    "set_comp_cntr": (lambda rig: rig.counter(), lambda rig, counter: counter.set(1)),
    "set_err_comp_cntr": (lambda rig: rig.counter(), lambda rig, counter: counter.set_err(1)),
    "inc_comp_cntr": (lambda rig: rig.counter(), lambda rig, counter: counter.inc(1)),
    "inc_err_comp_cntr": (lambda rig: rig.counter(), lambda rig, counter: counter.inc_err(1)),
    "qp_attach_comp_cntr": (attachable, lambda rig, made: made[0].attach_comp_cntr(*made[1:])),
    "create_qp": (lambda rig: None, lambda rig, _: rig.qp()),
    "modify_qp": (lambda rig: rig.qp(), lambda rig, qp: qp.to_init(rig.attr(16))),
    "query_qp": (lambda rig: rig.qp(), lambda rig, qp: qp.query(1)),
    "post_send": (lambda rig: rig.pair()[0], lambda rig, qp: qp.post_send(rig.write())),
    "post_recv": (lambda rig: rig.pair()[0], lambda rig, qp: qp.post_recv(rig.recv())),
    "bind_mw": (bound, lambda rig, made: made[0].bind_mw(*made[1:])),
    "attach_mcast": (ud_in_init, lambda rig, qp: qp.attach_mcast(GROUP)),
    "detach_mcast": (
        lambda rig: [qp := ud_in_init(rig), qp.attach_mcast(GROUP)][0],
        lambda rig, qp: qp.detach_mcast(GROUP),
    ),
    "create_srq": (lambda rig: None, lambda rig, _: srq(rig)),
    "modify_srq": (srq, lambda rig, made: made.modify(SrqAttr(srq_limit=1), e.IBV_SRQ_LIMIT)),
    "query_srq": (srq, lambda rig, made: made.query()),
    "post_srq_recv": (srq, lambda rig, made: made.post_recv(rig.recv())),
    "open_xrcd": (lambda rig: None, lambda rig, _: xrcd(rig)),
    "create_ah": (lambda rig: None, lambda rig, _: AH(rig.pd, attr=address(rig))),
    "query_device": (lambda rig: None, lambda rig, _: rig.context.query_device()),
    "query_device_ex": (lambda rig: None, lambda rig, _: rig.context.query_device_ex()),
    "query_port": (lambda rig: None, lambda rig, _: rig.context.query_port(1)),
    "query_pkey": (lambda rig: None, lambda rig, _: rig.context.query_pkey(1, 0)),
    "get_pkey_index": (lambda rig: None, lambda rig, _: rig.context.get_pkey_index(1, 0xFFFF)),
    "query_gid": (lambda rig: None, lambda rig, _: rig.context.query_gid(1, 0)),
    "query_gid_ex": (lambda rig: None, lambda rig, _: rig.context.query_gid_ex(1, 0)),
    "query_gid_table": (lambda rig: None, lambda rig, _: rig.context.query_gid_table(8)),
    "query_gid_type": (lambda rig: None, lambda rig, _: rig.context.query_gid_type(1, 0)),
    "query_rt_values_ex": (lambda rig: None, lambda rig, _: rig.context.query_rt_values_ex()),
    "query_comp_cntr_caps": (lambda rig: None, lambda rig, _: rig.context.query_comp_cntr_caps()),
    "dealloc_pd": (lambda rig: PD(rig.context), lambda rig, made: made.close()),
    "dealloc_td": (lambda rig: TD(rig.context, TDInitAttr()), lambda rig, made: made.close()),
    "dereg_mr": (lambda rig: MR(rig.pd, 4096, 1), lambda rig, made: made.close()),
    "dealloc_mw": (lambda rig: MW(rig.pd, e.IBV_MW_TYPE_2), lambda rig, made: made.close()),
    "free_dm": (dm, lambda rig, made: made.close()),
    "free_buf": (buf, lambda rig, made: made.close()),
    "destroy_comp_channel": (lambda rig: CompChannel(rig.context), lambda rig, made: made.close()),
    "destroy_cq": (lambda rig: CQ(rig.context, 10), lambda rig, made: made.close()),
    "destroy_comp_cntr": (lambda rig: rig.counter(), lambda rig, made: made.close()),
    "destroy_qp": (lambda rig: rig.qp(), lambda rig, made: made.close()),
    "destroy_srq": (srq, lambda rig, made: made.close()),
    "close_xrcd": (xrcd, lambda rig, made: made.close()),
    "destroy_ah": (lambda rig: AH(rig.pd, attr=address(rig)), lambda rig, made: made.close()),
}


def census(rig: Rig) -> Any:
    """How many objects of each kind the device has."""
    gc.collect()
    rig.device.progress()
    port = rig.device.port
    return (
        {kind: count for kind, count in port.counts.items() if count},
        port.regions.active,
        len(port.live),
        [(name, len(getattr(rig.context, name))) for name in Context._children],
    )


@pytest.mark.parametrize("verb", CALLS)
def test_it_fails_and_leaves_nothing_behind_and_then_it_works(rig: Rig, verb: str) -> None:
    prepare, call = CALLS[verb]
    made = prepare(rig)
    before = census(rig)
    rule = rig.device.faults.add(verb, nth=1, errno="EXDEV")
    with pytest.raises(PyverbsRDMAError) as caught:
        call(rig, made)
    assert caught.value.error_code == errno.EXDEV
    assert f"made to fail by {verb}:nth=1:errno=EXDEV (call 1 of {verb})" in str(caught.value)
    assert (rule.seen, rule.hits) == (1, 1)
    assert census(rig) == before
    result = call(rig, made)
    assert (rule.seen, rule.hits) == (2, 1)
    if isinstance(result, Resource):
        result.close()


@pytest.mark.parametrize("verb", CALLS)
def test_what_it_fails_with_if_nobody_says(rig: Rig, verb: str) -> None:
    prepare, call = CALLS[verb]
    made = prepare(rig)
    with rig.device.faults.applied(verb), pytest.raises(PyverbsRDMAError) as caught:
        call(rig, made)
    assert caught.value.error_code == VERBS[verb].code


# -- no verb is left out


def guards() -> Iterator[tuple[str, str | None]]:
    """Each call of ``_guard`` in the Python face: the text that it is given, or the verb that it names itself."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for scope in ast.walk(tree):
            if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(scope):
                if isinstance(node, ast.Call) and called(node) in ("_guard", "Guard") and path.name != "base.py":
                    verb = next((word.value for word in node.keywords if word.arg == "verb"), None)
                    where = f"{path.name}:{node.lineno}"
                    if path.name in ("cmid.py", "_cm_qp.py"):  # their _guard(what, verb="")
                        verb = node.args[1] if len(node.args) > 1 else verb or ast.Constant("")
                    if isinstance(verb, ast.Constant):
                        yield where, str(verb.value)
                    elif verb is None:
                        text = node.args[0 if called(node) == "_guard" else 1]
                        for words in texts(text, scope, tree):
                            yield f"{where} {words!r}", named(words)


def called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def texts(node: ast.expr, scope: ast.AST, tree: ast.AST) -> Iterator[str]:
    """What an expression may be: the beginnings of texts."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield str(getattr(node.values[0], "value", ""))
    elif isinstance(node, ast.Name):
        assigned = [
            each.value
            for each in ast.walk(scope)
            if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == node.id
        ]
        for value in assigned:
            yield from texts(value, scope, tree)
        if not assigned:  # an argument: whatever the module's callers give
            for each in ast.walk(tree):
                if isinstance(each, ast.Call) and called(each) == getattr(scope, "name", None):
                    for argument in each.args:
                        if isinstance(argument, ast.Constant) and str(argument.value).startswith("Failed to "):
                            yield str(argument.value)
    else:
        raise AssertionError(ast.unparse(node))


def test_every_guard_of_the_python_face_names_its_verb() -> None:
    found = dict(guards())
    assert len(found) > 40
    assert [where for where, verb in found.items() if verb is None] == [], "add the text to pyverbs/_verb_names.py"
    assert {verb for verb in found.values() if verb} <= set(VERBS)


def test_every_kind_of_object_has_a_verb_that_ends_it() -> None:
    def below(kind: type) -> Iterator[type]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    kinds_of = {each._kind for each in below(Resource) if each.__module__.startswith("softverbs")}  # type: ignore[attr-defined]
    for kind in kinds_of - {"object"}:
        verb = named(f"Failed to destroy {kind}")
        assert verb is not None, kind
        assert verb == "" or verb in VERBS


#: Verbs that are refused on this device whatever one does, or need a second one; their guards are as the others'.
NOT_CALLED = {"reg_dmabuf_mr", "alloc_dmah", "dealloc_dmah", "reg_buf_mr", "modify_cq", "open_qp"}
NOT_CALLED |= {verb for verb in VERBS if verb.startswith("rdma_")}  # but two, below


def test_every_verb_is_called_here() -> None:
    assert set(CALLS) | NOT_CALLED == set(VERBS)
    named_by_guards = {verb for _, verb in guards() if verb}
    endings = {verb for verb in VERBS if verb.startswith(("destroy_", "dealloc_", "dereg_", "close_", "free_"))}
    # verb=self._verb and the like
    others = {"create_cq", "create_cq_ex", "create_comp_cntr", "efadv_create_comp_cntr", "memcpy_to_dm"}
    rest = set(VERBS) - named_by_guards - endings - set(HOT) - others - {"memcpy_from_dm"}
    assert rest == set(), "a rule for a verb that nobody asks about would do nothing"


def test_the_connection_manager_fails_too(device: Device) -> None:
    info = AddrInfo(src="10.0.0.1", src_service="7000", port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    with device.faults.applied("rdma_bind_addr:errno=EADDRINUSE"):
        with pytest.raises(PyverbsRDMAError, match="made to fail by rdma_bind_addr") as caught:
            CMID(info, device=device)
        assert caught.value.error_code == errno.EADDRINUSE
    listener = CMID(info, device=device)
    with device.faults.applied("rdma_listen"), pytest.raises(PyverbsRDMAError, match="Listen Failed: made to fail"):
        listener.listen()
    listener.listen()
    listener.close()


def test_texts_are_told_apart() -> None:
    assert verb_of("Failed to query gid type of port 1 and gid index 0") == "query_gid_type"
    assert verb_of("Failed to query gid 0 of port 1") == "query_gid"
    assert verb_of("Failed to query gid table of port 1 in index 0") == "query_gid_ex"
    assert verb_of("Failed to query gid tables of the device") == "query_gid_table"
    assert verb_of("Failed to destroy DM") == "free_dm"
    assert verb_of("Failed to destroy DMMR") == "dereg_mr"
    assert (verb_of("Failed to brew tea"), named("Failed to brew tea")) == ("", None)


# -- conditions


def test_registration_by_size(rig: Rig) -> None:
    with rig.device.faults.applied("reg_mr:above=1MiB:errno=EAGAIN") as rule:
        MR(rig.pd, 1 << 20, 1)
        with pytest.raises(PyverbsRDMAError, match="Errno: 11"):
            MR(rig.pd, (1 << 20) + 1, 1)
        with pytest.raises(PyverbsRDMAError, match="Errno: 11"):
            MR(rig.pd, bytearray(2 << 20), 1)
    assert (rule.seen, rule.hits) == (2, 2)
    MR(rig.pd, 2 << 20, 1)


def test_memory_that_could_not_be_registered_can_be_resized(rig: Rig) -> None:
    memory = bytearray(4096)
    with rig.device.faults.applied("reg_mr"), pytest.raises(PyverbsRDMAError):
        MR(rig.pd, memory, 1)
    memory.append(1)


def test_other_conditions_on_calls(rig: Rig) -> None:
    faults = rig.device.faults
    first, second = rig.qp(), rig.qp()
    with faults.applied(f"modify_qp:to=RTS:qp={second.qp_num}"):
        first.to_rts(rig.attr(second.qp_num))
        with pytest.raises(PyverbsRDMAError, match=r"Failed to modify QP state to RTS: made to fail"):
            second.to_rts(rig.attr(first.qp_num))
    assert second.qp_state == e.IBV_QPS_RTR, "the steps before the refused one are done"
    second.to_rts(rig.attr(first.qp_num))
    with faults.applied("modify_qp:to=ERR"), pytest.raises(PyverbsRDMAError):
        first.modify(QPAttr(qp_state=e.IBV_QPS_ERR), e.IBV_QP_STATE)
    with faults.applied("create_qp:type=UD"):
        rig.qp()
        with pytest.raises(PyverbsRDMAError):
            ud(rig)
    with faults.applied("create_cq:above=100"):
        CQ(rig.context, 100)
        with pytest.raises(PyverbsRDMAError):
            CQ(rig.context, 101)
    other = CQ(rig.context, 10)
    with faults.applied(f"req_notify_cq:cq={other.handle}"):
        rig.cq.req_notify()
        with pytest.raises(PyverbsRDMAError):
            other.req_notify()
    counter = rig.counter()
    with faults.applied(f"inc_comp_cntr:counter={counter.handle}"):
        rig.counter().inc(1)
        with pytest.raises(PyverbsRDMAError):
            counter.inc(1)
    assert counter.read() == 0


def test_several_rules_about_one_verb(rig: Rig) -> None:
    """Each counts every call; the first that strikes decides."""
    every, third = Plan("create_cq:every=2:errno=EAGAIN,create_cq:nth=3:errno=EIO").rules
    for rule in (every, third):
        rig.device.faults.add(rule)
    codes = []
    for _ in range(4):
        try:
            CQ(rig.context, 10)
            codes.append(0)
        except PyverbsRDMAError as error:
            codes.append(error.error_code)
    assert codes == [0, errno.EAGAIN, errno.EIO, errno.EAGAIN]
    assert [(rule.seen, rule.hits) for rule in (every, third)] == [(4, 2), (4, 1)]


def test_patterns_of_verbs(rig: Rig) -> None:
    with rig.device.faults.applied("create_c*") as rule:
        for act in (lambda: CQ(rig.context, 10), lambda: CQEX(rig.context), rig.counter):
            with pytest.raises(PyverbsRDMAError):
                act()
        rig.qp()
    assert rule.hits == 3


# -- posting and polling


def test_a_list_of_work_requests_is_posted_up_to_the_one_that_fails(rig: Rig) -> None:
    qp, _ = rig.pair()
    wrs = [rig.write(wr_id=number) for number in range(4)]
    for wr, following in itertools.pairwise(wrs):
        wr.next_wr = following
    bad = rig.write(wr_id=77)
    with rig.device.faults.applied("post_send:wr_id=2:errno=EAGAIN"):
        with pytest.raises(PyverbsRDMAError, match="Failed to post send: made to fail by post_send:wr_id=2") as caught:
            qp.post_send(wrs[0], bad)
        assert caught.value.error_code == errno.EAGAIN
        assert bad.wr_id == 2
        rig.run()
    assert [wc.wr_id for wc in rig.cq.poll(10)[1]] == [0, 1], "nothing that was accepted is lost"
    qp.post_send(wrs[2])
    rig.run()
    assert [wc.wr_id for wc in rig.cq.poll(10)[1]] == [2, 3]


def test_conditions_on_posts(rig: Rig) -> None:
    first, second = rig.pair()
    faults = rig.device.faults
    with faults.applied(f"post_recv:qp={second.qp_num}:above=32") as rule:
        first.post_recv(rig.recv(length=64))
        second.post_recv(rig.recv(length=32))
        with pytest.raises(PyverbsRDMAError):
            second.post_recv(rig.recv(length=33))
    assert rule.hits == 1
    with faults.applied("post_send:opcode=RDMA_READ"):
        first.post_send(rig.write())
    with faults.applied("post_send:opcode=RDMA_WRITE:nth=2") as rule:
        first.post_send(rig.write())
        with pytest.raises(PyverbsRDMAError):
            first.post_send(rig.write())
    assert rule.seen == 2


def test_polls_fail_and_lose_nothing(rig: Rig) -> None:
    qp, _ = rig.pair()
    qp.post_send(rig.write())
    rig.run()
    with rig.device.faults.applied("poll_cq:times=2") as rule:
        for _ in range(2):
            with pytest.raises(PyverbsRDMAError) as caught:
                rig.cq.poll()
            assert caught.value.error_code == errno.EIO
        assert rig.cq.poll()[0] == 1
    assert (rule.seen, rule.hits) == (3, 2)


# -- the functions of the manual pages fail in C's way


def test_functions_return_null_and_errno(rig: Rig) -> None:
    rig.device.faults.add("create_cq:nth=2:errno=ENOMEM")
    assert verbs.ibv_create_cq(rig.context, 10, None, None, 0) is not None
    assert verbs.ibv_create_cq(rig.context, 10, None, None, 0) is None
    assert "made to fail by create_cq:nth=2" in verbs.last_reason()
    rig.device.faults.add("poll_cq:errno=ENXIO")
    assert verbs.ibv_poll_cq(rig.cq, 1, []) == -errno.ENXIO


# -- the log, the seed, and the life of a plan


def test_every_hit_is_logged(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(device)
    rule = device.faults.add("create_cq:every=2")
    with caplog.at_level(logging.INFO, "softverbs"):
        for number in range(4):
            if number % 2:
                with pytest.raises(PyverbsRDMAError):
                    CQ(rig.context, 10)
            else:
                CQ(rig.context, 10)
    log = device.faults.log
    assert [(hit.rule, hit.event, hit.number) for hit in log] == [(rule, "create_cq", 2), (rule, "create_cq", 4)]
    assert device.faults.hits == rule.hits == 2
    assert f"softverbs0: {log[0].words}" in caplog.messages
    assert log[0].words == "fault create_cq:every=2: create_cq, 2"
    rig.context.close()


def replay(text: str) -> list[int]:
    with (
        Device(link=Network().link("10.0.0.1"), thread=False, faults=text) as device,
        Context(device=device) as context,
    ):
        failed = []
        for number in range(200):
            try:
                CQ(context, 10).close()
            except PyverbsRDMAError:
                failed.append(number)
        assert device.faults.hits == len(failed)
        return failed


def test_chance_can_be_replayed() -> None:
    first = replay("seed=1,create_cq:p=0.2")
    assert 20 < len(first) < 60
    assert replay("seed=1,create_cq:p=0.2") == first
    assert replay("seed=2,create_cq:p=0.2") != first
    assert replay("seed=1,create_cq:p=0.2,create_qp:p=0.2") == first, "another rule changes nothing"


def test_no_plan_no_hook(rig: Rig) -> None:
    device = rig.device
    assert (device.port.plan, device.verb_faults) == (None, None)
    with device.faults.applied("create_cq"):
        assert device.port.plan is None, "nothing for the data path to ask"
        assert device.verb_faults is not None
    with device.faults.applied("post_send"):
        assert device.port.plan is not None
        assert device.verb_faults is None
    assert (device.port.plan, device.verb_faults) == (None, None)


def test_a_plan_belongs_to_one_device(device: Device) -> None:
    plan = Plan("create_cq:nth=1")
    with Device(link=Network().link("10.0.0.1"), thread=False, faults=plan) as other:
        assert other.faults is plan
        with pytest.raises(PyverbsUserError, match=r"belongs to a device already; Plan\(str\(plan\)\)"):
            Device(link=Network().link("10.0.0.2"), thread=False, faults=plan)
    rule = plan.add("create_qp")
    assert plan.remove(rule) is rule, "and outlives it"


def test_a_rule_that_is_removed_does_nothing_and_one_that_is_added_again_starts_anew(rig: Rig) -> None:
    faults = rig.device.faults
    rule = faults.add(Rule("create_cq", nth=2))
    CQ(rig.context, 10)
    faults.remove(rule)
    CQ(rig.context, 10)
    assert (rule.seen, rule.hits) == (1, 0)
    faults.add(rule)
    CQ(rig.context, 10)
    with pytest.raises(PyverbsRDMAError):
        CQ(rig.context, 10)


def test_a_device_can_be_closed_whatever_is_planned() -> None:
    with Device(link=Network().link("10.0.0.1"), thread=False, faults="*") as device:
        device.faults.clear()
        rig = Rig(device)
        rig.pair()
        device.faults.add("*")
        with pytest.raises(PyverbsRDMAError, match=r"made to fail by \*"):
            rig.context.close()
    assert not device.usable()


def test_wrong_plans_open_nothing() -> None:
    with pytest.raises(PyverbsUserError, match=r"faults: 'creat_cq': there is no fault 'creat_cq'; did you mean"):
        Device(link=Network().link("10.0.0.1"), faults="creat_cq")


def test_nothing_is_lost_in_a_storm(rig: Rig) -> None:
    """Whatever fails by chance, what was accepted works, and everything can be closed in the end."""
    before = census(rig)
    rig.device.faults.add("*:p=0.2")
    kept: list[Any] = []
    words: set[bool] = set()
    for make in [CALLS[name] for name in ("create_cq", "create_qp", "reg_mr", "alloc_pd", "create_comp_cntr")] * 40:
        try:
            kept.append(make[1](rig, make[0](rig)))
        except PyverbsRDMAError as error:
            words.add("made to fail by *:p=0.2" in str(error))
    assert 100 < len(kept) < 180
    while kept:
        try:
            kept[-1].close()
            kept.pop()
        except PyverbsRDMAError as error:
            words.add("made to fail by *:p=0.2" in str(error))
    assert words == {True}
    rig.device.faults.clear()
    assert census(rig) == before
