"""The pipeline of a text of SQL, which users have in files."""

from __future__ import annotations

from collections.abc import Mapping

from timely_spark.pipeline import Pipeline
from timely_spark.sql_file import read_statements


def read_sql(text: str, parameters: Mapping[str, str] | None = None) -> Pipeline:
    """The pipeline of the statements of a text, with the values of its parameters."""
    values = parameters or {}
    return Pipeline.of(read_statements(text, values), values, "the text")
