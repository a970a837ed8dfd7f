# SPDX-License-Identifier: MIT
"""The small modules of pyverbs: memory, fork, constants of the connection manager, and what is only refused."""

import ctypes
import errno
import struct

import pytest

from softverbs import (
    CQ,
    CQEX,
    MR,
    PD,
    QP,
    Context,
    CqInitAttrEx,
    PyverbsError,
    PyverbsRDMAError,
    PyverbsUserError,
    QPInitAttr,
)
from softverbs.pyverbs import cm_enums, dma_util, enums, fork, librdmacm_enums, mem_alloc, spec
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fd_arr import FdArr
from softverbs.pyverbs.dmabuf import DmaBuf
from softverbs.pyverbs.flow import Flow, FlowAttr
from softverbs.pyverbs.providers.efa import efa_enums, efadv
from softverbs.pyverbs.wq import WQ, RwqIndTable, RwqIndTableInitAttr, RxHashConf, WQAttr, WQInitAttr


@pytest.fixture
def context(device):
    with Context(device=device) as context:
        yield context


def unsupported(call, words):
    with pytest.raises(PyverbsRDMAError, match=words) as caught:
        call()
    assert caught.value.error_code == errno.EOPNOTSUPP


# -- memory


def test_allocated_memory_is_aligned_zeroed_and_registers(context):
    address = mem_alloc.posix_memalign(4096, 256)
    assert address % 256 == 0
    assert mem_alloc.read(address, 4096) == bytes(4096)
    with PD(context) as pd, MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE, address=address) as mr:
        mem_alloc.write(address, "hello", 5, 10)
        assert mr.read(5, 10) == b"hello"
    mem_alloc.free(address)
    with pytest.raises(MemoryError):
        mem_alloc.posix_memalign(8, 3)
    mem_alloc.free(mem_alloc.malloc(1))


def test_integers_are_put_and_read():
    address = mem_alloc.malloc(64)
    mem_alloc.writebe32(address, 0x1_0203_0405, 1)
    mem_alloc.writebe64(address, 0x0102030405060708, 1)
    assert mem_alloc.read(address, 4, 4) == bytes((2, 3, 4, 5))
    assert mem_alloc.read(address, 8, 8) == bytes(range(1, 9))
    assert mem_alloc.read32(address, 1) == struct.unpack("=I", bytes((2, 3, 4, 5)))[0]
    assert mem_alloc.read64(address, 1) == struct.unpack("=Q", bytes(range(1, 9)))[0]
    dma_util.mmio_write32_as_be(address, 1)
    dma_util.mmio_write64_as_be(address + 16, 2)
    dma_util.udma_to_dev_barrier()
    dma_util.udma_from_dev_barrier()
    assert mem_alloc.read(address, 4) == b"\0\0\0\1"
    assert mem_alloc.read(address, 8, 16) == bytes(7) + b"\2"
    with pytest.raises(ValueError, match="6 bytes, but data has 5"):
        mem_alloc.write(address, b"12345", 6)
    mem_alloc.free(address)


def test_mapped_memory():
    address = mem_alloc.mmap(length=8192)
    mem_alloc.write(address, b"x", 1)
    mem_alloc.madvise(address, 4096)
    assert mem_alloc.read(address, 1) == b"\0"
    with pytest.raises(PyverbsRDMAError) as caught:
        mem_alloc.madvise(address + 1, 4096)
    assert caught.value.error_code == errno.EINVAL
    mem_alloc.munmap(address, 8192)
    with pytest.raises(MemoryError, match="Invalid argument"):
        mem_alloc.munmap(1, 1)
    with pytest.raises(MemoryError, match="mmap 0 bytes"):
        mem_alloc.mmap(length=0)


def test_fork_needs_nothing():
    fork.fork_init()
    assert fork.is_fork_initialized() == e.IBV_FORK_UNNEEDED


# -- constants


def test_the_connection_managers_constants():
    assert librdmacm_enums.rdma_port_space.RDMA_PS_TCP == librdmacm_enums.RDMA_PS_TCP == 0x106
    assert librdmacm_enums.rdma_cm_event_type(8) is librdmacm_enums.rdma_cm_event_type.RDMA_CM_EVENT_REJECTED
    assert len(librdmacm_enums.rdma_cm_event_type) == 18
    assert cm_enums.RAI_PASSIVE == 1
    assert cm_enums.rdma_cm_mc_join_flags is librdmacm_enums.rdma_cm_mc_join_flags
    assert {"rdma_port_space", "RDMA_PS_UDP"} <= set(dir(librdmacm_enums))
    names: dict[str, object] = {}
    exec("from softverbs.pyverbs.librdmacm_enums import *", names)
    assert {"rdma_cm_event_type", "RDMA_OPTION_ID_ACK_TIMEOUT", "RAI_DNS"} <= names.keys()
    with pytest.raises(AttributeError):
        _ = librdmacm_enums.RDMA_NO


