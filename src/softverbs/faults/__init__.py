# SPDX-License-Identifier: MIT
"""Failure on demand: a plan of what goes wrong at a device, for tests of programs that must survive it.

``Device(faults="create_cq:nth=3:errno=ENOMEM,drop=0.01")``, ``SOFTVERBS_FAULTS``, or at any time ``device.faults.add``.
docs/faults.md has the grammar.
"""

from softverbs.faults.hooks import Hit
from softverbs.faults.plan import Plan
from softverbs.faults.rules import Rule
from softverbs.faults.verbs import VERBS

__all__ = ["VERBS", "Hit", "Plan", "Rule"]
