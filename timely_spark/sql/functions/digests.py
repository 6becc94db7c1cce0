"""Digests and encodings of texts and bytes, by Python's library: one call for each distinct value."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from typing import Any
from urllib.parse import quote_plus, unquote_plus

import numpy as np
import pyarrow as pa

from timely_spark.sql.registry import Failures, spark_function
from timely_spark.sql.texts import of_distinct

_BYTES = "binary -> string", "=string -> string"
#: by the second argument of `sha2`, the algorithm
_SHA2 = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _digest(names: str, algorithm: Any) -> None:
    @spark_function(names, *_BYTES)
    def _kernel(value: pa.Array) -> Any:
        return of_distinct(value, lambda one: algorithm(_bytes(one)).hexdigest(), pa.string())


_digest("md5", hashlib.md5)
_digest("sha sha1", hashlib.sha1)


@spark_function("sha2", "binary, int -> string", "=string, int -> string", constant=[1])
def _sha2(value: pa.Array, bits: pa.Scalar) -> Any:
    name = _SHA2.get(bits.as_py())
    if name is None:
        return pa.scalar(None, pa.string())
    return of_distinct(value, lambda one: hashlib.new(name, _bytes(one)).hexdigest(), pa.string())


@spark_function("crc32", "binary -> bigint", "=string -> bigint")
def _crc32(value: pa.Array) -> Any:
    return of_distinct(value, lambda one: zlib.crc32(_bytes(one)), pa.int64())


@spark_function("base64", *_BYTES)
def _base64(value: pa.Array) -> Any:
    def lines(one: str | bytes) -> str:  # of 76 digits
        return base64.encodebytes(_bytes(one)).decode().rstrip("\n").replace("\n", "\r\n")

    return of_distinct(value, lines, pa.string())


@spark_function("unbase64", "string -> binary")
def _unbase64(text: pa.Array, *, failures: Failures) -> Any:
    # as Java's MIME decoder: other characters say nothing, and padding may lack
    digits = of_distinct(text, lambda one: re.sub(r"[^A-Za-z0-9+/]", "", one.partition("=")[0]), pa.string())
    lengths = np.asarray(pa.compute.binary_length(digits))
    bad = lengths % 4 == 1
    failures.at(
        bad, "a text that is not base64", "use try_to_binary, which gives null there, or filter by RLIKE."
    )
    padded = pa.compute.if_else(pa.array(bad), "", pa.compute.binary_join_element_wise(digits, "==", ""))
    return of_distinct(padded, base64.b64decode, pa.binary())


@spark_function("url_encode", "string -> string")
def _url_encode(text: pa.Array) -> Any:
    return of_distinct(text, lambda one: quote_plus(one, safe="*").replace("~", "%7E"), pa.string())


def _url_decoded(text: pa.Array, *, failures: Failures) -> Any:
    bad = pa.compute.match_substring_regex(text, r"%([^0-9A-Fa-f]|[0-9A-Fa-f][^0-9A-Fa-f]|.?$)")
    failures.at(bad, "a text that is not encoded for a URL", "use try_url_decode, which gives null there.")
    return of_distinct(text, unquote_plus, pa.string())


for _name, _tries in (("url_decode", False), ("try_url_decode", True)):
    spark_function(_name, "string -> string", tries=_tries)(_url_decoded)
