"""`RowReasons`: why rows are in outputs or not, for the readers of a console in the flow's own program."""

from __future__ import annotations

import json
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import BadArgument, TimelyError, with_hint
from timely_spark.runtime.sinks.sink import Sink
from timely_spark.show.table import ROWS

if TYPE_CHECKING:
    from timely_spark.methods import Query

#: The answers that are retained, and the epochs of an output whose rows are shown.
_ANSWERS, _EPOCHS = 16, 100


@dataclass(frozen=True, slots=True)
class RowReason:
    """An answer, as text; None while it is looked for."""

    asked: float
    #: the newest batch then: a later one may change the answer
    batch: int
    text: str | None = None
    #: whether it is an error, such as one of the storage: then a page that is loaded again asks again
    failed: bool = False


class RowReasons:
    """Answers one question at a time, in a thread: an answer runs the flow's functions many times.

    Outputs and rows are named as an address names them: a row is some of its columns as JSON.
    """

    def __init__(self, query: Query) -> None:
        #: the console's thread must not keep the query of a program that has forgotten it
        self._query, self._lock = weakref.proxy(query), threading.Lock()
        self._answers: dict[tuple[str, str], RowReason] = {}

    def ask(self, output: str, row: str) -> None:
        """Look for an answer as of now, if no other is looked for, and the last may change or failed."""
        with self._lock:
            newest, last = self._newest(), self._answers.get((output, row))
            if any(answer.text is None for answer in self._answers.values()):
                return
            if last is not None and last.batch == newest and not last.failed:  # a page that is loaded again
                return
            self._answers.pop((output, row), None)
            self._answers[output, row] = RowReason(time.time(), newest)
            while len(self._answers) > _ANSWERS:
                del self._answers[next(iter(self._answers))]
        threading.Thread(target=self._look, args=(output, row), name="timely-answer", daemon=True).start()

    def answer(self, output: str, row: str) -> RowReason | None:
        """The answer; None if it was not asked for, as another one is looked for."""
        return self._answers.get((output, row))

    def rows(self, output: str) -> list[tuple[str, dict[str, Any]]]:
        """Some of the last rows of an output, each as an address names it, and as it is.

        They are what was captured, or is in the file that was written last.
        """
        try:
            watch, sinks = self._query._watch, self._query._sinks  # noqa: SLF001 - parts of the query
            plan = self._query._context.plan  # noqa: SLF001
        except ReferenceError:
            return []
        if output not in sinks:
            return []
        if output in watch.schemas():
            until = watch.complete([output])
            tables = [table for _, table in watch.released(output, until - _EPOCHS, until)]
        else:
            tables = [table for table in [_written(sinks[output])] if table is not None]
        schema, diff = plan.by_name[output].template.schema, plan.differences.get(output, "diff")
        rows = pa.concat_tables(tables).to_pylist() if tables else []
        return [(_as_text(row, schema, diff), row) for row in rows[-ROWS:]]

    def _newest(self) -> int:
        """The newest batch; -1 if nobody has the query any more, which the answer says then."""
        try:
            batch: int = self._query._watch.newest().batch  # noqa: SLF001 - a part of the query
        except ReferenceError:
            return -1
        return batch

    def _look(self, output: str, row: str) -> None:
        failed = True
        try:
            text = str(self._query.explain_row(output, self._row(output, row)))
            failed = False
        except TimelyError as error:
            text = with_hint(error.message, error.hint)  # its line is one of the server
        except Exception as error:  # noqa: BLE001 - whatever a function of the flow raises
            text = f"{type(error).__name__}: {error}"
        self._answers[output, row] = replace(self._answers[output, row], text=text, failed=failed)

    def _row(self, output: str, text: str) -> Any:
        """The row that an address names."""
        try:
            row = json.loads(text)
        except ValueError as error:
            msg, hint = f"{text} is not JSON: {error}", 'write some of the columns, as {"node": 3}.'
            raise BadArgument(msg, hint=hint) from error
        nodes = self._query._context.plan.by_name  # noqa: SLF001 - a part of the query
        schema = nodes[output].template.schema if output in nodes else pa.schema([])
        return dict(_values(row, schema)) if isinstance(row, dict) else row


def _written(sink: Sink) -> pa.Table | None:
    """What a sink has written last; None if that cannot be read, or was removed meanwhile."""
    try:
        return sink.written(ROWS)
    except (OSError, ValueError, NotImplementedError):  # pa.ArrowInvalid is a ValueError
        return None


def _as_text(row: dict[str, Any], schema: pa.Schema, diff: str) -> str:
    """A row as an address names it: without its difference, and columns that JSON has no text for."""
    types = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_duration)
    columns = [f.name for f in schema if f.name != diff and not any(is_one(f.type) for is_one in types)]
    return json.dumps({name: row[name] for name in columns if name in row}, default=str)


def _values(row: dict[str, Any], schema: pa.Schema) -> Iterator[tuple[str, Any]]:
    """The values of JSON; texts become dates and decimals where the columns have these types."""
    for name, value in row.items():
        kind = schema.field(name).type if name in schema.names else pa.string()
        if isinstance(value, str) and not pa.types.is_string(kind):
            try:
                yield name, pa.scalar(value).cast(kind).as_py()
            except pa.ArrowException:  # the error names the value and its column
                yield name, value
        else:
            yield name, value
