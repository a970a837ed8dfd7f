# SPDX-License-Identifier: MIT
"""Programs written for pyverbs run here, unmodified: ``import pyverbs...`` finds the modules of ``softverbs.pyverbs``.

From Python, before anything imports pyverbs::

    import softverbs
    softverbs.install_as_pyverbs()

and from the command line, where the rest is what would follow ``python``::

    python -m softverbs.as_pyverbs script.py arguments ...
    python -m softverbs.as_pyverbs -m unittest tests.test_pd
    python -m softverbs.as_pyverbs -c 'import pyverbs.device; print(pyverbs.device.get_device_list())'

The modules are the same objects under two names, so that classes are the same too: ``pyverbs.qp.QP is
softverbs.pyverbs.qp.QP``. Children made by fork inherit it; children that multiprocessing spawns do not.

What pyverbs has for single makers of devices (``pyverbs.providers.mlx5`` and so on) can be imported, as in every
build of pyverbs, and refuses all work with EOPNOTSUPP, as pyverbs does where the device is another maker's.
"""

import errno
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

ALIAS = "pyverbs"
HOME = "softverbs.pyverbs"
_MAKERS = "pyverbs.providers"
USAGE = "usage: python -m softverbs.as_pyverbs (script.py | -m module | -c command) [arguments ...]"


class _AliasLoader(Loader):
    """Loads nothing: the module of ours gets a second name."""

    def __init__(self, home: str) -> None:
        """
        :param home: name of the module of ours
        """
        self._home = home
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of ours, imported if it was not."""
        module = importlib.import_module(self._home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undoes what the import system has written into the module: it stays what it was."""
        module.__spec__ = self._spec


class _Constant(int):
    """A number of another maker's header: unknown here. It can be or-ed to others and compared, and means nothing."""

    def __new__(cls, name: str) -> "_Constant":
        made = super().__new__(cls, 0)
        made._name = name
        return made

    _name: str

    def __repr__(self) -> str:
        return f"<{self._name}: unknown here>"


class _Refused(type):
    """The type of another maker's classes: they can be named, derived from and asked about, but not made.

    Those whose names end with ``Attr`` are only what others are made from: they can be made.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__.endswith("Attr"):
            return SimpleNamespace(**kwargs)
        _refuse(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name, cls.__module__)


class _MakerModule(ModuleType):
    """A module of another maker's features, whose names stand for themselves."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = _stand_in(name, self.__name__)
        setattr(self, name, value)
        return value


class _MakerLoader(Loader):
    """Makes the modules of another maker's features."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return _MakerModule(spec.name, "What pyverbs has for devices of another maker: it refuses all work.")

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is in it."""


class _Finder(MetaPathFinder):
    """Answers for ``pyverbs`` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of ours, or a stand-in for another maker's; None for what pyverbs does not have either."""
        if fullname != ALIAS and not fullname.startswith(f"{ALIAS}."):
            return None
        home = HOME + fullname[len(ALIAS) :]
        found = importlib.util.find_spec(home) if _is_ours(fullname.rpartition(".")[0]) else None
        if found is not None:
            is_package = found.submodule_search_locations is not None
            return ModuleSpec(fullname, _AliasLoader(home), origin=found.origin, is_package=is_package)
        if fullname.startswith(f"{_MAKERS}."):
            return ModuleSpec(fullname, _MakerLoader(), origin="softverbs.as_pyverbs", is_package=True)
        return None


def _is_ours(package: str) -> bool:
    """Whether a package is one of ours, and no stand-in."""
    return not isinstance(sys.modules.get(package), _MakerModule)


def _stand_in(name: str, module: str) -> Any:
    """What stands for a name of another maker: a constant for CAPITALS, else a class that refuses to be used."""
    plain = name.strip("_")
    return _Constant(name) if plain.upper() == plain else _Refused(name, (), {"__module__": module})


def _refuse(name: str) -> NoReturn:
    from softverbs.pyverbs.pyverbs_error import PyverbsRDMAError

    raise PyverbsRDMAError(f"{name} is for devices of another maker", errno.EOPNOTSUPP)


_finder = _Finder()


def install() -> None:
    """From now on ``import pyverbs...`` finds our modules. A second call does nothing.

    :raises ImportError: the real pyverbs is imported already: parts of it would be mixed with ours
    """
    real = sys.modules.get(ALIAS)
    if real is not None and real is not sys.modules.get(HOME):
        where = getattr(real, "__file__", None) or "an unknown place"
        raise ImportError(
            f"pyverbs is already imported, from {where}: softverbs can take its name only before that", name=ALIAS
        )
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def uninstall() -> None:
    """Gives the name back: the next ``import pyverbs`` finds the real one, if there is one."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        for name in [name for name in sys.modules if name == ALIAS or name.startswith(f"{ALIAS}.")]:
            del sys.modules[name]


def main(words: list[str] | None = None) -> None:
    """Runs a program as ``python`` would, with our modules as its pyverbs.

    :param words: the arguments; by default those of the command line
    """
    words = sys.argv[1:] if words is None else words
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if words else 2)
    if words[0] in ("-m", "-c") and len(words) < 2:
        raise SystemExit(f"{USAGE}\n{words[0]} needs an argument")
    if words[0].startswith("-") and words[0] not in ("-m", "-c"):
        raise SystemExit(
            f"{USAGE}\nunknown option {words[0]}; options of Python itself go before -m softverbs.as_pyverbs"
        )
    install()
    if words[0] == "-m":
        sys.argv[:] = [words[1], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = words
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    # The module of this name, not the copy that runs as __main__: there is one finder.
    importlib.import_module("softverbs.as_pyverbs").main()
