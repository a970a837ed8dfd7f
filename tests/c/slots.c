// SPDX-License-Identifier: MIT
/* Slots of the send queue, batches of completions whose queue changes meanwhile, and builders that lack a setter. With
 * the argument "completed": the device has the option send_slots=completed.
 */
#include <pthread.h>
#include <stdbool.h>

#include "pair.h"

/* -- slots */

static int write_to(struct pair *pair, unsigned int flags, uint64_t id)
{
	return post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, flags, 8, id);
}

static void fill(struct pair *pair, int count, unsigned int flags)
{
	for (int i = 0; i < count; i++)
		CHECK(!write_to(pair, flags, i), "slot %d", i);
}

static void drain(struct pair *pair, int count)
{
	for (int i = 0; i < count; i++)
		CHECK(take(&pair->a).wr_id == (uint64_t)i, "completion %d", i);
}

/* Waits until the peer's memory shows the last request that was posted: it was performed. */
static void await_written(struct pair *pair, unsigned char mark)
{
	time_t start = time(NULL);

	while (*(volatile unsigned char *)pair->b.memory != mark)
		CHECK(time(NULL) - start < 20, "the last request is not performed");
}

static void reconnect(struct pair *pair)
{
	to_state(&pair->a, IBV_QPS_RESET);
	to_state(&pair->b, IBV_QPS_RESET);
	to_init(&pair->a);
	to_init(&pair->b);
	connect_pair(pair);
}

static void slots(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_wc wc;

	connect_pair(pair);
	fill(pair, DEPTH, IBV_SEND_SIGNALED);
	CHECK(write_to(pair, 0, 0) == ENOMEM, "as many as max_send_wr are posted");
	for (int i = 0; i < DEPTH; i++) {
		CHECK(take(&pair->a).wr_id == (uint64_t)i, "in order");
		CHECK(!write_to(pair, IBV_SEND_SIGNALED, i), "one completion, one slot");
		CHECK(write_to(pair, 0, 0) == ENOMEM, "and no other");
	}
	drain(pair, DEPTH);
	memset(pair->a.memory, 1, 8);
	fill(pair, DEPTH, 0);
	await_written(pair, 1);
	CHECK(write_to(pair, 0, 0) == ENOMEM, "no completion can free them");
	CHECK(!ibv_poll_cq(pair->a.cq, 1, &wc), "there is none");
	CHECK(write_to(pair, IBV_SEND_SIGNALED, 0) == ENOMEM, "and none can be asked for");
	reconnect(pair);
	fill(pair, DEPTH - 1, 0);
	CHECK(!write_to(pair, IBV_SEND_SIGNALED, 99) && take(&pair->a).wr_id == 99, "a reset has freed them");
	fill(pair, DEPTH, IBV_SEND_SIGNALED);
	drain(pair, DEPTH);
	to_state(&pair->a, IBV_QPS_ERR);
	fill(pair, DEPTH, 0);
	CHECK(write_to(pair, 0, 0) == ENOMEM, "flushed, and not polled");
	drain(pair, DEPTH);
	fill(pair, DEPTH, 0);
	close_pair(pair);
	puts("slots");
}

/* Threads that poll, post and destroy at the same time, on one completion queue. */

#define THREADS 3

struct worker {
	struct pair *pair;
	struct side side;
	pthread_t thread;
};

static struct ibv_cq *shared_cq;

static void *work(void *argument)
{
	struct worker *self = argument;
	struct ibv_wc wc[8];
	int posted = 0;

	while (posted < 3000) {
		int error = post(&self->side, &self->pair->b, IBV_WR_RDMA_WRITE, posted & 3 ? 0 : IBV_SEND_SIGNALED, 8,
				 posted);

		CHECK(!error || error == ENOMEM, "posting");
		posted += !error;
		if (error || !(posted % 7)) {
			int count = ibv_poll_cq(shared_cq, 8, wc);

			CHECK(count >= 0, "polling");
			for (int i = 0; i < count; i++)
				CHECK(!wc[i].status, "status %d", wc[i].status);
		}
	}
	return NULL;
}

static void threads(void)
{
	struct pair *pair = make_pair(NULL);
	struct side peers[THREADS] = {0};
	struct worker workers[THREADS] = {0};

	shared_cq = pair->a.cq;
	for (int i = 0; i < THREADS; i++) {
		workers[i].pair = pair;
		workers[i].side.cq = shared_cq;
		peers[i].cq = pair->b.cq;
		make_qp(pair, &workers[i].side, NULL);
		make_qp(pair, &peers[i], NULL);
		connect_sides(pair, &workers[i].side, &peers[i]);
	}
	for (int i = 0; i < THREADS; i++) {
		workers[i].side.mr = ibv_reg_mr(pair->pd, workers[i].side.memory, BUFFER, IBV_ACCESS_LOCAL_WRITE);
		CHECK(workers[i].side.mr, "no MR");
		CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "no thread");
	}
	for (int i = 0; i < THREADS; i++) {
		CHECK(!pthread_join(workers[i].thread, NULL), "joining");
		CHECK(!ibv_destroy_qp(workers[i].side.qp) && !ibv_destroy_qp(peers[i].qp), "destroying");
		CHECK(!ibv_dereg_mr(workers[i].side.mr), "deregistering");
	}
	close_pair(pair);
	puts("threads");
}

