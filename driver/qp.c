// SPDX-License-Identifier: MIT
/* Queue pairs: creation, attributes, state (ibv_create_qp(3), ibv_modify_qp(3)). Posting is in post.c and build.c. */
#include <sys/mman.h>

#include "driver.h"

#define BIT(opcode) (1U << (opcode))
#define UD_OPERATIONS (BIT(IBV_WR_SEND) | BIT(IBV_WR_SEND_WITH_IMM))
#define UC_OPERATIONS                                                                                                  \
	(UD_OPERATIONS | BIT(IBV_WR_RDMA_WRITE) | BIT(IBV_WR_RDMA_WRITE_WITH_IMM) | BIT(IBV_WR_LOCAL_INV) |            \
	 BIT(IBV_WR_BIND_MW))
#define XRC_OPERATIONS                                                                                                 \
	(UC_OPERATIONS | BIT(IBV_WR_RDMA_READ) | BIT(IBV_WR_ATOMIC_CMP_AND_SWP) | BIT(IBV_WR_ATOMIC_FETCH_AND_ADD) |   \
	 BIT(IBV_WR_SEND_WITH_INV))
#define RC_OPERATIONS (XRC_OPERATIONS | BIT(SV_WR_FLUSH) | BIT(IBV_WR_ATOMIC_WRITE))

/* The operations that a QP of a type may post (IBA table 88), one bit each. */
static uint32_t operations_of(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return RC_OPERATIONS;
	case IBV_QPT_UC:
		return UC_OPERATIONS;
	case IBV_QPT_UD:
		return UD_OPERATIONS;
	case IBV_QPT_XRC_SEND:
		return XRC_OPERATIONS;
	default:
		return 0;
	}
}

/* -- attributes */

static void from_cap(struct sv_qp_cap *to, const struct ibv_qp_cap *from)
{
	to->max_send_wr = from->max_send_wr;
	to->max_recv_wr = from->max_recv_wr;
	to->max_send_sge = from->max_send_sge;
	to->max_recv_sge = from->max_recv_sge;
	to->max_inline_data = from->max_inline_data;
}

static void to_cap(struct ibv_qp_cap *to, const struct sv_qp_cap *from)
{
	to->max_send_wr = from->max_send_wr;
	to->max_recv_wr = from->max_recv_wr;
	to->max_send_sge = from->max_send_sge;
	to->max_recv_sge = from->max_recv_sge;
	to->max_inline_data = from->max_inline_data;
}

void sv_from_ah_attr(struct sv_ah_attr *to, const struct ibv_ah_attr *from)
{
	memcpy(to->dgid, from->grh.dgid.raw, sizeof(to->dgid));
	to->flow_label = from->grh.flow_label;
	to->sgid_index = from->grh.sgid_index;
	to->hop_limit = from->grh.hop_limit;
	to->traffic_class = from->grh.traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->src_path_bits = from->src_path_bits;
	to->static_rate = from->static_rate;
	to->is_global = from->is_global;
	to->port_num = from->port_num;
}

void sv_to_ah_attr(struct ibv_ah_attr *to, const struct sv_ah_attr *from)
{
	memset(to, 0, sizeof(*to));
	memcpy(to->grh.dgid.raw, from->dgid, sizeof(from->dgid));
	to->grh.flow_label = from->flow_label;
	to->grh.sgid_index = from->sgid_index;
	to->grh.hop_limit = from->hop_limit;
	to->grh.traffic_class = from->traffic_class;
	to->dlid = from->dlid;
	to->sl = from->sl;
	to->src_path_bits = from->src_path_bits;
	to->static_rate = from->static_rate;
	to->is_global = from->is_global;
	to->port_num = from->port_num;
}

/* Only what the mask names is read: the rest of the structure need not be set, nor be there in an older program. */
static void from_attr(struct sv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
#define TAKE(bit, member)                                                                                              \
	if (mask & (bit))                                                                                              \
	to->member = from->member
	TAKE(IBV_QP_STATE, qp_state);
	TAKE(IBV_QP_CUR_STATE, cur_qp_state);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_PATH_MIG_STATE, path_mig_state);
	TAKE(IBV_QP_QKEY, qkey);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_RATE_LIMIT, rate_limit);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_ALT_PATH, alt_pkey_index);
	TAKE(IBV_QP_ALT_PATH, alt_port_num);
	TAKE(IBV_QP_ALT_PATH, alt_timeout);
	TAKE(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
#undef TAKE
	if (mask & IBV_QP_CAP)
		from_cap(&to->cap, &from->cap);
	if (mask & IBV_QP_AV)
		sv_from_ah_attr(&to->ah_attr, &from->ah_attr);
	if (mask & IBV_QP_ALT_PATH)
		sv_from_ah_attr(&to->alt_ah_attr, &from->alt_ah_attr);
}

