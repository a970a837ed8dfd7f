# SPDX-License-Identifier: MIT
"""The connection manager: the protocol of two sides that agree on a connection, IBA chapter 12 and annex A11.

``messages`` is what travels, ``machine`` the states of one connection, ``service`` what a device has of both,
``gsi`` queue pair 1, ``registry`` who listens on this host, and ``identity`` what applications hold: ``rdma_cm_id``.
"""
