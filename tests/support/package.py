"""The modules of the package, each parsed once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "timely_spark"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))
