"""Functions of doubles have the bits that they have in Spark, on all machines."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from timely_spark.sql import bind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: the first digits of a checksum of a function's values, which Spark has, too
CHECKSUMS = {
    "ln(x)": "a0a5002317a1",
    "log(y, x)": "6ea7bb976436",
    "log2(x)": "1aead1cc99eb",
    "log10(x)": "2c34a3d95214",
    "log1p(x)": "3979da2976f7",
    "exp(x)": "cd58359240c0",
    "expm1(x)": "4aabc0d2ca28",
    "sinh(x)": "0eac9aae9b69",
    "cosh(x)": "f40861e79a53",
    "tanh(x)": "1d63a828d166",
    "asinh(x)": "bed17b728454",
    "acosh(x)": "d3a2da12bc90",
    "atanh(x)": "3f033a1e7151",
    "asin(x)": "f2d40bd19ef4",
    "acos(x)": "cb233bc8a9be",
    "atan(x)": "67fff3bc24b7",
    "atan2(x, y)": "b3dc495bfb9f",
    "pow(x, y)": "ed6445d9f7f7",
    "cbrt(x)": "508cb6d91bb7",
    "hypot(x, y)": "af2b7dbf5533",
}


def values() -> pa.Table:
    """Doubles of all sizes, and those around which the formulas change."""
    sizes = np.ldexp(1.0 + np.arange(0, 4300) % 997 / 997, np.arange(-2252, 2048) // 2)
    near = np.concatenate([np.arange(1, 3000) / 1024, np.arange(1, 2000) / 2.5])
    high = np.array([0x6A09C, 0x6A09E, 0x6147A, 0x6B851, 0x3988E, 0xBB67A, 0xFFFFD, 0, 0x62E42, 0xA2B2])
    ends = (((1020 + np.arange(8))[:, None] << 20 | high)[..., None] + np.arange(-2, 3)).ravel() << 32
    special = [0.0, np.inf, np.nan, 22.0, 709.78, 710.0, 745.13, 5e-324, 0.5, 1.0 + 2.0**-52]
    x = np.concatenate([sizes, near, ends.view(np.float64), ends.view(np.float64) - 1, special])
    x = np.concatenate([x, -x])
    y = np.concatenate([x[7919:], x[:7919]])
    y[::3] = np.arange(len(y[::3])) % 101 / 2 - 25
    return pa.table({"x": x, "y": y})


def checksum(column: pa.ChunkedArray) -> str:
    """That of the values; of NaN there are several bits."""
    numbers = column.to_numpy()
    return hashlib.sha256(np.where(np.isnan(numbers), np.nan, numbers).tobytes()).hexdigest()[:12]


@pytest.mark.parametrize("text", CHECKSUMS)
def test_a_function_has_the_bits_that_spark_has(text: str) -> None:
    table = values()
    computed = pa.chunked_array([bind(text, table.schema).evaluate(table)])
    assert checksum(computed) == CHECKSUMS[text]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("floor(log(3, 243))", 5),
        ("ceil(log(3, 9))", 3),
        ("floor(exp(ln(3)))", 2),
        ("floor(pow(10, log10(11)))", 10),
    ],
)
def test_a_last_bit_is_another_answer(text: str, number: int) -> None:
    table = pa.table({"x": [0]})
    assert bind(text, table.schema).evaluate(table).to_pylist() == [number]


@pytest.mark.spark
@pytest.mark.campaign  # a version of Spark has the same
def test_spark_has_these_bits(spark: SparkSession) -> None:
    spark.createDataFrame(values()).createOrReplaceTempView("doubles")
    columns = ", ".join(f"{text} AS c{n}" for n, text in enumerate(CHECKSUMS))
    answer: Any = spark.sql(f"SELECT {columns} FROM doubles").toArrow()
    assert dict(zip(CHECKSUMS, map(checksum, answer.columns), strict=True)) == CHECKSUMS
