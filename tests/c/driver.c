// SPDX-License-Identifier: MIT
/* What the driver itself has to do right, whatever the device is: refusals when posting, threads, descriptors, forks,
 * channels.
 *
 * One line for each part; the last is "done". With the argument "until-gone" it waits, with traffic, until the device
 * is gone, and looks that every call then gives an error.
 */
#include "pair.h"
#include "softverbs.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#define THREADS 4
#define MESSAGES 200 /* of each thread */

/* -- refusals */

static void refusals(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_sge sge[3] = {{(uintptr_t)pair->a.memory, 8, pair->a.mr->lkey}};
	struct ibv_send_wr many = {.sg_list = sge, .num_sge = 3, .opcode = IBV_WR_SEND};
	struct ibv_send_wr *bad = NULL;
	struct ibv_recv_wr receives[2] = {{.next = &receives[1], .num_sge = 0}, {.sg_list = sge, .num_sge = 3}};
	struct ibv_recv_wr *bad_receive = NULL;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint32_t most;
	int posted = 0;

	CHECK(post(&pair->a, &pair->b, IBV_WR_SEND, 0, 8, 0) == EINVAL, "a send in INIT is refused");
	CHECK(strstr(softverbs_last_reason(), "INIT"), "the reason names the state: %s", softverbs_last_reason());
	CHECK(ibv_post_recv(pair->a.qp, receives, &bad_receive) == EINVAL && bad_receive == &receives[1],
	      "the second receive is refused");
	connect_pair(pair);
	CHECK(ibv_post_send(pair->a.qp, &many, &bad) == EINVAL && bad == &many, "three elements are refused");
	many.num_sge = 1;
	many.opcode = IBV_WR_TSO;
	CHECK(ibv_post_send(pair->a.qp, &many, &bad) == EINVAL, "an operation that there is not is refused");
	CHECK(!ibv_query_qp(pair->a.qp, &attr, IBV_QP_CAP, &init), "query");
	most = init.cap.max_inline_data;
	CHECK(most >= 64, "64 bytes inline were asked for, and there are %u", most);
	CHECK(post(&pair->a, &pair->b, IBV_WR_SEND, IBV_SEND_INLINE, most + 1, 0) == EINVAL, "too much inline is refused");
	CHECK(!receive(&pair->b, BUFFER, 0), "post_recv");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_SEND, IBV_SEND_INLINE | IBV_SEND_SIGNALED, most, 1), "%u inline", most);
	CHECK(take(&pair->a).status == IBV_WC_SUCCESS && take(&pair->b).byte_len == most, "the bytes arrive");
	CHECK(post(&pair->a, &pair->b, IBV_WR_SEND, 1 << 10, 8, 0) == EINVAL, "unknown flags are refused");
	CHECK(post(&pair->a, &pair->b, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 16, 0) == EINVAL, "16 bytes are no atomic");
	while (posted < 10 * DEPTH && !post(&pair->a, &pair->b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, posted))
		posted++; /* the peer has no receive, so they stay */
	CHECK(posted >= DEPTH && posted < 10 * DEPTH && errno == ENOMEM, "a full queue takes no more than %d", posted);
	close_pair(pair);
	puts("refusals");
}

/* -- a QP of the extended API */

