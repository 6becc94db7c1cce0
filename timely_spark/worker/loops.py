"""Counts of loop iterations and of the records that loop limits drop; notices; and bounds from `cancel`.

A worker reads loop counters from the times of the batches that it delivers. Its report has the highest
counter of each loop, sample records of loops with very many iterations, and counts of dropped records. The
coordinator adds the reports up, gives notices, and keeps the bounds that `cancel` sets on running loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from timely_spark.compiler.plan import Channel, Node, Plan
from timely_spark.errors import GraphError, LimitReached, excerpt, with_hint
from timely_spark.graph import Kind, Scope, caller
from timely_spark.times import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A warning about a loop.

    >>> print(Notice(kind="iterations", loop="hops", where="job.py:3", epoch=7, iteration=10000, rows="[1]"))
    loop 'hops' (job.py:3) has reached iteration 10000 in epoch 7; records: [1]
    Hint: let the loop drop repeated records, as distinct or min do; or bound it with max_iterations, \
or with cancel(7)
    """

    #: "iterations": a loop has very many iterations; "limit" or "canceled": its limit, or the bound that
    #: `cancel` set, dropped records
    kind: str
    loop: str
    #: the user's line that made the loop
    where: str
    epoch: int
    iteration: int
    #: how many records the limit dropped
    records: int = 0
    #: some of the records, as text
    rows: str

    def __str__(self) -> str:
        place = f"loop {self.loop!r} ({self.where})"
        if self.kind != "iterations":
            cause, hint = {
                "limit": (
                    "at its limit",
                    "raise max_iterations, or say on_limit='return' if the loop is meant to end there",
                ),
                "canceled": (
                    "by cancel",
                    "the bound stays, for later epochs and restarts, until the loop gets another name",
                ),
            }[self.kind]
            text = (
                f"{place} ended {cause} after {self.iteration} iterations of epoch {self.epoch}: "
                f"{self.records} records were dropped, among them {self.rows}"
            )
            return with_hint(text, hint)
        hint = (
            "let the loop drop repeated records, as distinct or min do; or bound it with max_iterations, "
            f"or with cancel({self.epoch})"
        )
        text = f"{place} has reached iteration {self.iteration} in epoch {self.epoch}; records: {self.rows}"
        return with_hint(text, hint)

    def encode(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


class Iterations:
    """Loop iterations, and records dropped by loop limits, of one worker in one round."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = plan.warn_after if _numbered(plan.times) else None
        #: by vertex, the loops around it from the outermost to the innermost
        self.loops = [node.stage.scope.path[1:] for node in plan.nodes]
        self._bounds: Mapping[str, int] = {}
        #: path summaries of channels under these bounds; None: no time gets through
        self._bounded: dict[int, Any] = {}

    def begin(self, bounds: Mapping[str, int]) -> None:
        """Begin a round with these bounds."""
        #: by loop the highest counter
        self.reached: dict[str, int] = {}
        #: by loop and epoch, the counter of a loop with very many iterations, and sample records
        self.far: dict[tuple[str, int], list[Any]] = {}
        #: by loop and epoch, the iteration and number of the dropped records, and sample records
        self.dropped: dict[tuple[str, int], list[Any]] = {}
        if bounds != self._bounds:
            self._bounds, self._bounded = bounds, {}

    def enter(self, node: Node, key: tuple[Any, ...], time: Any, table: pa.Table | None, steps: int) -> bool:
        """Count the iteration of the next delivery; False: end the round before the delivery.

        A round ends at each multiple of `plan.warn_after` iterations, so that the driver hears of a loop
        which never leaves its worker.
        """
        if self.every is None:
            return True
        continues = True
        for loop, counter in zip(self.loops[node.index], key[2::2], strict=False):
            if counter > self.reached.get(loop.name, -1):
                self.reached[loop.name] = counter
            if counter >= self.every and counter // self.every > self._mark(loop, time):
                if steps and counter % self.every == 0:
                    continues = False
                else:
                    self.far[loop.name, time.epoch] = [counter, "" if table is None else excerpt(table)]
        return continues

    def _mark(self, loop: Scope, time: Any) -> int:
        counter: int = self.far.get((loop.name, time.epoch), [0])[0]
        return counter // (self.every or 1)

    def arrival(self, channel: Channel, time: Any) -> Any | None:
        """The time at which a batch sent over a channel arrives; None: a loop's limit or bound drops it."""
        if not self._bounds:
            return channel.summary.results_in(time)
        if channel.index not in self._bounded:
            self._bounded[channel.index] = _bounded_summary(self.plan, channel, self._bounds)
        summary = self._bounded[channel.index]
        return None if summary is None else summary.results_in(time)

    def drop(self, node: Node, loop: Scope, time: Any, table: pa.Table) -> None:
        """Count records that a loop's limit drops.

        Raises:
            LimitReached: the loop was made with ``on_limit="raise"``.
        """
        if not table.num_rows:
            return
        iteration = 1 + _counter(loop, time)
        if loop.on_limit == "raise" and loop.name not in self._bounds:
            raise LimitReached.of(
                loop.name, loop.where, node.name, epoch=time.epoch, iteration=iteration, rows=excerpt(table)
            )
        counts = self.dropped.setdefault((loop.name, time.epoch), [iteration, 0, excerpt(table)])
        counts[1] += table.num_rows

    def report(self) -> dict[str, Any]:
        """The round's counts for the coordinator, as plain JSON."""
        return {
            "reached": self.reached,
            "far": [[*key, *values] for key, values in self.far.items()],
            "cut": [[*key, *values] for key, values in self.dropped.items()],
        }


def _bounded_summary(plan: Plan, channel: Channel, bounds: Mapping[str, int]) -> Any | None:
    """A channel's path summary under bounds of loops; None: no time gets through."""
    times = plan.times
    summary: Any = times.identity(channel.edges[0].source.scope.depth)
    for edge in channel.edges:
        stage, following = edge.target, edge.target.summary
        if stage.kind is Kind.FEEDBACK and stage.scope.name in bounds:
            limits = [bounds[stage.scope.name], *([] if stage.scope.limit is None else [stage.scope.limit])]
            following = times.feedback(stage.scope.depth, min(limits))
        summary = summary.followed_by(following)
        if summary is None:
            return None
    return summary


def limiting_loop(channel: Channel) -> Scope | None:
    """The loop whose feedback a channel crosses, if any."""
    return next((edge.target.scope for edge in channel.edges if edge.target.kind is Kind.FEEDBACK), None)


def _counter(loop: Scope, time: Any) -> int:
    """The iteration of a time; records that enter the loop with this message have none yet."""
    counter: Any = time.order_key()[loop.depth :][:1]
    return counter[0] if counter and isinstance(counter[0], int) else 0


def _numbered(times: Times) -> bool:
    """Whether loop counters are numbers; in user-defined times they may be any values."""
    return isinstance(times.enter(0).results_in(times.epoch(0)).order_key()[1], int)  # type: ignore[union-attr]


class Loops:
    """The loops of a flow, as the coordinator counts them.

    Example:
        >>> loops = Loops({"hops": ("job.py:3", "warn")}, every=10)
        >>> report = {"reached": {"hops": 10}, "far": [["hops", 0, 10, "[(1,)]"]], "cut": []}
        >>> [notice.iteration for notice in loops.enter([report])], loops.enter([report])
        ([10], [])
    """

    def __init__(self, loops: Mapping[str, tuple[str, str]], *, every: int | None) -> None:
        #: by name the user's line, and `on_limit`
        self.loops, self.every = loops, every
        #: by loop the highest counter that any time has had
        self.reached: dict[str, int] = {}
        #: by canceled loop the highest counter that a time may still have
        self.bounds: dict[str, int] = {}
        #: records that limits have dropped, by loop, since the flow began
        self.dropped: Counter[str] = Counter()
        #: by kind, loop and epoch, the counter of the last notice in multiples of `every`
        self.noticed: dict[tuple[str, str, int], int] = {}

    @classmethod
    def of(cls, plan: Plan) -> Loops:
        """The loops of a plan that has not run."""
        scopes = {scope for stage in plan.stages for scope in stage.scope.path[1:]}
        return cls({s.name: (str(s.where), s.on_limit) for s in scopes}, every=plan.warn_after)

    def enter(self, reports: Iterable[Mapping[str, Any]]) -> list[Notice]:
        """Enter the workers' reports of one round; returns new notices."""
        notices: list[Notice] = []
        dropped: dict[tuple[str, int], list[Any]] = {}
        for report in reports:
            for loop, counter in report["reached"].items():
                self.reached[loop] = max(counter, self.reached.get(loop, 0))
            for loop, epoch, counter, rows in report["far"]:
                mark = counter // self.every if self.every else 0
                if mark > self.noticed.get(("iterations", loop, epoch), 0):
                    self.noticed["iterations", loop, epoch] = mark
                    notices.append(self._notice("iterations", loop, epoch, counter, rows=rows))
            for loop, epoch, iteration, records, rows in report["cut"]:
                self.dropped[loop] += records
                dropped.setdefault((loop, epoch), [iteration, 0, rows])[1] += records
        for (loop, epoch), (iteration, records, rows) in dropped.items():
            warns = self.loops[loop][1] == "warn" or loop in self.bounds
            if warns and ("limit", loop, epoch) not in self.noticed:
                self.noticed["limit", loop, epoch] = 1
                kind = "canceled" if loop in self.bounds else "limit"
                notices.append(self._notice(kind, loop, epoch, iteration, rows=rows, records=records))
        return notices

    def _notice(
        self, kind: str, loop: str, epoch: int, iteration: int, *, rows: str, records: int = 0
    ) -> Notice:
        return Notice(
            kind=kind,
            loop=loop,
            where=self.loops[loop][0],
            epoch=epoch,
            iteration=iteration,
            records=records,
            rows=rows,
        )

    def cancel(self, epoch: int, pointstamps: Iterable[tuple[tuple[Scope, ...], Any]]) -> None:
        """Bound the loops in which an epoch is active by the highest counter that any time has had.

        Args:
            epoch: the epoch.
            pointstamps: all active times, each with the loops around its location.
        """
        running: set[str] = set()
        for loops, time in pointstamps:
            for loop, counter in zip(loops, time.order_key()[1:], strict=True):
                if isinstance(counter, int):
                    self.reached[loop.name] = max(counter, self.reached.get(loop.name, 0))
                    if time.epoch == epoch:
                        running.add(loop.name)
        for name in running - set(self.bounds):
            self.bounds[name] = self.reached[name]

    def forget(self, oldest: int) -> None:
        """Forget the notices of epochs before `oldest`, which are complete."""
        self.noticed = {key: mark for key, mark in self.noticed.items() if key[2] >= oldest}

    def encode(self) -> dict[str, Any]:
        """The counts and bounds as plain JSON."""
        return {
            "reached": self.reached,
            "bounds": self.bounds,
            "cut": dict(self.dropped),
            "told": [[*key, mark] for key, mark in self.noticed.items()],
        }

    def restore(self, encoded: Mapping[str, Any]) -> None:
        """Restore what `encode` gave, without loops that were removed from the flow."""
        self.reached = {name: at for name, at in encoded["reached"].items() if name in self.loops}
        self.bounds = {name: at for name, at in encoded["bounds"].items() if name in self.loops}
        self.dropped = Counter({name: n for name, n in encoded["cut"].items() if name in self.loops})
        self.noticed = {(kind, loop, epoch): mark for kind, loop, epoch, mark in encoded["told"]}


def with_warn_after(plan: Plan, after: int | None) -> Plan:
    """The plan with another `warn_after`.

    Raises:
        GraphError: `after` is not a positive whole number.
    """
    if after is not None and (type(after) is not int or after < 1):
        msg = f"warn_after={after!r}"
        raise GraphError(
            msg, where=caller(), hint="give a whole number of at least 1, or None for no warnings."
        )
    return replace(plan, warn_after=after)


def notices_to_log(notices: Iterable[Mapping[str, Any]], every: int | None) -> list[Notice]:
    """The notices to log: of a loop with many iterations, one whenever the number has doubled."""
    decoded = [Notice(**notice) for notice in notices]
    marks = [notice.iteration // (every or 1) for notice in decoded]
    return [
        n for n, mark in zip(decoded, marks, strict=True) if n.kind != "iterations" or not mark & (mark - 1)
    ]
