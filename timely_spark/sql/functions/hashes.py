"""Spark's hashes of rows: a value is hashed with the hash of those before it as its seed; null is skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from timely_spark.sql import types
from timely_spark.sql.lists import Elements
from timely_spark.sql.plain import to_numpy
from timely_spark.sql.registry import Typed, Value, as_array, spark_function
from timely_spark.sql.texts import Characters, of_distinct


def _turned(values: Any, by: Any) -> Any:
    """Bits turned to the left."""
    return (values << by) | (values >> (8 * values.dtype.itemsize - by))


class ByteStrings:
    """The bytes of texts, or of binary values, of which words are read."""

    def __init__(self, values: pa.Array) -> None:
        plain = Characters(values)
        self.data = np.append(plain.data, np.zeros(8, np.uint8))
        self.starts, self.sizes = plain.offsets[:-1], np.diff(plain.offsets)

    def words(self, kind: str, width: int, begin: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """The first words of all values between two places, then the second ones: rows, and their words."""
        counts = np.maximum(end - begin, 0) // width
        order = np.argsort(-counts, kind="stable")
        falling = -counts[order]
        for n in range(int(counts.max(initial=0))):
            rows = order[: np.searchsorted(falling, -n)]
            places = (self.starts + begin)[rows] + width * n
            yield rows, self.data[places[:, None] + np.arange(width)].view(kind).ravel()


class Murmur3:
    """MurmurHash3 of 32 bits, whose last bytes are words with a sign each, as in Spark."""

    kind: Any = np.uint32
    result = np.int32

    @staticmethod
    def mixed(seed: Any, word: Any) -> Any:
        """A hash and a word."""
        word = _turned(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        return _turned(seed ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)

    @staticmethod
    def finished(hashed: Any, size: Any) -> Any:
        """The hash of a value of a size in bytes."""
        hashed = hashed ^ np.asarray(size, np.uint32)
        hashed = (hashed ^ (hashed >> 16)) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ (hashed >> 13)) * np.uint32(0xC2B2AE35)
        return hashed ^ (hashed >> 16)

    @classmethod
    def short(cls, values: Any, seed: Any) -> Any:
        """The hash of words of 4 bytes."""
        return cls.finished(cls.mixed(seed, values), 4)

    @classmethod
    def long(cls, values: Any, seed: Any) -> Any:
        """The hash of words of 8 bytes."""
        low, high = values.astype(np.uint32), (values >> np.uint64(32)).astype(np.uint32)
        return cls.finished(cls.mixed(cls.mixed(seed, low), high), 8)

    @classmethod
    def bytes(cls, values: ByteStrings, seed: Any) -> Any:
        """The hash of bytes."""
        hashed, whole = seed.copy(), values.sizes // 4 * 4
        for rows, words in values.words("<u4", 4, 0 * whole, whole):
            hashed[rows] = cls.mixed(hashed[rows], words)
        for rows, last in values.words("i1", 1, whole, values.sizes):
            hashed[rows] = cls.mixed(hashed[rows], last.astype(np.int32).view(np.uint32))
        return cls.finished(hashed, values.sizes)


_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(one)
    for one in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


class XxHash64:
    """xxHash of 64 bits."""

    kind: Any = np.uint64
    result = np.int64

    @staticmethod
    def finished(hashed: Any) -> Any:
        """The hash of a value."""
        hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
        hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
        return hashed ^ (hashed >> np.uint64(32))

    @staticmethod
    def mixed_short(hashed: Any, word: Any) -> Any:
        """A hash and a word of 4 bytes."""
        return _turned(hashed ^ (word.astype(np.uint64) * _P1), np.uint64(23)) * _P2 + _P3

    @staticmethod
    def mixed_long(hashed: Any, word: Any) -> Any:
        """A hash and a word of 8 bytes."""
        return _turned(hashed ^ (_turned(word * _P2, np.uint64(31)) * _P1), np.uint64(27)) * _P1 + _P4

    @classmethod
    def short(cls, values: Any, seed: Any) -> Any:
        """The hash of words of 4 bytes."""
        return cls.finished(cls.mixed_short(seed + _P5 + np.uint64(4), values))

    @classmethod
    def long(cls, values: Any, seed: Any) -> Any:
        """The hash of words of 8 bytes."""
        return cls.finished(cls.mixed_long(seed + _P5 + np.uint64(8), values))

    @classmethod
    def bytes(cls, values: ByteStrings, seed: Any) -> Any:
        """The hash of bytes: of stripes of 32 in four lanes, then of words of 8 and 4, and single bytes."""
        sizes = values.sizes
        none, stripes, words = 0 * sizes, sizes // 32 * 32, sizes // 8 * 8
        with np.errstate(over="ignore"):
            lanes = np.column_stack([seed + _P1 + _P2, seed + _P2, seed, seed - _P1])
        for rows, one in values.words("<u8", 32, none, stripes):
            lanes[rows] = _turned(lanes[rows] + one.reshape(-1, 4) * _P2, np.uint64(31)) * _P1
        turns = np.array([1, 7, 12, 18], np.uint64)
        joined = _turned(lanes, turns).sum(axis=1, dtype=np.uint64)
        for lane in lanes.T:
            joined = (joined ^ (_turned(lane * _P2, np.uint64(31)) * _P1)) * _P1 + _P4
        hashed = np.where(stripes > 0, joined, seed + _P5) + sizes.astype(np.uint64)
        for rows, one in values.words("<u8", 8, stripes, words):
            hashed[rows] = cls.mixed_long(hashed[rows], one)
        shorts = sizes // 4 * 4
        for rows, one in values.words("<u4", 4, words, shorts):
            hashed[rows] = cls.mixed_short(hashed[rows], one)
        for rows, one in values.words("u1", 1, shorts, sizes):
            hashed[rows] = _turned(hashed[rows] ^ (one.astype(np.uint64) * _P5), np.uint64(11)) * _P1
        return cls.finished(hashed)


def _java_bytes(value: Any) -> bytes:
    """The digits of a decimal as Java's `BigInteger.toByteArray`."""
    sign, digits, _ = value.as_tuple()
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    return whole.to_bytes((whole if whole >= 0 else ~whole).bit_length() // 8 + 1, "big", signed=True)


def _hashed(values: pa.Array, seed: Any, by: Any) -> Any:
    """The hashes of values with a seed each; the seed where a value is null."""
    result = seed.copy()
    valid = np.asarray(values.is_valid())
    if not valid.all():
        rows = np.flatnonzero(valid)
        result[rows] = _hashed(values.take(pa.array(rows)), seed[rows], by) if len(rows) else result[rows]
        return result
    kind = values.type
    if pa.types.is_struct(kind):
        for one in values.flatten():
            result = _hashed(one, result, by)
        return result
    if types.is_array(kind):
        elements = Elements(values)
        for place in range(int(elements.sizes.max(initial=0))):
            rows = np.flatnonzero(elements.sizes > place)
            at = pa.array(elements.offsets[rows] + place)
            result[rows] = _hashed(elements.values.take(at), result[rows], by)
        return result
    if types.is_decimal(kind) and kind.precision > 18:
        values, kind = of_distinct(values, _java_bytes, pa.binary()), pa.binary()
    if kind in {pa.string(), pa.binary()}:
        return by.bytes(ByteStrings(values), seed)
    plain = to_numpy(values)
    if types.is_float(kind):
        plain = np.where(np.isnan(plain), plain.dtype.type(np.nan), plain + 0)  # -0.0 is 0.0
        plain = plain.view(np.int32 if plain.itemsize == 4 else np.int64)
    if plain.dtype.itemsize == 8:
        return by.long(plain.view(np.uint64), seed)
    return by.short(plain.astype(np.int32).view(np.uint32), seed)


def _of_row(by: Any, *columns: Value, length: int) -> Any:
    hashed = np.full(length, 42, by.kind)
    for one in columns:
        hashed = _hashed(as_array(one, length), hashed, by)
    return hashed.view(by.result)


def _typed(result: pa.DataType) -> Any:
    """The rule of a hash of anything but maps, as equal ones may have their entries in two orders."""

    def rule(kinds: Sequence[pa.DataType], _: str) -> Typed | None:
        return (list(kinds), result) if kinds and not any(map(types.has_map, kinds)) else None

    return rule


spark_function("hash", _typed(pa.int32()), nulls=True)(partial(_of_row, Murmur3))
spark_function("xxhash64", _typed(pa.int64()), nulls=True)(partial(_of_row, XxHash64))
