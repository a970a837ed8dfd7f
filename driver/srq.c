// SPDX-License-Identifier: MIT
/* Shared receive queues and XRC domains (ibv_create_srq(3), ibv_create_srq_ex(3), ibv_open_xrcd(3)). */
#include <sys/mman.h>

#include "driver.h"

/* Asks the device for a queue, and maps its memory: 0, or an errno. */
static int create(struct sv_srq *self, const struct sv_create_srq_request *request, struct ibv_srq_attr *attr)
{
	struct sv_create_srq_response response;
	int fd;
	int error = sv_call_fds(self->connection, SV_CREATE_SRQ, request, sizeof(*request), &response,
				sizeof(response), &fd, 1, -1);

	if (error)
		return error;
	self->memory_size = response.rings.memory_size;
	self->memory = sv_map(fd, self->memory_size);
	if (!self->memory) {
		struct sv_destroy_srq_request back = {.handle = response.handle};
		struct sv_destroy_srq_response ignored;

		sv_call(self->connection, SV_DESTROY_SRQ, &back, sizeof(back), &ignored, sizeof(ignored));
		return ENOMEM;
	}
	self->srq.handle = response.handle;
	self->srq_num = response.srq_num;
	attr->max_wr = response.max_wr;
	attr->max_sge = response.max_sge;
	sv_queue_open(&self->receives, self->memory, &response.rings, false, response.max_wr, response.max_sge);
	return 0;
}

/* A queue of the basic type, or, with an XRC domain, of the type XRC. */
static struct ibv_srq *create_srq(struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr,
				  enum ibv_srq_type type, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct sv_create_srq_request request = {
		.pd = sv_pd_handle(pd),
		.srq_type = type,
		.xrcd = xrcd ? ((struct sv_xrcd *)xrcd)->handle : 0,
		.cq = cq ? cq->handle : 0,
		.max_wr = attr->max_wr,
		.max_sge = attr->max_sge,
		.srq_limit = attr->srq_limit,
	};
	struct sv_srq *self = calloc(1, sizeof(*self));
	int error;

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a shared receive queue");
		return NULL;
	}
	self->connection = sv_of(pd->context);
	self->srq.context = pd->context;
	self->srq.srq_context = srq_context;
	self->srq.pd = pd;
	error = create(self, &request, attr);
	if (error) {
		free(self);
		errno = error;
		return NULL;
	}
	pthread_mutex_init(&self->srq.mutex, NULL);
	pthread_cond_init(&self->srq.cond, NULL);
	pthread_mutex_init(&self->receives.lock, NULL);
	sv_enter(self->connection, &self->entry, SV_SRQ, self->srq.handle);
	return &self->srq;
}

SV_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return create_srq(pd, attr->srq_context, &attr->attr, IBV_SRQT_BASIC, NULL, NULL);
}

struct ibv_srq *sv_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	const uint32_t known =
		IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	enum ibv_srq_type type = attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? attr->srq_type : IBV_SRQT_BASIC;

	(void)context;
	if (attr->comp_mask & ~known || type > IBV_SRQT_XRC) {
		sv_refuse(EOPNOTSUPP, "ibv_create_srq_ex: comp_mask=%#x, srq_type=%d: the device has not that",
			  attr->comp_mask, (int)type);
		return NULL;
	}
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) {
		sv_refuse(EINVAL, "ibv_create_srq_ex: without a protection domain");
		return NULL;
	}
	return create_srq(attr->pd, attr->srq_context, &attr->attr, type,
			  attr->comp_mask & IBV_SRQ_INIT_ATTR_XRCD ? attr->xrcd : NULL,
			  attr->comp_mask & IBV_SRQ_INIT_ATTR_CQ ? attr->cq : NULL);
}

int sv_get_srq_num(struct ibv_srq *srq, uint32_t *number)
{
	*number = ((struct sv_srq *)srq)->srq_num;
	return 0;
}

