# SPDX-License-Identifier: MIT
"""The tool that runs rdma-core's tests, on a suite of four tests."""

import gzip
import re
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
from tools import rdma_core_tests as tool

ROOT = Path(__file__).resolve().parent.parent

PARSER = """
    import argparse, sys

    class Parser:
        def parse_args(self):
            self.args = vars(argparse.ArgumentParser().parse_known_args()[0])

        def get_config(self):
            return self.args

    parser = Parser()
    """
TESTS = """
    import json, os, subprocess, time, unittest
    import pyverbs.device as d
    import tests.helper as h

    class One(unittest.TestCase):
        def test_a_hangs(self):
            time.sleep(600)

        def test_b_dies(self):
            os._exit(3)

        def test_c_passes(self):
            self.assertEqual(d.get_device_list()[0].name, h.NAME)
            link, = json.loads(subprocess.check_output(["rdma", "link", "show", "-j"]))
            self.assertEqual((link["ifname"], link["port"], link["netdev"]), ("softverbs0", 1, "lo"))
            self.assertTrue(os.path.exists("/sys/class/infiniband/softverbs0/device/net/"))
            self.assertFalse(os.path.exists("/sys/class/infiniband/softverbs1/device/net/"))
            folder = "/sys/class/infiniband/softverbs0/"
            self.assertEqual(subprocess.check_output(["ls", folder + "device/net/"]), b"lo\\n")
            self.assertEqual(subprocess.check_output(["cat", folder + "ports/1/pkeys/0"]), b"0xffff\\n")
            self.assertEqual(subprocess.check_output(["ls", "-d", "/"]), b"/\\n")
            address, = json.loads(subprocess.check_output(["ip", "-j", "addr", "show", "lo"]))
            self.assertEqual(address["addr_info"][0]["local"], "127.0.0.1")

        def test_d_is_skipped(self):
            self.skipTest("no\\treason")

        def test_e_fails(self):
            with self.subTest():
                self.fail("wrong")
    """


@pytest.fixture
def suite(tmp_path):
    folder = tmp_path / "99" / "tests"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('not to be imported')")
    (folder / "args_parser.py").write_text(textwrap.dedent(PARSER))
    (folder / "helper.py").write_text("NAME = b'softverbs0'")
    (folder / "test_one.py").write_text(textwrap.dedent(TESTS))
    (folder / "test_broken.py").write_text("import pyverbs.no_such_module")
    (folder / "test_mlx5_x.py").write_text("raise SystemExit('not to be run')")
    return folder.parent


def run(*words: object, check: bool = True) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "rdma_core_tests.py", *map(str, words)],
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout


def test_each_test_has_an_outcome_whatever_it_does(suite):
    out = run("--folder", suite, "--timeout", 3, "test_one", "test_broken")
    rows = re.findall(r"^(\w+) +[\d.]+ s  (\S+)(?:  (.*))?$", out, re.MULTILINE)
    by_name = {test.rpartition(".")[2]: (outcome, reason) for outcome, test, reason in rows}
    assert by_name.pop("test_broken")[1].startswith("cannot be imported: ModuleNotFoundError")
    assert by_name == {
        "test_a_hangs": ("failed", "hangs: no end after 3 s"),
        "test_b_dies": ("failed", "the process died (3)"),
        "test_c_passes": ("passed", ""),
        "test_d_is_skipped": ("skipped", "no reason"),
        "test_e_fails": ("failed", "AssertionError: wrong"),
    }
    assert "| **all** | 1 | 1 | 4 |" in out
    assert "nothing to compare with" in out


def test_one_test_alone(suite):
    out = run("--folder", suite, "test_one.One.test_c_passes", "tests.test_nothing")
    assert "| **all** | 1 | 0 | 0 |" in out
    assert "test_nothing is not in this suite" in out


def results(*rows):
    return {row[0]: tool.Result(*row) for row in rows}


def test_what_is_other_than_expected_is_said():
    expected = results(("a", "passed"), ("b", "skipped", "no SA"), ("c", "passed"), ("gone", "passed"))
    found = results(("a", "passed"), ("b", "skipped", "no LID"), ("c", "failed", "boom"), ("new", "passed"))
    assert tool.difference(expected, found, whole=True) == [
        "b", "    expected  skipped: no SA", "    found     skipped: no LID",
        "c", "    expected  passed", "    found     failed: boom",
        "gone", "    expected  passed", "    found     it did not run",
        "new", "    expected  no such test", "    found     passed",
    ]  # fmt: skip
    broken = tool.difference(
        results(("tests.x.A.a", "passed")), results(("tests.x", "failed", "no import")), whole=True
    )
    assert broken == ["tests.x", "    expected  no such test", "    found     failed: no import"]
    assert not any("gone" in line for line in tool.difference(expected, found, whole=False))


