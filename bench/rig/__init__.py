# SPDX-License-Identifier: MIT
"""The parts of the benchmark: the gate on foreign CPU use, the cases, the rounds and the report."""
