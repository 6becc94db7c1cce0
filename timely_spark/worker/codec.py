"""State as bytes: plain values as tagged JSON, tables and arrays as Arrow beside it.

Nothing is unpickled, but for vertices that opt in and say why (`Vertex.pickles`).
"""

from __future__ import annotations

import base64
import json
import pickle
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from timely_spark.errors import LogDamaged, StateError
from timely_spark.times import Times
from timely_spark.worker.arrangement import Arrangement, Batch
from timely_spark.worker.frozen import fields_of, is_frozen, made_again, qualified, reachable
from timely_spark.worker.keys import from_bytes, to_bytes

#: what a defaultdict may make of its own accord
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple, Counter)
}
_PLAIN = (str, int, float, bool, type(None))


class Blobs(Protocol):
    """Where large parts of a state are kept. A reference is bytes."""

    def put(self, what: str, data: bytes) -> bytes:
        """Keep `data`; `what` may become part of a name. Gives the reference."""
        ...

    def get(self, reference: bytes) -> Any:
        """What was kept, as a buffer."""
        ...


def as_text(references: Iterable[bytes]) -> list[str]:
    """References as JSON can hold them."""
    return [reference.decode("latin-1") for reference in references]


def from_text(texts: Iterable[str]) -> list[bytes]:
    """The reverse."""
    return [text.encode("latin-1") for text in texts]


