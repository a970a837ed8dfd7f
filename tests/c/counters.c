// SPDX-License-Identifier: MIT
/* The whole family of completion counters, ibv_create_comp_cntr(3): what each call gives, and every errno. What counts, and
 * what does not, is in counted.c.
 *
 * Each line that it prints is one statement of the man pages. The last is "done", and the exit status 0.
 */
#include <fcntl.h>

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

/* Programs compiled with an older or a newer structure: what fits is written, and the rest is 0. */
static void caps_of_other_sizes(struct ibv_context *context, const struct ibv_comp_cntr_caps *caps)
{
	struct {
		struct ibv_comp_cntr_caps caps;
		uint64_t newer;
	} longer = {.newer = 1};
	struct ibv_comp_cntr_caps shorter = {.max_counters = 77};

	expect("ask with a longer structure", _ibv_query_comp_cntr_caps(context, &longer.caps, sizeof(longer)), 0);
	CHECK(longer.newer == 0 && !memcmp(&longer.caps, caps, sizeof(*caps)), "the longer structure");
	expect("ask with a shorter one", _ibv_query_comp_cntr_caps(context, &shorter, sizeof(shorter.max_value)), 0);
	CHECK(shorter.max_value == caps->max_value && shorter.max_counters == 77, "the shorter structure");
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

static void states(struct pair *pair)
{
	struct ibv_comp_cntr *counter = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct side side;

	make_side(pair, &side, NULL, 4, NULL);
	to_rtr(pair, &side, &pair->a);
	expect("attach in the state RTR", attach(side.qp, counter, 0, SEND), EINVAL);
	to_rts(&side);
	expect("attach in the state RTS", attach(side.qp, counter, 0, SEND), EINVAL);
	to_state(&side, IBV_QPS_ERR);
	expect("attach in the state ERR", attach(side.qp, counter, 0, SEND), EINVAL);
	to_state(&side, IBV_QPS_RESET);
	expect("attach in the state RESET again", attach(side.qp, counter, 0, SEND), 0);
	close_side(&side);
	expect("destroy when the QP has gone", ibv_destroy_comp_cntr(counter), 0);
}

/* An XRC target that somebody else has made cannot be attached to. */
static void opened_qp(struct pair *pair)
{
	struct ibv_comp_cntr *counter = make(pair->context, IBV_COMP_CNTR_TYPE_WRS);
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(pair->context, &domain);
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *target, *again;

	CHECK(xrcd, "no XRC domain");
	target = ibv_create_qp_ex(pair->context, &init);
	CHECK(target, "no XRC target");
	open.qp_num = target->qp_num;
	again = ibv_open_qp(pair->context, &open);
	CHECK(again, "the XRC target is not opened");
	expect("attach to an XRC target that was opened", attach(again, counter, 0, RECV), EINVAL);
	expect("attach to it where it was created", attach(target, counter, 0, RECV), 0);
	CHECK(!ibv_destroy_qp(again), "closing the QP");
	CHECK(!ibv_destroy_qp(target), "the QP is not destroyed");
	expect("destroy when the QP has gone", ibv_destroy_comp_cntr(counter), 0);
	CHECK(!ibv_close_xrcd(xrcd), "the XRC domain is not closed");
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
	expect("attach the same again", attach(qp, first, 0, SEND), EBUSY);
	expect("attach with an unknown operation and one that is taken", attach(qp, second, 0, SEND | 1U << 31),
	       EOPNOTSUPP);
	expect("attach with an unknown operation and comp_mask", attach(qp, second, 1, SEND | 1U << 31), EINVAL);
	expect("destroy while attached", ibv_destroy_comp_cntr(first), EBUSY);
	expect("set it: it still works", ibv_set_comp_cntr(first, 5), 0);
	counts("after that", first, 5, 0);
	CHECK(!ibv_destroy_qp(qp), "the QP is not destroyed");
	expect("destroy when the QP has gone", ibv_destroy_comp_cntr(first), 0);
	expect("destroy the other", ibv_destroy_comp_cntr(second), 0);
	expect("destroy that of another context", ibv_destroy_comp_cntr(foreign), 0);
	CHECK(!ibv_close_device(other), "the device is not closed");
}

int main(void)
{
	struct pair *pair;
	struct ibv_comp_cntr_caps caps;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pair = make_pair(NULL);
	caps = capabilities(pair->context);
	caps_of_other_sizes(pair->context, &caps);
	creation(pair->context, &caps);
	values(pair->context, &caps);
	attachment(pair, &caps);
	states(pair);
	opened_qp(pair);
	close_pair(pair);
	puts("done");
	return 0;
}
