"""`call`: questions to services outside, many at a time; an epoch is complete when all are answered.

`asyncio` is imported where questions are asked: each Python process of any flow imports this module, and
would take 15 ms more.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from timely_spark.errors import GraphError, LogDamaged, StorageFailed
from timely_spark.graph import (
    SchemaLike,
    Vertex,
    absolute,
    as_schema,
    as_table,
    caller,
    integer,
    operator,
    seconds,
)
from timely_spark.operators.rows import check_function
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

_FIRST_PAUSE = 0.1
"""Seconds before a call is repeated; doubled each time."""


class Call(Vertex):
    """Send the answers to each batch at the batch's time; its capability is held until the last is there.

    The vertex has no state: a micro-batch that is run again asks again, or reads the recorded answers.
    """

    reads_time, per_time = False, True
    _transient: ClassVar[frozenset[str]] = Vertex._transient | {"_swept"}  # noqa: SLF001 - the base class's

    def __init__(
        self,
        function: Callable[[pa.Table], Any],
        schema: pa.Schema,
        *,
        concurrency: int,
        rows: int,
        timeout: float,
        attempts: int,
        record: str | None,
    ) -> None:
        self.function, self.schema, self.concurrency, self.rows = function, schema, concurrency, rows
        self.timeout, self.attempts, self.record = timeout, attempts, record
        #: the micro-batch up to which recorded answers were deleted
        self._swept = 0

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Ask, wait for all answers, and send them in the order of their questions."""
        import asyncio

        answers = None if self.record is None else self._answers(self.record, time)
        parts = [batch.slice(first, self.rows) for first in range(0, batch.num_rows, self.rows)]
        # a thread of its own: a notebook's thread has an event loop already
        pool = ThreadPoolExecutor(self.concurrency + 1, "call")
        try:
            tables = pool.submit(asyncio.run, self._all(parts, answers, pool)).result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        self.send_by(0, time, pa.concat_tables(tables))

    def _answers(self, record: str, time: Timestamp) -> Answers:
        """The recorded answers of a time; those of batches that cannot run again are deleted."""
        number = self._context.batch()
        answers = Answers(record, number, time)
        if number > self._swept:
            self._swept = number
            answers.sweep(number - self._context.repeatable_batches())
        return answers

    async def _all(
        self, parts: list[pa.Table], answers: Answers | None, pool: ThreadPoolExecutor
    ) -> list[pa.Table]:
        import asyncio

        free = asyncio.Semaphore(self.concurrency)

        async def answered(part: pa.Table) -> pa.Table:
            async with free:
                recorded = answers.read(part) if answers is not None else None
                if recorded is not None:
                    return recorded
                table = as_table(await self._asked(part, pool), self.schema, projected=True)
                if answers is not None:
                    answers.write(part, table)
                return table

        tasks = [asyncio.ensure_future(answered(part)) for part in parts]
        # all calls end before an error is raised: what is answered is recorded, and not asked again
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    async def _asked(self, part: pa.Table, pool: ThreadPoolExecutor) -> Any:
        import asyncio

        pause = _FIRST_PAUSE
        for left in range(self.attempts - 1, -1, -1):
            try:
                return await asyncio.wait_for(self._answer(part, pool), self.timeout)
            except asyncio.TimeoutError as error:
                if not left:
                    msg = f"{self.attempts} calls had no answer within {self.timeout} s"
                    raise TimeoutError(msg) from error
            except asyncio.CancelledError as error:  # the function's own: nobody else cancels a call
                if not left:
                    raise _named(error) from error
            except Exception:
                if not left:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError  # there is at least one attempt

    async def _answer(self, part: pa.Table, pool: ThreadPoolExecutor) -> Any:
        import asyncio

        if inspect.iscoroutinefunction(self.function):
            return await self.function(part)
        answer = await asyncio.get_running_loop().run_in_executor(pool, self._called, part)
        return await answer if inspect.isawaitable(answer) else answer  # a lambda around a coroutine function

    def _called(self, part: pa.Table) -> Any:
        try:
            return self.function(part)
        # which a future does not take: nobody would hear of it; or which ends the thread's event loop
        except (StopIteration, SystemExit) as error:
            raise _named(error) from error


def _named(error: BaseException) -> RuntimeError:
    """An error that a task or a future takes for one."""
    text = ": ".join(filter(None, [type(error).__name__, str(error)]))
    return RuntimeError(text).with_traceback(error.__traceback__)


