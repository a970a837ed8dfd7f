// SPDX-License-Identifier: MIT
/* Every verb that a plan of faults can make fail in a C program (docs/faults.md): the plan lets each fail once, with
 * E2BIG, and the second call works. One line for each verb, then "done".
 */
#include <fcntl.h>

#include "pair.h"
#include "softverbs_comp_cntr.h"

/* `call` gives an errno, or 0. */
#define ONCE(verb, call)                                                                                               \
	do {                                                                                                           \
		int error_ = (call);                                                                                   \
		CHECK(error_ == E2BIG, "%s is to fail, but gives %d", verb, error_);                                   \
		error_ = (call);                                                                                       \
		CHECK(!error_, "%s is to work then, but gives %d", verb, error_);                                      \
		puts(verb);                                                                                            \
	} while (0)
/* The same of a call that gives a pointer, and of one that gives -1. */
#define MADE(verb, call) ONCE(verb, (call) ? 0 : errno)
#define MINUS(verb, call) ONCE(verb, (call) < 0 ? errno : 0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp, *datagrams;
static struct ibv_srq *srq;
static unsigned char memory[4096];

static void device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_query_device_ex_input *nothing = NULL;
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	struct ibv_device_attr_ex more;
	struct ibv_gid_entry entry, entries[8];
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	__be16 pkey;

	MADE("open_device", context = ibv_open_device(list[0]));
	ibv_free_device_list(list);
	ONCE("query_device", ibv_query_device(context, &attr));
	ONCE("query_device_ex", ibv_query_device_ex(context, nothing, &more));
	ONCE("query_port", ibv_query_port(context, 1, &port));
	MINUS("query_gid", ibv_query_gid(context, 1, 0, &gid));
	ONCE("query_gid_ex", ibv_query_gid_ex(context, 1, 0, &entry, 0));
	ONCE("query_gid_table", -(int)(ibv_query_gid_table(context, entries, 8, 0) < 0 ? -E2BIG : 0));
	MINUS("query_pkey", ibv_query_pkey(context, 1, 0, &pkey));
	MINUS("get_pkey_index", ibv_get_pkey_index(context, 1, pkey));
	ONCE("query_rt_values_ex", ibv_query_rt_values_ex(context, &values));
}

static void domains(void)
{
	struct ibv_parent_domain_init_attr parent = {0};
	struct ibv_td_init_attr thread = {0};
	struct ibv_pd *above, *imported;
	struct ibv_td *td;

	MADE("alloc_pd", pd = ibv_alloc_pd(context));
	MADE("alloc_td", td = ibv_alloc_td(context, &thread));
	parent.pd = pd;
	parent.td = td;
	MADE("alloc_parent_domain", above = ibv_alloc_parent_domain(context, &parent));
	ONCE("dealloc_pd", ibv_dealloc_pd(above));
	ONCE("dealloc_td", ibv_dealloc_td(td));
	MADE("import_pd", imported = ibv_import_pd(context, pd->handle));
	ibv_unimport_pd(imported);
}

