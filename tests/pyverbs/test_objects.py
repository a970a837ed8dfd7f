# SPDX-License-Identifier: MIT
"""The life of objects: closing in any order, twice, by garbage collection; closed objects; what is in use."""

import errno
import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from softverbs.device import Device
from softverbs.links.inproc import Network
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.comp_cntr import CompCntr, CompCntrInitAttr
from softverbs.pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx
from softverbs.pyverbs.device import Context, QueryDeviceExInput
from softverbs.pyverbs.mr import MR
from softverbs.pyverbs.pd import PD
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.qp import ECE, QP, QPAttachCompCntrAttr, QPAttr, QPInitAttr, QPInitAttrEx, QPRateLimitAttr
from softverbs.pyverbs.wr import SendWR

SEND = QPAttachCompCntrAttr(e.IBV_QP_ATTACH_COMP_CNTR_OP_SEND)


def test_closing_in_any_order_and_twice(device: Device, rig: Any) -> None:
    for order in itertools.permutations(range(5)):
        context = Context(device=device)
        pd = PD(context)
        channel = CompChannel(context)
        cq = CQ(context, 4, None, channel)
        mr = MR(pd, 64)
        things = [pd, channel, cq, mr, QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq))]
        for index in order:
            things[index].close()
            things[index].close()
        context.close()
        context.close()


def test_parents_close_their_children(rig: Any) -> None:
    qp = rig.qp()
    rig.context.close()
    for thing in (qp, rig.cq, rig.channel, rig.mr, rig.pd, rig.context):
        assert thing._core is None
    rig.memory.append(1)


def test_children_keep_their_parents(device: Device) -> None:
    cq = CQ(Context(device=device), 4)
    mr = MR(PD(Context(device=device)), 8)
    gc.collect()
    assert (cq.cqe, mr.length) == (4, 8)
    assert cq.context.name == "softverbs0"
    assert mr._pd.ctx.name == "softverbs0"
    with cq, mr:
        pass
    assert cq.context is None
    assert mr.context is None


def test_garbage_in_any_order(device: Device) -> None:
    handles = set()
    for _ in range(20):
        context = Context(device=device)
        pd = PD(context)
        cq = CQ(context, 4)
        counter = CompCntr(context, CompCntrInitAttr())
        qp = QP(pd, QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq))
        qp.attach_comp_cntr(counter, SEND)
        mr = MR(pd, 64)
        cycle: list[Any] = [qp, mr, counter, cq, pd, context]
        cycle.append(cycle)
        handles.add(mr.handle)
        del context, pd, cq, counter, qp, mr, cycle
        gc.collect()
        device.progress()
    assert len(handles) <= 2, "regions of collected objects were not given back"


def test_a_finalizer_in_the_middle_of_device_code_is_deferred(device: Device) -> None:
    memory = bytearray(8)
    with device.lock:
        mr = MR(PD(Context(device=device)), memory, 0)
        del mr
        with pytest.raises(BufferError):
            memory.append(1)
    device.progress()
    memory.append(1)


def test_a_finalizer_does_not_wait_for_another_thread(device: Device) -> None:
    memory = bytearray(8)
    mr = MR(PD(Context(device=device)), memory, 0)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with device.lock:
            held.set()
            done.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(30)
    del mr
    with pytest.raises(BufferError):
        memory.append(1)
    done.set()
    holder.join()
    device.progress()
    memory.append(1)


def test_garbage_does_not_keep_its_parents_busy(rig: Any) -> None:
    qp = rig.qp()
    with rig.device.lock:
        del qp
    rig.cq.close()
    rig.pd.close()