/* -- batches */

enum change { DESTROY, RESET, RESIZE };

/* Posts, and waits until the completion is in the queue. */
static void complete_one(struct pair *pair, struct side *side, struct ibv_comp_channel *channel, uint64_t id)
{
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_req_notify_cq(side->cq, 0), "arming");
	CHECK(!post(side, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, id), "posting");
	CHECK(!ibv_get_cq_event(channel, &cq, &context), "its event");
	ibv_ack_cq_events(cq, 1);
}

static void batch(enum change change, bool single)
{
	static const int order[] = {0, 0, 1, 0, 2};
	struct pair *pair = make_pair(NULL);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(pair->context);
	struct ibv_cq_init_attr_ex attr = {.cqe = 16,
					   .channel = channel,
					   .wc_flags = IBV_WC_STANDARD_FLAGS,
					   .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					   .flags = single ? IBV_CREATE_CQ_ATTR_SINGLE_THREADED : 0};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(pair->context, &attr);
	struct ibv_poll_cq_attr none = {0};
	struct side sides[3] = {0}, peers[3] = {0};
	uint32_t numbers[3];
	struct ibv_wc wc;

	CHECK(cq && channel, "no CQ");
	for (int i = 0; i < 3; i++) {
		sides[i].cq = ibv_cq_ex_to_cq(cq);
		peers[i].cq = pair->b.cq;
		make_qp(pair, &sides[i], NULL);
		make_qp(pair, &peers[i], NULL);
		connect_sides(pair, &sides[i], &peers[i]);
		sides[i].mr = ibv_reg_mr(pair->pd, sides[i].memory, BUFFER, IBV_ACCESS_LOCAL_WRITE);
		CHECK(sides[i].mr, "no MR");
		numbers[i] = sides[i].qp->qp_num;
	}
	CHECK(ibv_start_poll(cq, &none) == ENOENT, "nothing is there");
	for (int i = 0; i < 5; i++)
		complete_one(pair, &sides[order[i]], channel, 10 * order[i] + i);
	CHECK(!ibv_start_poll(cq, &none) && cq->wr_id == 0, "the first");
	if (change == DESTROY) {
		CHECK(!ibv_destroy_qp(sides[0].qp), "destroying the QP of the current completion");
		sides[0].qp = NULL;
	} else if (change == RESET) {
		to_state(&sides[0], IBV_QPS_RESET);
	} else {
		CHECK(!ibv_resize_cq(ibv_cq_ex_to_cq(cq), 4), "what is current does not count any more");
	}
	CHECK(cq->wr_id == 0 && ibv_wc_read_qp_num(cq) == numbers[0], "the current completion can still be read");
	if (change == RESIZE)
		CHECK(!ibv_next_poll(cq) && cq->wr_id == 1, "the second of the first QP");
	CHECK(!ibv_next_poll(cq) && cq->wr_id == 12 && ibv_wc_read_qp_num(cq) == numbers[1], "that of the second QP");
	if (change == RESIZE)
		CHECK(!ibv_next_poll(cq) && cq->wr_id == 3, "the third of the first QP");
	CHECK(!ibv_next_poll(cq) && cq->wr_id == 24 && ibv_wc_read_qp_num(cq) == numbers[2], "that of the third QP");
	CHECK(ibv_next_poll(cq) == ENOENT, "no other");
	ibv_end_poll(cq);
	CHECK(!ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), "the queue is empty");
	/* the commonest form: the only completion, its QP gone, the end of the batch */
	complete_one(pair, &sides[1], channel, 7);
	CHECK(!ibv_start_poll(cq, &none) && cq->wr_id == 7, "the only one");
	CHECK(!ibv_destroy_qp(sides[1].qp), "its QP goes");
	ibv_end_poll(cq);
	CHECK(!ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), "the queue is empty again");
	complete_one(pair, &sides[2], channel, 8);
	CHECK(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc) == 1 && wc.wr_id == 8 && !wc.status, "it works on");
	for (int i = 0; i < 3; i++) {
		CHECK(i == 1 || !sides[i].qp || !ibv_destroy_qp(sides[i].qp), "destroying");
		CHECK(!ibv_destroy_qp(peers[i].qp) && !ibv_dereg_mr(sides[i].mr), "destroying");
	}
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_comp_channel(channel), "destroying the CQ");
	close_pair(pair);
}

static void batches(void)
{
	for (int single = 0; single < 2; single++)
		for (enum change change = DESTROY; change <= RESIZE; change++)
			batch(change, single);
	puts("batches");
}

/* -- what NICs refuse */

