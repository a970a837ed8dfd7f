// SPDX-License-Identifier: MIT
/* Completion counters (ibv_create_comp_cntr(3) of rdma-core 65). The device counts into a page that is mapped here, so
 * that reading is no command. Counts in the program's own memory (efa/counter.c) are written by the device, and these
 * functions do not touch them.
 */
#include <sys/mman.h>

#include "driver.h"
#include "versions.h"

/* The structures of include/softverbs_comp_cntr.h, under names of our own: newer headers of libibverbs have them too. */
struct counter {
	struct ibv_context *context;
	uint32_t handle;
};

struct init_attr {
	uint32_t comp_mask;
	uint32_t type;
	uint32_t flags;
};

struct caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops;
};

struct attach_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};

struct sv_counter {
	struct counter counter;
	struct sv_connection *connection;
	uint8_t *page;
	_Atomic uint64_t lost; /* SV_COUNTER_EXTERNAL_*: what was said to be lost */
};

/* Tells the device that a counter is no longer needed. */
static int destroy(struct sv_counter *self)
{
	struct sv_destroy_comp_cntr_request request = {.handle = self->counter.handle};

	return sv_call(self->connection, SV_DESTROY_COMP_CNTR, &request, sizeof(request), NULL, 0);
}

struct ibv_comp_cntr *sv_create_comp_cntr(struct ibv_context *context, const struct sv_create_comp_cntr_request *request)
{
	struct sv_create_comp_cntr_response response;
	struct sv_counter *self = calloc(1, sizeof(*self));
	int fd;

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a completion counter");
		return NULL;
	}
	self->connection = sv_of(context);
	self->counter.context = context;
	if (!sv_call_fds(self->connection, SV_CREATE_COMP_CNTR, request, sizeof(*request), &response,
			 sizeof(response), &fd, 1, -1)) {
		self->counter.handle = response.handle;
		self->page = sv_map(fd, SV_COUNTER_SIZE);
		if (self->page)
			return (struct ibv_comp_cntr *)&self->counter;
		destroy(self);
		errno = ENOMEM;
	}
	free(self);
	return NULL;
}

