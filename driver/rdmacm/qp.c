// SPDX-License-Identifier: MIT
/* The queue pair of an identifier, and what belongs to it (rdma_create_qp(3), rdma_create_srq(3)). */
#include "rdmacm.h"

/* Attributes for the next state, from the device. */
static int query_attr(struct sv_cm_id *self, enum ibv_qp_state state, struct ibv_qp_attr *attr, int *mask)
{
	struct sv_cm_init_qp_attr_request request = {.id = self->handle, .qp_state = state};
	struct sv_cm_init_qp_attr_response response;

	if (sv_cm_call(self->connection, SV_CM_INIT_QP_ATTR, &request, sizeof(request), &response, sizeof(response)))
		return -1;
	sv_to_qp_attr(attr, &response.attr);
	*mask = response.attr_mask;
	return 0;
}

SV_EXPORT int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask)
{
	return query_attr(sv_cm(id), qp_attr->qp_state, qp_attr, qp_attr_mask);
}

static int move(struct sv_cm_id *self, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	int mask;

	if (query_attr(self, state, &attr, &mask))
		return -1;
	return sv_cm_result(ibv_modify_qp(qp, &attr, mask));
}

/* Moves the queue pair of a connection to RTS; where the program has its own there is nothing to do. */
int sv_cm_make_ready(struct sv_cm_id *self)
{
	struct ibv_qp *qp = self->id.qp;

	if (!qp)
		return 0;
	return move(self, qp, IBV_QPS_INIT) || move(self, qp, IBV_QPS_RTR) || move(self, qp, IBV_QPS_RTS) ? -1 : 0;
}

int sv_cm_fail_qp(struct sv_cm_id *self)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	return self->id.qp ? sv_cm_result(ibv_modify_qp(self->id.qp, &attr, IBV_QP_STATE)) : 0;
}

/* -- completion queues that an identifier makes itself */

static void destroy_cqs(struct rdma_cm_id *id)
{
	if (id->recv_cq)
		ibv_destroy_cq(id->recv_cq);
	if (id->send_cq && id->send_cq != id->recv_cq)
		ibv_destroy_cq(id->send_cq);
	if (id->recv_cq_channel)
		ibv_destroy_comp_channel(id->recv_cq_channel);
	if (id->send_cq_channel && id->send_cq_channel != id->recv_cq_channel)
		ibv_destroy_comp_channel(id->send_cq_channel);
	id->recv_cq = id->send_cq = NULL;
	id->recv_cq_channel = id->send_cq_channel = NULL;
}

/* A completion queue with a channel of its own. */
static int create_cq(struct rdma_cm_id *id, uint32_t entries, struct ibv_cq **cq, struct ibv_comp_channel **channel)
{
	*channel = ibv_create_comp_channel(id->verbs);
	if (!*channel)
		return -1;
	*cq = ibv_create_cq(id->verbs, entries, id, *channel, 0);
	return *cq ? 0 : -1;
}

/* Completion queues of so many entries; 0: none is needed. */
static int create_cqs(struct rdma_cm_id *id, uint32_t sends, uint32_t receives)
{
	if ((receives && create_cq(id, receives, &id->recv_cq, &id->recv_cq_channel)) ||
	    (sends && create_cq(id, sends, &id->send_cq, &id->send_cq_channel))) {
		int error = errno;

		destroy_cqs(id);
		return sv_cm_result(error);
	}
	return 0;
}

/* -- queue pairs */

/* A new queue pair on its way: a connection's to INIT, one for datagrams to RTS. */
static int begin(struct sv_cm_id *self, struct ibv_qp *qp)
{
	if (move(self, qp, IBV_QPS_INIT))
		return -1;
	if (self->id.qp_type != IBV_QPT_UD)
		return 0;
	return move(self, qp, IBV_QPS_RTR) || move(self, qp, IBV_QPS_RTS) ? -1 : 0;
}

