# SPDX-License-Identifier: MIT
"""The alias: programs that import pyverbs find softverbs."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
import pyverbs
import pyverbs.device as d
import pyverbs.providers.efa.efadv as efa
from pyverbs import enums
from pyverbs.cq import CQ, WC
from pyverbs.libibverbs_enums import ibv_qp_type
from pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError
import softverbs, softverbs.pyverbs.cq, softverbs.pyverbs.providers.efa.efadv
assert pyverbs is softverbs.pyverbs and CQ is softverbs.CQ and WC is softverbs.WC
assert efa is softverbs.pyverbs.providers.efa.efadv
assert pyverbs.cq is softverbs.pyverbs.cq and pyverbs.cq.__name__ == "softverbs.pyverbs.cq"
assert pyverbs.cq.__spec__.name == "softverbs.pyverbs.cq"
assert pyverbs.__version__ == "65.0"
assert enums.IBV_QPT_UD == ibv_qp_type.IBV_QPT_UD == 4
assert PyverbsRDMAError is softverbs.PyverbsRDMAError
with d.Context(name=d.get_device_list()[0].name.decode()) as context, CQ(context, 10) as cq:
    assert cq.poll() == (0, [])
print("fine")
"""


def python(*words: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Runs an interpreter that finds what this one finds; its output is kept."""
    places = [str(Path(place).resolve()) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=env, timeout=60)


def checked(*words: str, cwd: Path | None = None) -> str:
    done = python(*words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_and_classes_are_the_same_under_both_names():
    assert checked("-c", f"import softverbs; softverbs.install_as_pyverbs()\n{PROGRAM}") == "fine\n"


def test_what_was_imported_before_is_the_same_too():
    program = (
        "import softverbs.pyverbs.qp, softverbs.as_pyverbs as a; a.install(); a.install(); import pyverbs.qp as q; "
    )
    assert (
        checked("-c", program + "assert q is softverbs.pyverbs.qp; print(q.QP.__module__)") == "softverbs.pyverbs.qp\n"
    )


def test_a_script_with_arguments(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(f"{PROGRAM}\nimport sys, helper\nprint(sys.argv[1:], __name__, helper.NAME)\n")
    (tmp_path / "helper.py").write_text("from pyverbs.qp import QP\nNAME = QP.__name__\n")
    out = checked("-m", "softverbs.as_pyverbs", str(script), "a", "-m", "--b")
    assert out == "fine\n['a', '-m', '--b'] __main__ QP\n"


def test_a_module_and_its_exit_status(tmp_path):
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
            import unittest
            import pyverbs.device as d

            class It(unittest.TestCase):
                def test_good(self):
                    self.assertEqual(d.get_device_list()[0].name, b"softverbs0")

                def test_bad(self):
                    self.fail("no")
            """)
    )
    run = ("-m", "softverbs.as_pyverbs", "-m", "unittest")
    checked(*run, "test_it.It.test_good", cwd=tmp_path)
    failed = python(*run, "test_it", cwd=tmp_path)
    assert failed.returncode == 1
    assert "Ran 2 tests" in failed.stderr


def test_a_command():
    command = "import pyverbs.qp, sys; print(sys.argv)"
    assert checked("-m", "softverbs.as_pyverbs", "-c", command, "x") == "['-c', 'x']\n"


@pytest.mark.parametrize("words", [[], ["-m"], ["-x", "y"], ["--help"]])
def test_wrong_words_are_answered_with_the_usage(words):
    done = python("-m", "softverbs.as_pyverbs", *words)
    assert "usage: python -m softverbs.as_pyverbs" in done.stdout + done.stderr
    assert (done.returncode == 0) == (words == ["--help"])


def test_the_real_one_comes_first(tmp_path):
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "__init__.py").write_text("")
    program = "import pyverbs, softverbs\ntry:\n    softverbs.install_as_pyverbs()\nexcept ImportError as e: print(e)"
    out = checked("-c", program, cwd=tmp_path)
    assert out.startswith("pyverbs is already imported, from ")
    assert str(tmp_path / "pyverbs") in out


def test_the_name_can_be_given_back(tmp_path):
    (tmp_path / "pyverbs").mkdir()
    (tmp_path / "pyverbs" / "__init__.py").write_text("REAL = True")
    program = """
        import softverbs.as_pyverbs as a
        a.install()
        import pyverbs.qp
        assert not hasattr(pyverbs, "REAL")
        a.uninstall()
        a.uninstall()
        import pyverbs
        assert pyverbs.REAL
        """
    checked("-c", textwrap.dedent(program), cwd=tmp_path)


def test_what_pyverbs_has_not_is_not_found():
    program = (
        "import softverbs; softverbs.install_as_pyverbs(); import importlib.util as u; print(u.find_spec('pyverbs.no'))"
    )
    assert checked("-c", program) == "None\n"
    missing = python("-m", "softverbs.as_pyverbs", "-c", "import pyverbs.no")
    assert "No module named 'pyverbs.no'" in missing.stderr


def test_features_of_other_makers_refuse_all_work():
    program = """
        import errno
        from pyverbs.providers.mlx5.mlx5dv import Mlx5Context, Mlx5DVContextAttr
        from pyverbs.providers.mlx5.mlx5_enums import mlx5dv_qp_init_attr_mask, MLX5DV_FLAG, _MLX5DV_OTHER
        import pyverbs.providers.mlx5.mlx5_enums as dve
        from pyverbs.pyverbs_error import PyverbsRDMAError

        class Mine(Mlx5Context):
            pass

        assert dve.MLX5DV_FLAG is MLX5DV_FLAG
        assert "MLX5DV_FLAG" in repr(MLX5DV_FLAG)
        assert (mlx5dv_qp_init_attr_mask.MLX5DV_A | MLX5DV_FLAG | _MLX5DV_OTHER) == 0
        assert not isinstance(3, Mlx5Context)
        assert Mlx5DVContextAttr(flags=3).flags == 3
        for call in (Mine, lambda: Mlx5Context(attr=1, name="softverbs0"), mlx5dv_qp_init_attr_mask):
            try:
                call()
            except PyverbsRDMAError as error:
                assert error.error_code == errno.EOPNOTSUPP and "another maker" in error.args[0]
            else:
                raise SystemExit("not refused")
        try:
            dve.__path__, dve.__wrapped__
        except AttributeError:
            print("fine")
        """
    assert checked("-m", "softverbs.as_pyverbs", "-c", textwrap.dedent(program)) == "fine\n"
