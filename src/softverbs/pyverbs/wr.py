# SPDX-License-Identifier: MIT
"""Work requests: what is sent, received, read or written. The classes are the device's own."""

from softverbs.core.queues.wr import SGE as SGE
from softverbs.core.queues.wr import RecvWR as RecvWR
from softverbs.core.queues.wr import SendWR as SendWR
from softverbs.core.queues.wr_text import send_flags_to_str as send_flags_to_str

__all__ = ["SGE", "RecvWR", "SendWR", "send_flags_to_str"]
