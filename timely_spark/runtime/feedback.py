"""The feedback source: the loop's back edge, and the way in for handles. One Python process per query.

Its offset is `{"round": M, "inputs": {name: k}}`: manifest M and the inputs' entries up to k have been read.
A manifest without rows does not become an offset, so an idle flow runs no batches, and under `availableNow`
the query stops by itself at quiescence. (Spark asks AvailableNow sources to freeze their end at the start;
here the end is "until nothing is left to do", which is what a loop means by it.)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from timely_spark.errors import LogDamaged
from timely_spark.runtime.entries import entry_size, read_entry, remove_entry
from timely_spark.runtime.files import quoted
from timely_spark.runtime.log import FIRST
from timely_spark.runtime.rest import rest
from timely_spark.runtime.run_context import RunContext
from timely_spark.worker import pack_input
from timely_spark.worker.columns import by_column

Offset = dict[str, Any]

#: What one batch takes from one input at most; the rest waits for the next batch.
MAX_ENTRIES, MAX_BYTES = 1000, 64 << 20
#: Seconds between two answers of "nothing new", growing from nothing over the first to the second while idle.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.16


def feedback_source(path: Sequence[str]) -> type[DataSource]:
    """Spark's view of it, for a driver that imports modules from `path`.

    Spark creates a data source in one Python process on the driver's machine, which has the session's
    --py-files on its path, and reads from the data source in another process, which has not. So the class
    needs nothing but PySpark to be unpickled: it is defined in a function, which makes cloudpickle ship its
    code, and its methods import what they use. An instance carries the path of the process that created it,
    and the driver's, to the process that reads.
    """

    class FeedbackSource(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            import sys

            super().__init__(options)
            self.path = [*sys.path, *path]

        @classmethod
        def name(cls) -> str:
            return "timely_feedback"

        def schema(self) -> str:
            self.extend_path()
            from timely_spark.runtime.run_context import ROWS_DDL

            return ROWS_DDL

        def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
            self.extend_path()
            from timely_spark.runtime.feedback import FeedbackReader
            from timely_spark.runtime.run_context import RunContext

            return FeedbackReader(RunContext.from_option(self.options["site"]))

        def extend_path(self) -> None:
            import sys

            sys.path += [entry for entry in self.path if entry not in sys.path]

    return FeedbackSource


class FeedbackReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Answers Spark's polls from the log, without listing it."""

    def __init__(self, site: RunContext) -> None:
        self.site, self.log = site, site.log
        #: Newest manifest known to exist.
        self._newest = FIRST
        #: A manifest known to have no rows.
        self._barren: int | None = None
        self._pause = 0.0
        self._to_the_end = False
        #: Offsets of committed batches, the oldest of which says what can go.
        self._committed: deque[Offset] = deque()
        #: Per input: the oldest entry that may still be there.
        self._oldest: dict[str, int] = {}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Run to quiescence: there is nobody to wait for, so no pauses."""
        self._to_the_end = True

    def initialOffset(self) -> Offset:  # noqa: N802
        """Before the first manifest and all entries."""
        return {"round": FIRST - 1, "inputs": dict.fromkeys(self.site.inputs, -1)}

    def read(self, start: Offset) -> tuple[Iterator[Any], Offset]:
        """Everything new, and where that ends.

        Raises:
            LostOwnership: another run has taken the checkpoint: what is new is for that one.
        """
        rest(self.site)
        end = self._end(start)
        if end == start:
            end = self._asked(start) if self._to_the_end else self._wait(start)
        with self.site.reporting():
            self.log.check_owner()
        if end == start:
            return iter([]), start
        self._pause = 0.0
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Offset, end: Offset) -> Iterator[Any]:  # noqa: N802
        """Exactly the rows between two offsets; also after a restart, in another process.

        Only the last manifest counts: each holds all that the next round reads, and none with rows is ever
        skipped.
        """
        tables = []
        if end["round"] != start["round"]:
            if (rows := self.log.feedback(end["round"])) is None:
                raise LogDamaged.no_manifest(self.log.files.root, end["round"] + 1)
            tables.append(rows)
        for name, last in end["inputs"].items():
            first = start["inputs"].get(name, -1) + 1
            if first <= last and name in self.site.inputs:  # the flow may have had others before
                tables.append(self._packed(name, range(first, last + 1)))
        batches = self.site.labelled(pa.concat_tables(tables)).to_batches() if tables else []
        return iter(batches)  # an iterator that copy.copy can take: Spark's wrapper does

    def commit(self, end: Offset) -> None:
        """Batches up to `end` are committed: entries that no retained batch can read again go."""
        self._committed.append(end)
        if len(self._committed) <= self.site.keep:
            return
        done = self._committed.popleft()
        for name, last in done["inputs"].items():
            if name not in self._oldest:
                self._oldest[name] = min(
                    self.log.files.numbers(f"inputs/{quoted(name)}"), default=0
                )  # once per run
            for number in range(
                self._oldest[name], last
            ):  # `last` stays: it tells a restarted handle where it stands
                remove_entry(self.log, name, number)
            self._oldest[name] = max(self._oldest[name], last)

    def _end(self, start: Offset) -> Offset:
        """The offset of all that is there now."""
        known = max(self._newest, start["round"])
        newest = self.log.newest(known)
        if (newest is None or newest < known) and not self.log.has(known):  # the newest is never pruned
            self._damaged(LogDamaged.no_manifest(self.log.files.root, known))
        if newest is not None and newest != self._newest:
            # a batch has run: not idle, and the answer to the first poll after it comes at once
            self._newest, self._pause = newest, 0.0
        batch = start["round"]
        if self._newest > batch and self._newest != self._barren:
            manifest = self.log.read(self._newest)
            if manifest is not None and manifest.runnable:
                batch = self._newest
            else:
                self._barren = self._newest
        return start | {
            "round": batch,
            # those of inputs that the flow has no longer stay: they may come back
            "inputs": start["inputs"] | {name: self._last(name, start) for name in sorted(self.site.inputs)},
        }

    def _asked(self, start: Offset) -> Offset:
        """Until nothing is left, and nothing is: asks the driver whether the sources have anything left.

        Only Spark knows that. So the question is an offset of its own, which makes a batch: if that batch has
        brought nothing from any source, all that is available has been read, and the driver ends the epochs
        of columns that have begun. By Spark's log, so that the answer is the same when the batch runs again.
        If it has brought something, the question comes again later.
        """
        columns = [source.name for source in self.site.plan.inputs if by_column(source.epochs)]
        if not columns or start.get("asked") == self._newest:
            return start
        if (manifest := self.log.read(self._newest)) is None:
            return start
        stand, begun = manifest.coordinator["inputs"], manifest.coordinator["begun"]
        if any(stand[name] is not None and stand[name] <= begun for name in columns):
            return start | {"asked": self._newest}
        return start

    def _last(self, name: str, start: Offset) -> int:
        last: int = start["inputs"].get(name, -1)
        first, size = last + 1, 0
        for number in range(first, first + MAX_ENTRIES):
            found = entry_size(self.log, name, number)
            if found is None or ((size := size + found) > MAX_BYTES and number > first):  # a large one, alone
                break
            last = number
        if self._to_the_end or self._pause >= LONGEST_PAUSE:
            self._check_next(name, last + 1)
        return last

    def _check_next(self, name: str, number: int) -> None:
        """Checks that no entry is missing before another: the input would stand still."""
        later = entry_size(self.log, name, number + 1)
        if later is not None and entry_size(self.log, name, number) is None:
            self._damaged(LogDamaged.no_file(self.log.files.root, f"inputs/{quoted(name)}/{number}.arrow"))

    def _damaged(self, error: LogDamaged) -> None:
        with self.site.reporting():
            self.log.check_owner()  # a later run may remove what is this one's
            raise error

    def _wait(self, start: Offset) -> Offset:
        """A pause that ends at once when a handle sends; it grows while nothing happens.

        It also holds back Spark's polls of the flow's other sources (Spark asks them one after the other),
        which is why it stays short.
        """
        until = time.monotonic() + self._pause
        beat = max(0.002, self._pause / 8)
        self._pause = min(max(2 * self._pause, SHORTEST_PAUSE), LONGEST_PAUSE)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(beat, left))
            if self.site.inputs and (end := self._end(start)) != start:
                return end
        return start

    def _packed(self, name: str, numbers: range) -> pa.Table:
        found = ((number, read_entry(self.log, name, number)) for number in numbers)
        with self.site.reporting():
            return pack_input(
                self.site.plan, name, [(number, e.kind, e.epoch, e.table) for number, e in found]
            )
