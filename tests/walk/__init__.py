# SPDX-License-Identifier: MIT
"""Random walks over the verbs, from a seed: ``python -m tests.walk --help``."""
