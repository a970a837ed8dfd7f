# SPDX-License-Identifier: MIT
"""The integers of the verbs API: every ``IBV_`` name of pyverbs 65, with its value in ``infiniband/verbs.h``."""

from typing import Final

# enum ibv_transport_type, ibv_get_device_list(3).
IBV_TRANSPORT_UNKNOWN: Final = -1
IBV_TRANSPORT_IB: Final = 0
IBV_TRANSPORT_IWARP: Final = 1
IBV_TRANSPORT_USNIC: Final = 2
IBV_TRANSPORT_USNIC_UDP: Final = 3

# enum ibv_node_type, ibv_get_device_list(3).
IBV_NODE_UNKNOWN: Final = -1
IBV_NODE_CA: Final = 1
IBV_NODE_SWITCH: Final = 2
IBV_NODE_ROUTER: Final = 3
IBV_NODE_RNIC: Final = 4
IBV_NODE_USNIC: Final = 5
IBV_NODE_USNIC_UDP: Final = 6
IBV_NODE_UNSPECIFIED: Final = 7

# Link layer of a port, ibv_query_port(3).
IBV_LINK_LAYER_UNSPECIFIED: Final = 0
IBV_LINK_LAYER_INFINIBAND: Final = 1
IBV_LINK_LAYER_ETHERNET: Final = 2

# enum ibv_atomic_cap, ibv_query_device(3).
IBV_ATOMIC_NONE: Final = 0
IBV_ATOMIC_HCA: Final = 1
IBV_ATOMIC_GLOB: Final = 2

# enum ibv_port_state, ibv_query_port(3).
IBV_PORT_NOP: Final = 0
IBV_PORT_DOWN: Final = 1
IBV_PORT_INIT: Final = 2
IBV_PORT_ARMED: Final = 3
IBV_PORT_ACTIVE: Final = 4
IBV_PORT_ACTIVE_DEFER: Final = 5

# enum ibv_port_cap_flags, ibv_query_port(3).
IBV_PORT_SM: Final = 2
IBV_PORT_NOTICE_SUP: Final = 4
IBV_PORT_TRAP_SUP: Final = 8
IBV_PORT_OPT_IPD_SUP: Final = 16
IBV_PORT_AUTO_MIGR_SUP: Final = 32
IBV_PORT_SL_MAP_SUP: Final = 64
IBV_PORT_MKEY_NVRAM: Final = 128
IBV_PORT_PKEY_NVRAM: Final = 256
IBV_PORT_LED_INFO_SUP: Final = 512
IBV_PORT_SYS_IMAGE_GUID_SUP: Final = 2048
IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP: Final = 4096
IBV_PORT_EXTENDED_SPEEDS_SUP: Final = 16384
IBV_PORT_CAP_MASK2_SUP: Final = 32768
IBV_PORT_CM_SUP: Final = 0x10000
IBV_PORT_SNMP_TUNNEL_SUP: Final = 0x20000
IBV_PORT_REINIT_SUP: Final = 0x40000
IBV_PORT_DEVICE_MGMT_SUP: Final = 0x80000
IBV_PORT_VENDOR_CLASS_SUP: Final = 0x100000
IBV_PORT_DR_NOTICE_SUP: Final = 0x200000
IBV_PORT_CAP_MASK_NOTICE_SUP: Final = 0x400000
IBV_PORT_BOOT_MGMT_SUP: Final = 0x800000
IBV_PORT_LINK_LATENCY_SUP: Final = 0x1000000
IBV_PORT_CLIENT_REG_SUP: Final = 0x2000000
IBV_PORT_IP_BASED_GIDS: Final = 0x4000000

# enum ibv_port_cap_flags2, ibv_query_port(3).
IBV_PORT_SET_NODE_DESC_SUP: Final = 1
IBV_PORT_INFO_EXT_SUP: Final = 2
IBV_PORT_VIRT_SUP: Final = 4
IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP: Final = 8
IBV_PORT_LINK_WIDTH_2X_SUP: Final = 16
IBV_PORT_LINK_SPEED_HDR_SUP: Final = 32
IBV_PORT_LINK_SPEED_NDR_SUP: Final = 1024

