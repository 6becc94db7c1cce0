"""Why a row is in an output, or is not: the input records and the steps that lead to it.

The flow runs again, on its accumulated inputs in one epoch, or in their epochs if the row depends on these.
For a row that is in the output, records are left out as long as the row stays (delta debugging: Zeller and
Hildebrandt, 2002), until the row needs each of those that are left. In a run on these alone, what the steps
send is the way from them to the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.captured import Captured
from timely_spark.compiler import Node, Plan
from timely_spark.compiler.plan import Channel
from timely_spark.coordinator import Coordinator
from timely_spark.coordinator.local_rounds import run_workers
from timely_spark.coordinator.round_result import OUTPUTS
from timely_spark.differential.linear import Weigh
from timely_spark.differential.trace import DIFF, consolidate
from timely_spark.errors import SchemaError, TimelyError
from timely_spark.graph import Kind, Stage, as_table, caller, describe, find, locate_errors, refuse
from timely_spark.graph.schema import RESERVED
from timely_spark.graph.stage import closure
from timely_spark.show.sketch import Sketch
from timely_spark.state.arrow import from_bytes
from timely_spark.state.hashing import same
from timely_spark.times import Timestamp, as_epoch
from timely_spark.times.refined import time_text
from timely_spark.worker import Worker, pack, pack_input
from timely_spark.worker.context import CallContext
from timely_spark.worker.pack import apply_stage

InputRecords = Captured | Mapping[int, Any] | Sequence[Any]
"""The records of an input by epoch: what `capture` has of it, or records of epoch 0, 1, ..."""

#: The column of times of records that are shown.
_TIME = f"{RESERVED}time"
#: Runs that look for records which keep a row away.
MOST = 500
_ROWS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecords:
    """The records that a step sent in the run that an explanation shows."""

    step: str
    #: the user's line
    where: str
    #: Columns: time string, then the records'; of a collection also ``diff``. Where records have a column
    #: of such a name, ours ends in ``_``.
    records: pa.Table
    #: The name in the text. Of the steps that one call made it is that of their box, where records leave it;
    #: the other ones are not in the text, and have none.
    title: str = ""


#: The records of each input, by epoch; and rows of them that stay or go together: the input, epoch and row.
Changes: TypeAlias = Mapping[str, Mapping[int, pa.Table]]
_Item: TypeAlias = list[tuple[str, int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a row is in an output at an epoch, or is not; as text, one line for each record.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("why")
        >>> _ = flow.input("x", "n long").where("n > 1").capture("out")
        >>> print(ts.testing.explain_row(flow, {"x": [[1, 2]]}, "out", {"n": 2}))
        (n=2) is in 'out', because of
          x: (n=2)
        by way of
          where (...:1): (0) (n=2)
    """

    output: str
    row: Mapping[str, Any]
    #: None means all epochs that were given
    at: int | None
    #: whether the row is in the output
    present: bool
    #: Records, by input. For a present row they suffice, and each is needed. For an absent row they keep it
    #: away: without them it would be present; empty if no such records exist.
    inputs: Mapping[str, pa.Table]
    #: For a present row, what the steps on the way send, given only these records. For an absent row, the
    #: records that agree with it in all shared columns: the row is lost where these end.
    steps: Sequence[StepRecords]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        row = ", ".join(f"{name}={value!r}" for name, value in self.row.items())
        epoch = "" if self.at is None else f" at epoch {self.at}"
        some = any(table.num_rows for table in self.inputs.values())
        if self.present:
            because = ", because of" if some else ", whatever the inputs are"
            yield f"({row}) is in {self.output!r}{epoch}{because}"
        else:
            because = ", and would be without" if some else "; no record was found that keeps it away"
            yield f"({row}) is not in {self.output!r}{epoch}{because}"
        for name, table in self.inputs.items():
            yield from (f"  {name}: {_text(record)}" for record in table.to_pylist())
        yield "by way of" if self.present else "what agrees with it"
        for each in self.steps:
            if not each.title:
                continue
            rows = each.records.to_pylist()
            shown = "; ".join(_text(row, timed=True) for row in rows[:_ROWS]) or "nothing"
            more = f"; and {len(rows) - _ROWS} more" if len(rows) > _ROWS else ""
            yield f"  {each.title} ({each.where}): {shown}{more}"


