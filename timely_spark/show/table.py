"""Small tables, as HTML for notebooks and as text for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import pyarrow as pa

from timely_spark.errors import values_of

#: The most characters of a cell, and the most columns and rows of records; of more rows, the first and last.
WIDEST, COLUMNS, ROWS = 60, 20, 20


@dataclass(frozen=True, slots=True)
class Table:
    """A table to look at.

    Example:
        >>> print(Table(["node", "near"], [[1, True], [20, None]], "reached").text())
        reached
          node  near
             1  True
            20  null
        >>> Table(["<b>"], [["&"]]).html().count("<b>")
        0
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    #: what the table leaves out
    note: str = ""

    def text(self) -> str:
        """The table as lines of text."""
        cells = [
            [cell(name) for name in self.columns],
            *([cell(value) for value in row] for row in self.rows),
        ]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        numbers = [all(_is_number(row[i]) for row in self.rows) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                text.rjust(width) if number else text.ljust(width)
                for text, width, number in zip(row, widths, numbers, strict=True)
            )
            for row in cells * bool(widths)
        ]
        title, note = [printable(self.title)] * bool(self.title), [f"  ({self.note})"] * bool(self.note)
        return "\n".join([*title, *(f"  {line}".rstrip() for line in lines), *note])

    def html(self) -> str:
        """The table as one HTML element, which is also well-formed XML."""
        left = "text-align:left;padding:2px 10px"
        head = "".join(f'<th style="{left}">{escaped(cell(name))}</th>' for name in self.columns)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="{left.replace("left", "right") if _is_number(value) else left}">'
                f"{escaped(cell(value))}</td>"
                for value in row
            )
            + "</tr>"
            for row in self.rows
        )
        title = f"<div><b>{escaped(self.title)}</b></div>" * bool(self.title)
        note = f"<div><i>{escaped(self.note)}</i></div>" * bool(self.note)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" * bool(self.columns)
        return f"<div>{title}{table}{note}</div>"


def schema_table(title: str, schema: pa.Schema) -> Table:
    """The columns of a schema.

    >>> print(schema_table("Stream edges", pa.schema([("src", pa.int64())])).text())
    Stream edges
      column  type
      src     int64
    """
    rows = [[field.name, field.type] for field in list(schema)[:COLUMNS]]
    more = len(schema) - len(rows)
    return Table(["column", "type"], rows, title, f"and {more} more columns" if more else "")


def epochs_table(title: str, schema: pa.Schema, epochs: Mapping[Any, pa.Table]) -> Table:
    """The first and the last records of epochs; columns: epoch, and the records'.

    >>> x = pa.table({"n": range(50)})
    >>> table = epochs_table("out", x.schema, {0: x, 1: x})
    >>> len(table.rows), table.rows[-1], table.note
    (21, [1, 49], '80 of 100 records are not shown')
    """
    total, most = sum(table.num_rows for table in epochs.values()), ROWS // 2
    rows: list[list[Any]] = []
    if total <= ROWS:
        for epoch, table in epochs.items():
            rows += _records(epoch, table)
    else:
        last: list[list[Any]] = []
        for epoch, table in epochs.items():
            rows += _records(epoch, table.slice(0, most - len(rows)))
            if len(rows) == most:
                break
        for epoch in reversed(epochs):
            table = epochs[epoch]
            last = _records(epoch, table.slice(max(0, table.num_rows - most + len(last)))) + last
            if len(last) == most:
                break
        rows = [*rows, ["..."] * len(rows[0]), *last]
    names = schema.names[:COLUMNS]
    notes = [f"{total - ROWS} of {total} records are not shown"] * (total > ROWS)
    notes += [f"{len(schema) - COLUMNS} columns are not shown"] * (len(schema) > COLUMNS)
    return Table(["epoch", *names], rows, title, "; ".join(notes))


def _records(epoch: int | None, table: pa.Table) -> list[list[Any]]:
    columns = map(values_of, table.columns[:COLUMNS])
    return [[epoch, *values] for values in zip(*columns, strict=True)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def cell(value: Any) -> str:
    """A value on one line."""
    if value is None:
        return "null"
    text = f"0x{value.hex()}" if isinstance(value, bytes) else " ".join(printable(str(value)).split())
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "message"), counted(1200, "message"), counted(2, "entry")
    ('1 message', '1,200 messages', '2 entries')
    """
    plural = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(parts: Sequence[Any], most: int | None = None) -> str:
    """The first of several things, with commas between them.

    >>> listed([1, 2]), listed(range(9), most=2), listed([])
    ('1, 2', '0, 1, and 7 more', '')
    """
    more = f", and {len(parts) - most} more" if most is not None and len(parts) > most else ""
    return ", ".join(map(str, parts[:most])) + more


def printable(text: str) -> str:
    """The text, without what a terminal obeys and XML refuses.

    >>> printable(f"a{chr(27)}[2Jb") == f"a{chr(0xFFFD)}[2Jb"
    True
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def escaped(text: str) -> str:
    """A text as HTML and XML.

    >>> escaped("<b>")
    '&lt;b&gt;'
    """
    return escape(printable(text))
