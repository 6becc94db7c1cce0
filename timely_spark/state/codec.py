"""State as bytes: plain values as tagged JSON, followed by tables as Arrow and arrays as plain bytes.

Values are pickled only for vertices that opt in with a reason (`Vertex.pickles`).
"""

from __future__ import annotations

import base64
import json
import pickle
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from timely_spark.errors import StateError
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.batch import Batch
from timely_spark.state.bounds import DEPTH, parse_json
from timely_spark.state.frozen import fields_of, is_frozen, qualified, reachable, restored
from timely_spark.times import Times

#: the default factories that a defaultdict may have
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple, Counter)
}
_PLAIN = (str, int, float, bool, type(None))
#: the tags of dicts; a defaultdict of another factory is a plain one
_DICTS: dict[type, str] = {dict: "dict", Counter: "counter", OrderedDict: "ordereddict", defaultdict: "dict"}
#: what subclasses of them add would be lost
_BASES = (tuple, list, dict, set, frozenset, deque, str, bytes, int, float)
#: the kinds of pandas' objects that Arrow gives back as they were
_UNIFORM = {"string", "bytes", "date", "datetime", "datetime64", "timedelta", "timedelta64", "empty"}
#: the kinds of numpy's scalars that are kept, and the types of their values
_SCALARS, _ITEMS = "biufSU", (*_PLAIN, bytes)


class BlobStore(Protocol):
    """A store of large parts of states. A reference is bytes."""

    def put(self, prefix: str, data: bytes) -> bytes:
        """Store `data`, perhaps with `prefix` in a file's name; returns the reference."""
        ...

    def get(self, reference: bytes) -> Any:
        """The stored bytes, as a buffer."""
        ...

    def table(self, reference: bytes) -> pa.Table:
        """The stored bytes as a table, validated."""
        ...


def as_text(references: Iterable[bytes]) -> list[str]:
    """References as texts for JSON."""
    return [reference.decode("latin-1") for reference in references]


def from_text(texts: Iterable[str]) -> list[bytes]:
    """The references that `as_text` encoded."""
    return [text.encode("latin-1") for text in texts]


#: parts of a state from this size on are written to blobs
BLOB_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob's reference and size."""

    reference: bytes
    size: int

    def encode(self) -> list[Any]:
        """The reference as plain JSON."""
        return [*as_text([self.reference]), self.size]

    @classmethod
    def decode(cls, encoded: Sequence[Any]) -> BlobRef:
        """The reference that `encode` gave."""
        text, size = encoded
        (reference,) = from_text([text])
        return cls(reference, size)


Chunk: TypeAlias = bytes | memoryview | BlobRef
"""Bytes of a state, in memory or in a blob."""


def chunk_size(chunk: Chunk) -> int:
    """The size of a chunk in bytes."""
    return chunk.size if isinstance(chunk, BlobRef) else len(chunk)