def test_what_the_machine_lacks_is_no_difference():
    expected = results(("a", "skipped", "There are no huge pages of requested size allocated"), ("b", "passed"))
    found = results(("a", "passed"), ("b", "skipped", "Must be run by root on Ethernet link layer"))
    assert tool.difference(expected, found, whole=True) == []
    assert tool.difference(expected, results(("a", "failed", "x"), ("b", "passed")), whole=True)


def test_tables_are_kept_and_read(tmp_path):
    rows = results(("tests.test_b.B.x", "skipped", "why not"), ("tests.test_a.A.y", "passed"))
    tool.write(tmp_path / "sub" / "t.tsv", rows)
    assert tool.read(tmp_path / "sub" / "t.tsv") == rows
    assert tool.read(tmp_path / "none.tsv") == {}
    text = "\n".join(tool.table("44", rows, results(("tests.test_b.B.x", "passed"))))
    assert "| `test_b` | 0 | 1 | 0 | 1 |" in text
    assert "| **all** | 1 | 1 | 0 | 1 |" in text
    assert tool.reasons(rows)[-1] == "| 1 | why not |"


#: What the tests say when they skip, for what docs/deviations.md gives the reasons for.
EXPLAINED = (
    "Allocating dmabuf is not supported",
    "Create QP type 8 is not supported",
    "Create Raw Packet QP",
    "Extended CQ is not supported",
    "There are no huge pages",
)


@pytest.mark.parametrize(("version", "least"), [("59", 156), ("44", 142), ("44_driver", 142)])
def test_nothing_is_expected_to_fail_and_every_skip_is_explained(version, least):
    kept = tool.read(tool.DATA / f"rdma_core_{version}.tsv").values()
    assert sum(result.outcome == "passed" for result in kept) >= least
    assert not [result for result in kept if result.outcome == "failed"]
    assert not [result for result in kept if result.outcome == "skipped" and not result.reason.startswith(EXPLAINED)]
    tag_matching = [result for result in kept if result.reason == "Extended CQ is not supported"]
    assert {result.test.split(".")[1] for result in tag_matching} == {"test_tag_matching"}


def test_on_the_c_driver_it_is_as_on_our_own_interface() -> None:
    own, driver = (tool.read(tool.DATA / f"rdma_core_{version}.tsv") for version in ("44", "44_driver"))
    assert driver == own


def package(folder: Path, version: str) -> Path:
    """What is looked at of an unpacked python3-pyverbs."""
    path = folder / "usr/share/doc/python3-pyverbs/changelog.Debian.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(f"rdma-core ({version}-2) unstable; urgency=medium\n".encode()))
    return folder


def test_another_rdma_core_is_no_debian_12(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tool.programs, "fetch", lambda name: package(tmp_path, "56.1"))
    assert tool.on_driver(sys.executable) is None
    assert "Debian has rdma-core 56 here; outcomes are kept of 44" in capsys.readouterr().out


def test_what_cannot_be_fetched_is_said(monkeypatch, capsys):
    def fetch(name: str) -> Path:
        raise tool.programs.Unavailable("no apt-get")

    monkeypatch.setattr(tool.programs, "fetch", fetch)
    monkeypatch.setattr(tool, "check_python", lambda python: None)
    assert tool.main(["--suite", "driver"]) == tool.CANNOT_RUN
    assert capsys.readouterr().out == "-- Debian's suite is left out: no apt-get\n"


def test_the_interpreter_is_one_that_takes_the_modules():
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    candidates = ["/no/such/python", "false", sys.executable]
    assert tool.rdma_core_driver.suitable(suffix, candidates)[0] == sys.executable
    with pytest.raises(tool.programs.Unavailable, match=r"no interpreter takes modules \*\.cpython-29"):
        tool.rdma_core_driver.suitable(".cpython-29.so", candidates)


def test_an_interpreter_is_found_from_any_folder() -> None:
    assert tool.interpreter(".venv/bin/python") == str(Path.cwd() / ".venv/bin/python")
    assert tool.interpreter("python3") == "python3"
