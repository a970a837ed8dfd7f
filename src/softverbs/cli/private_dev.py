# SPDX-License-Identifier: MIT
"""Runs a program with a ``/dev`` of its own, in which there is ``/dev/infiniband/uverbs0``: ``softverbs run --dev``.

Some programs look for that file before they ask libibverbs for devices, UCX for one; none of them does anything with
it by itself. So it leads to ``/dev/null``, in a mount namespace that ends with the program; everything else in ``/dev``
is as it was. Where this is not root, a user namespace allows it, in which all other users and groups are nobody.

This file imports nothing of the package, and is started by itself (``python -I -S``): unshare(2) wants a process with
one thread, and the program takes this process's place.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 1 << 12
_MS_REC = 1 << 14
_MS_PRIVATE = 1 << 18
#: Exit codes, as a shell has them.
NOT_FOUND, NOT_EXECUTABLE = 127, 126
#: No such namespace; as env(1) and timeout(1) have it where they fail themselves.
REFUSED = 125
DEVICE = "/dev/infiniband/uverbs0"
_HELP = f"""softverbs run: --dev needs a mount namespace of its own for the program, and the system refuses:
{{}}
Either allow user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone,
kernel.apparmor_restrict_unprivileged_userns), or do once as root, and leave --dev out:
  mkdir -p {os.path.dirname(DEVICE)}; ln -s /dev/null {DEVICE}"""


def _checked(libc: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Calls a function of the C library.

    :raises OSError: it failed
    """
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _enter(libc: ctypes.CDLL) -> None:
    """Makes a mount namespace: as root, or in a user namespace that has the same user and group.

    :raises OSError: neither is allowed
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _checked(libc, "unshare", _CLONE_NEWNS)
            return
        except PermissionError:  # root of a container
            pass
    _checked(libc, "unshare", _CLONE_NEWNS | _CLONE_NEWUSER)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _build(libc: ctypes.CDLL, folder: str) -> None:
    """Makes ``/dev`` anew in a folder, with what it has and DEVICE, and puts it in its place.

    :raises OSError: something cannot be mounted
    """

    def mount(source: str, target: str, kind: bytes | None, flags: int) -> None:
        _checked(libc, "mount", os.fsencode(source), os.fsencode(target), kind, ctypes.c_ulong(flags), None)

    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    mount("softverbs", folder, b"tmpfs", 0)
    os.chmod(folder, 0o755)
    for entry in os.scandir("/dev"):
        path = os.path.join(folder, entry.name)
        if entry.name == os.path.basename(os.path.dirname(DEVICE)):
            continue
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), path)
            continue
        if entry.is_dir():
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        mount(entry.path, path, None, _MS_BIND | _MS_REC)
    device = folder + DEVICE.removeprefix("/dev")
    os.mkdir(os.path.dirname(device))
    os.symlink("/dev/null", device)
    mount(folder, "/dev", None, _MS_BIND | _MS_REC)


def main(folder: str, words: list[str]) -> int:
    """Becomes the program; returns an exit code only where that cannot be.

    :param folder: an empty one, to build in
    :param words: the program and its arguments
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        _enter(libc)
        _build(libc, folder)
    except OSError as error:
        print(_HELP.format(error.strerror), file=sys.stderr)
        return REFUSED
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program expects them as usual
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(words[0], words)
    except FileNotFoundError:
        print(f"softverbs run: {words[0]}: not found", file=sys.stderr)
        return NOT_FOUND
    except OSError as error:
        print(f"softverbs run: {words[0]}: {error.strerror}", file=sys.stderr)
        return NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
