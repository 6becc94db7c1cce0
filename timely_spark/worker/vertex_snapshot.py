"""`VertexSnapshot`: a vertex's checkpoint: the full state and, if logged, the invocations since then.

Naiad section 3.4: a vertex writes its full state, or a log of its inputs with a full checkpoint now and then.
A log has a few segments, each more than twice as large as the next, and merged as they grow. So the bytes
written in a round are proportional, amortised, to the input of the round.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.graph import Stateless, Vertex
from timely_spark.worker.codec import (
    BlobRef,
    Chunk,
    Codec,
    as_text,
    from_text,
    pack_parts,
    size_of,
    unpack_parts,
)
from timely_spark.worker.keys import from_bytes, to_bytes

LOG_BYTES = 64 << 10
"""A log may grow to this size, however small the state in full is."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a vertex: a batch on input `edge`, or, without a batch, a notification."""

    time: Any
    #: the oldest epoch at the time of the call, which a replay must see again
    since: int
    edge: int = 0
    batch: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class VertexSnapshot:
    """One vertex's last checkpoint."""

    #: the full state; None: that of the template
    full: Chunk | None = None
    #: the blobs that `full` refers to in turn, with their sizes
    kept: Mapping[bytes, int] = field(default_factory=dict)
    #: segments of the calls since; each more than twice as large as the next
    log: tuple[Chunk, ...] = ()

    @property
    def references(self) -> dict[bytes, int]:
        """All blobs of the snapshot, with their sizes."""
        pieces = [piece for piece in (self.full, *self.log) if isinstance(piece, BlobRef)]
        return {**self.kept, **{piece.reference: piece.size for piece in pieces}}

    @property
    def full_size(self) -> int:
        """Bytes of the state in full, blobs included."""
        return (size_of(self.full) if self.full is not None else 0) + sum(self.kept.values())

    @property
    def log_size(self) -> int:
        """Bytes of the log."""
        return sum(map(size_of, self.log))

    def apart(self, codec: Codec) -> VertexSnapshot:
        """This snapshot with a large full state moved to a blob; later rounds write a reference only."""
        return replace(self, full=codec.put(self.full)) if self.full is not None else self

    def logged(self, calls: Sequence[Invocation], codec: Codec) -> VertexSnapshot | None:
        """This snapshot with further invocations; None if the full state is as small as that log."""
        log: list[Chunk] = [*self.log, _segment(calls)]
        while len(log) > 1 and size_of(log[-2]) < 2 * size_of(log[-1]):
            log[-2:] = [_merged([codec.get(piece) for piece in log[-2:]])]
        if sum(map(size_of, log)) > max(self.full_size, LOG_BYTES):
            return None
        return replace(self.apart(codec), log=tuple(map(codec.put, log)))

    def calls(self, codec: Codec) -> Iterator[Invocation]:
        """The calls of the log, in order."""
        for piece in self.log:
            head, *tables = unpack_parts(codec.get(piece))
            batches = iter(tables)
            for edge, time, since in json.loads(bytes(head)):
                batch = from_bytes(next(batches)) if edge is not None else None
                yield Invocation(codec.times.decode(time), since, edge or 0, batch)

    def encode(self, parts: list[Any]) -> list[Any]:
        """As plain JSON; what lies in the state itself is added to `parts`."""
        kept = dict(zip(as_text(self.kept), self.kept.values(), strict=True))
        full = None if self.full is None else encode_piece(self.full, parts)
        return [full, kept, [encode_piece(piece, parts) for piece in self.log]]

    @classmethod
    def decode(cls, said: Sequence[Any], parts: Sequence[Any]) -> VertexSnapshot:
        """The reverse."""
        full, kept, log = said
        return cls(
            None if full is None else decode_piece(full, parts),
            dict(zip(from_text(kept), kept.values(), strict=True)),
            tuple(decode_piece(piece, parts) for piece in log),
        )


def encode_piece(piece: Chunk, parts: list[Any]) -> Any:
    """Where a piece is: its number among `parts`, to which it is added, or its reference and size."""
    if isinstance(piece, BlobRef):
        return piece.encode()
    parts.append(piece)
    return len(parts) - 1


def decode_piece(said: Any, parts: Sequence[Any]) -> Chunk:
    """The reverse."""
    if isinstance(said, list):
        return BlobRef.decode(said)
    part: bytes = parts[said]
    return part


def _segment(calls: Sequence[Invocation]) -> bytes:
    head = [[None if c.batch is None else c.edge, c.time.encode(), c.since] for c in calls]
    return _pack(head, [to_bytes(c.batch) for c in calls if c.batch is not None])


def _merged(segments: Sequence[Any]) -> bytes:
    head: list[Any] = []
    tables: list[Any] = []
    for segment in segments:
        one, *its = unpack_parts(segment)
        head += json.loads(bytes(one))
        tables += its
    return _pack(head, tables)


def _pack(head: list[Any], tables: Sequence[Any]) -> bytes:
    return pack_parts([json.dumps(head, separators=(",", ":")).encode(), *tables])


# -- templates -----------------------------------------------------------------------------------------------


def changed(vertex: Vertex, template: Vertex) -> dict[str, Any]:
    """What `checkpoint` gives, less what is still the template's very object: functions and settings.

    Where the user wrote `restore` himself it gets all that his `checkpoint` gave.
    """
    state, initial = dict(vertex.checkpoint()), vars(template)
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
    """Whether a value never changes: all workers may share it, and the very same object is no state."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_setting, value))
    kind: Any = type(value)
    return isinstance(value, _ATOMS) or callable(value) or (is_dataclass(kind) and _frozen(kind))


def _frozen(kind: Any) -> bool:
    frozen: bool = kind.__dataclass_params__.frozen
    return frozen


def instance(template: Vertex) -> Vertex:
    """A copy of a template with state of its own."""
    vertex = copy.copy(template)
    if isinstance(template, Stateless):
        return vertex
    for name, value in vars(template).items():
        if not _is_setting(value):
            setattr(vertex, name, copy.deepcopy(value))
    return vertex
