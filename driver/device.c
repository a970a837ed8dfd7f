// SPDX-License-Identifier: MIT
/* The list of devices, opening and closing, and what a device says about itself. */
#include <stdio.h>
#include <time.h>

#include "driver.h"
#include "versions.h"

#define SYSFS "/sys"

/* The only device that a process sees: that of SOFTVERBS_SOCKET. Programs keep pointers to it, so it never goes. */
static struct sv_device the_device;
static pthread_mutex_t device_lock = PTHREAD_MUTEX_INITIALIZER;

/* Writes what HELLO said into the device. Programs read it at any time, without a lock, so the same is not written again:
 * it is another only where SOFTVERBS_SOCKET has become that of another device.
 */
static void describe(struct sv_device *self, const struct sv_hello_response *hello)
{
	struct ibv_device *device = &self->device;

	pthread_mutex_lock(&device_lock);
	if (self->guid == hello->guid && !strncmp(device->name, hello->name, sizeof(device->name) - 1)) {
		pthread_mutex_unlock(&device_lock);
		return;
	}
	device->node_type = IBV_NODE_CA;
	device->transport_type = IBV_TRANSPORT_IB;
	snprintf(device->name, sizeof(device->name), "%.63s", hello->name);
	snprintf(device->dev_name, sizeof(device->dev_name), "uverbs0");
	snprintf(device->dev_path, sizeof(device->dev_path), SYSFS "/class/infiniband_verbs/uverbs0");
	snprintf(device->ibdev_path, sizeof(device->ibdev_path), SYSFS "/class/infiniband/%.63s", hello->name);
	self->guid = hello->guid;
	pthread_mutex_unlock(&device_lock);
}

SV_EXPORT struct ibv_device **ibv_get_device_list(int *num_devices)
{
	struct ibv_device **list = calloc(2, sizeof(*list));
	struct sv_connection *connection;

	if (num_devices)
		*num_devices = 0;
	if (!list)
		return NULL;
	connection = sv_connect(SV_PURPOSE_LIST);
	if (!connection) {
		sv_tell_unreachable(errno);
		errno = 0; /* no device is no error */
		return list;
	}
	describe(&the_device, &connection->hello);
	sv_disconnect(connection);
	list[0] = &the_device.device;
	if (num_devices)
		*num_devices = 1;
	return list;
}

SV_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

SV_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

SV_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	return htobe64(((struct sv_device *)device)->guid);
}

SV_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
	(void)device;
	return 0;
}

/* -- opening and closing */

/* A context upon a connection, which it takes over. */
static struct ibv_context *make_context(struct sv_connection *connection)
{
	struct sv_context *self = calloc(1, sizeof(*self));
	struct ibv_context *context;

	if (!self) {
		sv_disconnect(connection);
		errno = ENOMEM;
		return NULL;
	}
	self->connection = connection;
	self->verbs.sz = sizeof(self->verbs);
	sv_fill_operations(&self->verbs);
	context = &self->verbs.context;
	context->device = &the_device.device;
	context->cmd_fd = connection->socket;
	context->async_fd = connection->async_fd;
	context->num_comp_vectors = connection->hello.num_comp_vectors;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&context->mutex, NULL);
	return context;
}

SV_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct sv_connection *connection;

	if (device != &the_device.device) {
		sv_refuse(ENODEV, "ibv_open_device: a device that is not from ibv_get_device_list");
		return NULL;
	}
	connection = sv_connect(SV_PURPOSE_CONTEXT);
	if (!connection)
		return NULL;
	describe(&the_device, &connection->hello);
	return make_context(connection);
}

SV_EXPORT struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct sv_connection *connection = sv_share(cmd_fd);

	if (!connection) {
		sv_refuse(EOPNOTSUPP, "ibv_import_device: descriptor %d is no context of this process", cmd_fd);
		return NULL;
	}
	return make_context(connection);
}

SV_EXPORT int ibv_close_device(struct ibv_context *context)
{
	char *base = (char *)context - offsetof(struct sv_context, verbs.context);
	struct sv_context *self = (struct sv_context *)base;

	sv_disconnect(self->connection);
	pthread_mutex_destroy(&context->mutex);
	free(self);
	return 0;
}

/* -- queries */

