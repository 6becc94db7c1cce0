"""`pointstamps`: the active pointstamps of a flow, with Naiad's counts (section 2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import UnknownName
from timely_spark.graph import caller
from timely_spark.progress import Tracker, precursors
from timely_spark.runtime.handle.inspection import inspect
from timely_spark.times.refined import time_text

if TYPE_CHECKING:
    from timely_spark.methods import Query

_SCHEMA = pa.schema(
    [
        ("step", pa.string()), ("where", pa.string()), ("place", pa.string()), ("time", pa.string()),
        ("occurrences", pa.int64()), ("precursors", pa.int64()),
    ]
)  # fmt: skip


def pointstamps(self: Query, *, round: int | None = None) -> pa.Table:
    """The active pointstamps after a batch, with occurrence and precursor counts (Naiad section 2.3).

    A pointstamp is a time at a place: of messages for a step that were not delivered, of capabilities that a
    step holds for notifications, and of inputs that are open. Its precursor count is that of the others which
    could result in it; if it is 0, the pointstamp is in the frontier. `start(log_to=...)` also logs how the
    counts change, round by round.

    Args:
        round: the batch, one that is retained; by default the last one.

    **Columns:** step string, where string (the user's line), place string ("messages", "capabilities" or
    "open input"; with declared summaries also of which input), time string, occurrences long, precursors
    long.

    Example:
        >>> {stamp["place"] for stamp in query.pointstamps().to_pylist()}
        {'open input'}

    Raises:
        BadArgument: `round` is not an integer.
        UnknownName: the round is not retained, or is of the flow before it was changed.
    """
    plan, manifest = self._context.plan, inspect(self.checkpoint).at(round).manifest
    if manifest.plan != plan.fingerprint:
        msg = f"round {manifest.batch} of flow {plan.name!r} is of the flow before it was changed"
        raise UnknownName(msg, where=caller(), hint="ask for a round of this run.")
    tracker = Tracker.decode(plan.reach, plan.times, manifest.coordinator["tracker"])
    counts: dict[tuple[int, Any], int] = dict(tracker.active)
    entries = {(location + plan.reach.n, time): n for (location, time), n in tracker.inputs.items()}
    before = precursors(plan.reach, [*counts, *tracker.inputs])
    rows = [
        {
            "step": plan.places[place][0],
            "where": str(plan.owners[place % plan.reach.n].stage.where),
            "place": plan.places[place][1],
            "time": time_text(time.encode()),
            "occurrences": n,
            "precursors": before[place % plan.reach.n, time],
        }
        for (place, time), n in (counts | entries).items()
    ]
    return pa.Table.from_pylist(rows, _SCHEMA)
