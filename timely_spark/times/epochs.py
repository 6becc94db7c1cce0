"""The range of epochs, and the check of epochs that a user gives."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Final

from timely_spark.errors import InvalidTime, Where

#: Epochs are the numbers from 0 and below this one. The sum of an epoch and a delay, both below it, is less
#: than the largest coordinate of a time.
EPOCHS: Final = 2**62


def is_integer(value: Any, least: int | None = 0, most: int | None = EPOCHS - 1) -> bool:
    """Whether a value is an integer from `least` to `most`: an int or a numpy integer.

    >>> import numpy as np
    >>> [is_integer(value) for value in (3, np.int32(3), -1, 2**62, 1.0, True, "3", None)]
    [True, True, False, False, False, False, False, False]
    """
    if value is True or value is False or not isinstance(value, Integral):
        return False
    return (least is None or least <= int(value)) and (most is None or int(value) <= most)


def as_epoch(value: Any, label: str, where: Where | None = None) -> int:
    """A user's epoch as an int.

    >>> as_epoch(7, "advance_to on input 'x'")
    7
    """
    if not is_integer(value):
        msg = f"{label}: {value!r} ({type(value).__name__}) is not an epoch"
        if isinstance(value, tuple):  # also a time
            msg += "; inner times and iterations end with their epoch, which may bring all of them until then"
        raise InvalidTime(msg, where=where, hint="an epoch is an integer from 0 on and below 2**62")
    return int(value)
