/* SPDX-License-Identifier: MIT */
/* Made by `python -m softverbs.server.abi` from softverbs/server/abi.py, which explains it. */
#ifndef SOFTVERBS_ABI_H
#define SOFTVERBS_ABI_H

#include <stdint.h>

#ifdef __cplusplus
#define SV_ABI_ASSERT static_assert
#else
#define SV_ABI_ASSERT _Static_assert
#endif

#define SV_ABI_VERSION 4
#define SV_MESSAGE_SIZE 4096
#define SV_TEXT_SIZE 500

/* Bytes before the slots of a queue's memory. */
#define SV_RING_HEADER                  4096

/* Completion queue: tail (device); head, what is armed: number << 32 | tail seen (client). */
#define SV_CQ_TAIL                      0
#define SV_CQ_HEAD                      64
#define SV_CQ_ARM_ANY                   128
#define SV_CQ_ARM_SOLICITED             136

/* QP and SRQ: SQ tail (client), taken, retired (device); RQ the same; state (device, 32 bits). */
#define SV_QP_SQ_TAIL                   0
#define SV_QP_SQ_TAKEN                  64
#define SV_QP_SQ_HEAD                   128
#define SV_QP_RQ_TAIL                   192
#define SV_QP_RQ_TAKEN                  256
#define SV_QP_RQ_HEAD                   320
#define SV_QP_STATE                     384

/* Control page: is the device awake (no doorbell is needed), has it gone (32 bits each); what to ask; marks. */
#define SV_CONTROL_SIZE                 86016
#define SV_CONTROL_AWAKE                0
#define SV_CONTROL_GONE                 4
#define SV_CONTROL_ASKS                 8
#define SV_CONTROL_MARKS                4096
#define SV_MARK_LINE                    64

/* Verbs of ASK, and bits of CONTROL_ASKS; NOTHING is never asked about. */
#define SV_ASK_POST_SEND                0
#define SV_ASK_POST_RECV                1
#define SV_ASK_POST_SRQ_RECV            2
#define SV_ASK_POLL_CQ                  3
#define SV_ASK_BIND_MW                  4
#define SV_ASK_CREATE_CQ                5
#define SV_ASK_CREATE_CQ_EX             6
#define SV_ASK_QUERY_DEVICE             7
#define SV_ASK_QUERY_DEVICE_EX          8
#define SV_ASK_QUERY_GID                9
#define SV_ASK_QUERY_GID_EX             10
#define SV_ASK_QUERY_GID_TABLE          11
#define SV_ASK_QUERY_GID_TYPE           12
#define SV_ASK_GET_PKEY_INDEX           13
#define SV_ASK_QUERY_RT_VALUES_EX       14
#define SV_ASK_ALLOC_PARENT_DOMAIN      15
#define SV_ASK_DEALLOC_PD               16
#define SV_ASK_ALLOC_TD                 17
#define SV_ASK_DEALLOC_TD               18
#define SV_ASK_IMPORT_PD                19
#define SV_ASK_IMPORT_MR                20
#define SV_ASK_IMPORT_DM                21
#define SV_ASK_GET_CQ_EVENT             22
#define SV_ASK_REQ_NOTIFY_CQ            23
#define SV_ASK_NOTHING                  63

/* Page of a completion counter, 64 bits each. */
#define SV_COUNTER_SIZE                 4096
#define SV_COUNTER_VALUE                0
#define SV_COUNTER_ERRORS               8
#define SV_COUNTER_LOST                 16

/* CREATE_COMP_CNTR external. */
#define SV_COUNTER_EXTERNAL_VALUE       1
#define SV_COUNTER_EXTERNAL_ERRORS      2

/* struct sv_channel_record, struct sv_async_record. */
#define SV_CHANNEL_RECORD_SIZE          8
#define SV_ASYNC_RECORD_SIZE            16

/* HELLO purposes. */
#define SV_PURPOSE_CONTEXT              0
#define SV_PURPOSE_LIST                 1

/* REG_MR flags. */
#define SV_REG_NULL                     1

/* Slots (core/queues/rings.py). */
#define SV_SGE_SIZE                     16
#define SV_SGE_LENGTH                   8
#define SV_SGE_LKEY                     12
#define SV_SQ_WR_ID                     0
#define SV_SQ_OPCODE                    8
#define SV_SQ_FLAGS                     9
#define SV_SQ_NUM_SGE                   10
#define SV_SQ_IMM                       12
#define SV_SQ_REMOTE_ADDRESS            16
#define SV_SQ_RKEY                      24
#define SV_SQ_LENGTH                    28
#define SV_SQ_COMPARE_ADD               32
#define SV_SQ_SWAP                      40
#define SV_SQ_DESTINATION               64
#define SV_SQ_AH                        68
#define SV_SQ_SGES                      80
#define SV_RQ_WR_ID                     0
#define SV_RQ_NUM_SGE                   8
#define SV_RQ_LENGTH                    12
#define SV_RQ_SGES                      16
#define SV_CQ_WR_ID                     0
#define SV_CQ_STATUS                    8
#define SV_CQ_OPCODE                    12
#define SV_CQ_VENDOR_ERR                16
#define SV_CQ_BYTE_LEN                  20
#define SV_CQ_IMM                       24
#define SV_CQ_QP_NUM                    28
#define SV_CQ_SRC_QP                    32
#define SV_CQ_FLAGS                     36
#define SV_CQ_PKEY_INDEX                40
#define SV_CQ_SLID                      42
#define SV_CQ_SL                        44
#define SV_CQ_DLID_PATH_BITS            45
#define SV_CQ_TIMESTAMP                 48
#define SV_CQ_FREES                     56
#define SV_CQ_SLOT                      64

/* CQ_FREES is the number of a send queue << 32, then the index behind the work request, 32 bits. */
#define SV_SEND_QUEUES                  65536