/* A queue that changes its size moves to new memory; with its lock held. */
static int modify(struct sv_srq *self, const struct sv_modify_srq_request *request)
{
	struct sv_modify_srq_response response;
	int moves = request->attr_mask & IBV_SRQ_MAX_WR ? 1 : 0;
	uint8_t *memory;
	int fd;
	int error = sv_call_fds(self->connection, SV_MODIFY_SRQ, request, sizeof(*request), &response,
				sizeof(response), &fd, moves, -1);

	if (error || !moves)
		return error;
	memory = sv_map(fd, response.rings.memory_size);
	if (!memory) {
		sv_lost(self->connection); /* the device looks at memory that is not here */
		return ENOMEM;
	}
	munmap(self->memory, self->memory_size);
	self->memory = memory;
	self->memory_size = response.rings.memory_size;
	sv_queue_open(&self->receives, memory, &response.rings, false, response.max_wr, self->receives.max_sge);
	return 0;
}

SV_EXPORT int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask)
{
	struct sv_srq *self = (struct sv_srq *)srq;
	struct sv_modify_srq_request request = {.handle = srq->handle,
						.attr_mask = srq_attr_mask,
						.max_wr = srq_attr->max_wr,
						.srq_limit = srq_attr->srq_limit};
	int error;

	pthread_mutex_lock(&self->receives.lock);
	error = modify(self, &request);
	pthread_mutex_unlock(&self->receives.lock);
	return error;
}

SV_EXPORT int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr)
{
	struct sv_query_srq_request request = {.handle = srq->handle};
	struct sv_query_srq_response response;
	int error = sv_call(sv_of(srq->context), SV_QUERY_SRQ, &request, sizeof(request), &response, sizeof(response));

	if (error)
		return error;
	srq_attr->max_wr = response.max_wr;
	srq_attr->max_sge = response.max_sge;
	srq_attr->srq_limit = response.srq_limit;
	return 0;
}

SV_EXPORT int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct sv_srq *self = (struct sv_srq *)srq;
	struct sv_destroy_srq_request request = {.handle = srq->handle};
	struct sv_destroy_srq_response response;
	int error = sv_call(self->connection, SV_DESTROY_SRQ, &request, sizeof(request), &response, sizeof(response));

	if (error && error != EIO)
		return error;
	sv_wait_acknowledged(self->connection, &self->entry, &srq->mutex, &srq->cond, NULL, &srq->events_completed);
	munmap(self->memory, self->memory_size);
	pthread_mutex_destroy(&self->receives.lock);
	pthread_mutex_destroy(&srq->mutex);
	pthread_cond_destroy(&srq->cond);
	free(self);
	return 0;
}

/* -- XRC domains */

struct ibv_xrcd *sv_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	const uint32_t needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct sv_open_xrcd_request request = {.oflags = attr->oflags, .has_fd = attr->fd >= 0};
	struct sv_open_xrcd_response response;
	struct sv_xrcd *self;

	if (attr->comp_mask != needed) {
		sv_refuse(EINVAL, "ibv_open_xrcd: comp_mask=%#x: it has to be FD and OFLAGS, %#x", attr->comp_mask,
			  needed);
		return NULL;
	}
	if (sv_call_fds(sv_of(context), SV_OPEN_XRCD, &request, sizeof(request), &response, sizeof(response), NULL, 0,
			attr->fd))
		return NULL;
	self = calloc(1, sizeof(*self));
	if (!self) {
		sv_refuse(ENOMEM, "no memory for an XRC domain");
		return NULL;
	}
	self->xrcd.context = context;
	self->handle = response.handle;
	return &self->xrcd;
}

int sv_close_xrcd(struct ibv_xrcd *xrcd)
{
	struct sv_xrcd *self = (struct sv_xrcd *)xrcd;
	struct sv_close_xrcd_request request = {.handle = self->handle};
	int error = sv_call(sv_of(xrcd->context), SV_CLOSE_XRCD, &request, sizeof(request), NULL, 0);

	if (error && error != EIO)
		return error;
	free(self);
	return 0;
}
