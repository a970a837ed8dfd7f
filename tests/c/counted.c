// SPDX-License-Identifier: MIT
/* What completion counters count (ibv_qp_attach_comp_cntr(3)): every operation, with and without completions, in order, in
 * error, and what is counted nowhere.
 *
 * Each line that it prints is one statement. The last is "done", and the exit status 0. With the argument imm=efa a WRITE
 * with immediate consumes no receive, as on EFA.
 */
#include <stdbool.h>

#include "counting.h"

#define OPERATIONS 6

static const uint32_t operations[OPERATIONS] = {SEND, RECV, READ, REMOTE_READ, WRITE, REMOTE_WRITE};

/* A counter for each operation of a queue pair. */
static void attach_each(struct pair *pair, struct side *side, enum ibv_comp_cntr_type type,
			struct ibv_comp_cntr *counters[OPERATIONS])
{
	for (int i = 0; i < OPERATIONS; i++) {
		counters[i] = make(pair->context, type);
		CHECK(!attach(side->qp, counters[i], 0, operations[i]), "attach");
	}
}

/* What they have to say, in the order of `operations`; none of them an error. */
static void each(const char *what, struct ibv_comp_cntr *counters[OPERATIONS], const uint64_t values[OPERATIONS])
{
	static const char *const names[OPERATIONS] = {"SEND",		  "RECV",	"RDMA_READ",
						      "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE"};
	char text[100];

	for (int i = 0; i < OPERATIONS; i++) {
		snprintf(text, sizeof(text), "%s, %s", what, names[i]);
		counts(text, counters[i], values[i], 0);
	}
}

static void destroy(struct ibv_comp_cntr *counters[OPERATIONS])
{
	for (int i = 0; i < OPERATIONS; i++)
		CHECK(!ibv_destroy_comp_cntr(counters[i]), "ibv_destroy_comp_cntr");
}

static void close_all(struct pair *pair)
{
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "closing");
	free(pair);
}

static struct ibv_mw *bound_window(struct pair *pair, struct side *side, struct ibv_mr *mr)
{
	struct ibv_mw *window = ibv_alloc_mw(pair->pd, IBV_MW_TYPE_2);
	struct ibv_send_wr wr = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;

	CHECK(window, "no memory window");
	window->rkey = ibv_inc_rkey(window->rkey);
	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = window->rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){mr, (uintptr_t)side->memory, BUFFER, IBV_ACCESS_REMOTE_READ};
	CHECK(!ibv_post_send(side->qp, &wr, &bad), "post_send of BIND_MW");
	CHECK(take(side).status == IBV_WC_SUCCESS, "BIND_MW");
	return window;
}

static void invalidate(struct side *side, enum ibv_wr_opcode opcode, uint32_t rkey)
{
	struct ibv_send_wr wr = {.opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey}, *bad;

	CHECK(!ibv_post_send(side->qp, &wr, &bad), "post_send");
	CHECK(take(side).status == IBV_WC_SUCCESS, "invalidating");
}

/* Which operation counts what. */
static void opcodes(bool immediate_consumes)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *from[OPERATIONS], *to[OPERATIONS];
	struct ibv_mr *mr = ibv_reg_mr(pair->pd, b->memory, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *first, *second;

	CHECK(mr, "no MR");
	attach_each(pair, a, IBV_COMP_CNTR_TYPE_WRS, from);
	attach_each(pair, b, IBV_COMP_CNTR_TYPE_WRS, to);
	connect_pair(pair);
	first = bound_window(pair, b, mr);
	second = bound_window(pair, b, mr);
	invalidate(b, IBV_WR_LOCAL_INV, first->rkey);
	each("the side of 2 BIND_MWs and a LOCAL_INV, which count nowhere", to, (uint64_t[]){0, 0, 0, 0, 0, 0});
	for (int i = 0; i < 4; i++)
		CHECK(!receive(b, 4096, i), "post_recv");
	CHECK(!post(a, b, IBV_WR_SEND, 0, 8, 1), "post_send");
	CHECK(!post(a, b, IBV_WR_SEND_WITH_IMM, 0, 8, 2), "post_send");
	invalidate(a, IBV_WR_SEND_WITH_INV, second->rkey);
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 8, 3), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 0, 4), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 8, 5), "post_send");
	CHECK(!post(a, b, IBV_WR_ATOMIC_WRITE, 0, 8, 6), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_READ, 0, 8, 7), "post_send");
	CHECK(!post(a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 8), "post_send");
	CHECK(!post(a, b, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_SEND_SIGNALED, 8, 9), "post_send");
	CHECK(take(a).wr_id == 9, "the last completion");
	each("3 SENDs, 4 WRITEs, a READ, 2 atomics; few of them signaled", from, (uint64_t[]){3, 0, 3, 0, 4, 0});
	each("at the peer, with immediate", to, (uint64_t[]){0, immediate_consumes ? 4 : 3, 0, 3, 0, 4});
	for (int i = 0; i < (immediate_consumes ? 4 : 3); i++)
		CHECK(take(b).status == IBV_WC_SUCCESS, "a receive");
	CHECK(!ibv_dealloc_mw(first) && !ibv_dealloc_mw(second) && !ibv_dereg_mr(mr), "the windows");
	close_side(a);
	close_side(b);
	each("QPs that have gone leave their counts", from, (uint64_t[]){3, 0, 3, 0, 4, 0});
	destroy(from);
	destroy(to);
	close_all(pair);
}