static void fill_device_attr(struct ibv_device_attr *attr, const struct sv_query_device_response *from)
{
	memset(attr, 0, sizeof(*attr));
	memcpy(attr->fw_ver, from->fw_ver, sizeof(attr->fw_ver));
	attr->fw_ver[sizeof(attr->fw_ver) - 1] = 0;
	attr->node_guid = from->node_guid;
	attr->sys_image_guid = from->sys_image_guid;
	attr->max_mr_size = from->max_mr_size;
	attr->page_size_cap = from->page_size_cap;
	attr->vendor_id = from->vendor_id;
	attr->vendor_part_id = from->vendor_part_id;
	attr->hw_ver = from->hw_ver;
	attr->max_qp = from->max_qp;
	attr->max_qp_wr = from->max_qp_wr;
	attr->device_cap_flags = from->device_cap_flags;
	attr->max_sge = from->max_sge;
	attr->max_sge_rd = from->max_sge_rd;
	attr->max_cq = from->max_cq;
	attr->max_cqe = from->max_cqe;
	attr->max_mr = from->max_mr;
	attr->max_pd = from->max_pd;
	attr->max_qp_rd_atom = from->max_qp_rd_atom;
	attr->max_res_rd_atom = from->max_res_rd_atom;
	attr->max_qp_init_rd_atom = from->max_qp_init_rd_atom;
	attr->atomic_cap = from->atomic_caps;
	attr->max_mw = from->max_mw;
	attr->max_mcast_grp = from->max_mcast_grp;
	attr->max_mcast_qp_attach = from->max_mcast_qp_attach;
	attr->max_total_mcast_qp_attach = from->max_total_mcast_qp_attach;
	attr->max_ah = from->max_ah;
	attr->max_srq = from->max_srq;
	attr->max_srq_wr = from->max_srq_wr;
	attr->max_srq_sge = from->max_srq_sge;
	attr->max_pkeys = from->max_pkeys;
	attr->local_ca_ack_delay = from->local_ca_ack_delay;
	attr->phys_port_cnt = from->phys_port_cnt;
}

SV_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr)
{
	struct sv_query_device_response response;
	int error = sv_ask(sv_own(sv_of(context)), SV_ASK_QUERY_DEVICE, 0, 0);

	if (!error)
		error = sv_call(sv_own(sv_of(context)), SV_QUERY_DEVICE, NULL, 0, &response, sizeof(response));
	if (!error)
		fill_device_attr(device_attr, &response);
	return error;
}

int sv_query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		       struct ibv_device_attr_ex *attr, size_t size)
{
	struct sv_query_device_response response;
	struct ibv_device_attr_ex all;
	int error;

	if (input && input->comp_mask)
		return sv_refuse(EINVAL, "ibv_query_device_ex: comp_mask of the input has to be 0");
	error = sv_ask(sv_own(sv_of(context)), SV_ASK_QUERY_DEVICE_EX, 0, 0);
	if (!error)
		error = sv_call(sv_own(sv_of(context)), SV_QUERY_DEVICE, NULL, 0, &response, sizeof(response));
	if (error)
		return error;
	memset(&all, 0, sizeof(all));
	fill_device_attr(&all.orig_attr, &response);
	all.odp_caps.general_caps = response.odp_general_caps;
	all.odp_caps.per_transport_caps.rc_odp_caps = response.rc_odp_caps;
	all.odp_caps.per_transport_caps.uc_odp_caps = response.uc_odp_caps;
	all.odp_caps.per_transport_caps.ud_odp_caps = response.ud_odp_caps;
	all.completion_timestamp_mask = response.completion_timestamp_mask;
	all.hca_core_clock = response.hca_core_clock;
	all.device_cap_flags_ex = response.device_cap_flags_ex;
	all.max_wq_type_rq = response.max_wq_type_rq;
	all.raw_packet_caps = response.raw_packet_caps;
	all.cq_mod_caps.max_cq_count = response.max_cq_count;
	all.cq_mod_caps.max_cq_period = response.max_cq_period;
	all.max_dm_size = response.max_dm_size;
	all.xrc_odp_caps = response.xrc_odp_caps;
	all.phys_port_cnt_ex = response.phys_port_cnt_ex;
	memset(attr, 0, size);
	memcpy(attr, &all, size < sizeof(all) ? size : sizeof(all));
	return 0;
}

