# SPDX-License-Identifier: MIT
"""Completion queues, extended ones, and the channels that tell of completions."""

import errno
import threading
import weakref
from collections.abc import Callable
from typing import Any

from softverbs._interrupts import Shield, shielded
from softverbs.core.queues.completion import CompChannel as _Channel
from softverbs.core.queues.completion import CompletionQueue
from softverbs.core.queues.wr import WC as WC
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._bell import Bell, readable
from softverbs.pyverbs._cq_attr import IBV_CQ_ATTR_MODERATE as IBV_CQ_ATTR_MODERATE
from softverbs.pyverbs._cq_attr import TIMESTAMPS
from softverbs.pyverbs._cq_attr import CqInitAttrEx as CqInitAttrEx
from softverbs.pyverbs._cq_attr import ModifyCqAttr as ModifyCqAttr
from softverbs.pyverbs._cq_attr import PollCqAttr as PollCqAttr
from softverbs.pyverbs._cq_attr import WcTmInfo as WcTmInfo
from softverbs.pyverbs._cq_text import cqe_flags_to_str as cqe_flags_to_str
from softverbs.pyverbs._cq_text import cqe_opcode_to_str as cqe_opcode_to_str
from softverbs.pyverbs._cq_text import cqe_status_to_str as cqe_status_to_str
from softverbs.pyverbs._cq_text import create_wc_flags_to_str as create_wc_flags_to_str
from softverbs.pyverbs._cq_text import flags_to_str as flags_to_str
from softverbs.pyverbs._fields import instance, integer, lines, refused
from softverbs.pyverbs.base import Children, Resource, reworded
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pd import PD, RESOURCE_CQ, ParentDomain
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

_NS_PER_US = 1000


class CompChannel(Resource):
    """A completion channel, ``struct ibv_comp_channel`` (ibv_create_comp_channel(3)): it delivers the events of CQs.

    ``fd`` is readable while an event waits, for ``poll``, epoll and asyncio.
    """

    _kind = "completion channel"
    _children = ("_cqs",)
    _cqs: Children

    def __init__(self, context: Context) -> None:
        """
        :param context: the open device
        """
        instance(context, Context, "CompChannel context")
        with context._guard("Failed to create a completion channel"):
            self._bell = Bell()
            self._start(context, _Channel(self._bell.ring, self._bell.silence))
            context._ccs.add(self)

    def _forget(self) -> None:
        super()._forget()
        self._bell.close()

    @property
    def fd(self) -> int:
        """The descriptor. Set O_NONBLOCK on it (``os.set_blocking``) and ``get_cq_event`` never waits."""
        self._open()
        return self._bell.fd

    def get_cq_event(self, expected_cq: "CQ | CQEX | None" = None) -> "CQ | CQEX":
        """Reads the next completion event (ibv_get_cq_event(3)) and returns its CQ (pyverbs returns None).

        Waits for one, unless O_NONBLOCK is set on ``fd``: then EAGAIN. The event must be acknowledged; closing the CQ
        does that too.

        :param expected_cq: whose event it must be; None (an extension): any CQ's
        :raises PyverbsRDMAError: EAGAIN; EINVAL for an event of another CQ, which is read all the same
        """
        taken: list[Any] = []
        device = self._device()
        if device.port.failure is None:
            with self._guard("Failed to get CQ event"):
                if not self._take(taken):
                    device.progress()
                    self._take(taken)
        else:  # of a device that was removed, events that are there can be read
            device._check_open()
            with device.lock:
                self._take(taken)
        if not taken:
            device.check()
            if not self._bell.blocking():
                raise refused("Failed to get CQ event: there is none", errno.EAGAIN)
            device.wait_until(lambda: self._take(taken), None)
        if not taken:
            raise self._closed()
        cq: CQ | CQEX = taken[0]
        if expected_cq is not None and cq is not expected_cq:
            raise refused("Received event on an unexpected CQ")
        return cq

    def _take(self, taken: list[Any]) -> bool:
        """Moves the CQ of the next event to ``taken``; whether waiting is over. The lock is held."""
        core = self._core
        if core is None:
            return True
        while not taken:
            queue = core.pop()
            if queue is None:
                break
            owner = queue.user() if queue.user is not None else None
            if owner is not None:
                taken.append(owner)
        if not core.pending:
            self._bell.silence()
        return bool(taken)

    async def event(self) -> "CQ | CQEX":
        """Extension: ``get_cq_event`` for asyncio; one task at a time may wait on a channel."""
        taken: list[CQ | CQEX] = []
        while True:
            with self._guard("Failed to get CQ event"):
                self._take(taken)
            if taken:
                return taken[0]
            await readable(self.fd)


