# SPDX-License-Identifier: MIT
"""Where the C driver is, and how a program is told to use it."""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

LIBRARY = "libibverbs.so.1"
#: What is preloaded, where it is there.
LIBRARIES = (LIBRARY, "librdmacm.so.1", "libefa.so.1")
#: What tells the driver where the device is.
SOCKET_VARIABLE = "SOFTVERBS_SOCKET"
#: What makes the driver say which library a program has loaded.
VERBOSE_VARIABLE = "SOFTVERBS_VERBOSE"
#: Another folder with the driver, for those who work on it.
FOLDER_VARIABLE = "SOFTVERBS_DRIVER"
#: Variables of the device, by the fields of HELLO's answer: a program that has others is told that they mean nothing.
DEVICE_VARIABLES = {
    "digest_address": "SOFTVERBS_ADDRESS",
    "digest_options": "SOFTVERBS_OPTIONS",
    "digest_faults": "SOFTVERBS_FAULTS",
    "digest_pcap": "SOFTVERBS_PCAP",
}


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


def digest(text: str) -> int:
    """FNV-1a, 64 bits: whether two processes have the same text, without telling it (driver/words.c)."""
    value = 0xCBF29CE484222325
    for byte in os.fsencode(text):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def preloaded(libraries: Path) -> list[str]:
    """The libraries that are preloaded into a program: ``LD_LIBRARY_PATH`` ranks behind a program's own ``DT_RPATH``,
    and does not see a libibverbs that a Python package brings along under a name of its own.

    :param libraries: folder of the driver
    """
    paths = [libraries / name for name in LIBRARIES]
    return [str(path) for path in paths if path.is_file() and path.stat().st_size]


def environment(base: Mapping[str, str], socket: str, libraries: Path, preload: bool = True) -> dict[str, str]:
    """The environment of a program that is to use the device.

    :param base: the environment before
    :param socket: path of the device's socket
    :param libraries: folder of the driver; a colon or a space in it means another list to the dynamic linker
    :param preload: whether our libraries are loaded into every program, not only where one looks for them
    """
    before = base.get("LD_LIBRARY_PATH")
    changed = {
        **base,
        SOCKET_VARIABLE: socket,
        "LD_LIBRARY_PATH": f"{libraries}:{before}" if before else str(libraries),
    }
    ours = preloaded(libraries) if preload else []
    if ours:
        # Behind the program's own: what is preloaded to watch calls of verbs, or a sanitizer, comes first.
        own = [base["LD_PRELOAD"]] if base.get("LD_PRELOAD") else []
        changed["LD_PRELOAD"] = ":".join([*own, *ours])
        # AddressSanitizer, where it is a shared library, ends a program in which another one is loaded before it. Ours
        # do not replace anything that it replaces. What the user has set comes behind, and so wins.
        options = base.get("ASAN_OPTIONS")
        changed["ASAN_OPTIONS"] = "verify_asan_link_order=0" + (f":{options}" if options else "")
    return changed
