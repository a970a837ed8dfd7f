# SPDX-License-Identifier: MIT
"""Protection domains: what of memory and QPs may work together; parent and thread domains, which extend them."""

import errno
from collections.abc import Callable
from typing import Any

from softverbs.core.memory.regions import ProtectionDomain
from softverbs.pyverbs import libibverbs_enums as e
from softverbs.pyverbs._buffers import check_mapped, populate
from softverbs.pyverbs._fields import Field, instance, integer, refused
from softverbs.pyverbs._importable import Importable
from softverbs.pyverbs.base import Children, PyverbsObject, Resource
from softverbs.pyverbs.device import Context
from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from softverbs.pyverbs.wr import SGE

_ADVICE = (
    e._IBV_ADVISE_MR_ADVICE_PREFETCH,
    e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
)
_ALLOCATOR_BITS = e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | e.IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
_PARENT_BITS = _ALLOCATOR_BITS | e.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC
#: ``resource_type`` of an allocator's call: whose buffer it is. The upper 32 bits, a driver's number, are 0: unknown.
RESOURCE_QP = 1
RESOURCE_SRQ = 2
RESOURCE_CQ = 3
#: What allocators are asked for, bytes.
ALIGNMENT = 4096


class PD(Importable):
    """A protection domain, ``struct ibv_pd`` (ibv_alloc_pd(3))."""

    _kind = "PD"
    _children: tuple[str, ...] = ("_parent_domains", "_qps", "_ahs", "_mws", "_bufs", "_mrs", "_srqs")
    _parent_domains: Children
    _qps: Children
    _ahs: Children
    _mws: Children
    _bufs: Children
    _mrs: Children
    _srqs: Children

    #: Extension: the thread domain, of a parent domain that has one.
    td: "TD | None" = None

    def __init__(self, creator: Any, **kwargs: Any) -> None:
        """
        :param creator: the open device; or a CMID, whose protection domain this is another name of
        :param kwargs: ``handle``: import the domain of this handle, of a context that shares the creator's objects
            (ibv_import_pd(3))
        :raises PyverbsRDMAError: EINVAL where no domain has the handle, ENOMEM
        """
        if kwargs.keys() - {"handle"}:
            raise PyverbsUserError(f"PD has no argument {', '.join(sorted(kwargs))}")
        own = getattr(creator, "pd", None)
        if isinstance(own, PD):
            self._share(own._context_or_closed(), own)
            return
        if not isinstance(creator, Context):
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        if kwargs.get("handle") is not None:
            handle = integer(kwargs["handle"], "handle")
            with creator._guard("Failed to import PD", verb="import_pd"):
                self._share(creator, _with_handle(creator, handle))
            return
        with creator._guard("Failed to allocate PD", verb="alloc_pd") as device:
            self._start(creator, ProtectionDomain(device.port, creator._core))
            creator._pds.add(self)

    def _share(self, context: Context, other: "PD") -> None:
        """Begins life as another name of a domain."""
        self._imported = True
        self._start(context, other._core)
        context._pds.add(self)

    def _context_or_closed(self) -> Context:
        if self._context is None:
            raise self._closed()
        return self._context

    def _place(self, resource: int, core: Any) -> "Placement | None":
        """Moves the queues of a new object to memory of the application, where this domain has allocators."""
        return None

    @property
    def ctx(self) -> Context | None:
        """The context; None when closed."""
        return self._context

    @property
    def handle(self) -> int:
        """The device's number for it."""
        return int(self._open().handle)

    @property
    def pd(self) -> int:
        """A number that stands for the pointer of C; 0 when closed."""
        return 0 if self._core is None else id(self._core)

    def advise_mr(self, advise: int, flags: int, sg_list: list[SGE]) -> int:
        """Says how on-demand memory will be used (ibv_advise_mr(3)): pages it in, at once.

        :param advise: IBV_ADVISE_MR_ADVICE_PREFETCH, PREFETCH_WRITE or PREFETCH_NO_FAULT, which does nothing here
        :param flags: 0, or IBV_ADVISE_MR_FLAG_FLUSH: tell whether it worked
        :param sg_list: parts of ON_DEMAND regions of this domain
        :return: 0
        :raises PyverbsRDMAError: EOPNOTSUPP for other advice, EINVAL for other flags, no list, or what is not
            ON_DEMAND, EFAULT outside of a region or of memory, EPERM for another domain or a read-only region,
            ENOENT for a key of the past
        """
        advice, bits = integer(advise, "advise"), integer(flags, "flags")
        if not isinstance(sg_list, (list, tuple)):
            raise refused(f"Failed to advise MR: sg_list is {type(sg_list).__name__}: a list of SGE is expected")
        writing = advice == e._IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
        with self._guard("Failed to advise MR", verb="advise_mr") as device:
            if advice not in _ADVICE:
                raise refused(f"advise={advice} is not known", errno.EOPNOTSUPP)
            if bits & ~e._IBV_ADVISE_MR_FLAG_FLUSH:
                raise refused(f"flags={bits:#x}: IBV_ADVISE_MR_FLAG_FLUSH is known")
            if not sg_list:
                raise refused("sg_list is empty")
            ranges = []
            for sge in sg_list:
                instance(sge, SGE, "sg_list element")
                regions = device.port.regions
                ranges.append((regions.advised(self._open(), sge.lkey, sge.addr, sge.length, writing), sge.length))
            if advice == e._IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
                return 0
            for address, length in ranges:
                if length and not populate(address, length, writing) and bits:
                    raise refused(f"{length} bytes at {address:#x} are not mapped in this process", errno.EFAULT)
        return 0


