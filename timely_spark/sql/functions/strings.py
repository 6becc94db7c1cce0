"""Functions of texts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.registry import Value, function


@function("upper ucase", "string -> string")
def _upper(text: Value) -> Any:
    return pc.utf8_upper(text)


@function("lower lcase", "string -> string")
def _lower(text: Value) -> Any:
    return pc.utf8_lower(text)


@function("length char_length character_length len", "string -> int", "binary -> int")
def _length(text: Value) -> Any:
    return pc.binary_length(text) if pa.types.is_binary(text.type) else pc.utf8_length(text)


@function("||", "string, string -> string")
def _joined(a: Value, b: Value) -> Any:
    return pc.binary_join_element_wise(a, b, "")
