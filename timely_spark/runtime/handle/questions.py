"""`ask`, a method of `Query`: look up records at one complete epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from timely_spark.errors import NotComplete
from timely_spark.graph import caller, find, refuse
from timely_spark.graph import names as names_of
from timely_spark.runtime.handle.indexes import Answer, how_old
from timely_spark.times import as_epoch

if TYPE_CHECKING:
    from timely_spark.methods import Query


def ask(
    self: Query,
    name: str | Sequence[str],
    question: Any = None,
    *,
    keys: str | Sequence[str] | None = None,
    fresh: bool = False,
    within: float | str | None = None,
    at: int | None = None,
    timeout: float | None = None,
    diff: str = "diff",
) -> Answer:
    """Look up records of a captured collection, at one complete epoch (Naiad section 6.4).

    By default the answer is *stale*: that of the newest epoch which is complete. It comes at once, also
    while a loop runs in a micro-batch. A *fresh* answer waits, as `wait_for` does, for the epoch that has
    everything that the inputs have now; only inputs that lead to the output count. One *within* some time
    waits for what handles have sent until that time ago, and for all that is now in files and tables. With
    manual epochs, records of an epoch that is not closed are in no answer: `NotComplete`. Any number of
    threads may ask at once.

    The first question reads all captured changes into an index in this process. Later questions read what
    later epochs change; their cost grows with the answer. A question reads a few files, and never costs a
    micro-batch.

    Args:
        name: an output of `Collection.capture`; or several, which are joined from left to right on the
            columns that they share, all at the same epoch.
        question: what to look up: a DataFrame, an Arrow table, a dict of columns, a list of dicts. The
            columns that the collection has, too, are looked up. With `keys`: rows or values of those
            columns. None means everything.
        keys: the columns of `question`, if that is a list of values.
        fresh: wait for everything that the inputs have.
        within: how old the answer may be: seconds, or text such as "1s", "500ms", "2 minutes".
        at: an epoch that is complete, for an answer as it was then; reads the captured changes again.
        timeout: seconds to wait; None means without limit.
        diff: the column of differences, as in `capture`.

    **Columns:** out: the question's, then the other columns of the collections. Each row of the question
    comes once for each of its records, or once with nulls if there is none.

    Example:
        >>> query.ask("all groups", ["ann", "zoe"], keys="member").to_pandas()
          member     of
        0    ann    ops
        1    ann  staff
        2    zoe   None
        >>> query.ask("all groups", {"of": ["staff"]}, at=0).epoch
        0

    Raises:
        UnknownName: there is no captured output of a name.
        SchemaError: the question and the collection have no column in common, or of other types; the
            output is not a collection's.
        BadArgument: two of `fresh`, `within` and `at` are given, or `within` is not a time.
        InvalidTime: `at` is not an epoch.
        NotComplete: the epoch did not complete in time, or the query ended before; or records were sent
            to an epoch that an input has not closed; or the epoch `at` is not complete.
        TimelyError: the query failed.
    """
    asked_outputs: Any = name
    names: list[str] = list(asked_outputs) if isinstance(asked_outputs, list | tuple) else [asked_outputs]
    if not names:
        refuse(name, what="name", expected="the name of an output, or several", hint="name one.")
    outputs = self._indexes.schemas
    for each in names:
        find(outputs, each, kind="captured output", flow=self._context.name)
    age = how_old(fresh=fresh, within=within, at=at)
    if age is not None:
        _wait_for_fresh(self, names, age, timeout)
    elif at is not None and (until := self._watch.complete(names)) < as_epoch(at, "ask(at=)", caller()):
        what = f"ask({', '.join(map(repr, names))}, at={at})"
        raise NotComplete.yet(what, until, where=caller())
    columns = None if keys is None else names_of("ask", keys)
    return self._indexes.answer(names, question, columns, at=at, diff=diff)


def _wait_for_fresh(self: Query, names: Sequence[str], age: float, timeout: float | None) -> None:
    if (open_ := self._sent.open(names, age)) is not None:
        raise NotComplete.open(names, open_.epoch, open_.inputs, where=caller())
    closed, records = self._sent.epoch(names, age), self._sent.records(names, age)

    def epoch() -> int | None:
        until = closed()
        return None if until is None else max(until, records)

    if not self._wait(self._watch.past(names, epoch), timeout):
        raise NotComplete.at(names, self._watch.complete(names), timeout, where=caller())