def _with_handle(context: Context, handle: int) -> PD:
    for other in context._family():
        for pd in other._pds:
            if isinstance(pd, PD) and pd._core is not None and pd._core.handle == handle and not pd._core.closed:
                return pd
    raise refused(f"the context has no protection domain with handle {handle}")


class TDInitAttr(PyverbsObject):
    """Extension: how a thread domain is made, ``struct ibv_td_init_attr`` of ibv_alloc_td(3)."""

    comp_mask = Field("Must be 0.")

    def __init__(self, comp_mask: int = 0) -> None:
        """
        :param comp_mask: 0
        """
        self.comp_mask = comp_mask


class TD(Resource):
    """Extension: a thread domain, ``struct ibv_td`` (ibv_alloc_td(3)), which pyverbs has not: a promise that one thread
    at a time uses the objects of a parent domain. The device needs no such promise; CQs in it may use it.
    """

    _kind = "TD"
    _children = ("_parent_domains",)
    _parent_domains: Children

    def __init__(self, context: Context, attr: TDInitAttr | None = None) -> None:
        """
        :param context: the open device
        :param attr: how it is made
        :raises PyverbsRDMAError: EINVAL for a ``comp_mask``
        """
        instance(context, Context, "TD context")
        if attr is not None:
            instance(attr, TDInitAttr, "TD attr")
        with context._guard("Failed to allocate TD", verb="alloc_td"):
            if attr is not None and attr.comp_mask:
                raise refused(f"comp_mask={attr.comp_mask:#x}: no bit of it is known")
            self._start(context, _ThreadDomain())
            context._tds.add(self)


class _ThreadDomain:
    """What is left of a thread domain without hardware: a count."""

    __slots__ = ("users",)

    def __init__(self) -> None:
        self.users = 0

    def close(self) -> None:
        """EBUSY while a parent domain uses it."""
        if self.users:
            raise refused(f"{self.users} parent domains use the thread domain", errno.EBUSY)


class ParentDomainContext(PyverbsObject):
    """Allocators for the queues of objects in a parent domain (ibv_alloc_parent_domain(3)).

    ``alloc_func(pd, context, size, alignment, resource_type)`` returns the address of zeroed memory, or
    IBV_ALLOCATOR_USE_DEFAULT, or 0 for failure; ``free_func(pd, context, ptr, resource_type)`` gets it back. They are
    called with this object as ``context``, and with the device's lock held.
    """

    def __init__(
        self, pd: PD, alloc_func: Callable[..., Any], free_func: Callable[..., Any], user_data: Any = None
    ) -> None:
        """
        :param pd: handed to the functions
        :param alloc_func: returns memory
        :param free_func: takes it back
        :param user_data: for the functions
        """
        self.pd = pd
        self.p_alloc = alloc_func
        self.p_free = free_func
        #: Anything; for the functions.
        self.user_data = user_data


class ParentDomainInitAttr(PyverbsObject):
    """How a parent domain is made, ``struct ibv_parent_domain_init_attr`` of ibv_alloc_parent_domain(3)."""

    def __init__(
        self, pd: PD, pd_context: ParentDomainContext | None = None, comp_mask: int = 0, td: TD | None = None
    ) -> None:
        """
        :param pd: the protection domain that it extends
        :param pd_context: its allocators; they set their bits of ``comp_mask``
        :param comp_mask: IBV_PARENT_DOMAIN_INIT_ATTR_* bits
        :param td: Extension: a thread domain, or None
        :raises PyverbsUserError: for the bits of allocators without any
        """
        instance(pd, PD, "ParentDomainInitAttr pd")
        mask = integer(comp_mask, "comp_mask")
        if pd_context is not None:
            instance(pd_context, ParentDomainContext, "ParentDomainInitAttr pd_context")
            mask |= _ALLOCATOR_BITS
        elif mask & _ALLOCATOR_BITS:
            raise PyverbsUserError(f"comp_mask={mask:#x}: the bits of allocators need pd_context")
        if td is not None:
            instance(td, TD, "ParentDomainInitAttr td")
        self.pd = pd
        self.pd_context = pd_context
        self.td = td
        self._comp_mask = mask

    @property
    def comp_mask(self) -> int:
        """IBV_PARENT_DOMAIN_INIT_ATTR_* bits."""
        return self._comp_mask