/* ibv_query_port(3) into a structure of `size` bytes: older programs have a shorter one. */
int sv_query_port_ex(struct ibv_context *context, uint8_t port_num, struct ibv_port_attr *attr, size_t size)
{
	struct sv_query_port_request request = {.port_num = port_num};
	struct sv_query_port_response from;
	union {
		struct ibv_port_attr attr;
		uint8_t bytes[128];
	} all;
	/* active_speed_ex, of rdma-core 52 and later, is the next member. */
	const size_t behind = offsetof(struct ibv_port_attr, port_cap_flags2) + sizeof(uint16_t);
	int error = sv_call(sv_own(sv_of(context)), SV_QUERY_PORT, &request, sizeof(request), &from, sizeof(from));

	if (error)
		return error;
	memset(&all, 0, sizeof(all));
	all.attr.state = from.state;
	all.attr.max_mtu = from.max_mtu;
	all.attr.active_mtu = from.active_mtu;
	all.attr.gid_tbl_len = from.gid_tbl_len;
	all.attr.port_cap_flags = from.port_cap_flags;
	all.attr.max_msg_sz = from.max_msg_sz;
	all.attr.bad_pkey_cntr = from.bad_pkey_cntr;
	all.attr.qkey_viol_cntr = from.qkey_viol_cntr;
	all.attr.pkey_tbl_len = from.pkey_tbl_len;
	all.attr.lid = from.lid;
	all.attr.sm_lid = from.sm_lid;
	all.attr.lmc = from.lmc;
	all.attr.max_vl_num = from.max_vl_num;
	all.attr.sm_sl = from.sm_sl;
	all.attr.subnet_timeout = from.subnet_timeout;
	all.attr.init_type_reply = from.init_type_reply;
	all.attr.active_width = from.active_width;
	all.attr.active_speed = from.active_speed;
	all.attr.phys_state = from.phys_state;
	all.attr.link_layer = from.link_layer;
	all.attr.flags = from.flags;
	all.attr.port_cap_flags2 = from.port_cap_flags2;
	memcpy(all.bytes + behind, &from.active_speed_ex, sizeof(from.active_speed_ex));
	memset(attr, 0, size);
	memcpy(attr, &all, size < sizeof(all) ? size : sizeof(all));
	return 0;
}

/* What programs before rdma-core 1.2 call, whose structure ends with phys_state or link_layer. Newer headers cleared the
 * whole of it before they came here.
 */
SV_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr)
{
	return sv_query_port_ex(context, port_num, (struct ibv_port_attr *)port_attr,
				offsetof(struct ibv_port_attr, link_layer) + 1);
}

/* ibv_query_port_speed(3) of rdma-core 62. */
__attribute__((used)) static int query_port_speed(void)
{
	return sv_refuse(EOPNOTSUPP, "ibv_query_port_speed: a device in software has no speed of its own");
}
BIND_DEFAULT(query_port_speed, ibv_query_port_speed, IBVERBS_1.16);

/* `verb`: SV_ASK_*, what the program has called. */
static int query_gid(struct ibv_context *context, unsigned int verb, uint32_t port_num, uint32_t gid_index,
		     struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	struct sv_query_gid_request request = {.port_num = port_num, .index = gid_index};
	struct sv_query_gid_response response;
	struct ibv_gid_entry found = {.gid_index = gid_index, .port_num = port_num};
	int error;

	if (flags)
		return sv_refuse(EINVAL, "ibv_query_gid_ex: flags=%#x: no bit of it is known", flags);
	error = sv_ask(sv_own(sv_of(context)), verb, 0, 0);
	if (!error)
		error = sv_call(sv_own(sv_of(context)), SV_QUERY_GID, &request, sizeof(request), &response, sizeof(response));
	if (error)
		return error;
	memcpy(found.gid.raw, response.gid, sizeof(response.gid));
	found.gid_type = response.type;
	found.ndev_ifindex = response.ndev_ifindex;
	memset(entry, 0, entry_size);
	memcpy(entry, &found, entry_size < sizeof(found) ? entry_size : sizeof(found));
	return 0;
}

SV_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
				struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size)
{
	return query_gid(context, SV_ASK_QUERY_GID_EX, port_num, gid_index, entry, flags, entry_size);
}

SV_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries,
				       uint32_t flags, size_t entry_size)
{
	struct ibv_port_attr port;
	size_t count = 0;
	int error = sv_ask(sv_own(sv_of(context)), SV_ASK_QUERY_GID_TABLE, 0, 0);

	if (!error)
		error = sv_query_port_ex(context, SV_PORT, &port, sizeof(port));
	for (int i = 0; !error && i < port.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;

		error = query_gid(context, SV_ASK_NOTHING, SV_PORT, i, &entry, flags, sizeof(entry));
		if (error == ENODATA) {
			error = 0;
			continue;
		}
		if (!error && count == max_entries)
			error = EINVAL;
		if (!error)
			memcpy((char *)entries + entry_size * count++, &entry,
			       entry_size < sizeof(entry) ? entry_size : sizeof(entry));
	}
	return error ? -error : (ssize_t)count;
}

SV_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int error = query_gid(context, SV_ASK_QUERY_GID, port_num, index, &entry, 0, sizeof(entry));

	if (error == ENODATA) { /* an empty entry: zeros */
		memset(gid, 0, sizeof(*gid));
		return 0;
	}
	if (error) {
		errno = error;
		return -1;
	}
	*gid = entry.gid;
	return 0;
}

