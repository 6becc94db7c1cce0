"""Quoting of SQL names and texts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from timely_spark.errors import GraphError

#: A part of a table name: plain, or in backticks, with inner backticks doubled.
_PART = r"(?:[^`.\s]+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


def identifier(*parts: str) -> str:
    """Quote a name of one or more parts.

    >>> identifier("t", "a`b"), identifier("x; DROP TABLE y")
    ('`t`.`a``b`', '`x; DROP TABLE y`')
    """
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def literal(text: str) -> str:
    r"""Quote a string. Spark would put the values of settings and of the environment in place of `${...}`.

    >>> print(literal("it's"), literal("\\' OR 1 = 1"), literal("${env:HOME}"))
    'it\'s' '\\\' OR 1 = 1' '\u0024{env:HOME}'
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\u0024{")
    return f"'{escaped}'"


def table_name(text: str, within: Sequence[str] = ()) -> str:
    """Quote each part of a table name: `table`, `schema.table`, `catalog.schema.table`.

    A name that lacks them gets the catalog and the schema that it is `within`.

    >>> table_name("main.graph.`near by`"), table_name("near")
    ('`main`.`graph`.`near by`', '`near`')
    >>> table_name("b.near", within=("main", "a")), table_name("near", within=("main", "a"))
    ('`main`.`b`.`near`', '`main`.`a`.`near`')
    >>> table_name("near (n long); --")
    Traceback (most recent call last):
    timely_spark.errors.GraphError: 'near (n long); --' is not the name of a table
    Hint: ...
    """
    if _NAME.fullmatch(text) is None:
        msg = f"{text!r} is not the name of a table"
        hint = "write catalog.schema.table, with `...` around a part that has a space or a dot."
        raise GraphError(msg, hint=hint)
    parts = re.findall(_PART, text)
    around = within[: max(0, len(within) + 1 - len(parts))]
    return identifier(*around, *(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in parts))
