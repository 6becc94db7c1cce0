"""`Dataflow`: a flow that is built, compiled, drawn and started."""

from __future__ import annotations

import os
from collections.abc import Collection as Some
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from timely_spark import show
from timely_spark.compiler import Plan, compile_plan
from timely_spark.coordinator.loops import with_warn_after
from timely_spark.differential import Collection
from timely_spark.errors import GraphError, InvalidTime
from timely_spark.graph import (
    LogicalGraph,
    SchemaLike,
    Stage,
    Suggests,
    Vertex,
    caller,
    integer,
    is_text,
    locate_errors,
    refuse,
    with_checked_arguments,
)
from timely_spark.input_streams import Input, Source
from timely_spark.inputs import Inputs
from timely_spark.operators.custom import By, Summaries, check_methods, check_state, custom
from timely_spark.operators.finalise import finalise_graph
from timely_spark.operators.outputs import OutputSpec
from timely_spark.queries.sql import as_collections
from timely_spark.streams import Scope, Stream
from timely_spark.times import PRODUCT, Times, broken_law

if TYPE_CHECKING:
    import os

    from pyspark.sql import DataFrame, SparkSession

    from timely_spark.runtime.handle.input_handle import InputHandle
    from timely_spark.runtime.handle.query import Query
    from timely_spark.runtime.sources.source import JournaledSource

__all__ = ("Dataflow", "Input", "Source", "Trigger")

Trigger = str | Mapping[str, Any] | None
#: A driver's plan of more workers would not fit its memory.
_MOST_WORKERS = 1 << 16


