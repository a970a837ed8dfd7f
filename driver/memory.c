// SPDX-License-Identifier: MIT
/* Protection domains, memory regions and windows, device memory, thread domains. The device has the regions; what is
 * here are the handles of them.
 */
#include "driver.h"
#include "versions.h"

/* -- protection domains */

/* What the device knows a domain as; 0 for none. A parent domain is known to the driver only. */
uint32_t sv_pd_handle(const struct ibv_pd *pd)
{
	return pd ? pd->handle : 0;
}

static struct sv_pd *make_pd(struct ibv_context *context, uint32_t handle)
{
	struct sv_pd *self = calloc(1, sizeof(*self));

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a protection domain");
		return NULL;
	}
	self->pd.context = context;
	self->pd.handle = handle;
	return self;
}

SV_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct sv_alloc_pd_response response;
	struct sv_pd *self;

	if (sv_call(sv_of(context), SV_ALLOC_PD, NULL, 0, &response, sizeof(response)))
		return NULL;
	self = make_pd(context, response.handle);
	return self ? &self->pd : NULL;
}

SV_EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct sv_pd *self = (struct sv_pd *)pd;
	struct sv_dealloc_pd_request request = {.handle = pd->handle};
	int error;

	if (atomic_load(&self->users))
		return sv_refuse(EBUSY, "the protection domain has %u parent domains", atomic_load(&self->users));
	if (self->parent) {
		error = sv_ask(sv_of(pd->context), SV_ASK_DEALLOC_PD, 0, 0);
		if (error)
			return error;
		atomic_fetch_sub(&self->parent->users, 1);
		if (self->td)
			atomic_fetch_sub(&self->td->users, 1);
		free(self);
		return 0;
	}
	error = sv_call(sv_of(pd->context), SV_DEALLOC_PD, &request, sizeof(request), NULL, 0);
	if (error && error != EIO)
		return error;
	free(self);
	return 0;
}

SV_EXPORT struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle)
{
	struct sv_pd *self = sv_ask(sv_of(context), SV_ASK_IMPORT_PD, 0, 0) ? NULL : make_pd(context, pd_handle);

	if (!self)
		return NULL;
	self->imported = true;
	return &self->pd;
}

SV_EXPORT void ibv_unimport_pd(struct ibv_pd *pd)
{
	free(pd);
}

struct ibv_td *sv_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct sv_td *self;

	if (sv_ask(sv_of(context), SV_ASK_ALLOC_TD, 0, 0))
		return NULL;
	if (attr->comp_mask) {
		sv_refuse(EINVAL, "ibv_alloc_td: comp_mask=%#x is not known", attr->comp_mask);
		return NULL;
	}
	self = calloc(1, sizeof(*self));
	if (!self) {
		errno = ENOMEM;
		return NULL;
	}
	self->td.context = context;
	return &self->td;
}

int sv_dealloc_td(struct ibv_td *td)
{
	struct sv_td *self = (struct sv_td *)td;
	int error = sv_ask(sv_of(td->context), SV_ASK_DEALLOC_TD, 0, 0);

	if (error)
		return error;
	if (atomic_load(&self->users))
		return sv_refuse(EBUSY, "the thread domain is used by a parent domain");
	free(self);
	return 0;
}

/* A domain over another. Its allocators are not called: the memory of queues is the device's. */
struct ibv_pd *sv_alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	struct sv_pd *under = (struct sv_pd *)attr->pd;
	struct sv_pd *self;

	if (sv_ask(sv_of(context), SV_ASK_ALLOC_PARENT_DOMAIN, 0, 0))
		return NULL;
	if (!under || attr->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
						     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)) {
		sv_refuse(EINVAL, under ? "ibv_alloc_parent_domain: comp_mask=%#x is not known"
					: "ibv_alloc_parent_domain: without a protection domain (comp_mask=%#x)",
			  attr->comp_mask);
		return NULL;
	}
	self = make_pd(context, under->pd.handle);
	if (!self)
		return NULL;
	self->parent = under;
	self->td = (struct sv_td *)attr->td;
	atomic_fetch_add(&under->users, 1);
	if (self->td)
		atomic_fetch_add(&self->td->users, 1);
	return &self->pd;
}

/* -- memory regions */

static struct ibv_mr *make_mr(struct ibv_pd *pd, void *addr, size_t length, uint32_t handle, uint32_t lkey,
			      uint32_t rkey)
{
	struct sv_mr *self = calloc(1, sizeof(*self));

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a memory region");
		return NULL;
	}
	self->mr.context = pd->context;
	self->mr.pd = pd;
	self->mr.addr = addr;
	self->mr.length = length;
	self->mr.handle = handle;
	self->mr.lkey = lkey;
	self->mr.rkey = rkey;
	sv_enter(sv_of(pd->context), &self->entry, SV_MR, handle);
	return &self->mr;
}

