"""Methods of `Query` that give reasons: for an open epoch, for a row, for a loop that does not end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from timely_spark import provenance
from timely_spark.errors import GraphError, NotComplete
from timely_spark.graph import caller, refuse
from timely_spark.runtime.handle.changing import Changing
from timely_spark.runtime.handle.inspection import inspect
from timely_spark.runtime.handle.why import Why
from timely_spark.runtime.sources.account import Account
from timely_spark.times import as_epoch
from timely_spark.worker.expectations import Expectation

if TYPE_CHECKING:
    from timely_spark.methods import Query
    from timely_spark.provenance import Explanation, InputRecords


def why(self: Query, epoch: int | None = None) -> Why:
    """Why an epoch is not complete: the inputs, messages and notifications that keep it open.

    As of the newest complete batch. If the running one takes more than a moment, the first line says what it
    does: its loops with their iterations, and the step that works. The last lines of
    `python -m timely_spark status` say why the oldest epoch is open.

    Args:
        epoch: None means the oldest epoch in flight, or the next one if there is none.

    Example:
        >>> print(query.why())
        epoch 1 is held back by
          input groups (...) at epoch 1: advance or close it

    Raises:
        InvalidTime: `epoch` is not an epoch.
        QueryEnded: the query's temporary checkpoint is deleted.
    """
    self._check_kept("why()")
    flow = replace(inspect(self.checkpoint).at(), own=self._watch.summary)
    oldest = min(flow.manifest.open_epochs, default=flow.manifest.coordinator["begun"] + 1)
    at = oldest if epoch is None else as_epoch(epoch, "why", caller())
    return Why.of(flow, at, running=self.current_progress)


def audit(self: Query) -> dict[str, Account]:
    """What became of all that each input was given, up to the newest batch.

    Law: `listed == entered + quarantined + skipped`, in files, entries of handles, messages or captured
    epochs; and of the records that were read, `rows`, `late` ones were late, and all others are in the flow.
    `python -m timely_spark status` shows the same.

    Example:
        >>> print(query.audit()["groups"])
        2 entries, 3 records

    Raises:
        QueryEnded: the query's temporary checkpoint is deleted.
    """
    self._check_kept("audit()")
    return dict(self._watch.accounts())


def expectations(self: Query) -> dict[str, Expectation]:
    """How many records each `expect` has checked, by its name, and how many failed.

    Up to the newest batch.

    Example:
        >>> print(query.expectations()["not itself"])
        1 of 3 records failed, first {'member': 'bob', 'of': 'bob'} in epoch 0

    Raises:
        QueryEnded: the query's temporary checkpoint is deleted.
    """
    self._check_kept("expectations()")
    return inspect(self.checkpoint).at().manifest.expectations


def explain_row(
    self: Query,
    output: str,
    row: Any,
    *,
    inputs: Mapping[str, str | InputRecords] | None = None,
    at: int | None = None,
    diff: str = "diff",
) -> Explanation:
    """Explain why a row is in an output, or why it is not: the input records and steps that lead to it.

    A query keeps no inputs. So capture those that lead to the output: ``edges.capture("log")``. The
    flow then runs again on them, in this process and without Spark, as by `testing.explain_row`, which
    says what is found and what it costs. The query runs on.

    The other arguments are those of `testing.explain_row`.

    Args:
        inputs: for each input the name of a captured output that has its records, or the records. An
            input that is left out has the records of the `capture` of its own stream.
        at: a complete epoch; None means the last one that is complete at the output and its inputs.

    **Columns:** a captured output has at least those of the input.

    Example:
        >>> print(query.explain_row("all groups", ("ann", "staff")))
        (member='ann', of='staff') is in 'all groups' at epoch 0, because of
          groups: (member='ann', of='ops')
          groups: (member='ops', of='staff')
        by way of
          not itself (...): (0) (member='ann', of='ops'); (0) (member='ops', of='staff')
        ...

    Raises:
        UnknownName: there is no such input or output.
        SchemaError: the row does not fit the output, or records do not fit an input.
        GraphError: an input that leads to the output is neither captured nor in `inputs`.
        NotComplete: the epoch is not complete, or none is.
    """
    if inputs is not None and not isinstance(inputs, Mapping):
        refuse(inputs, what="inputs", expected="a mapping", hint='as in inputs={"edges": "log"}')
    plan = self._context.own_plan()
    sources = {**provenance.captured_inputs(plan), **(inputs or {})}
    before = provenance.inputs_before(plan, output)
    if missing := [name for name in before if name not in sources]:
        msg = f"explain_row: input {missing[0]!r} leads to {output!r}, and its records are not captured"
        hint = f'capture the input\'s stream, or give inputs={{"{missing[0]}": [...]}}, records by epoch; '
        hint += "of a DataFrame [frame.toArrow()]."
        raise GraphError(msg, where=caller(), hint=hint)
    options: dict[str, Any] = {
        name: self.captured(records) if isinstance(records, str) else records
        for name, records in sources.items()
    }
    if captured := [records for name in before if isinstance(records := sources[name], str)]:
        until = self._watch.complete([*captured, output])
        last = until if at is None else as_epoch(at, "explain_row(at=)", caller())
        if last > until or until < 0:
            what = f"explain_row({output!r}, {at=})"
            raise NotComplete.yet(what, until, where=caller())
        at = last
    return provenance.explain_row(plan, options, output, row, at=at, diff=diff)


def changing(self: Query, name: str, *, last: int = 16) -> Changing:
    """Which records of a loop still change, and whether that repeats; see `Round.changing`.

    As of the newest batch. A loop that does not end is reported with its name, after `warn_after`
    iterations; `cancel` ends it.

    Args:
        name: a loop; or a step in one: a reduction of collections, `distinct` or `arrange`, which keep
            all changes. Of loops of streams, the records in flight are shown; if there are none, there
            are no changes.
        last: how many of the last iterations are shown. A cycle is found if they have it twice.

    Example:
        >>> print(query.changing("closure"))
        closure.distinct at epoch 0, iterations 0 to 0: no cycle among them
          iteration 0: +(member='ann', of='ops'), +(member='ann', of='staff'), ...

    Raises:
        UnknownName: there is no such loop or step.
        QueryEnded: the query's temporary checkpoint is deleted.
    """
    self._check_kept("changing()")
    return inspect(self.checkpoint).at().changing(name, last=last)
