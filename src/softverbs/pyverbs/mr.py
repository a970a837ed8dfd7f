# SPDX-License-Identifier: MIT
"""Memory regions and memory windows: memory that the device may touch, and parts of it that peers may."""

from softverbs.pyverbs._buffers import HUGE_PAGE_SIZE as HUGE_PAGE_SIZE
from softverbs.pyverbs._mr_base import MR as MR
from softverbs.pyverbs._mr_kinds import DMMR as DMMR
from softverbs.pyverbs._mr_kinds import Buf as Buf
from softverbs.pyverbs._mr_kinds import BufMR as BufMR
from softverbs.pyverbs._mr_kinds import DmaBufMR as DmaBufMR
from softverbs.pyverbs._mr_kinds import DMAHandle as DMAHandle
from softverbs.pyverbs._mr_kinds import DmaHandleInitAttr as DmaHandleInitAttr
from softverbs.pyverbs._mr_kinds import MREx as MREx
from softverbs.pyverbs._mr_kinds import NullMR as NullMR
from softverbs.pyverbs._mr_window import MW as MW
from softverbs.pyverbs._mr_window import MWBind as MWBind
from softverbs.pyverbs._mr_window import MWBindInfo as MWBindInfo
from softverbs.pyverbs._mr_window import mwtype2str as mwtype2str
