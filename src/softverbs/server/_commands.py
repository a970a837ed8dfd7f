# SPDX-License-Identifier: MIT
"""The tables of the protocol: types, structures, commands. ``abi`` makes what is used of them."""

from softverbs.server._cm_tables import CM_RECORDS, CM_TABLE

#: Name: C type, size, code of the struct module.
TYPES = {
    "u8": ("uint8_t", 1, "B"),
    "u16": ("uint16_t", 2, "H"),
    "u32": ("uint32_t", 4, "I"),
    "i32": ("int32_t", 4, "i"),
    "u64": ("uint64_t", 8, "Q"),
    "char": ("char", 1, "s"),
}

#: Structures that stand alone, or within others.
RECORDS = {
    "request": "u32 size; u32 command; u64 sequence",
    "response": "u32 size; i32 error; u64 sequence",
    "channel_record": "u64 cq",
    "async_record": "u32 event; u32 port; u64 handle",
    "ah_attr": (
        "u8 dgid[16]; u32 flow_label; u8 sgid_index; u8 hop_limit; u8 traffic_class; u8 sl;"
        "u16 dlid; u8 src_path_bits; u8 static_rate; u8 is_global; u8 port_num"
    ),
    "qp_cap": "u32 max_send_wr; u32 max_recv_wr; u32 max_send_sge; u32 max_recv_sge; u32 max_inline_data",
    "qp_attr": """
        u32 qp_state; u32 cur_qp_state; u32 path_mtu; u32 path_mig_state
        u32 qkey; u32 rq_psn; u32 sq_psn; u32 dest_qp_num; u32 qp_access_flags; u32 rate_limit
        qp_cap cap; ah_attr ah_attr; ah_attr alt_ah_attr
        u16 pkey_index; u16 alt_pkey_index; u8 en_sqd_async_notify; u8 sq_draining; u8 max_rd_atomic
        u8 max_dest_rd_atomic; u8 min_rnr_timer; u8 port_num; u8 timeout; u8 retry_cnt; u8 rnr_retry
        u8 alt_port_num; u8 alt_timeout""",
    #: The memory of a receive queue, or of both queues of a QP. Offsets count from the start of the memory, bytes.
    #: mark: the byte from CONTROL_MARKS on that is set when something was posted (core/queues/marks.py).
    "rings": """
        u64 memory_size
        u32 sq_offset; u32 sq_stride; u32 sq_slots; u32 rq_offset; u32 rq_stride; u32 rq_slots
        u32 mark""",
    **CM_RECORDS,
}

_DEVICE = """
    char fw_ver[64]; u64 node_guid; u64 sys_image_guid; u64 max_mr_size; u64 page_size_cap
    u32 vendor_id; u32 vendor_part_id; u32 hw_ver; u32 max_qp; u32 max_qp_wr; u32 device_cap_flags
    u32 max_sge; u32 max_sge_rd; u32 max_cq; u32 max_cqe; u32 max_mr; u32 max_pd
    u32 max_qp_rd_atom; u32 max_res_rd_atom; u32 max_qp_init_rd_atom; u32 atomic_caps; u32 max_mw
    u32 max_mcast_grp; u32 max_mcast_qp_attach; u32 max_total_mcast_qp_attach; u32 max_ah
    u32 max_srq; u32 max_srq_wr; u32 max_srq_sge; u16 max_pkeys; u8 local_ca_ack_delay; u8 phys_port_cnt
    u64 completion_timestamp_mask; u64 hca_core_clock; u64 device_cap_flags_ex; u64 max_dm_size
    u64 odp_general_caps; u32 rc_odp_caps; u32 uc_odp_caps; u32 ud_odp_caps; u32 xrc_odp_caps
    u32 raw_packet_caps; u32 max_wq_type_rq; u32 phys_port_cnt_ex; u16 max_cq_count; u16 max_cq_period"""
_PORT = """
    u32 state; u32 max_mtu; u32 active_mtu; u32 gid_tbl_len; u32 port_cap_flags; u32 max_msg_sz
    u32 bad_pkey_cntr; u32 qkey_viol_cntr; u16 pkey_tbl_len; u16 lid; u16 sm_lid; u8 lmc; u8 max_vl_num
    u8 sm_sl; u8 subnet_timeout; u8 init_type_reply; u8 active_width; u8 active_speed; u8 phys_state
    u8 link_layer; u8 flags; u16 port_cap_flags2; u32 active_speed_ex"""
_HANDLE = "u32 handle"

