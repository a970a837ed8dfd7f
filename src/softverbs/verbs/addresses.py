# SPDX-License-Identifier: MIT
"""Address handles: where datagrams go."""

from typing import Any

from softverbs.core.queues.wr import WC
from softverbs.pyverbs.addr import AH, AHAttr, way_back
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD
from softverbs.verbs._convention import need, returns_object, returns_status


@returns_object
def ibv_create_ah(pd: PD, attr: AHAttr) -> AH:
    """Makes an address handle.

    :param pd: the protection domain
    :param attr: where it leads, with a global route
    :return: an AH, or None with errno set: EINVAL where this port cannot send there
    """
    return AH(need(pd, PD, "pd"), attr=need(attr, AHAttr, "attr"))


@returns_status
def ibv_destroy_ah(ah: AH) -> None:
    """Ends an address handle.

    :param ah: the address handle
    :return: 0, or the value of errno
    """
    need(ah, AH, "ah")._destroy()


@returns_status
def ibv_init_ah_from_wc(context: Context, port_num: int, wc: WC, grh: Any, ah_attr: AHAttr) -> None:
    """The way back to the sender of a datagram, as attributes of an address handle.

    :param context: the open device
    :param port_num: the port that it came to
    :param wc: its completion
    :param grh: ``struct ibv_grh *``: the address of the receive buffer; or a GRH, or 40 bytes
    :param ah_attr: filled in
    :return: 0, or the value of errno (C: -1)
    """
    need(ah_attr, AHAttr, "ah_attr")
    need(context, Context, "context")._open()
    found = way_back(context, port_num, need(wc, WC, "wc"), grh, "Failed to init AH: ")
    ah_attr.__dict__.update(found.__dict__)


@returns_object
def ibv_create_ah_from_wc(pd: PD, wc: WC, grh: Any, port_num: int) -> AH:
    """Makes an address handle that leads back to the sender of a datagram.

    :param pd: the protection domain
    :param wc: its completion
    :param grh: ``struct ibv_grh *``: the address of the receive buffer; or a GRH, or 40 bytes
    :param port_num: the port that it came to
    :return: an AH, or None with errno set
    """
    return AH(need(pd, PD, "pd"), wc=need(wc, WC, "wc"), grh=grh, port_num=port_num)
