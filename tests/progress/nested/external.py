"""`ExternalScope`: a scope in another program, which keeps the protocol of scopes over pipes.

A vertex answers a message and is quiet; a scope has work of its own between two messages, and says so. The
messages are those of the page "A vertex in another program", with these; each ends in the answer `done`:

- `open`: `version`; the bytes are the state. The program answers `summary`: `inputs`, `outputs`, `paths` (by
  input, by output, a list of path summaries), `internal`.
- `set_external_summary`: `paths` (by output, by input), `external`.
- `push_external_progress`: `external`, the changes of the frontier of each input.
- `recv`: `input`, `time`; the bytes are records.
- `pull_internal_progress`. The program answers `progress`: `internal` by output, `consumed` by input,
  `produced` by output, and `unreported`.
- `checkpoint`. The program answers `state`.

Changes are, for each port, a list of [time, change]. A path summary is a list of three: for each coordinate
the largest value that passes, the increments of those that are kept, and the coordinates that are added. To
any message the program may answer `send`, as a vertex does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from tests.progress.nested.operate import Changes, Progress, Summaries
from timely_spark.compiler.summary import encoded_path
from timely_spark.errors import TimelyError
from timely_spark.operators.program import VERSION, Program, ProgramError, Reply
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.times import PRODUCT, Antichain, Timestamp

__all__ = ("ExternalScope",)


class ExternalScope:
    """A scope in another program: an operator of a `Subgraph`, whose four methods are messages.

    Records go in by `recv`, and what the program sends is in `sent`. What it reports is checked:
    consumed are the messages that it got, produced those that it sent.

    Law: after `ExternalScope(command, state=scope.checkpoint())` and `set_external_summary`, the scope goes
    on as if it had not ended; messages that it got since the checkpoint are given again.

    Args:
        command: the program and its arguments.
        state: a result of `checkpoint`; by default the program's initial state.
        times: the kind of time around the scope: `times.PRODUCT` or `times.LEXICOGRAPHIC`.
        env: more variables of its environment.
        timeout: the seconds for which it may be silent.

    Raises:
        ProgramError: the program cannot be started; by every method: it ended, was silent, or broke the
            protocol. It is killed then.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        state: bytes = b"",
        times: Any = PRODUCT,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._times = times
        self._program = Program(tuple(command), tuple(sorted((env or {}).items())))
        self._program.timeout = timeout
        self._program.answers = frozenset({"summary", "progress", "send", "state", "done"})
        #: what the program has sent and nobody has taken yet: (output, time, records)
        self.sent: list[tuple[int, Any, pa.Table]] = []
        self.inputs = self.outputs = 0
        found = self._ask("open", "summary", state, version=VERSION)
        try:
            self.inputs, self.outputs = int(found["inputs"]), int(found["outputs"])
            self._paths = [
                [Antichain(times.summary(*map(tuple, path)) for path in each) for each in row]
                for row in found["paths"]
            ]
        except (KeyError, TypeError, ValueError, TimelyError) as error:
            self._broken(found, error)
        if [len(row) for row in self._paths] != [self.outputs] * self.inputs:
            self._broken(found, f"not {self.inputs} by {self.outputs} paths")
        self._internal = self._changes(found, "internal", self.outputs)
        #: by port the messages that are not consumed, and those that it sent since its last report
        self._received = [Counter[Any]() for _ in range(self.inputs)]
        self._produced = [Counter[Any]() for _ in range(self.outputs)]

    # -- the protocol of scopes ------------------------------------------------------------------------------

    def get_internal_summary(self) -> tuple[Summaries, Changes]:
        """The paths through the scope, and the work that it begins with, as the program reports them."""
        return self._paths, self._internal

    def set_external_summary(self, summaries: Summaries, external: Changes) -> None:
        """Tell the program of the paths around it, and of the initial frontiers of its inputs."""
        paths = [[[encoded_path(path) for path in each] for each in row] for row in summaries]
        self._ask("set_external_summary", None, paths=paths, external=_encoded_changes(external))

    def push_external_progress(self, external: Changes) -> None:
        """Tell the program of changes of the frontiers of its inputs."""
        self._ask("push_external_progress", None, external=_encoded_changes(external))

    def pull_internal_progress(self) -> Progress:
        """What the program did since the last call; it may work before it answers."""
        found = self._ask("pull_internal_progress", "progress")
        progress = Progress(
            self._changes(found, "internal", self.outputs),
            self._changes(found, "consumed", self.inputs),
            self._changes(found, "produced", self.outputs),
            unreported=found.get("unreported") is True,
        )
        consumed, produced = (
            [Counter(dict(port)) for port in changes] for changes in (progress.consumed, progress.produced)
        )
        if not all(n <= received for n, received in zip(consumed, self._received, strict=True)):
            self._broken(found, "it consumed messages that it did not get")
        if produced != self._produced:
            self._broken(found, "it produced other messages than it sent")
        for n, received in zip(consumed, self._received, strict=True):
            received -= n  # noqa: PLW2901 - in place, without zeros
        self._produced = [Counter[Any]() for _ in range(self.outputs)]
        return progress

    # -- records and state -----------------------------------------------------------------------------------

    def recv(self, port: int, time: Timestamp, records: pa.Table) -> None:
        """Give the program a message of an input; it is consumed when the program says so."""
        self._received[port][time] += 1
        self._ask("recv", None, to_bytes(records), input=port, time=time.encode())

    def checkpoint(self) -> bytes:
        """The program's state, after a report in which all that it got was consumed."""
        if any(self._received) or any(self._produced):
            msg = f"{self._program}: a checkpoint before its last messages were reported"
            raise TimelyError(msg, hint="call pull_internal_progress first.")
        replies = self._asked({"verb": "checkpoint"})
        return b"".join(reply.body for reply in replies if reply.verb == "state")

    def close(self) -> None:
        """End the program."""
        self._program.kill()

    # -- messages --------------------------------------------------------------------------------------------

    def _ask(self, verb: str, answer: str | None, body: bytes = b"", **head: Any) -> Mapping[str, Any]:
        """Send a message, keep what the program sends, and return the answer that is due."""
        *replies, done = self._asked({"verb": verb, **head}, body)
        due = [reply.head for reply in replies if reply.verb == answer]
        for reply in replies:
            if reply.verb == "send":
                self._sent(reply)
            elif reply.verb != answer:
                self._broken(reply.head, f"an answer to {verb!r}")
        if len(due) != (answer is not None):
            self._broken(done.head, f"{len(due)} answers {answer!r} to {verb!r}")
        return due[0] if due else {}

    def _asked(self, head: Mapping[str, Any], body: bytes = b"") -> list[Reply]:
        if not self._program.runs:
            msg = f"{self._program} has ended"
            raise ProgramError(msg, hint="open another one with the state of its last checkpoint.")
        return self._program.ask(head, body)

    def _sent(self, reply: Reply) -> None:
        try:
            output, time = int(reply.head.get("output", 0)), self._times.decode(reply.head["time"])
            if not 0 <= output < self.outputs:
                self._broken(reply.head, f"there are {self.outputs} outputs")
            self.sent.append((output, time, from_bytes(reply.body)))
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            self._broken(reply.head, error)
        self._produced[output][time] += 1

    def _changes(self, found: Mapping[str, Any], what: str, ports: int) -> list[list[tuple[Any, int]]]:
        """Changes of counts by port; without any where nothing has changed."""
        try:
            given = found.get(what) or [[] for _ in range(ports)]
            changes = [self._added_up(port) for port in given]
        except (TypeError, ValueError) as error:
            self._broken(found, error)
        if len(changes) != ports:
            self._broken(found, f"{what} of {len(changes)} ports, there are {ports}")
        return changes

    def _added_up(self, port: Sequence[tuple[Any, int]]) -> list[tuple[Any, int]]:
        """The changes at each time in one, since a program may tell a time more than once."""
        sums: Counter[Any] = Counter()
        for time, n in port:
            sums[self._times.decode(time)] += int(n)
        return [(time, n) for time, n in sums.items() if n]

    def _broken(self, head: Mapping[str, Any], why: object) -> NoReturn:
        self._program.kill()
        reason = why
        if isinstance(why, Exception):  # without a hint of its own
            reason = f"{type(why).__name__}: {getattr(why, 'message', why)}"
        msg = f"{self._program} answered {dict(head)}: {reason}"
        raise ProgramError(msg, hint="let it answer as the protocol says.")


def _encoded_changes(changes: Changes) -> list[list[list[Any]]]:
    return [[[time.encode(), n] for time, n in port] for port in changes]
