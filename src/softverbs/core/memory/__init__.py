# SPDX-License-Identifier: MIT
"""The only place with addresses and system calls on memory: regions and keys, and memory of other processes."""