static void bytes(void)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *from[OPERATIONS], *to[OPERATIONS];

	attach_each(pair, a, IBV_COMP_CNTR_TYPE_BYTES, from);
	attach_each(pair, b, IBV_COMP_CNTR_TYPE_BYTES, to);
	connect_pair(pair);
	CHECK(!receive(b, 4096, 0) && !receive(b, 4096, 1), "post_recv");
	CHECK(!post(a, b, IBV_WR_SEND_WITH_IMM, 0, 100, 1), "post_send");
	CHECK(!post(a, b, IBV_WR_SEND, 0, 0, 1), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 3000, 2), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 0, 3), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, 2000, 4), "post_send");
	CHECK(take(a).wr_id == 4, "the last completion");
	each("bytes of SENDs of 100 and 0, WRITEs of 3000 and 0, a READ of 2000", from,
	     (uint64_t[]){100, 0, 2000, 0, 3000, 0});
	each("at the peer", to, (uint64_t[]){0, 100, 0, 2000, 0, 3000});
	to_state(a, IBV_QPS_ERR);
	CHECK(!post(a, b, IBV_WR_SEND, IBV_SEND_SIGNALED, 100, 5), "post_send");
	CHECK(take(a).status == IBV_WC_WR_FLUSH_ERR, "the SEND is not flushed");
	counts("a SEND of 100 bytes that is flushed: an error, no bytes", from[0], 100, 1);
	close_side(a);
	close_side(b);
	destroy(from);
	destroy(to);
	close_all(pair);
}

/* Whoever has polled the completion of a work request finds it counted. */
static void order(void)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *sends = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *receives = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);

	CHECK(!attach(a->qp, sends, 0, SEND) && !attach(b->qp, receives, 0, RECV), "attach");
	connect_pair(pair);
	for (int turn = 0; turn < 5; turn++) {
		for (int i = 0; i < 20; i++)
			CHECK(!receive(b, 64, i) && !post(a, b, IBV_WR_SEND, IBV_SEND_SIGNALED, 64, i), "posting");
		for (int i = 0; i < 20; i++) {
			uint64_t wanted = 20 * turn + i + 1;

			CHECK(take(a).status == IBV_WC_SUCCESS, "a SEND");
			CHECK(value_of(sends) >= wanted, "SEND %d is not counted", (int)wanted);
			CHECK(take(b).status == IBV_WC_SUCCESS, "a receive");
			CHECK(value_of(receives) >= wanted, "receive %d is not counted", (int)wanted);
		}
	}
	counts("whoever has polled the n-th completion finds n counted: SENDs", sends, 100, 0);
	counts("and receives", receives, 100, 0);
	for (int i = 0; i < 50; i++) {
		CHECK(!post(a, b, IBV_WR_SEND, 0, 64, i) && !receive(b, 64, i), "posting");
		CHECK(!ibv_inc_comp_cntr(sends, 10), "ibv_inc_comp_cntr");
	}
	counts("50 SENDs and 50 times incremented by 10 at the same time", sends, 650, 0);
	close_side(a);
	close_side(b);
	CHECK(!ibv_destroy_comp_cntr(sends) && !ibv_destroy_comp_cntr(receives), "ibv_destroy_comp_cntr");
	close_all(pair);
}

