// SPDX-License-Identifier: MIT
/* Event channels, and what comes with events (rdma_get_cm_event(3)).
 *
 * The device sends one byte for each event by the channel's descriptor, which programs may wait for by poll(2) and make
 * non-blocking by fcntl(2). The event itself stays in the device until it is taken.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include "rdmacm.h"


SV_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct ibv_context *context = sv_cm_home();
	struct sv_cm_channel *self = context ? calloc(1, sizeof(*self)) : NULL;
	struct sv_cm_create_channel_response response;
	int fd, error;

	if (!self)
		return NULL;
	self->connection = sv_of(context);
	error = sv_call_fds(self->connection, SV_CM_CREATE_CHANNEL, NULL, 0, &response, sizeof(response), &fd, 1, -1);
	if (error) {
		free(self);
		errno = error;
		return NULL;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	self->channel.fd = fd;
	self->handle = response.handle;
	return &self->channel;
}

SV_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct sv_cm_channel *self = sv_cm_channel(channel);
	struct sv_cm_destroy_channel_request request = {.handle = self->handle};

	SV_CM_CALL(self, SV_CM_DESTROY_CHANNEL, request);
	close(channel->fd);
	free(self);
}

/* -- taking an event */

/* A channel has no other end any more: the device has gone, or another thread has destroyed the channel. That thread does
 * not expect this one to come back, and with a kernel it would not: there is no event.
 */
static int wait_for_the_end(struct sv_connection *connection)
{
	struct pollfd look = {.fd = connection->socket, .events = POLLRDHUP};

	while (!atomic_load(&connection->dead) && poll(&look, 1, -1) < 0 && errno == EINTR)
		;
	sv_lost(connection);
	return EIO;
}

/* Takes the next event, if there is one, from the device, and notes it with its owner, NULL where that is not known. With
 * the lock of the identifiers held, so that who ends one takes no byte back that is of another's event: 0, or an errno.
 */
static int take_one(struct sv_cm_channel *self, struct sv_cm_get_event_response *taken, struct sv_cm_id **owner)
{
	struct sv_cm_get_event_request request = {.channel = self->handle};
	char byte;
	int error;

	taken->found = 0;
	if (recv(self->channel.fd, &byte, 1, MSG_DONTWAIT) <= 0)
		return 0; /* another thread was first */
	error = sv_call(self->connection, SV_CM_GET_EVENT, &request, sizeof(request), taken, sizeof(*taken));
	if (error || !taken->found)
		return error;
	*owner = sv_cm_find(self->connection, taken->listener ? taken->listener : taken->id);
	if (*owner)
		(*owner)->reported++;
	return 0;
}

/* Takes the next event: 0, or an errno. Waits, unless the descriptor is non-blocking. */
static int take(struct sv_cm_channel *self, struct sv_cm_get_event_response *taken, struct sv_cm_id **owner)
{
	struct sv_connection *connection = self->connection;
	int error;

	do {
		char byte;
		ssize_t received;

		if (atomic_load(&connection->dead))
			return EIO;
		received = recv(self->channel.fd, &byte, 1, MSG_PEEK);
		if (received < 0)
			return errno;
		if (!received)
			return wait_for_the_end(connection);
		sv_cm_lock_ids();
		error = take_one(self, taken, owner);
		sv_cm_unlock_ids();
	} while (!error && !taken->found);
	return error;
}

/* What an event says of a connection. */
static void fill_conn(struct sv_cm_event *self, const struct sv_cm_param *from)
{
	struct rdma_conn_param *to = &self->event.param.conn;

	memcpy(self->private_data, from->private_data, sizeof(self->private_data));
	to->private_data = from->private_data_len ? self->private_data : NULL;
	to->private_data_len = from->private_data_len;
	to->responder_resources = from->responder_resources;
	to->initiator_depth = from->initiator_depth;
	to->flow_control = from->flow_control;
	to->retry_count = from->retry_count;
	to->rnr_retry_count = from->rnr_retry_count;
	to->srq = from->srq;
	to->qp_num = from->qp_num;
}

