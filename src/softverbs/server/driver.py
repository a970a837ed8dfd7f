"""Where the C driver is, and how a program is told to use it."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libibverbs.so.1"
#: What tells the driver where the device is.
SOCKET_VARIABLE = "SOFTVERBS_SOCKET"
#: Another folder with the driver, for those who work on it.
FOLDER_VARIABLE = "SOFTVERBS_DRIVER"


def folder() -> Path:
    """The folder of our ``libibverbs.so.1``.

    :raises FileNotFoundError: this installation has none
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    path = Path(chosen) if chosen else Path(__file__).resolve().parent.parent / "_driver"
    if not (path / LIBRARY).is_file():
        if chosen:
            words = f"{FOLDER_VARIABLE}={chosen}: there is no {LIBRARY} in this folder"
            raise FileNotFoundError(errno.ENOENT, words)
        words = f"this installation has no C driver, {LIBRARY}: was there a C compiler when it was built?"
        raise FileNotFoundError(errno.ENOENT, words, str(path))
    return path


def environment(base: Mapping[str, str], socket: str, libraries: Path) -> dict[str, str]:
    """The environment of a program that is to use the device.

    :param base: the environment before
    :param socket: path of the device's socket
    :param libraries: folder of the driver
    """
    before = base.get("LD_LIBRARY_PATH")
    return {
        **base,
        SOCKET_VARIABLE: socket,
        "LD_LIBRARY_PATH": f"{libraries}:{before}" if before else str(libraries),
    }
