# SPDX-License-Identifier: MIT
"""The function of EFA that this device has too: efadv_create_comp_cntr(3)."""

import ctypes

from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.comp_cntr import CompCntrInitAttr
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.providers.efa.efadv import EfaCompCntr, EfaCompCntrInitAttr
from softverbs.pyverbs.providers.efa.efadv import efadv_comp_cntr_init_attr as efadv_comp_cntr_init_attr
from softverbs.pyverbs.providers.efa.efadv import efadv_memory_location as efadv_memory_location
from softverbs.verbs._convention import need, returns_object


@returns_object
def efadv_create_comp_cntr(
    context: Context, attr: CompCntrInitAttr, efa_attr: efadv_comp_cntr_init_attr, inlen: int
) -> EfaCompCntr:
    """Makes a completion counter whose values are also kept in memory of the application.

    The memory is zeroed, and every update is stored there. ``flags`` choose the completion count, the error count or
    both; the memory must stay where it is until the counter is destroyed.

    :param context: the open device
    :param attr: how the counter is made
    :param efa_attr: where its values live
    :param inlen: ``ctypes.sizeof(efa_attr)``
    :return: a counter, or None with errno set: EINVAL for an address that is no multiple of 8 and for unknown bits,
        EFAULT for one that cannot be written to, EOPNOTSUPP for a DMA-BUF
    """
    need(context, Context, "context")
    need(attr, CompCntrInitAttr, "attr")
    need(efa_attr, efadv_comp_cntr_init_attr, "efa_attr")
    if inlen != ctypes.sizeof(efa_attr):
        raise refused(f"inlen is {inlen}: the structure has {ctypes.sizeof(efa_attr)} bytes")
    where = EfaCompCntrInitAttr()
    where.attr = efa_attr
    return EfaCompCntr(context, attr, where)
