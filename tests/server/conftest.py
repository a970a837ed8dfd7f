# SPDX-License-Identifier: MIT
"""A server in a thread of the test, and one in a process of its own."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.client import close_all

from softverbs.cm.service import Service, service_of
from softverbs.device import Device
from softverbs.server.server import Server


class Served:
    """A server that runs, and its device."""

    def __init__(self, path: str, device: Device, mode: int = 0o600) -> None:
        self.path = path
        self.device = device
        self.server = Server(device, path, mode)
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def objects(self) -> dict[str, int]:
        """What exists in the device."""
        with self.device.lock:
            return self.device.objects()

    def wait_for_objects(self, wanted: dict[str, int]) -> None:
        """The device has noticed that programs are gone, and has these objects."""
        end = time.monotonic() + 20
        while self.objects() != wanted and time.monotonic() < end:
            time.sleep(0.001)
        assert self.objects() == wanted

    def wait_for_nobody(self) -> None:
        """Nobody has a session any more, and no object is left."""
        end = time.monotonic() + 20
        while self.server.sessions and time.monotonic() < end:
            time.sleep(0.001)
        assert not self.server.sessions
        self.wait_for_objects({})

    def connection_manager(self) -> tuple[Service, dict[str, int]]:
        """The device's connection manager, and what it consists of, but for address handles, which it keeps."""
        with self.device.lock:
            service = service_of(self.device)
        return service, self.objects()

    def wait_for_end_of(self, service: Service, before: dict[str, int]) -> None:
        """The device has noticed that programs are gone; nothing of their identifiers is left."""
        end = time.monotonic() + 20
        while service.identities and time.monotonic() < end:
            time.sleep(0.001)
        assert not service.identities and not service.ports.bound and not service.ports.listeners
        handles = self.objects().get("address handle")
        self.wait_for_objects(before | ({"address handle": handles} if handles else {}))

    def close(self) -> None:
        self.server.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.device.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A device for the programs that connect to ``served.path``."""
    served = Served(str(tmp_path / "socket"), Device(thread=False))
    yield served
    served.close()
    close_all()
