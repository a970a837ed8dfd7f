# SPDX-License-Identifier: MIT
"""Whatever a plan makes fail on the data path, what was accepted is retired: once, in order, by success or by error."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pyverbs.world import WRITE, World

from softverbs.core.base.errors import PyverbsRDMAError
from softverbs.faults import Plan
from softverbs.pyverbs import libibverbs_enums as e

SUCCESS = e.IBV_WC_SUCCESS
POSTS = 40
CHANCE = st.sampled_from(["p=0.1", "p=0.5", "every=3", "nth=7", "from=20:times=3"])
GENTLE = st.one_of(
    CHANCE.map(lambda choice: f"post_send:{choice}"),
    CHANCE.map(lambda choice: f"poll_cq:{choice}"),
    st.tuples(CHANCE, st.sampled_from(["1us", "3ms", "2s"])).map(lambda pair: f"completion:{pair[0]}:delay={pair[1]}"),
    st.sampled_from(["counter_stall:after=5:for=1ms", "counter_stall:for=2s", "port_down:after=9:every=20:for=3ms"]),
)
HARSH = st.sampled_from(
    [
        "completion:nth=9:fail=RETRY_EXC_ERR", "completion:p=0.1:fail=REM_OP_ERR", "qp_error:after=11 completions",
        "qp_error:after=3ms", "qp_error:qp=all:after=15 posts", "port_down:after=12 packets",
    ]
)  # fmt: skip


class Run:
    """Forty writes on one connection, and what became of them."""

    def __init__(self, plan: str, over: str) -> None:
        self.accepted: list[int] = []
        self.done: list[Any] = []
        with World(over) as world:
            qp, peer = world.a.qp(), world.b.qp()
            self.counter = world.a.count(qp, WRITE)
            world.connect(qp, peer, retry_cnt=1)
            faults = world.a.device.faults
            for rule in Plan(plan).rules:
                faults.add(rule)
            for wr_id in range(POSTS):
                try:
                    qp.post_send(world.a.wr(e.IBV_WR_RDMA_WRITE, wr_id))
                    self.accepted.append(wr_id)
                except PyverbsRDMAError:
                    pass
                if wr_id % 4 == 0:
                    self._poll(world)
            world.settle()
            while world.a.cq._core.count():
                self._poll(world)
            self._poll(world)
            self.pair = self.counter.read_pair()
            self.state = qp.qp_state
            self.log = [(hit.time, str(hit.rule), hit.event.partition(" of QP")[0]) for hit in faults.log]
            faults.clear()
            self.idle = (world.a.device.port.plan, world.a.device.verb_faults)

    def _poll(self, world: World) -> None:
        try:
            self.done += world.a.poll()
        except PyverbsRDMAError:
            pass


@settings(max_examples=25)
@given(st.lists(GENTLE, max_size=4), st.integers(0, 1000), st.sampled_from(["network", "loopback"]))
def test_nothing_that_was_accepted_is_lost(rules: list[str], seed: int, over: str) -> None:
    run = Run(",".join([f"seed={seed}", *rules]), over)
    assert [(wc.wr_id, wc.status) for wc in run.done] == [(wr_id, SUCCESS) for wr_id in run.accepted]
    assert run.pair == (len(run.accepted), 0)
    assert run.state == e.IBV_QPS_RTS
    assert run.idle == (None, None)


@settings(max_examples=25)
@given(st.lists(GENTLE, max_size=2), HARSH, st.integers(0, 1000), st.sampled_from(["network", "loopback"]))
def test_errors_come_last_and_are_counted(rules: list[str], harsh: str, seed: int, over: str) -> None:
    run = Run(",".join([f"seed={seed}", *rules, harsh]), over)
    assert [wc.wr_id for wc in run.done] == run.accepted
    statuses = [wc.status for wc in run.done]
    good = statuses.count(SUCCESS)
    assert statuses[:good] == [SUCCESS] * good, "once it has failed nothing succeeds"
    assert set(statuses[good + 1 :]) <= {e.IBV_WC_WR_FLUSH_ERR}
    assert run.pair == (good, len(run.accepted) - good)
    assert all(wc.reason for wc in run.done[good:])
    assert run.idle == (None, None)


@settings(max_examples=10)
@given(st.lists(GENTLE, min_size=1, max_size=3), st.integers(0, 1000))
def test_a_run_can_be_replayed(rules: list[str], seed: int) -> None:
    plan = ",".join([f"seed={seed}", *rules])
    first, second = Run(plan, "network"), Run(plan, "network")
    assert first.log == second.log
    assert first.accepted == second.accepted