@locate_errors
def explain_row(
    flow: Any,
    inputs: Mapping[str, InputRecords],
    output: str,
    row: Any,
    *,
    at: int | None = None,
    diff: str = "diff",
) -> Explanation:
    """Explain why a row is in an output, or why it is not: the input records and steps that lead to it.

    For a present row: input records that suffice for it, where none can be left out; and what
    each step sends, given only these. For a row that is not there: input records without which it would be
    there, if some are found; and what each step sends that agrees with the row, so one sees where it is lost.

    The flow runs again, here, on the accumulated inputs, often: about as often as the explanation has
    records, times the logarithm of their number, each time on fewer records. Functions in the flow must be
    deterministic. A row often has several explanations; this is one of them.

    A row may depend on the epochs in which records come, as ids of entities do. Then the flow runs epoch by
    epoch each time, and a record of the explanation is all of its insertions and deletions.

    Args:
        flow: the flow, or its plan.
        inputs: for each input its records by epoch: those of epoch 0, 1, ..., or what a `capture` of the
            input's stream has. An input that is left out is empty.
        output: the name of an output, such as that of `capture`.
        row: a dict of some or all of the output's columns; or the values of all but the differences.
        at: the epoch; None means the last one.
        diff: the column of differences, of an output that is not a collection's changes.

    Returns:
        The explanation: print it, or read its fields.

    **Columns:** `inputs` of the result have those of the inputs; `steps` see `StepRecords`.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("reach")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> roots = flow.input("roots", "node long").collection()
        >>> def hop(near):
        ...     return near.join(edges, left="node", right="src").select(node="dst").concat(roots).distinct()
        >>> _ = roots.iterate(hop).capture("near")
        >>> inputs = {"edges": [[(1, 2, 1), (2, 3, 1), (4, 3, 1)], [(1, 2, -1), (1, 4, 1)]], "roots": [[1]]}
        >>> why = ts.testing.explain_row(flow, inputs, "near", {"node": 3})
        >>> why.present, why.inputs["edges"].select(["src", "dst"]).to_pylist()
        (True, [{'src': 1, 'dst': 4}, {'src': 4, 'dst': 3}])

    Raises:
        UnknownName: there is no such input or output.
        SchemaError: the row does not fit the output, or records do not fit an input.
    """
    if not isinstance(flow, Plan) and not hasattr(flow, "compile"):
        refuse(flow, what="flow", expected="a Dataflow", hint="give the flow that has the output.")
    plan: Plan = flow if isinstance(flow, Plan) else flow.compile()
    # the epochs are those that were given, and no batch's
    manual = [
        replace(source, epochs="manual") if source.epochs == "clock" else source for source in plan.inputs
    ]
    plan = replace(plan, inputs=tuple(manual))
    outputs = {node.name: node for node in plan.nodes if node.stage.kind is Kind.OUTPUT}
    at = None if at is None else as_epoch(at, "explain_row(at=)", caller())
    node = find(outputs, output, kind="output", flow=plan.name)
    question = _Question(plan, node, plan.differences.get(output, diff))
    wanted = question.wanted(row)
    for name in inputs:
        plan.source(name)
    by_epoch = {name: _up_to(plan, name, inputs.get(name, ()), at) for name in plan.sources}
    changes = {name: {0: _accumulated(plan, name, epochs)} for name, epochs in by_epoch.items()}
    present = question.has(by_epoch, wanted)
    if present == question.has(changes, wanted):
        items: list[_Item] = [[row] for rows in _equal(changes).values() for row in rows]
    else:  # the row depends on the epochs: a record comes with all that became of it, or not at all
        changes = by_epoch
        items = [*_equal(by_epoch, {name: _diffs(plan, name) for name in by_epoch}).values()]
    if present:
        least = smallest(items, lambda some: question.has(_only(changes, some), wanted))
        records = _only(changes, least)
        steps = question.steps(records)
    else:
        least = _blockers(changes, items, lambda rest: question.has(_only(changes, rest), wanted))
        records = _only(changes, least)
        steps = question.steps(changes, wanted)
    schemas = {name: plan.source(name).stage.outputs[0] for name in records}
    tables = {name: _all(schemas[name], epochs) for name, epochs in records.items()}
    return Explanation(output=output, row=wanted, at=at, present=present, inputs=tables, steps=steps)


