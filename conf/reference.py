"""The site's reference of the package: examples in docstrings are code, and modules list their public names.

mkdocstrings loads `Reference`. mkdocs calls `on_post_page`, which ends the build if an example is not code.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import griffe
from mkdocs.exceptions import PluginError

#: Lines from one that begins with >>> to the last one before an empty line; several such blocks are one.
EXAMPLE = re.compile(r"^(?P<margin> *)>>> .*\n?(?:^ *\S.*\n?|^\n(?=(?P=margin)>>> ))*", re.MULTILINE)
DIRECTIVE = re.compile(r" *# (?:doctest|noqa|type):.*$", re.MULTILINE)


def fenced(docstring: str) -> str:
    r"""The docstring with its examples as blocks of code.

    >>> fenced("Add.\n\nExample:\n    >>> 1 + 1\n    2\n\n    >>> 3\n    3\n\nMore.")
    'Add.\n\nExample:\n    ```pycon\n    >>> 1 + 1\n    2\n\n    >>> 3\n    3\n    ```\n\nMore.'
    """

    def fence(match: re.Match[str]) -> str:
        margin, text = match["margin"], DIRECTIVE.sub("", match[0].rstrip("\n"))
        end = match[0][len(match[0].rstrip("\n")) :]
        return f"{margin}```pycon\n{text}\n{margin}```{end}"

    return EXAMPLE.sub(fence, docstring)


def is_internal(path: str) -> bool:
    """Whether a class of the package is in the `__all__` neither of the package nor of its own module.

    Errors have no `__all__`; a page has all of them.

    >>> is_internal("timely_spark.graph.suggest.Suggests"), is_internal("timely_spark.errors.TimelyError")
    (True, False)
    """
    module, _, name = path.rpartition(".")
    if module.partition(".")[0] != "timely_spark" or module == "timely_spark.errors":
        return False
    return not any(name in getattr(import_module(one), "__all__", ()) for one in ("timely_spark", module))


class Reference(griffe.Extension):
    """Fence the examples of every object, and leave out what a module only imports or uses."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out base classes that no page describes."""
        cls.bases = [base for base in cls.bases if not is_internal(str(base))]

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of an object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Leave out the names that are not in `__all__`; without it, what is not defined in the module."""
        if mod.exports is None and mod.is_init_module:
            return  # names that are imported on first use
        for name, member in list(mod.members.items()):
            if mod.exports is None:
                hidden = member.is_alias or name == "TYPE_CHECKING"
            else:  # submodules stay: pages ask for names in them
                hidden = name not in mod.exports and (member.is_alias or not member.is_module)
            if hidden:
                del mod.members[name]


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Check that all examples of a page are rendered as code."""
    prose = re.sub(r"<pre>.*?</pre>", "", output, flags=re.DOTALL)
    if "&gt;&gt;&gt;" in prose or (page.url.startswith("api/") and "<blockquote>" in prose):
        msg = f"{page.url}: an example is not rendered as code"
        raise PluginError(msg)
    return output