static void building(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_qp_init_attr_ex init = {.send_cq = pair->a.cq,
					   .recv_cq = pair->a.cq,
					   .cap = {4, 1, 1, 1, 16},
					   .qp_type = IBV_QPT_RC,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					   .pd = pair->pd,
					   .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	struct ibv_qp_ex *ex;

	CHECK(!ibv_qp_to_qp_ex(pair->a.qp), "a QP of ibv_create_qp has no extended API");
	CHECK(!ibv_destroy_qp(pair->a.qp), "destroy");
	pair->a.qp = ibv_create_qp_ex(pair->context, &init);
	CHECK(pair->a.qp && (ex = ibv_qp_to_qp_ex(pair->a.qp)), "an extended QP");
	CHECK(!ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      "INIT");
	connect_pair(pair);
	CHECK(!receive(&pair->b, 100, 0) && !receive(&pair->b, 100, 0), "post_recv");

	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, (void *)"hello", 5);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	for (int i = 0; i < 5; i++) {
		ibv_wr_send(ex);
		ibv_wr_set_sge(ex, pair->a.mr->lkey, (uintptr_t)pair->a.memory, 1);
	}
	CHECK(ibv_wr_complete(ex) == ENOMEM, "five do not fit into a queue of four: none is posted");
	ibv_wr_start(ex);
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, pair->b.mr->rkey, (uintptr_t)pair->b.memory + 1000);
	ibv_wr_set_inline_data(ex, (void *)"written", 8);
	ex->wr_id = 3;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, (void *)"hello", 5);
	CHECK(!ibv_wr_complete(ex), "two are posted");
	CHECK(take(&pair->a).wr_id == 2 && take(&pair->a).wr_id == 3, "and complete");
	CHECK(take(&pair->b).byte_len == 5 && !memcmp(pair->b.memory, "hello", 5), "the message came");
	CHECK(!strcmp((char *)pair->b.memory + 1000, "written"), "the WRITE came");
	close_pair(pair);
	puts("building");
}

/* -- threads */

struct work {
	struct pair *pair;
	int number;
};

static void *sender(void *argument)
{
	struct work *work = argument;

	for (int i = 0; i < MESSAGES; i++) {
		uint64_t id = work->number * MESSAGES + i;
		int error;

		while ((error = post(&work->pair->a, &work->pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, id)) ==
		       ENOMEM)
			usleep(100);
		CHECK(!error, "post_send of a thread");
	}
	return NULL;
}

static void threads(void)
{
	struct pair *pair = make_pair(NULL);
	struct work work[THREADS];
	pthread_t ids[THREADS];
	char *seen = calloc(THREADS, MESSAGES);

	connect_pair(pair);
	/* A send queue has room again before its completions are polled, so a smaller queue could overrun. */
	CHECK(!ibv_resize_cq(pair->a.cq, THREADS * MESSAGES), "room for every completion");
	for (int i = 0; i < THREADS; i++) {
		work[i] = (struct work){pair, i};
		CHECK(!pthread_create(ids + i, NULL, sender, work + i), "a thread");
	}
	for (int i = 0; i < THREADS * MESSAGES; i++) {
		struct ibv_wc wc = take(&pair->a);

		CHECK(wc.status == IBV_WC_SUCCESS && !seen[wc.wr_id]++, "completion %d, once", (int)wc.wr_id);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(ids[i], NULL);
	free(seen);
	close_pair(pair);
	puts("threads");
}

/* -- threads that are cancelled */

static void *ask(void *context)
{
	struct ibv_device_attr attr;

	for (;;) {
		CHECK(!ibv_query_device(context, &attr), "a command of a thread");
		pthread_testcancel();
	}
	return NULL;
}

static void cancelled(void)
{
	struct ibv_context *context = open_first();
	struct ibv_device_attr attr;
	pthread_t thread;

	alarm(20);
	for (int i = 0; i < 20; i++) {
		CHECK(!pthread_create(&thread, NULL, ask, context), "a thread");
		usleep(1000);
		pthread_cancel(thread);
		CHECK(!ibv_query_device(context, &attr), "others may go on");
		CHECK(!pthread_join(thread, NULL), "it has ended");
	}
	alarm(0);
	CHECK(!ibv_close_device(context), "closing");
	puts("cancelled");
}

/* -- a program that can have no more descriptors */

static void few_descriptors(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_qp_init_attr init = {
		.send_cq = pair->a.cq, .recv_cq = pair->a.cq, .cap = {1, 1, 1, 1}, .qp_type = IBV_QPT_RC};
	int next = dup(0), cqe = pair->a.cq->cqe;
	struct rlimit before, none;

	connect_pair(pair);
	CHECK(!getrlimit(RLIMIT_NOFILE, &before) && next >= 0, "how many there may be");
	close(next);
	none = (struct rlimit){next, before.rlim_max};
	CHECK(!setrlimit(RLIMIT_NOFILE, &none), "no more");
	CHECK(!ibv_create_qp(pair->pd, &init) && errno == EMFILE, "no QP");
	CHECK(!ibv_create_cq(pair->context, 10, NULL, NULL, 0) && errno == EMFILE, "no CQ");
	CHECK(!ibv_create_comp_channel(pair->context) && errno == EMFILE, "no channel");
	CHECK(ibv_resize_cq(pair->a.cq, 10 * cqe) == EMFILE && pair->a.cq->cqe == cqe, "the CQ stays as it is");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, 1) && take(&pair->a).wr_id == 1,
	      "and is of use");
	CHECK(!setrlimit(RLIMIT_NOFILE, &before), "as before");
	close_pair(pair); /* the domain can go: nothing was left behind in the device */
	puts("few descriptors");
}

