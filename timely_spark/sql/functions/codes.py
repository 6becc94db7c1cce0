"""Encodings of texts, and texts that are checked or masked: once for each distinct value."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.sql.functions.strings import unhex
from timely_spark.sql.registry import Failures, spark_function
from timely_spark.sql.texts import of_distinct

#: Spark's names of charsets, with Python's
_CHARSETS = {
    "UTF-8": "utf-8",
    "UTF-16BE": "utf-16-be",
    "UTF-16LE": "utf-16-le",
    "ISO-8859-1": "latin-1",
    "US-ASCII": "ascii",
}


def _or_null(values: pa.Array, code: Callable[[Any], Any], kind: pa.DataType) -> Any:
    """The values of a function, null where it has none."""

    def coded(one: Any) -> Any:
        try:
            return code(one)
        except ValueError:
            return None

    return of_distinct(values, coded, kind)


def _all_read(results: Any, what: str, failures: Failures) -> Any:
    """Results, of which none may be null."""
    failures.at(np.asarray(results.is_null()), f"a value that is not {what}", "leave it out by CASE WHEN.")
    return results


def _charset(name: pa.Scalar) -> str:
    if (charset := _CHARSETS.get(name.as_py().upper())) is None:
        msg = f"the charset {name.as_py()!r} is not one of {', '.join(_CHARSETS)}"
        raise pa.ArrowInvalid(msg)
    return charset


@spark_function("encode", "string, string -> binary", constant=[1])
def _encode(text: pa.Array, charset: pa.Scalar, *, failures: Failures) -> Any:
    name = _charset(charset)
    return _all_read(_or_null(text, lambda one: one.encode(name), pa.binary()), charset.as_py(), failures)


@spark_function("$decode", "binary, string -> string", constant=[1])
def _decode(value: pa.Array, charset: pa.Scalar, *, failures: Failures) -> Any:
    name = _charset(charset)
    return _all_read(_or_null(value, lambda one: one.decode(name), pa.string()), charset.as_py(), failures)


def _unpadded(text: str) -> bytes:
    """The bytes of base64, with blanks between the digits, and perhaps without padding."""
    digits = re.sub(r"(?<!=)\s+|\s+(?![\s=])", "", text)  # not between the signs of padding
    padding = "" if "=" in digits else "=" * (-len(digits) % 4)
    return base64.b64decode(digits + padding, validate=True)


#: the formats of `to_binary`, each with what reads a column of texts; null for a text that it cannot read
_FORMATS: dict[str, Callable[[pa.Array], Any]] = {
    "hex": unhex,
    "base64": lambda texts: _or_null(texts, _unpadded, pa.binary()),
    "utf-8": lambda texts: texts.cast(pa.binary()),
    "utf8": lambda texts: texts.cast(pa.binary()),
}


def _to_binary(text: pa.Array, form: pa.Scalar | None = None, *, failures: Failures) -> Any:
    name = "hex" if form is None else form.as_py().lower()
    if name not in _FORMATS:
        msg = f"the format {name!r} is not one of {', '.join(_FORMATS)}"
        raise pa.ArrowInvalid(msg)
    return _all_read(_FORMATS[name](text), name, failures)


spark_function("to_binary", "string, string? -> binary", constant=[1])(_to_binary)
spark_function("try_to_binary", "string, string? -> binary", constant=[1], tries=True)(_to_binary)


@spark_function("luhn_check", "string -> boolean")
def _luhn_check(text: pa.Array) -> Any:
    def checked(one: str) -> bool:
        digits = [int(digit) for digit in one[::-1]] if one.isascii() and one.isdigit() else [1]
        return sum(sum(divmod(digit * (1 + n % 2), 10)) for n, digit in enumerate(digits)) % 10 == 0

    return of_distinct(text, checked, pa.bool_())


@spark_function(
    "mask", "string, string?, string?, string?, string? -> string", constant=[1, 2, 3, 4], nulls=True
)
def _mask(
    text: pa.Array,
    upper: pa.Scalar = pa.scalar("X"),  # noqa: B008 - never changed
    lower: pa.Scalar = pa.scalar("x"),  # noqa: B008
    digit: pa.Scalar = pa.scalar("n"),  # noqa: B008
    other: pa.Scalar = pa.scalar(None, pa.string()),  # noqa: B008
) -> Any:
    table = {"Lu": upper.as_py(), "Ll": lower.as_py(), "Nd": digit.as_py()}
    rest = other.as_py()

    def masked(one: str) -> str:
        if one > "\uffff":  # Java has two characters for it
            return one if rest is None else rest * 2
        by = table.get(unicodedata.category(one), rest)
        return one if by is None else by

    return of_distinct(text, lambda one: None if one is None else "".join(map(masked, one)), pa.string())
