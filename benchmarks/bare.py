"""The bare loop: one streaming query of the same shape as a flow's, written with PySpark alone.

A Python source reads the last batch's marker file, a groupBy by worker feeds an operator that does nothing
but send on what it is meant to, and foreachBatch writes the next marker by rename. As many rows of the same
schema travel as in the flow it is compared with. It knows no times, no progress and no recovery: it is the
least that any loop in Structured Streaming can cost.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

ROWS_DDL = "worker int, kind string, meta string, payload binary"
ROWS = pa.schema(
    [("worker", pa.int32()), ("kind", pa.string()), ("meta", pa.string()), ("payload", pa.binary())]
)
#: Texts as long as those of a flow.
MESSAGE = json.dumps({"channel": 3, "from": 0, "time": [0, 100]}, separators=(",", ":"))
HEADER = json.dumps(
    {"arrivals": {}, "batch": 100, "inputs": {"tokens": 100}, "oldest": 0}, separators=(",", ":")
)
REPORT = json.dumps(
    {"advance": {}, "deltas": [[5, [0, 100], -1], [5, [0, 101], 1]], "late": {}, "left": 0, "pending": []}
    | {
        "seen": {},
        "stats": {"bytes": 16, "records": 1, "records_sent": 1, "sent": 1, "steps": 3},
        "ticks": [],
    },
    separators=(",", ":"),
)


#: As long as the reference of a state that holds nothing.
STATE = bytes(64)


def _payload() -> bytes:
    table = pa.table({"key": pa.array([0], pa.int64()), "left": pa.array([100], pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


PAYLOAD = _payload()


@dataclass(frozen=True)
class Markers:
    """The marker files: `<batch>.arrow` holds what batch + 1 reads; they appear whole, and without gaps."""

    root: str

    def path(self, batch: int) -> Path:
        return Path(self.root, f"{batch}.arrow")

    def write(self, batch: int, rows: pa.Table) -> None:
        temporary = Path(self.root, f".{uuid.uuid4().hex}.tmp")
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, ROWS) as writer:
            writer.write_table(rows)
        temporary.replace(self.path(batch))

    def read(self, batch: int) -> pa.Table:
        return pa.ipc.open_file(pa.memory_map(str(self.path(batch)))).read_all()


class MarkerSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bare_loop"

    def schema(self) -> str:
        return ROWS_DDL

    def simpleStreamReader(self, schema: StructType) -> MarkerReader:  # noqa: N802
        return MarkerReader(self.options["path"], float(self.options["pause"]))


class MarkerReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offers the newest marker as long as it has rows."""

    def __init__(self, root: str, pause: float) -> None:
        self.markers, self.pause = Markers(root), pause
        self.newest = -1

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.pause = 0.0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"round": -2}

    def read(self, start: dict[str, int]) -> tuple[Iterator[Any], dict[str, int]]:
        self.newest = max(self.newest, start["round"])
        while self.markers.path(self.newest + 1).exists():
            self.newest += 1
        if self.newest <= start["round"] or not self.markers.read(self.newest).num_rows:
            time.sleep(self.pause)  # idle: leaves the processor to the loop that is measured now
            return iter([]), start
        end = {"round": self.newest}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[Any]:  # noqa: N802
        # Spark's first batch comes before there is anything to read
        return iter(self.markers.read(end["round"]).to_batches() if end != start else [])

    def commit(self, end: dict[str, int]) -> None:
        pass


class BareLoop:
    """The query, and foreachBatch's function. With one worker a `clock` (any stream) drives it."""

    def __init__(
        self,
        root: Path,
        labels: tuple[int, ...],
        *,
        clock: DataFrame | None = None,
        on_write: Callable[..., None] = lambda write, batch, rows: write(batch, rows),
    ) -> None:
        self.root, self.labels, self.clock, self.on_write = root, labels, clock, on_write
        self.markers = Markers(str(root / "markers"))
        self.headers = self._rows("header", HEADER, None)
        self.last = self.until = -1
        self.idle = threading.Event()
        if not (root / "markers").exists():
            (root / "markers").mkdir(parents=True)
            self.markers.write(-1, ROWS.empty_table())

    def _rows(self, kind: str, meta: str, payload: bytes | None) -> pa.Table:
        rows = [{"worker": w, "kind": kind, "meta": meta, "payload": payload} for w in self.labels]
        return pa.Table.from_pylist(rows, schema=ROWS)

    def start(self, session: SparkSession) -> StreamingQuery:
        session.dataSource.register(MarkerSource)
        pause = 0.16 if self.clock is None else 0.0
        rows = session.readStream.format("bare_loop").option("pause", pause).load(self.markers.root)
        if self.clock is not None:
            rows = rows.unionAll(self.clock.mapInArrow(packer(self.labels[0]), ROWS_DDL))
        worked = rows.groupBy("worker").applyInPandasWithState(
            operator(self.labels), ROWS_DDL, "format int, manifest binary", "append", "NoTimeout"
        )
        writer = worked.writeStream.outputMode("append").foreachBatch(self)
        return writer.option("checkpointLocation", str(self.root / "checkpoint")).start()

    def spin(self, iterations: int, timeout: float) -> bool:
        """Sends one message round per worker for so many batches; whether it came to rest in time."""
        self.until = self.last + iterations
        self.idle.clear()
        rows = pa.concat_tables([self._rows("message", MESSAGE, PAYLOAD), self.headers])
        self.markers.write(self.last, rows)
        return self.idle.wait(timeout)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.toArrow().cast(ROWS)
        messages = rows.filter(pc.equal(rows["kind"], "message"))
        on = messages.num_rows > 0 and batch < self.until
        rows = pa.concat_tables([messages, self.headers]) if on else ROWS.empty_table()
        self.on_write(self.markers.write, batch, rows)
        self.last = batch
        if not on:
            self.idle.set()


def operator(labels: tuple[int, ...]) -> Callable[[Any, Iterator[pd.DataFrame], Any], Iterator[pd.DataFrame]]:
    successor = dict(zip(labels, [*labels[1:], labels[0]], strict=True))

    def empty(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        for _ in frames:
            pass
        if not state.exists:
            state.update((1, STATE))
        out = [(key[0], "report", REPORT, None), (key[0], "state", "{}", STATE)]
        if len(labels) > 1:
            out.append((successor[key[0]], "message", MESSAGE, PAYLOAD))
        yield pd.DataFrame(out, columns=ROWS.names)

    return empty


def packer(label: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        row = {"worker": label, "kind": "input", "meta": MESSAGE, "payload": PAYLOAD}
        yield pa.RecordBatch.from_pylist([row], schema=ROWS)

    return pack
