# SPDX-License-Identifier: MIT
"""Checks in a forked child."""

import os
import traceback
import warnings
from collections.abc import Callable


def in_child(check: Callable[[], None]) -> None:
    """Runs ``check`` in a forked child; what it raises fails the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: forking a process that has threads
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