def captured_inputs(plan: Plan) -> dict[str, str]:
    """For each input that is captured, the output of `capture` that has its records as they came."""
    captures = {node.index: node.name for node in plan.nodes if node.stage.parameters.get("to") == "capture"}
    return {
        source.name: captures[plan.channels[index].target]
        for source in plan.inputs
        for index in sorted({*source.entries} - source.late - source.quarantined)
        if len(plan.channels[index].edges) == 1 and plan.channels[index].target in captures
    }


def inputs_before(plan: Plan, output: str) -> list[str]:
    """The inputs that lead to an output."""
    node = find({node.name: node for node in plan.nodes}, output, kind="output", flow=plan.name)
    ahead = {*plan.reach.summaries(node.arrives), node.arrives}
    return [
        source.name
        for source in plan.inputs
        if any(plan.lands(plan.channels[index]) in ahead for index in source.entries)
    ]


def smallest(items: Sequence[Any], holds: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """A part of the items for which `holds` is true, but not without any one of them.

    Example:
        >>> smallest(range(100), lambda some: {3, 77} <= set(some))
        [3, 77]
        >>> smallest(range(9), lambda some: True)
        []
    """
    least, parts = list(items), 2
    if not least or holds([]):
        return []
    while len(least) > 1:
        size = -(-len(least) // parts)
        for start in range(0, len(least), size):
            rest = least[:start] + least[start + size :]
            if holds(rest):
                least, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(least))
    return least


def _blockers(changes: Changes, items: list[_Item], appears: Callable[[list[_Item]], bool]) -> list[_Item]:
    """Items without which the row appears, if few runs find some: large groups of neighbours first.

    A record that was sent several times keeps a row away until all of them are removed, or some of them.
    """

    def without(removed: Sequence[_Item]) -> bool:
        left_out = {row for item in removed for row in item}
        return appears([item for item in items if item[0] not in left_out])

    of = {item[0]: item for item in items}
    equal = [[of[row] for row in rows if row in of] for rows in _equal(changes).values()]
    equal = [group for group in equal if group]
    for parts in ([*equal], [[item] for item in items] if len(equal) < len(items) else []):
        size, runs = len(parts), 0
        while size and runs < MOST:
            for start in range(0, len(parts), size):
                runs += 1
                if runs < MOST and without(group := [*chain.from_iterable(parts[start : start + size])]):
                    return smallest(group, without)
            size //= 2
    return []


# -- inputs --------------------------------------------------------------------------------------------------


def _up_to(plan: Plan, name: str, epochs: Any, at: int | None) -> dict[int, pa.Table]:
    """The records of an input by epoch, up to one, in the input's schema."""
    source = plan.source(name)
    schema, what = source.stage.outputs[0], f"input {name!r} ({source.stage.where})"
    if isinstance(epochs, Captured):
        epochs = epochs.epochs
    if isinstance(epochs, Sequence) and not isinstance(epochs, str | bytes):
        epochs = dict(enumerate(epochs))
    if not isinstance(epochs, Mapping):
        hint = (
            "give the input's records of each epoch, in a list; or what capture() of the input's stream has."
        )
        refuse(epochs, what=f"inputs[{name!r}]", expected="records by epoch", hint=hint)
    return {
        epoch: as_table(epochs[epoch], schema, of=what, projected=True)
        for epoch in sorted(epochs)
        if at is None or epoch <= at
    }


def _accumulated(plan: Plan, name: str, epochs: Mapping[int, pa.Table]) -> pa.Table:
    """The records of all epochs; those that were removed again cancel out."""
    table = _all(plan.source(name).stage.outputs[0], epochs)
    diffs = _diffs(plan, name)
    if len(diffs) != 1 or not table.num_rows:
        return table
    (diff,) = diffs
    names = table.schema.names
    total = consolidate(table.rename_columns([DIFF if column == diff else column for column in names]))
    return total.rename_columns(names).cast(table.schema)


def _all(schema: pa.Schema, epochs: Mapping[int, pa.Table]) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *(epochs[epoch] for epoch in sorted(epochs))])


