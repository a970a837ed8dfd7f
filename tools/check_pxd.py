"""Holds the .pxd files of the core to the layers, and to their .py files.

import-linter reads Python only. Compiled, the core's modules find each other by the ``cimport`` lines of the .pxd
files; so

1. a ``cimport`` obeys the contract "core" in pyproject.toml, as an import does;
2. what a .py imports under ``if not cython.compiled:`` is what its .pxd cimports, from the same module: a name that
   only one of them has would be missing in one of the two builds;
3. a .py imports no module of the core that has a .pxd in any other way: that would go through Python when compiled.
"""

import ast
import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "softverbs" / "core"
PACKAGE = "softverbs.core."
Names = dict[str, set[str]]  # module of the core: names taken from it


def cimports(text: str) -> Names:
    """Names that a .pxd cimports from modules of the core."""
    found: Names = {}
    text = re.sub(r"#.*", "", text)
    for module, bracketed, plain in re.findall(
        r"^[ \t]*from\s+softverbs\.core\.(\w+)\s+cimport\s+(?:\(([^)]*)\)|(.*))$", text, re.MULTILINE
    ):
        # "raw_copy as copy": an inline twin, known by the function's own name.
        names = [name.split(" as ")[-1].strip() for name in re.split(r"[,\n]", bracketed or plain)]
        found.setdefault(module, set()).update(filter(None, names))
    return found


def is_uncompiled_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "not cython.compiled"


def from_core(nodes: list[ast.stmt]) -> Names:
    """Names that these statements import from modules of the core."""
    found: Names = {}
    for top in nodes:
        for node in ast.walk(top):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                names = {alias.asname or alias.name for alias in node.names}
                found.setdefault((node.module or "").removeprefix(PACKAGE), set()).update(names)
            elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE.rstrip("."):
                for alias in node.names:
                    found.setdefault(alias.name, set()).add(f"module {alias.name}")
    return found


def ranks() -> list[list[tuple[str, bool]]]:
    """The layers of the contract, high to low, as (module, may its neighbours in the layer import it)."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = next(contract["layers"] for contract in settings["contracts"] if contract["id"] == "core")
    return [[(name, ":" in layer) for name in re.findall(r"\w+", layer)] for layer in layers]


def wrong_layer(module: str, used: str, layers: list[list[tuple[str, bool]]]) -> str:
    place = {name: (height, open_) for height, layer in enumerate(layers) for name, open_ in layer}
    for name in (module, used):
        if name not in place:
            return f"{name} has no place among the layers in pyproject.toml"
    (mine, _), (other, open_) = place[module], place[used]
    if other < mine or (other == mine and not open_):
        return f"{module} may not use {used}: it is not below"
    return ""


def check(pxd: Path, layers: list[list[tuple[str, bool]]]) -> list[str]:
    module = pxd.stem
    if not pxd.with_suffix(".py").is_file():
        return [f"{module}.pxd has no {module}.py"]
    declared = cimports(pxd.read_text())
    tree = ast.parse(pxd.with_suffix(".py").read_text())
    guarded = from_core([line for node in tree.body if is_uncompiled_guard(node) for line in node.body])  # type: ignore[attr-defined]
    plain = from_core([node for node in tree.body if not is_uncompiled_guard(node)])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    compiled = {path.stem for path in CORE.glob("*.pxd")}

    problems = [wrong_layer(module, other, layers) for other in declared]
    for other in sorted(set(declared) | set(guarded)):
        for name in sorted(guarded.get(other, set()) - declared.get(other, set())):
            problems.append(f"{name} of {other} is imported uncompiled, but not cimported by {module}.pxd")
        for name in sorted((declared.get(other, set()) - guarded.get(other, set())) & used):
            problems.append(f"{name} of {other} is cimported, but {module}.py does not import it uncompiled")
    problems += [f"imports {other} outside `if not cython.compiled:`" for other in plain if other in compiled]
    return [f"{module}: {problem}" for problem in problems if problem]


def main() -> int:
    layers = ranks()
    files = sorted(path for path in CORE.glob("*.pxd") if path.stem != "__init__")
    problems = [problem for path in files for problem in check(path, layers)]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(files)} .pxd files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
