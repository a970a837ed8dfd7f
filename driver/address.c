// SPDX-License-Identifier: MIT
/* Address handles (ibv_create_ah(3), ibv_create_ah_from_wc(3)).
 *
 * The 40 bytes in front of a datagram are an IPv6 header; where the peer's address is one of IPv4 the last 20 of them
 * are an IPv4 header, and the first 20 mean nothing (IBA annex A17.4.5.1).
 */
#include "driver.h"

#define IPV4_AT 20
#define ALL_HOPS 0xff

SV_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct sv_create_ah_request request = {.pd = sv_pd_handle(pd)};
	struct sv_create_ah_response response;
	struct sv_ah *self;

	sv_from_ah_attr(&request.attr, attr);
	if (sv_call(sv_of(pd->context), SV_CREATE_AH, &request, sizeof(request), &response, sizeof(response)))
		return NULL;
	self = calloc(1, sizeof(*self));
	if (!self) {
		sv_refuse(ENOMEM, "no memory for an address handle");
		return NULL;
	}
	self->ah.context = pd->context;
	self->ah.pd = pd;
	self->ah.handle = response.handle;
	self->number = response.number;
	return &self->ah;
}

SV_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct sv_destroy_ah_request request = {.handle = ah->handle};
	int error = sv_call(sv_of(ah->context), SV_DESTROY_AH, &request, sizeof(request), NULL, 0);

	if (error && error != EIO)
		return error;
	free(ah);
	return 0;
}

/* -- back to the sender of a datagram */

/* ::ffff:a.b.c.d */
static void map_ipv4(union ibv_gid *gid, const uint8_t *address)
{
	memset(gid->raw, 0, 10);
	memset(gid->raw + 10, 0xff, 2);
	memcpy(gid->raw + 12, address, 4);
}

/* Reads the sender's GID and what it sent to; false where there is no such header. */
static bool read_grh(const struct ibv_grh *grh, union ibv_gid *from, union ibv_gid *to, uint32_t *flow_label,
		     uint8_t *traffic_class)
{
	const uint8_t *bytes = (const uint8_t *)grh;
	uint32_t first = be32toh(grh->version_tclass_flow);

	if (bytes[IPV4_AT] == 0x45) { /* version 4, 20 bytes: nothing else has this there in a header of IPv6 that is ours */
		uint32_t sum = 0;

		for (int i = 0; i < 20; i += 2)
			sum += bytes[IPV4_AT + i] << 8 | bytes[IPV4_AT + i + 1];
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		if (first >> 28 != 6 || sum == 0xffff) {
			map_ipv4(from, bytes + IPV4_AT + 12);
			map_ipv4(to, bytes + IPV4_AT + 16);
			*flow_label = 0;
			*traffic_class = bytes[IPV4_AT + 1];
			return true;
		}
	}
	if (first >> 28 != 6)
		return false;
	*from = grh->sgid;
	*to = grh->dgid;
	*flow_label = first & 0xfffff;
	*traffic_class = first >> 20 & 0xff;
	return true;
}

static bool is_ipv4(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};

	return !memcmp(gid->raw, prefix, sizeof(prefix));
}

/* The index of a GID in the device's table, of RoCE v2, as all datagrams are; the first of its IP version where it is
 * not there, as for a multicast group.
 */
static uint8_t index_of(struct ibv_context *context, const union ibv_gid *gid)
{
	struct ibv_gid_entry entries[256];
	ssize_t count = _ibv_query_gid_table(context, entries, 256, 0, sizeof(*entries));
	ssize_t first = -1;

	for (ssize_t i = 0; i < count; i++) {
		if (entries[i].gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		if (!memcmp(entries[i].gid.raw, gid->raw, sizeof(gid->raw)))
			return entries[i].gid_index;
		if (first < 0 && is_ipv4(&entries[i].gid) == is_ipv4(gid))
			first = i;
	}
	return first >= 0 ? entries[first].gid_index : 0;
}

SV_EXPORT int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
				  struct ibv_grh *grh, struct ibv_ah_attr *ah_attr)
{
	union ibv_gid to;

	memset(ah_attr, 0, sizeof(*ah_attr));
	ah_attr->dlid = wc->slid;
	ah_attr->sl = wc->sl;
	ah_attr->src_path_bits = wc->dlid_path_bits;
	ah_attr->port_num = port_num;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	if (!read_grh(grh, &ah_attr->grh.dgid, &to, &ah_attr->grh.flow_label, &ah_attr->grh.traffic_class)) {
		sv_refuse(EINVAL, "ibv_init_ah_from_wc: no header of IPv4 or IPv6 is in front of the datagram");
		return -1;
	}
	ah_attr->is_global = 1;
	ah_attr->grh.sgid_index = index_of(context, &to);
	ah_attr->grh.hop_limit = ALL_HOPS;
	return 0;
}

SV_EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
					       uint8_t port_num)
{
	struct ibv_ah_attr attr;

	if (ibv_init_ah_from_wc(pd->context, port_num, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

/* Of the vendors' libraries, which write Ethernet headers themselves. */
SV_EXPORT int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
					  uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
	(void)context;
	(void)attr;
	(void)eth_mac;
	(void)vid;
	return sv_refuse(EOPNOTSUPP, "ibv_resolve_eth_l2_from_gid: the system's network finds its way by itself");
}
