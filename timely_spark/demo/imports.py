"""The imports of Python source files, by their import statements."""

from __future__ import annotations

import ast
import warnings
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from timely_spark.graph.stage import closure

_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def module_name(folder: Path, file: Path) -> str:
    """The dotted name of a source file."""
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(source: bytes, file: str) -> ast.Module:
    """The tree of a file; its name is for the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, file)


def imported(tree: ast.AST, package: str, *, top_level: bool = False) -> Iterator[str]:
    """The names in import statements: a module, or ``module:name`` for a name from a module.

    A relative import that leads out of the top package keeps its dots, and so names no module.

    Args:
        tree: the file's.
        package: the one that relative imports begin at; empty for a script.
        top_level: only what runs when the module is imported: nothing in functions, or for type checkers.
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


def _statements(tree: ast.AST, *, top_level: bool) -> Iterable[ast.AST]:
    if not top_level:
        return ast.walk(tree)

    def executed(node: ast.AST) -> Iterable[ast.AST]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            return node.orelse
        return () if isinstance(node, _LATER) else ast.iter_child_nodes(node)

    return closure([tree], executed)


def meant(name: str, modules: Container[str]) -> str | None:
    """The module that an import leads to: for ``module:name`` a submodule of that name, if there is one."""
    return next((way for way in (name.replace(":", "."), name.partition(":")[0]) if way in modules), None)


def packages(folder: Path, root: str, most: int) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The packages of a folder that `root` imports, directly or not, with what their modules import.

    The most imported ones come first; a package with which there would be more than `most` modules is left
    out, but for the root.

    Yields:
        A package, and by module the names that it imports, as `imported` says them.
    """
    waiting, seen, total = deque([root]), {root}, 0
    while waiting:
        package = waiting.popleft()
        files = {module_name(folder, file): file for file in sorted((folder / package).rglob("*.py"))}
        if total and total + len(files) > most:
            continue
        total += len(files)
        names_of = {module: _names(module, file) for module, file in files.items()}
        yield package, names_of
        counts = Counter(
            name.partition(":")[0].partition(".")[0] for names in names_of.values() for name in names
        )
        others = [name for name, _ in counts.most_common() if name not in seen and (folder / name).is_dir()]
        seen.update(others)
        waiting.extend(name for name in others if name)


def _names(module: str, file: Path) -> list[str]:
    try:
        tree = parsed(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # a template, or a file for another version of Python
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return sorted(set(imported(tree, package)))
