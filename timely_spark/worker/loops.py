"""How far loops go: counts of the iterations of each loop and epoch, and of the records that a limit drops.

A worker counts per loop, not per record: the times of what it delivers carry the loop counters. The report
has the highest counter of each loop, some records of loops that are suspiciously far, and how many records
did not pass a limit. The coordinator adds this up, decides what is worth a notice, and holds the bounds that
`cancel` puts on running loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from timely_spark.errors import GraphError, LimitReached, excerpt
from timely_spark.graph import Kind, Scope, caller
from timely_spark.times import Times
from timely_spark.worker.plan import Channel, Node, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that a user should know of a loop.

    >>> print(Notice(kind="iterations", loop="hops", where="job.py:3", epoch=7, iteration=10000, rows="[1]"))
    loop 'hops' (job.py:3) has come to iteration 10000 in epoch 7; what still changes: [1]
    Hint: let the loop drop what is known already, as distinct or min do; or bound it with max_iterations, \
or with cancel(7)
    """

    #: "iterations": a loop goes on and on; "limit": a loop's limit dropped records
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
        if self.kind == "limit":
            return (
                f"{place} ended at its limit after {self.iteration} iterations of epoch {self.epoch}: "
                f"{self.records} records were dropped, among them {self.rows}\n"
                "Hint: raise max_iterations, or say on_limit='return' if the loop is meant to end there"
            )
        return (
            f"{place} has come to iteration {self.iteration} in epoch {self.epoch}; what still changes: "
            f"{self.rows}\n"
            "Hint: let the loop drop what is known already, as distinct or min do; or bound it with "
            f"max_iterations, or with cancel({self.epoch})"
        )

    def encode(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


class Iterations:
    """The iterations that one worker makes in one round, and what the limits of loops drop there."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.every = plan.warn_after if _numbered(plan.times) else None
        #: by vertex, the loops around it from the outermost to the innermost
        self.loops = [node.stage.scope.path[1:] for node in plan.nodes]
        self._bounds: Mapping[str, int] = {}
        #: summaries of the channels that a bound makes shorter
        self._bounded: dict[int, Any] = {}

    def begin(self, bounds: Mapping[str, int]) -> None:
        """A round begins, under these bounds."""
        #: by loop the highest counter
        self.reached: dict[str, int] = {}
        self.far: dict[tuple[str, int], list[Any]] = {}
        self.cut: dict[tuple[str, int], list[Any]] = {}
        if bounds != self._bounds:
            self._bounds, self._bounded = bounds, {}

    def passes(self, node: Node, key: tuple[Any, ...], time: Any, table: pa.Table | None, steps: int) -> bool:
        """Count what is about to be delivered in a loop; False: the round is to end before it.

        So a loop that never leaves its worker does not keep a round to itself: at each multiple of
        `plan.warn_after` the driver gets to know of it.
        """
        if self.every is None:
            return True
        goes_on = True
        for loop, counter in zip(self.loops[node.index], key[2::2], strict=False):
            if counter > self.reached.get(loop.name, -1):
                self.reached[loop.name] = counter
            if counter >= self.every and counter // self.every > self._mark(loop, time):
                if steps and counter % self.every == 0:
                    goes_on = False
                else:
                    self.far[loop.name, time.epoch] = [counter, "" if table is None else excerpt(table)]
        return goes_on

    def _mark(self, loop: Scope, time: Any) -> int:
        counter: int = self.far.get((loop.name, time.epoch), [0])[0]
        return counter // (self.every or 1)

    def onward(self, channel: Channel, time: Any) -> Any | None:
        """When what is sent over a channel arrives; None: a loop's limit, or a bound on it, drops it."""
        if not self._bounds:
            return channel.summary.results_in(time)
        if channel.index not in self._bounded:
            self._bounded[channel.index] = bounded(self.plan, channel, self._bounds)
        summary = self._bounded[channel.index]
        return None if summary is None else summary.results_in(time)

    def drop(self, node: Node, loop: Scope, time: Any, table: pa.Table) -> None:
        """Records would have gone on in a loop, and its limit does not let them.

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
        found = self.cut.setdefault((loop.name, time.epoch), [iteration, 0, excerpt(table)])
        found[1] += table.num_rows

    def report(self) -> dict[str, Any]:
        """For the coordinator, as plain JSON."""
        return {
            "reached": self.reached,
            "far": [[*key, *found] for key, found in self.far.items()],
            "cut": [[*key, *found] for key, found in self.cut.items()],
        }


def bounded(plan: Plan, channel: Channel, bounds: Mapping[str, int]) -> Any | None:
    """A channel's summary where the loops it goes back in have bounds, too; None: nothing passes."""
    times = plan.times
    summary: Any = times.identity(channel.edges[0].source.scope.depth)
    for edge in channel.edges:
        stage, onward = edge.target, edge.target.summary
        if stage.kind is Kind.FEEDBACK and stage.scope.name in bounds:
            limits = [bounds[stage.scope.name], *([] if stage.scope.limit is None else [stage.scope.limit])]
            onward = times.feedback(stage.scope.depth, min(limits))
        summary = summary.followed_by(onward)
        if summary is None:
            return None
    return summary


def limited(channel: Channel) -> Scope | None:
    """The loop whose limit a channel may meet."""
    return next((edge.target.scope for edge in channel.edges if edge.target.kind is Kind.FEEDBACK), None)


def _counter(loop: Scope, time: Any) -> int:
    counter: Any = time.order_key()[loop.depth]
    return counter if isinstance(counter, int) else 0


def _numbered(times: Times) -> bool:
    """Whether loop counters are numbers: with times of one's own they may be anything."""
    return isinstance(times.enter(0).results_in(times.epoch(0)).order_key()[1], int)  # type: ignore[union-attr]


class Loops:
    """What the coordinator knows of a flow's loops.

    Example:
        >>> loops = Loops({"hops": ("job.py:3", "warn")}, every=10)
        >>> report = {"reached": {"hops": 10}, "far": [["hops", 0, 10, "[(1,)]"]], "cut": []}
        >>> [notice.iteration for notice in loops.enter([report])], loops.enter([report])
        ([10], [])
    """

    def __init__(self, loops: Mapping[str, tuple[str, str]], *, every: int | None) -> None:
        #: by name the user's line, and what is to happen at the limit
        self.loops, self.every = loops, every
        #: by loop the highest counter that any time has had
        self.reached: dict[str, int] = {}
        #: by loop the highest counter that a running loop may come to from now on
        self.bounds: dict[str, int] = {}
        #: records that limits have dropped, by loop, since the flow began
        self.cut: Counter[str] = Counter()
        #: by kind, loop and epoch: how often notice was given, in multiples of `every`
        self.told: dict[tuple[str, str, int], int] = {}

    @classmethod
    def of(cls, plan: Plan) -> Loops:
        """Of a plan that has not run."""
        scopes = {scope for stage in plan.stages for scope in stage.scope.path[1:]}
        return cls({s.name: (str(s.where), s.on_limit) for s in scopes}, every=plan.warn_after)

    def enter(self, reports: Iterable[Mapping[str, Any]]) -> list[Notice]:
        """Enter what workers report of one round; what is worth a notice."""
        notices: list[Notice] = []
        dropped: dict[tuple[str, int], list[Any]] = {}
        for report in reports:
            for loop, counter in report["reached"].items():
                self.reached[loop] = max(counter, self.reached.get(loop, 0))
            for loop, epoch, counter, rows in report["far"]:
                mark = counter // self.every if self.every else 0
                if mark > self.told.get(("iterations", loop, epoch), 0):
                    self.told["iterations", loop, epoch] = mark
                    notices.append(self._notice("iterations", loop, epoch, counter, rows=rows))
            for loop, epoch, iteration, records, rows in report["cut"]:
                self.cut[loop] += records
                dropped.setdefault((loop, epoch), [iteration, 0, rows])[1] += records
        for (loop, epoch), (iteration, records, rows) in dropped.items():
            asked = self.loops[loop][1] == "warn" or loop in self.bounds
            if asked and ("limit", loop, epoch) not in self.told:
                self.told["limit", loop, epoch] = 1
                notices.append(self._notice("limit", loop, epoch, iteration, rows=rows, records=records))
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

    def cancel(self, epoch: int, stands: Iterable[tuple[tuple[Scope, ...], Any]]) -> None:
        """End the loops in which an epoch still is: no time passes what any time has come to.

        Args:
            epoch: the epoch.
            stands: all pointstamps, each with the loops around the place where it stands.
        """
        running: set[str] = set()
        for loops, time in stands:
            for loop, counter in zip(loops, time.order_key()[1:], strict=True):
                if isinstance(counter, int):
                    self.reached[loop.name] = max(counter, self.reached.get(loop.name, 0))
                    if time.epoch == epoch:
                        running.add(loop.name)
        for name in running - set(self.bounds):
            self.bounds[name] = self.reached[name]

    def forget(self, oldest: int) -> None:
        """Epochs before `oldest` are over."""
        self.told = {key: mark for key, mark in self.told.items() if key[2] >= oldest}

    def encode(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "reached": self.reached,
            "bounds": self.bounds,
            "cut": dict(self.cut),
            "told": [[*key, mark] for key, mark in self.told.items()],
        }

    def restore(self, found: Mapping[str, Any]) -> None:
        """Take up what `encode` gave; what is said of loops that the flow has no more is dropped."""
        self.reached = {name: at for name, at in found["reached"].items() if name in self.loops}
        self.bounds = {name: at for name, at in found["bounds"].items() if name in self.loops}
        self.cut = Counter({name: n for name, n in found["cut"].items() if name in self.loops})
        self.told = {(kind, loop, epoch): mark for kind, loop, epoch, mark in found["told"]}


def warned(plan: Plan, after: int | None) -> Plan:
    """The plan with another number of iterations after which notice is given.

    Raises:
        GraphError: it is none.
    """
    if after is not None and (type(after) is not int or after < 1):
        msg = f"warn_after={after!r}"
        raise GraphError(
            msg, where=caller(), hint="give a whole number of at least 1, or None for no warnings."
        )
    return replace(plan, warn_after=after)


def worth_telling(notices: Iterable[Mapping[str, Any]], every: int | None) -> list[Notice]:
    """Those to be shown to a person: of a loop that goes on and on, one whenever its number has doubled."""
    found = [Notice(**notice) for notice in notices]
    marks = [notice.iteration // (every or 1) for notice in found]
    return [n for n, mark in zip(found, marks, strict=True) if n.kind == "limit" or not mark & (mark - 1)]