CLOSED: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("context", "context is closed", lambda o: o.query_device()),
    ("context", "context is closed", lambda o: o.num_comp_vectors),
    ("context", "context is closed", lambda o: o.async_fd),
    ("context", "context is closed", lambda o: o.get_async_event()),
    ("context", "context is closed", PD),
    ("context", "context is closed", CompChannel),
    ("context", "context is closed", lambda o: CQ(o, 5)),
    ("context", "context is closed", lambda o: CompCntr(o, CompCntrInitAttr())),
    ("pd", "PD is closed", lambda o: o.handle),
    ("pd", "PD is closed", lambda o: MR(o, 8)),
    ("pd", "PD is closed", lambda o: QP(o, QPInitAttr(e.IBV_QPT_RC))),
    ("mr", "MR is closed", lambda o: o.lkey),
    ("mr", "MR is closed", lambda o: o.rkey),
    ("mr", "MR is closed", lambda o: o.read(1, 0)),
    ("mr", "MR is closed", lambda o: o.write(b"x", 1)),
    ("mr", "MR is closed", lambda o: o.rereg(0)),
    ("cq", "CQ is closed", lambda o: o.poll()),
    ("cq", "CQ is closed", lambda o: o.req_notify()),
    ("cq", "CQ is closed", lambda o: o.resize(5)),
    ("cq", "CQ is closed", lambda o: o.ack_events(1)),
    ("cq", "CQ is closed", lambda o: o.cqe),
    ("cq", "CQ is closed", str),
    ("cqex", "CQ is closed", lambda o: o.start_poll(None)),
    ("cqex", "CQ is closed", lambda o: o.status),
    ("channel", "completion channel is closed", lambda o: o.fd),
    ("channel", "completion channel is closed", lambda o: o.get_cq_event()),
    ("counter", "completion counter is closed", lambda o: o.read()),
    ("counter", "completion counter is closed", lambda o: o.read_err()),
    ("counter", "completion counter is closed", lambda o: o.read_pair()),
    ("counter", "completion counter is closed", lambda o: o.set(1)),
    ("counter", "completion counter is closed", lambda o: o.set_err(1)),
    ("counter", "completion counter is closed", lambda o: o.inc(1)),
    ("counter", "completion counter is closed", lambda o: o.inc_err(1)),
    ("counter", "completion counter is closed", lambda o: o.wait(1, 0)),
    ("counter", "completion counter is closed", lambda o: o.threshold_fd(1)),
    ("qp", "QP is closed", lambda o: o.qp_num),
    ("qp", "QP is closed", lambda o: o.qp_state),
    ("qp", "QP is closed", lambda o: o.query(1)),
    ("qp", "QP is closed", lambda o: o.modify(QPAttr(), 1)),
    ("qp", "QP is closed", lambda o: o.to_init(QPAttr())),
    ("qp", "QP is closed", lambda o: o.post_send(SendWR())),
    ("qp", "QP is closed", str),
]


@pytest.mark.parametrize(("name", "words", "act"), CLOSED)
def test_closed_objects_say_so(rig: Any, name: str, words: str, act: Callable[[Any], Any]) -> None:
    thing = {
        "cqex": lambda: CQEX(rig.context, None),
        "counter": rig.counter,
        "qp": rig.qp,
    }.get(name, lambda: getattr(rig, name))()
    thing.close()
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        act(thing)
    assert caught.value.errno == errno.EINVAL


def test_what_stands_for_pointers_is_zero_when_closed(rig: Any) -> None:
    qp = rig.qp()
    things = ((rig.context, "context"), (rig.pd, "pd"), (rig.cq, "cq"), (qp, "qp"), (rig.mr, "buf"))
    assert all(getattr(thing, name) for thing, name in things)
    rig.context.close()
    assert not any(getattr(thing, name) for thing, name in things)


def test_a_counter_that_is_attached_stays_open(rig: Any) -> None:
    counter, qp = rig.counter(), rig.qp()
    qp.attach_comp_cntr(counter, SEND)
    with pytest.raises(PyverbsRDMAError, match="attached") as caught:
        counter.close()
    assert caught.value.errno == errno.EBUSY
    counter.inc(1)
    assert counter.read() == 1
    qp.close()
    counter.close()


def test_an_attached_counter_is_kept_by_its_qp(rig: Any) -> None:
    qp = rig.qp()
    qp.attach_comp_cntr(rig.counter(), SEND)
    gc.collect()
    with pytest.raises(PyverbsRDMAError, match="attached already"):
        qp.attach_comp_cntr(rig.counter(), SEND)


# -- creation


