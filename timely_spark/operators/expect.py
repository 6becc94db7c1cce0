"""`expect`: a condition that records must meet, with counts of those that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.errors import TimelyError, excerpt
from timely_spark.graph import Expression, Vertex, operator, word
from timely_spark.operators.retractions import retractions_in
from timely_spark.operators.rows import Passing, check_predicate, text_of
from timely_spark.operators.sql import expression
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

Action: TypeAlias = Literal["keep", "drop", "quarantine", "fail"]


class Expect(Vertex):
    """Send the records that meet a condition by output 0; count them and the others."""

    reads_time, keeps_signs, checks_records = False, True, True

    def __init__(self, predicate: Any, action: Action, diff: str | None) -> None:
        self.passing, self.action = Passing(predicate), action
        self.condition = text_of(predicate)
        #: the column of the records' multiplicities; None if each counts once
        self.diff = diff
        # with multiplicities the records of a time may have come at earlier times
        self.per_time = diff is None

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        passes = pc.fill_null(self.passing(batch), fill_value=False)
        failing = batch.filter(pc.invert(passes))
        inserted = failing if self.diff is None else failing.filter(pc.field(self.diff) > 0)
        if self.action == "fail" and inserted.num_rows:
            hint = 'correct the input; or go on without such records: expect(..., action="quarantine").'
            msg = f"{self.condition} is expected, and is not true of {excerpt(inserted)}"
            raise TimelyError(msg, hint=hint)
        example = excerpt(inserted.slice(0, 1)) if inserted.num_rows else ""
        self._context.expected(time, self._number(batch), self._number(failing), example)
        self.send_by(0, time, batch if self.action == "keep" else batch.filter(passes))
        if self.action == "quarantine":
            self.send_by(1, time, failing)

    def _number(self, batch: pa.Table) -> int:
        return batch.num_rows if self.diff is None else int(np.sum(batch.column(self.diff).to_numpy()))


@operator(Stream)
def expect(
    stream: Stream,
    name: str,
    condition: str | Expression | Callable[[Any], bool],
    *,
    action: Action = "drop",
) -> Stream:
    """Check a condition of each record, and count the records that fail it; null counts as failed.

    `Query.status`, the console, the metrics and `Query.expectations` show the counts, which are exact after
    any crash; the log has a warning with the first record that fails.

    Args:
        name: what is expected: the step's name.
        condition: as the predicate of `where`.
        action: of a record that fails: "drop" leaves it out, "keep" only counts it, "quarantine" gives it
            to the stream `quarantined` of the result, "fail" ends the flow before its epoch is released.

    **Columns:** out as in, also of `quarantined`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("orders")
        >>> orders = flow.input("orders", "id long, amount long")
        >>> known = orders.expect("an id", "id IS NOT NULL")
        >>> paid = known.expect("an amount", "amount > 0", action="quarantine")
        >>> _ = paid.capture("paid"), paid.quarantined.capture("unpaid")
        >>> released = ts.testing.run(flow, {"orders": [[(1, 5), (2, 0), (None, 7)]]})
        >>> released["paid"].rows(), released["unpaid"].rows()
        ({0: [(1, 5)]}, {0: [(2, 0)]})
        >>> print(released.expectations["an amount"])
        1 of 2 records failed, first {'id': 2, 'amount': 0} in epoch 0

    Raises:
        SchemaError: the condition does not fit the columns.
        BadArgument: `action` is not one of these.
        VertexError: at run time: a record fails, and `action` is "fail".
    """
    retracted = retractions_in(stream)
    return expected(stream, name, condition, action, diff=retracted and retracted[1])


def expected(stream: Stream, name: str, condition: Any, action: Any, *, diff: str | None) -> Stream:
    """The step of an `expect`."""
    hint = "'keep' only counts the records that fail; see `expect` for the others."
    word("action", action, get_args(Action), step="expect", hint=hint)
    predicate = expression("expect", condition, stream.schema)
    check_predicate("expect", stream, predicate)
    return stream.then(
        "expect",
        [stream.schema] * (1 + (action == "quarantine")),
        name=name,
        vertex=Expect(predicate, action, diff),
        keeps={column: column for column in stream.schema.names},
        detail=f"{text_of(predicate)}, else {action}",
        quarantined=1 if action == "quarantine" else None,
        # the other actions send the same records on, so a restart may exchange them
        parameters={"keep": action == "keep"}
        | ({"predicate": str(predicate)} if isinstance(predicate, Expression) else {}),
    )[0]
