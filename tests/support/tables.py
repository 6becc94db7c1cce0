"""What is in a Delta table, read without a job of Spark's, which takes a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows_of(table: str | Path, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a table, in order; of all columns unless some are named."""
    opened = DeltaTable(str(table))
    assert "delta.columnMapping.mode" not in opened.metadata().configuration, "delta-rs would find nulls"
    read = opened.to_pyarrow_table(columns=list(columns) or None)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True))


def operations(table: str | Path) -> list[str]:
    """The operation of each commit, newest first."""
    return [commit["operation"] for commit in DeltaTable(str(table)).history()]
