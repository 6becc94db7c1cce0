"""What may still arrive at a vertex from outside its worker's round: half of the rule of notifications.

A notification at (vertex, t) may be delivered when (a) nothing its worker holds could result in (vertex, t),
and (b) nothing anywhere that crosses at least one exchange could. Workers ask for (a) and (b), the driver
asks for (b) alone, to know whom to wake.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from timely_spark.worker.plan import Node, Plan, Source


def standing(source: Source, position: int | None, batch_id: int) -> tuple[int | None, int | None]:
    """Where an input stands after batch `batch_id`, and the least epoch of the data that came with it.

    By the clock the batch itself is the epoch, used up whether or not the input brought rows. A closed input
    is None.
    """
    if position is None:
        return None, None
    return (batch_id + 1, batch_id) if source.epochs == "clock" else (position, position)


def blocking(
    plan: Plan,
    node: Node,
    header: Mapping[str, Any],
    open_: Mapping[str, int | None],
    present: Mapping[str, int | None],
) -> list[Any]:
    """The least times at which something may still come to `node` from outside the round and worker.

    Three kinds: what may arrive over an exchange (the header knows); an input that is still open, which
    blocks along every path; and the data of this very batch, which lies at its first vertex on every worker,
    and blocks by paths with an exchange.
    """
    reach = plan.reach
    times = [plan.times.decode(time) for time in header["arrivals"].get(str(node.index), ())]
    anywhere, exchanged = reach.summaries(node.arrives), reach.exchanged(node.arrives)
    for source in plan.inputs:
        for paths, epoch in ((anywhere, open_[source.name]), (exchanged, present[source.name])):
            if epoch is None:
                continue
            for index in source.entries:
                channel = plan.channels[index]
                entered = channel.summary.results_in(plan.times.epoch(epoch))
                if entered is None:
                    continue
                reached = (
                    path.results_in(entered) for path in paths.get(plan.nodes[channel.target].arrives, ())
                )
                times.extend(time for time in reached if time is not None)
    return times