/* Whether the attributes fit the identifier. */
static int check_qp(const struct rdma_cm_id *id, const struct ibv_qp_init_attr_ex *attr)
{
	if (!id->verbs)
		return sv_refuse(EINVAL, "rdma_create_qp: the identifier is bound to no device");
	if (id->qp)
		return sv_refuse(EINVAL, "rdma_create_qp: the identifier has a queue pair");
	if (attr->comp_mask & IBV_QP_INIT_ATTR_PD && attr->pd && attr->pd->context != id->verbs)
		return sv_refuse(EINVAL, "rdma_create_qp: the protection domain is of another context");
	if ((id->send_cq && attr->send_cq && id->send_cq != attr->send_cq) ||
	    (id->recv_cq && attr->recv_cq && id->recv_cq != attr->recv_cq))
		return sv_refuse(EINVAL, "rdma_create_qp: the identifier has other completion queues");
	return 0;
}

SV_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp = NULL;
	int error = check_qp(id, attr);

	if (error)
		return sv_cm_result(error);
	if (!(attr->comp_mask & IBV_QP_INIT_ATTR_PD) || !attr->pd) {
		attr->comp_mask |= IBV_QP_INIT_ATTR_PD;
		attr->pd = id->pd;
	}
	if (create_cqs(id, attr->send_cq || id->send_cq ? 0 : attr->cap.max_send_wr,
		       attr->recv_cq || id->recv_cq ? 0 : attr->cap.max_recv_wr))
		return -1;
	if (!attr->send_cq)
		attr->send_cq = id->send_cq;
	if (!attr->recv_cq)
		attr->recv_cq = id->recv_cq;
	if (!attr->srq)
		attr->srq = id->srq;
	qp = ibv_create_qp_ex(id->verbs, attr);
	if (!qp || begin(sv_cm(id), qp)) {
		error = errno;
		if (qp)
			ibv_destroy_qp(qp);
		destroy_cqs(id);
		return sv_cm_result(error);
	}
	id->pd = qp->pd;
	id->qp = qp;
	return 0;
}

SV_EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
{
	struct ibv_qp_init_attr_ex attr;
	int result;

	memset(&attr, 0, sizeof(attr));
	memcpy(&attr, qp_init_attr, sizeof(*qp_init_attr)); /* the one is how the other begins */
	attr.comp_mask = IBV_QP_INIT_ATTR_PD;
	attr.pd = pd ? pd : id->pd;
	result = rdma_create_qp_ex(id, &attr);
	memcpy(qp_init_attr, &attr, sizeof(*qp_init_attr));
	return result;
}

SV_EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
	ibv_destroy_qp(id->qp);
	id->qp = NULL;
	destroy_cqs(id);
}

/* -- shared receive queues */

SV_EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq *srq;

	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || !id->verbs)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_create_srq_ex: a type and a device are needed"));
	if (attr->srq_type != IBV_SRQT_BASIC)
		return sv_cm_result(sv_refuse(
			EOPNOTSUPP, "rdma_create_srq_ex: srq_type=%d: connections are of type RC", attr->srq_type));
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd) {
		attr->pd = id->pd;
		attr->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
	}
	srq = ibv_create_srq_ex(id->verbs, attr);
	if (!srq)
		return -1;
	if (!id->pd)
		id->pd = attr->pd;
	id->srq = srq;
	return 0;
}

SV_EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex all;
	int result;

	memset(&all, 0, sizeof(all));
	memcpy(&all, attr, sizeof(*attr));
	all.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
	all.srq_type = IBV_SRQT_BASIC;
	all.pd = pd;
	result = rdma_create_srq_ex(id, &all);
	memcpy(attr, &all, sizeof(*attr));
	return result;
}

SV_EXPORT void rdma_destroy_srq(struct rdma_cm_id *id)
{
	ibv_destroy_srq(id->srq);
	id->srq = NULL;
}
