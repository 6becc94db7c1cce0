"""Functions that tests put in the place of others are called as they can be.

A test that a fault is noticed passes when anything fails, also a fault's own wrong call: the function that it
replaces has got another argument since, and the fault was never there.
"""

from __future__ import annotations

import functools
import inspect
import re
from types import FunctionType
from typing import Any

import pytest


class CheckedPatch(pytest.MonkeyPatch):
    """A MonkeyPatch whose functions fail the test when they are called otherwise than they can be."""

    def setattr(self, *args: Any, **options: Any) -> None:
        *where, value = args
        super().setattr(*where, checked(value), **options)


def checked(value: Any) -> Any:
    """The function, which tells of wrong calls of it, and of those that it makes itself."""
    if isinstance(value, (classmethod, staticmethod)):
        return type(value)(checked(value.__func__))
    if not isinstance(value, FunctionType):
        return value
    signature = inspect.signature(value)

    @functools.wraps(value)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            fail(value, error)
        try:
            return value(*args, **kwargs)
        except (TypeError, ValueError) as error:
            trace = error.__traceback__ and error.__traceback__.tb_next
            if trace and trace.tb_next is None and re.search(r"\barguments?\b|\bunpack\b", str(error)):
                fail(value, error)
            raise

    return call


def fail(function: FunctionType, error: Exception) -> None:
    """End the test by what no `except Exception` takes for a finding."""
    place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
    pytest.fail(f"{place}: {function.__qualname__} is called wrongly: {error}")
