// SPDX-License-Identifier: MIT
/* Identifiers: made, bound, resolved, moved from channel to channel, and ended (rdma_create_id(3) and the rest). */
#include <sys/socket.h>

#include "rdmacm.h"

#define BUCKETS 1024

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sv_cm_id *table[BUCKETS];
static int cancelling; /* whether the thread that holds the lock could be cancelled before */

/* -- the table */

void sv_cm_lock_ids(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	pthread_mutex_lock(&table_lock);
	cancelling = before;
}

void sv_cm_unlock_ids(void)
{
	int before = cancelling;

	pthread_mutex_unlock(&table_lock);
	pthread_setcancelstate(before, NULL);
}

void sv_cm_reset_ids_lock(void)
{
	pthread_mutex_init(&table_lock, NULL);
}

struct sv_cm_id *sv_cm_find(struct sv_connection *connection, uint32_t handle)
{
	struct sv_cm_id *each = table[handle % BUCKETS];

	while (each && (each->handle != handle || each->connection != connection))
		each = each->next;
	return each;
}

struct sv_cm_id *sv_cm_find_untold(struct rdma_event_channel *channel)
{
	for (int i = 0; i < BUCKETS; i++)
		for (struct sv_cm_id *each = table[i]; each; each = each->next)
			if (each->id.channel == channel && each->id.verbs && !each->removed)
				return each;
	return NULL;
}

static void enter(struct sv_cm_id *self, uint32_t handle)
{
	self->handle = handle;
	sv_cm_lock_ids();
	self->next = table[handle % BUCKETS];
	table[handle % BUCKETS] = self;
	sv_cm_unlock_ids();
}

/* With the lock held. */
static void leave(struct sv_cm_id *self)
{
	struct sv_cm_id **at = &table[self->handle % BUCKETS];

	while (*at && *at != self)
		at = &(*at)->next;
	if (*at)
		*at = self->next;
}

/* -- making and ending */

/* An identifier that the device does not know yet. */
static struct sv_cm_id *make(struct rdma_event_channel *channel, void *context, enum rdma_port_space ps,
			     enum ibv_qp_type qp_type)
{
	struct sv_cm_id *self = calloc(1, sizeof(*self));

	if (!self) {
		errno = ENOMEM;
		return NULL;
	}
	self->id.channel = channel;
	self->id.context = context;
	self->id.ps = ps;
	self->id.qp_type = qp_type;
	self->connection = sv_cm_channel(channel)->connection;
	pthread_mutex_init(&self->lock, NULL);
	pthread_cond_init(&self->acknowledged, NULL);
	return self;
}

static void discard(struct sv_cm_id *self)
{
	sv_cm_forget_groups(self);
	pthread_mutex_destroy(&self->lock);
	pthread_cond_destroy(&self->acknowledged);
	if (self->sync)
		rdma_destroy_event_channel(self->id.channel);
	free(self->id.route.path_rec);
	free(self->init);
	free(self->connect);
	free(self);
}

static int create(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps,
		  enum ibv_qp_type qp_type)
{
	struct sv_cm_create_id_request request = {.ps = ps, .qp_type = qp_type};
	struct sv_cm_create_id_response response;
	bool sync = !channel;
	struct sv_cm_id *self;

	if (sync)
		channel = rdma_create_event_channel();
	if (!channel)
		return -1;
	self = make(channel, context, ps, qp_type);
	if (!self) {
		if (sync)
			rdma_destroy_event_channel(channel);
		return sv_cm_result(ENOMEM);
	}
	self->sync = sync;
	request.channel = sv_cm_channel(channel)->handle;
	if (sv_cm_call(self->connection, SV_CM_CREATE_ID, &request, sizeof(request), &response, sizeof(response))) {
		int error = errno;

		discard(self);
		return sv_cm_result(error);
	}
	enter(self, response.id);
	*id = &self->id;
	return 0;
}

SV_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
			     enum rdma_port_space ps)
{
	bool datagrams = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;

	return create(channel, id, context, ps, datagrams ? IBV_QPT_UD : IBV_QPT_RC);
}

struct sv_cm_id *sv_cm_adopt(struct sv_cm_id *listener, uint32_t handle)
{
	struct rdma_cm_id *from = &listener->id;
	struct sv_cm_id *self = make(from->channel, from->context, from->ps, from->qp_type);

	if (!self)
		return NULL;
	enter(self, handle);
	if ((listener->sync && rdma_migrate_id(&self->id, NULL)) || sv_cm_refresh(self)) {
		rdma_destroy_id(&self->id);
		return NULL;
	}
	return self;
}

void sv_cm_acknowledge(struct sv_cm_id *self)
{
	pthread_mutex_lock(&self->lock);
	self->completed++;
	pthread_cond_broadcast(&self->acknowledged);
	pthread_mutex_unlock(&self->lock);
}

