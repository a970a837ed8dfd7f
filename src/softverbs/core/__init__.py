# SPDX-License-Identifier: MIT
"""The device itself, sans-IO: no sockets, clocks, threads or logging. Compiled where a compiler was at hand."""
