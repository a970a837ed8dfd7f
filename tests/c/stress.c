// SPDX-License-Identifier: MIT
/* Many threads use the same objects at once, in whatever order the scheduler and a seed make of it: posting, polling,
 * arming, resizing, querying, creating and destroying. Whatever is posted completes exactly once.
 *
 *	stress [SEED [MILLISECONDS]]
 *
 * It is a test by itself, and is what the sanitizers look at (tools/sanitize.py).
 */
#include "pair.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#define POLLERS 2
#define LIMIT (DEPTH / 2) /* requests in flight: any thread may poll while the queue is resized to LIMIT and more */
#define SRQ_DEPTH 64

static struct pair *pair;	    /* posted to one by one, polled by ibv_poll_cq */
static struct side built, built_to; /* posted to by ibv_wr_*, polled by ibv_start_poll */
static struct ibv_comp_channel *channel;
static struct ibv_srq *srq;
static atomic_bool ends;
static atomic_uint_fast64_t posted, polled, sum_posted, sum_polled, built_posted, built_polled, events, async_events;
static unsigned int seed;

static uint32_t draw(uint32_t *state, uint32_t below)
{
	*state = *state * 1664525 + 1013904223;
	return (uint32_t)((uint64_t)(*state >> 8) * below >> 24);
}

static bool goes_on(void)
{
	return !atomic_load_explicit(&ends, memory_order_relaxed);
}

/* -- one queue pair that many look at */

static void *post_all(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		uint64_t id = posted;

		if (id - polled >= LIMIT) {
			sched_yield();
			continue;
		}
		CHECK(!post(&pair->a, &pair->b, draw(&state, 4) ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
			    IBV_SEND_SIGNALED, draw(&state, 512), id),
		      "a work request is refused");
		sum_posted += id;
		posted = id + 1;
	}
	return NULL;
}

/* Takes what is there; how many. */
static int drain(uint32_t *state)
{
	struct ibv_wc wc[8];
	int count = ibv_poll_cq(pair->a.cq, 1 + draw(state, 8), wc);

	CHECK(count >= 0, "polling fails");
	for (int i = 0; i < count; i++) {
		CHECK(wc[i].status == IBV_WC_SUCCESS, "completion %d: %s", i, ibv_wc_status_str(wc[i].status));
		sum_polled += wc[i].wr_id;
	}
	polled += count;
	return count;
}

static void *poll_all(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on() || polled < posted)
		if (!drain(&state))
			sched_yield();
	return NULL;
}

static void *wait_for_events(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		struct pollfd look = {.fd = channel->fd, .events = POLLIN};
		struct ibv_cq *cq;
		void *context;

		CHECK(!ibv_req_notify_cq(pair->a.cq, draw(&state, 2)), "arming fails");
		drain(&state);
		if (poll(&look, 1, 10) <= 0 || ibv_get_cq_event(channel, &cq, &context))
			continue; /* its queue was destroyed meanwhile */
		CHECK(cq->channel == channel, "an event of a queue that is none");
		ibv_ack_cq_events(cq, 1);
		events++;
	}
	return NULL;
}

static void *resize(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		errno = ibv_resize_cq(pair->a.cq, DEPTH + draw(&state, 4 * DEPTH));
		CHECK(!errno, "resizing fails");
	}
	return NULL;
}

static void *query(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		struct ibv_qp_init_attr init;
		struct ibv_port_attr port;
		struct ibv_qp_attr attr = {.min_rnr_timer = 1 + draw(&state, 8)};
		struct ibv_device **list = ibv_get_device_list(NULL);

		CHECK(!ibv_query_qp(pair->a.qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS, "querying fails");
		attr.min_rnr_timer = 1 + draw(&state, 8);
		CHECK(!ibv_modify_qp(pair->a.qp, &attr, IBV_QP_MIN_RNR_TIMER), "modifying fails");
		attr.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE), "RTS to RTS fails");
		CHECK(!ibv_query_port(pair->context, 1, &port), "querying the port fails");
		CHECK(list && list[0] && *ibv_get_device_name(list[0]), "there is no device");
		ibv_free_device_list(list);
	}
	return NULL;
}

/* -- the extended interfaces */

static void *build_all(void *argument)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(built.qp);
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		unsigned int count = 1 + draw(&state, 4);

		if (built_posted - built_polled + count > LIMIT) {
			sched_yield();
			continue;
		}
		ibv_wr_start(qp);
		for (unsigned int i = 0; i < count; i++) {
			qp->wr_id = i;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp, built_to.mr->rkey, (uintptr_t)built_to.memory);
			ibv_wr_set_sge(qp, built.mr->lkey, (uintptr_t)built.memory, draw(&state, 64));
		}
		if (draw(&state, 8)) {
			CHECK(!ibv_wr_complete(qp), "work requests are refused");
			built_posted += count;
		} else {
			ibv_wr_abort(qp);
		}
	}
	return NULL;
}

static void *step_all(void *argument)
{
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)built.cq;
	uint32_t state = *(uint32_t *)argument;

	while (goes_on() || built_polled < built_posted) {
		struct ibv_poll_cq_attr attr = {0};
		uint64_t count = 0;
		int error = ibv_start_poll(cq, &attr);

		CHECK(!error || error == ENOENT, "ibv_start_poll: %d", error);
		if (error) {
			sched_yield();
			continue;
		}
		do {
			CHECK(cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE,
			      "not a completion of a WRITE");
			count++;
		} while (draw(&state, 8) && !ibv_next_poll(cq));
		ibv_end_poll(cq);
		built_polled += count;
		if (!draw(&state, 16))
			CHECK(!ibv_resize_cq(built.cq, DEPTH + draw(&state, DEPTH)), "resizing fails");
	}
	return NULL;
}