def _diffs(plan: Plan, name: str) -> set[str]:
    """The columns of an input that say whether a record comes or goes."""
    entries = plan.source(name).entries
    stages = (stage for index in entries for stage, _ in plan.channels[index].through)
    return {stage.vertex.column for stage in stages if isinstance(stage.vertex, Weigh)}


def _equal(changes: Changes, without: Mapping[str, set[str]] | None = None) -> dict[Any, _Item]:
    """The rows of equal records of an input, in any epoch; without some columns."""
    rows: dict[Any, _Item] = defaultdict(list)
    for name, epochs in changes.items():
        for epoch, table in epochs.items():
            records = table.drop_columns([*(without or {}).get(name, ())]).to_pylist()
            for i, record in enumerate(records):
                rows[name, str(record)].append((name, epoch, i))
    return rows


def _only(changes: Changes, items: Sequence[_Item]) -> dict[str, dict[int, pa.Table]]:
    """Some of the records."""
    which: dict[str, dict[int, list[int]]] = {name: defaultdict(list) for name in changes}
    for name, epoch, i in chain.from_iterable(items):
        which[name][epoch].append(i)
    return {
        name: {epoch: changes[name][epoch].take(pa.array(sorted(rows))) for epoch, rows in epochs.items()}
        for name, epochs in which.items()
    }


def _text(record: Mapping[str, Any], *, timed: bool = False) -> str:
    """A record in words; `timed`: its first column is its time."""
    values = [f"{name}={value!r}" for name, value in record.items()][timed:]
    time = f"{next(iter(record.values()))} " if timed else ""
    return f"{time}({', '.join(values)})"


def _titles(plan: Plan, steps: Sequence[str]) -> dict[str, str]:
    """Each step's name in the text of an explanation, see `StepRecords`."""
    sketch, sending = Sketch.of(plan), {*steps}
    boxes, names = sketch.boxes(), {step.key: step.name for step in sketch.steps}
    into: dict[str, list[str]] = defaultdict(list)
    ends = [step.name for step in sketch.steps if step.is_end]
    for arrow in sketch.arrows:
        source, target = names[arrow.source], names[arrow.target]
        if boxes[source] == boxes[target]:
            into[target].append(source)
        else:
            ends.append(source)
    # what a step that only routes sends on is what the steps before it have sent
    leaving = closure(ends, lambda step: () if step in sending else into[step])
    return {step: boxes[step] for step in steps if step in leaving}


# -- runs ----------------------------------------------------------------------------------------------------

_Sent = defaultdict[Stage, list[tuple[Any, pa.Table]]]
#: Rounds of one run; a loop may not end on a part of the inputs.
_ROUNDS = 10_000


