/* Completion queues: creation and change. What programs do often is in poll.c. */
#include <sys/mman.h>

#include "driver.h"

/* Takes a queue's memory, new or moved. */
static void take_memory(struct sv_cq *self, uint8_t *memory, size_t size, uint32_t offset, uint32_t slots)
{
	self->memory = memory;
	self->memory_size = size;
	self->slots = memory + offset;
	self->mask = slots - 1;
	self->head = *(volatile uint64_t *)(memory + SV_CQ_HEAD);
}

/* `verb`: SV_ASK_CREATE_CQ or SV_ASK_CREATE_CQ_EX. */
static struct sv_cq *create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
			       struct ibv_comp_channel *channel, uint32_t comp_vector, uint32_t flags,
			       unsigned int verb)
{
	struct sv_create_cq_request request = {.cqe = cqe,
					       .comp_vector = comp_vector,
					       .channel = channel ? ((struct sv_channel *)channel)->handle : 0,
					       .flags = flags};
	struct sv_connection *connection = sv_of(context);
	struct sv_create_cq_response response;
	struct sv_cq *self;
	uint8_t *memory;
	int fd;

	if (sv_ask(connection, verb, 0, cqe))
		return NULL;
	if (sv_call_fds(connection, SV_CREATE_CQ, &request, sizeof(request), &response, sizeof(response), &fd, 1, -1))
		return NULL;
	memory = sv_map(fd, response.memory_size);
	self = memory ? calloc(1, sizeof(*self)) : NULL;
	if (!self) {
		struct sv_destroy_cq_request back = {.handle = response.handle};
		struct sv_destroy_cq_response ignored;

		if (memory)
			munmap(memory, response.memory_size);
		sv_call(connection, SV_DESTROY_CQ, &back, sizeof(back), &ignored, sizeof(ignored));
		errno = ENOMEM;
		return NULL;
	}
	take_memory(self, memory, response.memory_size, response.offset, response.slots);
	self->connection = connection;
	self->overwritten = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	self->locks = !(flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	self->cq.context = context;
	self->cq.channel = channel;
	self->cq.cq_context = cq_context;
	self->cq.handle = response.handle;
	self->cq.cqe = response.cqe;
	pthread_mutex_init(&self->lock, NULL);
	pthread_mutex_init(&self->arming, NULL);
	pthread_mutex_init(&self->cq.mutex, NULL);
	pthread_cond_init(&self->cq.cond, NULL);
	sv_fill_polling(self);
	sv_enter(connection, &self->entry, SV_CQ, response.handle);
	if (channel)
		__atomic_add_fetch(&channel->refcnt, 1, __ATOMIC_SEQ_CST);
	return self;
}

SV_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				       struct ibv_comp_channel *channel, int comp_vector)
{
	struct sv_cq *self;

	if (cqe < 0) {
		sv_refuse(EINVAL, "ibv_create_cq: cqe=%d", cqe);
		return NULL;
	}
	self = create_cq(context, cqe, cq_context, channel, comp_vector, 0, SV_ASK_CREATE_CQ);
	return self ? &self->cq : NULL;
}

struct ibv_cq_ex *sv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	const uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			       IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	const uint32_t mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
	struct sv_cq *self;

	if (attr->comp_mask & ~mask) {
		sv_refuse(EINVAL, "ibv_create_cq_ex: comp_mask=%#x is not known", attr->comp_mask);
		return NULL;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD && !((struct sv_pd *)attr->parent_domain)->parent) {
		sv_refuse(EINVAL, "ibv_create_cq_ex: parent_domain is a plain protection domain");
		return NULL;
	}
	if (attr->wc_flags & ~known) {
		sv_refuse(EOPNOTSUPP, "ibv_create_cq_ex: wc_flags=%#llx: the device has not %#llx",
			  (unsigned long long)attr->wc_flags, (unsigned long long)(attr->wc_flags & ~known));
		return NULL;
	}
	self = create_cq(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector,
			 attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? attr->flags : 0, SV_ASK_CREATE_CQ_EX);
	if (!self)
		return NULL;
	self->wc_flags = attr->wc_flags;
	return &self->ex;
}

SV_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	struct sv_resize_cq_request request = {.handle = cq->handle, .cqe = cqe};
	struct sv_resize_cq_response response;
	struct sv_old *old = malloc(sizeof(*old));
	uint8_t *memory;
	int error;
	int fd;

	if (!old)
		return ENOMEM;
	sv_lock_cq(self);
	pthread_mutex_lock(&self->arming); /* the device takes what is armed along to the new memory */
	error = sv_call_fds(self->connection, SV_RESIZE_CQ, &request, sizeof(request), &response, sizeof(response), &fd,
			    1, -1);
	memory = error ? NULL : sv_map(fd, response.memory_size);
	if (memory) {
		/* A thread may be looking at the old memory, without the lock, whether something is there. */
		*old = (struct sv_old){self->old, self->memory, self->memory_size};
		self->old = old;
		take_memory(self, memory, response.memory_size, response.offset, response.slots);
		cq->cqe = response.cqe;
	} else {
		free(old);
		if (!error)
			sv_lost(self->connection); /* the device writes to memory that is not here */
		error = error ? error : ENOMEM;
	}
	pthread_mutex_unlock(&self->arming);
	sv_unlock_cq(self);
	return error;
}

int sv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	struct sv_modify_cq_request request = {
		.handle = cq->handle, .count = attr->moderate.cq_count, .period = attr->moderate.cq_period};

	if (attr->attr_mask != IBV_CQ_ATTR_MODERATE)
		return sv_refuse(EINVAL, "ibv_modify_cq: attr_mask=%#x: IBV_CQ_ATTR_MODERATE is all there is",
				 attr->attr_mask);
	return sv_call(self->connection, SV_MODIFY_CQ, &request, sizeof(request), NULL, 0);
}

SV_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct sv_cq *self = (struct sv_cq *)cq;
	struct sv_destroy_cq_request request = {.handle = cq->handle};
	struct sv_destroy_cq_response response;
	int error = sv_call(self->connection, SV_DESTROY_CQ, &request, sizeof(request), &response, sizeof(response));

	if (error && error != EIO)
		return error;
	sv_wait_acknowledged(self->connection, &self->entry, &cq->mutex, &cq->cond, &cq->comp_events_completed,
			     &cq->async_events_completed);
	if (cq->channel)
		__atomic_sub_fetch(&cq->channel->refcnt, 1, __ATOMIC_SEQ_CST);
	munmap(self->memory, self->memory_size);
	while (self->old) {
		struct sv_old *old = self->old;

		self->old = old->next;
		munmap(old->memory, old->size);
		free(old);
	}
	pthread_mutex_destroy(&self->lock);
	pthread_mutex_destroy(&self->arming);
	pthread_mutex_destroy(&cq->mutex);
	pthread_cond_destroy(&cq->cond);
	free(self);
	return 0;
}
