"""Products of parameters: a part of each in every run, all of it in the campaign."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def in_turn(every: Iterable[Any], ways: Sequence[Any]) -> list[Any]:
    """Parameters that go each of some ways.

    In every run each goes one of them, in turn, so that each way is gone about equally often. In the campaign
    each goes all. What is a tuple is several arguments.
    """

    def arguments(of: Any) -> tuple[Any, ...]:
        return of if isinstance(of, tuple) else (of,)

    return [
        pytest.param(
            *arguments(one),
            *arguments(way),
            marks=pytest.mark.campaign if (number - n) % len(ways) else (),
        )
        for number, one in enumerate(every)
        for n, way in enumerate(ways)
    ]