/* Commands. */
enum sv_command {
	SV_HELLO = 1,
	SV_QUERY_DEVICE = 2,
	SV_QUERY_PORT = 3,
	SV_QUERY_GID = 4,
	SV_QUERY_PKEY = 5,
	SV_ALLOC_PD = 6,
	SV_DEALLOC_PD = 7,
	SV_REG_MR = 8,
	SV_DEREG_MR = 9,
	SV_REREG_MR = 10,
	SV_ALLOC_DM = 11,
	SV_FREE_DM = 12,
	SV_COPY_DM = 13,
	SV_REG_DM_MR = 14,
	SV_ALLOC_MW = 15,
	SV_DEALLOC_MW = 16,
	SV_ADVISE_MR = 17,
	SV_CREATE_CHANNEL = 20,
	SV_DESTROY_CHANNEL = 21,
	SV_CREATE_CQ = 22,
	SV_RESIZE_CQ = 23,
	SV_DESTROY_CQ = 24,
	SV_MODIFY_CQ = 26,
	SV_ACK_EVENTS = 27,
	SV_COMPLETION_REASON = 28,
	SV_CREATE_QP = 30,
	SV_MODIFY_QP = 31,
	SV_QUERY_QP = 32,
	SV_DESTROY_QP = 33,
	SV_OPEN_QP = 34,
	SV_CREATE_AH = 35,
	SV_DESTROY_AH = 36,
	SV_CREATE_SRQ = 37,
	SV_MODIFY_SRQ = 38,
	SV_QUERY_SRQ = 39,
	SV_DESTROY_SRQ = 40,
	SV_OPEN_XRCD = 41,
	SV_CLOSE_XRCD = 42,
	SV_ATTACH_MCAST = 43,
	SV_DETACH_MCAST = 44,
	SV_CREATE_COMP_CNTR = 50,
	SV_DESTROY_COMP_CNTR = 51,
	SV_SET_COMP_CNTR = 52,
	SV_SET_ERR_COMP_CNTR = 53,
	SV_INC_COMP_CNTR = 54,
	SV_INC_ERR_COMP_CNTR = 55,
	SV_READ_COMP_CNTR = 56,
	SV_ATTACH_COMP_CNTR = 57,
	SV_QUERY_COMP_CNTR_CAPS = 58,
	SV_ASK = 60,
	SV_CM_CREATE_CHANNEL = 70,
	SV_CM_DESTROY_CHANNEL = 71,
	SV_CM_CREATE_ID = 72,
	SV_CM_DESTROY_ID = 73,
	SV_CM_BIND = 74,
	SV_CM_RESOLVE_ADDR = 75,
	SV_CM_RESOLVE_ROUTE = 76,
	SV_CM_QUERY = 77,
	SV_CM_LISTEN = 78,
	SV_CM_CONNECT = 79,
	SV_CM_ACCEPT = 80,
	SV_CM_ESTABLISH = 81,
	SV_CM_REJECT = 82,
	SV_CM_NOTIFY = 83,
	SV_CM_DISCONNECT = 84,
	SV_CM_INIT_QP_ATTR = 85,
	SV_CM_NEGOTIATE = 86,
	SV_CM_JOIN = 87,
	SV_CM_LEAVE = 88,
	SV_CM_SET_OPTION = 89,
	SV_CM_MIGRATE_ID = 90,
	SV_CM_GET_EVENT = 91,
};

struct sv_request {
	uint32_t size;                           /* 0 */
	uint32_t command;                        /* 4 */
	uint64_t sequence;                       /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_request) == 16, "request");

struct sv_response {
	uint32_t size;                           /* 0 */
	int32_t error;                           /* 4 */
	uint64_t sequence;                       /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_response) == 16, "response");

struct sv_channel_record {
	uint64_t cq;                             /* 0 */
};
SV_ABI_ASSERT(sizeof(struct sv_channel_record) == 8, "channel_record");

struct sv_async_record {
	uint32_t event;                          /* 0 */
	uint32_t port;                           /* 4 */
	uint64_t handle;                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_async_record) == 16, "async_record");

struct sv_ah_attr {
	uint8_t dgid[16];                        /* 0 */
	uint32_t flow_label;                     /* 16 */
	uint8_t sgid_index;                      /* 20 */
	uint8_t hop_limit;                       /* 21 */
	uint8_t traffic_class;                   /* 22 */
	uint8_t sl;                              /* 23 */
	uint16_t dlid;                           /* 24 */
	uint8_t src_path_bits;                   /* 26 */
	uint8_t static_rate;                     /* 27 */
	uint8_t is_global;                       /* 28 */
	uint8_t port_num;                        /* 29 */
	uint8_t reserved30[2];                   /* 30 */
};
SV_ABI_ASSERT(sizeof(struct sv_ah_attr) == 32, "ah_attr");

struct sv_qp_cap {
	uint32_t max_send_wr;                    /* 0 */
	uint32_t max_recv_wr;                    /* 4 */
	uint32_t max_send_sge;                   /* 8 */
	uint32_t max_recv_sge;                   /* 12 */
	uint32_t max_inline_data;                /* 16 */
	uint8_t reserved20[4];                   /* 20 */
};
SV_ABI_ASSERT(sizeof(struct sv_qp_cap) == 24, "qp_cap");

struct sv_qp_attr {
	uint32_t qp_state;                       /* 0 */
	uint32_t cur_qp_state;                   /* 4 */
	uint32_t path_mtu;                       /* 8 */
	uint32_t path_mig_state;                 /* 12 */
	uint32_t qkey;                           /* 16 */
	uint32_t rq_psn;                         /* 20 */
	uint32_t sq_psn;                         /* 24 */
	uint32_t dest_qp_num;                    /* 28 */
	uint32_t qp_access_flags;                /* 32 */
	uint32_t rate_limit;                     /* 36 */
	struct sv_qp_cap cap;                    /* 40 */
	struct sv_ah_attr ah_attr;               /* 64 */
	struct sv_ah_attr alt_ah_attr;           /* 96 */
	uint16_t pkey_index;                     /* 128 */
	uint16_t alt_pkey_index;                 /* 130 */
	uint8_t en_sqd_async_notify;             /* 132 */
	uint8_t sq_draining;                     /* 133 */
	uint8_t max_rd_atomic;                   /* 134 */
	uint8_t max_dest_rd_atomic;              /* 135 */
	uint8_t min_rnr_timer;                   /* 136 */
	uint8_t port_num;                        /* 137 */
	uint8_t timeout;                         /* 138 */
	uint8_t retry_cnt;                       /* 139 */
	uint8_t rnr_retry;                       /* 140 */
	uint8_t alt_port_num;                    /* 141 */
	uint8_t alt_timeout;                     /* 142 */
	uint8_t reserved143[1];                  /* 143 */
};
SV_ABI_ASSERT(sizeof(struct sv_qp_attr) == 144, "qp_attr");