/* Registers memory. `flags`: SV_REG_NULL, or 0. */
static struct ibv_mr *register_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access,
				  uint32_t flags)
{
	struct sv_reg_mr_request request = {.pd = sv_pd_handle(pd),
					    .flags = flags,
					    .address = (uintptr_t)addr,
					    .length = length,
					    .iova = iova,
					    .access = access};
	struct sv_reg_mr_response response;

	if (sv_call(sv_of(pd->context), SV_REG_MR, &request, sizeof(request), &response, sizeof(response)))
		return NULL;
	return make_mr(pd, addr, length, response.handle, response.lkey, response.rkey);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					  unsigned int access)
{
	return register_mr(pd, addr, length, iova, access, 0);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return register_mr(pd, addr, length, iova, access, 0);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return register_mr(pd, addr, length, (uintptr_t)addr, access, 0);
}

/* ibv_reg_mr_ex(3) of rdma-core 59: everything in one structure. */
struct reg_mr_ex_attr {
	size_t length;
	int access;
	uint64_t comp_mask;
	uint64_t iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah;
};

__attribute__((used)) static struct ibv_mr *reg_mr_ex(struct ibv_pd *pd, struct reg_mr_ex_attr *attr)
{
	enum { HAS_IOVA = 1, HAS_ADDR = 2 };

	if (!(attr->comp_mask & HAS_ADDR) || attr->comp_mask & ~(uint64_t)(HAS_IOVA | HAS_ADDR)) {
		sv_refuse(EOPNOTSUPP, "ibv_reg_mr_ex: comp_mask=%#llx: only memory of the program can be registered",
			  (unsigned long long)attr->comp_mask);
		return NULL;
	}
	return register_mr(pd, attr->addr, attr->length,
			   attr->comp_mask & HAS_IOVA ? attr->iova : (uintptr_t)attr->addr, attr->access, 0);
}
BIND_DEFAULT(reg_mr_ex, ibv_reg_mr_ex, IBVERBS_1.15);

SV_EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					   int access)
{
	(void)pd;
	(void)offset;
	(void)length;
	(void)iova;
	(void)access;
	sv_refuse(EOPNOTSUPP, "ibv_reg_dmabuf_mr: descriptor %d: the device has no dma-bufs", fd);
	return NULL;
}

struct ibv_mr *sv_alloc_null_mr(struct ibv_pd *pd)
{
	return register_mr(pd, NULL, SIZE_MAX, 0, IBV_ACCESS_LOCAL_WRITE, SV_REG_NULL);
}

SV_EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct sv_rereg_mr_request request = {.handle = mr->handle,
					      .flags = flags,
					      .pd = flags & IBV_REREG_MR_CHANGE_PD ? sv_pd_handle(pd) : 0,
					      .access = access,
					      .address = (uintptr_t)addr,
					      .length = length};
	struct sv_rereg_mr_response response;
	int error;

	if (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) {
		sv_refuse(EINVAL, "ibv_rereg_mr: flags=%#x is not known", flags);
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION && !length) {
		sv_refuse(EINVAL, "ibv_rereg_mr: a length of 0");
		return IBV_REREG_MR_ERR_INPUT;
	}
	error = sv_call(sv_of(mr->context), SV_REREG_MR, &request, sizeof(request), &response, sizeof(response));
	if (error)
		return IBV_REREG_MR_ERR_CMD;
	mr->lkey = response.lkey;
	mr->rkey = response.rkey;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		mr->pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		mr->addr = addr;
		mr->length = length;
	}
	return 0;
}

SV_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct sv_dereg_mr_request request = {.handle = mr->handle};
	int error = sv_call(sv_of(mr->context), SV_DEREG_MR, &request, sizeof(request), NULL, 0);

	if (error && error != EIO)
		return error;
	sv_remove(sv_of(mr->context), &((struct sv_mr *)mr)->entry);
	free(mr);
	return 0;
}

SV_EXPORT struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle)
{
	struct sv_connection *connection = sv_of(pd->context);
	struct sv_entry *entry;
	struct sv_mr *self;

	if (sv_ask(connection, SV_ASK_IMPORT_MR, 0, 0))
		return NULL;
	self = calloc(1, sizeof(*self));
	if (!self) {
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_lock(&connection->entries_lock);
	entry = sv_find(connection, SV_MR, mr_handle);
	if (entry) {
		const char *base = (const char *)entry - offsetof(struct sv_mr, entry);

		self->mr = ((const struct sv_mr *)base)->mr;
	}
	pthread_mutex_unlock(&connection->entries_lock);
	if (!entry) {
		sv_refuse(ENOENT, "ibv_import_mr: no memory region has the handle %u", mr_handle);
		free(self);
		return NULL;
	}
	self->mr.context = pd->context;
	self->mr.pd = pd;
	self->mr.addr = NULL;
	return &self->mr;
}

SV_EXPORT void ibv_unimport_mr(struct ibv_mr *mr)
{
	free(mr);
}

int sv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *list,
		 uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		struct sv_advise_mr_request request = {.pd = sv_pd_handle(pd),
						       .advice = advice,
						       .flags = flags,
						       .lkey = list[i].lkey,
						       .address = list[i].addr,
						       .length = list[i].length};
		int error = sv_call(sv_of(pd->context), SV_ADVISE_MR, &request, sizeof(request), NULL, 0);

		if (error)
			return error;
	}
	return count ? 0 : sv_refuse(EINVAL, "ibv_advise_mr: an empty list");
}

