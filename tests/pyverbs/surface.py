# SPDX-License-Identifier: MIT
"""What pyverbs of rdma-core 65 has, as far as it is here: classes, constructors, attributes, methods."""

#: module: class: (constructor as pyverbs has it; "..." where ours takes more, attributes and methods)
SURFACE = {
    "addr": {
        "GID": ("val=None", "gid"),
        "GRH": (
            "sgid=None, dgid=None, version_tclass_flow=0, paylen=0, next_hdr=0, hop_limit=1",
            "dgid sgid version_tclass_flow paylen next_hdr hop_limit",
        ),
        "GlobalRoute": (
            "dgid=None, flow_label=0, sgid_index=0, hop_limit=1, traffic_class=0",
            "dgid flow_label sgid_index hop_limit traffic_class",
        ),
        "AHAttr": (
            "dlid=0, sl=0, src_path_bits=0, static_rate=0, is_global=0, port_num=1, gr=None",
            "port_num sl src_path_bits dlid static_rate is_global dgid flow_label sgid_index hop_limit traffic_class",
        ),
        "AH": ("pd, **kwargs", "close"),
    },
    "base": {"PyverbsObject": ("", "logger set_log_level"), "PyverbsCM": ("", "close __enter__ __exit__")},
    "comp_cntr": {
        "CompCntrInitAttr": ("comp_mask=0, cntr_type=0, flags=0", "comp_mask cntr_type flags"),
        "CompCntr": ("ctx, attr", "close set set_err inc inc_err read read_err"),
    },
    "cq": {
        "CompChannel": ("context", "close get_cq_event fd"),
        "CQ": (
            "context, cqe, cq_context=None, channel=None, comp_vector=0",
            "close resize poll req_notify ack_events comp_channel cqe cq",
        ),
        "CqInitAttrEx": (
            "cqe=100, channel=None, comp_vector=0, wc_flags=0, comp_mask=0, flags=0, parent_domain=None",
            "cqe comp_vector wc_flags comp_mask flags",
        ),
        "CQEX": (
            "context, init_attr...",
            "close start_poll poll_next end_poll read_opcode read_vendor_err read_byte_len read_imm_data read_qp_num "
            "read_src_qp read_wc_flags read_slid read_sl read_dlid_path_bits read_timestamp read_cvlan read_flow_tag "
            "read_tm_info read_completion_wallclock_ns status wr_id",
        ),
        "WC": (
            "wr_id=0, status=0, opcode=0, vendor_err=0, byte_len=0, qp_num=0, src_qp=0, imm_data=0, wc_flags=0, "
            "pkey_index=0, slid=0, sl=0, dlid_path_bits=0",
            "",
        ),
        "PollCqAttr": ("", "comp_mask"),
        "WcTmInfo": ("", "tag priv"),
    },
    "device": {
        "Device": ("name, guid, node_type, transport_type, index", "name node_type transport_type guid index"),
        "Context": (
            "**kwargs",
            "close context num_comp_vectors query_device query_device_ex query_comp_cntr_caps query_pkey "
            "get_pkey_index query_gid query_gid_type query_port query_port_speed query_gid_table query_gid_ex "
            "query_rt_values_ex get_async_event cmd_fd name",
        ),
        "DeviceAttr": (
            "",
            "node_guid sys_image_guid max_mr_size page_size_cap vendor_id vendor_part_id hw_ver max_qp max_qp_wr "
            "device_cap_flags max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom "
            "max_res_rd_atom max_qp_init_rd_atom max_ee_init_rd_atom atomic_caps max_ee max_rdd max_mw "
            "max_raw_ipv6_qps max_raw_ethy_qp max_mcast_grp max_mcast_qp_attach max_ah max_fmr max_map_per_fmr "
            "max_srq max_srq_wr max_srq_sge max_pkeys local_ca_ack_delay phys_port_cnt",
        ),
        "QueryDeviceExInput": ("comp_mask", ""),
        "ODPCaps": ("", "general_caps rc_odp_caps uc_odp_caps ud_odp_caps xrc_odp_caps"),
        "PCIAtomicCaps": ("", "fetch_add swap compare_swap"),
        "TSOCaps": ("", "max_tso supported_qpts"),
        "RSSCaps": (
            "",
            "supported_qpts max_rwq_indirection_tables rx_hash_fields_mask rx_hash_function "
            "max_rwq_indirection_table_size",
        ),
        "PacketPacingCaps": ("", "qp_rate_limit_min qp_rate_limit_max supported_qpts"),
        "TMCaps": ("", "max_rndv_hdr_size max_num_tags flags max_ops max_sge"),
        "CQModerationCaps": ("", "max_cq_count max_cq_period"),
        "DeviceAttrEx": (
            "",
            "comp_mask completion_timestamp_mask hca_core_clock device_cap_flags_ex max_wq_type_rq raw_packet_caps "
            "max_dm_size phys_port_cnt_ex",
        ),
        "CompCntrCaps": ("", "max_counters max_value supported_qp_attach_ops"),
        "PortAttr": (
            "",
            "state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr pkey_tbl_len "
            "lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width active_speed phys_state "
            "link_layer flags port_cap_flags2 active_speed_ex",
        ),
        "GIDEntry": (
            "subnet_prefix=0, interface_id=0, gid_index=0, port_num=0, gid_type=0, ndev_ifindex=0",
            "gid_subnet_prefix gid_interface_id gid_index port_num gid_type ndev_ifindex gid_str",
        ),
        "AsyncEvent": ("event_type=0", "ack event_type"),
        "AllocDmAttr": ("length, log_align_req=0, comp_mask=0", "length log_align_req comp_mask"),
        "DM": ("context, dm_attr=None, **kwargs", "close unimport copy_to_dm copy_from_dm export_dmabuf_fd handle"),
    },
    "mr": {
        "MR": (
            "creator, length=0, access=0, address=None, implicit=False, **kwargs",
            "close unimport write read rereg buf lkey rkey length handle",
        ),
        "MWBindInfo": ("mr, addr, length, mw_access_flags", "mw_access_flags length addr"),
        "MWBind": ("info, send_flags, wr_id=0", ""),
        "MW": ("pd, mw_type", "close handle rkey type"),
        "DMMR": ("pd, length, access, dm, offset", "close write read lkey rkey"),
        "DmaBufMR": ("pd, length, access, dmabuf=None, offset=0, gpu=0, gtt=0", "close write read"),
        "DmaHandleInitAttr": ("comp_mask=0, cpu_id=0, ph=0, tph_mem_type=0", "comp_mask cpu_id ph tph_mem_type"),
        "DMAHandle": ("ctx, init_attr", "close"),
        "MREx": (
            "pd, length=0, access=0, address=None, iova=None, fd=None, fd_offset=0, dmah=None, implicit=False, "
            "buf=None, **kwargs",
            "close write read rereg buf lkey rkey length handle",
        ),
        "Buf": ("pd, size", "close export_dmabuf_fd addr size"),
        "BufMR": ("pd, buf, length=0, access=0, offset=0", "close write read lkey rkey"),
    },
    "pd": {
        "PD": ("creator, **kwargs", "close advise_mr unimport handle pd"),
        "ParentDomainContext": ("pd, alloc_func, free_func, user_data=None", ""),
        "ParentDomainInitAttr": ("pd, pd_context=None, comp_mask=0...", "comp_mask"),
        "ParentDomain": ("context, attr", "close advise_mr handle pd"),
    },
    "pyverbs_error": {
        "PyverbsError": ("msg, error_code=-1", ""),
        "PyverbsRDMAError": ("msg, error_code=-1", "error_code"),
        "PyverbsUserError": ("msg", ""),
    },
    "qp": {
        "QPCap": (
            "max_send_wr=1, max_recv_wr=10, max_send_sge=1, max_recv_sge=1, max_inline_data=0",
            "max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data",
        ),
        "QPInitAttr": (
            "qp_type=4, qp_context=None, scq=None, rcq=None, srq=None, cap=None, sq_sig_all=1",
            "send_cq recv_cq srq cap qp_type sq_sig_all max_send_wr max_recv_wr max_send_sge max_recv_sge "
            "max_inline_data",
        ),
        "QPInitAttrEx": (
            "qp_type=4, qp_context=None, scq=None, rcq=None, srq=None, cap=None, sq_sig_all=0, comp_mask=0, pd=None, "
            "xrcd=None, create_flags=0, max_tso_header=0, source_qpn=0, hash_conf=None, ind_table=None, "
            "send_ops_flags=0",
            "send_cq recv_cq srq pd xrcd cap qp_type sq_sig_all comp_mask create_flags max_tso_header source_qpn "
            "mask_to_str flags_to_str max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data",
        ),
        "QPAttr": (
            "qp_state=1, cur_qp_state=0, port_num=1, path_mtu=3",
            "qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr "
            "alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic "
            "min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout rate_limit",
        ),
        "ECE": ("vendor_id=0, options=0, comp_mask=0", "vendor_id options comp_mask"),
        "QPRateLimitAttr": (
            "rate_limit=0, max_burst_sz=0, typical_pkt_sz=0, comp_mask=0",
            "rate_limit max_burst_sz typical_pkt_sz comp_mask",
        ),
        "QPAttachCompCntrAttr": ("op_mask=0...", "op_mask"),
        "QP": (
            "creator, init_attr, qp_attr=None",
            "close to_init to_rtr to_rts query modify modify_rate_limit attach_comp_cntr post_recv post_send set_ece "
            "query_ece bind_mw query_data_in_order qp_type qp_state qp_num qp",
        ),
    },
    "qpex": {
        "DataBuffer": ("addr, length", ""),
        "QPEx": (
            "creator, init_attr, qp_attr=None",
            "comp_mask wr_id wr_flags ind_table wr_atomic_cmp_swp wr_atomic_fetch_add wr_bind_mw wr_local_inv "
            "wr_atomic_write wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_flush wr_send wr_send_imm wr_send_inv "
            "wr_send_tso wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data wr_set_inline_data_list wr_set_sge "
            "wr_set_sge_list wr_start wr_complete wr_abort",
        ),
    },
    "srq": {
        "SrqAttr": ("max_wr=100, max_sge=1, srq_limit=0", "max_wr max_sge srq_limit"),
        "SrqInitAttr": ("attr=None", "max_wr max_sge srq_limit"),
        "SrqInitAttrEx": (
            "max_wr=100, max_sge=1, srq_limit=0",
            "max_wr max_sge srq_limit comp_mask srq_type pd xrcd cq max_num_tags max_ops",
        ),
        "OpsWr": (
            "wr_id=0, opcode=0, flags=1, next_wr=None, unexpected_cnt=0, recv_wr_id=0, num_sge=None, tag=0, mask=0, "
            "sg_list=None",
            "close wr_id next_wr opcode flags unexpected_cnt recv_wr_id tag handle mask",
        ),
        "SRQ": ("creator, attr", "close get_srq_num modify query post_srq_ops post_recv srq"),
    },
    "xrcd": {
        "XRCDInitAttr": ("comp_mask, oflags, fd", "fd comp_mask oflags"),
        "XRCD": ("context, init_attr", "close"),
    },
    "wr": {
        "SGE": ("addr, length, lkey", "close read addr length lkey"),
        "RecvWR": ("wr_id=0, num_sge=0, sg=None, next_wr=None", "close next_wr wr_id num_sge sg_list"),
        "SendWR": (
            "wr_id=0, opcode=2, num_sge=0, imm_data=0, sg=None, send_flags=2, next_wr=None",
            "close next_wr wr_id num_sge imm_data opcode send_flags sg_list set_wr_rdma set_wr_atomic set_bind_wr rkey "
            "rdma_remote_addr rdma_rkey",
        ),
    },
}
METHODS = {
    "cq.CompChannel.get_cq_event": "expected_cq...",
    "cq.CQ.resize": "cqe",
    "cq.CQ.poll": "num_entries=1",
    "cq.CQ.req_notify": "solicited_only=False",
    "cq.CQ.ack_events": "num_events",
    "comp_cntr.CompCntr.set": "value",
    "comp_cntr.CompCntr.set_err": "value",
    "comp_cntr.CompCntr.inc": "amount",
    "comp_cntr.CompCntr.inc_err": "amount",
    "comp_cntr.CompCntr.read": "",
    "comp_cntr.CompCntr.read_err": "",
    "device.Context.query_port": "port_num",
    "device.Context.query_gid": "port_num, index",
    "device.Context.query_gid_type": "port_num, index",
    "device.Context.query_pkey": "port_num, index",
    "device.Context.get_pkey_index": "port_num, pkey",
    "device.Context.query_gid_table": "max_entries, flags=0",
    "device.Context.query_gid_ex": "port_num, gid_index, flags=0",
    "device.Context.query_device_ex": "ex_input=None",
    "device.Context.query_rt_values_ex": "comp_mask=1",
    "mr.MR.write": "data, length, offset=0",
    "mr.MR.read": "length, offset",
    "mr.MR.rereg": "flags, pd=None, addr=0, length=0, access=0",
    "qp.QP.to_init": "qp_attr",
    "qp.QP.to_rtr": "qp_attr",
    "qp.QP.to_rts": "qp_attr",
    "qp.QP.query": "attr_mask",
    "qp.QP.modify": "qp_attr, comp_mask",
    "qp.QP.attach_comp_cntr": "comp_cntr, attr",
    "qp.QP.post_send": "wr, bad_wr=None",
    "qp.QP.post_recv": "wr, bad_wr=None",
    "qp.QP.modify_rate_limit": "attr",
    "qp.QP.set_ece": "ece",
    "qp.QP.query_ece": "",
    "qp.QP.bind_mw": "mw, mw_bind",
    "qp.QP.query_data_in_order": "op, flags=0",
    "qpex.QPEx.wr_atomic_cmp_swp": "rkey, remote_addr, compare, swap",
    "qpex.QPEx.wr_atomic_fetch_add": "rkey, remote_addr, add",
    "qpex.QPEx.wr_bind_mw": "mw, rkey, bind_info",
    "qpex.QPEx.wr_local_inv": "invalidate_rkey",
    "qpex.QPEx.wr_atomic_write": "rkey, remote_addr, atomic_wr",
    "qpex.QPEx.wr_rdma_read": "rkey, remote_addr",
    "qpex.QPEx.wr_rdma_write": "rkey, remote_addr",
    "qpex.QPEx.wr_rdma_write_imm": "rkey, remote_addr, data",
    "qpex.QPEx.wr_flush": "rkey, remote_addr, length, ptype, level",
    "qpex.QPEx.wr_send": "",
    "qpex.QPEx.wr_send_imm": "data",
    "qpex.QPEx.wr_send_inv": "invalidate_rkey",
    "qpex.QPEx.wr_send_tso": "hdr, hdr_sz, mss",
    "qpex.QPEx.wr_set_ud_addr": "ah, remote_qpn, remote_rkey",
    "qpex.QPEx.wr_set_xrc_srqn": "remote_srqn",
    "qpex.QPEx.wr_set_inline_data": "addr, length",
    "qpex.QPEx.wr_set_inline_data_list": "num_buf, buf_list",
    "qpex.QPEx.wr_set_sge": "sge",
    "qpex.QPEx.wr_set_sge_list": "num_sge, sg_list",
    "qpex.QPEx.wr_start": "",
    "qpex.QPEx.wr_complete": "",
    "qpex.QPEx.wr_abort": "",
    "srq.SRQ.get_srq_num": "",
    "srq.SRQ.modify": "attr, comp_mask",
    "srq.SRQ.query": "",
    "srq.SRQ.post_srq_ops": "wr, bad_wr=None",
    "srq.SRQ.post_recv": "wr, bad_wr=None",
}
