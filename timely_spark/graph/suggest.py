"""Suggestions for missing methods: the names that other libraries use for our operators."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from timely_spark.errors import NoSuchMethod
from timely_spark.graph.caller import caller

#: names of Spark, pandas and differential, in lower case without underscores, and ours
_SUGGESTIONS: dict[str, str] = {
    "groupby": "group_by(...).aggregate(...), or count, sum, min, max, reduce with keys=...",
    "agg": "aggregate",
    "reducebykey": "group_by(...).aggregate(...), or reduce",
    "countdistinct": "distinct(), then count or aggregate",
    "withcolumn": "select, which computes columns: select(*stream.schema.names, new=expression)",
    "withcolumns": "select, which computes columns: select(*stream.schema.names, new=expression)",
    "withcolumnrenamed": "select(new='old')",
    "alias": "select(new='old'); steps have name=...",
    "drop": "select, with the columns to keep",
    "union": "concat",
    "unionall": "concat",
    "unionbyname": "concat",
    "subtract": "antijoin, or concat(other.negate())",
    "except": "antijoin, or concat(other.negate())",
    "exceptall": "antijoin, or concat(other.negate())",
    "intersect": "semijoin",
    "dropduplicates": "distinct",
    "unique": "distinct",
    "orderby": "top_k of a collection; else sort the output",
    "sort": "top_k of a collection; else sort the output",
    "limit": "top_k of a collection",
    "head": "top_k of a collection",
    "take": "top_k of a collection",
    "collect": "capture, and query.captured(name) or the result of testing.run",
    "topandas": "capture, and query.captured(name).table().to_pandas()",
    "show": "inspect",
    "print": "inspect",
    "foreach": "subscribe, or foreach_epoch",
    "foreachbatch": "foreach_epoch",
    "write": "to_delta, to_files or foreach_epoch",
    "writestream": "to_delta, to_files or foreach_epoch",
    "flatmap": "flat_map",
    "mapinpandas": "map_batches",
    "mapinarrow": "map_batches",
    "mappartitions": "map_batches",
    "applyinpandas": "unary_notify(..., by=...), or reduce_batches",
    "pipe": "a function of a stream: function(stream)",
    "transform": "a function of a stream: function(stream)",
    "repartition": "exchange",
    "partitionby": "exchange",
    "keyby": "exchange, or keys=... of the next operator",
    "cache": "arrange of a collection",
    "persist": "arrange of a collection",
    "columns": "schema.names",
    "dtypes": "schema",
    "printschema": "schema",
    "explain": "flow.explain()",
    "start": "flow.start(...)",
    "withwatermark": "flow.source(..., epoch='column'); an epoch ends when a later one is seen",
    "window": "expire(after=...)",
    "fixpoint": "iterate, or loop",
    "feedback": "loop, or scope.variable(...).feed(...)",
    "count": "aggregate(rows='count'), with group_by(...) before it; or collection().count()",
    "sum": "aggregate(total=('sum', column)), with group_by(...) before it; or collection().sum(...)",
    "reduce": "aggregate, with group_by(...) before it; or collection().reduce(...)",
    "iterate": "loop; or collection().iterate(...)",
    "capture": "changes().capture(...)",
}


class Suggests:
    """A base class whose `AttributeError` suggests an attribute.

    >>> class Stream(Suggests):
    ...     def group_by(self): ...
    >>> Stream().groupby
    Traceback (most recent call last):
    timely_spark.errors.NoSuchMethod: a Stream has no 'groupby' (...)
    Hint: did you mean group_by(...).aggregate(...), or count, sum, min, max, reduce with keys=...?
    >>> hasattr(Stream(), "group_bi"), hasattr(Stream(), "__deepcopy__")
    (False, False)
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name.startswith("_") or hasattr(kind, name):  # a protocol, or an unset field
                msg = f"{kind.__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            names = [attribute for attribute in dir(kind) if not attribute.startswith("_")]
            close = ", ".join(difflib.get_close_matches(name, names))
            meant = _SUGGESTIONS.get(name.lower().replace("_", "")) or close or f"one of {', '.join(names)}"
            msg = f"a {kind.__name__} has no {name!r}"
            raise NoSuchMethod(msg, where=caller(), hint=f"did you mean {meant}?")
