"""What a state takes in memory: values of each kind have a size, whatever they call their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from timely_spark.state.memory import memory_of

ROWS = 1000
NUMBERS = np.arange(ROWS)
TEXTS = [f"page {number}" for number in range(ROWS)]


class Own:
    """A value of a user's vertex, with a name that pandas has, too."""

    memory_usage = "much"

    def __init__(self) -> None:
        self.numbers = NUMBERS


@pytest.mark.parametrize(
    "value",
    [
        NUMBERS,
        pa.array(TEXTS),
        pd.DataFrame({"n": NUMBERS, "text": TEXTS}),
        pd.Series(TEXTS),
        pd.Index(TEXTS),
        pd.Index(NUMBERS),
        pd.MultiIndex.from_product([TEXTS[:10], range(ROWS)]),
        Own(),
        TEXTS,
        {"nested": [pd.Index(TEXTS)]},
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_of_each_kind_has_a_size(value: Any) -> None:
    assert 8 * ROWS <= memory_of([value]) < 200 * ROWS


def test_a_range_takes_next_to_nothing() -> None:
    assert memory_of([pd.RangeIndex(ROWS), pd.NaT, None]) < ROWS
