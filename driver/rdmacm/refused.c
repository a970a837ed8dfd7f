// SPDX-License-Identifier: MIT
/* What is there so that programs load, and is refused: rsockets, and asynchronous look-ups of rdma-core 60 and later. */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

#include "rdmacm.h"

__attribute__((used)) static long no_rsockets(void)
{
	sv_refuse(EOPNOTSUPP, "rsockets are not supported: use sockets, or the functions of rdma_cma.h");
	return -1;
}

/* The same function under many names. */
#define NO_RSOCKETS(name) __asm__(".globl " #name "\n.type " #name ", @function\n.set " #name ", no_rsockets")

NO_RSOCKETS(rsocket);
NO_RSOCKETS(rbind);
NO_RSOCKETS(rlisten);
NO_RSOCKETS(raccept);
NO_RSOCKETS(rconnect);
NO_RSOCKETS(rshutdown);
NO_RSOCKETS(rclose);
NO_RSOCKETS(rrecv);
NO_RSOCKETS(rrecvfrom);
NO_RSOCKETS(rrecvmsg);
NO_RSOCKETS(rsend);
NO_RSOCKETS(rsendto);
NO_RSOCKETS(rsendmsg);
NO_RSOCKETS(rread);
NO_RSOCKETS(rreadv);
NO_RSOCKETS(rwrite);
NO_RSOCKETS(rwritev);
NO_RSOCKETS(rgetpeername);
NO_RSOCKETS(rgetsockname);
NO_RSOCKETS(rsetsockopt);
NO_RSOCKETS(rgetsockopt);
NO_RSOCKETS(rfcntl);
NO_RSOCKETS(riomap);
NO_RSOCKETS(riounmap);
NO_RSOCKETS(riowrite);
NO_RSOCKETS(repoll_create);
NO_RSOCKETS(repoll_ctl);
NO_RSOCKETS(repoll_wait);

/* Other descriptors than rsockets may be waited for by these two. */
SV_EXPORT int rpoll(struct pollfd *fds, nfds_t nfds, int timeout)
{
	return poll(fds, nfds, timeout);
}

SV_EXPORT int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout)
{
	return select(nfds, readfds, writefds, exceptfds, timeout);
}

/* -- of newer headers */

SV_EXPORT int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
				    const struct rdma_addrinfo *hints)
{
	(void)id;
	(void)node;
	(void)service;
	(void)hints;
	return sv_cm_result(sv_refuse(EOPNOTSUPP, "rdma_resolve_addrinfo is not supported: use rdma_getaddrinfo"));
}

SV_EXPORT int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info)
{
	(void)id;
	(void)info;
	return sv_cm_result(sv_refuse(EOPNOTSUPP, "rdma_query_addrinfo is not supported: use rdma_getaddrinfo"));
}

SV_EXPORT int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status, uint64_t arg)
{
	(void)id;
	(void)event;
	(void)status;
	(void)arg;
	return sv_cm_result(sv_refuse(EOPNOTSUPP, "rdma_write_cm_event is not supported"));
}