/* -- fork */

static void grandchild(struct pair *pair, struct ibv_dm *dm)
{
	struct ibv_alloc_dm_attr attr = {.length = 64};
	char text[8];

	CHECK(ibv_memcpy_from_dm(text, dm, 0, 8) == EIO, "a child's child cannot use what the child took");
	dm = ibv_alloc_dm(pair->context, &attr);
	CHECK(dm && !ibv_memcpy_from_dm(text, dm, 0, 8) && !ibv_free_dm(dm), "it takes its own");
	exit(0);
}

/* rdma-core's tests take device memory in children, on the context of the parent. */
static void memory_of_a_child(struct pair *pair, struct ibv_dm *parents)
{
	struct ibv_alloc_dm_attr attr = {.length = 1 << 30};
	struct ibv_device_attr device;
	char text[8] = "child's";
	struct ibv_dm *dm;
	int status;
	pid_t pid;

	CHECK(!ibv_alloc_dm(pair->context, &attr) && errno == ENOMEM, "more than the device has");
	attr.length = 64;
	CHECK(!ibv_query_device(pair->context, &device) && device.max_qp, "a child may ask about the device");
	dm = ibv_alloc_dm(pair->context, &attr);
	CHECK(dm, "and take device memory: %s", softverbs_last_reason());
	CHECK(!ibv_memcpy_to_dm(dm, 8, text, 8), "copying there");
	memset(text, 0, 8);
	CHECK(!ibv_memcpy_from_dm(text, dm, 8, 8) && !strcmp(text, "child's"), "copying back: %s", text);
	pid = fork();
	if (!pid)
		grandchild(pair, dm);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child's child");
	CHECK(ibv_memcpy_from_dm(text, parents, 0, 8) == EIO, "what its parent took is the parent's");
	CHECK(!ibv_reg_dm_mr(pair->pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED) && errno == EIO, "so is the domain");
	CHECK(!ibv_free_dm(dm), "and give it back");
}

static void child(struct pair *pair, struct ibv_dm *dm)
{
	struct ibv_wc wc;
	struct pair *own;

	CHECK(post(&pair->a, &pair->b, IBV_WR_SEND, 0, 8, 0) == EIO, "a child cannot post to its parent's QP");
	CHECK(ibv_poll_cq(pair->a.cq, 1, &wc) < 0 && errno == EIO, "nor poll its CQ");
	CHECK(!ibv_alloc_pd(pair->context) && errno == EIO, "nor have objects of its context");
	memory_of_a_child(pair, dm);
	own = make_pair(NULL); /* but it may open the device itself */
	connect_pair(own);
	CHECK(!receive(&own->b, 8, 1) && !post(&own->a, &own->b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, 2), "posting");
	CHECK(take(&own->a).wr_id == 2, "a send of the child");
	CHECK(!ibv_reg_dm_mr(own->pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED) && errno == EINVAL, "memory of another context");
	close_pair(own);
	exit(0);
}