class Codec:
    """Encode and decode values of a flow's state.

    Types, not their subclasses: None, bool, int, float, str, bytes, list, tuple, set, frozenset, dict (with
    keys of these types), OrderedDict, Counter, defaultdict, deque, datetime, date, time, timedelta, Decimal,
    the flow's times, numpy arrays and scalars, Arrow tables and record batches, pandas frames and series,
    `Arrangement`s, and the frozen dataclasses to which a vertex's class refers (see `frozen`).

    With `blobs`, each large batch of an arrangement is written once, and later states refer to its blob. So
    a round writes the changed batches only.

    Other values are refused, or pickled if the vertex has a reason in `pickles`. Unpickling runs code that
    the bytes name, so reading needs the reason, too.

    Example:
        >>> from timely_spark.times import PRODUCT, Time
        >>> codec = Codec(PRODUCT)
        >>> codec.read(codec.write({"seen": {(1, "a"), (2, "b")}, "at": Time(3, 0)}))["at"]
        Time(3, 0)
    """

    def __init__(self, times: Times, blobs: BlobStore | None = None) -> None:
        self.times, self.blobs = times, blobs
        #: the sizes of the blobs that the last written value refers to, by reference
        self.blob_sizes: dict[bytes, int] = {}
        #: the blobs of batches that this codec has written or read
        self._references: WeakKeyDictionary[Batch, BlobRef] = WeakKeyDictionary()
        #: the bytes of small batches that this codec has written
        self._written: WeakKeyDictionary[Batch, bytes] = WeakKeyDictionary()
        #: the prefix of the names of new blobs, and the number of blobs with it
        self._prefix, self._number = "", 0
        #: whether to write without blobs
        self.inline = False
        self.time_type = type(times.epoch(0))
        #: the reason to pickle, and the class of the vertex, of the value that is being written or read
        self._pickles = ""
        self._vertex: type = object
        #: the binary parts of that value
        self._parts: list[Any] = []
        self._depth = 0

    def name_blobs(self, prefix: str) -> None:
        """Name new blobs `prefix` and a number from now on."""
        self._prefix, self._number = prefix, 0

    def write(self, value: Any, *, pickles: str = "", vertex: type = object) -> bytes:
        """Encode a value.

        Args:
            pickles: why values of other types may be pickled; they may not if it is empty.
            vertex: the class of the vertex that has the value in its state.
        """
        self._pickles, self._vertex = pickles, vertex
        self.blob_sizes, self._parts, self._depth = {}, [], 0
        head = self._encode(value)
        parts, self._parts = self._parts, []
        return pack_json(head, parts)

    def read(self, data: Any, *, pickles: str = "", vertex: type = object) -> Any:
        """Decode bytes that `write` gave."""
        self._pickles, self._vertex = pickles, vertex
        head, self._parts = unpack_json(data)
        try:
            value, self._parts = self._decode(head), []
        except RecursionError:
            msg = "a value is nested too deeply"
            raise ValueError(msg) from None
        return value

    def put(self, chunk: Chunk) -> Chunk:
        """Write a large chunk to a blob, if blobs are allowed."""
        if isinstance(chunk, BlobRef) or self.blobs is None or self.inline or len(chunk) < BLOB_BYTES:
            return chunk
        return self._put(self.blobs, bytes(chunk))

    def get(self, chunk: Chunk) -> Any:
        """The bytes of a chunk, as a buffer."""
        return self._store.get(chunk.reference) if isinstance(chunk, BlobRef) else chunk

    @property
    def _store(self) -> BlobStore:
        if self.blobs is None:
            msg = "state refers to blobs, and none are at hand"
            raise StateError(msg, hint="read it where it was written.")
        return self.blobs

    def _put(self, blobs: BlobStore, data: bytes) -> BlobRef:
        self._number += 1
        return BlobRef(blobs.put(f"{self._prefix}-{self._number}", data), len(data))

    def _encode(self, value: Any) -> Any:
        if isinstance(value, self.time_type):
            return {"time": value.encode()}
        if type(value) in _PLAIN:
            return value
        if self._depth == DEPTH:  # deeper ones could perhaps not be read
            msg = f"a state has a value that is nested more than {DEPTH} levels deep"
            hint = "keep its parts in one list or dict, and let them refer to each other by number or key."
            raise StateError(msg, hint=hint)
        self._depth += 1
        encoded = self._encode_parts(value)
        self._depth -= 1
        return encoded

    def _encode_parts(self, value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - a case per type
        if type(value) is list:
            return [self._encode(item) for item in value]
        if isinstance(value, pa.Table):
            return {"table": self._blob(to_bytes(value))}
        if isinstance(value, pa.RecordBatch):
            return {"batch": self._blob(to_bytes(pa.Table.from_batches([value])))}
        if isinstance(value, Arrangement):
            rows = [[self._part(part) for part in row] for row in (value.recent, *value.lanes)]
            return {"arrangement": [list(value.keys), list(value.within), value.cuts, rows]}
        if type(value) in (np.ndarray, np.memmap) and value.dtype.kind not in "VT":
            # sums of floats depend on the order in memory
            order: Any = "F" if value.flags.fnc else "C"
            if value.dtype.hasobject:
                kind, data = "O", self._encode(value.ravel(order).tolist())
            else:
                kind, data = value.dtype.str, self._blob(value.tobytes(order))
            return {"array": [list(value.shape), kind, data, order]}
        if isinstance(value, np.datetime64 | np.timedelta64):
            return {"moment": [value.dtype.str, int(value.astype(np.int64))]}
        if isinstance(value, np.generic) and value.dtype.kind in _SCALARS and type(value.item()) in _ITEMS:
            return {"scalar": [value.dtype.str, self._encode(value.item())]}
        if type(value) is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if type(value) is tuple:
            return {"tuple": [self._encode(item) for item in value]}
        if is_frozen(type(value)) and reachable(self._vertex).get(qualified(type(value))) is type(value):
            fields = {name: self._encode(part) for name, part in fields_of(value).items()}
            return {"dataclass": [qualified(type(value)), fields]}
        if type(value) is deque:
            return {"deque": [value.maxlen, [self._encode(item) for item in value]]}
        if (encoded := _encode_moment(value)) is not None:
            return encoded
        if type(value) in (set, frozenset):
            # sorted by text, so that equal sets have equal bytes
            items = sorted((self._encode(item) for item in value), key=json.dumps)
            return {type(value).__name__: items}
        # a field of a vertex that is another kind of dict stays one: see `Vertex.restore`
        if type(value) in _DICTS or (isinstance(value, dict) and self._depth == 2):
            items = [[self._encode(key), self._encode(item)] for key, item in value.items()]
            factory: Any = getattr(value, "default_factory", None)
            if factory in _FACTORIES.values():
                return {"defaultdict": [factory.__name__, items]}
            return {_DICTS.get(type(value), "dict"): items}
        if (
            type(value).__module__.startswith("pandas.")
            and hasattr(value, "to_numpy")
            and hasattr(value, "iloc")
        ):
            if hasattr(value, "columns"):
                return {"frame": self._encode_frame(value)}
            return {"series": [self._encode(value.name), self._encode_frame(value.to_frame(name="value"))]}
        return {"pickle": self._blob(self._pickled(value))}

    def _encode_frame(self, frame: Any) -> Any:
        """The columns of a pandas frame as Arrow; of objects that Arrow would change, name and values."""
        objects = [
            [place, self._encode(name), self._encode(column.tolist())]
            for place, (name, column) in enumerate(frame.items())
            if column.dtype == object and _kind_of(column) not in _UNIFORM
        ]
        others = {place for place, *_ in objects}
        rest = frame.iloc[:, [place for place in range(frame.shape[1]) if place not in others]]
        try:
            if frame.columns.nlevels == 1 and _kind_of(frame.columns).startswith("mixed"):
                msg = f"its columns {[*frame.columns]} have names of several types"
                raise TypeError(msg)  # noqa: TRY301 - one message for all errors
            data = self._blob(to_bytes(pa.Table.from_pandas(rest)))
        except (ValueError, TypeError, pa.ArrowException) as error:
            msg = f"a pandas frame or series cannot be kept as state: {error}"
            hint = "keep columns of plain types with different names; or an Arrow table, a list or a dict."
            raise StateError(msg, hint=hint) from error
        return [data, objects] if objects else data

    def _pickled(self, value: Any) -> bytes:
        kind = type(value).__name__
        if not self._pickles:
            plain = "plain values, times, numpy arrays, Arrow tables, or a frozen dataclass of them"
            if (base := next((each for each in _BASES if isinstance(value, each)), None)) is not None:
                plain = f"{base.__name__}(value)"
            elif is_frozen(type(value)):
                plain = f"it with a type hint of {self._vertex.__name__} that names the class {kind}"
            elif is_dataclass(value):
                plain = f"a frozen dataclass: write @dataclass(frozen=True) for {kind}"
            msg = f"a value of type {kind} cannot be kept as state"
            hint = (
                f"keep {plain}, or write checkpoint() and restore() for the vertex; or say in its attribute "
                "`pickles` why it must be pickled."
            )
            raise StateError(msg, hint=hint)
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:
            msg = f"a value of type {kind} cannot be pickled: {error}"
            hint = "leave it out of what checkpoint() gives, and build it again in restore()."
            raise StateError(msg, hint=hint) from error

    def _unpickled(self, data: Any) -> Any:
        if not self._pickles:
            msg = "the state holds something pickled, and the vertex does not say why it might"
            hint = (
                "unpickling runs the code that the bytes name; if you trust whoever can write to the "
                "checkpoint, say why you need it in the vertex's attribute `pickles`."
            )
            raise StateError(msg, hint=hint)
        return pickle.loads(data)

    def _part(self, part: Batch) -> Any:
        small = part.nbytes < BLOB_BYTES
        if self.blobs is None or self.inline or small:
            if (data := self._written.get(part)) is None:
                # without its hashes, unless it is packed: they take longer to write than to compute
                data = to_bytes(part.stored() if part.packed else part.table)
                if small:
                    self._written[part] = data
            if not part.packed:
                return {"table": self._blob(data)}
            return {"packed": self._blob(data), "distinct": part.distinct}
        if (blob := self._references.get(part)) is None:
            blob = self._references[part] = self._put(self.blobs, to_bytes(part.stored()))
        self.blob_sizes[blob.reference] = blob.size
        return {"kept": blob.encode(), "distinct": part.distinct}

    def _read_part(self, arrangement: Arrangement, value: Any) -> Batch:
        if "table" in value:
            table = self._decode(value)
            return Batch.of(arrangement.hashes(table), table)
        if "packed" in value:
            return Batch.restored(from_bytes(self._parts[value["packed"]]), distinct=value["distinct"])
        blob = BlobRef.decode(value["kept"])
        part = Batch.restored(self._store.table(blob.reference), distinct=value["distinct"])
        self._references[part] = blob
        return part

    def _items(self, pairs: Any) -> dict[Any, Any]:
        return {self._decode(key): self._decode(item) for key, item in pairs}

    def _frame(self, encoded: Any) -> Any:
        """A pandas frame of a state; integers beside missing values are objects, as they were."""
        data, objects = encoded if isinstance(encoded, list) else (encoded, ())
        frame = from_bytes(self._parts[data]).to_pandas(integer_object_nulls=True)
        for place, name, values in objects:
            column = np.empty(len(values), object)
            column[:] = self._decode(values)
            frame.insert(place, self._decode(name), column)
        return frame

    def _blob(self, data: bytes) -> int:
        self._parts.append(data)
        return len(self._parts) - 1

    def _decode(self, value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912
        if isinstance(value, list):
            return [self._decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((tag, content),) = value.items()
        match tag:
            case "time":
                return self.times.decode(content)
            case "moment":
                if (kind := np.dtype(content[0])).kind not in "mM":
                    msg = f"{kind} is not a type of dates or durations"
                    raise ValueError(msg)
                return np.array(content[1], np.int64).view(kind)[()]
            case "scalar":
                return np.dtype(content[0]).type(self._decode(content[1]))
            case "deque":
                return deque((self._decode(item) for item in content[1]), content[0])
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
                return from_bytes(self._parts[content])
            case "batch":
                table = from_bytes(self._parts[content]).combine_chunks()
                return (table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]
            case "arrangement":
                keys, within, cuts, rows = content
                arrangement = Arrangement(keys, within=within)
                arrangement.cuts = cuts
                arrangement.recent, *arrangement.lanes = (
                    [self._read_part(arrangement, part) for part in row] for row in rows
                )
                return arrangement
            case "array":
                shape, kind, data, order = content
                if kind == "O":
                    array = np.empty(len(data), object)
                    array[:] = self._decode(data)
                    return array.reshape(shape, order=order)
                return np.frombuffer(self._parts[data], np.dtype(kind)).reshape(shape, order=order).copy("K")
            case "bytes":
                return base64.b64decode(content)
            case "tuple":
                return tuple(self._decode(item) for item in content)
            case "set":
                return {self._decode(item) for item in content}
            case "frozenset":
                return frozenset(self._decode(item) for item in content)
            case "dict":
                return self._items(content)
            case "counter":
                return Counter(self._items(content))
            case "ordereddict":
                return OrderedDict(self._items(content))
            case "defaultdict":
                return defaultdict(_FACTORIES[content[0]], self._items(content[1]))
            case "dataclass":
                fields = {name: self._decode(part) for name, part in content[1].items()}
                return restored(self._vertex, content[0], fields)
            case "frame":
                return self._frame(content)
            case "series":
                series = self._frame(content[1])["value"]
                return series.rename(self._decode(content[0]))
            case "pickle":
                return self._unpickled(self._parts[content])
        msg = f"state holds an unknown form {tag!r}"
        raise StateError(msg, hint="start the newer version that wrote the checkpoint.")


def _kind_of(values: Any) -> str:
    """What kind of objects pandas finds in a column of them."""
    from pandas.api.types import infer_dtype  # not loaded with the package

    return str(infer_dtype(values, skipna=True))


def _encode_moment(value: Any) -> Any:
    """A date, time, timedelta or Decimal as tagged JSON; None for other values and for subclasses."""
    if type(value) is datetime or type(value) is time:
        zone = getattr(value.tzinfo, "key", None)
        if value.tzinfo is not None and zone is None and type(value.tzinfo) is not timezone:
            return None
        tag = "datetime" if type(value) is datetime else "timeofday"
        return {tag: [value.isoformat(), zone, value.fold]}
    if type(value) is date:
        return {"date": value.isoformat()}
    if type(value) is timedelta:
        return {"timedelta": [value.days, value.seconds, value.microseconds]}
    return {"decimal": str(value)} if type(value) is Decimal else None


def pack_parts(parts: Sequence[bytes | memoryview]) -> bytes:
    """Several byte strings as one, each on an 8-byte boundary, so that Arrow can read them in place."""
    sizes = [len(part) for part in parts]
    head = len(parts).to_bytes(8, "little") + b"".join(size.to_bytes(8, "little") for size in sizes)
    return b"".join([head, *(chunk for part in parts for chunk in (part, b"\0" * (-len(part) % 8)))])


def pack_json(head: Any, parts: Iterable[bytes | memoryview]) -> bytes:
    """JSON and byte strings as one."""
    return pack_parts([json.dumps(head, separators=(",", ":")).encode(), *parts])


def unpack_json(data: Any) -> tuple[Any, list[memoryview]]:
    """The JSON and the byte strings of `pack_json`."""
    head, *parts = unpack_parts(data)
    return parse_json(bytes(head)), parts


def unpack_parts(data: Any) -> list[memoryview]:
    """The byte strings of `pack_parts`, without copying."""
    view = memoryview(data)
    count = int.from_bytes(view[:8], "little")
    parts, at = [], 8 + 8 * count
    if at > len(view):
        msg = f"{len(view)} bytes are not the head of {count} parts"
        raise ValueError(msg)
    for i in range(count):
        size = int.from_bytes(view[8 + 8 * i : 16 + 8 * i], "little")
        if at + size > len(view):
            msg = f"part {i} ends at {at + size} of {len(view)} bytes"
            raise ValueError(msg)
        parts.append(view[at : at + size])
        at += size + (-size % 8)
    return parts
