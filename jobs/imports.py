"""What Python source files import, by the statements in them."""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Source:
    """A file, as it was when it was read: what it imports depends on nothing else."""

    file: str
    module: str
    #: of its contents, and of how they were read
    stamp: str
    #: what it imports, as `imported` says it; where that leads depends on which modules there are
    names: tuple[str, ...] = ()
    problem: str | None = None


def module_name(folder: Path, file: Path) -> str:
    """The dotted name of a source file."""
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(source: bytes, file: str) -> ast.Module:
    """The tree of a file; its name is for the error.

    Raises:
        SyntaxError: it is none of this version of Python, or not decodable.
        ValueError: it has null bytes.
        RecursionError: it is nested too deeply; MemoryError, likewise.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source, file)


def imported(tree: ast.AST, package: str, *, top_level: bool = False) -> Iterator[str]:
    """What the import statements name: a module, or ``module:name`` for what is taken from one.

    Args:
        tree: the file's.
        package: the one that relative imports begin at; empty for a script.
        top_level: only what runs when the module is imported: nothing in functions, or for type checkers.

    A relative import that leads out of the top package keeps its dots, and so names no module.
    """
    for node in _statements(tree, top_level=top_level):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module, node.level, package)
            yield from (base if alias.name == "*" else f"{base}:{alias.name}" for alias in node.names)


def _absolute(module: str | None, level: int, package: str) -> str:
    around = package.split(".") if package else []
    if level > len(around):
        return "." * level + (module or "")
    above = around[: len(around) - level + 1] if level else []
    return ".".join([*above, *([module] if module else [])])


def _statements(tree: ast.AST, *, top_level: bool) -> Iterator[ast.AST]:
    if not top_level:
        yield from ast.walk(tree)
        return
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            todo += node.orelse
        elif not isinstance(node, LATER):
            todo += ast.iter_child_nodes(node)


def sources(
    roots: Sequence[Path], before: Mapping[str, Source], *, top_level: bool = False
) -> dict[str, Source]:
    """All source files below the roots, by path; those that have not changed as they were `before`.

    A root is a folder of packages, as one of `sys.path`; or a package, which then keeps its name. A file
    below several roots belongs to the innermost. Of several files of one module the first root's counts, a
    package before a module, as in Python; the others have a `problem`, as have those that cannot be read.
    """
    homes = {root.resolve(): _home(root.resolve()) for root in roots}
    inside: dict[Path, Path] = {}
    for root in sorted(homes, key=lambda root: len(root.parts)):
        inside |= dict.fromkeys(_files(root), root)
    order = {root: place for place, root in enumerate(homes)}
    ranked = sorted(inside, key=lambda file: (order[inside[file]], file.name != "__init__.py", file))
    found: dict[str, Source] = {}
    first: dict[str, Path] = {}
    for file in ranked:
        module, name = _text(module_name(homes[inside[file]], file)), _text(file)
        read = _read(file, module, first.setdefault(module, file), before.get(name), top_level=top_level)
        if read is not None:
            found[name] = read
    return found


def _home(root: Path) -> Path:
    """The folder in which the outermost package around a root lies; the root itself if there is none."""
    while (root / "__init__.py").exists():
        root = root.parent
    return root


def _files(root: Path) -> Iterator[Path]:
    def failed(error: OSError) -> None:
        if not (isinstance(error, FileNotFoundError) and error.filename != str(root)):  # gone meanwhile
            raise error

    for folder, folders, files in os.walk(root, onerror=failed):
        here = Path(folder)
        folders[:] = [
            name for name in folders
            if not name.startswith((".", "__pycache__")) and not (here / name / "pyvenv.cfg").exists()
        ]  # fmt: skip
        yield from (here / name for name in files if name.endswith(".py"))


def _read(file: Path, module: str, first: Path, before: Source | None, *, top_level: bool) -> Source | None:
    """A file; None: it has gone meanwhile."""
    name = _text(file)
    try:
        contents = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Source(name, module, "", problem=error.strerror)
    stamp = blake2b(contents, digest_size=8).hexdigest() + "-top" * top_level
    if first != file:
        return Source(name, module, stamp, problem=f"{module} is {_text(first)}")
    if before is not None and (before.module, before.stamp) == (module, stamp) and before.problem is None:
        return before
    names, problem = set(), None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    try:
        names = set(imported(parsed(contents, file.name), package, top_level=top_level))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = _text(f"{type(error).__name__}: {' '.join(str(error).split())}")
    return Source(name, module, stamp, tuple(sorted(names)), problem)


def _text(name: object) -> str:
    """A name as text, whatever its bytes are."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def meant(name: str, modules: Container[str]) -> str | None:
    """The module that an import leads to: for ``module:name`` a submodule of that name, if there is one."""
    return next((way for way in (name.replace(":", "."), name.partition(":")[0]) if way in modules), None)