# enum ibv_mtu, ibv_query_port(3).
IBV_MTU_256: Final = 1
IBV_MTU_512: Final = 2
IBV_MTU_1024: Final = 3
IBV_MTU_2048: Final = 4
IBV_MTU_4096: Final = 5

# enum ibv_event_type, ibv_get_async_event(3).
IBV_EVENT_CQ_ERR: Final = 0
IBV_EVENT_QP_FATAL: Final = 1
IBV_EVENT_QP_REQ_ERR: Final = 2
IBV_EVENT_QP_ACCESS_ERR: Final = 3
IBV_EVENT_COMM_EST: Final = 4
IBV_EVENT_SQ_DRAINED: Final = 5
IBV_EVENT_PATH_MIG: Final = 6
IBV_EVENT_PATH_MIG_ERR: Final = 7
IBV_EVENT_DEVICE_FATAL: Final = 8
IBV_EVENT_PORT_ACTIVE: Final = 9
IBV_EVENT_PORT_ERR: Final = 10
IBV_EVENT_LID_CHANGE: Final = 11
IBV_EVENT_PKEY_CHANGE: Final = 12
IBV_EVENT_SM_CHANGE: Final = 13
IBV_EVENT_SRQ_ERR: Final = 14
IBV_EVENT_SRQ_LIMIT_REACHED: Final = 15
IBV_EVENT_QP_LAST_WQE_REACHED: Final = 16
IBV_EVENT_CLIENT_REREGISTER: Final = 17
IBV_EVENT_GID_CHANGE: Final = 18
IBV_EVENT_WQ_FATAL: Final = 19
IBV_EVENT_DEVICE_SPEED_CHANGE: Final = 20

# enum ibv_access_flags, ibv_reg_mr(3).
IBV_ACCESS_LOCAL_WRITE: Final = 1
IBV_ACCESS_REMOTE_WRITE: Final = 2
IBV_ACCESS_REMOTE_READ: Final = 4
IBV_ACCESS_REMOTE_ATOMIC: Final = 8
IBV_ACCESS_MW_BIND: Final = 16
IBV_ACCESS_ZERO_BASED: Final = 32
IBV_ACCESS_ON_DEMAND: Final = 64
IBV_ACCESS_HUGETLB: Final = 128
IBV_ACCESS_FLUSH_GLOBAL: Final = 256
IBV_ACCESS_FLUSH_PERSISTENT: Final = 512
IBV_ACCESS_RELAXED_ORDERING: Final = 0x100000

# enum ibv_rereg_mr_flags, ibv_rereg_mr(3).
IBV_REREG_MR_CHANGE_TRANSLATION: Final = 1
IBV_REREG_MR_CHANGE_PD: Final = 2
IBV_REREG_MR_CHANGE_ACCESS: Final = 4

# enum ibv_rereg_mr_err_code, ibv_rereg_mr(3).
IBV_REREG_MR_ERR_INPUT: Final = -1
IBV_REREG_MR_ERR_DONT_FORK_NEW: Final = -2
IBV_REREG_MR_ERR_DO_FORK_OLD: Final = -3
IBV_REREG_MR_ERR_CMD: Final = -4
IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW: Final = -5

# enum ibv_wr_opcode, ibv_post_send(3).
IBV_WR_RDMA_WRITE: Final = 0
IBV_WR_RDMA_WRITE_WITH_IMM: Final = 1
IBV_WR_SEND: Final = 2
IBV_WR_SEND_WITH_IMM: Final = 3
IBV_WR_RDMA_READ: Final = 4
IBV_WR_ATOMIC_CMP_AND_SWP: Final = 5
IBV_WR_ATOMIC_FETCH_AND_ADD: Final = 6
IBV_WR_LOCAL_INV: Final = 7
IBV_WR_BIND_MW: Final = 8
IBV_WR_SEND_WITH_INV: Final = 9
IBV_WR_TSO: Final = 10
IBV_WR_FLUSH: Final = 14
IBV_WR_ATOMIC_WRITE: Final = 15

# enum ibv_ops_wr_opcode.
IBV_WR_TAG_ADD: Final = 0
IBV_WR_TAG_DEL: Final = 1
IBV_WR_TAG_SYNC: Final = 2

