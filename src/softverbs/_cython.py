# SPDX-License-Identifier: MIT
"""What ``import cython`` gives to the core where Cython is not installed: the word that it is not compiled."""

compiled = False
