/* Multicast groups (rdma_join_multicast(3)). */
#include "rdmacm.h"

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
	request.cookie = (uintptr_t)group;
	sv_cm_from_sockaddr(&request.address, address);
	pthread_mutex_lock(&self->lock);
	group->next = self->groups;
	self->groups = group;
	pthread_mutex_unlock(&self->lock);
	if (SV_CM_CALL(self, SV_CM_JOIN, request)) {
		struct sv_cm_group **at = &self->groups;
		int error = errno;

		pthread_mutex_lock(&self->lock);
		while (*at != group)
			at = &(*at)->next;
		*at = group->next;
		pthread_mutex_unlock(&self->lock);
		free(group);
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

/* A group of an identifier; `cookie` tells which, and may be that of one that was left. With the lock held. */
static struct sv_cm_group *find(struct sv_cm_id *self, const struct sv_cm_group *cookie)
{
	struct sv_cm_group *each = self->groups;

	while (each && each != cookie)
		each = each->next;
	return each;
}

int sv_cm_joined(struct sv_cm_id *self, struct sv_cm_group *group, const union ibv_gid *gid)
{
	int error = 0;

	pthread_mutex_lock(&self->lock);
	group = find(self, group);
	if (group) {
		group->gid = *gid;
		if (self->id.qp && !group->send_only) {
			error = ibv_attach_mcast(self->id.qp, gid, 0);
			group->attached = !error;
		}
	}
	pthread_mutex_unlock(&self->lock);
	return sv_cm_result(error);
}

SV_EXPORT int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_leave_request request = {.id = self->handle};
	socklen_t length = sv_cm_length(addr);
	struct sv_cm_group **at, *group;

	if (!length)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_leave_multicast: an address of IPv4 or IPv6 is needed"));
	pthread_mutex_lock(&self->lock);
	for (at = &self->groups; *at && memcmp(&(*at)->address, addr, length); at = &(*at)->next)
		;
	group = *at;
	if (group)
		*at = group->next;
	pthread_mutex_unlock(&self->lock);
	if (!group)
		return sv_cm_result(sv_refuse(EADDRNOTAVAIL, "rdma_leave_multicast: the group was not joined"));
	if (group->attached && id->qp)
		ibv_detach_mcast(id->qp, &group->gid, 0);
	free(group);
	sv_cm_from_sockaddr(&request.address, addr);
	return SV_CM_CALL(self, SV_CM_LEAVE, request);
}

void sv_cm_forget_groups(struct sv_cm_id *self)
{
	while (self->groups) {
		struct sv_cm_group *next = self->groups->next;

		free(self->groups);
		self->groups = next;
	}
}
