"""Products of parameters: a part of each in every run, all of it in the campaign."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

#: All characters of UTF-8. Hypothesis' own strategy encodes each one to find them, which takes seconds.
CHARACTERS = st.characters(exclude_categories=["Cs"])
#: how a flow runs, drawn
HOW: dict[str, Any] = {
    "workers": st.sampled_from([1, 2, 3, 8]),
    "seed": st.none() | st.integers(0, 10_000),
    "together": st.booleans(),
}


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


def share(cases: Collection[str], parts: int) -> set[str]:
    """One of so many parts of a function's cases, by the checksums of their names.

    Functions that have the same cases, such as all operators, so have other ones in their shares.

    >>> sorted(share(["test_a[1]", "test_a[2]", "test_a[3]", "test_a[4]", "test_a[5]"], 4))
    ['test_a[1]', 'test_a[3]']
    >>> share(["test_b[1]", "test_b[2]"], 4)
    {'test_b[1]'}
    """
    return set(sorted(cases, key=lambda name: zlib.crc32(name.encode()))[: -(-len(cases) // parts)])
