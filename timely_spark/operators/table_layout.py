"""`TableLayout`: how a Delta table is laid out and described, beside its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from timely_spark.errors import GraphError
from timely_spark.graph import caller, names, refuse


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How a table is laid out and described. What is None or empty stays as the table has it."""

    #: each combination of the values of these columns has a folder
    partition_by: tuple[str, ...] = ()
    #: the columns by which OPTIMIZE sorts rows into files
    cluster_by: tuple[str, ...] = ()
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        columns: Sequence[str],
        partition_by: str | Sequence[str] | None,
        cluster_by: str | Sequence[str] | None,
        comment: str | None,
        properties: Mapping[str, str] | None,
    ) -> TableLayout:
        """Check the arguments of `to_delta` for a table with these columns."""
        parts, clusters = names("to_delta", partition_by), names("to_delta", cluster_by)
        for argument, chosen in (("partition_by", parts), ("cluster_by", clusters)):
            if missing := [name for name in chosen if name not in columns]:
                msg = f"to_delta: {argument} has {missing[0]!r}, the table has the columns {[*columns]}"
                raise GraphError(msg, where=caller(), hint="name columns of the table.")
        if parts and clusters:
            msg = f"to_delta: partition_by={parts} and cluster_by={clusters}"
            raise GraphError(msg, where=caller(), hint="Delta has one of them for a table: leave one out.")
        if len(parts) == len(columns):
            msg = f"to_delta: partition_by={parts} has all columns of the table"
            raise GraphError(msg, where=caller(), hint="leave out columns that differ from row to row.")
        texts: Any = properties or {}
        if not isinstance(texts, Mapping) or not all(isinstance(one, str) for one in chain(*texts.items())):
            hint = 'as in properties={"delta.enableChangeDataFeed": "true"}'
            refuse(properties, what="properties", expected="a mapping of texts to texts", hint=hint)
        if not isinstance(comment, str | None):
            refuse(comment, what="comment", expected="a text", hint='as in comment="who reaches whom"')
        if own := [key for key in texts if key.startswith("timely_spark.")]:
            msg = f"to_delta: the property {own[0]!r} is one that this package sets"
            raise GraphError(msg, where=caller(), hint="choose another name.")
        return cls(parts, clusters, comment, dict(texts))
