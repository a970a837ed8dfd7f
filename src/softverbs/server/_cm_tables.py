# SPDX-License-Identifier: MIT
"""The part of the protocol's tables that librdmacm's half of the driver speaks (docs/cm.md, driver/rdmacm)."""

#: Structures of the connection manager. Ports are in host order.
CM_RECORDS = {
    "cm_address": "u8 ip[16]; u32 scope_id; u16 port; u16 length",
    "cm_param": """
        u32 qp_num; u32 vendor_id; u32 options; u8 private_data_len; u8 responder_resources; u8 initiator_depth
        u8 flow_control; u8 retry_count; u8 rnr_retry_count; u8 srq; u8 private_data[256]""",
}

_ID = "u32 id"

#: Name, number, request, response, descriptors of the response, words: as COMMAND_TABLE.
CM_TABLE = (
    (
        "CM_CREATE_CHANNEL", 70, "", "u32 handle", "events",
        "rdma_create_event_channel(3); the descriptor gives one byte for each event, which CM_GET_EVENT then takes",
    ),
    ("CM_DESTROY_CHANNEL", 71, "u32 handle", "", "", "rdma_destroy_event_channel(3); its identifiers go with it"),
    ("CM_CREATE_ID", 72, "u32 channel; u32 ps; u32 qp_type", _ID, "", "rdma_create_id(3); ps: RDMA_PS_*"),
    (
        "CM_DESTROY_ID", 73, _ID, "u32 events_reported; u32 dropped", "",
        "rdma_destroy_id(3); dropped: events of it that waited in its channel, whose bytes are to be taken back. "
        "The driver then waits until those that it has got are acknowledged",
    ),
    (
        "CM_BIND", 74, "u32 id; u32 reserved; cm_address address", "", "",
        "rdma_bind_addr(3). length of an address: 4, 16, or 0 where there is none",
    ),
    (
        "CM_RESOLVE_ADDR", 75, "u32 id; u32 timeout_ms; cm_address source; cm_address destination", "", "",
        "rdma_resolve_addr(3)",
    ),
    ("CM_RESOLVE_ROUTE", 76, "u32 id; u32 timeout_ms", "", "", "rdma_resolve_route(3)"),
    (
        "CM_QUERY", 77, _ID,
        "cm_address source; cm_address destination; u8 sgid[16]; u8 dgid[16]; u32 port_num; u16 pkey;"
        "u8 mtu; u8 hop_limit; u8 traffic_class; u8 routed",
        "", "what librdmacm writes into rdma_cm_id. port_num: 0 before it is bound; routed: whether the peer is known",
    ),
    ("CM_LISTEN", 78, "u32 id; i32 backlog", "", "", "rdma_listen(3)"),
    ("CM_CONNECT", 79, "u32 id; u32 reserved; cm_param param", "", "", "rdma_connect(3)"),
    (
        "CM_ACCEPT", 80, "u32 id; u32 reserved; cm_param param", "", "",
        "rdma_accept(3), once the queue pair is ready, for which CM_INIT_QP_ATTR knows what was agreed",
    ),
    ("CM_ESTABLISH", 81, _ID, "", "", "rdma_establish(3); also what rdma_get_cm_event(3) does with CONNECT_RESPONSE"),
    ("CM_REJECT", 82, "u32 id; u32 reason; u32 private_data_len; u8 private_data[256]", "", "", "rdma_reject(3)"),
    ("CM_NOTIFY", 83, "u32 id; u32 event", "", "", "rdma_notify(3); event: IBV_EVENT_*"),
    ("CM_DISCONNECT", 84, _ID, "", "", "rdma_disconnect(3)"),
    (
        "CM_INIT_QP_ATTR", 85, "u32 id; u32 qp_state", "qp_attr attr; u32 attr_mask", "",
        "rdma_init_qp_attr(3); qp_state: INIT, RTR or RTS",
    ),
    (
        "CM_NEGOTIATE", 86, "u32 id; u8 responder_resources; u8 initiator_depth", "", "",
        "before the queue pair is made ready for CM_ACCEPT: how many READs and atomics each side takes",
    ),
    (
        "CM_JOIN", 87, "u32 id; u32 send_only; u64 cookie; cm_address address", "", "",
        "rdma_join_multicast_ex(3); the event brings the cookie",
    ),
    ("CM_LEAVE", 88, "u32 id; u32 reserved; cm_address address", "", "", "rdma_leave_multicast(3)"),
    (
        "CM_SET_OPTION", 89, "u32 id; u32 level; u32 optname; u32 length; u8 value[64]", "", "",
        "rdma_set_option(3); EOPNOTSUPP for RDMA_OPTION_IB",
    ),
    (
        "CM_MIGRATE_ID", 90, "u32 id; u32 channel", "u32 events_reported; u32 moved", "",
        "rdma_migrate_id(3); moved: events that waited in the old channel, whose bytes are to be taken back",
    ),
    (
        "CM_GET_EVENT", 91, "u32 channel",
        "u32 found; u32 id; u32 listener; u32 event; i32 status; u32 qkey; u64 cookie; ah_attr ah_attr; cm_param param",
        "",
        "rdma_get_cm_event(3). found: 0 where no event waits. id: of CONNECT_REQUEST a new one. ah_attr: for datagrams",
    ),
)  # fmt: skip
