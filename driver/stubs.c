// SPDX-License-Identifier: MIT
/* Symbols that must be there for programs and for the vendors' libraries to load, and that do nothing.
 *
 * A vendor's library (libmlx5, libefa) registers a driver when it is loaded, and asks later whether a device is one of
 * its own; ours is not. The versions IBVERBS_1.0 belong to an ABI that ended in 2007.
 */
#include "driver.h"
#include "private_names.h"
#include "versions.h"

/* Answers ENOSYS, whatever it is called with. */
__attribute__((used)) static int refuse(void)
{
	return ENOSYS;
}

/* Answers a null pointer, and ENOSYS in errno. */
__attribute__((used)) static void *refuse_pointer(void)
{
	errno = ENOSYS;
	return NULL;
}

/* Does nothing. */
__attribute__((used)) static void ignore(void) {}

#define PRIVATE_REFUSED(name) PRIVATE(refuse, name);
SV_PRIVATE_NAMES(PRIVATE_REFUSED)
PRIVATE(ignore, __verbs_log);
PRIVATE(refuse_pointer, verbs_open_device);
BIND(ignore, verbs_register_driver_34, IBVERBS_PRIVATE_34, sv34_register);
BIND(ignore, verbs_register_driver_57, IBVERBS_PRIVATE_57, sv57_register);
BIND(ignore, verbs_register_driver_59, IBVERBS_PRIVATE_59, sv59_register);
BIND(ignore, verbs_register_driver_64, IBVERBS_PRIVATE_64, sv64_register);
BIND(ignore, verbs_register_driver_65, IBVERBS_PRIVATE_65, sv65_register);
BIND(ignore, ibv_register_driver, IBVERBS_1.1, sv11_register);

/* A flag of the vendors' libraries, always false here. */
__attribute__((used)) static bool disassociate;
PRIVATE(disassociate, verbs_allow_disassociate_destroy);

#define ANCIENT(function, name) BIND(function, name, IBVERBS_1.0, sv10_##name)
ANCIENT(ignore, ibv_ack_async_event);
ANCIENT(ignore, ibv_ack_cq_events);
ANCIENT(refuse_pointer, ibv_alloc_pd);
ANCIENT(refuse, ibv_attach_mcast);
ANCIENT(refuse, ibv_close_device);
ANCIENT(refuse_pointer, ibv_create_ah);
ANCIENT(refuse_pointer, ibv_create_cq);
ANCIENT(refuse_pointer, ibv_create_qp);
ANCIENT(refuse_pointer, ibv_create_srq);
ANCIENT(refuse, ibv_dealloc_pd);
ANCIENT(refuse, ibv_dereg_mr);
ANCIENT(refuse, ibv_destroy_ah);
ANCIENT(refuse, ibv_destroy_cq);
ANCIENT(refuse, ibv_destroy_qp);
ANCIENT(refuse, ibv_destroy_srq);
ANCIENT(refuse, ibv_detach_mcast);
ANCIENT(ignore, ibv_free_device_list);
ANCIENT(refuse, ibv_get_async_event);
ANCIENT(refuse, ibv_get_cq_event);
ANCIENT(refuse_pointer, ibv_get_device_guid);
ANCIENT(refuse_pointer, ibv_get_device_list);
ANCIENT(refuse_pointer, ibv_get_device_name);
ANCIENT(refuse, ibv_modify_qp);
ANCIENT(refuse, ibv_modify_srq);
ANCIENT(refuse_pointer, ibv_open_device);
ANCIENT(refuse, ibv_query_device);
ANCIENT(refuse, ibv_query_gid);
ANCIENT(refuse, ibv_query_pkey);
ANCIENT(refuse, ibv_query_port);
ANCIENT(refuse, ibv_query_qp);
ANCIENT(refuse, ibv_query_srq);
ANCIENT(refuse_pointer, ibv_reg_mr);
ANCIENT(refuse, ibv_resize_cq);

/* -- public functions of newer releases that the device has no use for */

__attribute__((used)) static void *no_dma_handle(void)
{
	sv_refuse(EOPNOTSUPP, "ibv_alloc_dmah: the device has no DMA handles");
	return NULL;
}

__attribute__((used)) static int not_supported(void)
{
	return EOPNOTSUPP;
}

__attribute__((used)) static int no_dmabuf(void)
{
	sv_refuse(EOPNOTSUPP, "no memory here is a dma-buf");
	return -1;
}

__attribute__((used)) static void *no_buffer(void)
{
	sv_refuse(EOPNOTSUPP, "ibv_alloc_buf: the device uses any memory; register it with ibv_reg_mr");
	return NULL;
}

BIND_DEFAULT(no_dma_handle, ibv_alloc_dmah, IBVERBS_1.15);
BIND_DEFAULT(not_supported, ibv_dealloc_dmah, IBVERBS_1.15);
BIND_DEFAULT(no_dmabuf, ibv_dm_export_dmabuf_fd, IBVERBS_1.16);
BIND_DEFAULT(no_buffer, ibv_alloc_buf, IBVERBS_1.17);
BIND_DEFAULT(ignore, ibv_free_buf, IBVERBS_1.17);
BIND_DEFAULT(no_buffer, ibv_reg_buf_mr, IBVERBS_1.17);
BIND_DEFAULT(no_dmabuf, ibv_export_buf_dmabuf_fd, IBVERBS_1.18);

/* -- helpers of librdmacm, which works with the kernel's structures and so never gets here */

SV_EXPORT void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, const void *from)
{
	(void)from;
	memset(to, 0, sizeof(*to));
}

SV_EXPORT void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, const void *from)
{
	(void)from;
	memset(to, 0, sizeof(*to));
}

SV_EXPORT void ibv_copy_path_rec_from_kern(void *to, const void *from)
{
	(void)to;
	(void)from;
}

SV_EXPORT void ibv_copy_path_rec_to_kern(void *to, const void *from)
{
	(void)to;
	(void)from;
}
