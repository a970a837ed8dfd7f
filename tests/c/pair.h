/* SPDX-License-Identifier: MIT */
/* Two connected queue pairs of one process, with memory, for the C programs of this folder. */
#ifndef PAIR_H
#define PAIR_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BUFFER 65536
#define DEPTH 64

/* What is expected, said in words; ends the program where it is not so. */
#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			printf("not ok: ");                                                                            \
			printf(__VA_ARGS__);                                                                           \
			printf(" (%s:%d: %s; errno %d, %s)\n", __FILE__, __LINE__, #condition, errno,                  \
			       strerror(errno));                                                                       \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

/* One side. */
struct side {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char memory[BUFFER];
};

struct pair {
	struct ibv_context *context;
	struct ibv_pd *pd;
	union ibv_gid gid;
	struct side a;
	struct side b;
};

static struct ibv_context *open_first(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0], "there is no device");
	context = ibv_open_device(list[0]);
	CHECK(context, "the device does not open");
	ibv_free_device_list(list);
	return context;
}

static inline void to_init(struct side *side)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	errno = ibv_modify_qp(side->qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	CHECK(!errno, "the QP does not go to INIT");
}

/* A queue pair for a side that has a CQ, in INIT. `srq`: NULL, or where its receives come from. */
static inline void make_qp(struct pair *pair, struct side *side, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {.cap = {DEPTH, DEPTH, 2, 2, 64}, .qp_type = IBV_QPT_RC};

	init.send_cq = init.recv_cq = side->cq;
	init.srq = srq;
	side->qp = ibv_create_qp(pair->pd, &init);
	CHECK(side->qp, "no QP");
	to_init(side);
}

static inline void make_side(struct pair *pair, struct side *side, struct ibv_comp_channel *channel, int cqe,
			     struct ibv_srq *srq)
{
	side->cq = ibv_create_cq(pair->context, cqe, NULL, channel, 0);
	CHECK(side->cq, "no CQ");
	make_qp(pair, side, srq);
	side->mr = ibv_reg_mr(pair->pd, side->memory, BUFFER,
			      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				      IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(side->mr, "no MR");
}

static inline void to_rtr(struct pair *pair, struct side *side, struct side *to)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to->qp->qp_num,
				   .max_dest_rd_atomic = 4,
				   .min_rnr_timer = 1};

	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = pair->gid;
	attr.ah_attr.grh.hop_limit = 1;
	errno = ibv_modify_qp(side->qp, &attr,
			      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	CHECK(!errno, "the QP does not go to RTR");
}

static inline void to_rts(struct side *side)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};

	errno = ibv_modify_qp(side->qp, &attr,
			      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				      IBV_QP_MAX_QP_RD_ATOMIC);
	CHECK(!errno, "the QP does not go to RTS");
}

/* Makes both sides, in INIT. */
static inline struct pair *make_pair(struct ibv_comp_channel *(*channel)(struct ibv_context *))
{
	struct pair *pair = calloc(1, sizeof(*pair));
	struct ibv_comp_channel *made;

	pair->context = open_first();
	pair->pd = ibv_alloc_pd(pair->context);
	CHECK(pair->pd, "no PD");
	CHECK(!ibv_query_gid(pair->context, 1, 0, &pair->gid), "no GID");
	made = channel ? channel(pair->context) : NULL;
	make_side(pair, &pair->a, made, 2 * DEPTH, NULL);
	make_side(pair, &pair->b, made, 2 * DEPTH, NULL);
	return pair;
}

static inline void connect_sides(struct pair *pair, struct side *one, struct side *other)
{
	to_rtr(pair, one, other);
	to_rtr(pair, other, one);
	to_rts(one);
	to_rts(other);
}

static inline void connect_pair(struct pair *pair)
{
	connect_sides(pair, &pair->a, &pair->b);
}

static inline void to_state(struct side *side, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	errno = ibv_modify_qp(side->qp, &attr, IBV_QP_STATE);
	CHECK(!errno, "the QP does not go to state %d", state);
}

static inline void close_side(struct side *side)
{
	CHECK(!ibv_destroy_qp(side->qp), "the QP is not destroyed");
	CHECK(!ibv_destroy_cq(side->cq), "the CQ is not destroyed");
	CHECK(!ibv_dereg_mr(side->mr), "the MR is not deregistered");
}

static inline void close_pair(struct pair *pair)
{
	close_side(&pair->a);
	close_side(&pair->b);
	CHECK(!ibv_dealloc_pd(pair->pd), "the PD is not freed");
	CHECK(!ibv_close_device(pair->context), "the device is not closed");
	free(pair);
}

/* Posts one operation of `length` bytes, to the start of the other side's memory. */
static inline int post(struct side *side, struct side *to, enum ibv_wr_opcode opcode, unsigned int flags,
		       uint32_t length, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, length, side->mr->lkey};
	struct ibv_send_wr wr = {
		.wr_id = id, .sg_list = &sge, .num_sge = length ? 1 : 0, .opcode = opcode, .send_flags = flags};
	struct ibv_send_wr *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)to->memory;
	wr.wr.rdma.rkey = to->mr->rkey;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = (uintptr_t)to->memory;
		wr.wr.atomic.rkey = to->mr->rkey;
		wr.wr.atomic.compare_add = 1;
	}
	return ibv_post_send(side->qp, &wr, &bad);
}

static inline int receive(struct side *side, uint32_t length, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)side->memory, length, side->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = length ? 1 : 0};
	struct ibv_recv_wr *bad;

	return ibv_post_recv(side->qp, &wr, &bad);
}

/* Polls until a completion comes. */
static inline struct ibv_wc take(struct side *side)
{
	time_t start = time(NULL);
	struct ibv_wc wc;
	int count;

	do
		count = ibv_poll_cq(side->cq, 1, &wc);
	while (!count && time(NULL) - start < 20);
	CHECK(count == 1, "no completion came");
	return wc;
}

#endif