class _Queue(Resource):
    """What CQ and CQEX have in common."""

    _kind = "CQ"
    _verb = "create_cq"
    _children = ("_qps", "_srqs")
    _qps: Children
    _srqs: Children

    _placed: Any = None

    def _make(
        self,
        context: Context,
        cqe: int,
        cq_context: object,
        channel: CompChannel | None,
        comp_vector: int,
        flags: int,
        domain: "ParentDomain | None" = None,
    ) -> None:
        """Creates the queue; the arguments are those of ibv_create_cq(3), and a parent domain, whose memory it uses."""
        instance(context, Context, f"{type(self).__name__} context")
        cqe = integer(cqe, "cqe", signed=True)
        comp_vector = integer(comp_vector, "comp_vector", signed=True)
        what = "Failed to create a CQ"
        if channel is not None:
            instance(channel, CompChannel, "channel")
            if channel._open() and _of_another(channel, context):
                raise refused(f"{what}: the channel belongs to another context")
        if domain is not None and domain._open() and _of_another(domain, context):
            raise refused(f"{what}: the parent domain belongs to another context")
        with context._guard(what, verb=self._verb, size=cqe) as device:
            channel_core = None if channel is None else channel._open()
            core = CompletionQueue(device.port, context._core, cqe, cq_context, channel_core, comp_vector, flags)
            if domain is not None:
                self._placed = domain._place(RESOURCE_CQ, core)
            core.user = weakref.ref(self)
            self._channel = channel
            self._start(context, core)
            context._cqs.add(self)
            if channel is not None:
                channel._cqs.add(self)
            if domain is not None:
                domain._cqs.add(self)

    def _remains(self) -> Any:
        return self._core, self._placed

    @staticmethod
    def _bury(remains: Any) -> None:
        core, placed = remains
        core.close()
        if placed is not None:
            placed.release()

    def _before_destroy(self) -> None:
        core = self._open()
        unacknowledged = core.events_read - core.events_acked
        if unacknowledged:
            self.ack_events(unacknowledged)

    def _forget(self) -> None:
        super()._forget()
        self._channel = self._placed = None

    @property
    def handle(self) -> int:
        """Extension (``handle`` of ``struct ibv_cq``): the device's number for it."""
        return int(self._open().handle)

    @property
    def cqe(self) -> int:
        """Entries that it holds."""
        return int(self._open().cqe)

    @property
    def comp_channel(self) -> CompChannel | None:
        """The channel of its events, or None."""
        return self._channel

    def req_notify(self, solicited_only: bool = False) -> None:
        """Asks for one event for the next entry (ibv_req_notify_cq(3)). Poll afterwards: what is there raises none.

        :param solicited_only: only for errors and for receives whose sender set IBV_SEND_SOLICITED
        """
        with self._guard("Failed to request a CQ notification"):
            self._open().req_notify(bool(solicited_only))

    def ack_events(self, num_events: int) -> None:
        """Acknowledges events that were read (ibv_ack_cq_events(3)).

        :param num_events: how many
        :raises PyverbsRDMAError: EINVAL for more than were read
        """
        count = integer(num_events, "num_events")
        with self._guard("Failed to acknowledge CQ events"):
            self._open().ack(count)

    def resize(self, cqe: int) -> None:
        """Changes how many entries it holds (ibv_resize_cq(3)); what waits to be polled stays. What is due by now
        counts as waiting.

        :param cqe: entries, at least; ``cqe`` tells the actual number
        :raises PyverbsRDMAError: EINVAL where it is out of range, or less than what waits
        """
        count = integer(cqe, "cqe", signed=True)
        with self._guard("Failed to resize CQ") as device:
            device.progress()
            self._open().resize(count)
            if self._placed is not None:
                self._placed.again()

    def modify(self, attr: ModifyCqAttr) -> None:
        """Extension (ibv_modify_cq(3), which pyverbs has not): event moderation. A completion that is due an event
        waits until there are ``cq_count`` of them, or ``cq_period`` has passed since the first.

        :param attr: what is changed
        :raises PyverbsRDMAError: EINVAL for unknown bits of ``attr_mask``
        """
        what = "Failed to modify CQ"
        instance(attr, ModifyCqAttr, "attr")
        unknown = attr.attr_mask & ~IBV_CQ_ATTR_MODERATE
        if unknown:
            raise refused(f"{what}: attr_mask bits {unknown:#x} are not known")
        with self._guard(what, verb="modify_cq"):
            core = self._open()
            if attr.attr_mask:
                core.moderate(attr.cq_count, attr.cq_period * _NS_PER_US)

    def statistics(self) -> dict[str, int]:
        """Extension: counts since it was made: completions, errors of them, lost by overrun, purged with their QP,
        events; and how many completions wait to be polled.
        """
        with self._guard("Failed to read the statistics of a CQ", verb=""):
            return dict(self._open().statistics())