/* -- memory windows */

struct ibv_mw *sv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct sv_alloc_mw_request request = {.pd = sv_pd_handle(pd), .type = type};
	struct sv_alloc_mw_response response;
	struct ibv_mw *mw;

	if (sv_call(sv_of(pd->context), SV_ALLOC_MW, &request, sizeof(request), &response, sizeof(response)))
		return NULL;
	mw = calloc(1, sizeof(*mw));
	if (!mw) {
		sv_refuse(ENOMEM, "no memory for a memory window");
		return NULL;
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->rkey = response.rkey;
	mw->handle = response.handle;
	mw->type = type;
	return mw;
}

int sv_dealloc_mw(struct ibv_mw *mw)
{
	struct sv_dealloc_mw_request request = {.handle = mw->handle};
	int error = sv_call(sv_of(mw->context), SV_DEALLOC_MW, &request, sizeof(request), NULL, 0);

	if (error && error != EIO)
		return error;
	free(mw);
	return 0;
}

/* -- device memory */

static int copy_dm(struct ibv_dm *dm, uint64_t offset, const void *host, size_t length, bool to_device)
{
	struct sv_copy_dm_request request = {.handle = dm->handle,
					     .to_device = to_device,
					     .offset = offset,
					     .length = length,
					     .address = (uintptr_t)host};

	return sv_call(((struct sv_dm *)dm)->connection, SV_COPY_DM, &request, sizeof(request), NULL, 0);
}

static int copy_to_dm(struct ibv_dm *dm, uint64_t offset, const void *host, size_t length)
{
	return copy_dm(dm, offset, host, length, true);
}

static int copy_from_dm(void *host, struct ibv_dm *dm, uint64_t offset, size_t length)
{
	return copy_dm(dm, offset, host, length, false);
}

static struct ibv_dm *make_dm(struct ibv_context *context, struct sv_connection *connection, uint32_t handle,
			      bool imported)
{
	struct sv_dm *self = calloc(1, sizeof(*self));

	if (!self) {
		sv_refuse(ENOMEM, "no memory for device memory");
		return NULL;
	}
	self->dm.context = context;
	self->dm.memcpy_to_dm = copy_to_dm;
	self->dm.memcpy_from_dm = copy_from_dm;
	self->dm.comp_mask = IBV_DM_MASK_HANDLE;
	self->dm.handle = handle;
	self->connection = connection;
	self->imported = imported;
	return &self->dm;
}

struct ibv_dm *sv_alloc_dm(struct ibv_context *context, struct ibv_alloc_dm_attr *attr)
{
	struct sv_alloc_dm_request request = {
		.length = attr->length, .log_align_req = attr->log_align_req, .comp_mask = attr->comp_mask};
	struct sv_connection *connection = sv_own(sv_of(context));
	struct sv_alloc_dm_response response;

	if (sv_call(connection, SV_ALLOC_DM, &request, sizeof(request), &response, sizeof(response)))
		return NULL;
	return make_dm(context, connection, response.handle, false);
}

int sv_free_dm(struct ibv_dm *dm)
{
	struct sv_free_dm_request request = {.handle = dm->handle};
	struct sv_dm *self = (struct sv_dm *)dm;
	int error = sv_call(self->connection, SV_FREE_DM, &request, sizeof(request), NULL, 0);

	if (error && error != EIO)
		return error;
	free(self);
	return 0;
}

SV_EXPORT struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle)
{
	struct sv_connection *connection = sv_of(context);

	if (sv_ask(connection, SV_ASK_IMPORT_DM, 0, 0))
		return NULL;
	return make_dm(context, connection, dm_handle, true);
}

SV_EXPORT void ibv_unimport_dm(struct ibv_dm *dm)
{
	free(dm);
}

struct ibv_mr *sv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length, unsigned int access)
{
	struct sv_reg_dm_mr_request request = {
		.pd = sv_pd_handle(pd), .dm = dm->handle, .offset = offset, .length = length, .access = access};
	struct sv_reg_dm_mr_response response;

	if (((struct sv_dm *)dm)->connection != sv_of(pd->context) && !sv_of(pd->context)->forked) {
		sv_refuse(EINVAL, "ibv_reg_dm_mr: the device memory belongs to another context");
		return NULL;
	}
	if (sv_call(sv_of(pd->context), SV_REG_DM_MR, &request, sizeof(request), &response, sizeof(response)))
		return NULL;
	return make_mr(pd, NULL, length, response.handle, response.lkey, response.rkey);
}