static struct ibv_qp_ex *extended(struct pair *pair, enum ibv_qp_type type, uint64_t operations)
{
	struct ibv_qp_init_attr_ex init = {.cap = {DEPTH, DEPTH, 2, 2, 64}, .qp_type = type};
	struct ibv_qp *qp;

	init.send_cq = init.recv_cq = pair->a.cq;
	init.pd = pair->pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = operations;
	qp = ibv_create_qp_ex(pair->context, &init);
	CHECK(qp, "no extended QP");
	return ibv_qp_to_qp_ex(qp);
}

static void ud_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
}

static void setters(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_qp_ex *qp = extended(pair, IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD);
	struct ibv_qp_ex *ud = extended(pair, IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
	struct ibv_sge halves[2] = {{(uintptr_t)pair->a.memory, 4, pair->a.mr->lkey},
				    {(uintptr_t)pair->a.memory, 4, pair->a.mr->lkey}};
	uint64_t there = (uintptr_t)pair->b.memory;

	ibv_destroy_qp(pair->a.qp);
	pair->a.qp = &qp->qp_base;
	to_init(&pair->a);
	connect_pair(pair);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
	CHECK(ibv_wr_complete(qp) == EINVAL, "no data setter");
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
	CHECK(ibv_wr_complete(qp) == EINVAL, "none for the first of two");
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
	CHECK(ibv_wr_complete(qp) == EINVAL, "two of them");
	ibv_wr_start(qp);
	ibv_wr_rdma_read(qp, pair->b.mr->rkey, there);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
	CHECK(ibv_wr_complete(qp) == EINVAL, "an operation that send_ops_flags has not");
	ibv_wr_start(qp);
	ibv_wr_atomic_fetch_add(qp, pair->b.mr->rkey, there, 1);
	ibv_wr_set_sge_list(qp, 2, halves);
	CHECK(ibv_wr_complete(qp) == EINVAL, "an atomic with two elements");
	ibv_wr_start(qp);
	qp->wr_id = 5;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
	ibv_wr_set_sge(qp, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 0);
	CHECK(!ibv_wr_complete(qp), "0 bytes");
	CHECK(take(&pair->a).wr_id == 5, "nothing of the others was posted");
	for (int round = 0; round < 2; round++) { /* a full queue, built: all or none */
		ibv_wr_start(qp);
		for (int i = 0; i < DEPTH + !round; i++) {
			qp->wr_id = i;
			ibv_wr_rdma_write(qp, pair->b.mr->rkey, there);
			ibv_wr_set_inline_data(qp, pair->a.memory, 8);
		}
		CHECK(ibv_wr_complete(qp) == (round ? 0 : ENOMEM), "%d work requests", DEPTH + !round);
	}
	drain(pair, DEPTH);
	ud_to_rts(&ud->qp_base);
	ibv_wr_start(ud);
	ibv_wr_send(ud);
	ibv_wr_set_sge(ud, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 8);
	CHECK(ibv_wr_complete(ud) == EINVAL, "no ibv_wr_set_ud_addr");
	CHECK(!ibv_destroy_qp(&ud->qp_base), "destroying");
	close_pair(pair);
	puts("setters");
}

static void lists(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_sge pieces[3];
	struct ibv_send_wr wr = {.sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	struct ibv_mw *window = ibv_alloc_mw(pair->pd, IBV_MW_TYPE_1);

	connect_pair(pair);
	for (int i = 0; i < 3; i++)
		pieces[i] = (struct ibv_sge){(uintptr_t)pair->a.memory, 2, pair->a.mr->lkey};
	wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)pair->b.memory;
	wr.wr.rdma.rkey = pair->b.mr->rkey;
	CHECK(ibv_post_send(pair->a.qp, &wr, &bad) == EINVAL && bad == &wr, "more elements than max_send_sge, inline");
	wr.num_sge = 2;
	CHECK(!ibv_post_send(pair->a.qp, &wr, &bad) && !take(&pair->a).status, "as many");
	CHECK(window, "no memory window");
	wr = (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW};
	wr.bind_mw.mw = window;
	wr.bind_mw.bind_info.mr = pair->a.mr;
	CHECK(ibv_post_send(pair->a.qp, &wr, &bad) == EINVAL, "BIND_MW of a window of type 1");
	CHECK(!ibv_dealloc_mw(window), "freeing the window");
	close_pair(pair);
	puts("lists");
}

/* -- send_slots=completed */

static void completed(void)
{
	struct pair *pair = make_pair(NULL);
	time_t start = time(NULL);

	connect_pair(pair);
	for (int posted = 0; posted < 20 * DEPTH;) {
		posted += !write_to(pair, 0, 0);
		CHECK(time(NULL) - start < 20, "slots are free though nothing is polled");
	}
	close_pair(pair);
	puts("completed");
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count > 1 && !strcmp(arguments[1], "completed")) {
		completed();
	} else {
		slots();
		threads();
		batches();
		setters();
		lists();
	}
	puts("done");
	return 0;
}
