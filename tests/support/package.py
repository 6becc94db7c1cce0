"""The modules of the package, each parsed once in a process; and the programs of pages."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "timely_spark"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


def blocks(markdown: str, language: str = "python") -> list[str]:
    r"""The blocks of a page in a language, which begin at the left margin.

    >>> blocks("text\n```python\nx = 1\n```\n```sql\nSELECT 1\n```")
    ['x = 1\n']
    """
    return re.findall(rf"^```{language}\n(.*?)^```$", markdown, re.MULTILINE | re.DOTALL)
