"""State as bytes: plain values as tagged JSON, tables and arrays as Arrow beside it. Nothing is unpickled."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Protocol
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from timely_spark.errors import StateError
from timely_spark.times import Times
from timely_spark.worker.arrangement import Arrangement, Batch
from timely_spark.worker.keys import from_bytes, hashes, to_bytes

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


#: so large a batch of an arrangement is kept by itself
KEPT_BYTES = 64 << 10


class Codec:
    """Write and read values of a flow's state.

    What it takes: None, bool, int, float, str, bytes, list, tuple, set, frozenset, dict (any such keys),
    Counter, defaultdict, deque, datetime, date, time, timedelta, Decimal, the flow's times, numpy arrays and
    scalars, Arrow tables and record batches, pandas frames and series, and `Arrangement`s.

    With `blobs`, a large batch of an arrangement is put there once, and only referred to from then on: so
    what is written is what has changed. `kept` has the references in what was last written.

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
        self.kept: list[bytes] = []
        #: where the batches lie that were written or read here
        self._references: WeakKeyDictionary[Batch, bytes] = WeakKeyDictionary()
        #: what new blobs are called; with a number behind it
        self.what = ""
        #: whether to write all in one piece, even so
        self.whole = False
        self.time_type = type(times.epoch(0))

    def write(self, value: Any) -> bytes:
        """The bytes of one value."""
        blobs: list[bytes] = []
        self.kept = []
        head = json.dumps(self._encode(value, blobs), separators=(",", ":"))
        return pack_parts([head.encode(), *blobs])

    def read(self, data: Any) -> Any:
        """The value of bytes that `write` gave."""
        head, *blobs = unpack_parts(data)
        return self._decode(json.loads(bytes(head)), blobs)

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
            return {"arrangement": [list(value.keys), [self._part(part, blobs) for part in value.parts]]}
        if isinstance(value, np.ndarray):
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
        if isinstance(value, np.generic):
            return self._encode(value.item(), blobs)
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        if isinstance(value, tuple):
            if type(value) is not tuple:
                msg = (
                    f"a {type(value).__name__} cannot be kept as state: it would come back as a plain tuple. "
                    "Hint: keep tuple(value), or write checkpoint() and restore() for the vertex."
                )
                raise StateError(msg)
            return {"tuple": [self._encode(item, blobs) for item in value]}
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
            frame = value if hasattr(value, "columns") else value.to_frame(name="value")
            return {
                "pandas": [
                    hasattr(value, "columns"),
                    self._blob(to_bytes(pa.Table.from_pandas(frame)), blobs),
                ]
            }
        msg = (
            f"a value of type {type(value).__name__} cannot be kept as state. "
            "Hint: keep plain values, times, numpy arrays or Arrow tables, "
            "or write checkpoint() and restore() for the vertex."
        )
        raise StateError(msg)

    def _part(self, part: Batch, blobs: list[bytes]) -> Any:
        if self.blobs is None or self.whole or part.table.nbytes < KEPT_BYTES:
            return {"table": self._blob(to_bytes(part.table), blobs)}
        if (reference := self._references.get(part)) is None:
            reference = self.blobs.put(f"{self.what}-{len(self.kept)}", to_bytes(part.stored()))
            self._references[part] = reference
        self.kept.append(reference)
        return {"kept": [*as_text([reference]), part.distinct]}

    def _read_part(self, value: Any, keys: tuple[str, ...], blobs: list[memoryview]) -> Batch:
        if "kept" not in value:
            table = self._decode(value, blobs)
            return Batch.of(hashes(table, keys), table)
        if self.blobs is None:
            msg = "state refers to blobs, and none are at hand. Hint: read it where it was written."
            raise StateError(msg)
        text, distinct = value["kept"]
        (reference,) = from_text([text])
        part = Batch.restored(from_bytes(self.blobs.get(reference)), distinct=distinct)
        self._references[part] = reference
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
                made = Arrangement(tuple(content[0]))
                made.parts = [self._read_part(part, made.keys, blobs) for part in content[1]]
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
            case "pandas":
                frame = from_bytes(blobs[content[1]]).to_pandas()
                return frame if content[0] else frame["value"]
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


def pack_parts(parts: list[bytes]) -> bytes:
    """Several byte strings as one, each on an 8-byte boundary, so that Arrow can read them in place."""
    sizes = [len(part) for part in parts]
    head = len(parts).to_bytes(8, "little") + b"".join(size.to_bytes(8, "little") for size in sizes)
    return b"".join([head, *(piece for part in parts for piece in (part, b"\0" * (-len(part) % 8)))])


def unpack_parts(data: Any) -> list[memoryview]:
    """The byte strings of `pack_parts`, without copying."""
    view = memoryview(data)
    count = int.from_bytes(view[:8], "little")
    parts, at = [], 8 + 8 * count
    for i in range(count):
        size = int.from_bytes(view[8 + 8 * i : 16 + 8 * i], "little")
        parts.append(view[at : at + size])
        at += size + (-size % 8)
    return parts
