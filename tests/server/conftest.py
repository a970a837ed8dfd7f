"""A server in a thread of the test, and one in a process of its own."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.client import close_all

from softverbs.device import Device
from softverbs.server.server import Server


class Served:
    """A server that runs, and its device."""

    def __init__(self, path: str, device: Device) -> None:
        self.path = path
        self.device = device
        self.server = Server(device, path)
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
