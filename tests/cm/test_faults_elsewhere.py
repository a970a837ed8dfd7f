# SPDX-License-Identifier: MIT
"""Faults on demand are about the program's queues: those of queue pair 1 are not counted, and not struck."""

import pytest
from tests.cm.app import App, pair, service
from tests.netsim.sim import Sim

from softverbs.core.base.errors import PyverbsRDMAError


@pytest.mark.parametrize(
    "rule", ["post_send", "post_recv", "poll_cq", "completion:fail=LOC_LEN_ERR", "completion:delay=1s"]
)
def test_a_connection_comes_about_whatever_fails(rule: str) -> None:
    with Sim() as sim:
        nodes = sim.node(seed=1), sim.node(seed=2)
        for node in nodes:
            service(node)
            node.device.faults.add(rule)
        child = pair(App(nodes[0]), App(nodes[1]))
        assert child.identity.machine is not None
        assert [hit.event for node in nodes for hit in node.device.faults.log] == []


def test_the_nth_call_is_the_programs() -> None:
    with Sim() as sim:
        nodes = sim.node(seed=1), sim.node(seed=2)
        client, server = App(nodes[0]), App(nodes[1])
        rule = nodes[0].device.faults.add("post_send:nth=2")
        child = pair(client, server)
        for _ in range(2):
            child.receive()
        client.send(b"the first")
        assert rule.seen == 1
        with pytest.raises(PyverbsRDMAError, match="call 2 of post_send"):
            client.send(b"the second")


def test_a_queue_pair_by_chance_is_one_of_the_programs() -> None:
    with Sim() as sim:
        nodes = sim.node(seed=1), sim.node(seed=2)
        client = App(nodes[0])
        pair(client, App(nodes[1]))
        nodes[0].device.faults.add("qp_error:qp=all")
        sim.run_for(1_000_000)
        events = [hit.event for hit in nodes[0].device.faults.log]
        assert events == [f"QP {client.qp.qp_num:#x}"]