class ParentDomain(PD):
    """A protection domain with allocators, a thread domain, or both (ibv_alloc_parent_domain(3)).

    It goes wherever a PD goes, and is the same domain as the one that it extends: what is made in either works
    together.
    """

    _kind = "ParentDomain"
    _children = ("_cqs", *PD._children)
    _cqs: Children

    def __init__(self, context: Context, attr: ParentDomainInitAttr) -> None:
        """
        :param context: the open device
        :param attr: how it is made
        :raises PyverbsRDMAError: EINVAL for unknown bits or a domain of another context
        """
        instance(context, Context, "ParentDomain context")
        instance(attr, ParentDomainInitAttr, "ParentDomain attr")
        parent, td = attr.pd, attr.td
        with context._guard("Failed to allocate Parent Domain", verb="alloc_parent_domain"):
            if attr.comp_mask & ~_PARENT_BITS:
                raise refused(f"comp_mask={attr.comp_mask:#x}: IBV_PARENT_DOMAIN_INIT_ATTR_* bits are expected")
            core = parent._open()
            if parent._context_or_closed()._core is not context._core:
                raise refused("the protection domain belongs to another context")
            if td is not None and td._open() is not None and td._context is not context:
                raise refused("the thread domain belongs to another context")
            core.use(1)
            if td is not None:
                td._core.users += 1
            #: Extension: the protection domain that it extends; None when closed.
            self.parent: PD | None = parent
            self.td = td
            self._thread_domain = None if td is None else td._core
            self._allocators = attr.pd_context
            self._start(context, core)
            context._pds.add(self)
            parent._parent_domains.add(self)
            if td is not None:
                td._parent_domains.add(self)

    def _remains(self) -> Any:
        return self._core, self._thread_domain

    @staticmethod
    def _bury(remains: Any) -> None:
        core, thread_domain = remains
        core.use(-1)
        if thread_domain is not None:
            thread_domain.users -= 1

    def _close_alone(self) -> None:
        using = sum(child._core is not None for name in self._children for child in getattr(self, name))
        if using:
            raise refused(f"{using} objects that were made in the parent domain are still there", errno.EBUSY)
        super()._close_alone()

    def _forget(self) -> None:
        super()._forget()
        self.parent = self.td = None

    def _place(self, resource: int, core: Any) -> "Placement | None":
        if self._allocators is None:
            return None
        placement = Placement(self._allocators, resource, core)
        try:
            placement.again()
        except BaseException:
            placement.release()
            core.close()
            raise
        return placement


class Placement:
    """Queues of one object in memory of the application. The lock is held for all of it."""

    def __init__(self, allocators: ParentDomainContext, resource: int, core: Any) -> None:
        """
        :param allocators: whom to ask
        :param resource: RESOURCE_*
        :param core: an object that has queues
        """
        self._allocators = allocators
        self._resource = resource
        self._core = core
        self._placed: list[tuple[Any, int]] = []

    def again(self) -> None:
        """Places the queues that are new: all of them at first, later those that were replaced.

        :raises PyverbsRDMAError: ENOMEM where the allocator has none, EINVAL or EFAULT for an unusable address
        """
        rings = self._core.rings()
        for ring, address in [entry for entry in self._placed if entry[0] not in rings]:
            self._placed.remove((ring, address))
            self._free(address)
        known = [ring for ring, _ in self._placed]
        for ring in rings:
            if ring not in known:
                address = self._allocated(ring.block.size)
                if address != e._IBV_ALLOCATOR_USE_DEFAULT:
                    ring.relocate(address)
                    self._placed.append((ring, address))

    def release(self) -> None:
        """Gives all of it back; the object is closed, or stays in memory of the device."""
        while self._placed:
            ring, address = self._placed.pop()
            ring.restore()
            self._free(address)

    def _allocated(self, size: int) -> int:
        own = self._allocators
        address = integer(own.p_alloc(own.pd, own, size, ALIGNMENT, self._resource) or 0, "the allocator's result", 64)
        if not address:
            raise refused(f"the allocator of the parent domain has no {size} bytes", errno.ENOMEM)
        if address == e._IBV_ALLOCATOR_USE_DEFAULT:
            return address
        try:
            if address & 63:
                raise refused(f"the allocator returned {address:#x}, which is not aligned to {ALIGNMENT}")
            check_mapped(address, size, True)
        except PyverbsRDMAError:
            self._free(address)
            raise
        return address

    def _free(self, address: int) -> None:
        own = self._allocators
        own.p_free(own.pd, own, address, self._resource)
