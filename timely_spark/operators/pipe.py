"""`pipe` and `ExternalVertex`: a vertex in another program, in any language that reads Arrow."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn
from uuid import uuid4

import pyarrow as pa

from timely_spark.errors import GraphError, StateError, TimelyError
from timely_spark.graph import (
    Partitioner,
    SchemaLike,
    States,
    Vertex,
    caller,
    describe,
    integer,
    operator,
    seconds,
)
from timely_spark.operators.custom import PartitionColumns
from timely_spark.operators.program import VERSION, Program, ProgramError, Reply, put_back, reused, shown
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

_REPLAYED_BYTES = 64 << 20
"""The calls since a checkpoint are repeated if the program ends; beyond this size there is another one."""


class ExternalVertex(Vertex):
    """A vertex in another program, which gets the four primitives as messages over its standard input.

    The page "A vertex in another program" has the protocol: `recv` and `notify` in, `send` and `notify_at`
    out, with records as Arrow IPC. The program answers `checkpoint` with the vertex's state, and gets it back
    by `open`. So state, restart and exactly-once are those of every vertex. A worker starts the program when
    its vertex is called first, and uses it again in later micro-batches.

    The law (Naiad section 3.4): equal calls, in equal order, lead to equal answers and equal state.

    A program that ends in the middle is started again, with the state of the last checkpoint and the calls
    since then. `Stream.pipe` is the short form for one input and one output.

    Args:
        command: the program and its arguments; a text is split like in a shell. No shell runs it. It must be
            there on all machines, the driver's included.
        env: environment variables for it, besides those of the worker.
        timeout: seconds for which it may be silent while it is asked.
        attempts: how often a call is tried, if the program ends.

    Example:
        >>> import sys, timely_spark as ts
        >>> flow = ts.Dataflow("external")
        >>> streams = [flow.input("people", "id long"), flow.input("orders", "id long, price double")]
        >>> vertex = ts.ExternalVertex([sys.executable, "match.py"])
        >>> matched, unmatched = flow.vertex(
        ...     vertex, streams, ["id long, price double", "id long"], by=["id", "id"]
        ... )

    Raises:
        GraphError: the program is not found here, or an argument is not allowed.
        VertexError: when it runs: the program ended, was silent for too long, or broke the protocol.
    """

    _transient: ClassVar[frozenset[str]] = Vertex._transient | {  # noqa: SLF001
        "_program", "_calls", "_called_bytes", "_finalizer"
    }  # fmt: skip

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        attempts: int = 2,
    ) -> None:
        self.command, self.env = _checked(command, env)
        #: the copies of this vertex use each other's programs
        self._key = uuid4().hex
        self.timeout, self.attempts = seconds("timeout", timeout, above=True), integer("attempts", attempts)
        #: what the program answered to the last `checkpoint`, and whether that is a table
        self.state, self.table = b"", False
        self._program: Program | None = None
        #: kills the program if the vertex goes without a checkpoint
        self._finalizer: Any = None
        #: the calls since the last checkpoint, and their size
        self._calls: list[tuple[dict[str, Any], bytes]] = []
        self._called_bytes = 0

    def on_recv(self, edge: int, time: Timestamp, batch: pa.Table) -> None:
        """Hand the batch to the program, and do what it answers."""
        self._call({"verb": "recv", "input": edge, "time": time.encode()}, to_bytes(batch))

    def on_notify(self, time: Timestamp) -> None:
        """Notify the program, and do what it answers."""
        self._call({"verb": "notify", "time": time.encode()}, b"")

    def _call(self, head: dict[str, Any], body: bytes) -> None:
        # all answers arrive before any is carried out: a call that is repeated has had no effect
        answers = self._asked(head, body)
        self._calls.append((head, body))
        self._called_bytes += len(body)
        if self._called_bytes > _REPLAYED_BYTES:
            self._take_state()
        for answer in answers[:-1]:
            self._carry_out(answer)

    def _carry_out(self, answer: Reply) -> None:
        head, decode = answer.head, self._context.times.decode
        if answer.verb == "state":
            self._broken("'state' to a call")
        try:
            time = decode(head["time"])
            if answer.verb == "send":
                output, table = head.get("output", 0), from_bytes(answer.body)
            else:
                capability = head.get("capability", head["time"])
                capability = None if capability is None else decode(capability)
        except (KeyError, TypeError, ValueError, TimelyError, pa.ArrowException) as error:
            self._broken(f"{dict(head)}: {type(error).__name__}: {error}")
        if answer.verb == "send":
            self.send_by(output, time, table)
        else:
            self.notify_at(time, capability=capability)

    # -- the program -----------------------------------------------------------------------------------------

    def _asked(self, head: dict[str, Any], body: bytes = b"") -> list[Reply]:
        """Ask the program; one that ended is started again, and gets the calls since the last checkpoint."""
        for attempt in range(1, self.attempts + 1):
            try:
                if self._program is None:
                    self._program = self._opened()
                    self._finalizer = weakref.finalize(self, self._program.kill)
                    for call in self._calls:
                        self._program.ask(*call)
                return self._program.ask(head, body)
            except ProgramError as error:  # noqa: PERF203 - few attempts
                self._program = None
                if not error.ended or attempt == self.attempts:
                    raise
        raise AssertionError  # there is at least one attempt

    def _opened(self) -> Program:
        """A program with this vertex's state."""
        program = reused((self._key, self.worker))
        if program is None:
            program = Program(self.command, self.env)
        program.timeout = self.timeout
        if program.holds == self._holds:
            return program
        head = {"verb": "open", "version": VERSION, "worker": self.worker, "workers": self.workers}
        *others, done = program.ask({**head, "table": self.table}, self.state)
        if others or done.head.get("version") != VERSION:
            program.kill()
            self._broken(f"{dict((others or [done])[0].head)} to 'open' of version {VERSION}")
        return program

    @property
    def _holds(self) -> tuple[Any, ...]:
        """The contents of a program in the state of this vertex."""
        return self.workers, hashlib.blake2b(self.state).digest()

    def _take_state(self) -> None:
        *states, _ = self._asked({"verb": "checkpoint"})
        if len(states) > 1 or any(each.verb != "state" for each in states):
            self._broken(f"{[each.verb for each in states]} to 'checkpoint'")
        self.state, self.table = b"", False
        for each in states:
            self.state, self.table = each.body, each.head.get("table") is True
            if self.table:
                try:
                    from_bytes(each.body)
                except pa.ArrowException as error:
                    self._broken(f"a state that is no Arrow stream: {error}")
        self._calls, self._called_bytes = [], 0

    def _broken(self, answer: str) -> NoReturn:
        if self._program is not None:
            self._program.kill()
        msg = f"{shown(self.command)} answered {answer}"
        raise ProgramError(msg, hint="let it answer as the page 'A vertex in another program' says.")

    # -- state -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Mapping[str, Any]:
        """The program's state, if it has one."""
        if self._calls:
            self._take_state()
        if self._program is not None:
            self._program.holds = self._holds
            self._finalizer.detach()
            put_back((self._key, self.worker), self._program)
            self._program = None
        return {"state": self.state, "table": self.table} if self.state else {}

    def repartition(self, states: States, workers: int, partition: Partitioner) -> States:
        """Repartition a state that is a table, by the columns that partition the first input."""
        if any(not state["table"] for state in states):
            msg = f"{shown(self.command)} has state that only it can read, for each worker"
            hint = (
                "start with the number of workers of before; or answer 'checkpoint' by a table that has the "
                "columns by which the first input is partitioned."
            )
            raise StateError(msg, hint=hint)
        tables = [from_bytes(state["state"]) for state in states]
        try:
            parts = [partition(0, table) for table in tables]
        except (KeyError, pa.ArrowInvalid) as error:
            msg = f"{shown(self.command)} has state with columns ({describe(tables[0].schema)}): {error}"
            hint = "answer 'checkpoint' by a table with the columns by which the first input is partitioned."
            raise StateError(msg, hint=hint) from error
        merged = [pa.concat_tables(each) for each in zip(*parts, strict=True)]
        return [{"state": to_bytes(one), "table": True} for one in merged]


