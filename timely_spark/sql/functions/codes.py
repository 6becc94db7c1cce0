"""Encodings of texts, and texts that are checked or masked: once for each distinct value."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
    if len(digits + padding) % 4:  # too many signs of padding, which Python takes
        raise ValueError(text)
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
    "mask", "=string, =string?, =string?, =string?, =string? -> string", constant=[1, 2, 3, 4], nulls=True
)
def _mask(text: pa.Array, *replacements: pa.Scalar, failures: Failures) -> Any:
    characters = [one.as_py() for one in replacements]
    characters += ("X", "x", "n", None)[len(characters) :]
    wrong = [one for one in characters if one is not None and len(one) != 1]
    failures.at(bool(wrong), f"mask by {', '.join(map(repr, wrong))}", "give one character, or NULL.")
    rest, table = characters[3], dict(zip(("Lu", "Ll", "Nd"), characters, strict=False))

    def masked(one: str) -> str:
        if one > "\uffff":  # Java has two characters for it
            return one if rest is None else rest * 2
        by = table.get(unicodedata.category(one), rest)
        return one if by is None else by

    return of_distinct(text, lambda one: None if one is None else "".join(map(masked, one)), pa.string())


@spark_function("quote", "string -> string")
def _quote(text: pa.Array) -> Any:
    return pc.binary_join_element_wise("'", pc.replace_substring(text, "'", "\\'"), "'", "")


#: by the place of a letter its sound; of 0 it has none, and 7 does not part equal ones
_SOUNDS = "01230127022455012623017202"


@spark_function("soundex", "=string -> string")
def _soundex(text: pa.Array) -> Any:
    def sound(one: str) -> str:
        letters = one.upper() if one.isascii() else "".join(x.upper() if x.isascii() else x for x in one)
        if not "A" <= letters[:1] <= "Z":
            return one
        code, last = letters[0], _SOUNDS[ord(letters[0]) - ord("A")]
        for letter in letters[1:]:
            heard = _SOUNDS[ord(letter) - ord("A")] if "A" <= letter <= "Z" else "0"
            if heard == "7":
                continue
            code += heard if heard not in {"0", last} else ""
            last = heard
        return code[:4].ljust(4, "0")

    return of_distinct(text, sound, pa.string())


# -- addresses of the web, as java.net.URI reads them --------------------------------------------------------

#: a character that has no meaning of its own: no blank of any script, and no sign
_ESCAPED = (
    r"%[0-9a-fA-F]{2}"
    r"|[^\x00-\x20\x7f-\xa0\"<>\\^`{|}%\[\]#?/\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
)
_URL = re.compile(
    rf"(?:(?P<protocol>[a-zA-Z][a-zA-Z0-9+.-]*):(?=[^\#])|(?![^/?\#]*:))"
    rf"(?:(?<=:)(?:{_ESCAPED}|\?)(?:{_ESCAPED}|[/?\[\]])*"
    rf"|(?://(?P<authority>(?:{_ESCAPED}|[\[\]])*))?(?P<path>(?:{_ESCAPED}|/)*)"
    rf"(?:\?(?P<query>(?:{_ESCAPED}|[/?\[\]])*))?)"
    rf"(?:\#(?P<ref>(?:{_ESCAPED}|[/?\[\]])*))?"
)
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_SERVER = re.compile(
    rf"(?:(?P<user>[^@]*)@)?(?P<host>(?:{_LABEL}\.)*[a-zA-Z](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?\.?"
    r"|(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?!:|$)|(?=:|$))){4}|\[[0-9a-fA-F:.]+(?:%\w+)?\])(?::\d{0,9})?"
)


def _part_of(url: str, part: str, key: str | None) -> str | None:
    """A part of an address; null if it has none.

    Raises:
        ValueError: the text is not an address.
    """
    match = _URL.fullmatch(url)
    if match is None or (match["authority"] == "" and match.end("authority") == len(url)):
        raise ValueError(url)
    server = _SERVER.fullmatch(match["authority"] or "")
    if server is None and "[" in (match["authority"] or ""):
        raise ValueError(url)
    path, query = match["path"], match["query"]
    parts = {
        "HOST": server and server["host"],
        "USERINFO": server and server["user"],
        "AUTHORITY": match["authority"] or None,
        "PATH": path,
        "QUERY": query,
        "FILE": path if query is None or path is None else f"{path}?{query}",
        "REF": match["ref"],
        "PROTOCOL": match["protocol"],
    }
    value = parts.get(part)
    if key is None:
        return value
    pair = re.search(rf"(?:&|^){re.escape(key)}=([^&]*)", value) if part == "QUERY" and value else None
    return None if pair is None else pair[1]


def _parse_url(url: pa.Array, part: pa.Scalar, key: pa.Scalar | None = None, *, failures: Failures) -> Any:
    wrong = set[str]()

    def read(one: str) -> str | None:
        try:
            return _part_of(one, part.as_py(), None if key is None else key.as_py())
        except ValueError:
            wrong.add(one)
            return None

    values = of_distinct(url, read, pa.string())
    rows = pc.is_in(url, pa.array(sorted(wrong), pa.string()))
    failures.at(rows, f"{min(wrong, default='')!r} is not an address", "use try_parse_url.")
    return values


for _name, _tries in (("parse_url", False), ("try_parse_url", True)):
    spark_function(_name, "=string, =string, =string? -> string", constant=[1, 2], tries=_tries)(_parse_url)