static void forks(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_alloc_dm_attr attr = {.length = 64};
	struct ibv_dm *dm = ibv_alloc_dm(pair->context, &attr);
	char text[8] = "parents";
	int status;
	pid_t pid;

	CHECK(!ibv_fork_init() && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED, "forks need no care");
	connect_pair(pair);
	CHECK(dm && !ibv_memcpy_to_dm(dm, 0, text, 8), "device memory of the parent");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 8, 3), "posting");
	usleep(300000); /* so that a completion lies there */
	fflush(stdout);
	pid = fork();
	if (!pid)
		child(pair, dm);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "the child");
	CHECK(take(&pair->a).wr_id == 3, "the completion is still there for the parent");
	CHECK(!ibv_memcpy_from_dm(text, dm, 0, 8) && !strcmp(text, "parents") && !ibv_free_dm(dm), "and its memory");
	memset(pair->a.memory, 7, 8);
	CHECK(!receive(&pair->b, 8, 1) && !post(&pair->a, &pair->b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, 2), "posting");
	CHECK(take(&pair->a).wr_id == 2 && take(&pair->b).wr_id == 1, "a send of the parent");
	CHECK(!memcmp(pair->a.memory, pair->b.memory, 8), "it came to the parent's memory");
	close_pair(pair);
	puts("forks");
}

/* -- events */

/* One message from a to b, whose receive has completed. */
static void deliver(struct pair *pair, unsigned int flags)
{
	struct ibv_wc wc;

	CHECK(!receive(&pair->b, 8, 3) && !post(&pair->a, &pair->b, IBV_WR_SEND, flags | IBV_SEND_SIGNALED, 8, 4),
	      "posting");
	CHECK(take(&pair->a).wr_id == 4, "the send");
	wc = take(&pair->b);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS, "the receive");
}

/* Whether an event is there; it is taken and acknowledged. A command makes sure that the device has got so far. */
static bool has_event(struct pair *pair, struct ibv_comp_channel *channel)
{
	struct ibv_device_attr attr;
	struct ibv_cq *cq;
	void *context;

	CHECK(!ibv_query_device(pair->context, &attr), "a command");
	if (ibv_get_cq_event(channel, &cq, &context)) {
		CHECK(errno == EAGAIN, "no event");
		return false;
	}
	CHECK(cq == pair->b.cq, "whose event it is");
	ibv_ack_cq_events(cq, 1);
	return true;
}

/* What ibv_req_notify_cq(3) promises. */
static void arming(struct pair *pair, struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = pair->b.cq;

	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	deliver(pair, 0);
	CHECK(!has_event(pair, channel), "not armed");
	CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_req_notify_cq(cq, 1), "armed for any, then for solicited ones");
	CHECK(!has_event(pair, channel), "what was there before raises no event");
	deliver(pair, 0);
	CHECK(has_event(pair, channel), "any it is");
	deliver(pair, IBV_SEND_SOLICITED);
	CHECK(!has_event(pair, channel), "once");
	CHECK(!ibv_req_notify_cq(cq, 1), "armed for solicited ones");
	deliver(pair, 0);
	CHECK(!has_event(pair, channel), "this was none");
	CHECK(!ibv_resize_cq(cq, cq->cqe + 9), "the queue moves to other memory");
	deliver(pair, IBV_SEND_SOLICITED);
	CHECK(has_event(pair, channel), "it stayed armed");
	CHECK(!ibv_req_notify_cq(cq, 0), "armed again");
	deliver(pair, 0);
	CHECK(has_event(pair, channel), "in the new memory");
}

static void on_alarm(int number)
{
	(void)number;
}

