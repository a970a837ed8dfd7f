// SPDX-License-Identifier: MIT
/* Our libefa.so.1, for programs that are linked with it: a softverbs device is no EFA device, and every function says so, as
 * rdma-core's do on the device of another maker. The one that works is in counter.c.
 *
 * No structure of efadv.h is looked at here, so none is declared.
 */
#include "driver.h"

/* Says that a function is EFA's alone. Returns EOPNOTSUPP, which is in errno as well. */
static int refuse(const char *function)
{
	return sv_refuse(EOPNOTSUPP, "%s: a softverbs device is no EFA device", function);
}

#define REFUSED(name, ...)                                                                                             \
	SV_EXPORT int name(__VA_ARGS__);                                                                               \
	SV_EXPORT int name(__VA_ARGS__)                                                                                \
	{                                                                                                              \
		return refuse(#name);                                                                                  \
	}

/* For those whose result is a number: an errno comes as a negative one. */
#define REFUSED_NEGATIVE(name, ...)                                                                                    \
	SV_EXPORT int name(__VA_ARGS__);                                                                               \
	SV_EXPORT int name(__VA_ARGS__)                                                                                \
	{                                                                                                              \
		return -refuse(#name);                                                                                 \
	}

#define REFUSED_POINTER(name, ...)                                                                                     \
	SV_EXPORT void *name(__VA_ARGS__);                                                                             \
	SV_EXPORT void *name(__VA_ARGS__)                                                                              \
	{                                                                                                              \
		refuse(#name);                                                                                         \
		return NULL;                                                                                           \
	}

REFUSED(efadv_query_device, struct ibv_context *, void *, uint32_t)
REFUSED(efadv_query_ah, struct ibv_ah *, void *, uint32_t)
REFUSED(efadv_query_cq, struct ibv_cq *, void *, uint32_t)
REFUSED(efadv_query_mr, struct ibv_mr *, void *, uint32_t)
REFUSED(efadv_query_qp_wqs, struct ibv_qp *, void *, void *, uint32_t)
REFUSED_NEGATIVE(efadv_get_max_rq_depth, struct ibv_context *, void *, uint32_t)
REFUSED_NEGATIVE(efadv_get_max_sq_depth, struct ibv_context *, void *, uint32_t)
REFUSED_POINTER(efadv_create_cq, struct ibv_context *, struct ibv_cq_init_attr_ex *, void *, uint32_t)
REFUSED_POINTER(efadv_create_driver_qp, struct ibv_pd *, struct ibv_qp_init_attr *, uint32_t)
REFUSED_POINTER(efadv_create_qp_ex, struct ibv_context *, struct ibv_qp_init_attr_ex *, void *, uint32_t)
/* rdma-core's do not ask whose object it is, and return what is no structure of EFA's. */
REFUSED_POINTER(efadv_cq_from_ibv_cq_ex, struct ibv_cq_ex *)
REFUSED_POINTER(efadv_qp_from_ibv_qp_ex, struct ibv_qp_ex *)