__attribute__((used)) static struct ibv_comp_cntr *create_comp_cntr(struct ibv_context *context, struct init_attr *attr)
{
	struct sv_create_comp_cntr_request request = {
		.comp_mask = attr->comp_mask, .type = attr->type, .flags = attr->flags};

	return sv_create_comp_cntr(context, &request);
}
BIND_DEFAULT(create_comp_cntr, ibv_create_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int destroy_comp_cntr(struct counter *counter)
{
	struct sv_counter *self = (struct sv_counter *)counter;
	int error = destroy(self);

	if (error && error != EIO)
		return error;
	munmap(self->page, SV_COUNTER_SIZE);
	free(self);
	return 0;
}
BIND_DEFAULT(destroy_comp_cntr, ibv_destroy_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int set_comp_cntr(struct counter *counter, uint64_t value)
{
	struct sv_set_comp_cntr_request request = {.handle = counter->handle, .value = value};

	return sv_call(sv_of(counter->context), SV_SET_COMP_CNTR, &request, sizeof(request), NULL, 0);
}
BIND_DEFAULT(set_comp_cntr, ibv_set_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int set_err_comp_cntr(struct counter *counter, uint64_t value)
{
	struct sv_set_err_comp_cntr_request request = {.handle = counter->handle, .value = value};

	return sv_call(sv_of(counter->context), SV_SET_ERR_COMP_CNTR, &request, sizeof(request), NULL, 0);
}
BIND_DEFAULT(set_err_comp_cntr, ibv_set_err_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int inc_comp_cntr(struct counter *counter, uint64_t amount)
{
	struct sv_inc_comp_cntr_request request = {.handle = counter->handle, .amount = amount};

	return sv_call(sv_of(counter->context), SV_INC_COMP_CNTR, &request, sizeof(request), NULL, 0);
}
BIND_DEFAULT(inc_comp_cntr, ibv_inc_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int inc_err_comp_cntr(struct counter *counter, uint64_t amount)
{
	struct sv_inc_err_comp_cntr_request request = {.handle = counter->handle, .amount = amount};

	return sv_call(sv_of(counter->context), SV_INC_ERR_COMP_CNTR, &request, sizeof(request), NULL, 0);
}
BIND_DEFAULT(inc_err_comp_cntr, ibv_inc_err_comp_cntr, IBVERBS_1.18);

/* Says, once, that a count is not in the program's own memory any more. It is in the page, so that nothing fails. */
static void tell_lost(struct sv_counter *self)
{
	uint64_t lost = atomic_load_explicit((_Atomic uint64_t *)(self->page + SV_COUNTER_LOST), memory_order_relaxed);
	int error = errno;

	if (lost == atomic_load_explicit(&self->lost, memory_order_relaxed) || lost == atomic_exchange(&self->lost, lost))
		return;
	sv_refuse(EFAULT, "completion counter %u: its %s cannot be stored in the program's memory any more, which was "
			  "unmapped or made read-only; ibv_read_comp_cntr has %s still",
		  self->counter.handle,
		  lost == SV_COUNTER_EXTERNAL_VALUE    ? "completion count"
		  : lost == SV_COUNTER_EXTERNAL_ERRORS ? "error count"
						       : "counts",
		  lost == (SV_COUNTER_EXTERNAL_VALUE | SV_COUNTER_EXTERNAL_ERRORS) ? "them" : "it");
	errno = error;
}

/* One of the two numbers of the page. */
static int read_page(struct counter *counter, size_t offset, uint64_t *value)
{
	struct sv_counter *self = (struct sv_counter *)counter;

	if (sv_is_lost(self->connection))
		return sv_refuse(EIO, "the device is gone");
	*value = atomic_load_explicit((_Atomic uint64_t *)(self->page + offset), memory_order_acquire);
	tell_lost(self);
	return 0;
}

__attribute__((used)) static int read_comp_cntr(struct counter *counter, uint64_t *value)
{
	return read_page(counter, SV_COUNTER_VALUE, value);
}
BIND_DEFAULT(read_comp_cntr, ibv_read_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int read_err_comp_cntr(struct counter *counter, uint64_t *value)
{
	return read_page(counter, SV_COUNTER_ERRORS, value);
}
BIND_DEFAULT(read_err_comp_cntr, ibv_read_err_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int qp_attach_comp_cntr(struct ibv_qp *qp, struct counter *counter,
				      struct attach_attr *attr)
{
	struct sv_attach_comp_cntr_request request = {
		.qp = qp->handle, .counter = counter->handle, .op_mask = attr->op_mask, .comp_mask = attr->comp_mask};

	if (sv_of(qp->context) != sv_of(counter->context))
		return sv_refuse(EINVAL, "ibv_qp_attach_comp_cntr: the counter belongs to another context than the QP");
	if (((struct sv_qp *)qp)->opened)
		return sv_refuse(EINVAL, "ibv_qp_attach_comp_cntr: QP %#x was opened, not created, here", qp->qp_num);
	return sv_call(sv_of(qp->context), SV_ATTACH_COMP_CNTR, &request, sizeof(request), NULL, 0);
}
BIND_DEFAULT(qp_attach_comp_cntr, ibv_qp_attach_comp_cntr, IBVERBS_1.18);

__attribute__((used)) static int query_comp_cntr_caps(struct ibv_context *context, struct caps *caps, size_t caps_size)
{
	struct sv_query_comp_cntr_caps_response response;
	struct caps all;
	int error = sv_call(sv_of(context), SV_QUERY_COMP_CNTR_CAPS, NULL, 0, &response, sizeof(response));

	if (error)
		return error;
	all.max_value = response.max_value;
	all.max_counters = response.max_counters;
	all.supported_qp_attach_ops = response.supported_qp_attach_ops;
	memset(caps, 0, caps_size);
	memcpy(caps, &all, caps_size < sizeof(all) ? caps_size : sizeof(all));
	return 0;
}
BIND_DEFAULT(query_comp_cntr_caps, _ibv_query_comp_cntr_caps, IBVERBS_1.18);