struct sv_rings {
	uint64_t memory_size;                    /* 0 */
	uint32_t sq_offset;                      /* 8 */
	uint32_t sq_stride;                      /* 12 */
	uint32_t sq_slots;                       /* 16 */
	uint32_t rq_offset;                      /* 20 */
	uint32_t rq_stride;                      /* 24 */
	uint32_t rq_slots;                       /* 28 */
	uint32_t mark;                           /* 32 */
	uint8_t reserved36[4];                   /* 36 */
};
SV_ABI_ASSERT(sizeof(struct sv_rings) == 40, "rings");

struct sv_cm_address {
	uint8_t ip[16];                          /* 0 */
	uint32_t scope_id;                       /* 16 */
	uint16_t port;                           /* 20 */
	uint16_t length;                         /* 22 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_address) == 24, "cm_address");

struct sv_cm_param {
	uint32_t qp_num;                         /* 0 */
	uint32_t vendor_id;                      /* 4 */
	uint32_t options;                        /* 8 */
	uint8_t private_data_len;                /* 12 */
	uint8_t responder_resources;             /* 13 */
	uint8_t initiator_depth;                 /* 14 */
	uint8_t flow_control;                    /* 15 */
	uint8_t retry_count;                     /* 16 */
	uint8_t rnr_retry_count;                 /* 17 */
	uint8_t srq;                             /* 18 */
	uint8_t private_data[256];               /* 19 */
	uint8_t reserved275[5];                  /* 275 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_param) == 280, "cm_param");

/* HELLO: the first command. guard: address of a page that holds `secret` in its first 64 bits, and nothing else; it tells the program's address space from others. A program of another user than the device's passes a descriptor of its /proc/self/mem. PURPOSE_LIST: neither, and no descriptors come. guid: the number, in host order; digest_: of the variables that the device was started with (FNV-1a) Descriptors: control, doorbell, async. */
struct sv_hello_request {
	uint32_t abi;                            /* 0 */
	uint32_t purpose;                        /* 4 */
	uint64_t guard;                          /* 8 */
	uint64_t secret;                         /* 16 */
};
SV_ABI_ASSERT(sizeof(struct sv_hello_request) == 24, "hello_request");

struct sv_hello_response {
	uint64_t guid;                           /* 0 */
	uint32_t abi;                            /* 8 */
	uint32_t num_comp_vectors;               /* 12 */
	char name[64];                           /* 16 */
	char fw_ver[64];                         /* 80 */
	uint64_t digest_address;                 /* 144 */
	uint64_t digest_options;                 /* 152 */
	uint64_t digest_faults;                  /* 160 */
	uint64_t digest_pcap;                    /* 168 */
};
SV_ABI_ASSERT(sizeof(struct sv_hello_response) == 176, "hello_response");

/* QUERY_DEVICE: ibv_query_device_ex(3). GUIDs: bytes in network order */
struct sv_query_device_response {
	char fw_ver[64];                         /* 0 */
	uint64_t node_guid;                      /* 64 */
	uint64_t sys_image_guid;                 /* 72 */
	uint64_t max_mr_size;                    /* 80 */
	uint64_t page_size_cap;                  /* 88 */
	uint32_t vendor_id;                      /* 96 */
	uint32_t vendor_part_id;                 /* 100 */
	uint32_t hw_ver;                         /* 104 */
	uint32_t max_qp;                         /* 108 */
	uint32_t max_qp_wr;                      /* 112 */
	uint32_t device_cap_flags;               /* 116 */
	uint32_t max_sge;                        /* 120 */
	uint32_t max_sge_rd;                     /* 124 */
	uint32_t max_cq;                         /* 128 */
	uint32_t max_cqe;                        /* 132 */
	uint32_t max_mr;                         /* 136 */
	uint32_t max_pd;                         /* 140 */
	uint32_t max_qp_rd_atom;                 /* 144 */
	uint32_t max_res_rd_atom;                /* 148 */
	uint32_t max_qp_init_rd_atom;            /* 152 */
	uint32_t atomic_caps;                    /* 156 */
	uint32_t max_mw;                         /* 160 */
	uint32_t max_mcast_grp;                  /* 164 */
	uint32_t max_mcast_qp_attach;            /* 168 */
	uint32_t max_total_mcast_qp_attach;      /* 172 */
	uint32_t max_ah;                         /* 176 */
	uint32_t max_srq;                        /* 180 */
	uint32_t max_srq_wr;                     /* 184 */
	uint32_t max_srq_sge;                    /* 188 */
	uint16_t max_pkeys;                      /* 192 */
	uint8_t local_ca_ack_delay;              /* 194 */
	uint8_t phys_port_cnt;                   /* 195 */
	uint8_t reserved196[4];                  /* 196 */
	uint64_t completion_timestamp_mask;      /* 200 */
	uint64_t hca_core_clock;                 /* 208 */
	uint64_t device_cap_flags_ex;            /* 216 */
	uint64_t max_dm_size;                    /* 224 */
	uint64_t odp_general_caps;               /* 232 */
	uint32_t rc_odp_caps;                    /* 240 */
	uint32_t uc_odp_caps;                    /* 244 */
	uint32_t ud_odp_caps;                    /* 248 */
	uint32_t xrc_odp_caps;                   /* 252 */
	uint32_t raw_packet_caps;                /* 256 */
	uint32_t max_wq_type_rq;                 /* 260 */
	uint32_t phys_port_cnt_ex;               /* 264 */
	uint16_t max_cq_count;                   /* 268 */
	uint16_t max_cq_period;                  /* 270 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_device_response) == 272, "query_device_response");

/* QUERY_PORT: ibv_query_port(3) */
struct sv_query_port_request {
	uint32_t port_num;                       /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_port_request) == 8, "query_port_request");

struct sv_query_port_response {
	uint32_t state;                          /* 0 */
	uint32_t max_mtu;                        /* 4 */
	uint32_t active_mtu;                     /* 8 */
	uint32_t gid_tbl_len;                    /* 12 */
	uint32_t port_cap_flags;                 /* 16 */
	uint32_t max_msg_sz;                     /* 20 */
	uint32_t bad_pkey_cntr;                  /* 24 */
	uint32_t qkey_viol_cntr;                 /* 28 */
	uint16_t pkey_tbl_len;                   /* 32 */
	uint16_t lid;                            /* 34 */
	uint16_t sm_lid;                         /* 36 */
	uint8_t lmc;                             /* 38 */
	uint8_t max_vl_num;                      /* 39 */
	uint8_t sm_sl;                           /* 40 */
	uint8_t subnet_timeout;                  /* 41 */
	uint8_t init_type_reply;                 /* 42 */
	uint8_t active_width;                    /* 43 */
	uint8_t active_speed;                    /* 44 */
	uint8_t phys_state;                      /* 45 */
	uint8_t link_layer;                      /* 46 */
	uint8_t flags;                           /* 47 */
	uint16_t port_cap_flags2;                /* 48 */
	uint8_t reserved50[2];                   /* 50 */
	uint32_t active_speed_ex;                /* 52 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_port_response) == 56, "query_port_response");

/* QUERY_GID: ibv_query_gid_ex(3); ENODATA for an empty entry. type: enum ibv_gid_type, 2 for RoCE v2 */
struct sv_query_gid_request {
	uint32_t port_num;                       /* 0 */
	uint32_t index;                          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_gid_request) == 8, "query_gid_request");

struct sv_query_gid_response {
	uint8_t gid[16];                         /* 0 */
	uint32_t type;                           /* 16 */
	uint32_t ndev_ifindex;                   /* 20 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_gid_response) == 24, "query_gid_response");

/* QUERY_PKEY: ibv_query_pkey(3), in host order */
struct sv_query_pkey_request {
	uint32_t port_num;                       /* 0 */
	uint32_t index;                          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_pkey_request) == 8, "query_pkey_request");

struct sv_query_pkey_response {
	uint16_t pkey;                           /* 0 */
	uint8_t reserved2[6];                    /* 2 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_pkey_response) == 8, "query_pkey_response");

/* ALLOC_PD: ibv_alloc_pd(3) */
struct sv_alloc_pd_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_alloc_pd_response) == 8, "alloc_pd_response");

