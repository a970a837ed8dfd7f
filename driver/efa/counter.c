// SPDX-License-Identifier: MIT
/* efadv_create_comp_cntr(3) of rdma-core 65: completion counters whose counts are kept in the program's memory too. */
#include "driver.h"

/* The structures of include/softverbs_efadv.h, under names of our own: newer headers of libefa have them too. */
enum { LOCATION_VA, LOCATION_DMABUF };
enum { WITH_COMP_EXTERNAL_MEM = 1 << 0, WITH_ERR_EXTERNAL_MEM = 1 << 1 };

struct location {
	uint8_t *ptr;
	struct {
		uint64_t offset;
		int32_t fd;
		uint32_t reserved;
	} dmabuf;
	uint8_t type;
	uint8_t reserved[7];
};

struct efa_attr {
	uint64_t comp_mask;
	uint32_t flags;
	uint32_t reserved;
	struct location comp_cntr_ext_mem;
	struct location err_cntr_ext_mem;
};

/* The beginning of struct ibv_comp_cntr_init_attr. */
struct init_attr {
	uint32_t comp_mask;
	uint32_t type;
	uint32_t flags;
};

/* Whether the structure is as long as it must be, and all zeros where it is longer than this library knows. */
static bool is_known(const struct efa_attr *attr, uint32_t length)
{
	const uint8_t *bytes = (const uint8_t *)attr;

	if (length < sizeof(*attr))
		return false;
	for (uint32_t i = sizeof(*attr); i < length; i++)
		if (bytes[i])
			return false;
	return true;
}

/* Where a count is to be. 0, or an errno. */
static int locate(const struct location *location, const char *name, uint64_t *address)
{
	if (location->type != LOCATION_VA)
		return sv_refuse(EOPNOTSUPP, "efadv_create_comp_cntr: %s is of type %u: a softverbs device takes virtual "
					     "addresses (EFADV_MEMORY_LOCATION_VA), and knows no DMA-BUF",
				 name, location->type);
	*address = (uintptr_t)location->ptr;
	return 0;
}

SV_EXPORT struct ibv_comp_cntr *efadv_create_comp_cntr(struct ibv_context *context, struct init_attr *attr,
						       struct efa_attr *efa_attr, uint32_t inlen);
SV_EXPORT struct ibv_comp_cntr *efadv_create_comp_cntr(struct ibv_context *context, struct init_attr *attr,
						       struct efa_attr *efa_attr, uint32_t inlen)
{
	struct sv_create_comp_cntr_request request = {
		.comp_mask = attr->comp_mask, .type = attr->type, .flags = attr->flags};

	if (!is_known(efa_attr, inlen)) {
		sv_refuse(EINVAL, "efadv_create_comp_cntr: inlen is %u; %zu is expected, and zeros behind it", inlen,
			  sizeof(*efa_attr));
		return NULL;
	}
	if (efa_attr->comp_mask || efa_attr->flags & ~(WITH_COMP_EXTERNAL_MEM | WITH_ERR_EXTERNAL_MEM)) {
		sv_refuse(EINVAL, "efadv_create_comp_cntr: comp_mask %#llx, flags %#x: a bit of them is not known",
			  (unsigned long long)efa_attr->comp_mask, efa_attr->flags);
		return NULL;
	}
	if (efa_attr->flags & WITH_COMP_EXTERNAL_MEM) {
		if (locate(&efa_attr->comp_cntr_ext_mem, "comp_cntr_ext_mem", &request.value_address))
			return NULL;
		request.external |= SV_COUNTER_EXTERNAL_VALUE;
	}
	if (efa_attr->flags & WITH_ERR_EXTERNAL_MEM) {
		if (locate(&efa_attr->err_cntr_ext_mem, "err_cntr_ext_mem", &request.error_address))
			return NULL;
		request.external |= SV_COUNTER_EXTERNAL_ERRORS;
	}
	return sv_create_comp_cntr(context, &request);
}
