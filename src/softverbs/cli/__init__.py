# SPDX-License-Identifier: MIT
"""The command line, ``softverbs`` and ``python -m softverbs``: one module for each command.

What goes wrong for a user is told in one line on stderr. Exit codes: 0, 1 where something failed or is not as it should
be, 2 where the command line is wrong, 130 after Ctrl-C; ``run`` has that of its program. ``SOFTVERBS_DEBUG=1`` shows
tracebacks.
"""

import os
import sys
from importlib import import_module
from typing import Any

import click

from softverbs.pyverbs.pyverbs_error import PyverbsError

_COMMANDS = ("run", "serve", "devinfo", "pingpong", "perf", "demo", "selftest")


class _Group(click.Group):
    """Imports a command when it is used, and words its failures."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, from the module of that name."""
        if cmd_name not in _COMMANDS:
            return None
        command = import_module(f"softverbs.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command line and exits."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except Exception as error:
            if os.environ.get("SOFTVERBS_DEBUG"):
                raise
            text, code = _told(error)
            click.echo(text, err=True)
        sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception) -> tuple[str, int]:
    """What a user reads about ``error``, and the exit code."""
    if isinstance(error, click.Abort):
        return "softverbs: interrupted", 130
    if isinstance(error, click.ClickException):
        where = getattr(error, "ctx", None)
        name = where.command_path if where is not None else "softverbs"
        hint = f" (see {name} --help)" if isinstance(error, click.UsageError) else ""
        return f"{name}: {_line(error.format_message())}{hint}", error.exit_code
    if isinstance(error, PyverbsError):
        return f"softverbs: {_line(str(error))}", 1
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"softverbs: {where}{_line(error.strerror)}", 1
    words = f"{type(error).__name__}: {error}"
    return f"softverbs: unexpected {_line(words)} (SOFTVERBS_DEBUG=1 shows where)", 1


def _line(text: str) -> str:
    return " ".join(text.split())


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import softverbs

        click.echo(f"softverbs {softverbs.__version__}, {softverbs.core_build} core")
        ctx.exit()


@click.group(
    cls=_Group, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}, name="softverbs"
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """An RDMA device in software: RoCEv2 over UDP, without an RDMA NIC.

    Each command opens a device of its own. Environment: SOFTVERBS_ADDRESS (its IP addresses, separated by commas),
    SOFTVERBS_OPTIONS, SOFTVERBS_FAULTS, SOFTVERBS_PCAP.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """The entry point."""
    cli(prog_name="softverbs")