def test_the_old_names_of_the_constants():
    assert enums._IBV_ALLOCATOR_USE_DEFAULT == e._IBV_ALLOCATOR_USE_DEFAULT
    assert enums.ibv_access_flags is e.ibv_access_flags
    assert enums.IBV_QPS_RTS == e.IBV_QPS_RTS
    assert (enums.IBV_QPS_RTS.name, enums.IBV_QPS_RTS.value) == ("IBV_QPS_RTS", 3)
    assert enums.IBV_LINK_LAYER_ETHERNET == e.IBV_LINK_LAYER_ETHERNET
    assert cm_enums.RDMA_PS_UDP.value == 0x111


# -- what is refused


def test_raw_packets_are_refused(context):
    with PD(context) as pd, CQ(context, 1) as cq:
        unsupported(lambda: QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RAW_PACKET, scq=cq, rcq=cq)), "Failed to create QP")


def test_flow_steering_is_refused_and_its_rules_are_data():
    attr = FlowAttr(num_of_specs=1, priority=3)
    attr.specs.append(spec.EthSpec(dst_mac="de:de:de:00:de:01"))
    attr.flags = e.IBV_FLOW_ATTR_FLAGS_EGRESS
    assert (attr.type, attr.priority, attr.num_of_specs, attr.port, attr.flags) == (0, 3, 1, 1, 4)
    unsupported(lambda: Flow(None, attr), "no flow steering")
    with pytest.raises(PyverbsRDMAError, match="FlowAttr is expected"):
        Flow(None, None)


def test_receive_side_scaling_is_refused(context):
    with PD(context) as pd, CQ(context, 1) as cq:
        attr = WQInitAttr(wq_pd=pd, wq_cq=cq, max_wr=7)
        assert (attr.pd, attr.cq, attr.max_wr, attr.wq_type) == (pd, cq, 7, e.IBV_WQT_RQ)
        unsupported(lambda: WQ(context, attr), "no raw packets")
    unsupported(lambda: RwqIndTable(context, RwqIndTableInitAttr(3, [])), "no raw packets")
    assert WQAttr(attr_mask=e.IBV_WQ_ATTR_STATE, wq_state=e.IBV_WQS_RDY).wq_state == e.IBV_WQS_RDY
    with pytest.raises(PyverbsUserError, match="do not fit"):
        RwqIndTableInitAttr(1, [object()] * 3)
    with pytest.raises(PyverbsUserError, match="at least 1"):
        RwqIndTableInitAttr(0)


def test_the_key_of_a_hash():
    conf = RxHashConf(e.IBV_RX_HASH_FUNC_TOEPLITZ, 2, [1, 2], e.IBV_RX_HASH_DST_IPV4)
    assert (conf.rx_hash_key, conf.rx_hash_key_len) == ([1, 2], 2)
    conf.rx_hash_key = [3]
    assert conf.rx_hash_key_len == 1
    with pytest.raises(PyverbsUserError, match="not rx_hash_key_len=2"):
        RxHashConf(rx_hash_key=[1], rx_hash_key_len=2)
    with pytest.raises(PyverbsUserError, match="at least 1"):
        conf.rx_hash_key_len = 0


def test_the_features_of_one_maker_are_refused(context):
    unsupported(lambda: CQEX(context, CqInitAttrEx(wc_flags=e.IBV_WC_EX_WITH_TM_INFO)), "TM_INFO|tag matching")
    assert context.query_device_ex().tm_caps.flags == 0
    assert context.query_device_ex().raw_packet_caps == 0


def test_memory_of_a_gpu_is_refused():
    unsupported(lambda: DmaBuf(4096, gpu=1), "memory of a GPU")


def test_efas_own_queue_pairs_are_refused(device, monkeypatch):
    monkeypatch.setattr("softverbs.pyverbs.device.default_device", lambda: device)
    with efadv.EfaContext(name=device.name) as context:
        unsupported(context.query_efa_device, "no EFA device")
        unsupported(lambda: efadv.EfaCQ(context, None), "no EFA device")
        unsupported(lambda: efadv.SRDQPEx(context, None, None), "no EFA device")
        unsupported(lambda: efadv.SRDQP(None, None), "no EFA device")
        with PD(context) as pd, efadv.EfaMR(pd, 64, 0) as mr:
            unsupported(mr.query, "no EFA device")
    assert efadv.EfaDVCQInitAttr(efa_enums.EFADV_WC_EX_WITH_SGID).wc_flags == 1
    attr = efadv.EfaQPInitAttr()
    attr.sl = 3
    assert (attr.sl, attr.comp_mask) == (3, 0)