def test_a_context_is_opened_by_name_or_device(device: Device) -> None:
    with Context(device=device, name="softverbs0") as context:
        assert context.name == "softverbs0"
        assert context.device is device
    with pytest.raises(PyverbsUserError, match="name must be provided"):
        Context()
    with pytest.raises(PyverbsUserError, match="no argument nam"):
        Context(nam="softverbs0")
    with pytest.raises(PyverbsRDMAError, match="mlx5_0") as caught:
        Context(device=device, name="mlx5_0")
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(PyverbsRDMAError, match="Device is expected"):
        Context(device="softverbs0")
    with pytest.raises(PyverbsRDMAError, match="attr") as caught:
        Context(name="softverbs0", attr=1)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_objects_are_made_from_what_they_need(rig: Any) -> None:
    with pytest.raises(PyverbsUserError, match="Cannot create PD from"):
        PD(rig.pd)
    with pytest.raises(PyverbsUserError, match="Cannot create QP from"):
        QP(rig.cq, rig.init_attr())
    for make in (
        lambda: CQ(rig.pd, 5),
        lambda: CQ(None, 5),
        lambda: CompChannel(None),
        lambda: MR(rig.context, 5),
        lambda: CompCntr(rig.pd, CompCntrInitAttr()),
        lambda: CompCntr(rig.context, None),
        lambda: QP(rig.pd, QPInitAttrEx()),
        lambda: CQEX(rig.context, 5),
        lambda: CQ(rig.context, 5, None, rig.cq),
        lambda: QP(rig.context, QPInitAttr()),
        lambda: rig.qp().attach_comp_cntr(None, SEND),
        lambda: rig.qp().attach_comp_cntr(rig.counter(), 1),
        lambda: rig.qp().to_init(None),
        lambda: rig.qp().modify(5, 1),
    ):
        with pytest.raises(PyverbsRDMAError, match="is expected") as caught:
            make()
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("cqe", [0, -1, 2**31 - 1, 2**31, "5", 1.5])
def test_a_cq_of_impossible_size(rig: Any, cqe: Any) -> None:
    with pytest.raises(PyverbsRDMAError, match="cqe") as caught:
        CQ(rig.context, cqe)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("comp_vector", [-1, 4, "0"])
def test_a_cq_of_an_impossible_vector(rig: Any, comp_vector: Any) -> None:
    assert rig.context.num_comp_vectors == 4
    with pytest.raises(PyverbsRDMAError, match="comp_vector"):
        CQ(rig.context, 5, comp_vector=comp_vector)


def test_what_belongs_to_another_context_is_refused(device: Device, rig: Any) -> None:
    with Context(device=device) as other:
        with pytest.raises(PyverbsRDMAError, match="another context"):
            CQ(other, 5, None, rig.channel)
        with pytest.raises(PyverbsRDMAError, match="send_cq belongs to another context"):
            QP(PD(other), rig.init_attr())
        with pytest.raises(PyverbsRDMAError, match="pd belongs to another context"):
            QP(other, QPInitAttrEx(e.IBV_QPT_RC, pd=rig.pd, comp_mask=e.IBV_QP_INIT_ATTR_PD))
        with pytest.raises(PyverbsRDMAError, match="another context"):
            rig.qp().attach_comp_cntr(CompCntr(other, CompCntrInitAttr()), SEND)


def test_a_qp_from_a_context(rig: Any) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_RC, scq=rig.cq, rcq=rig.cq, pd=rig.pd, comp_mask=e.IBV_QP_INIT_ATTR_PD)
    with QP(rig.context, attr) as qp:
        assert qp.qp_type == e.IBV_QPT_RC
    attr.comp_mask = 0
    with pytest.raises(PyverbsRDMAError, match="names no PD"):
        QP(rig.context, attr)
    attr.comp_mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS | e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    with QP(rig.context, attr) as qp:  # no flags, and no header: nothing is asked for
        assert qp.qp_state == e.IBV_QPS_RESET


@pytest.mark.parametrize(
    ("bit", "members", "code"),
    [
        (e.IBV_QP_INIT_ATTR_CREATE_FLAGS, {"create_flags": e.IBV_QP_CREATE_SOURCE_QPN}, errno.EOPNOTSUPP),
        (e.IBV_QP_INIT_ATTR_CREATE_FLAGS, {"create_flags": 1 << 20}, errno.EINVAL),
        (e.IBV_QP_INIT_ATTR_MAX_TSO_HEADER, {"max_tso_header": 64}, errno.EOPNOTSUPP),
        (e.IBV_QP_INIT_ATTR_IND_TABLE, {"ind_table": object()}, errno.EOPNOTSUPP),
        (e.IBV_QP_INIT_ATTR_RX_HASH, {"hash_conf": object()}, errno.EOPNOTSUPP),
        (e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, {"send_ops_flags": e.IBV_QP_EX_WITH_TSO}, errno.EOPNOTSUPP),
        (1 << 20, {}, errno.EINVAL),
    ],
)
def test_what_a_qp_from_a_context_cannot_have(rig: Any, bit: int, members: dict[str, Any], code: int) -> None:
    attr = QPInitAttrEx(e.IBV_QPT_RC, scq=rig.cq, rcq=rig.cq, pd=rig.pd, comp_mask=e.IBV_QP_INIT_ATTR_PD)
    for name, value in members.items():
        setattr(attr, name, value)
    QP(rig.context, attr).close()
    attr.comp_mask |= bit
    with pytest.raises(PyverbsRDMAError, match="|".join([*members, "comp_mask"])) as caught:
        QP(rig.context, attr)
    assert caught.value.errno == code


