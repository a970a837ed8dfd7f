/* SPDX-License-Identifier: MIT */
/* Names of the private nodes. The vendors' libraries bind to them when they are loaded; here nobody calls them, since a
 * vendor's library never finds a device of its own. One exception is ibv_query_gid_type, which ibv_devinfo calls.
 *
 * SV_PRIVATE_NAMES(X) calls X(name) for every name that answers ENOSYS.
 */
#ifndef SV_PRIVATE_NAMES_H
#define SV_PRIVATE_NAMES_H

#define SV_PRIVATE_NAMES(X)                                                                                            \
	X(__ioctl_final_num_attrs)                                                                                     \
	X(_verbs_init_and_alloc_context)                                                                               \
	X(execute_ioctl)                                                                                               \
	X(ibv_cmd_advise_mr)                                                                                           \
	X(ibv_cmd_alloc_dm)                                                                                            \
	X(ibv_cmd_alloc_dmah)                                                                                          \
	X(ibv_cmd_alloc_mw)                                                                                            \
	X(ibv_cmd_alloc_pd)                                                                                            \
	X(ibv_cmd_attach_mcast)                                                                                        \
	X(ibv_cmd_close_xrcd)                                                                                          \
	X(ibv_cmd_create_ah)                                                                                           \
	X(ibv_cmd_create_comp_cntr)                                                                                    \
	X(ibv_cmd_create_counters)                                                                                     \
	X(ibv_cmd_create_cq)                                                                                           \
	X(ibv_cmd_create_cq_ex)                                                                                        \
	X(ibv_cmd_create_cq_ex2)                                                                                       \
	X(ibv_cmd_create_flow)                                                                                         \
	X(ibv_cmd_create_flow_action_esp)                                                                              \
	X(ibv_cmd_create_qp)                                                                                           \
	X(ibv_cmd_create_qp_ex)                                                                                        \
	X(ibv_cmd_create_qp_ex2)                                                                                       \
	X(ibv_cmd_create_rwq_ind_table)                                                                                \
	X(ibv_cmd_create_srq)                                                                                          \
	X(ibv_cmd_create_srq_ex)                                                                                       \
	X(ibv_cmd_create_wq)                                                                                           \
	X(ibv_cmd_dealloc_mw)                                                                                          \
	X(ibv_cmd_dealloc_pd)                                                                                          \
	X(ibv_cmd_dereg_mr)                                                                                            \
	X(ibv_cmd_destroy_ah)                                                                                          \
	X(ibv_cmd_destroy_comp_cntr)                                                                                   \
	X(ibv_cmd_destroy_counters)                                                                                    \
	X(ibv_cmd_destroy_cq)                                                                                          \
	X(ibv_cmd_destroy_flow)                                                                                        \
	X(ibv_cmd_destroy_flow_action)                                                                                 \
	X(ibv_cmd_destroy_qp)                                                                                          \
	X(ibv_cmd_destroy_rwq_ind_table)                                                                               \
	X(ibv_cmd_destroy_srq)                                                                                         \
	X(ibv_cmd_destroy_wq)                                                                                          \
	X(ibv_cmd_detach_mcast)                                                                                        \
	X(ibv_cmd_export_dmabuf_fd)                                                                                    \
	X(ibv_cmd_free_dm)                                                                                             \
	X(ibv_cmd_free_dmah)                                                                                           \
	X(ibv_cmd_get_context)                                                                                         \
	X(ibv_cmd_inc_comp_cntr)                                                                                       \
	X(ibv_cmd_inc_err_comp_cntr)                                                                                   \
	X(ibv_cmd_modify_cq)                                                                                           \
	X(ibv_cmd_modify_flow_action_esp)                                                                              \
	X(ibv_cmd_modify_qp)                                                                                           \
	X(ibv_cmd_modify_qp_ex)                                                                                        \
	X(ibv_cmd_modify_srq)                                                                                          \
	X(ibv_cmd_modify_wq)                                                                                           \
	X(ibv_cmd_open_qp)                                                                                             \
	X(ibv_cmd_open_xrcd)                                                                                           \
	X(ibv_cmd_poll_cq)                                                                                             \
	X(ibv_cmd_post_recv)                                                                                           \
	X(ibv_cmd_post_send)                                                                                           \
	X(ibv_cmd_post_srq_recv)                                                                                       \
	X(ibv_cmd_qp_attach_comp_cntr)                                                                                 \
	X(ibv_cmd_query_comp_cntr_caps)                                                                                \
	X(ibv_cmd_query_context)                                                                                       \
	X(ibv_cmd_query_device_any)                                                                                    \
	X(ibv_cmd_query_mr)                                                                                            \
	X(ibv_cmd_query_port)                                                                                          \
	X(ibv_cmd_query_port_speed)                                                                                    \
	X(ibv_cmd_query_qp)                                                                                            \
	X(ibv_cmd_query_srq)                                                                                           \
	X(ibv_cmd_read_comp_cntr)                                                                                      \
	X(ibv_cmd_read_counters)                                                                                       \
	X(ibv_cmd_read_err_comp_cntr)                                                                                  \
	X(ibv_cmd_reg_dm_mr)                                                                                           \
	X(ibv_cmd_reg_dmabuf_mr)                                                                                       \
	X(ibv_cmd_reg_mr)                                                                                              \
	X(ibv_cmd_reg_mr_ex)                                                                                           \
	X(ibv_cmd_req_notify_cq)                                                                                       \
	X(ibv_cmd_rereg_mr)                                                                                            \
	X(ibv_cmd_resize_cq)                                                                                           \
	X(ibv_cmd_set_comp_cntr)                                                                                       \
	X(ibv_cmd_set_err_comp_cntr)                                                                                   \
	X(ibv_dmabuf_heap_alloc)                                                                                       \
	X(ibv_dmabuf_heap_cc_shared_init)                                                                              \
	X(ibv_dmabuf_heap_destroy)                                                                                     \
	X(ibv_dmabuf_heap_free)                                                                                        \
	X(ibv_read_ibdev_sysfs_file)                                                                                   \
	X(verbs_init_cq)                                                                                               \
	X(verbs_set_ops)                                                                                               \
	X(verbs_uninit_context)

#endif