@dataclass(frozen=True, slots=True)
class _Question:
    """The output that is asked about."""

    plan: Plan
    node: Node
    diff: str

    @property
    def _schema(self) -> pa.Schema:
        template: Any = self.node.template
        return template.schema

    def wanted(self, row: Any) -> dict[str, Any]:
        """The columns and values of the row: all of them, or some."""
        columns = [name for name in self._schema.names if name != self.diff]
        if not isinstance(row, Mapping):
            values = list(row) if isinstance(row, tuple | list) else [row]
            row = dict(zip(columns, values, strict=False)) if len(values) == len(columns) else row
        has = f"row={row!r}: output {self.node.name!r} has ({describe(self._schema)})"
        other = [name for name in row if name not in columns] if isinstance(row, Mapping) else [row]
        if not row or other:
            msg = f"{has}, not {other or 'a row without columns'}"
            hint = "give a dict of some of its columns, or a tuple of all of them but the differences."
            raise SchemaError(msg, where=caller(), hint=hint)
        for name, value in row.items():
            if _row(value, self._schema.field(name).type) is None:
                msg = f"{has}, and {value!r} is not a value of {name!r}"
                raise SchemaError(msg, where=caller(), hint="give a value of the column's type.")
        return dict(row)

    def has(self, changes: Changes, wanted: Mapping[str, Any]) -> bool:
        """Whether the output has the row at the end."""
        matches = _agreeing(self._run(changes), wanted)
        if self.diff not in matches.schema.names:
            return bool(matches.num_rows)
        names = [DIFF if name == self.diff else name for name in matches.schema.names]
        return bool(pc.any(pc.greater(consolidate(matches.rename_columns(names))[DIFF], 0)).as_py())

    def steps(self, changes: Changes, agreeing: Mapping[str, Any] | None = None) -> list[StepRecords]:
        """The records of the steps on the way to the output; of a row, those that agree with it."""
        seen: _Sent = defaultdict(list)
        self._run(changes, seen)
        steps = []
        for stage in sorted(seen, key=self.plan.stages.index):
            records = _shown(seen[stage])
            both = {name: value for name, value in (agreeing or {}).items() if name in records.schema.names}
            if both or (agreeing is None and records.num_rows):
                records = _named(_agreeing(records, both))
                steps.append(StepRecords(step=stage.name, where=str(stage.where), records=records))
        titles = _titles(self.plan, [each.step for each in steps])
        return [replace(each, title=titles.get(each.step, "")) for each in steps]

    def _run(self, changes: Changes, seen: _Sent | None = None) -> pa.Table:
        """The output's records of all epochs, if records come so."""
        plan = self.plan
        epochs = sorted({epoch for tables in changes.values() for epoch in tables}) or [0]
        workers = [Worker(plan, None, index) for index in range(plan.workers)]
        if seen is not None:
            way = _Way.to(plan, self.node, seen)
            for worker in workers:
                worker.context = _Recording(worker, way)
            for name, tables in changes.items():
                for index in plan.source(name).entries:
                    for at, table in sorted(tables.items()):
                        way.through(plan.channels[index], plan.times.epoch(at), table)
        coordinator = Coordinator(plan)
        result, outputs, number = coordinator.first(), [OUTPUTS.empty_table()], 0
        for epoch in (*epochs, None):
            rows = pa.concat_tables([result.rows, *_packed(plan, changes, epoch)])
            while rows.num_rows:
                written = run_workers(rows, lambda w, own: workers[w].step(number, own, result.header))  # noqa: B023
                result = coordinator.apply_round(number, written)
                outputs.append(result.outputs)
                rows, number = result.rows, number + 1
                if number > _ROUNDS:
                    msg = f"flow {plan.name!r} still runs after {number} rounds on a part of the inputs"
                    raise TimelyError(msg, where=caller(), hint="bound its loops with max_iterations.")
        parts: dict[int, list[pa.Table]] = {}
        for row in pa.concat_tables(outputs).filter(pc.field("sink") == self.node.name).to_pylist():
            parts.setdefault(row["epoch"], []).append(from_bytes(pa.py_buffer(row["payload"])))
        template: Any = self.node.template
        finished = [template.finish(parts[epoch]) for epoch in sorted(parts)]
        return pa.concat_tables([self._schema.empty_table(), *finished])


def _packed(plan: Plan, changes: Changes, epoch: int | None) -> Iterator[pa.Table]:
    """An epoch's input; None means the end."""
    for source in plan.inputs:
        name = source.name
        if epoch is None:
            yield pack_input(plan, name, [(0, "close", None, None)])
            continue
        table = changes.get(name, {}).get(epoch, source.stage.outputs[0].empty_table())
        if source.epochs == "manual":
            yield pack_input(plan, name, [(0, "send", epoch, table), (1, "advance", epoch + 1, None)])
        else:
            yield pack(plan, name, table, 0)


