# SPDX-License-Identifier: MIT
"""An RDMA device in software: completion queues, completion counters and RoCEv2, without a NIC.

The classes are those of pyverbs, in ``softverbs.pyverbs`` and, under their names, here; so are the ``IBV_``
constants. The functions of the manual pages are in ``softverbs.verbs``. Everything is imported when it is first
used: ``import softverbs`` itself is quick and starts nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softverbs.as_pyverbs import install as install_as_pyverbs
    from softverbs.device import default_device as default_device
    from softverbs.pyverbs.addr import AH as AH
    from softverbs.pyverbs.addr import GID as GID
    from softverbs.pyverbs.addr import GRH as GRH
    from softverbs.pyverbs.addr import AHAttr as AHAttr
    from softverbs.pyverbs.addr import GlobalRoute as GlobalRoute
    from softverbs.pyverbs.cmid import CMID as CMID
    from softverbs.pyverbs.cmid import AddrInfo as AddrInfo
    from softverbs.pyverbs.cmid import CMEvent as CMEvent
    from softverbs.pyverbs.cmid import CMEventChannel as CMEventChannel
    from softverbs.pyverbs.cmid import ConnParam as ConnParam
    from softverbs.pyverbs.cmid import JoinMCAttrEx as JoinMCAttrEx
    from softverbs.pyverbs.cmid import UDParam as UDParam
    from softverbs.pyverbs.comp_cntr import CompCntr as CompCntr
    from softverbs.pyverbs.comp_cntr import CompCntrInitAttr as CompCntrInitAttr
    from softverbs.pyverbs.comp_cntr import ThresholdFd as ThresholdFd
    from softverbs.pyverbs.cq import CQ as CQ
    from softverbs.pyverbs.cq import CQEX as CQEX
    from softverbs.pyverbs.cq import WC as WC
    from softverbs.pyverbs.cq import CompChannel as CompChannel
    from softverbs.pyverbs.cq import CqInitAttrEx as CqInitAttrEx
    from softverbs.pyverbs.cq import PollCqAttr as PollCqAttr
    from softverbs.pyverbs.device import AsyncEvent as AsyncEvent
    from softverbs.pyverbs.device import CompCntrCaps as CompCntrCaps
    from softverbs.pyverbs.device import Context as Context
    from softverbs.pyverbs.device import DeviceAttr as DeviceAttr
    from softverbs.pyverbs.device import GIDEntry as GIDEntry
    from softverbs.pyverbs.device import PortAttr as PortAttr
    from softverbs.pyverbs.device import get_device_list as get_device_list
    from softverbs.pyverbs.libibverbs_enums import *  # noqa: F403
    from softverbs.pyverbs.mr import MR as MR
    from softverbs.pyverbs.pd import PD as PD
    from softverbs.pyverbs.pyverbs_error import PyverbsError as PyverbsError
    from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError as PyverbsRDMAError
    from softverbs.pyverbs.pyverbs_error import PyverbsUserError as PyverbsUserError
    from softverbs.pyverbs.qp import QP as QP
    from softverbs.pyverbs.qp import QPAttachCompCntrAttr as QPAttachCompCntrAttr
    from softverbs.pyverbs.qp import QPAttr as QPAttr
    from softverbs.pyverbs.qp import QPCap as QPCap
    from softverbs.pyverbs.qp import QPInitAttr as QPInitAttr
    from softverbs.pyverbs.qp import QPInitAttrEx as QPInitAttrEx
    from softverbs.pyverbs.srq import SRQ as SRQ
    from softverbs.pyverbs.srq import SrqAttr as SrqAttr
    from softverbs.pyverbs.srq import SrqInitAttr as SrqInitAttr
    from softverbs.pyverbs.srq import SrqInitAttrEx as SrqInitAttrEx
    from softverbs.pyverbs.wr import SGE as SGE
    from softverbs.pyverbs.wr import RecvWR as RecvWR
    from softverbs.pyverbs.wr import SendWR as SendWR
    from softverbs.pyverbs.xrcd import XRCD as XRCD
    from softverbs.pyverbs.xrcd import XRCDInitAttr as XRCDInitAttr

    __version__: str
    core_build: str

#: Module -> the names that are re-exported from it.
_MODULES = {
    "softverbs.device": "default_device",
    "softverbs.pyverbs.addr": "AH AHAttr GID GRH GlobalRoute",
    "softverbs.pyverbs.cmid": "AddrInfo CMEvent CMEventChannel CMID ConnParam JoinMCAttrEx UDParam",
    "softverbs.pyverbs.comp_cntr": "CompCntr CompCntrInitAttr ThresholdFd",
    "softverbs.pyverbs.cq": "CQ CQEX CompChannel CqInitAttrEx PollCqAttr WC",
    "softverbs.pyverbs.device": "AsyncEvent CompCntrCaps Context DeviceAttr GIDEntry PortAttr get_device_list",
    "softverbs.pyverbs.mr": "MR",
    "softverbs.pyverbs.pd": "PD",
    "softverbs.pyverbs.pyverbs_error": "PyverbsError PyverbsRDMAError PyverbsUserError",
    "softverbs.pyverbs.qp": "QP QPAttachCompCntrAttr QPAttr QPCap QPInitAttr QPInitAttrEx",
    "softverbs.pyverbs.srq": "SRQ SrqAttr SrqInitAttr SrqInitAttrEx",
    "softverbs.pyverbs.wr": "RecvWR SGE SendWR",
    "softverbs.pyverbs.xrcd": "XRCD XRCDInitAttr",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}
_SUBMODULES = ("cli", "cm", "core", "device", "faults", "links", "pyverbs", "verbs")

__all__ = ["__version__", "core_build", "install_as_pyverbs", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Imports what is asked for, and remembers it."""
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name.lower().startswith("ibv_"):
        value = getattr(import_module("softverbs.pyverbs.libibverbs_enums"), name)
    elif name in _SUBMODULES:
        value = import_module(f"softverbs.{name}")
    elif name == "install_as_pyverbs":
        value = import_module("softverbs.as_pyverbs").install
    elif name == "core_build":
        value = _core_build()
    elif name == "__version__":
        value = _version()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, those that are not imported yet among them."""
    return sorted({*globals(), *__all__, *_SUBMODULES})


def _core_build() -> str:
    """``compiled`` or ``pure``: which of the two builds of the core this process runs."""
    memory = import_module("softverbs.core.memory.raw")
    return "pure" if str(memory.__file__).endswith((".py", ".pyc")) else "compiled"


def _version() -> str:
    """The version of the installed package; ``0`` in a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("softverbs")
    except PackageNotFoundError:
        return "0"