class Dataflow(Inputs, Suggests):
    """A timely dataflow: stages over streams, with nested loops, that runs as one streaming query.

    Building a flow runs nothing; `start` runs it on Spark, `testing.run` in this process.

    Args:
        name: the flow's name.
        times: the kind of time, by default the product order. For your own see `times.Times`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reachability")
        >>> edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")
        >>> def hop(reached):
        ...     links = reached.scope.enter(edges)
        ...     targets = reached.join(links, left=["node"], right=["src"]).select(node="dst")
        ...     return targets.concat(reached).distinct(name="near")
        >>> _ = roots.loop(hop).capture("near")
        >>> epochs = {"edges": [[(1, 2), (2, 3)], [(3, 4)]], "roots": [[1], []]}
        >>> ts.testing.run(flow, epochs, workers=2)["near"].rows()
        {0: [(1,), (2,), (3,)], 1: [(4,)]}
    """

    _suggestions = dict.fromkeys(
        ("ask", "audit", "captured", "frontier", "status", "stop", "waitfor", "watch", "why"),
        "a method of the query that flow.start(...) returns",
    )

    def __init__(self, name: str, *, times: Times = PRODUCT) -> None:
        if not is_text(name):
            hint = 'name the flow after its result: Dataflow("reachability")'
            refuse(name, what="name", expected="a text", hint=hint)
        if (broken := broken_law(times)) is not None:
            msg = f"flow {name!r} has times of the kind {type(times).__name__}: {broken}"
            raise InvalidTime(msg, where=caller(), hint="correct the class: times.Times lists the laws.")
        self.name = name
        self.graph = LogicalGraph(name, times)
        self.outputs: list[OutputSpec] = []
        self.frames: dict[str, DataFrame | JournaledSource] = {}
        self.feedbacks: dict[int, Stage] = {}
        self._handles: dict[str, InputHandle] = {}

    def __repr__(self) -> str:
        loops = {scope.name: None for stage in self.graph.along(1).stages for scope in stage.scope.path[1:]}
        parts = {
            "inputs": [stage.name for stage in self.graph.stages if stage.is_source],
            "loops": loops,
            "outputs": [stage.name for stage in self.graph.stages if stage.kind.is_end],
        }
        listed = "".join(f"; {what}: {', '.join(names)}" for what, names in parts.items() if names)
        return f"Dataflow({self.name!r}{listed})"

    def _repr_html_(self) -> str:
        return show.to_html(self)

    def __reduce__(self) -> NoReturn:
        from timely_spark.runtime.errors import Unpicklable

        msg = f"flow {self.name!r} cannot be pickled: it has handles and functions of this process"
        raise Unpicklable(msg, where=caller(), hint="call the function that builds it in the other process.")

    @property
    def scope(self) -> Scope:
        """The outermost scope."""
        return Scope(self, self.graph.root)

    @locate_errors
    def vertex(
        self,
        vertex: Vertex,
        inputs: Stream | Sequence[Stream],
        outputs: SchemaLike | Sequence[SchemaLike],
        *,
        by: By = None,
        guarantees: str | Sequence[str] | None = None,
        summaries: Summaries | None = None,
        name: str | None = None,
    ) -> Any:
        """Add a vertex written by the user.

        Args:
            vertex: the template; each worker runs a copy.
            inputs: the streams it receives, in the order of `on_recv`'s `edge`.
            outputs: the schema of each output, in the order of `send_by`'s `edge`; one schema for one output.
            by: for each input its columns of partitioning, or an expression of worker numbers (modulo their
                number); None if it is not exchanged. A single input needs no outer list: ``by="id"``.
            guarantees: columns by which output 0 is partitioned: no exchange by them follows. Checked.
            summaries: by (input, output) the path, where it is not the identity: None (no path), a number of
                epochs, or a path summary. An output does not wait for inputs that do not reach it. Checked.

        Returns:
            A stream; a tuple of streams if `outputs` is a list.

        **Columns:** in: any; out: those of `outputs`.

        Example:
            >>> import timely_spark as ts
            >>> class Longest(ts.Vertex):
            ...     def __init__(self):
            ...         self.longest = 0
            ...
            ...     def on_recv(self, edge, time, batch):
            ...         self.longest = max(self.longest, *map(len, batch["word"].to_pylist()))
            ...         self.notify_at(time)
            ...
            ...     def on_notify(self, time):
            ...         self.send_by(0, time, [(self.longest,)])
            >>> flow = ts.Dataflow("longest")
            >>> words = flow.input("words", "word string")
            >>> _ = flow.vertex(Longest(), words, "length long", by=[]).capture("out")  # on one worker
            >>> ts.testing.run(flow, {"words": [["to", "be"], ["not"]]}, workers=2)["out"].rows()
            {0: [(2,)], 1: [(3,)]}

        Raises:
            GraphError: `vertex` is not an instance of `Vertex`, a method does not fit, or a checkpoint would
                miss part of its state; or the inputs are in different scopes.
            SchemaError: a column of `by` or `guarantees` is missing.
        """
        streams: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        several = isinstance(outputs, list | tuple)
        schemas: Any = outputs if several else [outputs]
        if not isinstance(vertex, Vertex):
            shown = vertex.__name__ if isinstance(vertex, type) else repr(vertex)  # type: ignore[unreachable]
            msg = f"vertex: {shown} is not an instance of Vertex"
            instance = f"an instance, {shown}()," if isinstance(vertex, type) else "an instance"
            hint = f"give {instance} of a subclass of it."
            raise GraphError(msg, where=caller(), hint=hint)
        check_methods(vertex)
        check_state(vertex)
        operator = type(vertex).__name__.lower()
        if not streams or not isinstance(streams[0], Stream):
            msg = f"{operator} got {list(streams)!r}, no streams"
            raise GraphError(msg, where=caller(), hint="give a stream, or a list of streams.")
        more: Any = {"by": by, "guarantees": guarantees, "summaries": summaries, "name": name}
        results = custom(streams, vertex, schemas, operator=operator, **more)
        return results if several else results[0]

    @locate_errors
    def sql(self, script: str, **tables: Collection | Stream) -> dict[str, Collection]:
        """The views of a script, ``CREATE VIEW a AS ...; CREATE VIEW b AS ...``, over the flow's inputs.

        An input is a table of its name; if it has a column ``diff``, its rows count by that. A view may read
        those before it. What several views read is built once, and arranged once for their joins.

        Args:
            script: the views, in Spark's SQL.
            tables: further tables by name, collections or streams; or instead of inputs.

        Returns:
            By name the views as collections.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("views")
            >>> edges = flow.input("edges", "src long, dst long, diff long")
            >>> views = flow.sql('''
            ...     CREATE VIEW degrees AS SELECT src, count(*) AS n FROM edges GROUP BY src;
            ...     CREATE VIEW hubs AS SELECT src FROM degrees WHERE n > 1''')
            >>> _ = views["hubs"].changes().capture("hubs")
            >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (1, 3, 1)], [(1, 3, -1)]]})["hubs"].rows()
            {0: [(1, 1)], 1: [(1, -1)]}

        Raises:
            SqlError: as `timely_spark.sql`, as is GraphError; or a statement creates no view.
        """
        inputs = {one.name: Stream(self, one) for one in self.graph.stages if one.is_source}
        from timely_spark.queries.scripts import views_of

        return views_of(script, as_collections({**inputs, **tables}))

    @locate_errors
    def region(self, name: str, *, workers: Sequence[int] | None = None) -> AbstractContextManager[None]:
        """A region outside of loops: see `Scope.region`."""
        return self.scope.region(name, workers=workers)

    @locate_errors
    def compile(self, workers: int = 1) -> Plan:
        """The physical plan for a number of workers.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("counts")
            >>> _ = flow.input("words", "word string").group_by("word").count().capture("counts")
            >>> flow.compile(workers=2).workers
            2

        Raises:
            BadArgument: `workers` is not a number from 1 to 65,536.
            GraphError: the graph is incomplete.
            CycleError: a cycle does not advance time.
        """
        return self._compiled(workers)

    def _compiled(self, workers: int, steps: Some[str] = ()) -> Plan:
        """The plan, by the ways of a checkpoint with these steps."""
        integer("workers", workers, most=_MOST_WORKERS)
        return compile_plan(finalise_graph(self.graph).along(workers, steps), workers)

    def _continuing(self, workers: int, before: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Plan:
        """The plan that continues from a checkpoint: by other ways only if nothing is in flight there.

        Args:
            before: the `described` of the plan that wrote it.
            snapshot: the coordinator's.
        """
        plan, old_way = self.compile(workers), self._compiled(workers, before["stages"])
        if old_way.by_name.keys() == plan.by_name.keys():
            return plan
        return old_way if snapshot["tracker"]["counts"] else replace(plan, old_way=old_way)

    @with_checked_arguments
    def start(
        self,
        session: SparkSession | None = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        trigger: Trigger = None,
        name: str | None = None,
        sources: Mapping[str, DataFrame] | None = None,
        partitions: int | None = None,
        rounds_per_batch: int | None = None,
        parallel_rounds: bool | None = None,
        record: str | None = None,
        log_to: str | os.PathLike[str] | None = None,
        replace: bool = False,
        warn_after: int | None = 10_000,
        epoch_limit: int | str | None = None,
        on_negative: Literal["warn", "raise"] = "warn",
        keep: float | str | None = None,
        new_steps: Literal["empty"] | None = None,
        resident: bool | None = None,
        commit_every: float | str | None = None,
        max_staleness: float | str | None = None,
    ) -> Query:
        """Run on Spark, as one streaming query that continues from its checkpoint.

        An interrupt (Ctrl-C, or a notebook's button) during `start` leaves no query behind. While the program
        waits, by `Query.watch`, `wait_for`, `step` or `await_termination`, it ends the wait, and the query
        runs on until `Query.stop` or the end of the program. A notebook cell that is run twice is harmless:
        the second `start` is refused and the first query runs on; or, with `replace`, it takes its place.

        Args:
            session: the session, by default the active one.
            checkpoint: a directory that driver and executors can reach; without one, state is lost at the
                end.
            workers: by default the checkpoint's number, or for a new one the session's parallelism, at most
                8.
            trigger: by default always on. "available_now": until all available input is processed. Or as for
                Spark's `trigger`.
            name: the query's name, by default the flow's.
            sources: DataFrames for sources that were declared by their schema.
            partitions: Spark tasks per round; by default as many as workers or cores. A restart uses the
                number in the checkpoint.
            rounds_per_batch: the most rounds of a micro-batch, by default 100; with 1 every round is a
                micro-batch, so input and commits wait for one round at most. While the rounds after the first
                are small (1 MB exchanged, 4 MB delivered, and 256 MB of states read, not counting keyed
                state in mapped files) one process runs them, at a few milliseconds each.
            parallel_rounds: whether larger rounds are run by parallel tasks that exchange directly with each
                other; else one task runs them, and what exceeds 4 MB exchanged or 64 MB delivered waits for
                the next micro-batch. None means yes, unless Spark allocates executors dynamically, encrypts
                its traffic, or runs behind Spark Connect.
            record: a folder into which each worker's round is written, to be repeated by `testing.recorded`.
            log_to: a folder into which each batch writes what it did, by step, worker and epoch, as a
                capture: `replay` reads it in another flow. Its columns are explained in "The system's log".
            replace: for a notebook cell that is run again: first stop queries of this process that read this
                flow's inputs, or have the query's name or checkpoint. Sent records are kept if the checkpoint
                is the same.
            warn_after: iterations of a loop in one epoch, or notifications of one time that ask for it again,
                after which a warning is logged; None means never.
                (An iteration that repeats very many records gives a warning, too.)
            epoch_limit: the most that a step may send on one worker in an epoch; in a loop, in one iteration
                of it. A number of records, or bytes as text, such as "2 GB". A step beyond it fails with
                `LimitReached`. None means shares of the memory that the machine has for each worker: a
                sixteenth for an iteration, and half for all else.
            on_negative: what happens where more of a record is removed than was inserted, at a step that asks
                whether records are there: `count`, `min`, `max`, `top_k`, `distinct`, `reduce`,
                `reduce_batches`, `asof_join`, sessions. "warn": such records are counted, each when its
                multiplicity becomes negative, and the log has one warning per step, with an example. "raise":
                the flow fails. Loops, and steps behind `negate` or `threshold`, may have such records. `min`,
                `max` and `top_k` do not look at changes that are too bad to matter to a key of many records.
            keep: how long the states of earlier batches are kept for `timely_spark.inspect`: seconds,
                or text such as "7 days"; at least as many are kept as Spark keeps of its own log.
            new_steps: None means that a changed flow is refused if a new step's results depend on earlier
                records. "empty": such steps start without these records, and `status`, the log and the
                property ``timely_spark.lacks`` of Delta tables say so.
            resident: whether a micro-batch stays: the driver goes on with what handles, files, Delta tables
                and captures have next, epoch after epoch in milliseconds, and Spark commits twice a minute.
                None means wherever it is possible on one machine (`status` of the query says why not); True
                also on a cluster, where tasks stay and hold one of Spark's slots each; False nowhere: each
                epoch is a micro-batch. Ownership, exactly-once outputs and restarts are the same.
            commit_every: while a micro-batch stays, the least time between two commits of one output to a
                Delta table or a folder of files, which then have the epochs since the last one; by default
                0.25 seconds. 0: each epoch. Other outputs have each epoch at once.
            max_staleness: of a flow that reads Spark DataFrames, too, how long these may wait while a
                micro-batch stays. None means not at all; then no micro-batch stays.

        Returns:
            The query, with the methods of Spark's `StreamingQuery` and those of time.

        Example: see `Query`.

        Raises:
            BadArgument: an argument is not allowed.
            InputsInUse: a running query reads this flow's inputs, and `replace` is false.
            NameTaken: the session runs a query of that name.
            CheckpointInUse: a running query has the checkpoint.
            TimelyError: another error; inputs and other queries are unchanged after any of them.
        """
        from timely_spark.runtime.arguments import check_arguments
        from timely_spark.runtime.sinks.outputs import outputs_of
        from timely_spark.runtime.start import default_workers, start, written_to

        check_arguments(
            session=session,
            checkpoint=checkpoint,
            name=name,
            sources=sources,
            record=record,
            log_to=log_to,
            new_steps=new_steps,
        )
        written = written_to(checkpoint) if workers is None or self.graph.has_ways else None
        if workers is None:
            workers = default_workers(session, written)
        if written is not None and self.graph.has_ways:
            plan = self._continuing(workers, *written)
        else:
            plan = self.compile(workers)
        plan = with_warn_after(plan, warn_after, epoch_limit, on_negative)
        return start(
            plan,
            dataframes={**self.frames, **(sources or {})},
            outputs=outputs_of(plan, self.outputs),
            inputs=list(self._handles.values()),
            session=session,
            checkpoint=checkpoint,
            trigger=trigger,
            name=name or self.name,
            partitions=partitions,
            rounds_per_batch=rounds_per_batch,
            parallel_rounds=parallel_rounds,
            record=record,
            log_to=log_to,
            replace=replace,
            keep=keep,
            new_steps=new_steps,
            resident=resident,
            commit_every=commit_every,
            max_staleness=max_staleness,
        )

    @locate_errors
    def explain(self, workers: int = 2, *, expand: show.Expand = False) -> None:
        """Print the logical graph, and its physical form for a number of workers.

        What one call of yours made, as a library's algorithm, is one row.

        Args:
            workers: how many workers.
            expand: True: rows for the steps inside, too; or the names of the rows that are opened.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("hello")
            >>> edges = flow.input("edges", "src long, dst long").collection()
            >>> _ = ts.graphs.connected_components(edges, name="parts").changes().capture("out")
            >>> flow.explain(expand="parts")  # doctest: +ELLIPSIS
            Flow 'hello' on 2 workers
            ...

        Raises:
            UnknownName: no row of several steps has such a name.
        """
        print(show.explain(self, workers, expand=expand))  # noqa: T201

    @locate_errors
    def to_mermaid(self, *, expand: show.Expand = False) -> str:
        """The graph as a Mermaid flowchart; `expand`: as of `explain`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("hello")
            >>> _ = flow.input("numbers", "n long").capture("out")
            >>> print(flow.to_mermaid())
            flowchart TD
                s0(["numbers<br/>source clock"])
                s1[["out<br/>output capture"]]
                s0 --> s1
        """
        return show.to_mermaid(self, expand=expand)

    @locate_errors
    def to_svg(self, *, expand: show.Expand = False) -> str:
        """The graph as an SVG drawing, which a notebook shows for the flow itself; `expand`: as of `explain`.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("hello")
            >>> _ = flow.input("numbers", "n long").distinct().capture("out")
            >>> flow.to_svg().startswith("<svg ")
            True
        """
        return show.to_svg(self, expand=expand)
