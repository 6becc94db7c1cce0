"""Functions of the user, which expressions call by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from timely_spark.errors import BadArgument
from timely_spark.graph import as_schema, caller, with_checked_arguments
from timely_spark.sql.binder import SPECIAL
from timely_spark.sql.registry import FUNCTIONS


@dataclass(frozen=True)
class UserFunction:
    """A function of whole columns, and the type of its values."""

    type: pa.DataType
    function: Callable[..., Any]


#: the functions of this process, by their names in small letters
USER_FUNCTIONS: dict[str, UserFunction] = {}


@with_checked_arguments
def function(name: str, type: Any, function: Any) -> None:
    """Let expressions in SQL call a function of whole columns by a name.

    The function gets one Arrow array for each argument, with nulls, and returns as many values: an array, or
    what `pyarrow.array` takes. It is not called for no rows. It must be deterministic: a record that is
    deleted is computed once more. A name that is registered again has the new function, for expressions that
    are bound from then on.

    Args:
        name: the name, in any case.
        type: the type of the values, as in DDL.
        function: the function; tasks of a flow get it pickled.

    Example:
        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> ts.function("initials", "string", lambda name: pc.utf8_slice_codeunits(name, 0, 1))
        >>> flow = ts.Dataflow("people")
        >>> _ = flow.input("people", "name string").select(i="initials(name)").capture("out")
        >>> ts.testing.run(flow, {"people": [["Ann", "Bo"]]})["out"].rows()
        {0: [('A',), ('B',)]}

    Raises:
        BadArgument: Spark has a function of this name, or `function` cannot be called.
    """
    key = str(name).lower()
    if key in FUNCTIONS or key in SPECIAL or not key.isidentifier():
        msg = f"function: {name!r} is {'one of Spark' if key.isidentifier() else 'not a name'}"
        raise BadArgument(msg, where=caller(), hint="choose another name.")
    if not callable(function):
        msg = f"function: {function!r} cannot be called"
        raise BadArgument(msg, where=caller(), hint='write ts.function("name", "type", f).')
    USER_FUNCTIONS[key] = UserFunction(as_schema({"value": type}).field(0).type, function)
