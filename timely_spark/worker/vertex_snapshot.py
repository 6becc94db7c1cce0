"""`VertexSnapshot`: a vertex's checkpoint: the full state and, if logged, the invocations since then.

Naiad section 3.4: a vertex writes its full state, or a log of its inputs and sometimes a full checkpoint. The
segments of a log are merged so that each is more than twice as large as the next. So the bytes written in a
round are proportional, amortised, to the input of the round.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import StateError, shorten
from timely_spark.graph import Stateless, Vertex
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.codec import (
    BlobRef,
    Chunk,
    Codec,
    as_text,
    chunk_size,
    from_text,
    pack_json,
    unpack_json,
)
from timely_spark.times import Timestamp

LOG_BYTES = 64 << 10
"""A log up to this size is kept even if the full state is smaller."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a vertex: a batch on input `edge`, or, without a batch, a notification."""

    time: Timestamp
    #: the oldest open epoch at the time of the call; a replay reports the same epoch
    since: int
    edge: int = 0
    batch: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class VertexSnapshot:
    """One vertex's last checkpoint."""

    #: the full state; None means that of the template
    full: Chunk | None = None
    #: the sizes of the blobs that `full` refers to in turn, by reference
    blob_sizes: Mapping[bytes, int] = field(default_factory=dict)
    #: segments of the invocations since then; each more than twice as large as the next
    log: tuple[Chunk, ...] = ()

    @property
    def references(self) -> dict[bytes, int]:
        """All blobs of the snapshot, with their sizes."""
        own = [chunk for chunk in (self.full, *self.log) if isinstance(chunk, BlobRef)]
        return {**self.blob_sizes, **{blob.reference: blob.size for blob in own}}

    @property
    def full_size(self) -> int:
        """Bytes of the full state, blobs included."""
        return (chunk_size(self.full) if self.full is not None else 0) + sum(self.blob_sizes.values())

    @property
    def log_size(self) -> int:
        """Bytes of the log."""
        return sum(map(chunk_size, self.log))

    def in_blobs(self, codec: Codec) -> VertexSnapshot:
        """This snapshot with a large full state in a blob, so that later rounds write a reference only."""
        full = None if self.full is None else codec.put(self.full)
        return self if full is self.full else replace(self, full=full)

    def logged(self, invocations: Sequence[Invocation], codec: Codec) -> VertexSnapshot | None:
        """This snapshot with further invocations; None if the log would be larger than the full state."""
        head = [[None if i.batch is None else i.edge, i.time.encode(), i.since] for i in invocations]
        segment = pack_json(head, [to_bytes(i.batch) for i in invocations if i.batch is not None])
        log: list[Chunk] = [*self.log, segment]
        while len(log) > 1 and chunk_size(log[-2]) < 2 * chunk_size(log[-1]):
            log[-2:] = [_merged([codec.get(segment) for segment in log[-2:]])]
        if sum(map(chunk_size, log)) > max(self.full_size, LOG_BYTES):
            return None
        return replace(self.in_blobs(codec), log=tuple(map(codec.put, log)))

    def invocations(self, codec: Codec) -> Iterator[Invocation]:
        """The invocations of the log, in order."""
        for segment in self.log:
            head, tables = unpack_json(codec.get(segment))
            batches = iter(tables)
            for edge, time, since in head:
                batch = from_bytes(next(batches)) if edge is not None else None
                yield Invocation(codec.times.decode(time), since, edge or 0, batch)

    def encode(self, parts: list[Any]) -> list[Any]:
        """The snapshot as plain JSON; chunks that are not in blobs are added to `parts`."""
        sizes = dict(zip(as_text(self.blob_sizes), self.blob_sizes.values(), strict=True))
        full = None if self.full is None else encode_chunk(self.full, parts)
        return [full, sizes, [encode_chunk(segment, parts) for segment in self.log]]

    @classmethod
    def decode(cls, encoded: Sequence[Any], parts: Sequence[Any]) -> VertexSnapshot:
        """The snapshot that `encode` gave."""
        full, sizes, log = encoded
        return cls(
            None if full is None else decode_chunk(full, parts),
            dict(zip(from_text(sizes), sizes.values(), strict=True)),
            tuple(decode_chunk(segment, parts) for segment in log),
        )


def encode_chunk(chunk: Chunk, parts: list[Any]) -> Any:
    """The reference and size of a blob; or the chunk's number among `parts`, to which it is added."""
    if isinstance(chunk, BlobRef):
        return chunk.encode()
    parts.append(chunk)
    return len(parts) - 1


def decode_chunk(encoded: Any, parts: Sequence[Any]) -> Chunk:
    """The chunk that `encode_chunk` encoded."""
    if isinstance(encoded, list):
        return BlobRef.decode(encoded)
    part: bytes = parts[encoded]
    return part


def _merged(segments: Sequence[Any]) -> bytes:
    head: list[Any] = []
    tables: list[Any] = []
    for segment in segments:
        part, batches = unpack_json(segment)
        head += part
        tables += batches
    return pack_json(head, tables)


# -- templates -----------------------------------------------------------------------------------------------


def changed(vertex: Vertex, template: Vertex) -> dict[str, Any]:
    """The vertex's `checkpoint`, without attributes that are still the template's own objects.

    If the user wrote `checkpoint` or `restore`, the result is all that `checkpoint` returns.
    """
    written: Any = vertex.checkpoint()
    if not isinstance(written, Mapping):
        msg = f"checkpoint() of {type(vertex).__name__} returned {shorten(written)}, not a dict"
        raise StateError(msg, hint="return the state by name, as in {'counts': self.counts}.")
    state, initial = dict(written), vars(template)
    if type(vertex).restore is not Vertex.restore or type(vertex).checkpoint is not Vertex.checkpoint:
        return state
    return {name: value for name, value in state.items() if name not in initial or value is not initial[name]}


_ATOMS = (
    str,
    bytes,
    int,
    float,
    complex,
    type(None),
    pa.Schema,
    pa.DataType,
    pa.Field,
    pa.Table,
    pc.Expression,
)


def _is_setting(value: Any) -> bool:
    """Whether a value is immutable: vertices share the template's object, which is not part of a state."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_setting, value))
    dataclass_ = getattr(type(value), "__dataclass_params__", None)
    return isinstance(value, _ATOMS) or callable(value) or (dataclass_ is not None and dataclass_.frozen)


def own_values(vertex: Vertex, template: Vertex) -> list[Any]:
    """The values of a vertex that are neither its template's own objects nor its context."""
    initial = vars(template)
    return [
        value
        for name, value in vars(vertex).items()
        if name != "_context" and (name not in initial or value is not initial[name])
    ]


def instance(template: Vertex) -> Vertex:
    """A new vertex: a copy of the template that shares its settings, but no state."""
    vertex = copy.copy(template)
    if isinstance(template, Stateless):
        return vertex
    for name, value in vars(template).items():
        if not _is_setting(value):
            setattr(vertex, name, copy.deepcopy(value))
    return vertex
