/* The whole family of completion counters, ibv_create_comp_cntr(3): what each call gives, and every errno.
 *
 * Each line that it prints is one statement of the man pages. The last is "done", and the exit status 0.
 */
#include "counting.h"

/* The errno of ibv_create_comp_cntr, which has to fail. */
static int create_error(struct ibv_context *context, uint32_t comp_mask, int type, uint32_t flags)
{
	struct ibv_comp_cntr_init_attr attr = {comp_mask, type, flags};

	errno = 0;
	return ibv_create_comp_cntr(context, &attr) ? 0 : errno;
}

/* -- without traffic */

static struct ibv_comp_cntr_caps capabilities(struct ibv_context *context)
{
	struct ibv_comp_cntr_caps caps;

	CHECK(!ibv_query_comp_cntr_caps(context, &caps), "ibv_query_comp_cntr_caps");
	printf("ibv_query_comp_cntr_caps: max_value %#llx, max_counters %u, supported_qp_attach_ops %#x\n",
	       (unsigned long long)caps.max_value, caps.max_counters, caps.supported_qp_attach_ops);
	return caps;
}

static void creation(struct ibv_context *context, const struct ibv_comp_cntr_caps *caps)
{
	struct ibv_comp_cntr **all = calloc(caps->max_counters + 1, sizeof(*all));
	struct ibv_comp_cntr_init_attr attr = {0};
	uint32_t made = 0;

	expect("create with an unknown bit of comp_mask", create_error(context, 1, 0, 0), EINVAL);
	expect("create with flags", create_error(context, 0, 0, 1), EINVAL);
	expect("create with an unknown type", create_error(context, 0, 2, 0), EOPNOTSUPP);
	while (made <= caps->max_counters && (all[made] = ibv_create_comp_cntr(context, &attr)))
		made++;
	expect("create one more than max_counters", made == caps->max_counters ? errno : 0, ENOMEM);
	while (made)
		CHECK(!ibv_destroy_comp_cntr(all[--made]), "ibv_destroy_comp_cntr");
	free(all);
}

static void values(struct ibv_context *context, const struct ibv_comp_cntr_caps *caps)
{
	struct ibv_comp_cntr *counter = make(context, IBV_COMP_CNTR_TYPE_WRS);

	counts("a new counter", counter, 0, 0);
	expect("set to 40", ibv_set_comp_cntr(counter, 40), 0);
	expect("increment by 2", ibv_inc_comp_cntr(counter, 2), 0);
	expect("set errors to 6", ibv_set_err_comp_cntr(counter, 6), 0);
	expect("increment errors by 1", ibv_inc_err_comp_cntr(counter, 1), 0);
	counts("after that", counter, 42, 7);
	if (caps->max_value != UINT64_MAX) {
		expect("set beyond max_value", ibv_set_comp_cntr(counter, caps->max_value + 1), EINVAL);
		expect("increment by more than max_value", ibv_inc_comp_cntr(counter, caps->max_value + 1), EINVAL);
		expect("set errors beyond max_value", ibv_set_err_comp_cntr(counter, caps->max_value + 1), EINVAL);
		expect("increment errors by more than max_value", ibv_inc_err_comp_cntr(counter, caps->max_value + 1),
		       EINVAL);
		counts("after that it is as before", counter, 42, 7);
	}
	expect("set to max_value", ibv_set_comp_cntr(counter, caps->max_value), 0);
	expect("set errors to max_value", ibv_set_err_comp_cntr(counter, caps->max_value), 0);
	expect("increment by 3", ibv_inc_comp_cntr(counter, 3), 0);
	expect("increment errors by 1", ibv_inc_err_comp_cntr(counter, 1), 0);
	counts("max_value is followed by 0", counter, 2, 0);
	expect("destroy", ibv_destroy_comp_cntr(counter), 0);
}

