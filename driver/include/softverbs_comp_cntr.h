/* SPDX-License-Identifier: MIT */
/* Completion counters for programs that are compiled with headers of rdma-core before 65, which have not got them.
 *
 * A counter counts what completes, without a completion queue entry for each: ibv_create_comp_cntr makes one, and
 * ibv_qp_attach_comp_cntr says which operations of a queue pair it counts. There are two numbers, of completions (or of
 * their bytes) and of errors. Every function returns 0 or the value of errno, but ibv_create_comp_cntr, which returns NULL
 * and sets errno. Link with -libverbs, and run with softverbs' libibverbs.so.1 (`softverbs run`), or with that of
 * rdma-core 65 or later.
 */
#ifndef SOFTVERBS_COMP_CNTR_H
#define SOFTVERBS_COMP_CNTR_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a counter attached to a queue pair counts: op_mask of ibv_qp_attach_comp_cntr. */
enum ibv_qp_attach_comp_cntr_op {
	IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1 << 0,
	IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 1 << 1,
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 1 << 2,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 1 << 3,  /* READs by the peer, of this side's memory */
	IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 1 << 4,
	IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 1 << 5, /* WRITEs by the peer, to this side's memory */
};

enum ibv_comp_cntr_type {
	IBV_COMP_CNTR_TYPE_WRS,	  /* completed work requests */
	IBV_COMP_CNTR_TYPE_BYTES, /* bytes of completed work requests */
};

struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
};

struct ibv_comp_cntr_init_attr {
	uint32_t comp_mask; /* 0 */
	enum ibv_comp_cntr_type type;
	uint32_t flags; /* 0 */
};

struct ibv_comp_cntr_caps {
	uint64_t max_value;		  /* after it a counter starts at 0 again */
	uint32_t max_counters;		  /* on the device, of all programs */
	uint32_t supported_qp_attach_ops; /* enum ibv_qp_attach_comp_cntr_op */
};

struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask; /* 0 */
	uint32_t op_mask;   /* enum ibv_qp_attach_comp_cntr_op, at least one */
};

struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *counter);
int ibv_set_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *counter, uint64_t *value);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *counter,
			    struct ibv_qp_attach_comp_cntr_attr *attr);

int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps, size_t caps_size);

static inline int ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps)
{
	return _ibv_query_comp_cntr_caps(context, caps, sizeof(*caps));
}

#ifdef __cplusplus
}
#endif

#endif