# enum ibv_ops_flags.
IBV_OPS_SIGNALED: Final = 1
IBV_OPS_TM_SYNC: Final = 2

# enum ibv_send_flags, ibv_post_send(3).
IBV_SEND_FENCE: Final = 1
IBV_SEND_SIGNALED: Final = 2
IBV_SEND_SOLICITED: Final = 4
IBV_SEND_INLINE: Final = 8
IBV_SEND_IP_CSUM: Final = 16

# enum ibv_tm_cap_flags.
IBV_TM_CAP_RC: Final = 1

# enum ibv_qp_type, ibv_create_qp(3).
IBV_QPT_RC: Final = 2
IBV_QPT_UC: Final = 3
IBV_QPT_UD: Final = 4
IBV_QPT_RAW_PACKET: Final = 8
IBV_QPT_XRC_SEND: Final = 9
IBV_QPT_XRC_RECV: Final = 10
IBV_QPT_DRIVER: Final = 255

# enum ibv_qp_state, ibv_modify_qp(3).
IBV_QPS_RESET: Final = 0
IBV_QPS_INIT: Final = 1
IBV_QPS_RTR: Final = 2
IBV_QPS_RTS: Final = 3
IBV_QPS_SQD: Final = 4
IBV_QPS_SQE: Final = 5
IBV_QPS_ERR: Final = 6
IBV_QPS_UNKNOWN: Final = 7

# enum ibv_mw_type, ibv_alloc_mw(3).
IBV_MW_TYPE_1: Final = 1
IBV_MW_TYPE_2: Final = 2

# enum ibv_wc_status, ibv_poll_cq(3).
IBV_WC_SUCCESS: Final = 0
IBV_WC_LOC_LEN_ERR: Final = 1
IBV_WC_LOC_QP_OP_ERR: Final = 2
IBV_WC_LOC_EEC_OP_ERR: Final = 3
IBV_WC_LOC_PROT_ERR: Final = 4
IBV_WC_WR_FLUSH_ERR: Final = 5
IBV_WC_MW_BIND_ERR: Final = 6
IBV_WC_BAD_RESP_ERR: Final = 7
IBV_WC_LOC_ACCESS_ERR: Final = 8
IBV_WC_REM_INV_REQ_ERR: Final = 9
IBV_WC_REM_ACCESS_ERR: Final = 10
IBV_WC_REM_OP_ERR: Final = 11
IBV_WC_RETRY_EXC_ERR: Final = 12
IBV_WC_RNR_RETRY_EXC_ERR: Final = 13
IBV_WC_LOC_RDD_VIOL_ERR: Final = 14
IBV_WC_REM_INV_RD_REQ_ERR: Final = 15
IBV_WC_REM_ABORT_ERR: Final = 16
IBV_WC_INV_EECN_ERR: Final = 17
IBV_WC_INV_EEC_STATE_ERR: Final = 18
IBV_WC_FATAL_ERR: Final = 19
IBV_WC_RESP_TIMEOUT_ERR: Final = 20
IBV_WC_GENERAL_ERR: Final = 21
IBV_WC_TM_ERR: Final = 22
IBV_WC_TM_RNDV_INCOMPLETE: Final = 23

# enum ibv_wc_opcode, ibv_poll_cq(3).
IBV_WC_SEND: Final = 0
IBV_WC_RDMA_WRITE: Final = 1
IBV_WC_RDMA_READ: Final = 2
IBV_WC_COMP_SWAP: Final = 3
IBV_WC_FETCH_ADD: Final = 4
IBV_WC_BIND_MW: Final = 5
IBV_WC_LOCAL_INV: Final = 6
IBV_WC_TSO: Final = 7
IBV_WC_FLUSH: Final = 8
IBV_WC_ATOMIC_WRITE: Final = 9
IBV_WC_RECV: Final = 128
IBV_WC_RECV_RDMA_WITH_IMM: Final = 129
IBV_WC_TM_ADD: Final = 130
IBV_WC_TM_DEL: Final = 131
IBV_WC_TM_SYNC: Final = 132
IBV_WC_TM_RECV: Final = 133
IBV_WC_TM_NO_TAG: Final = 134
IBV_WC_DRIVER2: Final = 136
IBV_WC_DRIVER3: Final = 137

