# SPDX-License-Identifier: MIT
"""Faults on demand in programs of other processes: what is asked about, what rules find, and that nothing is left."""

import errno
from typing import Any

import pytest
from tests.server.client import RTS, Client, Cq, Qp, Refused, Side, pair
from tests.server.conftest import Served

from softverbs.faults import VERBS
from softverbs.server import _planned as planned
from softverbs.server import abi
from softverbs.server._layout import ASKS, CONTROL


@pytest.fixture
def client(served: Served) -> Client:
    return Client(served.path)


def struck(client: Client, name: str, code: int, **values: Any) -> str:
    with pytest.raises(Refused, match="made to fail by") as caught:
        client.call(name, **values)
    assert caught.value.code == code
    return caught.value.reason


def ask(client: Client, verb: str, **values: Any) -> None:
    client.call("ASK", verb=ASKS[verb], **values)


def asked_by_driver(client: Client) -> set[str]:
    """What the control page says, after a command."""
    client.gid()
    assert client.control is not None
    bits = client.control.load(CONTROL["CONTROL_ASKS"])
    return {verb for verb, bit in ASKS.items() if bits >> bit & 1}


def test_every_command_is_a_verb_or_none() -> None:
    nothing: dict[str, Any] = {"purpose": 0, "flags": 0, "to_device": 0, "external": 0}
    assert planned.VERBS.keys() == abi.COMMANDS.keys()
    for name in abi.COMMANDS:
        verb = planned.verb_of(name, nothing)
        assert verb == "" or verb in VERBS, name
    assert ASKS.keys() <= VERBS.keys() and len(ASKS) < 63
    subjects = {**planned._SUBJECT, **dict.fromkeys(planned._SIZES)}
    assert subjects.keys() <= abi.COMMANDS.keys()
    for name, (member, _) in planned._SUBJECT.items():
        assert member in [one.name for one in abi.COMMANDS[name].request.members]
    for name, member in planned._SIZES.items():
        assert member in [one.name for one in abi.COMMANDS[name].request.members]


def test_a_command_fails_before_anything_has_happened(served: Served, client: Client) -> None:
    pd = client.pd()
    before = served.objects()
    with served.device.faults.applied("create_srq:above=8") as rule:
        client.call("DESTROY_SRQ", handle=client.call("CREATE_SRQ", pd=pd, max_wr=8, max_sge=1)["handle"])
        assert "create_srq:above=8" in struck(client, "CREATE_SRQ", errno.ENOMEM, pd=pd, max_wr=9, max_sge=1)
    assert (rule.seen, rule.hits) == (1, 1)
    assert served.objects() == before
    client.call("CREATE_SRQ", pd=pd, max_wr=9, max_sge=1)


def test_rules_find_states_types_and_numbers(served: Served, client: Client) -> None:
    side = Side(served.path)
    other = Cq(side.client)
    faults = served.device.faults
    with faults.applied("modify_qp:to=RTR"), faults.applied(f"query_qp:qp={side.qp.number}:errno=EPERM"):
        with pytest.raises(Refused, match="modify_qp"):
            side.connect(side)
        struck(side.client, "QUERY_QP", errno.EPERM, handle=side.qp.handle)
        Qp(side.client, side.pd, other, other).query()
    with faults.applied("create_qp:type=UD"):
        Qp(side.client, side.pd, other, other)
        struck(
            side.client, "CREATE_QP", errno.ENOMEM, pd=side.pd, send_cq=other.handle, recv_cq=other.handle, qp_type=4
        )
    with faults.applied(f"destroy_cq:cq={other.handle}"):
        client.call("DESTROY_CQ", handle=Cq(client).handle)
        struck(side.client, "DESTROY_CQ", errno.EBUSY, handle=other.handle)
    counter = client.call("CREATE_COMP_CNTR")["handle"]
    with faults.applied(f"inc_comp_cntr:counter={counter}"):
        struck(client, "INC_COMP_CNTR", errno.EINVAL, handle=counter, amount=1)
        client.call("INC_COMP_CNTR", handle=client.call("CREATE_COMP_CNTR")["handle"], amount=1)