#: so large a part of a state is kept by itself
KEPT_BYTES = 64 << 10
#: batches of arrangements that this process has validated: large, and read again in every round. A reference
#: tells the content, so the same one is the same batch
_validated: dict[bytes, None] = {}
_MOST = 1 << 14


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Bytes that are kept apart."""

    reference: bytes
    size: int

    def encode(self) -> list[Any]:
        """As plain JSON."""
        return [*as_text([self.reference]), self.size]

    @classmethod
    def decode(cls, said: Sequence[Any]) -> BlobRef:
        """The reverse."""
        text, size = said
        (reference,) = from_text([text])
        return cls(reference, size)


Chunk: TypeAlias = bytes | memoryview | BlobRef
"""Bytes of a state: at hand, or kept apart."""


def size_of(piece: Chunk) -> int:
    """Bytes of a piece."""
    return piece.size if isinstance(piece, BlobRef) else len(piece)


class Codec:
    """Write and read values of a flow's state.

    What it takes: None, bool, int, float, str, bytes, list, tuple, set, frozenset, dict (any such keys),
    Counter, defaultdict, deque, datetime, date, time, timedelta, Decimal, the flow's times, numpy arrays and
    scalars, Arrow tables and record batches, pandas frames and series, and `Arrangement`s. And, for a vertex,
    the frozen dataclasses to which its class refers, with such fields: see `frozen`.

    With `blobs`, a large batch of an arrangement is put there once, and only referred to from then on: so
    what is written is what has changed. `kept` has the references in what was last written, and their sizes.

    Any other value is refused, or, where a vertex says why it `pickles`, pickled. Unpickling runs code that
    the bytes name: so it is left to the reader's own word too, whatever the bytes say.

    Example:
        >>> from timely_spark.times import PRODUCT, Time
        >>> codec = Codec(PRODUCT)
        >>> codec.read(codec.write({"seen": {(1, "a"), (2, "b")}, "at": Time(3, 0)}))["at"]
        Time(3, 0)

    Raises:
        StateError: a value is of another type.
    """

    def __init__(self, times: Times, blobs: Blobs | None = None) -> None:
        self.times, self.blobs = times, blobs
        self.kept: dict[bytes, int] = {}
        #: where the batches lie that were written or read here
        self._references: WeakKeyDictionary[Batch, BlobRef] = WeakKeyDictionary()
        #: what new blobs are called, and how many are called so
        self._what, self._number = "", 0
        #: whether to write all in one piece, even so
        self.whole = False
        self.time_type = type(times.epoch(0))
        #: why what is being written or read may be pickled; and the class of the vertex whose state it is
        self._pickles = ""
        self._vertex: type = object

    def call_blobs(self, what: str) -> None:
        """New blobs are called `what` from now on, with a number behind it."""
        self._what, self._number = what, 0

    def write(self, value: Any, *, pickles: str = "", vertex: type = object) -> bytes:
        """The bytes of one value. `pickles`: why what is of another type may be pickled; empty: it may not.

        `vertex`: the class of the vertex whose state the value is.

        Raises:
            StateError: a part is of another type and may not be pickled, or cannot.
        """
        self._pickles, self._vertex = pickles, vertex
        blobs: list[bytes] = []
        self.kept = {}
        head = json.dumps(self._encode(value, blobs), separators=(",", ":"))
        return pack_parts([head.encode(), *blobs])

    def read(self, data: Any, *, pickles: str = "", vertex: type = object) -> Any:
        """The value of bytes that `write` gave.

        Raises:
            StateError: a part is pickled, and nothing says why it might be.
        """
        self._pickles, self._vertex = pickles, vertex
        head, *blobs = unpack_parts(data)
        return self._decode(json.loads(bytes(head)), blobs)

    def put(self, piece: Chunk) -> Chunk:
        """The same bytes, kept apart if they are many and may be."""
        if isinstance(piece, BlobRef) or self.blobs is None or self.whole or len(piece) < KEPT_BYTES:
            return piece
        return self._put(self.blobs, bytes(piece))

    def get(self, piece: Chunk) -> Any:
        """The bytes of a piece, as a buffer.

        Raises:
            StateError: they are kept apart, and there is no place to look.
        """
        if not isinstance(piece, BlobRef):
            return piece
        if self.blobs is None:
            msg = "state refers to blobs, and none are at hand. Hint: read it where it was written."
            raise StateError(msg)
        return self.blobs.get(piece.reference)

    def _put(self, blobs: Blobs, data: bytes) -> BlobRef:
        self._number += 1
        return BlobRef(blobs.put(f"{self._what}-{self._number}", data), len(data))

    def _encode(self, value: Any, blobs: list[bytes]) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case per type
        if isinstance(value, self.time_type):
            return {"time": value.encode()}
        if isinstance(value, _PLAIN) and not isinstance(value, tuple):
            return value
        if isinstance(value, list):
            return [self._encode(item, blobs) for item in value]
        if isinstance(value, pa.Table | pa.RecordBatch):
            table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
            return {"table": self._blob(to_bytes(table), blobs)}
        if isinstance(value, Arrangement):
            rows = [[self._part(part, blobs) for part in row] for row in (value.recent, *value.lanes)]
            return {"arrangement": [list(value.keys), list(value.within), value.cuts, rows]}
        if type(value) in (np.ndarray, np.memmap) and value.dtype.kind != "V":
            if value.dtype.hasobject:
                return {
                    "array": [
                        list(value.shape),
                        "O",
                        [self._encode(item, blobs) for item in value.ravel().tolist()],
                    ]
                }
            return {
                "array": [
                    list(value.shape),
                    value.dtype.str,
                    self._blob(np.ascontiguousarray(value).tobytes(), blobs),
                ]
            }
        if isinstance(value, np.datetime64 | np.timedelta64):
            return {"moment": [value.dtype.str, int(value.astype(np.int64))]}
        if isinstance(value, np.generic) and type(value.item()) in (*_PLAIN, bytes):
            return self._encode(value.item(), blobs)
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if type(value) is tuple:
            return {"tuple": [self._encode(item, blobs) for item in value]}
        if is_frozen(type(value)) and reachable(self._vertex).get(qualified(type(value))) is type(value):
            fields = {name: self._encode(part, blobs) for name, part in fields_of(value).items()}
            return {"dataclass": [qualified(type(value)), fields]}
        if isinstance(value, deque):
            return {"deque": [value.maxlen, [self._encode(item, blobs) for item in value]]}
        if (said := _moment(value)) is not None:
            return said
        if isinstance(value, set | frozenset):
            # sorted by their text, so that equal sets give equal bytes
            items = sorted((self._encode(item, blobs) for item in value), key=json.dumps)
            return {type(value).__name__: items}
        if isinstance(value, Mapping):
            items = [[self._encode(key, blobs), self._encode(item, blobs)] for key, item in value.items()]
            if isinstance(value, Counter):
                return {"counter": items}
            factory: Any = value.default_factory if isinstance(value, defaultdict) else None
            if factory in _FACTORIES.values():
                return {"defaultdict": [factory.__name__, items]}
            return {"dict": items}
        if (
            type(value).__module__.startswith("pandas.")
            and hasattr(value, "to_numpy")
            and hasattr(value, "iloc")
        ):
            if hasattr(value, "columns"):
                return {"frame": self._blob(to_bytes(pa.Table.from_pandas(value)), blobs)}
            table = pa.Table.from_pandas(value.to_frame(name="value"))
            return {"series": [self._encode(value.name, blobs), self._blob(to_bytes(table), blobs)]}
        return {"pickle": self._blob(self._pickled(value), blobs)}

    def _pickled(self, value: Any) -> bytes:
        kind = type(value).__name__
        if not self._pickles:
            plain = "plain values, times, numpy arrays, Arrow tables, or a frozen dataclass of them"
            if isinstance(value, tuple):
                plain = "tuple(value)"
            elif is_frozen(type(value)):
                plain = f"it with a type hint of {self._vertex.__name__} that names the class {kind}"
            elif is_dataclass(value):
                plain = f"a frozen dataclass: write @dataclass(frozen=True) for {kind}"
            msg = (
                f"a value of type {kind} cannot be kept as state. "
                f"Hint: keep {plain}, or write checkpoint() and restore() for the vertex; or say in its "
                "attribute `pickles` why it must be pickled."
            )
            raise StateError(msg)
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            msg = (
                f"a value of type {kind} cannot be pickled: {error}. "
                "Hint: leave it out of what checkpoint() gives, and make it anew in restore()."
            )
            raise StateError(msg) from error

    def _unpickled(self, data: Any) -> Any:
        if not self._pickles:
            msg = (
                "the state holds something pickled, and the vertex does not say why it might. "
                "Hint: unpickling runs the code that the bytes name; if you trust whoever can write to the "
                "checkpoint, say why you need it in the vertex's attribute `pickles`."
            )
            raise StateError(msg)
        return pickle.loads(data)

    def _part(self, part: Batch, blobs: list[bytes]) -> Any:
        if self.blobs is None or self.whole or part.table.nbytes < KEPT_BYTES:
            return {"table": self._blob(to_bytes(part.table), blobs)}
        if (kept := self._references.get(part)) is None:
            kept = self._references[part] = self._put(self.blobs, to_bytes(part.stored()))
        self.kept[kept.reference] = kept.size
        return {"kept": kept.encode(), "distinct": part.distinct}

    def _read_part(self, of: Arrangement, value: Any, blobs: list[memoryview]) -> Batch:
        if "kept" not in value:
            table = self._decode(value, blobs)
            return Batch.of(of.hashes(table), table)
        kept = BlobRef.decode(value["kept"])
        try:
            table = from_bytes(self.get(kept), validate=kept.reference not in _validated)
        except (pa.ArrowException, OSError) as error:
            where = "a worker's state"
            raise LogDamaged.unreadable(where, kept.reference.decode(errors="replace"), error) from error
        _validated[kept.reference] = None
        if len(_validated) > _MOST:
            _validated.pop(next(iter(_validated)), None)
        part = Batch.restored(table, distinct=value["distinct"])
        self._references[part] = kept
        return part

    def _items(self, pairs: Any, blobs: list[memoryview]) -> dict[Any, Any]:
        return {self._decode(key, blobs): self._decode(item, blobs) for key, item in pairs}

    @staticmethod
    def _blob(data: bytes, blobs: list[bytes]) -> int:
        blobs.append(data)
        return len(blobs) - 1

    def _decode(self, value: Any, blobs: list[memoryview]) -> Any:  # noqa: C901, PLR0911, PLR0912
        if isinstance(value, list):
            return [self._decode(item, blobs) for item in value]
        if not isinstance(value, dict):
            return value
        ((tag, content),) = value.items()
        match tag:
            case "time":
                return self.times.decode(content)
            case "moment":
                return np.array(content[1], np.int64).view(content[0])[()]
            case "deque":
                return deque((self._decode(item, blobs) for item in content[1]), content[0])
            case "datetime" | "timeofday":
                kind = datetime if tag == "datetime" else time
                moment = kind.fromisoformat(content[0]).replace(fold=content[2])
                return moment if content[1] is None else moment.replace(tzinfo=ZoneInfo(content[1]))
            case "date":
                return date.fromisoformat(content)
            case "timedelta":
                return timedelta(*content)
            case "decimal":
                return Decimal(content)
            case "table":
                return from_bytes(blobs[content])
            case "arrangement":
                keys, within, cuts, rows = content
                made = Arrangement(keys, within=within)
                made.cuts = cuts
                made.recent, *made.lanes = (
                    [self._read_part(made, part, blobs) for part in row] for row in rows
                )
                return made
            case "array":
                shape, kind, data = content
                if kind == "O":
                    array = np.empty(len(data), object)
                    array[:] = [self._decode(item, blobs) for item in data]
                    return array.reshape(shape)
                return np.frombuffer(blobs[data], np.dtype(kind)).reshape(shape).copy()
            case "bytes":
                return base64.b64decode(content)
            case "tuple":
                return tuple(self._decode(item, blobs) for item in content)
            case "set":
                return {self._decode(item, blobs) for item in content}
            case "frozenset":
                return frozenset(self._decode(item, blobs) for item in content)
            case "dict":
                return self._items(content, blobs)
            case "counter":
                return Counter(self._items(content, blobs))
            case "defaultdict":
                return defaultdict(_FACTORIES[content[0]], self._items(content[1], blobs))
            case "dataclass":
                fields = {name: self._decode(part, blobs) for name, part in content[1].items()}
                return made_again(self._vertex, content[0], fields)
            case "frame":
                return from_bytes(blobs[content]).to_pandas()
            case "series":
                series = from_bytes(blobs[content[1]]).to_pandas()["value"]
                return series.rename(self._decode(content[0], blobs))
            case "pickle":
                return self._unpickled(blobs[content])
        msg = f"state holds an unknown form {tag!r}. Hint: the checkpoint was written by a newer version."
        raise StateError(msg)


def _moment(value: Any) -> Any:
    """A date, a time, a span or a decimal as tagged JSON; None for anything else, subclasses included."""
    if type(value) is datetime or type(value) is time:
        zone = getattr(value.tzinfo, "key", None)
        if value.tzinfo is not None and zone is None and type(value.tzinfo) is not timezone:
            return None
        plain = value if zone is None else value.replace(tzinfo=None)
        tag = "datetime" if type(value) is datetime else "timeofday"
        return {tag: [plain.isoformat(), zone, value.fold]}
    if type(value) is date:
        return {"date": value.isoformat()}
    if type(value) is timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    return {"decimal": str(value)} if type(value) is Decimal else None


def pack_parts(parts: Sequence[bytes | memoryview]) -> bytes:
    """Several byte strings as one, each on an 8-byte boundary, so that Arrow can read them in place."""
    sizes = [len(part) for part in parts]
    head = len(parts).to_bytes(8, "little") + b"".join(size.to_bytes(8, "little") for size in sizes)
    return b"".join([head, *(piece for part in parts for piece in (part, b"\0" * (-len(part) % 8)))])


def unpack_parts(data: Any) -> list[memoryview]:
    """The byte strings of `pack_parts`, without copying.

    Raises:
        ValueError: there are fewer bytes than the head says.
    """
    view = memoryview(data)
    count = int.from_bytes(view[:8], "little")
    parts, at = [], 8 + 8 * count
    if at > len(view):
        msg = f"{len(view)} bytes are no head of {count} parts"
        raise ValueError(msg)
    for i in range(count):
        size = int.from_bytes(view[8 + 8 * i : 16 + 8 * i], "little")
        if at + size > len(view):
            msg = f"part {i} ends at {at + size} of {len(view)} bytes"
            raise ValueError(msg)
        parts.append(view[at : at + size])
        at += size + (-size % 8)
    return parts
