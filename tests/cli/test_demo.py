# SPDX-License-Identifier: MIT
"""``softverbs demo``: it passes, it ends, and it notices whatever is not as it should be."""

import copy
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import run

from softverbs.cli import demo, pair
from softverbs.cli.common import Fault
from softverbs.cli.demo_sides import Settings, receiver, sender

COUNT = 50


def test_it_passes() -> None:
    done = run("demo", "-n", "100")
    assert (done.code, done.err) == (0, "")
    assert re.search(r"completions +100 +100\n +errors +0 +0\n +completion queue entries +0 +0\n", done.out)
    assert re.search(r"completions +100 +100\n +errors +4 +0\n +completion queue entries +4 +0\n", done.out)
    assert "data: 800 bytes at the receiver, each as it was sent" in done.out
    assert re.search(r"work request 1000: IBV_WC_REM_ACCESS_ERR\n .*rkey 0x[0-9a-f]+.*not registered", done.out)
    assert done.out.count("IBV_WC_WR_FLUSH_ERR") == 3
    assert "untouched; its asynchronous event: IBV_EVENT_QP_ACCESS_ERR" in done.out
    assert done.out.endswith("All as it should be: 23 checks\n")


@pytest.mark.parametrize("writes", [1, 33])
def test_any_number_of_writes(writes: int) -> None:
    assert run("demo", "-n", str(writes)).code == 0


def test_it_passes_with_duplicates() -> None:
    # Not with loss: a NAK that ends a connection is sent once, and without it the status is RETRY_EXC_ERR.
    env = {"SOFTVERBS_FAULTS": "seed=5,duplicate=0.3"}
    done = run("demo", "-n", "200", env=env)
    assert (done.code, done.err) == (0, "")


def test_an_address_in_the_environment_does_not_matter() -> None:
    assert run("demo", "-n", "10", env={"SOFTVERBS_ADDRESS": "192.0.2.1"}).code == 0


@pytest.mark.parametrize("by", ["option", "environment"])
def test_capture(tmp_path: Path, by: str) -> None:
    file = tmp_path / "frames.pcap"
    if by == "option":
        done = run("demo", "-n", "10", "--pcap", str(file))
    else:
        done = run("demo", "-n", "10", env={"SOFTVERBS_PCAP": str(file)})
    assert done.code == 0 and str(file) in done.out
    assert file.stat().st_size > 14 * (16 + 82)
    if shutil.which("tshark") is None:
        return
    command = ["tshark", "-r", str(file), "-T", "fields", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(line.strip().isdigit() for line in lines)
    assert sum(line.strip() == "10" for line in lines) >= 14  # RDMA WRITE only


def test_a_capture_that_cannot_be_written() -> None:
    done = run("demo", "-n", "10", "--pcap", "/nowhere/frames.pcap")
    assert done.code == 1
    assert "/nowhere/frames.pcap" in done.err


def test_time_limit() -> None:
    start = time.monotonic()
    done = run("demo", "-n", "10000000", "--timeout", "2")
    assert (done.code, done.err) == (1, "softverbs: time is over, and not finished: receiver, sender\n")
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("counter_ops=0x10", "receiver: Failed to attach comp cntr"),
        ("counter_max_value=7", "wait for comp_cntr"),
    ],
)
def test_what_is_off_is_noticed(options: str, words: str) -> None:
    done = run("demo", "-n", "20", env={"SOFTVERBS_OPTIONS": options})
    assert done.code == 1
    assert words in done.err + done.out
    assert done.err.count("\n") == 1


@pytest.fixture(scope="module")
def found() -> demo.Found:
    """What a run that is all right reports."""
    result: demo.Found = {}
    before = os.environ.pop("SOFTVERBS_OPTIONS", None)
    for message in pair.run({"receiver": receiver, "sender": sender}, Settings(COUNT, 60, ""), 60):
        result[message.topic if message.topic != "up" else message.side] = message.values
    if before is not None:
        os.environ["SOFTVERBS_OPTIONS"] = before
    demo._judge(result, COUNT)
    return result


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        ("sent", "completions", COUNT - 1), ("sent", "errors", 1), ("sent", "entries", 1),
        ("landed", "completions", COUNT + 1), ("landed", "errors", 1), ("landed", "entries", 1),
        ("landed", "wrong", 0), ("landed", "size", 7),
        ("failed", "completions", COUNT + 1), ("failed", "errors", 3), ("failed", "woken", ""), ("failed", "took", 5.0),
        ("failed", "list", []), ("failed", "rkey", 0x123456),
        ("after", "completions", COUNT + 1), ("after", "errors", 1), ("after", "entries", 1),
        ("after", "wrong", 3), ("after", "state", 3), ("after", "event", -1),
        ("receiver", "pid", "sender"), ("receiver", "gid", "sender"),
    ],
)  # fmt: skip
def test_each_check_checks(found: demo.Found, topic: str, name: str, value: Any) -> None:
    altered = copy.deepcopy(found)
    altered[topic][name] = altered[value][name] if isinstance(value, str) and value else value
    with pytest.raises(Fault, match="of 23 checks failed"):
        demo._judge(altered, COUNT)


def test_a_report_that_is_missing(found: demo.Found) -> None:
    with pytest.raises(Fault, match="nothing came of: after"):
        demo._judge({topic: values for topic, values in found.items() if topic != "after"}, COUNT)


@pytest.mark.parametrize("change", [(1, "IBV_WC_SUCCESS"), (0, "IBV_WC_WR_FLUSH_ERR")])
def test_statuses_are_checked(found: demo.Found, change: tuple[int, str]) -> None:
    altered = copy.deepcopy(found)
    index, status = change
    number, _, reason = altered["failed"]["list"][index]
    altered["failed"]["list"][index] = (number, status, reason)
    with pytest.raises(Fault):
        demo._judge(altered, COUNT)


def test_the_order_is_checked(found: demo.Found) -> None:
    altered = copy.deepcopy(found)
    altered["failed"]["list"][1:] = altered["failed"]["list"][:0:-1]
    with pytest.raises(Fault, match="1 of 23 checks failed"):
        demo._judge(altered, COUNT)
