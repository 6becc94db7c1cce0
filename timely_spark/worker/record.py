"""Recorded rounds: files with the input and the results of a worker's round, to run it again elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from timely_spark.compiler.plan import Plan
from timely_spark.errors import StorageFailed
from timely_spark.graph import path_text
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.bounds import parse_json
from timely_spark.state.codec import pack_parts, unpack_parts
from timely_spark.worker.round import Budget, Worker, step
from timely_spark.worker.wire import Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The input and the results of one worker's round, as `start(record=folder)` writes them.

    The law: a round is a function, so `again` has the same results in another process, for example under a
    debugger, as long as the flow and its number of workers are the same.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("recorded")
        >>> _ = flow.input("x", "n long").capture("out")
        >>> for one in ts.testing.recorded("/no/such/folder"):
        ...     state, out = one.again(flow.compile(workers=2))
        ...     assert state == one.new_state and out.equals(one.out)
    """

    batch: int
    #: the number of the round in its batch
    round: int = 0
    worker: int
    header: Header
    state: bytes | None
    rows: pa.Table
    new_state: bytes
    out: pa.Table

    @classmethod
    def of_step(
        cls,
        worker: Worker,
        batch: int,
        rows: pa.Table,
        header: Header | None,
        budget: Budget | None = None,
        *,
        number: int = 0,
    ) -> Recorded:
        """Run a worker's round, and record it."""
        before = worker.checkpoint(inline=True)
        out = worker.step(batch, rows, header, budget)
        return cls(
            batch=batch,
            round=number,
            worker=worker.worker,
            header=worker.header,
            state=before,
            rows=rows,
            new_state=worker.checkpoint(inline=True),
            out=out,
        )

    def write(self, folder: str) -> None:
        """Write the round to a file of its own."""
        head = json.dumps([self.batch, self.round, self.worker, self.header.encode(), self.state is None])
        parts = [head.encode(), self.state or b"", to_bytes(self.rows), self.new_state, to_bytes(self.out)]
        file = Path(folder, f"{self.batch:08}-{self.round:04}-{self.worker:04}.round")
        with StorageFailed.owning(f"record={folder!r}: {file}"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(pack_parts(parts))

    @classmethod
    def read(cls, file: Path) -> Recorded:
        """The round that `write` wrote."""
        head, state, rows, new_state, out = unpack_parts(file.read_bytes())
        batch, round_, worker, header, first = parse_json(bytes(head))
        return cls(
            batch=batch,
            round=round_,
            worker=worker,
            header=Header.decode(header),
            state=None if first else bytes(state),
            rows=from_bytes(rows),
            new_state=bytes(new_state),
            out=from_bytes(out),
        )

    def again(self, plan: Plan) -> tuple[bytes, pa.Table]:
        """Run the round again, by the flow's plan; returns the new state and the worker's rows."""
        state, out = step(plan, self.state, self.batch, self.worker, self.rows, self.header)
        return Worker(plan, state, self.worker).checkpoint(inline=True), out


def recorded(folder: str) -> list[Recorded]:
    """The rounds of a run on Spark that was started with ``record=folder``, in order.

    Example:
        >>> recorded("/no/such/folder")
        []
    """
    place = Path(path_text(folder, "give the folder of start(record=...).", what="folder"))
    return [Recorded.read(file) for file in sorted(place.glob("*.round"))]