# enum ibv_create_cq_wc_flags, ibv_create_cq_ex(3).
IBV_WC_EX_WITH_BYTE_LEN: Final = 1
IBV_WC_EX_WITH_IMM: Final = 2
IBV_WC_EX_WITH_QP_NUM: Final = 4
IBV_WC_EX_WITH_SRC_QP: Final = 8
IBV_WC_EX_WITH_SLID: Final = 16
IBV_WC_EX_WITH_SL: Final = 32
IBV_WC_EX_WITH_DLID_PATH_BITS: Final = 64
IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: Final = 128
IBV_WC_EX_WITH_CVLAN: Final = 256
IBV_WC_EX_WITH_FLOW_TAG: Final = 512
IBV_WC_EX_WITH_TM_INFO: Final = 1024
IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: Final = 2048

# enum ibv_wc_flags, ibv_poll_cq(3).
IBV_WC_GRH: Final = 1
IBV_WC_WITH_IMM: Final = 2
IBV_WC_IP_CSUM_OK: Final = 4
IBV_WC_WITH_INV: Final = 8
IBV_WC_TM_SYNC_REQ: Final = 16
IBV_WC_TM_MATCH: Final = 32
IBV_WC_TM_DATA_VALID: Final = 64

# enum ibv_srq_attr_mask.
IBV_SRQ_MAX_WR: Final = 1
IBV_SRQ_LIMIT: Final = 2

# enum ibv_srq_type, ibv_create_srq_ex(3).
IBV_SRQT_BASIC: Final = 0
IBV_SRQT_XRC: Final = 1
IBV_SRQT_TM: Final = 2

# enum ibv_srq_init_attr_mask.
IBV_SRQ_INIT_ATTR_TYPE: Final = 1
IBV_SRQ_INIT_ATTR_PD: Final = 2
IBV_SRQ_INIT_ATTR_XRCD: Final = 4
IBV_SRQ_INIT_ATTR_CQ: Final = 8
IBV_SRQ_INIT_ATTR_TM: Final = 16

# enum ibv_mig_state, ibv_modify_qp(3).
IBV_MIG_MIGRATED: Final = 0
IBV_MIG_REARM: Final = 1
IBV_MIG_ARMED: Final = 2

# enum ibv_qp_init_attr_mask, ibv_create_qp_ex(3).
IBV_QP_INIT_ATTR_PD: Final = 1
IBV_QP_INIT_ATTR_XRCD: Final = 2
IBV_QP_INIT_ATTR_CREATE_FLAGS: Final = 4
IBV_QP_INIT_ATTR_MAX_TSO_HEADER: Final = 8
IBV_QP_INIT_ATTR_IND_TABLE: Final = 16
IBV_QP_INIT_ATTR_RX_HASH: Final = 32
IBV_QP_INIT_ATTR_SEND_OPS_FLAGS: Final = 64

# enum ibv_qp_create_flags, ibv_create_qp_ex(3).
IBV_QP_CREATE_BLOCK_SELF_MCAST_LB: Final = 2
IBV_QP_CREATE_SCATTER_FCS: Final = 256
IBV_QP_CREATE_CVLAN_STRIPPING: Final = 512
IBV_QP_CREATE_SOURCE_QPN: Final = 1024
IBV_QP_CREATE_PCI_WRITE_END_PADDING: Final = 2048

# enum ibv_qp_attr_mask, ibv_modify_qp(3).
IBV_QP_STATE: Final = 1
IBV_QP_CUR_STATE: Final = 2
IBV_QP_EN_SQD_ASYNC_NOTIFY: Final = 4
IBV_QP_ACCESS_FLAGS: Final = 8
IBV_QP_PKEY_INDEX: Final = 16
IBV_QP_PORT: Final = 32
IBV_QP_QKEY: Final = 64
IBV_QP_AV: Final = 128
IBV_QP_PATH_MTU: Final = 256
IBV_QP_TIMEOUT: Final = 512
IBV_QP_RETRY_CNT: Final = 1024
IBV_QP_RNR_RETRY: Final = 2048
IBV_QP_RQ_PSN: Final = 4096
IBV_QP_MAX_QP_RD_ATOMIC: Final = 8192
IBV_QP_ALT_PATH: Final = 16384
IBV_QP_MIN_RNR_TIMER: Final = 32768
IBV_QP_SQ_PSN: Final = 0x10000
IBV_QP_MAX_DEST_RD_ATOMIC: Final = 0x20000
IBV_QP_PATH_MIG_STATE: Final = 0x40000
IBV_QP_CAP: Final = 0x80000
IBV_QP_DEST_QPN: Final = 0x100000
IBV_QP_RATE_LIMIT: Final = 0x2000000