class Answers:
    """The recorded answers of a time: a file for each call, in a folder for each micro-batch.

    A micro-batch that runs again has its number, and asks the same. Its epochs say nothing about it: several
    may be complete before it is committed. A file appears whole, by a rename. Source: the logs of Naiad
    section 3.4, here of what is not repeatable.
    """

    def __init__(self, path: str, batch: int, time: Timestamp) -> None:
        self.files, self.path = fs.FileSystem.from_uri(path if "://" in path else str(Path(path).resolve()))
        self.time = time
        self.folder = f"{self.path}/{batch}"

    def _name(self, question: pa.Table) -> str:
        digest = hashlib.sha256(json.dumps(self.time.encode()).encode())
        digest.update(to_bytes(question))
        return f"{self.folder}/{digest.hexdigest()}.arrow"

    def read(self, question: pa.Table) -> pa.Table | None:
        """The recorded answer to a question of this time; None if none was recorded."""
        name, content = self._name(question), None
        with (
            StorageFailed.owning(f"call: record: {name}", "read"),
            suppress(FileNotFoundError),
            self.files.open_input_stream(name) as file,
        ):
            content = file.read()
        try:
            return None if content is None else from_bytes(content)
        except (pa.ArrowException, OSError) as error:  # of an empty file, after a loss of power
            raise LogDamaged.unreadable(self.path, name, error) from error

    def write(self, question: pa.Table, answer: pa.Table) -> None:
        """Record an answer."""
        draft, name = f"{self.folder}/{uuid4().hex}.draft", self._name(question)
        with StorageFailed.owning(f"call: record: {name}"):
            self.files.create_dir(self.folder)
            with self.files.open_output_stream(draft) as file:
                file.write(to_bytes(answer))
            self.files.move(draft, name)

    def sweep(self, batch: int) -> None:
        """Delete the answers of micro-batches before this one, which cannot run again."""
        with StorageFailed.owning(f"call: record: {self.path}", "swept"):
            for entry in self.files.get_file_info(fs.FileSelector(self.path, allow_not_found=True)):
                name = entry.base_name
                if entry.type is fs.FileType.Directory and name.isdecimal() and int(name) < batch:
                    with suppress(FileNotFoundError):  # another worker was first
                        self.files.delete_dir(entry.path)


@operator(Stream)
def call(
    stream: Stream,
    function: Callable[[pa.Table], Any],
    schema: SchemaLike,
    *,
    rows: int = 100,
    concurrency: int = 8,
    timeout: float = 30.0,
    attempts: int = 3,
    record: str | None = None,
    name: str | None = None,
) -> Stream:
    """Ask a service outside about the records, many calls at a time; answers have their questions' times.

    An epoch (and an iteration of a loop) is complete when all its calls are answered. A worker waits for the
    answers within its round, so a slow service delays later epochs: the page "Naiad's mechanisms" has the
    reason, and "Sharing between flows" how questions and answers go by files, which delays none. A call that
    fails or takes too long is repeated, after 0.1 s, 0.2 s and so on; after the last attempt the query fails:
    the epoch stays open.

    **At least once:** a micro-batch that runs again, after a failure or a restart, asks again. With `record`
    each answer is recorded as it arrives; a repeated micro-batch reads the recorded answers and asks only for
    the others, so results are exactly once in effect. Without it, a service whose answers vary may give the
    repeated micro-batch others than a sink has already written. Recorded answers are kept as long as Spark
    can run their micro-batch again (``spark.sql.streaming.minBatchesToRetain``; at least 102 micro-batches).
    Equal calls of one time share an answer.

    Args:
        function: gets a table of at most `rows` records; returns an Arrow table, a pandas frame or rows, of
            any number. May be a coroutine function (``async def``). Other functions run in threads; one that
            hangs is left behind after `timeout`: give the client of the service a limit of its own.
        schema: the schema of the answers.
        rows: records per call.
        concurrency: how many calls each worker has open at a time.
        timeout: seconds for each attempt.
        attempts: how often a call is tried.
        record: a folder, or a URI of ``pyarrow.fs``, for the answers of this step; all workers must reach it.

    **Columns:** in: any; out: those of `schema`. No exchange: records stay on their workers.

    Example:
        >>> import timely_spark as ts
        >>> async def lengths(questions):
        ...     return [(word, len(word)) for word in questions["word"].to_pylist()]
        >>> flow = ts.Dataflow("asks")
        >>> _ = flow.input("words", "word string").call(lengths, "word string, length long").capture("out")
        >>> ts.testing.run(flow, {"words": [["ab", "c"]]})["out"].rows()
        {0: [('ab', 2), ('c', 1)]}

    Raises:
        BadArgument: `rows`, `concurrency` or `attempts` is not a number of at least 1, or `timeout` is 0.
        GraphError: `function` is not a function, or another step has the same `record`.
    """
    check_function("call", function, "table", awaited=True)
    folder: Any = record
    if folder is not None and not (isinstance(folder, str) and folder):
        msg = f"call: record={record!r}"
        raise GraphError(msg, where=caller(), hint="give a folder as text, or leave record out.")
    folder = folder and absolute(folder)
    others = [stage for stage in stream.flow.graph.stages if isinstance(stage.vertex, Call)]
    if folder and (same := [each.name for each in others if each.vertex.record == folder]):  # type: ignore[union-attr]
        msg = f"call: record={record!r} is the folder of step {same[0]!r}"
        raise GraphError(msg, where=caller(), hint="give each step a folder of its own.")
    vertex = Call(
        function,
        as_schema(schema),
        concurrency=integer("concurrency", concurrency, step="call"),
        rows=integer("rows", rows, step="call"),
        timeout=seconds("timeout", timeout, above=True),
        attempts=integer("attempts", attempts, step="call"),
        record=folder,
    )
    return stream.then("call", [vertex.schema], name=name, vertex=vertex)[0]