void sv_to_qp_attr(struct ibv_qp_attr *to, const struct sv_qp_attr *from)
{
	to->qp_state = from->qp_state;
	to->cur_qp_state = from->cur_qp_state;
	to->path_mtu = from->path_mtu;
	to->path_mig_state = from->path_mig_state;
	to->qkey = from->qkey;
	to->rq_psn = from->rq_psn;
	to->sq_psn = from->sq_psn;
	to->dest_qp_num = from->dest_qp_num;
	to->qp_access_flags = from->qp_access_flags;
	to_cap(&to->cap, &from->cap);
	sv_to_ah_attr(&to->ah_attr, &from->ah_attr);
	sv_to_ah_attr(&to->alt_ah_attr, &from->alt_ah_attr);
	to->pkey_index = from->pkey_index;
	to->alt_pkey_index = from->alt_pkey_index;
	to->en_sqd_async_notify = from->en_sqd_async_notify;
	to->sq_draining = from->sq_draining;
	to->max_rd_atomic = from->max_rd_atomic;
	to->max_dest_rd_atomic = from->max_dest_rd_atomic;
	to->min_rnr_timer = from->min_rnr_timer;
	to->port_num = from->port_num;
	to->timeout = from->timeout;
	to->retry_cnt = from->retry_cnt;
	to->rnr_retry = from->rnr_retry;
	to->alt_port_num = from->alt_port_num;
	to->alt_timeout = from->alt_timeout;
	to->rate_limit = from->rate_limit;
}

/* -- creation */

/* Fills in what programs see of a queue pair. */
static void describe(struct sv_qp *self, struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr,
		     struct ibv_pd *pd)
{
	struct ibv_qp *qp = &self->qp;

	qp->context = context;
	qp->qp_context = attr->qp_context;
	qp->pd = pd;
	qp->send_cq = attr->send_cq;
	qp->recv_cq = attr->recv_cq;
	qp->srq = attr->srq;
	qp->qp_type = attr->qp_type;
	qp->state = IBV_QPS_RESET;
	self->connection = sv_of(context);
	self->signal_all = attr->sq_sig_all;
	self->allowed = operations_of(attr->qp_type);
	pthread_mutex_init(&qp->mutex, NULL);
	pthread_cond_init(&qp->cond, NULL);
	pthread_mutex_init(&self->sends.lock, NULL);
	pthread_mutex_init(&self->receives.lock, NULL);
	sv_fill_building(self);
}

static void discard(struct sv_qp *self)
{
	if (self->memory)
		munmap(self->memory, self->memory_size);
	pthread_mutex_destroy(&self->qp.mutex);
	pthread_cond_destroy(&self->qp.cond);
	pthread_mutex_destroy(&self->sends.lock);
	pthread_mutex_destroy(&self->receives.lock);
	free(self);
}

/* Asks the device for a queue pair, and maps its memory: 0, or an errno. */
static int create(struct sv_qp *self, const struct sv_create_qp_request *request, struct ibv_qp_cap *cap)
{
	struct sv_create_qp_response response;
	int fd;
	int error = sv_call_fds(self->connection, SV_CREATE_QP, request, sizeof(*request), &response, sizeof(response),
				&fd, 1, -1);

	if (error)
		return error;
	self->memory_size = response.rings.memory_size;
	self->memory = sv_map(fd, self->memory_size);
	if (!self->memory) {
		struct sv_destroy_qp_request back = {.handle = response.handle};
		struct sv_destroy_qp_response ignored;

		sv_call(self->connection, SV_DESTROY_QP, &back, sizeof(back), &ignored, sizeof(ignored));
		return ENOMEM;
	}
	self->qp.handle = response.handle;
	self->qp.qp_num = response.qp_num;
	self->max_inline = response.cap.max_inline_data;
	sv_queue_open(&self->sends, self->memory, &response.rings, true, response.cap.max_send_wr,
		      response.cap.max_send_sge);
	sv_queue_open(&self->receives, self->memory, &response.rings, false, response.cap.max_recv_wr,
		      response.cap.max_recv_sge);
	if (response.send_queue) {
		self->sends.polled = &self->connection->polled[response.send_queue % SV_SEND_QUEUES].index;
		atomic_store(self->sends.polled, (uint32_t)self->sends.tail);
	}
	to_cap(cap, &response.cap);
	sv_enter(self->connection, &self->entry, SV_QP, response.handle);
	return 0;
}

