# SPDX-License-Identifier: MIT
"""The verbs that can be made to fail, by the names of their manual pages without ``ibv_``."""

import errno
from typing import NamedTuple

#: Done by the core itself, once for each work request or poll.
HOT = ("post_send", "post_recv", "post_srq_recv", "poll_cq")


class Verb(NamedTuple):
    """What is known of a verb."""

    #: What it fails with where a rule does not say.
    code: int
    #: What a rule can ask of a call, beside which one it is.
    facts: tuple[str, ...]


_SIZE = ("above", "below")
_NO_MEMORY = {
    "open_device": (),
    "alloc_pd": (),
    "alloc_parent_domain": (),
    "alloc_td": (),
    "import_pd": (),
    "reg_mr": _SIZE,
    "reg_dmabuf_mr": _SIZE,
    "reg_dm_mr": _SIZE,
    "reg_mr_ex": _SIZE,
    "reg_buf_mr": _SIZE,
    "alloc_buf": _SIZE,
    "alloc_dmah": (),
    "alloc_null_mr": (),
    "rereg_mr": _SIZE,
    "import_mr": (),
    "alloc_mw": (),
    "alloc_dm": _SIZE,
    "import_dm": (),
    "create_comp_channel": (),
    "create_cq": _SIZE,
    "create_cq_ex": _SIZE,
    "resize_cq": (*_SIZE, "cq"),
    "create_comp_cntr": (),
    "efadv_create_comp_cntr": (),
    "create_qp": ("type",),
    "open_qp": (),
    "create_srq": _SIZE,
    "open_xrcd": (),
    "create_ah": (),
    "attach_mcast": ("qp",),
    "bind_mw": ("qp",),
    "post_send": ("qp", "wr_id", "opcode", *_SIZE),
    "post_recv": ("qp", "wr_id", *_SIZE),
    "post_srq_recv": ("wr_id", *_SIZE),
}
_INVALID = {
    "query_device": (),
    "query_device_ex": (),
    "query_port": (),
    "query_gid": (),
    "query_gid_ex": (),
    "query_gid_table": (),
    "query_gid_type": (),
    "query_pkey": (),
    "get_pkey_index": (),
    "query_rt_values_ex": (),
    "query_comp_cntr_caps": (),
    "advise_mr": (),
    "memcpy_to_dm": (),
    "memcpy_from_dm": (),
    "modify_cq": ("cq",),
    "req_notify_cq": ("cq",),
    "get_cq_event": (),
    "ack_cq_events": ("cq",),
    "set_comp_cntr": ("counter",),
    "set_err_comp_cntr": ("counter",),
    "inc_comp_cntr": ("counter",),
    "inc_err_comp_cntr": ("counter",),
    "qp_attach_comp_cntr": ("qp",),
    "modify_qp": ("qp", "to"),
    "query_qp": ("qp",),
    "detach_mcast": ("qp",),
    "modify_srq": (),
    "query_srq": (),
}
#: Of the connection manager, whose manual pages begin with ``rdma_``.
_CONNECTIONS = (
    "rdma_bind_addr", "rdma_resolve_addr", "rdma_resolve_route", "rdma_resolve_addrinfo", "rdma_listen",
    "rdma_get_request", "rdma_accept", "rdma_reject", "rdma_connect", "rdma_establish", "rdma_disconnect",
    "rdma_notify", "rdma_migrate_id", "rdma_set_option", "rdma_set_local_ece", "rdma_join_multicast",
    "rdma_leave_multicast",
)  # fmt: skip
_IO = {"poll_cq": ("cq",)}
_BUSY = {
    "dealloc_pd": (),
    "dealloc_td": (),
    "dereg_mr": (),
    "dealloc_mw": (),
    "free_dm": (),
    "free_buf": (),
    "dealloc_dmah": (),
    "destroy_comp_channel": (),
    "destroy_cq": ("cq",),
    "destroy_comp_cntr": ("counter",),
    "destroy_qp": ("qp",),
    "destroy_srq": (),
    "close_xrcd": (),
    "destroy_ah": (),
}

VERBS: dict[str, Verb] = {
    name: Verb(code, facts)
    for code, group in (
        (errno.ENOMEM, _NO_MEMORY),
        (errno.EINVAL, _INVALID | dict.fromkeys(_CONNECTIONS, ())),
        (errno.EIO, _IO),
        (errno.EBUSY, _BUSY),
    )
    for name, facts in group.items()
}