/* DEALLOC_PD: ibv_dealloc_pd(3) */
struct sv_dealloc_pd_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_dealloc_pd_request) == 8, "dealloc_pd_request");

/* REG_MR: ibv_reg_mr_iova2(3), ibv_alloc_null_mr(3). Implicit ON_DEMAND: address 0, length 2^64 - 1. */
struct sv_reg_mr_request {
	uint32_t pd;                             /* 0 */
	uint32_t flags;                          /* 4 */
	uint64_t address;                        /* 8 */
	uint64_t length;                         /* 16 */
	uint64_t iova;                           /* 24 */
	uint32_t access;                         /* 32 */
	uint8_t reserved36[4];                   /* 36 */
};
SV_ABI_ASSERT(sizeof(struct sv_reg_mr_request) == 40, "reg_mr_request");

struct sv_reg_mr_response {
	uint32_t handle;                         /* 0 */
	uint32_t lkey;                           /* 4 */
	uint32_t rkey;                           /* 8 */
	uint8_t reserved12[4];                   /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_reg_mr_response) == 16, "reg_mr_response");

/* DEREG_MR: ibv_dereg_mr(3), of every kind of region */
struct sv_dereg_mr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_dereg_mr_request) == 8, "dereg_mr_request");

/* REREG_MR: ibv_rereg_mr(3); flags: IBV_REREG_MR_* */
struct sv_rereg_mr_request {
	uint32_t handle;                         /* 0 */
	uint32_t flags;                          /* 4 */
	uint32_t pd;                             /* 8 */
	uint32_t access;                         /* 12 */
	uint64_t address;                        /* 16 */
	uint64_t length;                         /* 24 */
};
SV_ABI_ASSERT(sizeof(struct sv_rereg_mr_request) == 32, "rereg_mr_request");

struct sv_rereg_mr_response {
	uint32_t lkey;                           /* 0 */
	uint32_t rkey;                           /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_rereg_mr_response) == 8, "rereg_mr_response");

/* ALLOC_DM: ibv_alloc_dm(3) */
struct sv_alloc_dm_request {
	uint64_t length;                         /* 0 */
	uint32_t log_align_req;                  /* 8 */
	uint32_t comp_mask;                      /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_alloc_dm_request) == 16, "alloc_dm_request");

struct sv_alloc_dm_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_alloc_dm_response) == 8, "alloc_dm_response");

/* FREE_DM: ibv_free_dm(3) */
struct sv_free_dm_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_free_dm_request) == 8, "free_dm_request");

/* COPY_DM: ibv_memcpy_to_dm(3) where to_device is 1, ibv_memcpy_from_dm(3) where it is 0; address: in the program */
struct sv_copy_dm_request {
	uint32_t handle;                         /* 0 */
	uint32_t to_device;                      /* 4 */
	uint64_t offset;                         /* 8 */
	uint64_t length;                         /* 16 */
	uint64_t address;                        /* 24 */
};
SV_ABI_ASSERT(sizeof(struct sv_copy_dm_request) == 32, "copy_dm_request");

/* REG_DM_MR: ibv_reg_dm_mr(3) */
struct sv_reg_dm_mr_request {
	uint32_t pd;                             /* 0 */
	uint32_t dm;                             /* 4 */
	uint64_t offset;                         /* 8 */
	uint64_t length;                         /* 16 */
	uint32_t access;                         /* 24 */
	uint8_t reserved28[4];                   /* 28 */
};
SV_ABI_ASSERT(sizeof(struct sv_reg_dm_mr_request) == 32, "reg_dm_mr_request");

