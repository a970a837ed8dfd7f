# SPDX-License-Identifier: MIT
"""Used by all of the core: errors, limits and options, constants, the lock, and what objects ask of their port."""