static struct ibv_qp *create_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_xrcd *xrcd,
				const struct ibv_qp_init_attr_ex *attr, struct ibv_qp_cap *cap)
{
	struct sv_create_qp_request request = {
		.pd = sv_pd_handle(pd),
		.send_cq = attr->send_cq ? attr->send_cq->handle : 0,
		.recv_cq = attr->recv_cq ? attr->recv_cq->handle : 0,
		.srq = attr->srq ? attr->srq->handle : 0,
		.xrcd = xrcd ? ((struct sv_xrcd *)xrcd)->handle : 0,
		.qp_type = attr->qp_type,
		.sq_sig_all = !!attr->sq_sig_all,
	};
	struct sv_qp *self = calloc(1, sizeof(*self));
	int error;

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a queue pair");
		return NULL;
	}
	from_cap(&request.cap, &attr->cap);
	describe(self, context, attr, pd);
	error = create(self, &request, cap);
	if (error) {
		discard(self);
		errno = error;
		return NULL;
	}
	return &self->qp;
}

SV_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr)
{
	struct ibv_qp_init_attr_ex attr = {0};

	memcpy(&attr, qp_init_attr, sizeof(*qp_init_attr)); /* the longer structure begins with the shorter one */
	return create_qp(pd->context, pd, NULL, &attr, &qp_init_attr->cap);
}

struct ibv_qp *sv_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			       IBV_QP_INIT_ATTR_CREATE_FLAGS;
	const uint64_t operations = (IBV_QP_EX_WITH_ATOMIC_WRITE << 1) - 1 - IBV_QP_EX_WITH_TSO;
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct ibv_qp *qp;

	if (attr->comp_mask & ~known) {
		sv_refuse(EOPNOTSUPP, "ibv_create_qp_ex: comp_mask=%#x: the device has not %#x", attr->comp_mask,
			  attr->comp_mask & ~known);
		return NULL;
	}
	if (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags) {
		sv_refuse(EOPNOTSUPP, "ibv_create_qp_ex: create_flags=%#x: the device has none", attr->create_flags);
		return NULL;
	}
	if (extended && attr->send_ops_flags & ~operations) {
		sv_refuse(EOPNOTSUPP, "ibv_create_qp_ex: send_ops_flags=%#llx: the device has not %#llx",
			  (unsigned long long)attr->send_ops_flags,
			  (unsigned long long)(attr->send_ops_flags & ~operations));
		return NULL;
	}
	qp = create_qp(context, attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL,
		       attr->comp_mask & IBV_QP_INIT_ATTR_XRCD ? attr->xrcd : NULL, attr, &attr->cap);
	if (qp && extended) {
		((struct sv_qp *)qp)->extended = true;
		((struct sv_qp *)qp)->operations = attr->send_ops_flags;
	}
	return qp;
}

/* A QP by the extended API, where it was made for it. */
SV_EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct sv_qp *self = (struct sv_qp *)qp;

	return self->extended ? &self->ex : NULL;
}

/* An XRC target of somebody else's, by its number. */
struct ibv_qp *sv_open_qp(struct ibv_context *context, struct ibv_qp_open_attr *attr)
{
	const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	struct ibv_qp_init_attr_ex init = {.qp_context = attr->qp_context, .qp_type = attr->qp_type};
	struct sv_open_qp_request request = {.qp_num = attr->qp_num, .qp_type = attr->qp_type};
	struct sv_open_qp_response response;
	struct sv_qp *self;

	if ((attr->comp_mask & needed) != needed || attr->comp_mask & ~(needed | IBV_QP_OPEN_ATTR_CONTEXT)) {
		sv_refuse(EINVAL, "ibv_open_qp: comp_mask=%#x: a number, an XRC domain and a type are needed",
			  attr->comp_mask);
		return NULL;
	}
	self = calloc(1, sizeof(*self));
	if (!self) {
		errno = ENOMEM;
		return NULL;
	}
	request.xrcd = ((struct sv_xrcd *)attr->xrcd)->handle;
	describe(self, context, &init, NULL);
	self->opened = true;
	if (sv_call(self->connection, SV_OPEN_QP, &request, sizeof(request), &response, sizeof(response))) {
		int error = errno;

		discard(self);
		errno = error;
		return NULL;
	}
	self->qp.handle = response.handle;
	self->qp.qp_num = response.qp_num;
	sv_enter(self->connection, &self->entry, SV_QP, response.handle);
	return &self->qp;
}

/* -- change */

