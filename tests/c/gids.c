// SPDX-License-Identifier: MIT
/* The GID table as a program sees it, and connections between its entries.
 *
 * Prints a line for each entry: index, type of ibv_query_gid_ex(3), GID. Then for each two entries whether queue pairs
 * of this device connect and talk, or the reason why they cannot. The last line is "done".
 */
#include "pair.h"
#include "softverbs.h"

#define SPACE 256

static size_t show(struct ibv_context *context, struct ibv_gid_entry *entries)
{
	ssize_t count = ibv_query_gid_table(context, entries, SPACE, 0);
	struct ibv_port_attr port;

	CHECK(count > 0 && !ibv_query_port(context, 1, &port), "no table");
	CHECK(ibv_query_gid_table(context, entries, count - 1, 0) == -EINVAL, "less room than entries");
	CHECK(ibv_query_gid_table(context, entries, count, 0) == count, "room for all entries");
	for (ssize_t i = 0; i < count; i++) {
		struct ibv_gid_entry entry;
		char text[INET6_ADDRSTRLEN];
		union ibv_gid gid;

		CHECK(entries[i].gid_index == i && entries[i].port_num == 1, "entry %zd has its index", i);
		CHECK(!ibv_query_gid_ex(context, 1, i, &entry, 0), "query_gid_ex");
		CHECK(!memcmp(&entry, &entries[i], sizeof(entry)), "both say the same");
		CHECK(!ibv_query_gid(context, 1, i, &gid) && !memcmp(&gid, &entry.gid, sizeof(gid)), "query_gid too");
		printf("%zd v%u %s\n", i, entry.gid_type, inet_ntop(AF_INET6, gid.raw, text, sizeof(text)));
	}
	for (int i = count; i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;

		CHECK(ibv_query_gid_ex(context, 1, i, &entry, 0) == ENODATA, "the rest is empty");
	}
	return count;
}

static int to_rtr_from(struct side *side, struct side *to, int index, const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
				   .path_mtu = IBV_MTU_1024,
				   .dest_qp_num = to->qp->qp_num,
				   .max_dest_rd_atomic = 4,
				   .min_rnr_timer = 1};

	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.sgid_index = index;
	attr.ah_attr.grh.hop_limit = 1;
	return ibv_modify_qp(side->qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static void try(struct pair *pair, const struct ibv_gid_entry *entries, int i, int j)
{
	int error;

	to_state(&pair->a, IBV_QPS_RESET);
	to_state(&pair->b, IBV_QPS_RESET);
	to_init(&pair->a);
	to_init(&pair->b);
	error = to_rtr_from(&pair->a, &pair->b, i, &entries[j].gid);
	if (!error)
		error = to_rtr_from(&pair->b, &pair->a, j, &entries[i].gid);
	if (error) {
		CHECK(error == EINVAL, "the errno is EINVAL");
		printf("%d to %d: %s\n", i, j, softverbs_last_reason());
		return;
	}
	to_rts(&pair->a);
	to_rts(&pair->b);
	CHECK(!receive(&pair->b, 100, 0), "post_recv");
	CHECK(!post(&pair->a, &pair->b, IBV_WR_SEND, IBV_SEND_SIGNALED, 8, 0), "post_send");
	CHECK(take(&pair->a).status == IBV_WC_SUCCESS && take(&pair->b).status == IBV_WC_SUCCESS, "they talk");
	printf("%d to %d: talks\n", i, j);
}

/* The way back of a datagram: the first entry of RoCE v2 with the GID that it came to. */
static void way_back(struct pair *pair, const struct ibv_gid_entry *entries, size_t count)
{
	struct ibv_ah_attr attr;
	struct ibv_wc wc = {.wc_flags = IBV_WC_GRH};
	union {
		struct ibv_grh grh;
		uint8_t raw[40];
	} header = {.raw = {[20] = 0x45}};
	const union ibv_gid *gid = &entries[count - 1].gid;
	uint32_t sum = 0;

	memcpy(header.raw + 32, gid->raw + 12, 4);
	memcpy(header.raw + 36, gid->raw + 12, 4);
	for (int i = 20; i < 40; i += 2)
		sum += header.raw[i] << 8 | header.raw[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	header.raw[30] = ~sum >> 8;
	header.raw[31] = ~sum;
	CHECK(!ibv_init_ah_from_wc(pair->context, 1, &wc, &header.grh, &attr), "init_ah_from_wc");
	CHECK(!memcmp(&attr.grh.dgid, gid, sizeof(*gid)), "it leads to the sender");
	CHECK(entries[attr.grh.sgid_index].gid_type == IBV_GID_TYPE_ROCE_V2, "it can be sent from");
	CHECK(!memcmp(&entries[attr.grh.sgid_index].gid, gid, sizeof(*gid)), "it leaves from where it came to");
	printf("back: %u\n", attr.grh.sgid_index);
}

int main(void)
{
	struct pair *pair = make_pair(NULL);
	struct ibv_gid_entry entries[SPACE];
	size_t count = show(pair->context, entries);

	for (size_t i = 0; i < count; i++)
		for (size_t j = 0; j < count; j++)
			try(pair, entries, i, j);
	way_back(pair, entries, count);
	close_pair(pair);
	puts("done");
	return 0;
}
