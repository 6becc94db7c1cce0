"""The loops of a flow: all workers' counts, notices of loops that seem endless, bounds from `cancel`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from timely_spark.compiler.plan import Plan, SizeLimit
from timely_spark.errors import GraphError, TimelyError, Where, with_hint
from timely_spark.graph import LoopContext, integer
from timely_spark.worker.loops import LoopCounts
from timely_spark.worker.negatives import check_on_negative

NoticeKind = Literal["iterations", "again", "grows", "limit", "canceled"]
#: The kinds of notices that come again and again.
ENDLESS: set[NoticeKind] = {"iterations", "again"}
#: A test fails if an iteration that repeats records has so many of them.
EXPLODED = 1 << 20


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning about a loop, or about a step that is called for ever.

    >>> print(Notice("iterations", "hops", "job.py:3", epoch=7, iteration=10000, rows="[1]"))
    loop 'hops' (job.py:3) has reached iteration 10000 in epoch 7; records: [1]
    Hint: let the loop drop repeated records, as distinct or min do; or bound it with max_iterations, \
or with cancel(7); query.changing('hops') shows what still changes.
    """

    #: "iterations": a loop has very many iterations; "again": a step asks at a time for that time, and has
    #: done so very often; "grows": an iteration repeats very many records; "limit" or "canceled": its limit,
    #: or the bound that `cancel` set, dropped records
    kind: NoticeKind
    #: the loop, or the step
    loop: str
    #: the user's line that made it
    where: str
    epoch: int
    #: or how often the step has asked
    iteration: int
    #: some of the records, or the time, as text
    rows: str
    #: how many records the limit dropped, or the iteration has
    records: int = 0

    def __str__(self) -> str:
        text, hint = self.parts
        return with_hint(f"{self.subject} {text}", hint)

    @property
    def subject(self) -> str:
        """The loop or the step, with its line."""
        return f"{'step' if self.kind == 'again' else 'loop'} {self.loop!r} ({self.where})"

    @property
    def parts(self) -> tuple[str, str]:
        """What the loop or the step does, and the hint."""
        ended = (
            f" after {self.iteration} iterations of epoch {self.epoch}: {self.records} records were dropped, "
            f"among them {self.rows}"
        )
        match self.kind:
            case "iterations":
                text = f"has reached iteration {self.iteration} in epoch {self.epoch}; records: {self.rows}"
                hint = (
                    "let the loop drop repeated records, as distinct or min do; or bound it with "
                    f"max_iterations, or with cancel({self.epoch}); query.changing({self.loop!r}) shows what "
                    "still changes."
                )
            case "again":
                text = f"was notified of {self.rows} {self.iteration} times, and asks for it again"
                hint = "let on_notify(time) ask for a later time, or for none once its work is done."
            case "grows":
                text = (
                    f"grows: iteration {self.iteration} of epoch {self.epoch} has {self.records:,} records; "
                    f"{self.rows}"
                )
                hint = (
                    "end the body of the loop with distinct() (or min, max, reduce), which drops what has "
                    f"come before; cancel({self.epoch}) ends the loop now"
                )
            case "limit":
                text = f"ended at its limit{ended}"
                hint = (
                    "if the loop is meant to end there, say on_limit='return'; else give a larger "
                    "max_iterations, on a new checkpoint"
                )
            case "canceled":
                text = f"ended by cancel{ended}"
                hint = "the bound stays, for later epochs and restarts, until the loop gets another name."
        return text, hint