struct sv_reg_dm_mr_response {
	uint32_t handle;                         /* 0 */
	uint32_t lkey;                           /* 4 */
	uint32_t rkey;                           /* 8 */
	uint8_t reserved12[4];                   /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_reg_dm_mr_response) == 16, "reg_dm_mr_response");

/* ALLOC_MW: ibv_alloc_mw(3) */
struct sv_alloc_mw_request {
	uint32_t pd;                             /* 0 */
	uint32_t type;                           /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_alloc_mw_request) == 8, "alloc_mw_request");

struct sv_alloc_mw_response {
	uint32_t handle;                         /* 0 */
	uint32_t rkey;                           /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_alloc_mw_response) == 8, "alloc_mw_response");

/* DEALLOC_MW: ibv_dealloc_mw(3) */
struct sv_dealloc_mw_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_dealloc_mw_request) == 8, "dealloc_mw_request");

/* ADVISE_MR: ibv_advise_mr(3), for one scatter/gather element */
struct sv_advise_mr_request {
	uint32_t pd;                             /* 0 */
	uint32_t advice;                         /* 4 */
	uint32_t flags;                          /* 8 */
	uint32_t lkey;                           /* 12 */
	uint64_t address;                        /* 16 */
	uint64_t length;                         /* 24 */
};
SV_ABI_ASSERT(sizeof(struct sv_advise_mr_request) == 32, "advise_mr_request");

/* CREATE_CHANNEL: ibv_create_comp_channel(3); the descriptor gives one struct sv_channel_record for each event Descriptors: channel. */
struct sv_create_channel_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_channel_response) == 8, "create_channel_response");

/* DESTROY_CHANNEL: ibv_destroy_comp_channel(3) */
struct sv_destroy_channel_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_channel_request) == 8, "destroy_channel_request");

/* CREATE_CQ: ibv_create_cq(3), ibv_create_cq_ex(3); flags: IBV_CREATE_CQ_ATTR_*. Slot of index i: offset + (i & (slots - 1)) * stride Descriptors: memory. */
struct sv_create_cq_request {
	uint32_t cqe;                            /* 0 */
	uint32_t comp_vector;                    /* 4 */
	uint32_t channel;                        /* 8 */
	uint32_t flags;                          /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_cq_request) == 16, "create_cq_request");

struct sv_create_cq_response {
	uint32_t handle;                         /* 0 */
	uint32_t cqe;                            /* 4 */
	uint64_t memory_size;                    /* 8 */
	uint32_t offset;                         /* 16 */
	uint32_t stride;                         /* 20 */
	uint32_t slots;                          /* 24 */
	uint8_t reserved28[4];                   /* 28 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_cq_response) == 32, "create_cq_response");

/* RESIZE_CQ: ibv_resize_cq(3): take head and tail from the new memory; the old one is no longer used. Store head before, and arm nothing meanwhile: what is armed stays armed, though it is not in the new memory Descriptors: memory. */
struct sv_resize_cq_request {
	uint32_t handle;                         /* 0 */
	uint32_t cqe;                            /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_resize_cq_request) == 8, "resize_cq_request");

struct sv_resize_cq_response {
	uint32_t cqe;                            /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t memory_size;                    /* 8 */
	uint32_t offset;                         /* 16 */
	uint32_t stride;                         /* 20 */
	uint32_t slots;                          /* 24 */
	uint8_t reserved28[4];                   /* 28 */
};
SV_ABI_ASSERT(sizeof(struct sv_resize_cq_response) == 32, "resize_cq_response");

/* DESTROY_CQ: ibv_destroy_cq(3); the driver then waits until so many events are acknowledged */
struct sv_destroy_cq_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_cq_request) == 8, "destroy_cq_request");

struct sv_destroy_cq_response {
	uint32_t comp_events_reported;           /* 0 */
	uint32_t async_events_reported;          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_cq_response) == 8, "destroy_cq_response");

/* MODIFY_CQ: ibv_modify_cq(3); period: microseconds */
struct sv_modify_cq_request {
	uint32_t handle;                         /* 0 */
	uint16_t count;                          /* 4 */
	uint16_t period;                         /* 6 */
};
SV_ABI_ASSERT(sizeof(struct sv_modify_cq_request) == 8, "modify_cq_request");

/* ACK_EVENTS: ibv_ack_cq_events(3), for the statistics; need not be sent */
struct sv_ack_events_request {
	uint32_t handle;                         /* 0 */
	uint32_t count;                          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_ack_events_request) == 8, "ack_events_request");

/* COMPLETION_REASON: why the completion of that index (as head counts) was an error; empty where there are no words. Asked once */
struct sv_completion_reason_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t index;                          /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_completion_reason_request) == 16, "completion_reason_request");

struct sv_completion_reason_response {
	char text[504];                          /* 0 */
};
SV_ABI_ASSERT(sizeof(struct sv_completion_reason_response) == 504, "completion_reason_response");

/* CREATE_QP: ibv_create_qp(3), ibv_create_qp_ex(3). Queues that it has not: slots 0. send_queue: its number in CQ_FREES; 0: its slots are free when they are retired Descriptors: memory. */
struct sv_create_qp_request {
	uint32_t pd;                             /* 0 */
	uint32_t send_cq;                        /* 4 */
	uint32_t recv_cq;                        /* 8 */
	uint32_t srq;                            /* 12 */
	uint32_t xrcd;                           /* 16 */
	uint32_t qp_type;                        /* 20 */
	uint32_t sq_sig_all;                     /* 24 */
	uint8_t reserved28[4];                   /* 28 */
	struct sv_qp_cap cap;                    /* 32 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_qp_request) == 56, "create_qp_request");

struct sv_create_qp_response {
	uint32_t handle;                         /* 0 */
	uint32_t qp_num;                         /* 4 */
	struct sv_qp_cap cap;                    /* 8 */
	struct sv_rings rings;                   /* 32 */
	uint32_t send_queue;                     /* 72 */
	uint8_t reserved76[4];                   /* 76 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_qp_response) == 80, "create_qp_response");

/* MODIFY_QP: ibv_modify_qp(3) */
struct sv_modify_qp_request {
	uint32_t handle;                         /* 0 */
	uint32_t attr_mask;                      /* 4 */
	struct sv_qp_attr attr;                  /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_modify_qp_request) == 152, "modify_qp_request");