/* Waits until as many events as were taken are acknowledged. In a child of fork(2) they are the parent's. */
static void wait_acknowledged(struct sv_cm_id *self, uint32_t reported)
{
	if (self->connection->forked)
		return;
	pthread_mutex_lock(&self->lock);
	while ((int32_t)(reported - self->completed) > 0)
		pthread_cond_wait(&self->acknowledged, &self->lock);
	pthread_mutex_unlock(&self->lock);
}

void sv_cm_take_back(struct rdma_event_channel *channel, uint32_t count)
{
	char bytes[64];

	while (count) {
		size_t most = count < sizeof(bytes) ? count : sizeof(bytes);
		ssize_t taken = recv(channel->fd, bytes, most, MSG_DONTWAIT);

		if (taken <= 0)
			return;
		count -= taken;
	}
}

/* Lets go of the event of the last synchronous call. */
static void drop_event(struct sv_cm_id *self)
{
	struct rdma_cm_event *event = self->id.event;

	self->id.event = NULL;
	if (event)
		rdma_ack_cm_event(event);
}

SV_EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_destroy_id_request request = {.id = self->handle};
	struct sv_cm_destroy_id_response response = {0};
	uint32_t reported = 0;
	int error;

	sv_cm_lock_ids();
	error = sv_call(self->connection, SV_CM_DESTROY_ID, &request, sizeof(request), &response, sizeof(response));
	if (!error || error == EIO) {
		sv_cm_take_back(id->channel, response.dropped);
		leave(self);
		reported = self->reported;
	}
	sv_cm_unlock_ids();
	if (error && error != EIO)
		return sv_cm_result(error);
	drop_event(self);
	wait_acknowledged(self, reported);
	discard(self);
	return 0;
}

/* -- what the device knows */

/* The one path of RoCE, as a record of a subnet administrator would have it. */
static int write_path(struct rdma_cm_id *id, const struct sv_cm_query_response *known)
{
	struct ibv_sa_path_rec *path = id->route.path_rec ? id->route.path_rec : calloc(1, sizeof(*path));

	if (!path)
		return sv_cm_result(ENOMEM);
	memcpy(path->sgid.raw, known->sgid, sizeof(known->sgid));
	memcpy(path->dgid.raw, known->dgid, sizeof(known->dgid));
	path->hop_limit = known->hop_limit;
	path->traffic_class = known->traffic_class;
	path->reversible = 1;
	path->numb_path = 1;
	path->pkey = htobe16(known->pkey);
	path->mtu_selector = 2; /* exactly */
	path->mtu = known->mtu;
	path->rate_selector = 2;
	path->rate = IBV_RATE_2_5_GBPS;
	path->packet_life_time_selector = 2;
	id->route.path_rec = path;
	id->route.num_paths = 1;
	return 0;
}

int sv_cm_refresh(struct sv_cm_id *self)
{
	struct rdma_cm_id *id = &self->id;
	struct rdma_addr *addr = &id->route.addr;
	struct sv_cm_query_request request = {.id = self->handle};
	struct sv_cm_query_response known;

	if (sv_cm_call(self->connection, SV_CM_QUERY, &request, sizeof(request), &known, sizeof(known)))
		return -1;
	sv_cm_to_sockaddr(&addr->src_storage, &known.source);
	sv_cm_to_sockaddr(&addr->dst_storage, &known.destination);
	memcpy(addr->addr.ibaddr.sgid.raw, known.sgid, sizeof(known.sgid));
	memcpy(addr->addr.ibaddr.dgid.raw, known.dgid, sizeof(known.dgid));
	addr->addr.ibaddr.pkey = htobe16(known.pkey);
	if (known.port_num && !id->verbs) {
		id->verbs = sv_cm_home();
		if (!id->pd)
			id->pd = sv_cm_pd();
		if (!id->verbs || !id->pd)
			return -1;
		id->port_num = known.port_num;
	}
	return known.routed ? write_path(id, &known) : 0;
}

int sv_cm_complete(struct sv_cm_id *self)
{
	struct rdma_cm_id *id = &self->id;
	int status;

	if (!self->sync)
		return 0;
	drop_event(self);
	if (rdma_get_cm_event(id->channel, &id->event))
		return -1;
	status = id->event->status;
	if (status && id->event->event == RDMA_CM_EVENT_REJECTED)
		return sv_cm_result(ECONNREFUSED);
	return sv_cm_result(status < 0 ? -status : status);
}

/* -- addresses */

SV_EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_bind_request request = {.id = self->handle};

	if (!sv_cm_length(addr))
		return sv_cm_result(sv_refuse(EINVAL, "rdma_bind_addr: an address of IPv4 or IPv6 is needed"));
	sv_cm_from_sockaddr(&request.address, addr);
	if (SV_CM_CALL(self, SV_CM_BIND, request))
		return -1;
	return sv_cm_refresh(self);
}

