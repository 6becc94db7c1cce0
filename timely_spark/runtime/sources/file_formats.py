"""The formats of files, by name; pyarrow's own are loaded when one is used.

They load pandas, which takes longer than all else that the process of a source imports to list its files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from pyarrow import csv

if TYPE_CHECKING:
    import pyarrow.dataset as ds

Format: TypeAlias = Literal["parquet", "csv", "json", "arrow"]


def file_kind(form: object) -> str:
    """Which of `Format` a format of pyarrow is; empty if it is something else."""
    import pyarrow.dataset as ds

    kinds = (ds.ParquetFileFormat, ds.CsvFileFormat, ds.JsonFileFormat, ds.IpcFileFormat, ds.FileFormat)
    names = (*get_args(Format), "other")
    return next((name for name, kind in zip(names, kinds, strict=True) if isinstance(form, kind)), "")


def with_options(name: str) -> ds.FileFormat:
    """A format with the options that Spark's files need."""
    import pyarrow.dataset as ds

    if name == "parquet":  # Spark writes timestamps as INT96, in microseconds, and a checksum of each page
        return ds.ParquetFileFormat(coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    if name == "csv":  # as Spark: only an empty field without quotes is null
        nulls = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
        return ds.CsvFileFormat(convert_options=csv.ConvertOptions(**nulls))
    return ds.JsonFileFormat() if name == "json" else ds.IpcFileFormat()


class Decompressed:
    """The files of a file system, decompressed while they are read from begin to end; as fsspec's are."""

    protocol = "decompressed"

    def __init__(self, system: Any) -> None:
        self.system = system

    def isfile(self, path: str) -> bool:
        """Whether there is such a file."""
        return bool(self.system.get_file_info(path).is_file)

    def open(self, path: str, mode: str) -> Any:
        """The content."""
        return self.system.open_input_stream(path)


def with_quoted_lines(form: Any) -> Any:
    """The format; a value of CSV may have several lines.

    By default Arrow ends a block at any end of a line, so it reads other rows if that is between quotes.
    """
    if file_kind(form) != "csv":
        return form
    options = form.parse_options
    options.newlines_in_values = True
    return type(form)(options, default_fragment_scan_options=form.default_fragment_scan_options)
