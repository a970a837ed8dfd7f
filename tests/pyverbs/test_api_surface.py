# SPDX-License-Identifier: MIT
"""The Python face has the names, signatures, defaults and printed forms of pyverbs in rdma-core 65."""

import importlib
import inspect
import subprocess
import sys
import weakref

import pytest
from tests.pyverbs.surface import METHODS, SURFACE

import softverbs
from softverbs.core.base import constants
from softverbs.pyverbs import enums, libibverbs_enums
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs.addr import GID, GRH, AHAttr, GlobalRoute
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, close_weakrefs, inc_rkey
from softverbs.pyverbs.comp_cntr import CompCntrInitAttr
from softverbs.pyverbs.cq import WC, CqInitAttrEx, PollCqAttr
from softverbs.pyverbs.device import DeviceAttr, DeviceAttrEx, GIDEntry, ODPCaps, PortAttr
from softverbs.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.qp import QPAttachCompCntrAttr, QPAttr, QPCap, QPInitAttr, QPInitAttrEx
from softverbs.pyverbs.wr import SGE, RecvWR, SendWR

CLASSES = [(module, name) for module, classes in SURFACE.items() for name in classes]


def signature_text(function: object) -> str:
    """Parameters without ``self`` and without types, as ``name=default``."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(parameters))[1:-1]


def assert_signature(function: object, expected: str) -> None:
    if expected.endswith("..."):
        assert signature_text(function).startswith(expected[:-3])
    else:
        assert signature_text(function) == expected


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_constructor(module: str, name: str, core_is_compiled: bool) -> None:
    made = getattr(importlib.import_module(f"softverbs.pyverbs.{module}"), name)
    if core_is_compiled and made.__module__.startswith("softverbs.core.queues.wr"):
        pytest.skip("compiled classes do not tell their signature")
    expected = SURFACE[module][name][0]
    if made.__init__ is object.__init__:
        assert not expected
    else:
        assert_signature(made.__init__, expected)


@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_attributes(module: str, name: str) -> None:
    made = getattr(importlib.import_module(f"softverbs.pyverbs.{module}"), name)
    assert [attribute for attribute in SURFACE[module][name][1].split() if not hasattr(made, attribute)] == []


@pytest.mark.parametrize("path", METHODS)
def test_method_signature(path: str) -> None:
    module, name, method = path.split(".")
    made = getattr(importlib.import_module(f"softverbs.pyverbs.{module}"), name)
    assert_signature(getattr(made, method), METHODS[path])


@pytest.mark.parametrize(
    ("module", "names"),
    {
        "base": "inc_rkey PyverbsRDMAErrno",
        "utils": "be64toh gid_str gid_str_to_array qp_type_to_str qp_state_to_str mtu_to_str access_flags_to_str "
        "mig_state_to_str rereg_error_to_str",
        "device": "get_device_list rdma_get_devices translate_gid_type guid_format translate_transport_type "
        "translate_node_type "
        "guid_to_hex port_state_to_str translate_mtu translate_link_layer translate_port_cap_flags "
        "translate_port_cap_flags2 translate_device_caps str_from_flags phys_state_to_str width_to_str speed_to_str "
        "translate_event_type",
        "cq": "cqe_status_to_str cqe_opcode_to_str flags_to_str cqe_flags_to_str create_wc_flags_to_str",
        "wr": "send_flags_to_str",
    }.items(),
)
def test_functions(module: str, names: str) -> None:
    home = importlib.import_module(f"softverbs.pyverbs.{module}")
    assert [name for name in names.split() if not callable(getattr(home, name, None))] == []


def test_every_class_is_documented_and_closes() -> None:
    for module, name in CLASSES:
        made = getattr(importlib.import_module(f"softverbs.pyverbs.{module}"), name)
        assert made.__doc__
        if "close" in SURFACE[module][name][1].split():
            assert hasattr(made, "__enter__")
            assert hasattr(made, "__exit__")


# -- constants


def test_constants_are_plain_integers_and_members_equal_them() -> None:
    for name in ("ibv_qp_type", "ibv_wc_status", "ibv_access_flags", "ibv_qp_attach_comp_cntr_op", "ibv_node_type"):
        members = getattr(libibverbs_enums, name).__members__
        assert members
        for member, value in members.items():
            assert type(getattr(libibverbs_enums, member)) is int
            assert getattr(libibverbs_enums, member) == value


def test_every_enumeration_of_pyverbs_is_there() -> None:
    for name in libibverbs_enums._MEMBERS:
        assert len(getattr(libibverbs_enums, name).__members__) == len(libibverbs_enums._MEMBERS[name].split())
    with pytest.raises(AttributeError, match="ibv_nothing"):
        _ = libibverbs_enums.ibv_nothing
    assert "ibv_mtu" in dir(libibverbs_enums)


def test_an_enumeration_takes_any_integer_as_c_does() -> None:
    both = libibverbs_enums.ibv_access_flags(e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_READ)
    assert both == 5
    assert "5" in repr(both)
    assert "IBV_MTU_1024" in repr(libibverbs_enums.ibv_mtu(3))
    with pytest.raises(ValueError, match="many"):
        libibverbs_enums.ibv_mtu("many")


def test_enums_is_the_older_name_of_the_same_constants() -> None:
    assert enums.IBV_QPT_RC == e.IBV_QPT_RC == 2
    assert enums.ibv_qp_type is libibverbs_enums.ibv_qp_type


def test_the_core_has_the_same_numbers() -> None:
    for name, value in constants.VALUES.items():
        full = name.replace("OP_", "QP_ATTACH_COMP_CNTR_OP_", 1) if name.startswith("OP_") else name
        assert getattr(e, f"IBV_{full}") == value


# -- members of structures


def test_a_member_keeps_what_fits_and_refuses_the_rest_in_words() -> None:
    attr = QPAttr()
    attr.rq_psn = 2**32 - 1
    assert attr.rq_psn == 2**32 - 1
    for value, words in (
        (2**32, r"QPAttr\.rq_psn is 4294967296: it does not fit uint32, 0 to 4294967295"),
        (-1, "uint32"),
        ("5", "an integer is expected"),
        (1.5, "an integer is expected"),
        (None, "an integer is expected"),
    ):
        with pytest.raises(PyverbsRDMAError, match=words) as caught:
            attr.rq_psn = value
        assert caught.value.errno == 22
    assert attr.rq_psn == 2**32 - 1
    with pytest.raises(PyverbsRDMAError, match="uint8"):
        attr.timeout = 256
    with pytest.raises(PyverbsRDMAError, match="uint16"):
        attr.pkey_index = 65536


def test_a_member_stores_enumerations_as_plain_integers() -> None:
    attr = QPAttr(qp_state=libibverbs_enums.ibv_qp_state.IBV_QPS_RTS)
    assert type(attr.qp_state) is int
    assert attr.qp_state == 3


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        (DeviceAttr(), "max_qp"),
        (CompCntrInitAttr(), "flags"),
        (QPAttachCompCntrAttr(1), "op_mask"),
        (PortAttr(), "lid"),
    ],
)
def test_what_pyverbs_lets_nobody_set_cannot_be_set(structure: object, name: str) -> None:
    with pytest.raises(AttributeError, match="can only be read"):
        setattr(structure, name, 1)


def test_defaults() -> None:
    cap = QPCap()
    assert (cap.max_send_wr, cap.max_recv_wr) == (1, 10)
    assert (cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data) == (1, 1, 0)
    init = QPInitAttr()
    assert (init.qp_type, init.sq_sig_all, init.max_send_wr, init.send_cq) == (e.IBV_QPT_UD, 1, 0, None)
    assert QPInitAttrEx().sq_sig_all == 0
    attr = QPAttr()
    assert (attr.qp_state, attr.cur_qp_state, attr.port_num, attr.path_mtu) == (1, 0, 1, 3)
    assert attr.cap.max_send_wr == 0
    assert (CqInitAttrEx().cqe, PollCqAttr().comp_mask) == (100, 0)


def test_structures_are_copied_as_c_copies_them() -> None:
    init = QPInitAttr(cap=QPCap(max_send_wr=7))
    init.cap.max_send_wr = 99
    assert init.max_send_wr == init.cap.max_send_wr == 7
    init.max_send_wr = 8
    assert init.cap.max_send_wr == 8
    route = GlobalRoute(GID("fe80:0000:0000:0000:0000:0000:0000:0001"), hop_limit=9)
    ah = AHAttr(is_global=1, gr=route)
    route.hop_limit = 1
    attr = QPAttr()
    attr.ah_attr = ah
    ah.hop_limit = 2
    assert attr.ah_attr.hop_limit == 9
    attr.ah_attr.hop_limit = 3
    assert attr.ah_attr.hop_limit == 9
    assert attr.alt_ah_attr.is_global == 0


def test_a_queue_must_be_a_cq() -> None:
    with pytest.raises(PyverbsUserError, match="Expected CQ/CQEX"):
        QPInitAttr(scq=5)
    init = QPInitAttr()
    with pytest.raises(PyverbsUserError, match="Expected CQ/CQEX"):
        init.recv_cq = object()
    with pytest.raises(PyverbsRDMAError, match="QPCap is expected"):
        init.cap = 5


# -- addresses


def test_gid() -> None:
    text = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    gid = GID(text)
    assert gid.gid == str(gid) == text
    assert gid.raw[-4:] == bytes((10, 0, 0, 1))
    gid.gid = "fe80:0000:0000:0000:0000:0000:0000:0001"
    assert gid.raw[0] == 0xFE
    assert GID().gid == ":".join(["0000"] * 8)


@pytest.mark.parametrize("text", ["", "::1", "10.0.0.1", "zzzz:" * 7 + "zzzz", "0:0:0:0:0:0:0:0", 5])
def test_a_gid_that_is_none(text: object) -> None:
    with pytest.raises(PyverbsUserError, match="Invalid GID value"):
        GID(text)


def test_an_address_vector_without_a_global_route_has_none_of_its_members() -> None:
    ah = AHAttr()
    assert (ah.dgid, ah.flow_label, ah.sgid_index, ah.hop_limit, ah.traffic_class) == (None,) * 5
    ah.dgid = "not looked at"
    with pytest.raises(PyverbsUserError, match="gr is None"):
        AHAttr(is_global=1)
    with pytest.raises(PyverbsRDMAError, match="GlobalRoute is expected"):
        AHAttr(is_global=1, gr=5)


def test_address_vectors_that_are_copied_and_printed() -> None:
    text = "fe80:0000:0000:0000:0000:0000:0000:0009"
    ah = AHAttr(is_global=1, gr=GlobalRoute())
    ah.dgid = text
    assert ah.raw_dgid[-1] == 9
    attr = QPAttr()
    attr.ah_attr = attr.alt_ah_attr = ah
    ah.is_global = 0
    assert attr.alt_ah_attr.dgid == text
    assert str(attr).count(f"    dgid                  : {text}") == 2
    with pytest.raises(PyverbsRDMAError, match="AHAttr is expected"):
        attr.ah_attr = 5


def test_grh() -> None:
    grh = GRH(GID("fe80:0000:0000:0000:0000:0000:0000:0001"), GID("fe80:0000:0000:0000:0000:0000:0000:0002"))
    assert (grh.sgid[-1], grh.dgid[-1], grh.hop_limit) == ("1", "2", 1)
    assert str(grh).splitlines()[0] == f"DGID                  : {grh.dgid}"
    grh.dgid = grh.sgid
    assert grh.dgid == grh.sgid
    with pytest.raises(PyverbsRDMAError, match="GID is expected"):
        GRH(sgid="fe80::1")


# -- printed forms


def test_printed_forms() -> None:
    assert str(QPCap()).splitlines()[0] == "max send wrs        : 1                   "
    assert str(QPInitAttr(e.IBV_QPT_RC)).splitlines()[:3] == [
        "QP type             : RC                  ",
        "SQ sig. all         : 1                   ",
        "QP caps:",
    ]
    assert "Create Flags" in str(QPInitAttrEx(comp_mask=4))
    text = str(QPAttr())
    assert text.startswith("QP state              : Init                \n")
    assert "Path MTU              : 1024                \n" in text
    assert "AH Attr:\n  port num              : 0 " in text
    assert str(AHAttr()).splitlines()[0] == "  port num              : 1                   "
    assert "traffic_class" in str(AHAttr(is_global=1, gr=GlobalRoute()))
    assert str(GlobalRoute()).splitlines()[-1].startswith("traffic class         : 0")
    assert str(PortAttr()).splitlines()[0].startswith("Port state              : NOP (0)")
    assert str(GIDEntry(gid_type=2)).splitlines()[3].startswith("GID type                : RoCEv2")
    assert "Node guid             : 0000:0000:0000:0000 " in str(DeviceAttr())
    assert "RC ODP caps: " in str(ODPCaps())
    assert str(CqInitAttrEx(wc_flags=1)).splitlines()[1].startswith("WC flags              : IBV_WC_EX_WITH_BYTE_LEN")
    assert str(SGE(16, 8, 5)).splitlines()[:2] == [
        "Address               : 0x10                ",
        "Length                : 8                   ",
    ]


def test_printed_forms_of_work() -> None:
    text = str(WC(wr_id=5, status=10, opcode=1, wc_flags=2, imm_data=7))
    assert text.splitlines()[:3] == [
        "WR ID                 : 5                   ",
        "status                : remote access error ",
        "opcode                : RDMA write          ",
    ]
    assert "WC flags              : With immediate " in text
    assert "imm_data              : 7 " in text
    assert str(SendWR(sg=[SGE(0, 0, 0)], num_sge=1)).splitlines()[1:4] == [
        "Num SGE               : 1                   ",
        "Opcode                : 2                   ",
        "Send flags            : IBV_SEND_SIGNALED   ",
    ]
    assert str(RecvWR(3)) == f"{'WR ID':22}: {3:<20}\n{'Num SGE':22}: {0:<20}\n"


def test_words_for_numbers() -> None:
    from softverbs.pyverbs import cq, device, utils

    assert utils.qp_type_to_str(255) == "Driver QP"
    assert utils.qp_state_to_str(77) == "Unknown (77)"
    assert [utils.mtu_to_str(code) for code in range(7)] == [0, 256, 512, 1024, 2048, 4096, 0]
    assert utils.access_flags_to_str(3) == "Local write Remote write "
    assert utils.mig_state_to_str(1) == "Re-arm"
    assert utils.rereg_error_to_str(e.IBV_REREG_MR_ERR_CMD) == "IBV_REREG_MR_ERR_CMD"
    assert utils.rereg_error_to_str(9) == "Unknown error (9)"
    assert utils.gid_str(utils.be64toh(0xFE80 << 48), utils.be64toh(1)) == "fe80:0000:0000:0000:0000:0000:0000:0001"
    assert device.guid_format(utils.be64toh(0x0253_56FF_FE00_0001)) == "0253:56ff:fe00:0001"
    assert device.guid_to_hex(0xAB) == "ab"
    assert device.translate_node_type(1) == "CA"
    assert device.translate_transport_type(9) == "Unknown"
    assert device.translate_mtu(5) == "4096 (5)"
    assert device.translate_mtu(6) == "Invalid MTU (6)"
    assert device.translate_link_layer(2) == "Ethernet"
    assert device.translate_link_layer(7) == "Invalid link layer (7)"
    assert device.translate_gid_type(5) == "Unknown gid_type (5)"
    assert device.port_state_to_str(9) == "Invalid state (9)"
    assert device.phys_state_to_str(5) == "Link up (5)"
    assert device.width_to_str(3) == "Invalid width"
    assert device.speed_to_str(8, 0) == "10.0 Gbps (8)"
    assert device.speed_to_str(0, 128) == "100.0 Gbps (128)"
    assert device.speed_to_str(3, 0) == "Invalid speed"
    assert device.translate_event_type(e.IBV_EVENT_CQ_ERR) == "IBV_EVENT_CQ_ERR"
    assert device.translate_event_type(99) == "Unknown event_type (99)"
    assert "IBV_PORT_CM_SUP" in device.translate_port_cap_flags(e.IBV_PORT_CM_SUP)
    assert "IBV_PORT_VIRT_SUP" in device.translate_port_cap_flags2(e.IBV_PORT_VIRT_SUP)
    assert "IBV_DEVICE_XRC" in device.translate_device_caps(e.IBV_DEVICE_XRC)
    assert cq.cqe_status_to_str(e.IBV_WC_REM_ACCESS_ERR) == "remote access error"
    assert cq.cqe_status_to_str(99) == "Unknown CQE status"
    assert cq.cqe_opcode_to_str(e.IBV_WC_RECV) == "Receive"
    assert cq.cqe_opcode_to_str(99) == "Unknown CQE opcode 99"
    assert cq.cqe_flags_to_str(3) == "GRH With immediate "
    assert cq.flags_to_str(2, {2: "two"}) == "two "


# -- base and errors


def test_errors() -> None:
    error = PyverbsRDMAError("no", 22)
    assert str(error) == "no. Errno: 22, Invalid argument"
    assert (error.error_code, error.errno, error.reason) == (22, 22, "no")
    assert isinstance(error, PyverbsError)
    assert str(PyverbsUserError("no")) == "no"
    assert PyverbsRDMAErrno("no").reason == "no"


def test_inc_rkey_counts_in_the_low_byte() -> None:
    assert inc_rkey(0x1234) == 0x1235
    assert inc_rkey(0x12FF) == 0x1200
    with pytest.raises(PyverbsRDMAError, match="rkey"):
        inc_rkey(2**32)


def test_base_classes() -> None:
    thing = PyverbsObject()
    thing.set_log_level(40)
    assert thing.logger.level == 40
    thing.set_log_level(0)
    with PyverbsCM() as manager:
        assert isinstance(manager, PyverbsCM)
    close_weakrefs([None, weakref.WeakSet([manager])])


# -- the package


def test_the_package_has_every_class_under_its_name() -> None:
    for name in softverbs.__all__:
        assert getattr(softverbs, name) is not None
        assert name in dir(softverbs)
    assert softverbs.IBV_QPT_RC == 2
    assert softverbs.ibv_mtu.IBV_MTU_256 == 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = softverbs.nothing


def test_core_build_says_which_build_runs(core_is_compiled: bool) -> None:
    assert softverbs.core_build == ("compiled" if core_is_compiled else "pure")


@pytest.mark.parametrize("star", [False, True])
def test_import_is_silent_and_starts_nothing(star: bool) -> None:
    what = "from softverbs import *" if star else "import softverbs"
    code = f"{what}; import threading, sys; assert threading.active_count() == 1; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "False\n"


def test_the_constants_of_a_structure_need_no_ctypes() -> None:
    assert DeviceAttrEx().orig_attr.max_qp == 0