/* Of the private node: 0 for InfiniBand and RoCE v1, 1 for RoCE v2. */
__attribute__((used)) static int query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index,
						int *type)
{
	struct ibv_gid_entry entry;
	int error = query_gid(context, SV_ASK_QUERY_GID_TYPE, port_num, index, &entry, 0, sizeof(entry));

	if (error && error != ENODATA) {
		errno = error;
		return -1;
	}
	*type = error ? 0 : entry.gid_type == IBV_GID_TYPE_ROCE_V2;
	return 0;
}
PRIVATE(query_gid_type, ibv_query_gid_type);

SV_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey)
{
	struct sv_query_pkey_request request = {.port_num = port_num, .index = index};
	struct sv_query_pkey_response response;
	int error = sv_call(sv_own(sv_of(context)), SV_QUERY_PKEY, &request, sizeof(request), &response, sizeof(response));

	if (error) {
		errno = error;
		return -1;
	}
	*pkey = htobe16(response.pkey);
	return 0;
}

SV_EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey)
{
	__be16 found;

	if (sv_ask(sv_own(sv_of(context)), SV_ASK_GET_PKEY_INDEX, 0, 0))
		return -1;
	for (int i = 0; !ibv_query_pkey(context, port_num, i, &found); i++)
		if (found == pkey)
			return i;
	return -1;
}

/* The device's clock is CLOCK_MONOTONIC. */
int sv_query_rt_values(struct ibv_context *context, struct ibv_values_ex *values)
{
	int error = sv_ask(sv_own(sv_of(context)), SV_ASK_QUERY_RT_VALUES_EX, 0, 0);

	if (error)
		return error;
	if (values->comp_mask & ~(uint32_t)IBV_VALUES_MASK_RAW_CLOCK)
		return sv_refuse(EINVAL, "ibv_query_rt_values_ex: comp_mask=%#x is not known", values->comp_mask);
	if (values->comp_mask)
		clock_gettime(CLOCK_MONOTONIC, &values->raw_clock);
	return 0;
}

/* -- what other devices keep in files */

SV_EXPORT const char *ibv_get_sysfs_path(void)
{
	return SYSFS;
}

/* The content of a file of /sys/class/infiniband/NAME, "" where there is none such. */
static void sysfs_text(const char *file, char *text, size_t size)
{
	unsigned int index;

	*text = 0;
	if (!strcmp(file, "node_type"))
		snprintf(text, size, "1: CA");
	else if (!strcmp(file, "node_desc"))
		snprintf(text, size, "softverbs");
	else if (!strcmp(file, "board_id") || !strcmp(file, "hca_type"))
		snprintf(text, size, "softverbs");
	else if (sscanf(file, "ports/1/gid_attrs/types/%u", &index) == 1)
		snprintf(text, size, "RoCE v2");
	else if (!strcmp(file, "ports/1/link_layer"))
		snprintf(text, size, "Ethernet");
	else if (!strcmp(file, "ports/1/rate"))
		snprintf(text, size, "2.5 Gb/sec (1X SDR)");
}

/* Reads a file and takes the line's end away: its length, or -1. */
static int read_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[2 * IBV_SYSFS_PATH_MAX];
	FILE *stream;
	size_t length;

	snprintf(path, sizeof(path), "%s/%s", dir, file);
	stream = fopen(path, "re");
	if (!stream)
		return -1;
	length = fread(buf, 1, size, stream);
	fclose(stream);
	if (length && buf[length - 1] == '\n')
		length--;
	if (length < size)
		buf[length] = 0;
	return (int)length;
}

SV_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	const char *path = the_device.device.ibdev_path;
	size_t length = strlen(path);
	char text[64] = "";

	if (!length || strncmp(dir, path, length) || (dir[length] && dir[length] != '/'))
		return read_file(dir, file, buf, size);
	if (dir[length]) { /* a folder below the device's */
		char joined[2 * IBV_SYSFS_PATH_MAX];

		snprintf(joined, sizeof(joined), "%s/%s", dir + length + 1, file);
		sysfs_text(joined, text, sizeof(text));
	} else {
		sysfs_text(file, text, sizeof(text));
	}
	if (!*text) {
		errno = ENOENT;
		return -1;
	}
	snprintf(buf, size, "%s", text);
	return (int)strlen(buf);
}

/* -- fork: the device writes to this process's memory by its number, so that pages need no care */

SV_EXPORT int ibv_fork_init(void)
{
	return 0;
}

SV_EXPORT enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

SV_EXPORT int ibv_dontfork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}

SV_EXPORT int ibv_dofork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}
