// SPDX-License-Identifier: MIT
/* Addresses: as programs have them, as the protocol has them, and looked up by name (rdma_getaddrinfo(3)). */
#include <netdb.h>
#include <netinet/in.h>

#include "rdmacm.h"

socklen_t sv_cm_length(const struct sockaddr *address)
{
	if (address && address->sa_family == AF_INET)
		return sizeof(struct sockaddr_in);
	if (address && address->sa_family == AF_INET6)
		return sizeof(struct sockaddr_in6);
	return 0;
}

void sv_cm_from_sockaddr(struct sv_cm_address *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof(*to));
	if (sv_cm_length(from) == sizeof(struct sockaddr_in)) {
		struct sockaddr_in address;

		memcpy(&address, from, sizeof(address));
		to->length = sizeof(address.sin_addr);
		to->port = ntohs(address.sin_port);
		memcpy(to->ip, &address.sin_addr, sizeof(address.sin_addr));
	} else if (sv_cm_length(from)) {
		struct sockaddr_in6 address;

		memcpy(&address, from, sizeof(address));
		to->length = sizeof(address.sin6_addr);
		to->port = ntohs(address.sin6_port);
		to->scope_id = address.sin6_scope_id;
		memcpy(to->ip, &address.sin6_addr, sizeof(address.sin6_addr));
	}
}

void sv_cm_to_sockaddr(struct sockaddr_storage *to, const struct sv_cm_address *from)
{
	memset(to, 0, sizeof(*to));
	if (from->length == sizeof(struct in_addr)) {
		struct sockaddr_in *address = (struct sockaddr_in *)to;

		address->sin_family = AF_INET;
		address->sin_port = htons(from->port);
		memcpy(&address->sin_addr, from->ip, sizeof(address->sin_addr));
	} else if (from->length) {
		struct sockaddr_in6 *address = (struct sockaddr_in6 *)to;

		address->sin6_family = AF_INET6;
		address->sin6_port = htons(from->port);
		address->sin6_scope_id = from->scope_id;
		memcpy(&address->sin6_addr, from->ip, sizeof(address->sin6_addr));
	}
}

static __be16 port_of(const struct sockaddr_storage *address)
{
	if (address->ss_family == AF_INET)
		return ((const struct sockaddr_in *)address)->sin_port;
	if (address->ss_family == AF_INET6)
		return ((const struct sockaddr_in6 *)address)->sin6_port;
	return 0;
}

SV_EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_storage);
}

SV_EXPORT __be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_storage);
}

/* -- rdma_getaddrinfo(3) */

/* What to ask getaddrinfo(3) for. */
static void wanted(struct addrinfo *to, const struct rdma_addrinfo *hints)
{
	memset(to, 0, sizeof(*to));
	if (!hints)
		return;
	if (hints->ai_flags & RAI_PASSIVE)
		to->ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		to->ai_flags |= AI_NUMERICHOST;
	to->ai_family = hints->ai_family;
	if (hints->ai_qp_type)
		to->ai_socktype = hints->ai_qp_type == IBV_QPT_UD ? SOCK_DGRAM : SOCK_STREAM;
	switch (hints->ai_port_space) {
	case RDMA_PS_TCP:
		to->ai_protocol = IPPROTO_TCP;
		break;
	case RDMA_PS_UDP:
	case RDMA_PS_IPOIB:
		to->ai_protocol = IPPROTO_UDP;
		break;
	case RDMA_PS_IB:
		if (to->ai_socktype)
			to->ai_protocol = to->ai_socktype == SOCK_DGRAM ? IPPROTO_UDP : IPPROTO_TCP;
		break;
	}
}

/* A copy of an address: 0, or an errno. */
static int copy_address(struct sockaddr **to, socklen_t *to_length, const struct sockaddr *from, socklen_t length)
{
	*to = malloc(length);
	if (!*to)
		return ENOMEM;
	memcpy(*to, from, length);
	*to_length = length;
	return 0;
}

/* Fills in what was found: 0, or an errno. */
static int fill(struct rdma_addrinfo *info, const struct rdma_addrinfo *hints, const struct addrinfo *found)
{
	bool datagrams = found->ai_socktype == SOCK_DGRAM;
	bool passive = hints && hints->ai_flags & RAI_PASSIVE;

	info->ai_family = found->ai_family;
	info->ai_qp_type = hints && hints->ai_qp_type ? hints->ai_qp_type : datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	info->ai_port_space = hints && hints->ai_port_space     ? hints->ai_port_space
			      : found->ai_protocol == IPPROTO_UDP ? RDMA_PS_UDP
								  : RDMA_PS_TCP;
	if (passive) {
		info->ai_flags = RAI_PASSIVE;
		if (found->ai_canonname)
			info->ai_src_canonname = strdup(found->ai_canonname);
		return copy_address(&info->ai_src_addr, &info->ai_src_len, found->ai_addr, found->ai_addrlen);
	}
	if (found->ai_canonname)
		info->ai_dst_canonname = strdup(found->ai_canonname);
	return copy_address(&info->ai_dst_addr, &info->ai_dst_len, found->ai_addr, found->ai_addrlen);
}

/* Looks a name up: 0, -1 with errno, or an error of getaddrinfo(3). */
static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints, struct rdma_addrinfo *info)
{
	struct addrinfo asked, *found;
	int error;

	wanted(&asked, hints);
	error = getaddrinfo(node, service, &asked, &found);
	if (error)
		return error;
	error = fill(info, hints, found);
	freeaddrinfo(found);
	return sv_cm_result(error);
}

/* Without a name: what the hints say themselves. */
static int from_hints(const struct rdma_addrinfo *hints, struct rdma_addrinfo *info)
{
	info->ai_flags = hints->ai_flags;
	info->ai_family = hints->ai_family;
	info->ai_qp_type = hints->ai_qp_type;
	info->ai_port_space = hints->ai_port_space;
	if (!hints->ai_dst_len)
		return 0;
	return sv_cm_result(
		copy_address(&info->ai_dst_addr, &info->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len));
}

#ifndef RAI_SA
#define RAI_SA 0x10
#endif

SV_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			       struct rdma_addrinfo **res)
{
	struct rdma_addrinfo *info;
	int result;

	if (!node && !service && !hints)
		return sv_cm_result(sv_refuse(EINVAL, "rdma_getaddrinfo: neither node nor service nor hints are given"));
	if (hints && hints->ai_flags & RAI_SA)
		return sv_cm_result(
			sv_refuse(EOPNOTSUPP, "rdma_getaddrinfo: RAI_SA: RoCE has no subnet administrator"));
	info = calloc(1, sizeof(*info));
	if (!info)
		return sv_cm_result(ENOMEM);
	result = node || service ? look_up(node, service, hints, info) : from_hints(hints, info);
	if (!result && hints && hints->ai_src_len && !info->ai_src_len)
		result = sv_cm_result(
			copy_address(&info->ai_src_addr, &info->ai_src_len, hints->ai_src_addr, hints->ai_src_len));
	if (result) {
		int error = errno;

		rdma_freeaddrinfo(info);
		errno = error;
		return result;
	}
	*res = info;
	return 0;
}

SV_EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;

		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}