struct sv_modify_qp_response {
	uint32_t qp_state;                       /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_modify_qp_response) == 8, "modify_qp_response");

/* QUERY_QP: ibv_query_qp(3) */
struct sv_query_qp_request {
	uint32_t handle;                         /* 0 */
	uint32_t attr_mask;                      /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_qp_request) == 8, "query_qp_request");

struct sv_query_qp_response {
	struct sv_qp_attr attr;                  /* 0 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_qp_response) == 144, "query_qp_response");

/* DESTROY_QP: ibv_destroy_qp(3) */
struct sv_destroy_qp_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_qp_request) == 8, "destroy_qp_request");

struct sv_destroy_qp_response {
	uint32_t async_events_reported;          /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_qp_response) == 8, "destroy_qp_response");

/* OPEN_QP: ibv_open_qp(3): an XRC target of the domain, made by anybody */
struct sv_open_qp_request {
	uint32_t xrcd;                           /* 0 */
	uint32_t qp_num;                         /* 4 */
	uint32_t qp_type;                        /* 8 */
	uint8_t reserved12[4];                   /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_open_qp_request) == 16, "open_qp_request");

struct sv_open_qp_response {
	uint32_t handle;                         /* 0 */
	uint32_t qp_num;                         /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_open_qp_response) == 8, "open_qp_response");

/* CREATE_AH: ibv_create_ah(3); number: what SQ_AH of a work request takes */
struct sv_create_ah_request {
	uint32_t pd;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	struct sv_ah_attr attr;                  /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_ah_request) == 40, "create_ah_request");

struct sv_create_ah_response {
	uint32_t handle;                         /* 0 */
	uint32_t number;                         /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_ah_response) == 8, "create_ah_response");

/* DESTROY_AH: ibv_destroy_ah(3) */
struct sv_destroy_ah_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_ah_request) == 8, "destroy_ah_request");

/* CREATE_SRQ: ibv_create_srq(3), ibv_create_srq_ex(3) Descriptors: memory. */
struct sv_create_srq_request {
	uint32_t pd;                             /* 0 */
	uint32_t srq_type;                       /* 4 */
	uint32_t xrcd;                           /* 8 */
	uint32_t cq;                             /* 12 */
	uint32_t max_wr;                         /* 16 */
	uint32_t max_sge;                        /* 20 */
	uint32_t srq_limit;                      /* 24 */
	uint8_t reserved28[4];                   /* 28 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_srq_request) == 32, "create_srq_request");

struct sv_create_srq_response {
	uint32_t handle;                         /* 0 */
	uint32_t srq_num;                        /* 4 */
	uint32_t max_wr;                         /* 8 */
	uint32_t max_sge;                        /* 12 */
	struct sv_rings rings;                   /* 16 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_srq_response) == 56, "create_srq_response");

/* MODIFY_SRQ: ibv_modify_srq(3). With IBV_SRQ_MAX_WR the queue moves to new memory, whose header says how full it is; else memory_size is 0 and no descriptor comes Descriptors: memory. */
struct sv_modify_srq_request {
	uint32_t handle;                         /* 0 */
	uint32_t attr_mask;                      /* 4 */
	uint32_t max_wr;                         /* 8 */
	uint32_t srq_limit;                      /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_modify_srq_request) == 16, "modify_srq_request");

struct sv_modify_srq_response {
	uint32_t max_wr;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	struct sv_rings rings;                   /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_modify_srq_response) == 48, "modify_srq_response");

/* QUERY_SRQ: ibv_query_srq(3) */
struct sv_query_srq_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_srq_request) == 8, "query_srq_request");

struct sv_query_srq_response {
	uint32_t max_wr;                         /* 0 */
	uint32_t max_sge;                        /* 4 */
	uint32_t srq_limit;                      /* 8 */
	uint8_t reserved12[4];                   /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_srq_response) == 16, "query_srq_response");

/* DESTROY_SRQ: ibv_destroy_srq(3) */
struct sv_destroy_srq_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_srq_request) == 8, "destroy_srq_request");

struct sv_destroy_srq_response {
	uint32_t async_events_reported;          /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_srq_response) == 8, "destroy_srq_response");

/* OPEN_XRCD: ibv_open_xrcd(3); where has_fd is 1 the request carries the descriptor of the file */
struct sv_open_xrcd_request {
	int32_t oflags;                          /* 0 */
	uint32_t has_fd;                         /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_open_xrcd_request) == 8, "open_xrcd_request");

struct sv_open_xrcd_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_open_xrcd_response) == 8, "open_xrcd_response");

/* CLOSE_XRCD: ibv_close_xrcd(3) */
struct sv_close_xrcd_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_close_xrcd_request) == 8, "close_xrcd_request");

/* ATTACH_MCAST: ibv_attach_mcast(3) */
struct sv_attach_mcast_request {
	uint32_t qp;                             /* 0 */
	uint32_t lid;                            /* 4 */
	uint8_t gid[16];                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_attach_mcast_request) == 24, "attach_mcast_request");

/* DETACH_MCAST: ibv_detach_mcast(3) */
struct sv_detach_mcast_request {
	uint32_t qp;                             /* 0 */
	uint32_t lid;                            /* 4 */
	uint8_t gid[16];                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_detach_mcast_request) == 24, "detach_mcast_request");

