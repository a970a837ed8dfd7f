// SPDX-License-Identifier: MIT
/* Completion queues: creation and change. What programs do often is in poll.c. */
#include <sys/mman.h>

#include "driver.h"

/* Maps a queue's slots, which lie behind the header: NULL with errno. */
static uint8_t *map_slots(int fd, size_t memory_size, uint32_t offset)
{
	void *slots = mmap(NULL, memory_size - offset, PROT_READ | PROT_WRITE, MAP_SHARED, fd, offset);

	return slots == MAP_FAILED ? NULL : slots;
}

/* Exchanges the memory of a queue that was resized. The page of the header takes the place of the old one in a single
 * step, since other threads look there, without the lock, whether the queue is empty. It is moved there (mremap(2)) from
 * a mapping of its own: a thread that looks meanwhile waits in the kernel. 0, or -1 with errno.
 */
static int exchange_memory(struct sv_cq *self, int fd, const struct sv_resize_cq_response *made)
{
	uint8_t *slots = map_slots(fd, made->memory_size, made->offset);
	void *header;

	if (!slots)
		return -1;
	header = mmap(NULL, made->offset, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (header == MAP_FAILED ||
	    mremap(header, made->offset, made->offset, MREMAP_MAYMOVE | MREMAP_FIXED, self->header) == MAP_FAILED) {
		if (header != MAP_FAILED)
			munmap(header, made->offset);
		munmap(slots, made->memory_size - made->offset);
		return -1;
	}
	munmap(self->slots, self->slots_size);
	self->slots = slots;
	self->slots_size = made->memory_size - made->offset;
	self->mask = made->slots - 1;
	sv_set_head(self, atomic_load_explicit((_Atomic uint64_t *)(self->header + SV_CQ_HEAD), memory_order_relaxed));
	return 0;
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
	self->header = memory;
	self->slots = memory + response.offset;
	self->slots_size = response.memory_size - response.offset;
	self->mask = response.slots - 1;
	self->head = atomic_load_explicit((_Atomic uint64_t *)(memory + SV_CQ_HEAD), memory_order_relaxed);
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
	int error;
	int fd;

	sv_lock_cq(self);
	pthread_mutex_lock(&self->arming); /* the device takes what is armed along to the new memory */
	error = sv_call_fds(self->connection, SV_RESIZE_CQ, &request, sizeof(request), &response, sizeof(response), &fd,
			    1, -1);
	if (!error) {
		if (exchange_memory(self, fd, &response)) {
			sv_lost(self->connection); /* the device writes to memory that is not here */
			error = sv_refuse(ENOMEM, "ibv_resize_cq: the new memory cannot be mapped: %s", strerror(errno));
		} else {
			cq->cqe = response.cqe;
		}
		close(fd);
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
	munmap(self->header, SV_RING_HEADER);
	munmap(self->slots, self->slots_size);
	pthread_mutex_destroy(&self->lock);
	pthread_mutex_destroy(&self->arming);
	pthread_mutex_destroy(&cq->mutex);
	pthread_cond_destroy(&cq->cond);
	free(self);
	return 0;
}
