"""Texts of whole columns as characters in numpy, as Arrow cuts all texts at one place only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Characters:
    """The characters of texts, or the bytes of binary values, without nulls, all in one sequence."""

    texts: pa.Array

    @cached_property
    def data(self) -> Any:
        """The bytes of all texts."""
        buffer = self.texts.buffers()[2]
        return np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)

    @cached_property
    def offsets(self) -> Any:
        """The places in the bytes where the texts begin, and where the last one ends."""
        first, count = self.texts.offset, len(self.texts)
        return np.frombuffer(self.texts.buffers()[1], np.int32)[first : first + count + 1].astype(np.int64)

    @cached_property
    def starts(self) -> Any:
        """The places in the bytes where the characters begin, and where the last one ends."""
        first, last = self.offsets[0], self.offsets[-1]
        if pa.types.is_binary(self.texts.type):
            return np.arange(first, last + 1)
        inside = np.flatnonzero((self.data[first:last] & 0xC0) != 0x80) + first
        return np.append(inside, last)

    @cached_property
    def firsts(self) -> Any:
        """The number of each text's first character, and the number of characters."""
        return np.searchsorted(self.starts, self.offsets)

    @property
    def lengths(self) -> Any:
        """The number of characters of each text."""
        return np.diff(self.firsts)

    def at_bytes(self, places: Any) -> Any:
        """The number of a character in its text, by a place in the bytes of the text."""
        return np.searchsorted(self.starts, self.offsets[:-1] + places) - self.firsts[:-1]

    def cut(self, begin: Any, end: Any) -> pa.Array:
        """The part of each text between two numbers of characters, as far as it exists."""
        lengths = self.lengths
        begin = np.clip(begin, 0, lengths)
        end = np.maximum(np.clip(end, 0, lengths), begin)
        return self.pieces(self.starts[self.firsts[:-1] + begin], self.starts[self.firsts[:-1] + end])

    def pieces(self, begin: Any, end: Any) -> pa.Array:
        """Texts that are pieces of the bytes."""
        sizes = end - begin
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        places = np.repeat(begin - offsets[:-1], sizes) + np.arange(offsets[-1])
        return texts_of_bytes(self.data[places], offsets).view(self.texts.type)

    def reversed(self) -> pa.Array:
        """Texts with their characters in the opposite order."""
        number = np.arange(self.firsts[-1])
        owner = np.repeat(np.arange(len(self.texts)), self.lengths)
        mirrored = self.firsts[owner] + self.firsts[owner + 1] - 1 - number
        turned = self.pieces(self.starts[:-1][mirrored], self.starts[1:][mirrored])
        return texts_of_bytes(Characters(turned).data, self.offsets - self.offsets[0]).view(self.texts.type)


def texts_of_bytes(data: Any, offsets: Any) -> pa.Array:
    """Texts of bytes, and where each begins."""
    buffers = [
        None,
        pa.py_buffer(np.ascontiguousarray(offsets, np.int32)),
        pa.py_buffer(np.ascontiguousarray(data)),
    ]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def mapped(texts: pa.Array, function: Callable[[str], str]) -> pa.Array:
    """A function of characters, such as `str.upper`, applied to all texts in one call."""
    separator = "\U0010ffff"
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), separator)[0].as_py()
    if joined.count(separator) != len(texts) - 1:  # a text has the separator
        return pa.array([function(one) for one in texts.to_pylist()], pa.string())
    return pa.array(function(joined).split(separator), pa.string())


def of_distinct(values: pa.Array, function: Callable[[Any], Any], kind: pa.DataType) -> pa.Array:
    """A function of Python's library, called once for each distinct text or value of bytes."""
    encoded = values.dictionary_encode()
    return pa.array(map(function, encoded.dictionary.to_pylist()), kind).take(encoded.indices)


def sliced(texts: pa.Array, begin: Any, end: Any) -> pa.Array:
    """The part of each text between two numbers of characters."""
    return Characters(texts).cut(begin, end)
