# SPDX-License-Identifier: MIT
"""Rings and work requests, send, receive and completion queues, counters; sharing them with a program."""