/* The device removes completions of a QP that is reset or destroyed: nobody may poll its CQs meanwhile. */
static void lock_cqs(struct sv_qp *self)
{
	struct sv_cq *first = (struct sv_cq *)self->qp.send_cq;
	struct sv_cq *second = (struct sv_cq *)self->qp.recv_cq;

	if (first > second) { /* always in the same order */
		struct sv_cq *other = first;

		first = second;
		second = other;
	}
	if (first)
		sv_lock_cq(first);
	if (second && second != first)
		sv_lock_cq(second);
}

static void unlock_cqs(struct sv_qp *self)
{
	struct sv_cq *first = (struct sv_cq *)self->qp.send_cq;
	struct sv_cq *second = (struct sv_cq *)self->qp.recv_cq;

	if (first)
		sv_unlock_cq(first);
	if (second && second != first)
		sv_unlock_cq(second);
}

/* What programs see of the state. Several threads may ask and change at once. */
static void note_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	__atomic_store_n(&qp->state, state, __ATOMIC_RELAXED);
}

SV_EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
{
	struct sv_qp *self = (struct sv_qp *)qp;
	struct sv_modify_qp_request request = {.handle = qp->handle, .attr_mask = attr_mask};
	struct sv_modify_qp_response response;
	bool purges = attr_mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET;
	int error;

	from_attr(&request.attr, attr, attr_mask);
	if (purges)
		lock_cqs(self);
	error = sv_call(self->connection, SV_MODIFY_QP, &request, sizeof(request), &response, sizeof(response));
	if (purges && !error && self->sends.polled) /* what was posted is dropped */
		atomic_store(self->sends.polled, (uint32_t)atomic_load(self->sends.tail_shared));
	if (purges)
		unlock_cqs(self);
	if (error)
		return error;
	if (attr_mask & IBV_QP_MAX_QP_RD_ATOMIC)
		__atomic_store_n(&self->max_reads, attr->max_rd_atomic, __ATOMIC_RELAXED);
	if (attr_mask & IBV_QP_STATE)
		note_state(qp, attr->qp_state);
	return 0;
}

SV_EXPORT int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
			   struct ibv_qp_init_attr *init_attr)
{
	struct sv_qp *self = (struct sv_qp *)qp;
	struct sv_query_qp_request request = {.handle = qp->handle, .attr_mask = attr_mask};
	struct sv_query_qp_response response;
	int error = sv_call(self->connection, SV_QUERY_QP, &request, sizeof(request), &response, sizeof(response));

	if (error)
		return error;
	memset(attr, 0, sizeof(*attr));
	sv_to_qp_attr(attr, &response.attr);
	init_attr->qp_context = qp->qp_context;
	init_attr->send_cq = qp->send_cq;
	init_attr->recv_cq = qp->recv_cq;
	init_attr->srq = qp->srq;
	init_attr->qp_type = qp->qp_type;
	init_attr->sq_sig_all = self->signal_all;
	init_attr->cap = attr->cap;
	if (attr_mask & IBV_QP_STATE)
		note_state(qp, attr->qp_state);
	return 0;
}

SV_EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct sv_qp *self = (struct sv_qp *)qp;
	struct sv_destroy_qp_request request = {.handle = qp->handle};
	struct sv_destroy_qp_response response;
	int error;

	lock_cqs(self);
	error = sv_call(self->connection, SV_DESTROY_QP, &request, sizeof(request), &response, sizeof(response));
	unlock_cqs(self);
	if (error && error != EIO)
		return error;
	sv_wait_acknowledged(self->connection, &self->entry, &qp->mutex, &qp->cond, NULL, &qp->events_completed);
	discard(self);
	return 0;
}

/* Nothing is promised about the order in which the bytes of a message arrive. */
SV_EXPORT int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp;
	(void)op;
	(void)flags;
	return 0;
}

SV_EXPORT int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	if (!ece->vendor_id)
		return 0;
	return sv_refuse(EOPNOTSUPP, "ibv_set_ece: the device has no enhanced connection options");
}

SV_EXPORT int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp;
	memset(ece, 0, sizeof(*ece));
	return 0;
}

/* -- multicast */

SV_EXPORT int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	struct sv_attach_mcast_request request = {.qp = qp->handle, .lid = lid};

	memcpy(request.gid, gid->raw, sizeof(request.gid));
	return sv_call(sv_of(qp->context), SV_ATTACH_MCAST, &request, sizeof(request), NULL, 0);
}

SV_EXPORT int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	struct sv_detach_mcast_request request = {.qp = qp->handle, .lid = lid};

	memcpy(request.gid, gid->raw, sizeof(request.gid));
	return sv_call(sv_of(qp->context), SV_DETACH_MCAST, &request, sizeof(request), NULL, 0);
}