/* Whoever sees a WRITE counted at the target finds all of its data there. */
static void placed(void)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *remote = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);

	CHECK(!attach(b->qp, remote, 0, REMOTE_WRITE), "attach");
	connect_pair(pair);
	for (int i = 1; i <= 100; i++) {
		time_t start = time(NULL);

		a->memory[0] = a->memory[4999] = i; /* of several packets */
		CHECK(!post(a, b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 5000, i), "post_send");
		while (value_of(remote) < (uint64_t)i)
			CHECK(time(NULL) - start < 20, "WRITE %d is not counted", i);
		CHECK(b->memory[0] == i && b->memory[4999] == i, "WRITE %d is counted before its data are there", i);
		CHECK(take(a).wr_id == (uint64_t)i, "its completion, which frees its slot");
	}
	counts("whoever sees a WRITE counted at the target finds its data there", remote, 100, 0);
	close_side(a);
	close_side(b);
	CHECK(!ibv_destroy_comp_cntr(remote), "ibv_destroy_comp_cntr");
	close_all(pair);
}

static void wrong_key(void)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *writes = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *remote = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *receives = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	uint32_t key = b->mr->rkey;

	CHECK(!attach(a->qp, writes, 0, WRITE) && !attach(b->qp, remote, 0, REMOTE_WRITE) &&
		      !attach(b->qp, receives, 0, RECV), "attach");
	connect_pair(pair);
	CHECK(!receive(b, 64, 0) && !receive(b, 64, 1), "post_recv");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 64, 1), "post_send");
	b->mr->rkey = key ^ 0x10000;
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 64, 2), "post_send");
	b->mr->rkey = key;
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 64, 3) && !post(a, b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, 4),
	      "post_send");
	CHECK(take(a).status == IBV_WC_REM_ACCESS_ERR, "a wrong key");
	counts("a WRITE, one with a wrong key, two behind it: one completes, three are errors", writes, 1, 3);
	counts("at the peer only what was done counts, and no errors", remote, 1, 0);
	counts("its receives are flushed", receives, 0, 2);
	close_side(a);
	close_side(b);
	CHECK(!ibv_destroy_comp_cntr(writes) && !ibv_destroy_comp_cntr(remote) && !ibv_destroy_comp_cntr(receives),
	      "ibv_destroy_comp_cntr");
	close_all(pair);
}

/* Two QPs take their receives from one SRQ; one counter counts the SENDs of both peers. */
static void srq_and_shared_counter(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pair->pd, &init);
	struct side *sides = calloc(4, sizeof(*sides)); /* 0 sends to 1, 2 to 3 */
	struct ibv_comp_cntr *sends = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *first = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *second = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_sge sge = {(uintptr_t)pair->a.memory, 64, pair->a.mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;

	CHECK(srq, "no SRQ");
	for (int i = 0; i < 4; i++)
		make_side(pair, &sides[i], NULL, 16, i % 2 ? srq : NULL);
	expect("attach one counter to SEND of a QP", attach(sides[0].qp, sends, 0, SEND), 0);
	expect("attach it to SEND of another QP", attach(sides[2].qp, sends, 0, SEND), 0);
	CHECK(!attach(sides[1].qp, first, 0, RECV) && !attach(sides[3].qp, second, 0, RECV), "attach");
	connect_sides(pair, &sides[0], &sides[1]);
	connect_sides(pair, &sides[2], &sides[3]);
	for (int i = 0; i < 10; i++)
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad), "post_srq_recv");
	for (int i = 0; i < 3; i++)
		CHECK(!post(&sides[0], &sides[1], IBV_WR_SEND, 0, 64, i), "post_send");
	for (int i = 0; i < 5; i++)
		CHECK(!post(&sides[2], &sides[3], IBV_WR_SEND, 0, 64, i), "post_send");
	counts("3 SENDs of one QP and 5 of another", sends, 8, 0);
	counts("a receive of an SRQ counts on the QP that used it: of the first", first, 3, 0);
	counts("of the second", second, 5, 0);
	CHECK(!ibv_destroy_qp(sides[0].qp), "the QP is not destroyed");
	expect("destroy the counter while the second QP is there", ibv_destroy_comp_cntr(sends), EBUSY);
	CHECK(!ibv_destroy_cq(sides[0].cq) && !ibv_dereg_mr(sides[0].mr), "closing");
	for (int i = 1; i < 4; i++)
		close_side(&sides[i]);
	CHECK(!ibv_destroy_srq(srq), "the SRQ is not destroyed");
	counts("receives of an SRQ that nobody used count nowhere", second, 5, 0);
	CHECK(!ibv_destroy_comp_cntr(sends) && !ibv_destroy_comp_cntr(first) && !ibv_destroy_comp_cntr(second),
	      "ibv_destroy_comp_cntr");
	free(sides);
	close_pair(pair);
}