#: Name, number, request, response, descriptors of the response, words.
COMMAND_TABLE = (
    (
        "HELLO", 1, "u32 abi; u32 purpose; u64 guard; u64 secret",
        "u64 guid; u32 abi; u32 num_comp_vectors; char name[64]; char fw_ver[64]; u64 digest_address; "
        "u64 digest_options; u64 digest_faults; u64 digest_pcap",
        "control doorbell async",
        "the first command. guard: address of a page that holds `secret` in its first 64 bits, and nothing else; it "
        "tells the program's address space from others. A program of another user than the device's passes a "
        "descriptor of its /proc/self/mem. PURPOSE_LIST: neither, and no descriptors come. guid: the number, in host "
        "order; digest_: of the variables that the device was started with (FNV-1a)",
    ),
    ("QUERY_DEVICE", 2, "", _DEVICE, "", "ibv_query_device_ex(3). GUIDs: bytes in network order"),
    ("QUERY_PORT", 3, "u32 port_num", _PORT, "", "ibv_query_port(3)"),
    (
        "QUERY_GID", 4, "u32 port_num; u32 index", "u8 gid[16]; u32 type; u32 ndev_ifindex", "",
        "ibv_query_gid_ex(3); ENODATA for an empty entry. type: enum ibv_gid_type, 2 for RoCE v2",
    ),
    ("QUERY_PKEY", 5, "u32 port_num; u32 index", "u16 pkey", "", "ibv_query_pkey(3), in host order"),
    ("ALLOC_PD", 6, "", _HANDLE, "", "ibv_alloc_pd(3)"),
    ("DEALLOC_PD", 7, _HANDLE, "", "", "ibv_dealloc_pd(3)"),
    (
        "REG_MR", 8, "u32 pd; u32 flags; u64 address; u64 length; u64 iova; u32 access",
        "u32 handle; u32 lkey; u32 rkey", "",
        "ibv_reg_mr_iova2(3), ibv_alloc_null_mr(3). Implicit ON_DEMAND: address 0, length 2^64 - 1.",
    ),
    ("DEREG_MR", 9, _HANDLE, "", "", "ibv_dereg_mr(3), of every kind of region"),
    (
        "REREG_MR", 10, "u32 handle; u32 flags; u32 pd; u32 access; u64 address; u64 length", "u32 lkey; u32 rkey", "",
        "ibv_rereg_mr(3); flags: IBV_REREG_MR_*",
    ),
    ("ALLOC_DM", 11, "u64 length; u32 log_align_req; u32 comp_mask", _HANDLE, "", "ibv_alloc_dm(3)"),
    ("FREE_DM", 12, _HANDLE, "", "", "ibv_free_dm(3)"),
    (
        "COPY_DM", 13, "u32 handle; u32 to_device; u64 offset; u64 length; u64 address", "", "",
        "ibv_memcpy_to_dm(3) where to_device is 1, ibv_memcpy_from_dm(3) where it is 0; address: in the program",
    ),
    (
        "REG_DM_MR", 14, "u32 pd; u32 dm; u64 offset; u64 length; u32 access", "u32 handle; u32 lkey; u32 rkey", "",
        "ibv_reg_dm_mr(3)",
    ),
    ("ALLOC_MW", 15, "u32 pd; u32 type", "u32 handle; u32 rkey", "", "ibv_alloc_mw(3)"),
    ("DEALLOC_MW", 16, _HANDLE, "", "", "ibv_dealloc_mw(3)"),
    (
        "ADVISE_MR", 17, "u32 pd; u32 advice; u32 flags; u32 lkey; u64 address; u64 length", "", "",
        "ibv_advise_mr(3), for one scatter/gather element",
    ),
    (
        "CREATE_CHANNEL", 20, "", _HANDLE, "channel",
        "ibv_create_comp_channel(3); the descriptor gives one struct sv_channel_record for each event",
    ),
    ("DESTROY_CHANNEL", 21, _HANDLE, "", "", "ibv_destroy_comp_channel(3)"),
    (
        "CREATE_CQ", 22, "u32 cqe; u32 comp_vector; u32 channel; u32 flags",
        "u32 handle; u32 cqe; u64 memory_size; u32 offset; u32 stride; u32 slots", "memory",
        "ibv_create_cq(3), ibv_create_cq_ex(3); flags: IBV_CREATE_CQ_ATTR_*. "
        "Slot of index i: offset + (i & (slots - 1)) * stride",
    ),
    (
        "RESIZE_CQ", 23, "u32 handle; u32 cqe", "u32 cqe; u64 memory_size; u32 offset; u32 stride; u32 slots", "memory",
        "ibv_resize_cq(3): take head and tail from the new memory; the old one is no longer used. Store head before, "
        "and arm nothing meanwhile: what is armed stays armed, though it is not in the new memory",
    ),
    (
        "DESTROY_CQ", 24, _HANDLE, "u32 comp_events_reported; u32 async_events_reported", "",
        "ibv_destroy_cq(3); the driver then waits until so many events are acknowledged",
    ),
    ("MODIFY_CQ", 26, "u32 handle; u16 count; u16 period", "", "", "ibv_modify_cq(3); period: microseconds"),
    ("ACK_EVENTS", 27, "u32 handle; u32 count", "", "", "ibv_ack_cq_events(3), for the statistics; need not be sent"),
    (
        "COMPLETION_REASON", 28, "u32 handle; u64 index", "char text[504]", "",
        "why the completion of that index (as head counts) was an error; empty where there are no words. Asked once",
    ),
    (
        "CREATE_QP", 30,
        "u32 pd; u32 send_cq; u32 recv_cq; u32 srq; u32 xrcd; u32 qp_type; u32 sq_sig_all; qp_cap cap",
        "u32 handle; u32 qp_num; qp_cap cap; rings rings; u32 send_queue", "memory",
        "ibv_create_qp(3), ibv_create_qp_ex(3). Queues that it has not: slots 0. send_queue: its number in "
        "CQ_FREES; 0: its slots are free when they are retired",
    ),
    ("MODIFY_QP", 31, "u32 handle; u32 attr_mask; qp_attr attr", "u32 qp_state", "", "ibv_modify_qp(3)"),
    ("QUERY_QP", 32, "u32 handle; u32 attr_mask", "qp_attr attr", "", "ibv_query_qp(3)"),
    ("DESTROY_QP", 33, _HANDLE, "u32 async_events_reported", "", "ibv_destroy_qp(3)"),
    (
        "OPEN_QP", 34, "u32 xrcd; u32 qp_num; u32 qp_type", "u32 handle; u32 qp_num", "",
        "ibv_open_qp(3): an XRC target of the domain, made by anybody",
    ),
    (
        "CREATE_AH", 35, "u32 pd; ah_attr attr", "u32 handle; u32 number", "",
        "ibv_create_ah(3); number: what SQ_AH of a work request takes",
    ),
    ("DESTROY_AH", 36, _HANDLE, "", "", "ibv_destroy_ah(3)"),
    (
        "CREATE_SRQ", 37, "u32 pd; u32 srq_type; u32 xrcd; u32 cq; u32 max_wr; u32 max_sge; u32 srq_limit",
        "u32 handle; u32 srq_num; u32 max_wr; u32 max_sge; rings rings", "memory",
        "ibv_create_srq(3), ibv_create_srq_ex(3)",
    ),
    (
        "MODIFY_SRQ", 38, "u32 handle; u32 attr_mask; u32 max_wr; u32 srq_limit", "u32 max_wr; rings rings", "memory",
        "ibv_modify_srq(3). With IBV_SRQ_MAX_WR the queue moves to new memory, whose header says how full it is; "
        "else memory_size is 0 and no descriptor comes",
    ),
    ("QUERY_SRQ", 39, _HANDLE, "u32 max_wr; u32 max_sge; u32 srq_limit", "", "ibv_query_srq(3)"),
    ("DESTROY_SRQ", 40, _HANDLE, "u32 async_events_reported", "", "ibv_destroy_srq(3)"),
    (
        "OPEN_XRCD", 41, "i32 oflags; u32 has_fd", _HANDLE, "",
        "ibv_open_xrcd(3); where has_fd is 1 the request carries the descriptor of the file",
    ),
    ("CLOSE_XRCD", 42, _HANDLE, "", "", "ibv_close_xrcd(3)"),
    ("ATTACH_MCAST", 43, "u32 qp; u32 lid; u8 gid[16]", "", "", "ibv_attach_mcast(3)"),
    ("DETACH_MCAST", 44, "u32 qp; u32 lid; u8 gid[16]", "", "", "ibv_detach_mcast(3)"),
    (
        "CREATE_COMP_CNTR", 50,
        "u32 comp_mask; u32 type; u32 flags; u32 external; u64 value_address; u64 error_address", _HANDLE, "memory",
        "ibv_create_comp_cntr(3), efadv_create_comp_cntr(3); the page shows both counts, always. external: "
        "COUNTER_EXTERNAL_*, counts that are stored in the program's memory too, before completions can be seen.",
    ),
    ("DESTROY_COMP_CNTR", 51, _HANDLE, "", "", "ibv_destroy_comp_cntr(3)"),
    ("SET_COMP_CNTR", 52, "u32 handle; u64 value", "", "", "ibv_set_comp_cntr(3)"),
    ("SET_ERR_COMP_CNTR", 53, "u32 handle; u64 value", "", "", "ibv_set_err_comp_cntr(3)"),
    ("INC_COMP_CNTR", 54, "u32 handle; u64 amount", "", "", "ibv_inc_comp_cntr(3)"),
    ("INC_ERR_COMP_CNTR", 55, "u32 handle; u64 amount", "", "", "ibv_inc_err_comp_cntr(3)"),
    (
        "READ_COMP_CNTR", 56, _HANDLE, "u64 value; u64 errors", "",
        "ibv_read_comp_cntr(3), ibv_read_err_comp_cntr(3), after the device has done what it can; else read the page",
    ),
    ("ATTACH_COMP_CNTR", 57, "u32 qp; u32 counter; u32 op_mask; u32 comp_mask", "", "", "ibv_qp_attach_comp_cntr(3)"),
    (
        "QUERY_COMP_CNTR_CAPS", 58, "", "u64 max_value; u32 max_counters; u32 supported_qp_attach_ops", "",
        "ibv_query_comp_cntr_caps(3)",
    ),
    (
        "ASK", 60, "u32 verb; u32 handle; u64 wr_id; u64 size; u32 opcode", "", "",
        "whether a verb is to fail that the driver does by itself: a plan of faults has rules for it. verb: SV_ASK_*; "
        "handle: of the QP, CQ or SRQ; size: of the message or the queue",
    ),
    *CM_TABLE,
)  # fmt: skip
