# SPDX-License-Identifier: MIT
"""RoCEv2 frames: opcodes, headers, PSN arithmetic, the ICRC, GIDs, and frames on their way out."""