# enum ibv_query_qp_data_in_order_flags.
IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS: Final = 1

# enum ibv_query_qp_data_in_order_caps.
IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG: Final = 1
IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES: Final = 2

# enum ibv_wq_type.
IBV_WQT_RQ: Final = 0

# enum ibv_wq_init_attr_mask.
IBV_WQ_INIT_ATTR_FLAGS: Final = 1

# enum ibv_wq_flags.
IBV_WQ_FLAGS_CVLAN_STRIPPING: Final = 1
IBV_WQ_FLAGS_SCATTER_FCS: Final = 2
IBV_WQ_FLAGS_DELAY_DROP: Final = 4
IBV_WQ_FLAGS_PCI_WRITE_END_PADDING: Final = 8

# enum ibv_wq_state.
IBV_WQS_RESET: Final = 0
IBV_WQS_RDY: Final = 1
IBV_WQS_ERR: Final = 2
IBV_WQS_UNKNOWN: Final = 3

# enum ibv_wq_attr_mask.
IBV_WQ_ATTR_STATE: Final = 1
IBV_WQ_ATTR_CURR_STATE: Final = 2
IBV_WQ_ATTR_FLAGS: Final = 4

# enum ibv_rx_hash_function_flags.
IBV_RX_HASH_FUNC_TOEPLITZ: Final = 1

# enum ibv_rx_hash_fields.
IBV_RX_HASH_SRC_IPV4: Final = 1
IBV_RX_HASH_DST_IPV4: Final = 2
IBV_RX_HASH_SRC_IPV6: Final = 4
IBV_RX_HASH_DST_IPV6: Final = 8
IBV_RX_HASH_SRC_PORT_TCP: Final = 16
IBV_RX_HASH_DST_PORT_TCP: Final = 32
IBV_RX_HASH_SRC_PORT_UDP: Final = 64
IBV_RX_HASH_DST_PORT_UDP: Final = 128

# enum ibv_flow_flags.
IBV_FLOW_ATTR_FLAGS_DONT_TRAP: Final = 2
IBV_FLOW_ATTR_FLAGS_EGRESS: Final = 4

# enum ibv_flow_attr_type.
IBV_FLOW_ATTR_NORMAL: Final = 0
IBV_FLOW_ATTR_ALL_DEFAULT: Final = 1
IBV_FLOW_ATTR_MC_DEFAULT: Final = 2
IBV_FLOW_ATTR_SNIFFER: Final = 3

# enum ibv_flow_spec_type.
IBV_FLOW_SPEC_ETH: Final = 32
IBV_FLOW_SPEC_IPV4: Final = 48
IBV_FLOW_SPEC_IPV6: Final = 49
IBV_FLOW_SPEC_IPV4_EXT: Final = 50
IBV_FLOW_SPEC_ESP: Final = 52
IBV_FLOW_SPEC_TCP: Final = 64
IBV_FLOW_SPEC_UDP: Final = 65
IBV_FLOW_SPEC_VXLAN_TUNNEL: Final = 80
IBV_FLOW_SPEC_GRE: Final = 81
IBV_FLOW_SPEC_MPLS: Final = 96
IBV_FLOW_SPEC_INNER: Final = 256
IBV_FLOW_SPEC_ACTION_TAG: Final = 4096
IBV_FLOW_SPEC_ACTION_DROP: Final = 4097
IBV_FLOW_SPEC_ACTION_HANDLE: Final = 4098
IBV_FLOW_SPEC_ACTION_COUNT: Final = 4099

# Port flags, ibv_query_port(3).
IBV_QPF_GRH_REQUIRED: Final = 1

# enum ibv_counter_description.
IBV_COUNTER_PACKETS: Final = 0
IBV_COUNTER_BYTES: Final = 1

