# SPDX-License-Identifier: MIT
"""The device for programs of other processes: a server whose clients are drivers in those programs."""