def test_a_qp_that_cannot_be_had(rig: Any) -> None:
    for qp_type in (e.IBV_QPT_RAW_PACKET, e.IBV_QPT_DRIVER, 77):
        with pytest.raises(PyverbsRDMAError, match="qp_type") as caught:
            QP(rig.pd, QPInitAttr(qp_type, scq=rig.cq, rcq=rig.cq))
        assert caught.value.errno == errno.EOPNOTSUPP
    with pytest.raises(PyverbsRDMAError, match="recv_cq is missing"):
        QP(rig.pd, QPInitAttr(e.IBV_QPT_RC, scq=rig.cq))
    with pytest.raises(PyverbsRDMAError, match="SRQ is expected"):
        QP(rig.pd, QPInitAttr(e.IBV_QPT_RC, scq=rig.cq, rcq=rig.cq, srq=1))
    with pytest.raises(PyverbsRDMAError, match="max_send_wr"):
        rig.qp(max_send_wr=10**6)


def test_a_qp_with_attributes_goes_to_init_at_once(rig: Any) -> None:
    with QP(rig.pd, rig.init_attr(), QPAttr()) as qp:
        assert qp.qp_state == e.IBV_QPS_INIT
    init = rig.init_attr()
    init.qp_type = e.IBV_QPT_UD
    with QP(rig.pd, init, QPAttr()) as qp:
        assert qp.qp_state == e.IBV_QPS_RTS


def test_what_a_vendor_would_add(rig: Any) -> None:
    """Options of vendors, pacing, and the order of bytes: the device has none of it, and says so."""
    qp = rig.qp()
    qp.set_ece(ECE())
    for act in (lambda: qp.set_ece(ECE(0x15B3, 1)), lambda: qp.modify_rate_limit(QPRateLimitAttr(1000))):
        with pytest.raises(PyverbsRDMAError) as caught:
            act()
        assert caught.value.errno == errno.EOPNOTSUPP
    found = qp.query_ece()
    assert (found.vendor_id, found.options, found.comp_mask) == (0, 0, 0)
    assert "Vendor ID             : 0x15b3 " in str(ECE(0x15B3))
    assert str(QPRateLimitAttr(7, 8, 9)).splitlines()[0] == "Rate limit (kbps)     : 7                   "
    for op in (e.IBV_WR_SEND, e.IBV_WR_RDMA_READ, e.IBV_WR_RDMA_WRITE):
        assert qp.query_data_in_order(op) == 0
        assert qp.query_data_in_order(op, e.IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS) == 0
    for junk in (None, 5, "x"):
        for method in (qp.set_ece, qp.modify_rate_limit):
            with pytest.raises(PyverbsRDMAError, match="is expected"):
                method(junk)


# -- the device underneath


def test_closing_a_device_closes_its_objects() -> None:
    device = Device(link=Network().link("10.0.0.9"), thread=False)
    context, other, memory = Context(device=device), Context(device=device), bytearray(8)
    cq, mr = CQ(context, 5), MR(PD(context), memory, 0)
    other.close()
    device.close()
    for thing in (context, cq, mr):
        assert thing._core is None
    memory.append(1)
    with pytest.raises(PyverbsRDMAError, match="CQ is closed"):
        cq.poll()
    with pytest.raises(PyverbsRDMAError, match=r"device .* closed"):
        Context(device=device)
    context.close()


def test_a_device_forgets_contexts_that_are_gone(device: Device) -> None:
    for _ in range(3):
        Context(device=device)
        Context(device=device).close()
    gc.collect()
    assert device.at_close == []