# enum ibv_read_counters_flags.
IBV_READ_COUNTERS_ATTR_PREFER_CACHED: Final = 1

# enum ibv_cq_init_attr_mask, ibv_create_cq_ex(3).
IBV_CQ_INIT_ATTR_MASK_FLAGS: Final = 1
IBV_CQ_INIT_ATTR_MASK_PD: Final = 2

# enum ibv_create_cq_attr_flags, ibv_create_cq_ex(3).
IBV_CREATE_CQ_ATTR_SINGLE_THREADED: Final = 1
IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: Final = 2

# enum ibv_odp_general_caps.
IBV_ODP_SUPPORT: Final = 1
IBV_ODP_SUPPORT_IMPLICIT: Final = 2

# enum ibv_odp_transport_cap_bits.
IBV_ODP_SUPPORT_SEND: Final = 1
IBV_ODP_SUPPORT_RECV: Final = 2
IBV_ODP_SUPPORT_WRITE: Final = 4
IBV_ODP_SUPPORT_READ: Final = 8
IBV_ODP_SUPPORT_ATOMIC: Final = 16
IBV_ODP_SUPPORT_SRQ_RECV: Final = 32
IBV_ODP_SUPPORT_FLUSH: Final = 64
IBV_ODP_SUPPORT_ATOMIC_WRITE: Final = 128

# enum ibv_device_cap_flags, ibv_query_device(3).
IBV_DEVICE_RESIZE_MAX_WR: Final = 1
IBV_DEVICE_BAD_PKEY_CNTR: Final = 2
IBV_DEVICE_BAD_QKEY_CNTR: Final = 4
IBV_DEVICE_RAW_MULTI: Final = 8
IBV_DEVICE_AUTO_PATH_MIG: Final = 16
IBV_DEVICE_CHANGE_PHY_PORT: Final = 32
IBV_DEVICE_UD_AV_PORT_ENFORCE: Final = 64
IBV_DEVICE_CURR_QP_STATE_MOD: Final = 128
IBV_DEVICE_SHUTDOWN_PORT: Final = 256
IBV_DEVICE_INIT_TYPE: Final = 512
IBV_DEVICE_PORT_ACTIVE_EVENT: Final = 1024
IBV_DEVICE_SYS_IMAGE_GUID: Final = 2048
IBV_DEVICE_RC_RNR_NAK_GEN: Final = 4096
IBV_DEVICE_SRQ_RESIZE: Final = 8192
IBV_DEVICE_N_NOTIFY_CQ: Final = 16384
IBV_DEVICE_MEM_WINDOW: Final = 0x20000
IBV_DEVICE_UD_IP_CSUM: Final = 0x40000
IBV_DEVICE_XRC: Final = 0x100000
IBV_DEVICE_MEM_MGT_EXTENSIONS: Final = 0x200000
IBV_DEVICE_MEM_WINDOW_TYPE_2A: Final = 0x800000
IBV_DEVICE_MEM_WINDOW_TYPE_2B: Final = 0x1000000
IBV_DEVICE_RC_IP_CSUM: Final = 0x2000000
IBV_DEVICE_RAW_IP_CSUM: Final = 0x4000000
IBV_DEVICE_MANAGED_FLOW_STEERING: Final = 0x20000000

# enum ibv_raw_packet_caps.
IBV_RAW_PACKET_CAP_CVLAN_STRIPPING: Final = 1
IBV_RAW_PACKET_CAP_SCATTER_FCS: Final = 2
IBV_RAW_PACKET_CAP_IP_CSUM: Final = 4
IBV_RAW_PACKET_CAP_DELAY_DROP: Final = 8

# enum ibv_xrcd_init_attr_mask.
IBV_XRCD_INIT_ATTR_FD: Final = 1
IBV_XRCD_INIT_ATTR_OFLAGS: Final = 2
IBV_XRCD_INIT_ATTR_RESERVED: Final = 4

# What a plain completion queue reports, ibv_create_cq_ex(3).
IBV_WC_STANDARD_FLAGS: Final = 127

# enum ibv_values_mask.
IBV_VALUES_MASK_RAW_CLOCK: Final = 1

