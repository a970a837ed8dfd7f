/* SPDX-License-Identifier: MIT */
/* Our librdmacm: identifiers and events of the connection manager, which is in the device (docs/cm.md).
 *
 * No logic of the connection manager is here: each function is a command to the device (abi.h, CM_*), and what comes of
 * it is told by events, which wait in the device until rdma_get_cm_event(3) takes them. What happens here is what the
 * device cannot do: the queue pair of an identifier is made and moved, and memory is allocated and freed.
 */
#ifndef SV_RDMACM_H
#define SV_RDMACM_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "driver.h"

#define SV_ANY_DEPTH 0xFF /* RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH */

struct sv_cm_channel {
	struct rdma_event_channel channel;
	struct sv_connection *connection;
	uint32_t handle;
};

/* A multicast group that an identifier has joined. */
struct sv_cm_group {
	struct sv_cm_group *next;
	uint64_t cookie; /* of its event; never used again */
	struct sockaddr_storage address;
	union ibv_gid gid;
	bool attached;
	bool send_only;
	void *context;
};

struct sv_cm_id {
	struct rdma_cm_id id;
	struct sv_cm_id *next; /* in the table by handle */
	struct sv_connection *connection;
	uint32_t handle;
	bool sync;	/* it has a channel of its own, and waits in it */
	bool failed;	/* it could not be connected: what comes afterwards is not told */
	bool removed;	/* DEVICE_REMOVAL was told */
	pthread_mutex_t lock;
	pthread_cond_t acknowledged;
	uint32_t reported;  /* events that were taken; with the lock of the table */
	uint32_t completed; /* events that were acknowledged */
	struct sv_cm_group *groups;
	struct ibv_qp_init_attr *init; /* of the queue pairs of requests (rdma_create_ep(3)) */
	void *connect;		       /* private data before the program's (rdma_addrinfo) */
	size_t connect_length;
	struct ibv_ece local_ece;
	struct ibv_ece remote_ece;
};

struct sv_cm_event {
	struct rdma_cm_event event;
	struct sv_cm_id *owner; /* that waits for its acknowledgement */
	uint8_t private_data[256];
};

static inline struct sv_cm_id *sv_cm(struct rdma_cm_id *id)
{
	return (struct sv_cm_id *)id;
}

static inline struct sv_cm_channel *sv_cm_channel(struct rdma_event_channel *channel)
{
	return (struct sv_cm_channel *)channel;
}

/* What functions of librdmacm return for an errno. */
static inline int sv_cm_result(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

/* A command, and what its function returns; `response` may be NULL. */
static inline int sv_cm_call(struct sv_connection *connection, enum sv_command command, const void *request,
			     size_t request_size, void *response, size_t response_size)
{
	return sv_cm_result(sv_call(connection, command, request, request_size, response, response_size));
}

#define SV_CM_CALL(self, command, request) sv_cm_call((self)->connection, command, &(request), sizeof(request), NULL, 0)

/* -- device.c: the device, open once for each process */

/* The context that all identifiers share; NULL with ENODEV where there is no device. */
struct ibv_context *sv_cm_home(void);
/* The protection domain that they share. */
struct ibv_pd *sv_cm_pd(void);

/* -- id.c */

/* Identifiers by handle. With the table's lock held an identifier does not go, and no event is taken. The thread that
 * holds it cannot be cancelled (pthread_cancel(3)).
 */
void sv_cm_lock_ids(void);
void sv_cm_unlock_ids(void);
void sv_cm_reset_ids_lock(void);
struct sv_cm_id *sv_cm_find(struct sv_connection *connection, uint32_t handle);
/* One of a channel that has a device and was not told of its end; NULL where there is none. */
struct sv_cm_id *sv_cm_find_untold(struct rdma_event_channel *channel);
/* An identifier for one that the device has made, of a request to `listener`. */
struct sv_cm_id *sv_cm_adopt(struct sv_cm_id *listener, uint32_t handle);
/* Writes what the device knows into the identifier: addresses, GIDs, path; and gives it its context. */
int sv_cm_refresh(struct sv_cm_id *self);
/* Of a synchronous identifier: waits for the event that tells the outcome. */
int sv_cm_complete(struct sv_cm_id *self);
/* An event was acknowledged, or is not told to the program. */
void sv_cm_acknowledge(struct sv_cm_id *self);
/* Takes the bytes of events that are no longer there out of a channel. */
void sv_cm_take_back(struct rdma_event_channel *channel, uint32_t count);

/* -- address.c */

/* Bytes of an address of IPv4 or IPv6; 0 for others. */
socklen_t sv_cm_length(const struct sockaddr *address);
void sv_cm_from_sockaddr(struct sv_cm_address *to, const struct sockaddr *from);
void sv_cm_to_sockaddr(struct sockaddr_storage *to, const struct sv_cm_address *from);

/* -- qp.c */

int sv_cm_make_ready(struct sv_cm_id *self);
int sv_cm_fail_qp(struct sv_cm_id *self);

/* -- group.c */

/* A group was joined: attaches the queue pair. 0, an errno, or -1 where the group was left meanwhile.
 * `context`: what the program gave to rdma_join_multicast(3).
 */
int sv_cm_joined(struct sv_cm_id *self, uint64_t cookie, const union ibv_gid *gid, const void **context);
void sv_cm_forget_groups(struct sv_cm_id *self);

#endif
