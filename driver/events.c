// SPDX-License-Identifier: MIT
/* Completion channels and asynchronous events (ibv_get_cq_event(3), ibv_get_async_event(3)).
 *
 * The device writes a record for each event into a socket; programs may wait for its descriptor by poll(2). An object
 * goes only when every event of it that was read has been acknowledged; records of objects that have gone are skipped.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>

#include "driver.h"

#define PATIENCE 3 /* seconds until a program that waits is told what for */

/* Receives one record: 0, or the errno; EIO at the end. EINTR is the program's: a signal ends its waiting. */
static int receive_record(int fd, void *record, size_t size)
{
	ssize_t received = recv(fd, record, size, 0);

	if (received < 0)
		return errno;
	return (size_t)received == size ? 0 : EIO;
}

/* -- completion channels */

SV_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sv_create_channel_response response;
	struct sv_channel *self = calloc(1, sizeof(*self));
	int fd;

	if (!self) {
		sv_refuse(ENOMEM, "no memory for a completion channel");
		return NULL;
	}
	if (sv_call_fds(sv_of(context), SV_CREATE_CHANNEL, NULL, 0, &response, sizeof(response), &fd, 1, -1)) {
		free(self);
		return NULL;
	}
	self->channel.context = context;
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	self->channel.fd = fd;
	self->handle = response.handle;
	return &self->channel;
}

SV_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	struct sv_channel *self = (struct sv_channel *)channel;
	struct sv_destroy_channel_request request = {.handle = self->handle};
	int users = __atomic_load_n(&channel->refcnt, __ATOMIC_ACQUIRE);
	int error;

	if (users)
		return sv_refuse(EBUSY, "the completion channel is used by %d completion queues", users);
	error = sv_call(sv_of(channel->context), SV_DESTROY_CHANNEL, &request, sizeof(request), NULL, 0);
	if (error && error != EIO)
		return error;
	close(channel->fd);
	free(self);
	return 0;
}

/* The completion queue of a record, with one event more; NULL where it has gone. */
static struct sv_cq *find_cq(struct sv_connection *connection, uint64_t handle)
{
	struct sv_entry *entry;

	pthread_mutex_lock(&connection->entries_lock);
	entry = sv_find(connection, SV_CQ, handle);
	if (entry)
		entry->comp_events++;
	pthread_mutex_unlock(&connection->entries_lock);
	return entry ? (struct sv_cq *)((char *)entry - offsetof(struct sv_cq, entry)) : NULL;
}

SV_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct sv_connection *connection = sv_of(channel->context);
	struct sv_channel_record record;
	struct sv_cq *found;

	if (sv_ask(connection, SV_ASK_GET_CQ_EVENT, 0, 0))
		return -1;
	do {
		int error = atomic_load(&connection->dead) ? EIO : receive_record(channel->fd, &record, sizeof(record));

		if (error) {
			if (error == EIO)
				sv_refuse(error, "ibv_get_cq_event: the device is gone");
			errno = error;
			return -1;
		}
		found = find_cq(connection, record.cq);
	} while (!found);
	*cq = &found->cq;
	*cq_context = found->cq.cq_context;
	return 0;
}

SV_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* Whether events that were read are not yet acknowledged. */
static bool is_owed(const struct sv_entry *entry, const uint32_t *comp, const uint32_t *async)
{
	return (int32_t)(entry->async_events - *async) > 0 || (comp && (int32_t)(entry->comp_events - *comp) > 0);
}

/* Says what a program waits for that forgot to acknowledge, or acknowledged twice. */
static void complain(const struct sv_entry *entry, const uint32_t *comp, const uint32_t *async, const char *words)
{
	static const char *const names[] = {"CQ", "QP", "SRQ"};

	fprintf(stderr,
		"softverbs: %s %u is destroyed%s: completion events: %u read, %u acknowledged; asynchronous events: %u "
		"read, %u acknowledged\n",
		names[entry->kind], entry->handle, words, entry->comp_events, comp ? *comp : 0, entry->async_events,
		*async);
}

void sv_wait_acknowledged(struct sv_connection *connection, struct sv_entry *entry, pthread_mutex_t *lock,
			  pthread_cond_t *condition, const uint32_t *comp, const uint32_t *async)
{
	struct timespec until;
	bool told = false;

	sv_remove(connection, entry); /* from here on no event of it is read */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE;
	pthread_mutex_lock(lock);
	while (is_owed(entry, comp, async)) {
		if (told)
			pthread_cond_wait(condition, lock);
		else if (pthread_cond_timedwait(condition, lock, &until) == ETIMEDOUT) {
			complain(entry, comp, async, ", which waits for acknowledgements");
			told = true;
		}
	}
	if (*async != entry->async_events || (comp && *comp != entry->comp_events))
		complain(entry, comp, async, " with more acknowledgements than events");
	pthread_mutex_unlock(lock);
}

/* -- asynchronous events */

/* The kind of object that an event is about; -1 for events of the port or the device. */
static int kind_of(uint32_t event)
{
	switch (event) {
	case IBV_EVENT_CQ_ERR:
		return SV_CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return SV_QP;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return SV_SRQ;
	default:
		return -1;
	}
}

/* Fills in the object of an event, with one event more. False where it has gone. */
static bool fill_element(struct sv_connection *connection, const struct sv_async_record *record,
			 struct ibv_async_event *event)
{
	int kind = kind_of(record->event);
	struct sv_entry *entry;

	if (kind < 0) {
		event->element.port_num = record->port;
		return true;
	}
	pthread_mutex_lock(&connection->entries_lock);
	entry = sv_find(connection, kind, record->handle);
	if (entry)
		entry->async_events++;
	pthread_mutex_unlock(&connection->entries_lock);
	if (!entry)
		return false;
	if (kind == SV_CQ)
		event->element.cq = (struct ibv_cq *)((char *)entry - offsetof(struct sv_cq, entry));
	else if (kind == SV_QP)
		event->element.qp = (struct ibv_qp *)((char *)entry - offsetof(struct sv_qp, entry));
	else
		event->element.srq = (struct ibv_srq *)((char *)entry - offsetof(struct sv_srq, entry));
	return true;
}

SV_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct sv_connection *connection = sv_of(context);
	struct sv_async_record record;

	do {
		int error = connection->async_fd < 0 ? EIO
						     : receive_record(context->async_fd, &record, sizeof(record));

		if (error == EIO && connection->async_fd >= 0 && !atomic_exchange(&connection->told, true)) {
			/* The end of the device is an event itself, once. */
			sv_lost(connection);
			event->event_type = IBV_EVENT_DEVICE_FATAL;
			event->element.port_num = 0;
			return 0;
		}
		if (error) {
			if (error == EIO)
				sv_refuse(error, "ibv_get_async_event: the device is gone");
			errno = error;
			return -1;
		}
		if (record.event == IBV_EVENT_DEVICE_FATAL)
			atomic_store(&connection->told, true);
		event->event_type = record.event;
	} while (!fill_element(connection, &record, event));
	return 0;
}

/* One event more of an object is acknowledged. */
static void acknowledge(pthread_mutex_t *lock, pthread_cond_t *condition, uint32_t *count)
{
	pthread_mutex_lock(lock);
	++*count;
	pthread_cond_signal(condition);
	pthread_mutex_unlock(lock);
}

SV_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;

	switch (kind_of(event->event_type)) {
	case SV_CQ:
		acknowledge(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case SV_QP:
		acknowledge(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case SV_SRQ:
		acknowledge(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	}
}
