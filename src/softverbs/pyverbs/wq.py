# SPDX-License-Identifier: MIT
"""Receive work queues and indirection tables, for receive side scaling of raw packets. This device has none."""

import errno
from collections.abc import Sequence
from typing import Any

from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._fields import Field, fill, instance, refused
from softverbs.pyverbs.base import PyverbsCM, PyverbsObject
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsUserError

_WHY = "this device has no raw packets, and receive side scaling is for them"


class WQInitAttr(PyverbsObject):
    """What a WQ begins with, ``struct ibv_wq_init_attr`` (ibv_create_wq(3))."""

    wq_type = Field("IBV_WQT_RQ.")
    max_wr = Field("Receives that can wait.")
    max_sge = Field("Scatter elements of a receive.")
    comp_mask = Field("IBV_WQ_INIT_ATTR_FLAGS or 0.")
    create_flags = Field("IBV_WQ_FLAGS_* bits.")

    def __init__(
        self,
        wq_context: Any = None,
        wq_pd: Any = None,
        wq_cq: Any = None,
        wq_type: int = e.IBV_WQT_RQ,
        max_wr: int = 100,
        max_sge: int = 1,
        comp_mask: int = 0,
        create_flags: int = 0,
    ) -> None:
        """
        :param wq_context: anything, for the application's use
        :param wq_pd: PD of the receives' memory
        :param wq_cq: CQ or CQEX of the completions
        :param wq_type: IBV_WQT_RQ
        :param max_wr: receives that can wait
        :param max_sge: scatter elements of a receive
        :param comp_mask: IBV_WQ_INIT_ATTR_FLAGS or 0
        :param create_flags: IBV_WQ_FLAGS_* bits
        """
        fill(self, wq_type=wq_type, max_wr=max_wr, max_sge=max_sge, comp_mask=comp_mask, create_flags=create_flags)
        self.wq_context = wq_context
        #: PD of the receives' memory.
        self.pd = wq_pd
        #: CQ or CQEX of the completions.
        self.cq = wq_cq


class WQAttr(PyverbsObject):
    """What ``ibv_modify_wq`` changes, ``struct ibv_wq_attr``."""

    attr_mask = Field("IBV_WQ_ATTR_* bits: which of the others count.")
    wq_state = Field("IBV_WQS_*, to go to.")
    curr_wq_state = Field("IBV_WQS_*, to come from.")
    flags = Field("IBV_WQ_FLAGS_* bits, their new values.")
    flags_mask = Field("IBV_WQ_FLAGS_* bits: which of them change.")

    def __init__(
        self, attr_mask: int = 0, wq_state: int = 0, curr_wq_state: int = 0, flags: int = 0, flags_mask: int = 0
    ) -> None:
        """
        :param attr_mask: IBV_WQ_ATTR_* bits: which of the others count
        :param wq_state: IBV_WQS_*, to go to
        :param curr_wq_state: IBV_WQS_*, to come from
        :param flags: IBV_WQ_FLAGS_* bits, their new values
        :param flags_mask: which of them change
        """
        fill(self, attr_mask=attr_mask, wq_state=wq_state, curr_wq_state=curr_wq_state)
        fill(self, flags=flags, flags_mask=flags_mask)


class WQ(PyverbsCM):
    """A receive work queue, ``struct ibv_wq``; every creation is refused."""

    def __init__(self, ctx: Context, attr: WQInitAttr) -> None:
        """
        :param ctx: the open device
        :param attr: what it begins with
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(ctx, Context, "WQ context")
        instance(attr, WQInitAttr, "attr")
        raise refused(f"Failed to create WQ: {_WHY}", errno.EOPNOTSUPP)


class RwqIndTableInitAttr(PyverbsObject):
    """What an indirection table begins with, ``struct ibv_rwq_ind_table_init_attr``."""

    log_ind_tbl_size = Field("Logarithm, to the base 2, of the table's size.")
    comp_mask = Field("0.")

    def __init__(self, log_ind_tbl_size: int = 5, wqs_list: Sequence[WQ] | None = None, comp_mask: int = 0) -> None:
        """
        :param log_ind_tbl_size: logarithm, to the base 2, of the table's size; at least 1
        :param wqs_list: the WQs, no more than fit
        :param comp_mask: 0
        :raises PyverbsUserError: a bad size, or too many WQs
        """
        self.wqs_list = list(wqs_list or ())
        if log_ind_tbl_size <= 0:
            raise PyverbsUserError(f"log_ind_tbl_size={log_ind_tbl_size}: at least 1")
        fill(self, log_ind_tbl_size=log_ind_tbl_size, comp_mask=comp_mask)
        if len(self.wqs_list) > 1 << min(log_ind_tbl_size, 32):
            raise PyverbsUserError(f"{len(self.wqs_list)} WQs do not fit in a table of {1 << log_ind_tbl_size}")


class RwqIndTable(PyverbsCM):
    """A table that says which WQ gets a frame, by its hash; every creation is refused."""

    def __init__(self, ctx: Context, attr: RwqIndTableInitAttr) -> None:
        """
        :param ctx: the open device
        :param attr: what it begins with
        :raises PyverbsRDMAError: EOPNOTSUPP
        """
        instance(ctx, Context, "RwqIndTable context")
        instance(attr, RwqIndTableInitAttr, "attr")
        raise refused(f"Failed to create RwqIndTable: {_WHY}", errno.EOPNOTSUPP)


class RxHashConf(PyverbsObject):
    """How a frame's hash is made, ``struct ibv_rx_hash_conf``."""

    rx_hash_function = Field("IBV_RX_HASH_FUNC_TOEPLITZ.", 8)
    rx_hash_fields_mask = Field("IBV_RX_HASH_* bits: what of a frame goes into it.", 64)

    def __init__(
        self,
        rx_hash_function: int = 0,
        rx_hash_key_len: int = 0,
        rx_hash_key: Sequence[int] | None = None,
        rx_hash_fields_mask: int = 0,
    ) -> None:
        """
        :param rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ
        :param rx_hash_key_len: bytes of the key
        :param rx_hash_key: the key, a byte each
        :param rx_hash_fields_mask: IBV_RX_HASH_* bits
        :raises PyverbsUserError: the key has another length
        """
        fill(self, rx_hash_function=rx_hash_function, rx_hash_fields_mask=rx_hash_fields_mask)
        if rx_hash_key and rx_hash_key_len != len(rx_hash_key):
            raise PyverbsUserError(f"rx_hash_key has {len(rx_hash_key)} bytes, not rx_hash_key_len={rx_hash_key_len}")
        self._key = bytes(rx_hash_key or ())
        self._length = rx_hash_key_len

    @property
    def rx_hash_key_len(self) -> int:
        """Bytes of the key."""
        return self._length

    @rx_hash_key_len.setter
    def rx_hash_key_len(self, val: int) -> None:
        if val <= 0:
            raise PyverbsUserError(f"rx_hash_key_len={val}: at least 1")
        self._length = val

    @property
    def rx_hash_key(self) -> list[int]:
        """The key, a byte each; a new one sets ``rx_hash_key_len`` too."""
        return list(self._key)

    @rx_hash_key.setter
    def rx_hash_key(self, vals_list: Sequence[int]) -> None:
        self._key = bytes(vals_list)
        self._length = len(self._key)