/* qperf ends its tests so. */
static void a_signal_ends_waiting(struct ibv_comp_channel *channel)
{
	struct itimerval soon = {.it_value.tv_usec = 20000, .it_interval.tv_usec = 20000};
	struct itimerval never = {0};
	struct sigaction action = {.sa_handler = on_alarm}; /* not SA_RESTART */
	struct sigaction before;
	struct ibv_cq *cq;
	void *context;

	sigaction(SIGALRM, &action, &before);
	setitimer(ITIMER_REAL, &soon, NULL);
	CHECK(ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EINTR, "a signal ends the waiting");
	setitimer(ITIMER_REAL, &never, NULL);
	sigaction(SIGALRM, &before, NULL);
}

/* An event that nobody has read goes with its queue: who waits for the descriptor does not find it readable. */
static void unread(struct pair *pair, struct ibv_comp_channel *channel)
{
	struct pollfd look = {.fd = channel->fd, .events = POLLIN};

	CHECK(!ibv_req_notify_cq(pair->b.cq, 0), "req_notify");
	CHECK(!receive(&pair->b, 8, 1) && !post(&pair->a, &pair->b, IBV_WR_SEND, 0, 8, 2), "posting");
	CHECK(poll(&look, 1, 20000) == 1, "an event comes");
	close_side(&pair->a);
	CHECK(poll(&look, 1, 0) == 1, "which stays when another queue goes");
	close_side(&pair->b);
	CHECK(poll(&look, 1, 0) == 0, "and goes with its own");
}

static void events(void)
{
	struct pair *pair = make_pair(ibv_create_comp_channel);
	struct ibv_comp_channel *channel = pair->a.cq->channel;
	struct ibv_cq *cq;
	void *context;

	connect_pair(pair);
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	CHECK(ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EAGAIN, "nothing is there yet");
	fcntl(channel->fd, F_SETFL, 0);
	a_signal_ends_waiting(channel);
	CHECK(!ibv_req_notify_cq(pair->b.cq, 0), "req_notify");
	CHECK(!receive(&pair->b, 8, 1) && !post(&pair->a, &pair->b, IBV_WR_SEND, 0, 8, 2), "posting");
	CHECK(!ibv_get_cq_event(channel, &cq, &context) && cq == pair->b.cq, "the event of the receive");
	ibv_ack_cq_events(cq, 1);
	CHECK(take(&pair->b).wr_id == 1, "the receive");
	arming(pair, channel);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY, "the channel is in use");
	unread(pair, channel);
	CHECK(!ibv_destroy_comp_channel(channel), "the channel is destroyed");
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "closing");
	free(pair);
	puts("events");
}

/* -- the end of the device */

static void until_gone(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_async_event event;
	struct ibv_wc wc;
	uint64_t id = 0;
	int count;

	connect_pair(pair);
	puts("waiting");
	do {
		post(&pair->a, &pair->b, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, 1000, id++);
		count = ibv_poll_cq(pair->a.cq, 1, &wc);
	} while (count >= 0);
	CHECK(!ibv_get_async_event(pair->context, &event) && event.event_type == IBV_EVENT_DEVICE_FATAL,
	      "the event is IBV_EVENT_DEVICE_FATAL");
	ibv_ack_async_event(&event);
	CHECK(ibv_get_async_event(pair->context, &event) == -1 && errno == EIO, "no event follows it");
	CHECK(post(&pair->a, &pair->b, IBV_WR_SEND, 0, 8, 0) == EIO, "posting gives EIO");
	CHECK(receive(&pair->a, 8, 0) == EIO, "so does posting a receive");
	CHECK(!ibv_alloc_pd(pair->context) && errno == EIO, "and every command");
	CHECK(ibv_req_notify_cq(pair->a.cq, 0) == EIO, "req_notify as well");
	close_pair(pair);
	puts("gone");
}

int main(int count, char **arguments)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (count > 1 && !strcmp(arguments[1], "until-gone")) {
		until_gone();
		return 0;
	}
	refusals();
	building();
	threads();
	cancelled();
	few_descriptors();
	forks();
	events();
	puts("done");
	return 0;
}