static void attachment(struct pair *pair, const struct ibv_comp_cntr_caps *caps)
{
	struct ibv_context *other = open_first();
	struct ibv_comp_cntr *foreign = make(other, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *first = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_comp_cntr *second = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_qp_init_attr init = {
		.send_cq = pair->a.cq, .recv_cq = pair->a.cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pair->pd, &init);

	CHECK(qp, "no QP");
	expect("attach with op_mask 0", attach(qp, first, 0, 0), EINVAL);
	expect("attach with an unknown bit of comp_mask", attach(qp, first, 1, SEND), EINVAL);
	expect("attach a counter of another context", attach(qp, foreign, 0, SEND), EINVAL);
	expect("attach with an unknown operation", attach(qp, first, 0, SEND | 1U << 31), EOPNOTSUPP);
	if (caps->supported_qp_attach_ops != 0x3f)
		expect("attach with an operation that the device has not",
		       attach(qp, first, 0, 0x3f & ~caps->supported_qp_attach_ops), EOPNOTSUPP);
	expect("attach to SEND and RECV, in the state RESET", attach(qp, first, 0, SEND | RECV), 0);
	expect("attach another to RECV and RDMA_READ", attach(qp, second, 0, RECV | READ), EBUSY);
	expect("attach another to RDMA_READ: nothing was attached before", attach(qp, second, 0, READ), 0);
	expect("destroy while attached", ibv_destroy_comp_cntr(first), EBUSY);
	expect("attach in the state RTS", attach(pair->a.qp, second, 0, SEND), EINVAL);
	CHECK(!ibv_destroy_qp(qp), "the QP is not destroyed");
	expect("destroy when the QP has gone", ibv_destroy_comp_cntr(first), 0);
	expect("destroy the other", ibv_destroy_comp_cntr(second), 0);
	expect("destroy that of another context", ibv_destroy_comp_cntr(foreign), 0);
	CHECK(!ibv_close_device(other), "the device is not closed");
}

/* -- with traffic */

struct counters {
	struct ibv_comp_cntr *send, *recv, *read, *remote_read, *write, *remote_write, *bytes;
};

static void attach_all(struct pair *pair, struct counters *c)
{
	struct ibv_context *context = pair->context;

	c->send = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->recv = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->read = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->remote_read = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->write = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->remote_write = make(context, IBV_COMP_CNTR_TYPE_WRS);
	c->bytes = make(context, IBV_COMP_CNTR_TYPE_BYTES);
	expect("attach to SEND, in the state INIT", attach(pair->a.qp, c->send, 0, SEND), 0);
	expect("attach to RDMA_READ", attach(pair->a.qp, c->read, 0, READ), 0);
	expect("attach to RDMA_WRITE", attach(pair->a.qp, c->write, 0, WRITE), 0);
	expect("attach to REMOTE_RDMA_READ", attach(pair->b.qp, c->remote_read, 0, REMOTE_READ), 0);
	expect("attach to REMOTE_RDMA_WRITE", attach(pair->b.qp, c->remote_write, 0, REMOTE_WRITE), 0);
	expect("attach to RECV, counting bytes", attach(pair->b.qp, c->bytes, 0, RECV), 0);
	expect("attach to RECV of the other QP", attach(pair->a.qp, c->recv, 0, RECV), 0);
}

static void traffic(struct pair *pair, struct counters *c)
{
	struct side *a = &pair->a;
	struct side *b = &pair->b;

	for (int i = 0; i < 3; i++)
		CHECK(!receive(b, 4096, i), "post_recv");
	CHECK(!post(a, b, IBV_WR_SEND, IBV_SEND_SIGNALED, 1000, 1), "post_send");
	CHECK(!post(a, b, IBV_WR_SEND, 0, 24, 2), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 5000, 3), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE, 0, 0, 4), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 10, 5), "post_send");
	CHECK(!post(a, b, IBV_WR_RDMA_READ, 0, 3000, 6), "post_send");
	CHECK(!post(a, b, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_SEND_SIGNALED, 8, 7), "post_send");
	CHECK(take(a).wr_id == 1 && take(a).wr_id == 7, "the completions of what was signaled");
	counts("two SENDs, one of them unsignaled", c->send, 2, 0);
	counts("three WRITEs", c->write, 3, 0);
	counts("the same, at the peer", c->remote_write, 3, 0);
	counts("a READ and an atomic", c->read, 2, 0);
	counts("the same, at the peer", c->remote_read, 2, 0);
	counts("bytes of three receives: 1000, 24, and 10 of a WRITE with immediate", c->bytes, 1034, 0);
	for (int i = 0; i < 3; i++)
		CHECK(take(b).status == IBV_WC_SUCCESS, "a receive");
}

static void errors(struct pair *pair, struct counters *c)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	CHECK(!receive(&pair->a, 100, 20) && !receive(&pair->a, 100, 21), "post_recv");
	CHECK(!ibv_modify_qp(pair->a.qp, &attr, IBV_QP_STATE), "the QP does not go to ERR");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_SEND, 0, 1, 22), "post_send in ERR");
	counts("a SEND that is flushed, unsignaled", c->send, 2, 1);
	counts("two receives that are flushed", c->recv, 0, 2);
	counts("nothing else moves", c->write, 3, 0);
}

static void destroy_all(struct counters *c)
{
	struct ibv_comp_cntr *all[] = {c->send, c->recv, c->read, c->remote_read, c->write, c->remote_write, c->bytes};

	counts("a QP that has gone leaves its counts", c->send, 2, 1);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		CHECK(!ibv_destroy_comp_cntr(all[i]), "ibv_destroy_comp_cntr");
}

int main(void)
{
	struct pair *pair;
	struct counters all;
	struct ibv_comp_cntr_caps caps;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pair = make_pair(NULL);
	caps = capabilities(pair->context);
	creation(pair->context, &caps);
	values(pair->context, &caps);
	attach_all(pair, &all);
	connect_pair(pair);
	attachment(pair, &caps);
	traffic(pair, &all);
	errors(pair, &all);
	close_side(&pair->a);
	close_side(&pair->b);
	destroy_all(&all);
	CHECK(!ibv_dealloc_pd(pair->pd) && !ibv_close_device(pair->context), "closing");
	free(pair);
	puts("done");
	return 0;
}
