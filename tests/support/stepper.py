"""The real driver, operator, log and source of a flow, without a JVM, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pyarrow as pa

from tests.support import engine
from timely_spark.runtime.handle.query import Query
from timely_spark.worker import ROWS


class Stepper(engine.Process):
    """A process of the engine's, on this thread: what Spark does for a batch, one call after the other."""

    def poll(self) -> dict[str, Any] | None:
        """Ask for the next batch's end, and write it to Spark's offset log; None: there is nothing to do."""
        start = self.world.offset(self.next - 1) or self.reader.initial_offset()
        for reader in self.reader.readers.values():
            reader.look_again()
        end = self.reader.latest_offset(start)
        if end == start:
            return None
        self.world.plan_batch(self.next, end)
        return end

    def run(self) -> engine.Frame:
        """Run the operator on the batch that was planned; may be done again."""
        n = self.next
        start = self.world.offset(n - 1) or self.reader.initial_offset()
        shares = self.reader.shares(start, self.world.offset(n))
        read = [batch for share in shares for batch in self.reader.read(share)]
        return engine.Frame(self.tasks(n, pa.Table.from_batches(read, schema=ROWS)), self)

    def finish(self, frame: engine.Frame) -> None:
        """Call the driver, and commit."""
        self.driver(frame, self.next)  # type: ignore[arg-type]
        self.commit()

    def commit(self) -> None:
        self.world.add(f"commits/{self.next}", "v1\n{}")
        self.next += 1

    def batch(self) -> bool:
        """One batch, if there is something to do."""
        if self.poll() is None:
            return False
        self.finish(self.run())
        return True

    def batches(self) -> int:
        """All that there is to do; how many batches it took."""
        done = 0
        while self.batch():
            done += 1
            assert done < 200, "it does not come to rest"
        return done

    def feed(self, name: str, *records: Any, **epoch: Any) -> int:
        """Send records by a handle, and do all that there is to do."""
        self.handles[name].send(*records, **epoch)
        return self.batches()

    def query(self) -> Query:
        """The handle of the flow, which runs without Spark."""
        ended = mock.Mock(isActive=False, status={}, recentProgress=[], exception=lambda: None)
        return Query(ended, self.context, inputs=[], outputs=self.driver.outputs)


Begin = Callable[..., Stepper]