/* What an event says of datagrams. */
static void fill_ud(struct sv_cm_event *self, const struct sv_cm_get_event_response *from)
{
	struct rdma_ud_param *to = &self->event.param.ud;

	memcpy(self->private_data, from->param.private_data, sizeof(self->private_data));
	to->private_data = from->param.private_data_len ? self->private_data : NULL;
	to->private_data_len = from->param.private_data_len;
	sv_to_ah_attr(&to->ah_attr, &from->ah_attr);
	to->qp_num = from->param.qp_num;
	to->qkey = from->qkey;
}

static void fail(struct sv_cm_event *self, enum rdma_cm_event_type event)
{
	self->event.event = event;
	self->event.status = -errno;
}

/* -- what comes with an event */

/* A request: the identifier of the connection that it asks for. False where it cannot be had. */
static bool on_request(struct sv_cm_event *self, const struct sv_cm_get_event_response *from)
{
	struct sv_cm_id *listener = self->owner;
	struct sv_cm_id *child = sv_cm_adopt(listener, from->id);

	if (!child) {
		struct sv_cm_destroy_id_request request = {.id = from->id};
		struct sv_cm_destroy_id_response ignored;

		sv_call(listener->connection, SV_CM_DESTROY_ID, &request, sizeof(request), &ignored, sizeof(ignored));
		return false;
	}
	child->remote_ece.vendor_id = from->param.vendor_id;
	child->remote_ece.options = from->param.options;
	self->event.listen_id = &listener->id;
	self->event.id = &child->id;
	return true;
}

/* The peer has accepted: the queue pair becomes ready, and the peer hears of it. Without one that is the program's. */
static void on_response(struct sv_cm_event *self, const struct sv_cm_get_event_response *from)
{
	struct sv_cm_id *owner = self->owner;
	struct sv_cm_establish_request request = {.id = owner->handle};

	owner->remote_ece.vendor_id = from->param.vendor_id;
	owner->remote_ece.options = from->param.options;
	if (!owner->id.qp)
		return;
	if (!sv_cm_make_ready(owner) && !SV_CM_CALL(owner, SV_CM_ESTABLISH, request)) {
		self->event.event = RDMA_CM_EVENT_ESTABLISHED;
		return;
	}
	fail(self, RDMA_CM_EVENT_CONNECT_ERROR);
	owner->failed = true;
	sv_cm_fail_qp(owner);
}

/* A group was joined. False where it was left again meanwhile. */
static bool on_join(struct sv_cm_event *self, const struct sv_cm_get_event_response *from)
{
	struct rdma_ud_param *ud = &self->event.param.ud;
	int error;

	fill_ud(self, from);
	error = sv_cm_joined(self->owner, from->cookie, &ud->ah_attr.grh.dgid, &ud->private_data);
	if (error > 0)
		fail(self, RDMA_CM_EVENT_MULTICAST_ERROR);
	return error >= 0;
}

/* Does what comes with an event. False where it is not to be told. */
static bool process(struct sv_cm_event *self, const struct sv_cm_get_event_response *from)
{
	struct sv_cm_id *owner = self->owner;

	if (owner->id.qp_type == IBV_QPT_UD)
		fill_ud(self, from);
	else
		fill_conn(self, &from->param);
	switch (from->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		if (sv_cm_refresh(owner))
			fail(self, RDMA_CM_EVENT_ADDR_ERROR);
		return true;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		if (sv_cm_refresh(owner))
			fail(self, RDMA_CM_EVENT_ROUTE_ERROR);
		return true;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return on_request(self, from);
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		on_response(self, from);
		return true;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DISCONNECTED:
		if (owner->failed)
			return false;
		if (from->event == RDMA_CM_EVENT_REJECTED)
			sv_cm_fail_qp(owner);
		return true;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		owner->removed = true;
		return true;
	case RDMA_CM_EVENT_MULTICAST_JOIN:
		return on_join(self, from);
	default:
		return true;
	}
}

