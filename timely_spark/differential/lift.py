"""Lift outputs of streams to collections: declared once, they write a collection's changes, too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from timely_spark.differential.collections import Collection
from timely_spark.graph import operator
from timely_spark.streams import Stream

DIFF_PARAMETER = Parameter("diff", Parameter.KEYWORD_ONLY, default="diff", annotation="str")


def changes_of(collection: Collection, diff: str, name: str | None) -> Stream:
    """The changes, by steps that are named after the output."""
    with collection.index.flow.graph.parts(collection.scope.graph_scope, name):
        return collection.changes(diff)


def lift_output(output: Callable[..., Stream]) -> None:
    """Make an output of streams a method of `Collection`, which writes `changes(diff)`.

    The method has the output's arguments and docstring, and `diff`, the name of the column of differences.
    """
    signature = inspect.signature(output)
    stream, *others = signature.parameters.values()

    @functools.wraps(output)
    def lifted(collection: Collection, *args: Any, diff: str = "diff", **options: Any) -> Collection:
        arguments = signature.bind_partial(None, *args, **options).arguments
        output(changes_of(collection, diff, arguments.get("name")), *args, **options)
        return collection

    own = stream.replace(name="collection", annotation="Collection")
    lifted.__signature__ = signature.replace(  # type: ignore[attr-defined] # what `inspect` reads
        parameters=sorted([own, *others, DIFF_PARAMETER], key=lambda one: one.kind),
        return_annotation="Collection",
    )
    lifted.__doc__ = _of_changes(inspect.getdoc(output) or "")
    operator(Collection)(lifted)


def _of_changes(doc: str) -> str:
    """The docstring of a stream's output, of the changes of a collection."""
    summary, _, rest = doc.partition("\n\n")
    about = (
        "Of a collection: its changes. The column `diff` behind the records' columns has their differences. "
        "Returns the collection."
    )
    return f"{summary}\n\n{about}\n\n{rest}".rstrip()
