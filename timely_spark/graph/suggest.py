"""Suggestions for missing methods: the names that other libraries use for our operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from timely_spark.errors import NoSuchMethod
from timely_spark.graph.arguments import in_expressions, similar
from timely_spark.graph.caller import caller

#: our names, by those of Spark, pandas, timely and differential, in lower case without underscores
_SUGGESTIONS = {
    name: meant
    for meant, names in {
        "group_by(...).aggregate(...), or count, sum, min, max, reduce with keys=...": "groupby",
        "aggregate": "agg",
        "group_by(...).aggregate(...), or reduce": "reducebykey",
        "distinct(), then count or aggregate": "countdistinct",
        "select, which computes columns: select('*', new='n * 100')": "withcolumn withcolumns",
        "select(new='old')": "withcolumnrenamed rename",
        "select(new='old'); steps have name=...": "alias",
        "select, with the columns to keep": "drop",
        "concat, or union": "unionall unionbyname",
        "subtract, or join(how='anti')": "except minus",
        "subtract(all=True)": "exceptall",
        "intersect(all=True)": "intersectall",
        "join(how='left'), 'right' or 'outer'": "leftjoin rightjoin outerjoin fullouterjoin leftouterjoin",
        "asof_join of a collection": "asof mergeasof joinasof",
        "join(how='semi')": "semijoin leftsemijoin",
        "join(how='anti')": "antijoin leftantijoin",
        "distinct": "dropduplicates unique",
        "top_k; else sort the output": "orderby sort",
        "top_k": "limit head take",
        "capture, and query.captured(name) or the result of testing.run": "collect",
        "capture, and query.captured(name).table().to_pandas()": "topandas",
        "inspect": "show print",
        "subscribe, or foreach_epoch": "foreach",
        "foreach_epoch": "foreachbatch",
        "to_delta, to_files or foreach_epoch": "write writestream",
        "flat_map": "flatmap",
        "map_batches": "mapinpandas mapinarrow mappartitions apply",
        "group_by(...).reduce_batches(...)": "applyinpandas cogroup",
        "stateful_map, or stateful_map_batches": (
            "transformwithstate transformwithstateinpandas applyinpandaswithstate mapgroupswithstate"
        ),
        "a function of a stream: function(stream)": "pipe transform",
        "exchange": "repartition partitionby",
        "exchange, or keys=... of the next operator": "keyby",
        "arrange of a collection": "cache persist",
        "schema.names": "columns",
        "schema": "dtypes printschema",
        "flow.explain()": "explain",
        "flow.start(...)": "start",
        "start(...), or ts.testing.run(flow, ...)": "run execute",
        "input, files, delta, table or source": "read readstream stream",
        "window(..., lateness=...); or flow.source(..., epoch='column')": "withwatermark",
        "window(column, ts.every(...)), or expire(after=...)": "tumblingwindow slidingwindow resample",
        "window(column, ts.sessions(...), keys=...)": "sessionwindow",
        "iterate, or loop": "fixpoint",
        "loop, or scope.variable(...).feed(...)": "feedback connectloop loopvariable",
        "unary_notify or binary_notify, or a Vertex": "unaryfrontier binaryfrontier unarynotifyfrontier",
        "branch": "partition",
        "send": "give onnext",
        "close": "oncompleted",
        "group_by().aggregate(...), or collection().count(keys=[])": "accumulate",
        "subscribe, which has the epoch": "inspecttime inspectbatch",
        "join, then select or map": "joinmap joincore",
        "arrange": "arrangebykey arrangebyself",
        "aggregate(rows='count'), with group_by(...) before it; or collection().count()": "count",
        "aggregate(total=('sum', column)), with group_by(...) before it; or collection().sum(...)": "sum",
        "aggregate, with group_by(...) before it; or collection().reduce(...)": "reduce",
        "loop; or collection().iterate(...)": "iterate",
        "changes().capture(...)": "capture",
        "collection(diff=...).publish(...), or capture_to": "publish",
    }.items()
    for name in names.split()
}


def a_type(value: object) -> str:
    """A value's type with its article, for a message; None is itself.

    >>> a_type(1), a_type("a"), a_type(None)
    ('an int', 'a str', 'None')
    """
    name = (value if isinstance(value, type) else type(value)).__name__
    return "None" if value is None else f"a{'n' if name[0] in 'AEIOUaeiou' else ''} {name}"


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
    #: further suggestions of a class, which come first
    _suggestions: ClassVar[Mapping[str, str]] = {}
    #: another class with methods that are looked for on this one, and what has these methods
    _elsewhere: ClassVar[tuple[type, str] | None] = None

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name.startswith("_") or hasattr(kind, name):  # a protocol, or an unset field
                msg = f"{kind.__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            names = [attribute for attribute in dir(kind) if not attribute.startswith("_")]
            close = ", ".join(similar(name, names))
            word = name.lower().replace("_", "")
            meant = self._suggestions.get(word) or _SUGGESTIONS.get(word)
            other, owner = self._elsewhere or (None, "")
            if not meant and callable(getattr(other, name, None)):
                hint = f"{name} is a method of {owner}."
            else:
                hint = f"did you mean {meant or close or 'one of ' + ', '.join(names)}?"
            if hasattr(kind, "schema") and name in self.schema.names:
                hint = in_expressions(name)
            msg = f"{a_type(kind)} has no {name!r}"
            raise NoSuchMethod(msg, where=caller(), hint=hint)


class Several:
    """A base class of dataclasses whose fields are streams or collections: their methods are not its own.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Branches(Several):
    ...     trues: str
    ...     falses: str
    >>> Branches("", "").capture
    Traceback (most recent call last):
    timely_spark.errors.NoSuchMethod: Branches has no 'capture' (...)
    Hint: take one of its parts: trues, falses.
    """

    __slots__ = ()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if name.startswith("_") or name in kind.__dataclass_fields__:
                msg = f"{kind.__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg)
            msg = f"{kind.__name__} has no {name!r}"
            parts = (part for part in {**kind.__dataclass_fields__, **vars(kind)} if part[0] != "_")
            hint = f"take one of its parts: {', '.join(parts)}."
            raise NoSuchMethod(msg, where=caller(), hint=hint)