/* The device has gone without a word: each identifier that is bound to it is told once. 0, or EIO. */
static int tell_removal(struct rdma_event_channel *channel, struct sv_cm_event *self)
{
	struct sv_cm_id *owner;

	sv_cm_lock_ids();
	owner = sv_cm_find_untold(channel);
	if (owner && owner->connection->forked)
		owner = NULL;
	if (owner) {
		owner->removed = true;
		owner->reported++;
	}
	sv_cm_unlock_ids();
	if (!owner)
		return sv_refuse(EIO, "rdma_get_cm_event: the device is gone");
	self->owner = owner;
	self->event.id = &owner->id;
	self->event.event = RDMA_CM_EVENT_DEVICE_REMOVAL;
	return 0;
}

/* One event of a channel: 0, an errno, or -1 where it was none for the program. */
static int next_event(struct rdma_event_channel *channel, struct sv_cm_event *self)
{
	struct sv_cm_get_event_response taken;
	struct sv_cm_id *owner = NULL;
	int error = take(sv_cm_channel(channel), &taken, &owner);

	memset(self, 0, sizeof(*self));
	if (error == EIO)
		return tell_removal(channel, self);
	if (error)
		return error;
	if (!owner)
		return -1;
	self->owner = owner;
	self->event.id = &owner->id;
	self->event.event = taken.event;
	self->event.status = taken.status;
	if (process(self, &taken))
		return 0;
	sv_cm_acknowledge(owner);
	return -1;
}

SV_EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct sv_cm_event *self;
	int error;

	if (!event)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_get_cm_event: event is NULL"));
	self = malloc(sizeof(*self));
	if (!self)
		return sv_cm_result(ENOMEM);
	do
		error = next_event(channel, self);
	while (error < 0);
	if (error) {
		free(self);
		return sv_cm_result(error);
	}
	*event = &self->event;
	return 0;
}

SV_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct sv_cm_event *self = (struct sv_cm_event *)event;

	if (!event)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_ack_cm_event: event is NULL"));
	sv_cm_acknowledge(self->owner);
	free(self);
	return 0;
}

SV_EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct sv_cm_id *self = sv_cm(listen);
	struct rdma_cm_event *event;
	int error = 0;

	if (!self->sync)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_get_request: the identifier is asynchronous"));
	if (listen->event)
		rdma_ack_cm_event(listen->event);
	listen->event = NULL;
	if (rdma_get_cm_event(listen->channel, &event))
		return -1;
	if (event->event == RDMA_CM_EVENT_REJECTED)
		error = ECONNREFUSED;
	else if (event->status)
		error = event->status < 0 ? -event->status : event->status;
	else if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		error = EINVAL;
	if (!error && self->init) {
		struct ibv_qp_init_attr init = *self->init;

		if (rdma_create_qp(event->id, listen->pd, &init)) {
			error = errno;
			rdma_destroy_id(event->id);
			event->id = listen;
		}
	}
	if (error) {
		listen->event = event;
		return sv_cm_result(error);
	}
	(*id = event->id)->event = event;
	return 0;
}

SV_EXPORT const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		"RDMA_CM_EVENT_ADDR_RESOLVED",	  "RDMA_CM_EVENT_ADDR_ERROR",	   "RDMA_CM_EVENT_ROUTE_RESOLVED",
		"RDMA_CM_EVENT_ROUTE_ERROR",	  "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
		"RDMA_CM_EVENT_CONNECT_ERROR",	  "RDMA_CM_EVENT_UNREACHABLE",	   "RDMA_CM_EVENT_REJECTED",
		"RDMA_CM_EVENT_ESTABLISHED",	  "RDMA_CM_EVENT_DISCONNECTED",	   "RDMA_CM_EVENT_DEVICE_REMOVAL",
		"RDMA_CM_EVENT_MULTICAST_JOIN",	  "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
		"RDMA_CM_EVENT_TIMEWAIT_EXIT",	  "RDMA_CM_EVENT_ADDRINFO_RESOLVED", "RDMA_CM_EVENT_ADDRINFO_ERROR",
	};

	return (unsigned int)event < sizeof(names) / sizeof(*names) ? names[event] : "UNKNOWN EVENT";
}
