# SPDX-License-Identifier: MIT
"""Which programs run on the uncompiled core."""

import os

import pytest

import softverbs

#: Of programs these are enough to see the uncompiled core at work: behind the protocol, both builds pass all tests.
#: SOFTVERBS_PROGRAMS=all runs the others there, too, which takes minutes.
ENOUGH = (
    "test_ibv_devi",
    "test_two_devices",
    "test_pingpong[ibv_rc_pingpong -e",
    "test_pingpong[ibv_ud_pingpong -e",
    "test_xsrq_pingpong",
    "test_perftest[ib_send_bw -c UC -b -q 8]",
    "test_perftest[ib_send_lat -e]",
    "test_perftest[ib_write_bw -l 8]",
    "test_perftest[ib_read_bw -c XRC -b]",
    "test_perftest[ib_atomic_bw",
    "test_every_program",
    "test_a_run_is_judged",
    "test_ucx_transports[-x rc_verbs -t am_lat]",
    "test_libfabric_reliable",
    "test_rping[",
    "test_connections_that_migrate",
    "test_rdma_core_tests",
    "test_quick_start_of_ibverbs_on_two",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips the others."""
    if softverbs.core_build == "compiled" or os.environ.get("SOFTVERBS_PROGRAMS") == "all":
        return
    skip = pytest.mark.skip(reason="of the programs, the uncompiled core runs some (SOFTVERBS_PROGRAMS=all)")
    for item in items:
        if "tests/programs/" in item.nodeid and not item.name.startswith(ENOUGH):
            item.add_marker(skip)