static void regions(void)
{
	struct ibv_alloc_dm_attr attr = {.length = 4096};
	struct ibv_sge sge = {(uintptr_t)memory, 8, 0};
	struct ibv_mr *one, *null, *imported;
	struct ibv_dm *dm, *same;
	struct ibv_mw *mw;

	MADE("reg_mr", mr = ibv_reg_mr(pd, memory, sizeof(memory),
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND |
					       IBV_ACCESS_ON_DEMAND));
	sge.lkey = mr->lkey;
	MADE("alloc_null_mr", null = ibv_alloc_null_mr(pd));
	ONCE("dereg_mr", ibv_dereg_mr(null));
	MADE("import_mr", imported = ibv_import_mr(pd, mr->handle));
	ibv_unimport_mr(imported);
	ONCE("rereg_mr", ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) ? errno : 0);
	ONCE("advise_mr", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	MADE("alloc_dm", dm = ibv_alloc_dm(context, &attr));
	ONCE("memcpy_to_dm", ibv_memcpy_to_dm(dm, 0, memory, 8));
	ONCE("memcpy_from_dm", ibv_memcpy_from_dm(memory, dm, 0, 8));
	MADE("import_dm", same = ibv_import_dm(context, dm->handle));
	ibv_unimport_dm(same);
	MADE("reg_dm_mr", one = ibv_reg_dm_mr(pd, dm, 0, 8, IBV_ACCESS_ZERO_BASED));
	CHECK(!ibv_dereg_mr(one), "dereg_mr");
	ONCE("free_dm", ibv_free_dm(dm));
	MADE("alloc_mw", mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	ONCE("dealloc_mw", ibv_dealloc_mw(mw));
}

static void queues(void)
{
	struct ibv_cq_init_attr_ex init = {.cqe = 8};
	struct ibv_modify_cq_attr moderate = {.attr_mask = IBV_CQ_ATTR_MODERATE};
	struct ibv_comp_channel *other;
	struct ibv_cq_ex *ex;

	MADE("create_comp_channel", channel = ibv_create_comp_channel(context));
	CHECK((other = ibv_create_comp_channel(context)), "a channel");
	ONCE("destroy_comp_channel", ibv_destroy_comp_channel(other));
	MADE("create_cq", cq = ibv_create_cq(context, 8, NULL, channel, 0));
	MADE("create_cq_ex", ex = ibv_create_cq_ex(context, &init));
	ONCE("destroy_cq", ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	ONCE("resize_cq", ibv_resize_cq(cq, 16));
	ONCE("modify_cq", ibv_modify_cq(cq, &moderate));
	ONCE("req_notify_cq", ibv_req_notify_cq(cq, 0));
}

static void receivers(void)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_recv_wr wr = {.wr_id = 5};
	struct ibv_recv_wr *bad;
	struct ibv_srq_attr attr = {.srq_limit = 1};
	struct ibv_xrcd *xrcd;
	struct ibv_srq *other;

	MADE("create_srq", srq = ibv_create_srq(pd, &init));
	ONCE("modify_srq", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	ONCE("query_srq", ibv_query_srq(srq, &attr));
	ONCE("post_srq_recv", ibv_post_srq_recv(srq, &wr, &bad));
	CHECK((other = ibv_create_srq(pd, &init)), "an SRQ");
	ONCE("destroy_srq", ibv_destroy_srq(other));
	MADE("open_xrcd", xrcd = ibv_open_xrcd(context, &domain));
	ONCE("close_xrcd", ibv_close_xrcd(xrcd));
}

/* A target of XRC, which can be opened. */
static void targets(void)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_qp_init_attr_ex init = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *target, *opened;

	CHECK((init.xrcd = ibv_open_xrcd(context, &domain)), "a domain");
	CHECK((target = ibv_create_qp_ex(context, &init)), "a target");
	attr.xrcd = init.xrcd;
	attr.qp_num = target->qp_num;
	MADE("open_qp", opened = ibv_open_qp(context, &attr));
	CHECK(!ibv_destroy_qp(opened) && !ibv_destroy_qp(target) && !ibv_close_xrcd(init.xrcd), "closing");
}

static void pairs(void)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 16}, .qp_type = IBV_QPT_RC, .sq_sig_all = 1};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 1};
	struct ibv_qp_init_attr queried;
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
	union ibv_gid group = {.raw = {[10] = 0xff, 0xff, 239, 1, 2, 3}};
	struct ibv_qp *other;
	struct ibv_ah *ah;

	MADE("create_qp", qp = ibv_create_qp(pd, &init));
	ONCE("modify_qp", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
						       IBV_QP_ACCESS_FLAGS));
	ONCE("query_qp", ibv_query_qp(qp, &attr, IBV_QP_STATE, &queried));
	CHECK((other = ibv_create_qp(pd, &init)), "a QP");
	ONCE("destroy_qp", ibv_destroy_qp(other));
	CHECK(!ibv_query_gid(context, 1, 0, &to.grh.dgid), "a GID");
	MADE("create_ah", ah = ibv_create_ah(pd, &to));
	ONCE("destroy_ah", ibv_destroy_ah(ah));
	init.qp_type = IBV_QPT_UD;
	CHECK((datagrams = ibv_create_qp(pd, &init)), "a QP for datagrams");
	ONCE("attach_mcast", ibv_attach_mcast(datagrams, &group, 0));
	ONCE("detach_mcast", ibv_detach_mcast(datagrams, &group, 0));
}

/* The QP is its own peer. */
static void traffic(void)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 1};
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {.bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 8}};
	struct ibv_send_wr send = {.wr_id = 1, .opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_recv_wr receive = {.wr_id = 2}, *bad;
	struct ibv_cq *from;
	struct ibv_wc wc;
	int found = 0;
	void *ignored;

	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 1;
	attr.ah_attr.is_global = attr.ah_attr.port_num = 1;
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "a GID");
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	ONCE("post_recv", ibv_post_recv(qp, &receive, &bad));
	ONCE("post_send", ibv_post_send(qp, &send, &bad_send));
	MINUS("get_cq_event", ibv_get_cq_event(channel, &from, &ignored));
	ibv_ack_cq_events(from, 1);
	MINUS("poll_cq", ibv_poll_cq(cq, 0, &wc));
	while (found < 2)
		found += ibv_poll_cq(cq, 1, &wc);
	ONCE("bind_mw", ibv_bind_mw(qp, mw, &bind));
}

static void counters(void)
{
	struct ibv_comp_cntr_init_attr init = {0};
	struct ibv_qp_attach_comp_cntr_attr attach = {.op_mask = 1};
	struct ibv_comp_cntr_caps caps;
	struct ibv_comp_cntr *counter, *other;

	ONCE("query_comp_cntr_caps", ibv_query_comp_cntr_caps(context, &caps));
	MADE("create_comp_cntr", counter = ibv_create_comp_cntr(context, &init));
	ONCE("set_comp_cntr", ibv_set_comp_cntr(counter, 1));
	ONCE("set_err_comp_cntr", ibv_set_err_comp_cntr(counter, 1));
	ONCE("inc_comp_cntr", ibv_inc_comp_cntr(counter, 1));
	ONCE("inc_err_comp_cntr", ibv_inc_err_comp_cntr(counter, 1));
	CHECK((other = ibv_create_comp_cntr(context, &init)), "a counter");
	ONCE("destroy_comp_cntr", ibv_destroy_comp_cntr(other));
	ONCE("qp_attach_comp_cntr", ibv_qp_attach_comp_cntr(datagrams, counter, &attach));
}

int main(void)
{
	device();
	domains();
	regions();
	queues();
	receivers();
	pairs();
	targets();
	counters();
	traffic();
	puts("done");
	return 0;
}