/* RESET keeps counters attached and counts as they are; what it drops counts nowhere, as what a destroyed QP drops. */
static void reset(void)
{
	struct pair *pair = make_pair(NULL);
	struct side *a = &pair->a, *b = &pair->b;
	struct ibv_comp_cntr *counter = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *other = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);

	CHECK(!attach(a->qp, counter, 0, WRITE | RECV), "attach");
	connect_pair(pair);
	CHECK(!receive(a, 64, 0) && !receive(a, 64, 1), "post_recv");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 64, 1), "post_send");
	counts("a WRITE", counter, 1, 0);
	to_state(a, IBV_QPS_RESET);
	to_state(b, IBV_QPS_RESET);
	counts("after RESET, which drops two receives", counter, 1, 0);
	expect("attach another to the same operation", attach(a->qp, other, 0, WRITE), EBUSY);
	expect("destroy it", ibv_destroy_comp_cntr(counter), EBUSY);
	to_init(a);
	to_init(b);
	connect_pair(pair);
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 64, 2) && !receive(a, 64, 2), "posting");
	counts("a WRITE after that", counter, 2, 0);
	close_side(a);
	close_side(b);
	counts("a QP that is destroyed drops a receive", counter, 2, 0);
	CHECK(!ibv_destroy_comp_cntr(counter) && !ibv_destroy_comp_cntr(other), "ibv_destroy_comp_cntr");
	close_all(pair);
}

/* A CQ that overruns ends its QPs; every work request is counted all the same. */
static void overrun(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_comp_cntr *counter = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct side *one = calloc(2, sizeof(*one)), *other = one + 1;
	time_t start = time(NULL);

	make_side(pair, one, NULL, 1, NULL);
	make_side(pair, other, NULL, 4, NULL);
	CHECK(!attach(one->qp, counter, 0, WRITE), "attach");
	connect_sides(pair, one, other);
	for (int i = 0; i < 5; i++)
		CHECK(!post(one, other, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 64, i), "post_send");
	while (value_of(counter) + errors_of(counter) < 5 && time(NULL) - start < 10)
		usleep(1000);
	CHECK(value_of(counter) >= 2 && value_of(counter) + errors_of(counter) == 5, "%d and %d",
	      (int)value_of(counter), (int)errors_of(counter));
	printf("5 WRITEs into a CQ of one entry, which overruns: completions and errors are 5\n");
	close_side(one);
	close_side(other);
	CHECK(!ibv_destroy_comp_cntr(counter), "ibv_destroy_comp_cntr");
	free(one);
	close_pair(pair);
}

/* The number behind max_value is 0. */
static void wrap(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_comp_cntr *wrs = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *bytes = make(pair->context, IBV_COMP_CNTR_TYPE_BYTES);
	struct ibv_comp_cntr_caps caps;

	CHECK(!ibv_query_comp_cntr_caps(pair->context, &caps), "ibv_query_comp_cntr_caps");
	CHECK(!ibv_set_comp_cntr(wrs, caps.max_value) && !ibv_set_err_comp_cntr(wrs, caps.max_value), "set");
	CHECK(!ibv_set_comp_cntr(bytes, caps.max_value - 9), "set");
	CHECK(!attach(pair->a.qp, wrs, 0, WRITE) && !attach(pair->b.qp, bytes, 0, REMOTE_WRITE), "attach");
	connect_pair(pair);
	CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 0, 64, 1), "post_send");
	counts("at max_value, one WRITE more", wrs, 0, caps.max_value);
	counts("9 bytes before it, 64 bytes more", bytes, 54, 0);
	to_state(&pair->a, IBV_QPS_ERR);
	CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, 0, 64, 2), "post_send");
	counts("errors at max_value, one more", wrs, 0, 0);
	close_side(&pair->a);
	close_side(&pair->b);
	CHECK(!ibv_destroy_comp_cntr(wrs) && !ibv_destroy_comp_cntr(bytes), "ibv_destroy_comp_cntr");
	close_all(pair);
}

int main(int count, char **words)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	opcodes(count < 2 || strcmp(words[1], "imm=efa") != 0);
	bytes();
	order();
	placed();
	wrong_key();
	srq_and_shared_counter();
	reset();
	overrun();
	wrap();
	puts("done");
	return 0;
}
