# SPDX-License-Identifier: MIT
"""Writes the imports between the compiled modules of the core, and holds them to the layers.

    python3 tools/core_imports.py           rewrite what differs
    python3 tools/core_imports.py --check   exit 1 and say what differs

Compiled, modules of the core find each other by the ``cimport`` lines of the .pxd files; uncompiled, by the imports
under ``if not cython.compiled:`` of the .py files. Both say the same, so nobody writes them: this tool takes the names
that a module uses, finds the module whose .pxd declares them, and writes both blocks. A new name needs a line in the
.pxd of its own module, and then this tool. ``raw_NAME`` in a .pxd is the inline twin of NAME, and is taken instead.

It also checks what import-linter, which reads Python only, does not see: that no ``cimport`` goes up the layers (the
contracts of ``core`` in pyproject.toml), and that a .py imports no compiled module outside the guard, since that would
go through Python when compiled.
"""

import ast
import builtins
import re
import symtable
import sys
from collections import defaultdict
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
CORE = ROOT / "src" / "softverbs" / "core"
PACKAGE = "softverbs.core."
WIDTH = 120
GUARD = "if not cython.compiled:\n"
Names = dict[str, set[str]]  # module below softverbs.core, as in "wire.psn": names taken from it

# What a .pxd declares at the margin: a class, a function, or variables.
_CLASS = re.compile(r"^cdef class (\w+)", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:cpdef|cdef)\s+(?!class\b)[^(\n=]*?(\w+)\s*\(", re.MULTILINE)
_VARIABLES = re.compile(r"^cdef\s+(?!class\b|extern\b|inline\b)[\w.\[\]* ]*?([\w, ]+)$", re.MULTILINE)
_TWIN = re.compile(r"^    [\w ]*?(raw_\w+)\([^)]*\)[\w ]*$", re.MULTILINE)
_CIMPORT = re.compile(rf"^from {re.escape(PACKAGE)}([\w.]+) cimport (?:\([^)]*\)|[^\n]*)\n", re.MULTILINE)
_IMPORT = re.compile(r"    from softverbs\.core\.[\w.]+ import (?:\([^)]*\)|[^\n]*)\n")
# What a guard follows.
_ANCHOR = re.compile(
    r"^    from softverbs import _cython as cython\n(?:from softverbs[^\n]*\n|import [^\n]*\n)*", re.MULTILINE
)


def name_of(path: Path) -> str:
    """The module of a file below softverbs.core: "wire.psn"."""
    return ".".join(path.relative_to(CORE).with_suffix("").parts)


def compiled_modules() -> dict[str, Path]:
    """The .pxd file of each compiled module."""
    return {name_of(path): path for path in sorted(CORE.rglob("*.pxd")) if path.stem != "__init__"}


def declared(pxd: str) -> set[str]:
    """Names that a .pxd declares."""
    names = set(_CLASS.findall(pxd)) | set(_FUNCTION.findall(pxd)) | set(_TWIN.findall(pxd))
    for line in _VARIABLES.findall(pxd):
        names.update(word.split()[-1] for word in line.split(",") if word.strip())
    return names


def index(pxds: dict[str, Path]) -> dict[str, list[str]]:
    """The modules that declare each name; private names are nobody else's."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, path in pxds.items():
        for name in declared(path.read_text()):
            if not name.startswith("_"):
                found[name].append(module)
    return found


def is_guard(node: ast.stmt) -> bool:
    """Whether a statement is ``if not cython.compiled:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "not cython.compiled"


def used_by(code: str, tree: ast.Module, own: set[str]) -> set[str]:
    """Global names that a .py uses outside the guard, those in annotations that are strings as well."""
    nodes = [inner for node in tree.body if not is_guard(node) for inner in ast.walk(node)]
    loaded = {node.id for node in nodes if isinstance(node, ast.Name)}
    names: set[str] = set()
    tables = [symtable.symtable(code, "", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_module = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (is_module or symbol.is_global()):
                names.add(symbol.get_name())
    names &= loaded
    for node in nodes:
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        for inner in ast.walk(annotation) if annotation is not None else ():
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                names.update(re.findall(r"\w+", inner.value))
    imported = {
        (alias.asname or alias.name) for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    bound = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    return names - imported - bound - own - set(dir(builtins))


def aliases(tree: ast.Module) -> dict[str, str]:
    """Other names that a guard gives to what it imports: {"opcode_flags": "flags"}."""
    nodes = [line for node in tree.body if isinstance(node, ast.If) and is_guard(node) for line in node.body]
    return {
        alias.asname: alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def without_cimports(pxd: str) -> str:
    """A .pxd without its cimports from the core, and without comments."""
    return re.sub(r"#.*", "", _CIMPORT.sub("", pxd))


def order(names: set[str]) -> list[str]:
    """Names in ruff's order: constants, classes, the rest."""

    def kind(name: str) -> int:
        plain = name.rsplit(" as ", maxsplit=1)[-1] if name.startswith("raw_") else name.split(" as ", maxsplit=1)[0]
        return 0 if plain.isupper() and len(plain) > 1 else 1 if plain[0].isupper() else 2

    def natural(name: str) -> list[object]:
        plain = name.rsplit(" as ", maxsplit=1)[-1] if name.startswith("raw_") else name
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", plain)]

    return sorted(names, key=lambda name: (kind(name), natural(name)))


def statement(module: str, word: str, names: set[str], indent: str) -> str:
    """One import or cimport, as ruff would format it."""
    listed = order(names)
    line = f"{indent}from {PACKAGE}{module} {word} {', '.join(listed)}\n"
    if len(line) <= WIDTH + 1:
        return line
    inner = "".join(f"{indent}    {name},\n" for name in listed)
    return f"{indent}from {PACKAGE}{module} {word} (\n{inner}{indent})\n"


def block(taken: Names, word: str, indent: str) -> str:
    """All imports or cimports of a module; a name with another name of its own stands on a line of its own."""
    text = ""
    for module in sorted(taken):
        names = taken[module]
        renamed = {name for name in names if " as " in name and not name.startswith("raw_")}
        if names - renamed:
            text += statement(module, word, names - renamed, indent)
        text += "".join(statement(module, word, {name}, indent) for name in sorted(renamed))
    return text


def taken_from(names: set[str], where: dict[str, list[str]], other_names: dict[str, str], module: str) -> Names:
    """Which of the names come from which other module of the core."""
    found: Names = defaultdict(set)
    for name in names:
        source = other_names.get(name, name)
        modules = [other for other in where.get(source, ()) if other != module]
        if len(modules) > 1:
            raise SystemExit(f"{module} uses {source}, which {' and '.join(modules)} declare: rename one")
        for other in modules:
            found[other].add(name if source == name else f"{source} as {name}")
    return found


def with_guard(text: str, imports: str) -> str:
    """A .py with these imports in its guard."""
    if not imports:
        return text
    start = text.find("\n" + GUARD) + 1
    if not start:
        anchor = _ANCHOR.search(text)
        if anchor is None:
            raise SystemExit("a module without the import of cython")
        return text[: anchor.end()] + "\n" + GUARD + imports + text[anchor.end() :]
    begin = start + len(GUARD)
    end = begin
    while (line := _IMPORT.match(text, end)) is not None:
        end = line.end()
    return text[:begin] + imports + text[end:]


def with_cimports(text: str, cimports: str) -> str:
    """A .pxd with these cimports behind those from C, and Cython's own."""
    text = _CIMPORT.sub("", text)
    head = re.match(r"(?:(?:#[^\n]*|cimport [^\n]*|from (?!softverbs)[\w.]+ cimport (?:\([^)]*\)|[^\n]*))\n)*", text)
    assert head is not None
    rest = text[head.end() :].lstrip("\n")
    return head[0] + cimports + ("\n" if head[0] or cimports else "") + rest


def rewritten(
    module: str, pxd: Path, where: dict[str, list[str]], twins: dict[str, set[str]]
) -> tuple[str, str, Names]:
    """What the .py and the .pxd of a module should be, and what the module cimports."""
    code, declarations = pxd.with_suffix(".py").read_text(), pxd.read_text()
    tree = ast.parse(code)
    renamed = aliases(tree)
    own = declared(declarations)
    in_code = used_by(code, tree, own)
    types = set(re.findall(r"(?<![\w.])[A-Z]\w*[a-z]\w*", without_cimports(declarations)))  # a class, not a constant
    imports = taken_from(in_code, where, renamed, module)
    cimports = taken_from(in_code | (types - own), where, renamed, module)
    cimports = {
        source: {f"raw_{name} as {name}" if f"raw_{name}" in twins[source] else name for name in names}
        for source, names in cimports.items()
    }
    return (
        with_guard(code, block(imports, "import", "    ")),
        with_cimports(declarations, block(cimports, "cimport", "")),
        cimports,
    )


def heights() -> dict[str, int]:
    """How high each folder of the core is, by the contract "core"; and each of its modules, by the folder's own."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: dict[str, int] = {}
    for contract in settings["contracts"]:
        if contract["id"].split("-")[0] != "core":
            continue
        folder = contract["containers"][0].removeprefix(PACKAGE.rstrip(".")).lstrip(".")
        for height, layer in enumerate(reversed(contract["layers"])):
            for name in re.findall(r"\w+", layer):
                found[f"{folder}.{name}".lstrip(".")] = 2 * height + (":" in layer)
    return found


def wrong_layer(module: str, used: str, height: dict[str, int]) -> str:
    """Why a module may not use another; "" if it may."""
    if module.split(".", maxsplit=1)[0] != used.split(".", maxsplit=1)[0]:
        mine, other = module.split(".", maxsplit=1)[0], used.split(".", maxsplit=1)[0]
    else:
        mine, other = module, used
    missing = [name for name in (mine, other) if name not in height]
    if missing:
        return f"{missing[0]} has no place among the layers in pyproject.toml"
    low, high = height[other], height[mine]
    if low < high or (low == high and low % 2):
        return ""
    return f"{module} may not use {used}: it is not below"


def outside_the_guard(tree: ast.Module, compiled: set[str]) -> set[str]:
    """Compiled modules that a .py imports as Python does."""
    found: set[str] = set()
    for top in tree.body:
        for node in () if is_guard(top) else ast.walk(top):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.rstrip(".")):
                base = (node.module or "").removeprefix(PACKAGE.rstrip(".")).lstrip(".")
                found.update({base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)})
    return found & compiled


def main(words: list[str]) -> int:
    check = words == ["--check"]
    pxds = compiled_modules()
    where = index(pxds)
    twins = {module: declared(path.read_text()) for module, path in pxds.items()}
    height = heights()
    problems = []
    for module, pxd in pxds.items():
        code, declarations, cimports = rewritten(module, pxd, where, twins)
        for path, text in ((pxd.with_suffix(".py"), code), (pxd, declarations)):
            if path.read_text() != text:
                if check:
                    problems.append(f"{path.relative_to(ROOT)}: imports differ; run tools/core_imports.py")
                else:
                    path.write_text(text)
        problems += [problem for used in cimports if (problem := wrong_layer(module, used, height))]
        for other in sorted(outside_the_guard(ast.parse(code), set(pxds))):
            problems.append(f"{module}: imports {other} outside `if not cython.compiled:`")
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{len(pxds)} compiled modules, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