def _checked(command: Any, env: Any) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The words of a command and the environment; checked that the program exists."""
    if isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as error:
            msg = f"command={command!r}: {error}"
            raise GraphError(msg, where=caller(), hint="give a list of words.") from error
    words = tuple(command) if isinstance(command, Sequence) else ()
    if not words or not all(isinstance(word, str) and word and "\0" not in word for word in words):
        msg = f"command={command!r} is not a program with its arguments"
        raise GraphError(msg, where=caller(), hint='give a list of texts: ["python3", "totals.py"].')
    settings = {} if env is None else env
    if not isinstance(settings, Mapping) or not all(
        isinstance(text, str) for pair in settings.items() for text in pair
    ):
        msg = f"env={env!r}"
        raise GraphError(msg, where=caller(), hint='give texts by name: {"LANG": "C"}.')
    if shutil.which(words[0], path=settings.get("PATH")) is None:
        msg = f"program {words[0]!r} is not there, or cannot be run"
        hint = "install it on every machine, the driver's included, or give its whole path."
        raise GraphError(msg, where=caller(), hint=hint)
    return words, tuple(sorted(settings.items()))


@operator(Stream)
def pipe(
    stream: Stream,
    command: str | Sequence[str],
    schema: SchemaLike,
    *,
    by: PartitionColumns = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    attempts: int = 2,
    name: str | None = None,
) -> Stream:
    r"""Pipe the records through another program, in any language that reads Arrow; it may keep state.

    A vertex in another program: see `ExternalVertex`, for which this is short, also for the guarantees. Like
    Spark's `RDD.pipe`, but with batches of Arrow instead of lines, with times and notifications, and with
    state in the checkpoint.

    Args:
        command: the program and its arguments.
        schema: the schema of what it sends.
        by: the columns by which the input is partitioned; by default it is not exchanged.
        env: environment variables for it.
        timeout: seconds for which it may be silent while it is asked.
        attempts: how often a call is tried, if the program ends.

    **Columns:** in: any; out: those of `schema`.

    Example:
        >>> import sys, tempfile, timely_spark as ts
        >>> script = '''
        ... import json, sys
        ... for line in sys.stdin.buffer:
        ...     head = json.loads(line)
        ...     body = sys.stdin.buffer.read(head["bytes"])
        ...     if head["verb"] == "recv":
        ...         answer = {"verb": "send", "time": head["time"], "bytes": len(body)}
        ...         sys.stdout.buffer.write(json.dumps(answer).encode() + b"\\n" + body)
        ...     sys.stdout.buffer.write(b'{"verb": "done", "version": 1}\\n')
        ...     sys.stdout.buffer.flush()
        ... '''
        >>> flow = ts.Dataflow("piped")
        >>> _ = flow.input("x", "n long").pipe([sys.executable, "-c", script], "n long").capture("out")
        >>> ts.testing.run(flow, {"x": [[1, 2], [3]]})["out"].rows()
        {0: [(1,), (2,)], 1: [(3,)]}

    Raises:
        GraphError: the program is not found here, or an argument is not allowed.
    """
    vertex = ExternalVertex(command, env=env, timeout=timeout, attempts=attempts)
    piped: Stream = stream.flow.vertex(vertex, stream, schema, by=by, name=name)
    return piped
