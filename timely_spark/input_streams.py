"""`Input` and `Source`: the streams of a flow's inputs, and what only they have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timely_spark.errors import GraphError
from timely_spark.graph import as_table, caller
from timely_spark.streams import Stream
from timely_spark.worker.epoch_columns import by_column

if TYPE_CHECKING:
    from timely_spark.runtime.handle.input_handle import InputHandle


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Input(Stream):
    """A stream whose records the program sends. Records sent before the start wait for it.

    With ``epochs="manual"`` the program also ends epochs, by `advance_to` and `close`.

    Example:
        >>> import timely_spark as ts
        >>> numbers = ts.Dataflow("hello").input("numbers", "n long", epochs="manual")
        >>> numbers.send([1, 2])
        >>> numbers.advance_to(1)
        >>> numbers.epoch
        1
        >>> numbers.close()
    """

    source: str = ""
    """The input's name; inside a scope the stream has one of its own."""

    @property
    def handle(self) -> InputHandle:
        """The handle that sends."""
        return self.flow.handle(self.source)

    def send(self, records: Any, *, epoch: int | None = None) -> None:
        """Send records; they are durable when it returns, once the flow has started.

        Args:
            records: rows, a pandas frame or an Arrow table, with the columns of the input's schema.
            epoch: with manual epochs, an epoch that is not closed; by default the first such one.

        Raises:
            SchemaError: the records do not fit the schema.
            EpochClosed: the epoch, or the input, is closed; or `epoch` is given to an input by the clock.
            InvalidTime: `epoch` is not an epoch.
        """
        table = as_table(records, self.schema, of=f"input {self.source!r} ({caller()})")
        self.handle.send(table, epoch=epoch)

    def advance_to(self, epoch: int) -> None:
        """Close the epochs before `epoch`: outputs release each of them, also empty ones.

        If one micro-batch completes more than 100 empty epochs in a row, outputs release only the last one.

        Args:
            epoch: the first epoch that stays open, not below that of now.

        Raises:
            EpochClosed: `epoch` is closed already, or the input follows the clock.
            InvalidTime: `epoch` is not an epoch.
        """
        self.handle.advance_to(epoch)

    def close(self) -> None:
        """Close the input: no more records will be sent.

        Raises:
            EpochClosed: the input follows the clock.
        """
        self.handle.close()

    @property
    def epoch(self) -> int:
        """The first epoch that is not durably closed."""
        return self.handle.epoch


class Source(Stream):
    """A stream read from a DataFrame or from files."""

    __slots__ = ()

    @property
    def late(self) -> Stream:
        """The records that arrived after their epoch had ended, in the epoch that was open then.

        Raises:
            GraphError: the source has no epoch column.
        """
        if not by_column(self.stage.epochs):
            msg = f"late: source {self.name!r} has no epoch column"
            raise GraphError(msg, where=caller(), hint="declare it with source(..., epoch='column').")
        return Stream(self.flow, self.stage, 1)

    @property
    def quarantined(self) -> Stream:
        """The files or messages that could not be read, each once, in the epoch of those that came with it.

        With an epoch column they are in the epoch that is open then, as late records are. Crashes and
        restarts change nothing. In `testing.run` there are none, because nothing is read.

        **Columns:** out of files path string, size long, modified timestamp, reason string; of messages
        topic string, partition int, offset long, timestamp timestamp, key binary, value binary, and reason.

        Example:
            >>> import pathlib, tempfile, timely_spark as ts
            >>> flow = ts.Dataflow("edges")
            >>> folder, more = tempfile.mkdtemp(), {"schema": "src long", "on_bad_file": "quarantine"}
            >>> edges = flow.files("edges", folder, format="csv", **more)
            >>> edges.quarantined.select("path", "reason").capture("bad").schema.names
            ['path', 'reason']

        Raises:
            GraphError: the source does not quarantine.
        """
        return super().quarantined