SV_EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr,
				int timeout_ms)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_resolve_addr_request request = {.id = self->handle, .timeout_ms = timeout_ms};

	if (!sv_cm_length(dst_addr) || (src_addr && !sv_cm_length(src_addr)))
		return sv_cm_result(sv_refuse(EINVAL, "rdma_resolve_addr: addresses of IPv4 or IPv6 are needed"));
	sv_cm_from_sockaddr(&request.destination, dst_addr);
	sv_cm_from_sockaddr(&request.source, src_addr);
	memcpy(&id->route.addr.dst_storage, dst_addr, sv_cm_length(dst_addr));
	if (SV_CM_CALL(self, SV_CM_RESOLVE_ADDR, request))
		return -1;
	return sv_cm_complete(self);
}

SV_EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_resolve_route_request request = {.id = self->handle, .timeout_ms = timeout_ms};

	if (SV_CM_CALL(self, SV_CM_RESOLVE_ROUTE, request))
		return -1;
	return sv_cm_complete(self);
}

SV_EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_listen_request request = {.id = self->handle, .backlog = backlog};

	if (SV_CM_CALL(self, SV_CM_LISTEN, request))
		return -1;
	return sv_cm_refresh(self);
}

SV_EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_set_option_request request = {
		.id = self->handle, .level = level, .optname = optname, .length = optlen};

	if (optlen > sizeof(request.value) && level == RDMA_OPTION_ID)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_set_option: no option has %zu bytes", optlen));
	memcpy(request.value, optval, optlen < sizeof(request.value) ? optlen : sizeof(request.value));
	return SV_CM_CALL(self, SV_CM_SET_OPTION, request);
}

/* -- channels */

SV_EXPORT int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel)
{
	struct sv_cm_id *self = sv_cm(id);
	struct sv_cm_migrate_id_request request = {.id = self->handle};
	struct sv_cm_migrate_id_response response;
	struct rdma_event_channel *before = id->channel;
	bool was_sync = self->sync;
	bool sync = !channel;
	uint32_t reported;
	int error;

	if (was_sync && sync)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_migrate_id: the identifier is synchronous already"));
	if (sync)
		channel = rdma_create_event_channel();
	if (!channel)
		return -1;
	request.channel = sv_cm_channel(channel)->handle;
	sv_cm_lock_ids();
	error = sv_call(self->connection, SV_CM_MIGRATE_ID, &request, sizeof(request), &response, sizeof(response));
	if (!error) {
		sv_cm_take_back(before, response.moved);
		self->sync = sync;
		id->channel = channel;
	}
	reported = self->reported;
	sv_cm_unlock_ids();
	if (error) {
		if (sync)
			rdma_destroy_event_channel(channel);
		return sv_cm_result(error);
	}
	if (was_sync) {
		drop_event(self);
		rdma_destroy_event_channel(before);
	}
	wait_acknowledged(self, reported);
	return 0;
}

/* -- endpoints (rdma_create_ep(3)) */

/* Takes the address, and notes how queue pairs of requests are to be made. */
static int make_passive(struct sv_cm_id *self, struct rdma_addrinfo *info, struct ibv_pd *pd,
			const struct ibv_qp_init_attr *init)
{
	if (rdma_bind_addr(&self->id, info->ai_src_addr))
		return -1;
	if (pd)
		self->id.pd = pd;
	if (!init)
		return 0;
	self->init = malloc(sizeof(*self->init));
	if (!self->init)
		return sv_cm_result(ENOMEM);
	*self->init = *init;
	self->init->qp_type = info->ai_qp_type;
	return 0;
}

/* Resolves address and route, and makes the queue pair. */
static int make_active(struct sv_cm_id *self, struct rdma_addrinfo *info, struct ibv_pd *pd,
		       struct ibv_qp_init_attr *init)
{
	if (rdma_resolve_addr(&self->id, info->ai_src_addr, info->ai_dst_addr, 2000) ||
	    rdma_resolve_route(&self->id, 2000))
		return -1;
	if (init) {
		init->qp_type = info->ai_qp_type;
		if (rdma_create_qp(&self->id, pd, init))
			return -1;
	}
	if (info->ai_connect_len) {
		self->connect = malloc(info->ai_connect_len);
		if (!self->connect)
			return sv_cm_result(ENOMEM);
		memcpy(self->connect, info->ai_connect, info->ai_connect_len);
		self->connect_length = info->ai_connect_len;
	}
	return 0;
}

SV_EXPORT int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
			     struct ibv_qp_init_attr *qp_init_attr)
{
	struct rdma_cm_id *made;
	int result;

	if (create(NULL, &made, NULL, res->ai_port_space, res->ai_qp_type))
		return -1;
	if (res->ai_flags & RAI_PASSIVE)
		result = make_passive(sv_cm(made), res, pd, qp_init_attr);
	else
		result = make_active(sv_cm(made), res, pd, qp_init_attr);
	if (result) {
		int error = errno;

		rdma_destroy_ep(made);
		errno = error;
		return -1;
	}
	*id = made;
	return 0;
}

SV_EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	rdma_destroy_id(id);
}
