# SPDX-License-Identifier: MIT
"""Objects that a second context of the same family may hold too (ibv_import_pd(3), ibv_import_mr(3))."""

from softverbs._interrupts import Shield, finalizer
from softverbs.pyverbs._fields import refused
from softverbs.pyverbs.base import Resource, close_weakrefs


class Importable(Resource):
    """An object that may be another's, imported by its handle: then closing it ends this name of it only."""

    _imported = False

    def unimport(self) -> None:
        """Ends an import (ibv_unimport_pd(3) and its kin); the original stays.

        :raises PyverbsRDMAError: EINVAL for an original
        """
        if self._core is None:
            return
        if not self._imported:
            raise refused(f"Failed to unimport {self._kind}: it was not imported")
        self.close()

    def close(self) -> None:
        """Closes its children, then itself; of an import only its own children, and not the original."""
        if self._core is None or not self._imported:
            super().close()
            return
        close_weakrefs([getattr(self, name) for name in self._children])
        with Shield():
            self._forget()

    @finalizer
    def __del__(self) -> None:
        if not self._imported:
            super().__del__()