def test_a_list_of_file_descriptors():
    assert FdArr([5, 6, 7], 2).arr == [5, 6]
    assert "[5, 6]" in str(FdArr([5, 6], 2))
    closed = FdArr([5, 6], 2)
    closed.close()
    closed.close()
    assert closed.count == 0
    with pytest.raises(PyverbsRDMAError, match="arr has 0"):
        FdArr(count=1)


# -- what flow rules match on


def in_memory(item):
    buffer = ctypes.create_string_buffer(item.size)
    item._copy_data(ctypes.addressof(buffer))
    return buffer.raw


def test_an_ethernet_header():
    item = spec.EthSpec(dst_mac="01:02:03:04:05:06", ether_type=0x800, is_inner=1)
    item.src_mac = "0a:0b:0c:0d:0e:0f"
    item.src_mac_mask = "ff:00:00:00:00:00"
    assert (item.size, item.dst_mac_mask, item.ether_type_mask, item.vlan_tag_mask) == (
        40,
        "ff:ff:ff:ff:ff:ff",
        0xFFFF,
        0,
    )
    value = bytes(range(1, 7)) + bytes(range(10, 16)) + b"\x08\x00\0\0"
    mask = b"\xff" * 6 + b"\xff" + bytes(5) + b"\xff\xff\0\0"
    head = struct.pack("=IH", e.IBV_FLOW_SPEC_ETH | e.IBV_FLOW_SPEC_INNER, 40)
    assert in_memory(item) == head + value + mask + bytes(2)
    assert "IBV_FLOW_SPEC_INNER IBV_FLOW_SPEC_ETH" in str(item)
    assert "01:02:03:04:05:06" in str(item)


def test_ip_headers():
    four = spec.Ipv4ExtSpec(dst_ip="1.2.3.4", src_ip="5.6.7.8", src_ip_mask="255.0.0.0", proto=17, ttl=9)
    assert (four.dst_ip, four.dst_ip_mask, four.src_ip_mask, four.ttl_mask) == (
        "1.2.3.4",
        "255.255.255.255",
        "255.0.0.0",
        255,
    )
    value, mask = bytes((5, 6, 7, 8, 1, 2, 3, 4, 17, 0, 9, 0)), b"\xff\0\0\0" + b"\xff" * 5 + b"\0\xff\0"
    assert in_memory(four) == struct.pack("=IHxx", e.IBV_FLOW_SPEC_IPV4_EXT, 32) + value + mask
    six = spec.Ipv6Spec(dst_ip="fd00::1", next_hdr=6, flow_label=5)
    assert (six.src_ip, six.src_ip_mask, six.flow_label_mask, six.size) == ("::", "::", 0xFFFFF, 88)
    assert six.dst_ip_mask == "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
    raw = in_memory(six)
    assert raw[8:48] == bytes(16) + b"\xfd" + bytes(14) + b"\1" + bytes((0, 0, 0, 5, 6, 0, 0, 0))
    assert raw[48:] == bytes(16) + b"\xff" * 16 + bytes((0, 0xF, 0xFF, 0xFF, 0xFF, 0, 0, 0))
    assert "fd00::1" in str(six)


def test_a_port():
    item = spec.TcpUdpSpec(e.IBV_FLOW_SPEC_UDP, dst_port=4791, src_port=1, src_port_mask=0xF)
    head = struct.pack("=IH", e.IBV_FLOW_SPEC_UDP, 16)
    assert in_memory(item) == head + struct.pack(">HHHH", 4791, 1, 0xFFFF, 0xF) + bytes(2)
    with pytest.raises(PyverbsError, match="IBV_FLOW_SPEC_UDP"):
        spec.TcpUdpSpec(e.IBV_FLOW_SPEC_ETH)


def test_what_cannot_be_matched_on():
    for bad in ("1.2.3", "::1", 5):
        with pytest.raises(PyverbsRDMAError, match="IPv4 address"):
            spec.Ipv4ExtSpec(dst_ip=bad)
    with pytest.raises(PyverbsRDMAError, match="IPv6 address"):
        spec.Ipv6Spec(src_ip="1.2.3.4")
    for bad in ("1:2", "a:b:c:d:e:zz", 7):
        with pytest.raises(PyverbsRDMAError, match="MAC address"):
            spec.EthSpec(src_mac=bad)
    with pytest.raises(PyverbsRDMAError, match="uint8"):
        spec.Ipv4ExtSpec(tos=256)
    with pytest.raises(PyverbsError, match="not implemented"):
        spec.Spec.type_to_str(e.IBV_FLOW_SPEC_ESP)
    with pytest.raises(NotImplementedError):
        spec.Spec()