/* CREATE_COMP_CNTR: ibv_create_comp_cntr(3), efadv_create_comp_cntr(3); the page shows both counts, always. external: COUNTER_EXTERNAL_*, counts that are stored in the program's memory too, before completions can be seen. Descriptors: memory. */
struct sv_create_comp_cntr_request {
	uint32_t comp_mask;                      /* 0 */
	uint32_t type;                           /* 4 */
	uint32_t flags;                          /* 8 */
	uint32_t external;                       /* 12 */
	uint64_t value_address;                  /* 16 */
	uint64_t error_address;                  /* 24 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_comp_cntr_request) == 32, "create_comp_cntr_request");

struct sv_create_comp_cntr_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_create_comp_cntr_response) == 8, "create_comp_cntr_response");

/* DESTROY_COMP_CNTR: ibv_destroy_comp_cntr(3) */
struct sv_destroy_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_destroy_comp_cntr_request) == 8, "destroy_comp_cntr_request");

/* SET_COMP_CNTR: ibv_set_comp_cntr(3) */
struct sv_set_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t value;                          /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_set_comp_cntr_request) == 16, "set_comp_cntr_request");

/* SET_ERR_COMP_CNTR: ibv_set_err_comp_cntr(3) */
struct sv_set_err_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t value;                          /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_set_err_comp_cntr_request) == 16, "set_err_comp_cntr_request");

/* INC_COMP_CNTR: ibv_inc_comp_cntr(3) */
struct sv_inc_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t amount;                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_inc_comp_cntr_request) == 16, "inc_comp_cntr_request");

/* INC_ERR_COMP_CNTR: ibv_inc_err_comp_cntr(3) */
struct sv_inc_err_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
	uint64_t amount;                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_inc_err_comp_cntr_request) == 16, "inc_err_comp_cntr_request");

/* READ_COMP_CNTR: ibv_read_comp_cntr(3), ibv_read_err_comp_cntr(3), after the device has done what it can; else read the page */
struct sv_read_comp_cntr_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_read_comp_cntr_request) == 8, "read_comp_cntr_request");

struct sv_read_comp_cntr_response {
	uint64_t value;                          /* 0 */
	uint64_t errors;                         /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_read_comp_cntr_response) == 16, "read_comp_cntr_response");

/* ATTACH_COMP_CNTR: ibv_qp_attach_comp_cntr(3) */
struct sv_attach_comp_cntr_request {
	uint32_t qp;                             /* 0 */
	uint32_t counter;                        /* 4 */
	uint32_t op_mask;                        /* 8 */
	uint32_t comp_mask;                      /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_attach_comp_cntr_request) == 16, "attach_comp_cntr_request");

/* QUERY_COMP_CNTR_CAPS: ibv_query_comp_cntr_caps(3) */
struct sv_query_comp_cntr_caps_response {
	uint64_t max_value;                      /* 0 */
	uint32_t max_counters;                   /* 8 */
	uint32_t supported_qp_attach_ops;        /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_query_comp_cntr_caps_response) == 16, "query_comp_cntr_caps_response");

/* ASK: whether a verb is to fail that the driver does by itself: a plan of faults has rules for it. verb: SV_ASK_*; handle: of the QP, CQ or SRQ; size: of the message or the queue */
struct sv_ask_request {
	uint32_t verb;                           /* 0 */
	uint32_t handle;                         /* 4 */
	uint64_t wr_id;                          /* 8 */
	uint64_t size;                           /* 16 */
	uint32_t opcode;                         /* 24 */
	uint8_t reserved28[4];                   /* 28 */
};
SV_ABI_ASSERT(sizeof(struct sv_ask_request) == 32, "ask_request");

/* CM_CREATE_CHANNEL: rdma_create_event_channel(3); the descriptor gives one byte for each event, which CM_GET_EVENT then takes Descriptors: events. */
struct sv_cm_create_channel_response {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_create_channel_response) == 8, "cm_create_channel_response");

/* CM_DESTROY_CHANNEL: rdma_destroy_event_channel(3); its identifiers go with it */
struct sv_cm_destroy_channel_request {
	uint32_t handle;                         /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_destroy_channel_request) == 8, "cm_destroy_channel_request");

/* CM_CREATE_ID: rdma_create_id(3); ps: RDMA_PS_* */
struct sv_cm_create_id_request {
	uint32_t channel;                        /* 0 */
	uint32_t ps;                             /* 4 */
	uint32_t qp_type;                        /* 8 */
	uint8_t reserved12[4];                   /* 12 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_create_id_request) == 16, "cm_create_id_request");

struct sv_cm_create_id_response {
	uint32_t id;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_create_id_response) == 8, "cm_create_id_response");

/* CM_DESTROY_ID: rdma_destroy_id(3); dropped: events of it that waited in its channel, whose bytes are to be taken back. The driver then waits until those that it has got are acknowledged */
struct sv_cm_destroy_id_request {
	uint32_t id;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_destroy_id_request) == 8, "cm_destroy_id_request");

struct sv_cm_destroy_id_response {
	uint32_t events_reported;                /* 0 */
	uint32_t dropped;                        /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_destroy_id_response) == 8, "cm_destroy_id_response");

/* CM_BIND: rdma_bind_addr(3). length of an address: 4, 16, or 0 where there is none */
struct sv_cm_bind_request {
	uint32_t id;                             /* 0 */
	uint32_t reserved;                       /* 4 */
	struct sv_cm_address address;            /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_bind_request) == 32, "cm_bind_request");

/* CM_RESOLVE_ADDR: rdma_resolve_addr(3) */
struct sv_cm_resolve_addr_request {
	uint32_t id;                             /* 0 */
	uint32_t timeout_ms;                     /* 4 */
	struct sv_cm_address source;             /* 8 */
	struct sv_cm_address destination;        /* 32 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_resolve_addr_request) == 56, "cm_resolve_addr_request");

/* CM_RESOLVE_ROUTE: rdma_resolve_route(3) */
struct sv_cm_resolve_route_request {
	uint32_t id;                             /* 0 */
	uint32_t timeout_ms;                     /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_resolve_route_request) == 8, "cm_resolve_route_request");

/* CM_QUERY: what librdmacm writes into rdma_cm_id. port_num: 0 before it is bound; routed: whether the peer is known */
struct sv_cm_query_request {
	uint32_t id;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_query_request) == 8, "cm_query_request");

