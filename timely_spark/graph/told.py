"""What goes wrong while a flow is built, whatever it is, is told with the operator and the user's line."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from timely_spark.errors import GraphError, SchemaError, TimelyError, user_line
from timely_spark.graph.graph import PACKAGE, caller

Told = TypeVar("Told", bound=Callable[..., Any])


def told(of: Told) -> Told:
    """A function that raises errors of the library's own, and those of the user's code; or a class of such.

    In a class, the public methods are such functions.

    Operators check what is easily mistaken, and say so. This is for all the rest: arguments of which nobody
    has thought.

    >>> @told
    ... class Stream:
    ...     def delay(self, by):
    ...         return by + 1
    >>> Stream().delay("a week")
    Traceback (most recent call last):
    timely_spark.errors.GraphError: delay (...): can only concatenate str (not "int") to str
    Hint: check what it is given: delay(by)
    """
    if not isinstance(of, type):
        made: Any = _told(of, own=list(inspect.signature(of).parameters)[:1] == ["self"])
        return made  # type: ignore[no-any-return]
    for name, member in list(vars(of).items()):
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(of, name, _told(member, own=True))
    return of


def _told(operator: Callable[..., Any], *, own: bool) -> Callable[..., Any]:
    """The function; `own`: whether its first argument is the object whose method the user calls."""

    @functools.wraps(operator)
    def called(*args: Any, **options: Any) -> Any:
        if sys._getframe(1).f_code.co_filename.startswith(PACKAGE):  # noqa: SLF001 - as in `caller`
            return operator(*args, **options)
        try:
            return operator(*args, **options)
        except SchemaError as error:
            if (where := caller()).file in str(error):
                raise
            msg = f"{operator.__name__} ({where}): {error}"  # a schema as such knows of no line
            raise SchemaError(msg) from error
        except TimelyError:
            raise
        except Exception as error:
            if user_line(error):
                raise  # it is the user's own function that failed
            names = ", ".join(list(inspect.signature(operator).parameters)[own:])
            msg = f"{operator.__name__} ({caller()}): {error}"
            hint = f"check what it is given: {operator.__name__}({names})"
            raise GraphError(msg, hint=hint) from error

    return called