def _of_another(resource: Resource, context: Context) -> bool:
    """Whether an object belongs to another context, and not to one that shares its objects by import."""
    owner = resource._context
    return owner is not None and owner._core is not context._core


class CQ(_Queue):
    """A completion queue, ``struct ibv_cq`` (ibv_create_cq(3))."""

    _hot = {"_poll": "poll"}  # noqa: RUF012
    _poll: Callable[[int], list[WC]]

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        """
        :param context: the open device
        :param cqe: entries, at least
        :param cq_context: anything; ``cq_context`` returns it
        :param channel: where events go; None: there are none
        :param comp_vector: 0 to ``context.num_comp_vectors`` - 1
        :raises PyverbsRDMAError: EINVAL where an argument is out of range, ENOMEM
        """
        self._make(context, cqe, cq_context, channel, comp_vector, 0)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Takes completions, oldest first (ibv_poll_cq(3)): their number, and the completions.

        :param num_entries: so many at most
        """
        if type(num_entries) is not int:  # quick, where it is; the core would cut off a fraction
            num_entries = integer(num_entries, "Failed to poll CQ: num_entries", 31)
        try:
            completions = self._poll(num_entries)
        except (TypeError, OverflowError) as error:
            raise reworded(error, "Failed to poll CQ") or error from None
        return len(completions), completions

    async def completions(self, num_entries: int = 1) -> list[WC]:
        """Extension: ``poll`` for asyncio: waits until there is at least one completion.

        The CQ needs a channel, and no other task may wait on that channel.

        :param num_entries: so many at most
        :raises PyverbsRDMAError: EINVAL without a channel
        """
        if self._channel is None:
            self._open()
            raise refused("this CQ has no completion channel to wait on")
        found = self._poll(num_entries)
        while not found:
            self.req_notify()
            found = self._poll(num_entries)
            if not found:
                (await self._channel.event()).ack_events(1)
        return found

    @property
    def cq(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)

    @property
    def cq_context(self) -> Any:
        """Extension: what was given at creation."""
        return self._open().cq_context

    def __str__(self) -> str:
        return "CQ\n" + lines(22, ("Handle", self.handle), ("CQEs", self.cqe))


class CQEX(_Queue):
    """An extended completion queue, ``struct ibv_cq_ex`` (ibv_create_cq_ex(3)).

    ``start_poll`` makes the oldest completion the current one, ``poll_next`` the one after it, ``end_poll`` ends the
    batch. Between them ``status``, ``wr_id`` and the ``read_`` methods tell of the current completion.
    """

    _verb = "create_cq_ex"

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        """
        :param context: the open device
        :param init_attr: how it is made; None: as ``CqInitAttrEx()`` is
        :raises PyverbsRDMAError: EINVAL for what is unknown or out of range, EOPNOTSUPP for unsupported wc_flags
        """
        attr = CqInitAttrEx() if init_attr is None else init_attr
        instance(attr, CqInitAttrEx, "CQEX init_attr")
        flags = attr._checked_flags()
        domain = self._domain(attr)
        self._wc_flags = attr.wc_flags
        self._current: WC | None = None
        self._timestamp = 0
        self._wall_clock = 0
        # A batch belongs to one thread, unless the application has promised to have only one.
        self._batch = threading.Lock()
        self._poller = 0
        in_thread = domain is not None and domain.td is not None
        self._single = in_thread or bool(flags & e.IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
        self._make(context, attr.cqe, attr.cq_context, attr.comp_channel, attr.comp_vector, flags, domain)

    @staticmethod
    def _domain(attr: CqInitAttrEx) -> "ParentDomain | None":
        """The parent domain to use, if any."""
        domain = attr.parent_domain
        if domain is None:
            return None
        if not isinstance(domain, ParentDomain):
            kind = "a plain protection domain" if isinstance(domain, PD) else type(domain).__name__
            raise refused(f"Failed to create extended CQ: parent_domain is {kind}: ParentDomain is expected")
        return domain if attr.comp_mask & e.IBV_CQ_INIT_ATTR_MASK_PD else None

    def _forget(self) -> None:
        super()._forget()
        self._current = None

    def start_poll(self, attr: "PollCqAttr | None" = None) -> int:
        """Begins a batch: 0, or ENOENT where there is no completion; then ``end_poll`` must not follow.

        :param attr: None, or one with ``comp_mask`` 0
        """
        if attr is not None:
            instance(attr, PollCqAttr, "start_poll attr")
            if attr.comp_mask:
                return errno.EINVAL
        self._open()
        me = threading.get_ident()
        if self._poller == me:
            raise refused("start_poll: a batch is open already; end_poll comes first")
        try:
            with Shield() as shield:
                self._enter_batch(shield)
                self._poller = me
                found = self._advance()
                if not found:
                    self._leave_batch()
        except BaseException:
            if self._poller == me:
                self._leave_batch()
            raise
        return 0 if found else errno.ENOENT

    def poll_next(self) -> int:
        """The next completion of the batch: 0, or ENOENT where there is none; ``end_poll`` must follow either way."""
        if self._poller != threading.get_ident():
            raise refused("poll_next: no batch is open; start_poll comes first")
        return 0 if self._advance() else errno.ENOENT

    def end_poll(self) -> None:
        """Ends the batch (ibv_end_poll(3))."""
        if self._poller != threading.get_ident():
            raise refused("end_poll: no batch is open; start_poll comes first")
        self._leave_batch()

    def _enter_batch(self, shield: Shield) -> None:
        if self._batch.locked():
            device = self._device()
            device._check_open()  # in a forked child the thread that is polling does not exist
            if self._single and device.options.debug:
                raise refused("start_poll: another thread is polling this CQ, which was created SINGLE_THREADED")
        shield.acquire(self._batch)

    @shielded
    def _leave_batch(self) -> None:
        self._poller = 0
        self._current = None
        self._batch.release()

    def _advance(self) -> bool:
        """Makes the next completion the current one; whether there is one."""
        device = self._device()
        device._check_open()
        with device.lock:  # no more than that: of a device that was removed, completions that are there can be polled
            core = self._open()
            if not core.count():
                core.poll(0)
            if self._wc_flags & TIMESTAMPS and core.count():
                self._timestamp = core.timestamp()
                self._wall_clock = self._timestamp + device.wall_clock_offset()
            found = core.poll(1)
        if found:
            self._current = found[0]
        return bool(found)

    def _wc(self, flag: int = 0) -> WC:
        if self._current is None:
            self._open()
            raise refused("no completion is current: start_poll comes first")
        if flag & ~self._wc_flags:
            raise refused(f"this CQ was not created with {create_wc_flags_to_str(flag).strip()}")
        return self._current

    def read_opcode(self) -> int:
        """IBV_WC_SEND and so on."""
        return self._wc().opcode

    def read_vendor_err(self) -> int:
        """The device's own error number."""
        return self._wc().vendor_err

    def read_wc_flags(self) -> int:
        """IBV_WC_* flag bits."""
        return self._wc().wc_flags

    def read_byte_len(self) -> int:
        """Bytes received, or read."""
        return self._wc(e.IBV_WC_EX_WITH_BYTE_LEN).byte_len

    def read_imm_data(self) -> int:
        """Immediate data in network order, or the key that was invalidated."""
        return self._wc(e.IBV_WC_EX_WITH_IMM).imm_data

    def read_qp_num(self) -> int:
        """Number of the local QP."""
        return self._wc(e.IBV_WC_EX_WITH_QP_NUM).qp_num

    def read_src_qp(self) -> int:
        """Number of the remote QP, for UD."""
        return self._wc(e.IBV_WC_EX_WITH_SRC_QP).src_qp

    def read_slid(self) -> int:
        """Source LID; 0 over Ethernet."""
        return self._wc(e.IBV_WC_EX_WITH_SLID).slid

    def read_sl(self) -> int:
        """Service level."""
        return self._wc(e.IBV_WC_EX_WITH_SL).sl

    def read_dlid_path_bits(self) -> int:
        """Low bits of the destination LID; 0 over Ethernet."""
        return self._wc(e.IBV_WC_EX_WITH_DLID_PATH_BITS).dlid_path_bits

    def read_timestamp(self) -> int:
        """When it completed, ns of the device's clock (``Context.query_rt_values_ex``)."""
        self._wc(e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
        return self._timestamp

    def read_completion_wallclock_ns(self) -> int:
        """When it completed, ns since 1970."""
        self._wc(e.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        return self._wall_clock

    def read_cvlan(self) -> int:
        """VLAN; no CQ can be created with it."""
        self._wc(e.IBV_WC_EX_WITH_CVLAN)
        return 0

    def read_flow_tag(self) -> int:
        """Flow tag; no CQ can be created with it."""
        self._wc(e.IBV_WC_EX_WITH_FLOW_TAG)
        return 0

    def read_tm_info(self) -> "WcTmInfo":
        """Tag matching; no CQ can be created with it."""
        self._wc(e.IBV_WC_EX_WITH_TM_INFO)
        return WcTmInfo()

    @property
    def status(self) -> int:
        """IBV_WC_SUCCESS and so on."""
        return self._wc().status

    @property
    def wr_id(self) -> int:
        """Number of the work request."""
        return self._wc().wr_id

    @property
    def reason(self) -> str:
        """Extension: why it did not succeed, in words."""
        return str(self._wc().reason)

    def __str__(self) -> str:
        return "Extended CQ:\n" + lines(22, ("Handle", self.handle), ("CQEs", self.cqe))


__all__ = [
    "CQ",
    "CQEX",
    "WC",
    "CompChannel",
    "CqInitAttrEx",
    "ModifyCqAttr",
    "PollCqAttr",
    "PyverbsRDMAError",
    "WcTmInfo",
]
