"""Python source files below folders, and what they import."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from timely_spark.demo.imports import imported, module_name, parsed


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
    sources: dict[str, Source] = {}
    first: dict[str, Path] = {}
    for file in ranked:
        module, name = _text(module_name(homes[inside[file]], file)), _text(file)
        read = _read(file, module, first.setdefault(module, file), before.get(name), top_level=top_level)
        if read is not None:
            sources[name] = read
    return sources


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
    """Read a file; None if it was removed meanwhile."""
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
