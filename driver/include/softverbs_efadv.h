/* SPDX-License-Identifier: MIT */
/* efadv_create_comp_cntr(3) for programs that are compiled with headers of rdma-core before 65, which have not got it.
 *
 * It makes a completion counter as ibv_create_comp_cntr does, whose counts are kept in memory of the program as well, where
 * they can be watched without a call. Link with -lefa -libverbs, and run with softverbs' libraries (`softverbs run`), or with
 * those of rdma-core 65 or later and an EFA device.
 *
 * The memory is set to zero when the counter is made. After that it is only to be read, and it must stay mapped until the
 * counter is destroyed.
 */
#ifndef SOFTVERBS_EFADV_H
#define SOFTVERBS_EFADV_H

#include <stdint.h>

#include "softverbs_comp_cntr.h"

#ifdef __cplusplus
extern "C" {
#endif

/* efadv_memory_location.type */
enum {
	EFADV_MEMORY_LOCATION_VA,     /* an address of the program */
	EFADV_MEMORY_LOCATION_DMABUF, /* on a softverbs device: EOPNOTSUPP */
};

struct efadv_memory_location {
	uint8_t *ptr; /* of 8 bytes, aligned to 8 */
	struct {
		uint64_t offset;
		int32_t fd;
		uint32_t reserved;
	} dmabuf;
	uint8_t type;
	uint8_t reserved[7];
};

/* efadv_comp_cntr_init_attr.flags */
enum {
	EFADV_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1 << 0, /* the completion count is kept in comp_cntr_ext_mem */
	EFADV_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 1 << 1,  /* the error count is kept in err_cntr_ext_mem */
};

struct efadv_comp_cntr_init_attr {
	uint64_t comp_mask; /* 0 */
	uint32_t flags;
	uint32_t reserved; /* 0 */
	struct efadv_memory_location comp_cntr_ext_mem;
	struct efadv_memory_location err_cntr_ext_mem;
};

/* inlen: sizeof(struct efadv_comp_cntr_init_attr). NULL with errno: as ibv_create_comp_cntr; EINVAL also for an address that is
 * no multiple of 8, unknown bits, and a shorter structure; EFAULT for memory that cannot be written; EOPNOTSUPP for a DMA-BUF.
 */
struct ibv_comp_cntr *efadv_create_comp_cntr(struct ibv_context *context, struct ibv_comp_cntr_init_attr *attr,
					     struct efadv_comp_cntr_init_attr *efa_attr, uint32_t inlen);

#ifdef __cplusplus
}
#endif

#endif
