// SPDX-License-Identifier: MIT
/* Multicast groups (rdma_join_multicast(3)). */
#include "rdmacm.h"

static _Atomic uint64_t last_cookie;

/* The place in an identifier's list that points to a group, or to its end. With the lock held. */
static struct sv_cm_group **place_of(struct sv_cm_id *self, uint64_t cookie)
{
	struct sv_cm_group **at = &self->groups;

	while (*at && (*at)->cookie != cookie)
		at = &(*at)->next;
	return at;
}

/* The same of the first group of an address. */
static struct sv_cm_group **first_at(struct sv_cm_id *self, const struct sockaddr *address)
{
	struct sv_cm_group **at = &self->groups;

	while (*at && memcmp(&(*at)->address, address, sv_cm_length(address)))
		at = &(*at)->next;
	return at;
}

/* Enters a group. */
static void enter(struct sv_cm_id *self, struct sv_cm_group *group)
{
	pthread_mutex_lock(&self->lock);
	group->next = self->groups;
	self->groups = group;
	pthread_mutex_unlock(&self->lock);
}

/* Takes a group out, and forgets it, if it is still there. */
static void forget(struct sv_cm_id *self, uint64_t cookie)
{
	struct sv_cm_group **at, *group;

	pthread_mutex_lock(&self->lock);
	at = place_of(self, cookie);
	group = *at;
	if (group)
		*at = group->next;
	pthread_mutex_unlock(&self->lock);
	free(group);
}

static int join(struct rdma_cm_id *id, const struct sockaddr *address, bool send_only, void *context)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_join_request request = {.id = self->handle, .send_only = send_only};
	struct sv_cm_group *group;

	if (!sv_cm_length(address))
		return sv_cm_result(sv_refuse(EINVAL, "rdma_join_multicast: an address of IPv4 or IPv6 is needed"));
	group = calloc(1, sizeof(*group));
	if (!group)
		return sv_cm_result(ENOMEM);
	memcpy(&group->address, address, sv_cm_length(address));
	group->send_only = send_only;
	group->context = context;
	request.cookie = group->cookie = atomic_fetch_add(&last_cookie, 1) + 1;
	sv_cm_from_sockaddr(&request.address, address);
	enter(self, group);
	if (SV_CM_CALL(self, SV_CM_JOIN, request)) {
		int error = errno;

		forget(self, request.cookie);
		return sv_cm_result(error);
	}
	return sv_cm_complete(self);
}

SV_EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	return join(id, addr, false, context);
}

SV_EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr, void *context)
{
	const uint32_t both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;

	if (mc_join_attr->comp_mask >= RDMA_CM_JOIN_MC_ATTR_RESERVED)
		return sv_cm_result(
			sv_refuse(ENOTSUP, "rdma_join_multicast_ex: comp_mask=%#x is not known", mc_join_attr->comp_mask));
	if (mc_join_attr->comp_mask != both || mc_join_attr->join_flags >= RDMA_MC_JOIN_FLAG_RESERVED)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_join_multicast_ex: an address and known flags are needed"));
	return join(id, mc_join_attr->addr, mc_join_attr->join_flags == RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, context);
}

int sv_cm_joined(struct sv_cm_id *self, uint64_t cookie, const union ibv_gid *gid, const void **context)
{
	struct sv_cm_group *group;
	int error = -1;

	pthread_mutex_lock(&self->lock);
	group = *place_of(self, cookie);
	if (group) {
		error = 0;
		group->gid = *gid;
		*context = group->context;
		if (self->id.qp && !group->send_only) {
			error = ibv_attach_mcast(self->id.qp, gid, 0);
			group->attached = !error;
		}
	}
	pthread_mutex_unlock(&self->lock);
	return error;
}

SV_EXPORT int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_leave_request request = {.id = self->handle};
	struct sv_cm_group **at, *group;
	bool more; /* joined more than once, which the device does not count */

	if (!sv_cm_length(addr))
		return sv_cm_result(sv_refuse(EINVAL, "rdma_leave_multicast: an address of IPv4 or IPv6 is needed"));
	pthread_mutex_lock(&self->lock);
	at = first_at(self, addr);
	group = *at;
	if (group)
		*at = group->next;
	more = *first_at(self, addr);
	pthread_mutex_unlock(&self->lock);
	if (!group)
		return sv_cm_result(sv_refuse(EADDRNOTAVAIL, "rdma_leave_multicast: the group was not joined"));
	sv_cm_from_sockaddr(&request.address, addr);
	if (!more && SV_CM_CALL(self, SV_CM_LEAVE, request)) {
		enter(self, group);
		return -1;
	}
	if (!more && group->attached && id->qp)
		ibv_detach_mcast(id->qp, &group->gid, 0);
	free(group);
	return 0;
}

void sv_cm_forget_groups(struct sv_cm_id *self)
{
	while (self->groups) {
		struct sv_cm_group *next = self->groups->next;

		free(self->groups);
		self->groups = next;
	}
}