# enum ibv_qp_create_send_ops_flags, ibv_create_qp_ex(3).
IBV_QP_EX_WITH_RDMA_WRITE: Final = 1
IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: Final = 2
IBV_QP_EX_WITH_SEND: Final = 4
IBV_QP_EX_WITH_SEND_WITH_IMM: Final = 8
IBV_QP_EX_WITH_RDMA_READ: Final = 16
IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: Final = 32
IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: Final = 64
IBV_QP_EX_WITH_LOCAL_INV: Final = 128
IBV_QP_EX_WITH_BIND_MW: Final = 256
IBV_QP_EX_WITH_SEND_WITH_INV: Final = 512
IBV_QP_EX_WITH_TSO: Final = 1024
IBV_QP_EX_WITH_FLUSH: Final = 2048
IBV_QP_EX_WITH_ATOMIC_WRITE: Final = 4096

# enum ibv_parent_domain_init_attr_mask.
IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS: Final = 1
IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT: Final = 2
IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: Final = 4

# enum ibv_gid_type, ibv_query_gid_table(3).
IBV_GID_TYPE_IB: Final = 0
IBV_GID_TYPE_ROCE_V1: Final = 1
IBV_GID_TYPE_ROCE_V2: Final = 2

# enum ibv_fork_status.
IBV_FORK_DISABLED: Final = 0
IBV_FORK_ENABLED: Final = 1
IBV_FORK_UNNEEDED: Final = 2

# enum ibv_placement_type.
IBV_FLUSH_GLOBAL: Final = 1
IBV_FLUSH_PERSISTENT: Final = 2

# enum ibv_selectivity_level.
IBV_FLUSH_MR: Final = 1
IBV_FLUSH_RANGE: Final = 0

# enum ibv_tph_mem_type.
IBV_TPH_MEM_TYPE_VM: Final = 0
IBV_TPH_MEM_TYPE_PM: Final = 1

# enum ibv_dmah_init_attr_mask.
IBV_DMAH_INIT_ATTR_MASK_CPU_ID: Final = 1
IBV_DMAH_INIT_ATTR_MASK_PH: Final = 2
IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: Final = 4

# enum ibv_mr_init_attr_mask.
IBV_REG_MR_MASK_IOVA: Final = 1
IBV_REG_MR_MASK_ADDR: Final = 2
IBV_REG_MR_MASK_FD: Final = 4
IBV_REG_MR_MASK_FD_OFFSET: Final = 8
IBV_REG_MR_MASK_DMAH: Final = 16
IBV_REG_MR_MASK_BUF: Final = 32

# enum ibv_qp_attach_comp_cntr_op, ibv_qp_attach_comp_cntr(3).
IBV_QP_ATTACH_COMP_CNTR_OP_SEND: Final = 1
IBV_QP_ATTACH_COMP_CNTR_OP_RECV: Final = 2
IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: Final = 4
IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ: Final = 8
IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: Final = 16
IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE: Final = 32

# enum ibv_gid_type_sysfs.
IBV_GID_TYPE_SYSFS_IB_ROCE_V1: Final = 0
IBV_GID_TYPE_SYSFS_ROCE_V2: Final = 1

# enum ibv_tmh_op.
IBV_TMH_NO_TAG: Final = 0
IBV_TMH_RNDV: Final = 1
IBV_TMH_FIN: Final = 2
IBV_TMH_EAGER: Final = 3

# enum ibv_comp_cntr_type, ibv_create_comp_cntr(3).
IBV_COMP_CNTR_TYPE_WRS: Final = 0
IBV_COMP_CNTR_TYPE_BYTES: Final = 1

# Wider than an enum of C; pyverbs has them with an underscore.
_IBV_DEVICE_RAW_SCATTER_FCS: Final = 0x400000000
_IBV_DEVICE_PCI_WRITE_END_PADDING: Final = 0x1000000000
_IBV_DEVICE_CC_DMA_BOUNCE: Final = 0x20000000000
_IBV_ADVISE_MR_ADVICE_PREFETCH: Final = 0
_IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: Final = 1
_IBV_ADVISE_MR_FLAG_FLUSH: Final = 1
_IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: Final = 2
_IBV_ALLOCATOR_USE_DEFAULT: Final = 0xFFFFFFFFFFFFFFFF