static void make_built(void)
{
	struct ibv_cq_init_attr_ex cq = {.cqe = 2 * DEPTH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_qp_init_attr_ex init = {.cap = {DEPTH, DEPTH, 2, 2, 64},
					   .qp_type = IBV_QPT_RC,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .pd = pair->pd,
					   .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};

	built.cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(pair->context, &cq));
	init.send_cq = init.recv_cq = built.cq;
	built.qp = ibv_create_qp_ex(pair->context, &init);
	CHECK(built.qp, "no extended QP");
	to_init(&built);
	built.mr = ibv_reg_mr(pair->pd, built.memory, BUFFER, IBV_ACCESS_LOCAL_WRITE);
	make_side(pair, &built_to, NULL, DEPTH, NULL);
	connect_sides(pair, &built, &built_to);
}

/* -- objects that come and go */

static void *come_and_go(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		struct side *one = calloc(1, sizeof(*one)), *other = calloc(1, sizeof(*other));

		make_side(pair, one, draw(&state, 2) ? channel : NULL, DEPTH, NULL);
		make_side(pair, other, NULL, DEPTH, srq);
		connect_sides(pair, one, other);
		if (one->cq->channel)
			CHECK(!ibv_req_notify_cq(one->cq, 0), "arming fails");
		for (uint64_t i = draw(&state, 8); i > 0; i--) {
			CHECK(!post(one, other, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, draw(&state, 64), i), "refused");
			CHECK(take(one).status == IBV_WC_SUCCESS, "a WRITE fails");
		}
		to_state(other, draw(&state, 2) ? IBV_QPS_ERR : IBV_QPS_RESET); /* ERR: an event that nobody may read */
		close_side(other);
		close_side(one);
		free(one);
		free(other);
	}
	return NULL;
}

static void *feed_srq(void *argument)
{
	uint32_t state = *(uint32_t *)argument;

	while (goes_on()) {
		struct ibv_sge sge = {(uintptr_t)pair->b.memory, 8, pair->b.mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		struct ibv_srq_attr attr = {.max_wr = SRQ_DEPTH + draw(&state, SRQ_DEPTH)};
		int error = ibv_post_srq_recv(srq, &wr, &bad);

		CHECK(!error || error == ENOMEM, "a receive is refused: %d", error);
		if (!draw(&state, 64)) {
			error = ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR);
			CHECK(!error || error == EINVAL, "the SRQ is not resized: %d", error);
		}
		if (error)
			sched_yield();
	}
	return NULL;
}

static void *read_async(void *argument)
{
	struct pollfd look = {.fd = pair->context->async_fd, .events = POLLIN};
	struct ibv_async_event event;

	(void)argument;
	while (goes_on()) {
		if (poll(&look, 1, 10) <= 0 || ibv_get_async_event(pair->context, &event))
			continue;
		ibv_ack_async_event(&event);
		async_events++;
	}
	return NULL;
}

int main(int count, char **words)
{
	void *(*const works[])(void *) = {post_all,  poll_all, poll_all,    wait_for_events, resize,	 query,     query,
					  build_all, step_all, come_and_go, come_and_go,	   feed_srq, read_async};
	enum { THREADS = sizeof(works) / sizeof(*works) };
	struct ibv_srq_init_attr init = {.attr = {SRQ_DEPTH, 1, 0}};
	pthread_t threads[THREADS];
	uint32_t seeds[THREADS];

	seed = count > 1 ? strtoul(words[1], NULL, 10) : 1;
	pair = make_pair(NULL);
	CHECK(!ibv_destroy_qp(pair->a.qp) && !ibv_destroy_cq(pair->a.cq) && !ibv_dereg_mr(pair->a.mr), "not destroyed");
	channel = ibv_create_comp_channel(pair->context);
	srq = ibv_create_srq(pair->pd, &init);
	CHECK(channel && srq, "no channel, no SRQ");
	/* Between poll(2) and taking an event its object may go, and the event with it. */
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK) && !fcntl(pair->context->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
	make_side(pair, &pair->a, channel, 2 * DEPTH, NULL);
	connect_pair(pair);
	make_built();
	for (int i = 0; i < THREADS; i++) {
		seeds[i] = seed * 1000 + i;
		CHECK(!pthread_create(&threads[i], NULL, works[i], &seeds[i]), "no thread");
	}
	usleep(1000 * (count > 2 ? strtoul(words[2], NULL, 10) : 1000));
	ends = true;
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	CHECK(posted == polled && sum_posted == sum_polled, "%ju posted, %ju polled", (uintmax_t)posted, (uintmax_t)polled);
	CHECK(built_posted == built_polled, "%ju built, %ju polled", (uintmax_t)built_posted, (uintmax_t)built_polled);
	printf("seed %u: %ju and %ju requests, %ju and %ju events\n", seed, (uintmax_t)posted, (uintmax_t)built_posted,
	       (uintmax_t)events, (uintmax_t)async_events);
	close_side(&built);
	close_side(&built_to);
	CHECK(!ibv_destroy_srq(srq), "the SRQ is not destroyed");
	close_side(&pair->a);
	CHECK(!ibv_destroy_comp_channel(channel), "the channel is not destroyed");
	CHECK(!ibv_destroy_qp(pair->b.qp) && !ibv_destroy_cq(pair->b.cq) && !ibv_dereg_mr(pair->b.mr), "not destroyed");
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "not closed");
	free(pair);
	puts("done");
	return 0;
}
