# SPDX-License-Identifier: MIT
"""``softverbs run``: a program on a device, for as long as it runs."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import click

from softverbs.cli import private_dev
from softverbs.cli.common import Fault, open_device, pcap_option
from softverbs.cli.private_dev import NOT_EXECUTABLE, NOT_FOUND
from softverbs.server import driver
from softverbs.server.server import Server

#: What is passed on to the program.
_FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGWINCH, signal.SIGCONT,
)  # fmt: skip
#: What a terminal sends to the program by itself.
_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, signal.SIGHUP, signal.SIGCONT)
#: What Python ignores, and a program expects to be as usual.
_USUAL = (signal.SIGPIPE, signal.SIGXFSZ)
_SI_USER, _SI_QUEUE, _SI_TKILL = 0, -1, -6  # siginfo codes of signals that a process has sent


def address_option(function: click.decorators.FC) -> click.decorators.FC:
    """``-a``: the device's addresses."""
    text = (
        "IP addresses of the device, separated by commas; by default SOFTVERBS_ADDRESS, or a free one of 127.0.0.0/8."
    )
    return click.option("-a", "--address", help=text)(function)


@click.command("run", context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@address_option
@pcap_option
@click.option("-v", "--verbose", is_flag=True, help="Say on stderr which libibverbs each program has loaded.")
@click.option(
    "--preload/--no-preload",
    default=True,
    help="Load our libraries into every program (LD_PRELOAD), or only offer them to it (LD_LIBRARY_PATH).",
)
@click.option("--dev", is_flag=True, help="Give the program a /dev/infiniband/uverbs0, which UCX looks for.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    address: str | None,
    pcap: str | None,
    verbose: bool,
    preload: bool,
    dev: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a program that uses libibverbs on a device of its own: ibv_devinfo, perftest, MPI, anything.

    What the program starts shares the device, which ends with the program. The exit code is the program's, or 128 and
    the number of the signal that killed it. Signals are passed on. softverbs run bash gives a shell.
    """
    libraries = driver.folder()
    home = tempfile.mkdtemp(prefix="softverbs-")
    try:
        with open_device(pcap=pcap, thread=False, chosen=address) as device:
            path = os.path.join(home, "socket")
            try:
                server = Server(device, path)
            except OSError as error:
                reason = f"{path}, in the folder for temporary files (TMPDIR): {error.strerror or error}"
                raise Fault(reason) from error
            words = [program, *arguments]
            if dev:
                words = _with_dev(home, words)
            environment = driver.environment(os.environ, path, _plain(home, libraries), preload)
            if verbose:
                environment[driver.VERBOSE_VARIABLE] = "1"
            code = _run(server, words, environment)
            if code not in (NOT_FOUND, NOT_EXECUTABLE, private_dev.REFUSED):
                _tell_unused(server, program, verbose, preload)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    raise click.exceptions.Exit(code)


def _plain(home: str, libraries: Path) -> Path:
    """A path of the driver's folder that the dynamic linker does not take for several (ld.so(8)).

    :param home: a folder that is removed in the end
    :param libraries: the driver's folder
    """
    if not any(character in str(libraries) for character in " :;"):
        return libraries
    link = Path(home, "driver")
    link.symlink_to(libraries.resolve())
    return link


def _tell_unused(server: Server, program: str, verbose: bool, preload: bool) -> None:
    """Says so where nothing has used the device: usually it was another libibverbs that was asked."""
    if server.opened or (server.asked and not verbose):
        return
    if server.asked:
        words = "listed the device and did not open it"
    else:
        words = "and what it started asked for no device; a program cannot that is statically linked or set-user-ID"
        if not preload:
            words += ", and does not that brings its own libibverbs (leave --no-preload out)"
    click.echo(f"softverbs run: {program} {words}", err=True)


def _with_dev(home: str, words: list[str]) -> list[str]:
    """The words of a program that is to find ``/dev/infiniband/uverbs0``.

    :param home: a folder that is removed in the end
    :param words: the program and its arguments
    """
    folder = os.path.join(home, "dev")
    os.mkdir(folder)
    return [sys.executable, "-I", "-S", private_dev.__file__, folder, *words]


def more_descriptors() -> None:
    """Lets this process have as many descriptors as it may: a device has a few for each program."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _run(server: Server, words: list[str], environment: dict[str, str]) -> int:
    """Starts the program, serves until it has ended, and gives its exit code."""
    waited = (*_FORWARDED, signal.SIGCHLD)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        try:
            # Not os.execvpe in a child of fork: nothing of Python runs between.
            child = os.posix_spawnp(words[0], words, environment, setsigmask=before, setsigdef=_USUAL)
        except FileNotFoundError:
            click.echo(f"softverbs run: {words[0]}: not found", err=True)
            return NOT_FOUND
        except OSError as error:
            click.echo(f"softverbs run: {words[0]}: {error.strerror}", err=True)
            return NOT_EXECUTABLE
        more_descriptors()  # not before, since the program would inherit it
        codes: list[int] = []
        watcher = threading.Thread(target=_watch, args=(child, waited, server, codes), name="signals", daemon=True)
        watcher.start()
        server.run()
        watcher.join()
        return codes[0]
    finally:
        server.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int, waited: tuple[signal.Signals, ...], server: Server, codes: list[int]) -> None:
    """Passes signals on until the program has ended; then ends the server."""
    while True:
        info = signal.sigwaitinfo(waited)
        number = info.si_signo
        if number == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                codes.append(exit_code(status))
                server.stop()
                return
        elif info.si_code in (_SI_USER, _SI_QUEUE, _SI_TKILL) or number not in _FROM_TERMINAL:
            with suppress(ProcessLookupError):
                os.kill(child, number)


def exit_code(status: int) -> int:
    """The code that says how a process has ended, as a shell has it.

    :param status: as ``os.waitpid`` gives it
    """
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)
