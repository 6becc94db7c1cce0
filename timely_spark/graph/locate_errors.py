"""Errors while a flow is built name the operator and the user's line, also the unexpected ones."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar

from timely_spark.errors import GraphError, SchemaError, TimelyError, user_line
from timely_spark.graph.arguments import arguments_hint, flag_check
from timely_spark.graph.caller import PACKAGE, caller

Located = TypeVar("Located", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class OperatorCall:
    """A call, by the user's own code, of an operator or of a function of the library."""

    method: str
    #: its `name=`
    name: str | None

    def is_of(self, operator: str) -> bool:
        """Whether it is a call of this operator, not of what consists of it."""
        return self.method == operator


CALL: ContextVar[OperatorCall | None] = ContextVar("CALL", default=None)
"""The call of the user's own code that runs; one that the library makes is not it."""


def locate_errors(target: Located) -> Located:
    """Decorate a function, or a class's public methods: unexpected exceptions become a `GraphError`.

    Operators check for common mistakes themselves. This decorator handles all other wrong arguments.
    Exceptions of the user's own functions pass unchanged.

    >>> @locate_errors
    ... class Stream:
    ...     def delay(self, by):
    ...         return by + 1
    >>> Stream().delay("a week")
    Traceback (most recent call last):
    timely_spark.errors.GraphError: delay: can only concatenate str (not "int") to str (...)
    Hint: check the arguments: delay(by)
    """
    if not isinstance(target, type):
        result: Any = _located(target, own=list(inspect.signature(target).parameters)[:1] == ["self"])
        return result  # type: ignore[no-any-return]
    for name, member in list(vars(target).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(target, name, located_method(member))
    return target


def located_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """`locate_errors` of one method. Its first parameter is the instance."""
    return _located(function, own=True)


def _located(operator: Callable[..., Any], *, own: bool) -> Callable[..., Any]:
    """The decorated function; `own`: whether its first parameter is `self`."""
    parameters = inspect.signature(operator).parameters
    check_flags = flag_check(operator)

    @functools.wraps(operator)
    def called(*args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):  # noqa: SLF001 - as in `caller`
            return operator(*args, **options)
        _check_no_frame_columns(operator.__name__, (*args, *options.values()))
        check_flags(args, options)
        name = options.get("name")
        before = CALL.set(OperatorCall(operator.__name__, name if isinstance(name, str) else None))
        try:
            return operator(*args, **options)
        except SchemaError as error:
            if (where := caller()).file in str(error):
                raise
            msg = f"{operator.__name__}: {error.message}"  # `as_schema` does not know the line
            raise SchemaError(msg, where=where, hint=error.hint) from error
        except TimelyError:
            raise
        except Exception as error:
            if user_line(error):
                raise  # the user's own function failed
            names = list(parameters)[own:]
            msg = f"{operator.__name__}: {error}"
            hint = arguments_hint(operator.__name__, names, error)
            raise GraphError(msg, where=caller(), hint=hint) from error
        finally:
            CALL.reset(before)

    return called


def _check_no_frame_columns(operator: str, arguments: Iterable[Any]) -> None:
    """Refuse columns of DataFrames: they compare, and are hashed, unlike anything that an operator takes."""
    for value in arguments:
        kind = type(value)
        if kind.__name__ == "Column" and kind.__module__.startswith("pyspark.sql."):
            msg = f"{operator}: {value} is a column of a DataFrame"
            hint = f"give a column's name, or the expression as a text: {_sql_of(value)}."
            raise SchemaError(msg, where=caller(), hint=hint)


def _sql_of(column: Any) -> str:
    """The expression of a DataFrame's column, as text: of ``Column<'(n > 1)'>`` it is `(n > 1)`."""
    shown = re.fullmatch(r"Column<'(.*)'>", str(column))
    return repr(shown[1] if shown else "n > 1")
