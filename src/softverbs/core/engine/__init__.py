# SPDX-License-Identifier: MIT
"""The engine: what makes progress, and when."""
