// SPDX-License-Identifier: MIT
/* The table of operations: what the static functions of verbs.h call. What is not in it answers EOPNOTSUPP there. */
#include "driver.h"

/* What verbs.h calls without looking, for things that the device has not. */
static int no_flow(struct ibv_flow *flow)
{
	(void)flow;
	return EOPNOTSUPP;
}

void sv_fill_operations(struct verbs_context *verbs)
{
	struct ibv_context_ops *ops = &verbs->context.ops;

	ops->alloc_mw = sv_alloc_mw;
	ops->bind_mw = sv_bind_mw;
	ops->dealloc_mw = sv_dealloc_mw;
	ops->poll_cq = sv_poll_cq;
	ops->req_notify_cq = sv_req_notify_cq;
	ops->post_srq_recv = sv_post_srq_recv;
	ops->post_send = sv_post_send;
	ops->post_recv = sv_post_recv;

	verbs->query_port = sv_query_port_ex;
	verbs->query_device_ex = sv_query_device_ex;
	verbs->query_rt_values = sv_query_rt_values;
	verbs->advise_mr = sv_advise_mr;
	verbs->alloc_null_mr = sv_alloc_null_mr;
	verbs->reg_dm_mr = sv_reg_dm_mr;
	verbs->alloc_dm = sv_alloc_dm;
	verbs->free_dm = sv_free_dm;
	verbs->alloc_parent_domain = sv_alloc_parent_domain;
	verbs->alloc_td = sv_alloc_td;
	verbs->dealloc_td = sv_dealloc_td;
	verbs->create_cq_ex = sv_create_cq_ex;
	verbs->modify_cq = sv_modify_cq;
	verbs->create_qp_ex = sv_create_qp_ex;
	verbs->open_qp = sv_open_qp;
	verbs->create_srq_ex = sv_create_srq_ex;
	verbs->get_srq_num = sv_get_srq_num;
	verbs->open_xrcd = sv_open_xrcd;
	verbs->close_xrcd = sv_close_xrcd;
	verbs->ibv_destroy_flow = no_flow;
}
