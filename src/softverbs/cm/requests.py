# SPDX-License-Identifier: MIT
"""The messages by which two sides agree on a connection: what a REQ and a REP say, and what is read out of them."""

from typing import TYPE_CHECKING

from softverbs.cm.events import MOST, Param
from softverbs.cm.messages import IpHeader, Rep, Req, service_id_of
from softverbs.core.base.limits import MAX_RD_ATOMIC

if TYPE_CHECKING:
    from softverbs.cm.identity import Identity

RESPONSE_TIMEOUT = 18
#: Time-out of a queue pair by default: 4.096 us * 2^16 = 268 ms.
ACK_TIMEOUT = 16
MAX_RETRIES = 15
HOP_LIMIT = 64
TARGET_ACK_DELAY = 15


def wanted_depth(wanted: int, offered: int) -> int:
    """READs and atomics at once that a side has, of those that it wants.

    :param wanted: by the application; ``MOST``: as many as are offered
    :param offered: by the peer, or by the device
    """
    return min(offered if wanted == MOST else wanted, MAX_RD_ATOMIC)


def ip_header(owner: "Identity") -> bytes:
    """What the private data of a request begins with (annex A11.3).

    :param owner: with its addresses
    """
    assert owner.source is not None and owner.destination is not None
    return IpHeader(owner.source.ip, owner.destination.ip, owner.source.port).encode()


def req_of(owner: "Identity", param: Param) -> Req:
    """The REQ that asks for a connection.

    :param owner: who asks, whose route is resolved
    :param param: what the application wants, with the number of the queue pair
    """
    assert owner.destination is not None and owner.dgid is not None
    return Req(
        vendor_id=owner.local_ece[0],
        attribute_modifier=owner.local_ece[1],
        service_id=service_id_of(owner.space, owner.destination.port),
        ca_guid=owner.device.guid,
        qpn=param.qp_num,
        responder_resources=owner.resources,
        initiator_depth=owner.depth,
        remote_response_timeout=RESPONSE_TIMEOUT,
        local_response_timeout=RESPONSE_TIMEOUT,
        flow_control=int(bool(param.flow_control)),
        starting_psn=owner.psn,
        retry_count=min(param.retry_count, 7),
        rnr_retry_count=min(param.rnr_retry_count, 7),
        path_mtu=owner.device.port.active_mtu,
        max_cm_retries=MAX_RETRIES,
        srq=int(bool(param.srq)),
        traffic_class=owner.traffic_class,
        hop_limit=HOP_LIMIT,
        ack_timeout=ACK_TIMEOUT if owner.ack_timeout is None else owner.ack_timeout,
        local_gid=owner.device.link.gids[owner.sgid_index],
        remote_gid=owner.dgid,
        private_data=ip_header(owner) + param.private_data,
        transaction_id=owner.service.next_transaction(),
    )


def rep_of(owner: "Identity", param: Param, req: Req) -> Rep:
    """The REP that accepts.

    :param owner: who accepts
    :param param: what the application wants, with the number of the queue pair
    :param req: what is accepted
    """
    rep = Rep(
        qpn=param.qp_num,
        starting_psn=owner.psn,
        responder_resources=owner.resources,
        initiator_depth=owner.depth,
        target_ack_delay=TARGET_ACK_DELAY,
        failover=1 if any(req.alternate_local_gid) else 0,
        flow_control=int(bool(param.flow_control)),
        rnr_retry_count=min(param.rnr_retry_count, 7),
        srq=int(bool(param.srq)),
        ca_guid=owner.device.guid,
        private_data=param.private_data,
        attribute_modifier=owner.local_ece[1],
        transaction_id=req.transaction_id,
    )
    rep.set_vendor_id(owner.local_ece[0])
    return rep


def param_of(message: Req | Rep) -> Param:
    """What a peer says of the connection, from the view of this side: what it answers, this side may ask.

    :param message: of the peer
    """
    return Param(
        responder_resources=message.initiator_depth,
        initiator_depth=message.responder_resources,
        flow_control=message.flow_control,
        retry_count=message.retry_count if isinstance(message, Req) else 0,
        rnr_retry_count=message.rnr_retry_count,
        srq=message.srq,
        qp_num=message.qpn,
    )