struct sv_cm_query_response {
	struct sv_cm_address source;             /* 0 */
	struct sv_cm_address destination;        /* 24 */
	uint8_t sgid[16];                        /* 48 */
	uint8_t dgid[16];                        /* 64 */
	uint32_t port_num;                       /* 80 */
	uint16_t pkey;                           /* 84 */
	uint8_t mtu;                             /* 86 */
	uint8_t hop_limit;                       /* 87 */
	uint8_t traffic_class;                   /* 88 */
	uint8_t routed;                          /* 89 */
	uint8_t reserved90[6];                   /* 90 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_query_response) == 96, "cm_query_response");

/* CM_LISTEN: rdma_listen(3) */
struct sv_cm_listen_request {
	uint32_t id;                             /* 0 */
	int32_t backlog;                         /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_listen_request) == 8, "cm_listen_request");

/* CM_CONNECT: rdma_connect(3) */
struct sv_cm_connect_request {
	uint32_t id;                             /* 0 */
	uint32_t reserved;                       /* 4 */
	struct sv_cm_param param;                /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_connect_request) == 288, "cm_connect_request");

/* CM_ACCEPT: rdma_accept(3), once the queue pair is ready, for which CM_INIT_QP_ATTR knows what was agreed */
struct sv_cm_accept_request {
	uint32_t id;                             /* 0 */
	uint32_t reserved;                       /* 4 */
	struct sv_cm_param param;                /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_accept_request) == 288, "cm_accept_request");

/* CM_ESTABLISH: rdma_establish(3); also what rdma_get_cm_event(3) does with CONNECT_RESPONSE */
struct sv_cm_establish_request {
	uint32_t id;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_establish_request) == 8, "cm_establish_request");

/* CM_REJECT: rdma_reject(3) */
struct sv_cm_reject_request {
	uint32_t id;                             /* 0 */
	uint32_t reason;                         /* 4 */
	uint32_t private_data_len;               /* 8 */
	uint8_t private_data[256];               /* 12 */
	uint8_t reserved268[4];                  /* 268 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_reject_request) == 272, "cm_reject_request");

/* CM_NOTIFY: rdma_notify(3); event: IBV_EVENT_* */
struct sv_cm_notify_request {
	uint32_t id;                             /* 0 */
	uint32_t event;                          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_notify_request) == 8, "cm_notify_request");

/* CM_DISCONNECT: rdma_disconnect(3) */
struct sv_cm_disconnect_request {
	uint32_t id;                             /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_disconnect_request) == 8, "cm_disconnect_request");

/* CM_INIT_QP_ATTR: rdma_init_qp_attr(3); qp_state: INIT, RTR or RTS */
struct sv_cm_init_qp_attr_request {
	uint32_t id;                             /* 0 */
	uint32_t qp_state;                       /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_init_qp_attr_request) == 8, "cm_init_qp_attr_request");

struct sv_cm_init_qp_attr_response {
	struct sv_qp_attr attr;                  /* 0 */
	uint32_t attr_mask;                      /* 144 */
	uint8_t reserved148[4];                  /* 148 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_init_qp_attr_response) == 152, "cm_init_qp_attr_response");

/* CM_NEGOTIATE: before the queue pair is made ready for CM_ACCEPT: how many READs and atomics each side takes */
struct sv_cm_negotiate_request {
	uint32_t id;                             /* 0 */
	uint8_t responder_resources;             /* 4 */
	uint8_t initiator_depth;                 /* 5 */
	uint8_t reserved6[2];                    /* 6 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_negotiate_request) == 8, "cm_negotiate_request");

/* CM_JOIN: rdma_join_multicast_ex(3); the event brings the cookie */
struct sv_cm_join_request {
	uint32_t id;                             /* 0 */
	uint32_t send_only;                      /* 4 */
	uint64_t cookie;                         /* 8 */
	struct sv_cm_address address;            /* 16 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_join_request) == 40, "cm_join_request");

/* CM_LEAVE: rdma_leave_multicast(3) */
struct sv_cm_leave_request {
	uint32_t id;                             /* 0 */
	uint32_t reserved;                       /* 4 */
	struct sv_cm_address address;            /* 8 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_leave_request) == 32, "cm_leave_request");

/* CM_SET_OPTION: rdma_set_option(3); EOPNOTSUPP for RDMA_OPTION_IB */
struct sv_cm_set_option_request {
	uint32_t id;                             /* 0 */
	uint32_t level;                          /* 4 */
	uint32_t optname;                        /* 8 */
	uint32_t length;                         /* 12 */
	uint8_t value[64];                       /* 16 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_set_option_request) == 80, "cm_set_option_request");

/* CM_MIGRATE_ID: rdma_migrate_id(3); moved: events that waited in the old channel, whose bytes are to be taken back */
struct sv_cm_migrate_id_request {
	uint32_t id;                             /* 0 */
	uint32_t channel;                        /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_migrate_id_request) == 8, "cm_migrate_id_request");

struct sv_cm_migrate_id_response {
	uint32_t events_reported;                /* 0 */
	uint32_t moved;                          /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_migrate_id_response) == 8, "cm_migrate_id_response");

/* CM_GET_EVENT: rdma_get_cm_event(3). found: 0 where no event waits. id: of CONNECT_REQUEST a new one. ah_attr: for datagrams */
struct sv_cm_get_event_request {
	uint32_t channel;                        /* 0 */
	uint8_t reserved4[4];                    /* 4 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_get_event_request) == 8, "cm_get_event_request");

struct sv_cm_get_event_response {
	uint32_t found;                          /* 0 */
	uint32_t id;                             /* 4 */
	uint32_t listener;                       /* 8 */
	uint32_t event;                          /* 12 */
	int32_t status;                          /* 16 */
	uint32_t qkey;                           /* 20 */
	uint64_t cookie;                         /* 24 */
	struct sv_ah_attr ah_attr;               /* 32 */
	struct sv_cm_param param;                /* 64 */
};
SV_ABI_ASSERT(sizeof(struct sv_cm_get_event_response) == 344, "cm_get_event_response");

#endif