def test_wrong_handles_are_refused_as_without_a_plan(served: Served, client: Client) -> None:
    with served.device.faults.applied("destroy_qp:qp=5"), served.device.faults.applied("destroy_cq:cq=5"):
        with pytest.raises(Refused, match="no QP with the handle"):
            client.call("DESTROY_QP", handle=77)
        with pytest.raises(Refused, match="no CQ with the handle"):
            client.call("DESTROY_CQ", handle=client.pd())


def test_the_driver_is_told_what_to_ask_about(served: Served, client: Client) -> None:
    faults = served.device.faults
    assert asked_by_driver(client) == set()
    with faults.applied("post_send:nth=5"), faults.applied("create_*"):
        wanted = {"post_send", "create_cq", "create_cq_ex"}
        assert asked_by_driver(client) == wanted
        assert asked_by_driver(Client(served.path)) == wanted
    assert asked_by_driver(client) == set()
    with faults.applied("qp_error:after=3 posts"):
        assert asked_by_driver(client) == {"post_send", "post_recv", "post_srq_recv"}
    with faults.applied("qp_error:after=3 packets"):
        assert asked_by_driver(client) == set()


def test_posts_are_struck_by_what_they_are(served: Served) -> None:
    left, right = pair(served.path)
    faults, handle = served.device.faults, left.qp.handle
    with faults.applied(f"post_send:qp={left.qp.number}:opcode=RDMA_WRITE:above=100:wr_id=7") as rule:
        for values in (
            {"handle": handle, "opcode": 2, "size": 200, "wr_id": 7},
            {"handle": handle, "opcode": 0, "size": 100, "wr_id": 7},
            {"handle": handle, "opcode": 0, "size": 200, "wr_id": 8},
        ):
            ask(left.client, "post_send", **values)
        ask(right.client, "post_send", handle=right.qp.handle, opcode=0, size=200, wr_id=7)
        assert rule.hits == 0
        values = {"handle": handle, "opcode": 0, "size": 200, "wr_id": 7}
        struck(left.client, "ASK", errno.ENOMEM, verb=ASKS["post_send"], **values)
    with faults.applied("poll_cq:nth=2"):
        ask(left.client, "poll_cq", handle=left.cq.handle)
        struck(left.client, "ASK", errno.EIO, verb=ASKS["poll_cq"], handle=left.cq.handle)


def test_a_rule_that_counts_posts_counts_those_of_programs(served: Served) -> None:
    left, right = pair(served.path)
    served.device.faults.add(f"qp_error:after=2 posts:qp={left.qp.number}")
    ask(right.client, "post_send", handle=right.qp.handle)
    ask(left.client, "post_send", handle=left.qp.handle)
    assert left.qp.query()["qp_state"] == RTS
    ask(left.client, "post_send", handle=left.qp.handle)
    assert left.client.next_event()["handle"] == left.qp.handle
    assert left.qp.query()["qp_state"] != RTS and right.qp.query()["qp_state"] == RTS


def test_asking_without_a_plan_and_nonsense(served: Served, client: Client) -> None:
    for verb in ASKS:
        ask(client, verb, handle=12345, size=2**64 - 1, opcode=2**32 - 1)
    with pytest.raises(Refused, match="no verb 62") as caught:
        client.call("ASK", verb=62)
    assert caught.value.code == errno.EINVAL
    with served.device.faults.applied("*:from=1000"):
        for verb in ASKS:
            ask(client, verb, handle=2**32 - 1, size=2**64 - 1, wr_id=2**64 - 1, opcode=2**32 - 1)


def test_opening_a_device_fails_on_demand(served: Served) -> None:
    with served.device.faults.applied("open_device:errno=EMFILE"):
        with pytest.raises(Refused, match="open_device"):
            Client(served.path)
        Client(served.path, purpose=1)
    assert Client(served.path).pd()