def test_the_device_of_the_process_is_listed() -> None:
    code = (
        "from softverbs.pyverbs.device import Context, get_device_list, rdma_get_devices\n"
        "(device,) = get_device_list()\n"
        "with Context(name=device.name.decode()) as context:\n"
        "    assert len(get_device_list()) == 1 and rdma_get_devices()[0].guid == device.guid\n"
        "    print(device, '/', context.query_gid(1, 0))\n"
        "assert device.index == 0"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Device softverbs0, node type CA, transport type IB, guid ")
    assert ":ffff:7f" in done.stdout, "a free address of 127.0.0.0/8"
    assert done.stderr == ""


def test_queries(rig: Any) -> None:
    context = rig.context
    attr = context.query_device()
    assert attr.fw_version
    assert (attr.max_qp, attr.phys_port_cnt, attr.max_pkeys) == (65520, 1, 1)
    extended = context.query_device_ex()
    assert extended.orig_attr.node_guid == attr.node_guid
    assert extended.odp_caps.general_caps == e.IBV_ODP_SUPPORT | e.IBV_ODP_SUPPORT_IMPLICIT
    assert context.query_port(1).link_layer == e.IBV_LINK_LAYER_ETHERNET
    assert context.query_port_speed(1) > 0
    assert context.query_pkey(1, 0) == 0xFFFF
    assert context.get_pkey_index(1, 0xFFFF) == 0
    assert str(context.query_gid(1, 0)).endswith("ffff:0a00:0001")
    assert context.query_gid_type(1, 0) == e.IBV_GID_TYPE_SYSFS_ROCE_V2
    entry = context.query_gid_table(10)[0]
    assert entry.gid_str() == str(context.query_gid(1, 0)) == context.query_gid_ex(1, 0).gid_str()
    assert entry.gid_type == e.IBV_GID_TYPE_ROCE_V2
    caps = context.query_comp_cntr_caps()
    assert (caps.max_value, caps.max_counters, caps.supported_qp_attach_ops) == (2**64 - 1, 1024, 63)
    seconds, nanoseconds = context.query_rt_values_ex()
    assert seconds >= 0
    assert 0 <= nanoseconds < 10**9
    assert context.stats()["frames_received"] == 0


@pytest.mark.parametrize(
    ("words", "ask"),
    [
        ("one port", lambda c: c.query_port(0)),
        ("one port", lambda c: c.query_port(2)),
        ("one port", lambda c: c.query_port_speed(2)),
        ("port_num is 'x'", lambda c: c.query_port("x")),
        ("one port", lambda c: c.query_gid(2, 0)),
        ("GID table", lambda c: c.query_gid(1, 8)),
        ("GID table", lambda c: c.query_gid(1, -1)),
        ("GID table", lambda c: c.query_gid_type(1, 8)),
        ("GID table", lambda c: c.query_gid_ex(1, 8)),
        ("flags", lambda c: c.query_gid_ex(1, 0, 1)),
        ("flags", lambda c: c.query_gid_table(1, 1)),
        ("P_Key table", lambda c: c.query_pkey(1, 1)),
        ("0xffff only", lambda c: c.get_pkey_index(1, 5)),
        ("comp_mask", lambda c: c.query_rt_values_ex(2)),
        ("comp_mask", lambda c: c.query_device_ex(QueryDeviceExInput(1))),
        ("QueryDeviceExInput is expected", lambda c: c.query_device_ex(5)),
    ],
)
def test_queries_of_what_is_not_there(rig: Any, words: str, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        ask(rig.context)
    assert caught.value.errno == errno.EINVAL


def test_extended_cqs_are_checked_at_creation(rig: Any) -> None:
    for code, words, attr in (
        (errno.EINVAL, "comp_mask", CqInitAttrEx(comp_mask=8)),
        (errno.EINVAL, "flags", CqInitAttrEx(comp_mask=1, flags=4)),
        (errno.EINVAL, "parent_domain", CqInitAttrEx(comp_mask=2, parent_domain=rig.pd)),
        (errno.EINVAL, "parent_domain", CqInitAttrEx(parent_domain=rig.pd)),
        (errno.EOPNOTSUPP, "CVLAN", CqInitAttrEx(wc_flags=e.IBV_WC_EX_WITH_CVLAN)),
        (errno.EOPNOTSUPP, "0x10000", CqInitAttrEx(wc_flags=1 << 16)),
        (errno.EINVAL, "cqe", CqInitAttrEx(cqe=0)),
        (errno.EINVAL, "comp_vector", CqInitAttrEx(comp_vector=9)),
    ):
        with pytest.raises(PyverbsRDMAError, match=words) as caught:
            CQEX(rig.context, attr)
        assert caught.value.errno == code
    assert "Extended CQ" in str(CQEX(rig.context))