@dataclass(frozen=True, slots=True)
class _Way:
    """The steps on the way to an output, and what they sent."""

    seen: _Sent
    #: the locations from which the output is reached
    ahead: set[int]
    #: the per-batch stages of each channel that no earlier channel applies to the same records
    first: Mapping[int, set[Stage]]

    @classmethod
    def to(cls, plan: Plan, output: Node, seen: _Sent) -> _Way:
        """The way to an output."""
        ahead = {*plan.reach.summaries(output.arrives), output.arrives}
        paths, first = set[tuple[int, ...]](), dict[int, set[Stage]]()
        for channel in plan.channels:
            path: tuple[int, ...] = ()
            for edge in channel.edges if plan.lands(channel) in ahead else ():
                path = (*path, edge.index)
                if path not in paths:
                    paths.add(path)
                    first.setdefault(channel.index, set()).add(edge.target)
        return cls(seen, ahead, first)

    def through(self, channel: Channel, time: Timestamp, batch: pa.Table) -> None:
        """Keep what each of the per-batch stages of a channel sends."""
        for stage, port in channel.through if channel.index in self.first else ():
            batch = apply_stage(stage, batch)[port]
            if stage in self.first[channel.index]:
                self.seen[stage].append((time, batch))


class _Recording(CallContext):
    """Keeps what each step sends, if it is on the way to an output."""

    def __init__(self, worker: Worker, way: _Way) -> None:
        super().__init__(worker)
        self._way = way

    def send(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        plan, out = self.round.plan, self.node.out
        onwards = out[edge] if edge in range(len(out)) else ()
        if any(plan.lands(plan.channels[index]) in self._way.ahead for index in onwards):
            self._way.seen[self.node.stage].append((time, batch))
        super().send(edge, time, batch)

    def _send_over(self, index: int, time: Timestamp, batch: pa.Table) -> None:
        self._way.through(self.round.plan.channels[index], time, batch)
        super()._send_over(index, time, batch)


def _shown(parts: Sequence[tuple[Any, pa.Table]]) -> pa.Table:
    """Records with their times, as `_TIME`; changes are consolidated."""
    tables = []
    for time, batch in parts:
        table = batch if isinstance(batch, pa.Table) else pa.Table.from_pandas(batch)
        columns = [name for name in table.schema.names if not name.startswith(RESERVED) or name == DIFF]
        text = pa.repeat(pa.scalar(time_text(time.encode())), table.num_rows)
        tables.append(table.select(columns).add_column(0, _TIME, text))
    table = pa.concat_tables(tables, promote_options="permissive")
    return consolidate(table) if DIFF in table.schema.names else table


def _named(table: pa.Table) -> pa.Table:
    """The records with names for their times and differences that none of their columns has."""
    names: list[str] = table.schema.names
    for own, name in ((_TIME, "time"), (DIFF, "diff")):
        free = name + "_" * next(n for n in count() if name + "_" * n not in names)
        names = [free if column == own else column for column in names]
    return table.rename_columns(names)


def _agreeing(table: pa.Table, wanted: Mapping[str, Any]) -> pa.Table:
    """The rows with these values; null agrees with null, and NaN with NaN."""
    for name, value in wanted.items():
        if (one := _row(value, table.schema.field(name).type)) is None:  # a step's column of another type
            return table.slice(0, 0)
        values = one.take(pa.array(np.zeros(table.num_rows, np.int64)))
        table = table.filter(pa.array(same(table, values, [name], ["value"])))
    return table


def _row(value: Any, kind: pa.DataType) -> pa.Table | None:
    """A value in a table of one row, as one of a column's type; None if it does not fit."""
    try:
        return as_table([(value,)], pa.schema([("value", kind)]))
    except SchemaError:
        return None