class Loops:
    """The loops of a flow, as the coordinator counts them.

    Example:
        >>> loops = Loops({"hops": ("job.py:3", "warn")}, every=10)
        >>> counts = LoopCounts({"hops": 10}, far=[("hops", 0, 10, "[(1,)]")])
        >>> [notice.iteration for notice in loops.enter(counts)], loops.enter(counts)
        ([10], [])
    """

    def __init__(
        self,
        loops: Mapping[str, tuple[str, str]],
        *,
        every: int | None,
        limits: Mapping[str, int] | None = None,
        steps: Mapping[str, str] | None = None,
    ) -> None:
        #: the user's line of each loop, and its `on_limit`
        self.loops, self.every = loops, every
        #: the highest counter that a time may have in each loop with `max_iterations`
        self.limits = limits or {}
        #: the user's line of each step
        self.steps = steps or {}
        #: the highest counter that any time has had in each loop
        self.reached: dict[str, int] = {}
        #: the highest counter that a time may still have in each canceled loop
        self.bounds: dict[str, int] = {}
        #: records that limits have dropped, by loop, since the flow began
        self.dropped: Counter[str] = Counter()
        #: the counter of the last notice, in multiples of `every`, by kind, loop or step, and epoch
        self.noticed: dict[tuple[str, str, int], int] = {}

    @classmethod
    def of(cls, plan: Plan) -> Loops:
        """The loops of a plan that has not run."""
        scopes = {scope for stage in plan.stages for scope in stage.scope.path[1:] if scope.inner is None}
        loops = {scope.name: (str(scope.where), scope.on_limit) for scope in scopes}
        limits = {scope.name: scope.limit for scope in scopes if scope.limit is not None}
        steps = {node.name: str(node.stage.where) for node in plan.nodes}
        return cls(loops, every=plan.warn_after, limits=limits, steps=steps)

    def enter(self, counts: LoopCounts) -> list[Notice]:
        """Enter the counts of one round of all workers; returns new notices."""
        notices: list[Notice] = []
        for loop, counter in counts.reached.items():
            self.reached[loop] = max(counter, self.reached.get(loop, 0))
        for loop, epoch, counter, rows in counts.far:
            mark = counter // self.every if self.every else 0
            if mark > self.noticed.get(("iterations", loop, epoch), 0):
                self.noticed["iterations", loop, epoch] = mark
                notices.append(Notice("iterations", loop, self.loops[loop][0], epoch, counter, rows))
        for step, epoch, number, time in counts.again:
            mark = self.noticed["again", step, epoch] = self.noticed.get(("again", step, epoch), 0) + 1
            notices.append(Notice("again", step, self.steps[step], epoch, mark * number, time))
        for loop, epoch, iteration, records, evidence in counts.grown:
            mark = records.bit_length() // 2
            if mark > self.noticed.get(("grows", loop, epoch), 0):
                self.noticed["grows", loop, epoch] = mark
                where = self.loops[loop][0]
                notices.append(Notice("grows", loop, where, epoch, iteration, evidence, records))
        for loop, epoch, iteration, records, rows in counts.dropped:
            self.dropped[loop] += records
            where, on_limit = self.loops[loop]
            warns = on_limit == "warn" or loop in self.bounds
            if warns and ("limit", loop, epoch) not in self.noticed:
                self.noticed["limit", loop, epoch] = 1
                kind: NoticeKind = "canceled" if loop in self.bounds else "limit"
                notices.append(Notice(kind, loop, where, epoch, iteration, rows, records))
        return notices

    def cancel(self, epoch: int, pointstamps: Iterable[tuple[tuple[LoopContext, ...], Any]]) -> None:
        """Bound the loops in which an epoch is active by the highest counter that any time has had.

        The active times come with the loops around their locations.
        """
        running: set[str] = set()
        for loops, time in pointstamps:
            for loop, counter in zip(loops, time.order_key()[1:], strict=True):
                if isinstance(counter, int) and loop.inner is None and loop.watched:
                    self.reached[loop.name] = max(counter, self.reached.get(loop.name, 0))
                    if time.epoch == epoch:
                        running.add(loop.name)
        self._bound({name: self.reached[name] for name in running} | self.bounds)

    def _bound(self, bounds: Mapping[str, int]) -> None:
        """Set the bounds of canceled loops, but those that a loop's own limit makes needless."""
        self.bounds = {
            name: at
            for name, at in bounds.items()
            if name in self.loops and (name not in self.limits or at < self.limits[name])
        }

    def forget(self, oldest: int) -> None:
        """Forget the notices of epochs before `oldest`, which are complete."""
        self.noticed = {key: mark for key, mark in self.noticed.items() if key[2] >= oldest}

    def encode(self) -> dict[str, Any]:
        """The counts and bounds as plain JSON."""
        return {
            "reached": self.reached,
            "bounds": self.bounds,
            "cut": dict(self.dropped),
            "noticed": [[*key, mark] for key, mark in self.noticed.items()],
        }

    def restore(self, encoded: Mapping[str, Any]) -> None:
        """Restore what `encode` gave, without loops that were removed from the flow."""
        self.reached = {name: at for name, at in encoded["reached"].items() if name in self.loops}
        self._bound(encoded["bounds"])
        self.dropped = Counter({name: n for name, n in encoded["cut"].items() if name in self.loops})
        self.noticed = {(kind, loop, epoch): mark for kind, loop, epoch, mark in encoded["noticed"]}


def with_warn_after(
    plan: Plan, after: int | None, limit: int | str | None = None, on_negative: str = "warn"
) -> Plan:
    """The plan with another `warn_after`, `epoch_limit`, and `on_negative`."""
    if after is not None:
        hint = "give a number of iterations, or None for no warnings."
        after = integer("warn_after", after, error=GraphError, hint=hint)
    check_on_negative(on_negative)
    return replace(plan, warn_after=after, epoch_limit=SizeLimit.of(limit), on_negative=on_negative)


def notices_to_log(notices: Iterable[Notice], every: int | None) -> list[Notice]:
    """The notices to log: of a loop with many iterations or calls, one whenever the number has doubled."""
    marked = ((notice, notice.iteration // (every or 1)) for notice in notices)
    return [n for n, mark in marked if n.kind not in ENDLESS or not mark & (mark - 1)]


def check_endless(notices: Iterable[Notice], plan: Plan, canceled: Collection[str], where: Where) -> None:
    """Raise an error if a loop explodes, or has twice as many iterations or calls as it needs for a warning.

    Loops with `max_iterations`, and canceled ones, end.
    """
    every = plan.warn_after
    ends = {
        *canceled,
        *(s.name for stage in plan.stages for s in stage.scope.path[1:] if s.limit is not None),
    }
    for notice in notices:
        text, hint = notice.parts
        if notice.kind == "grows" and notice.records >= EXPLODED and notice.loop not in ends:
            msg = f"{notice.subject} {text}"
            raise TimelyError(msg, where=where, hint=hint)
        endless = notice.kind in ENDLESS and every is not None and notice.iteration >= 2 * every
        if endless and (notice.kind == "again" or notice.loop not in ends):
            hint = f"{hint}; or, if it is only long, give a larger warn_after, or None."
            msg = f"{notice.subject} seems endless: it {text}"
            raise TimelyError(msg, where=where, hint=hint)
