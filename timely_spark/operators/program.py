"""`Program`: a program that runs beside a worker, and answers its messages over standard input and output.

A message is a line of JSON, with the number of bytes that follow it. Programs that are not in use wait for
the next vertex with the same command, so that one is started per worker and not per micro-batch.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from timely_spark.errors import TimelyError

try:
    import fcntl
except ImportError:  # no such module on Windows
    fcntl = None  # type: ignore[assignment]

VERSION = 1
"""The version of the protocol."""

IDLE_SECONDS = 60.0
"""How long a program that is not in use waits for the next vertex."""

#: the most bytes that are shown of a command or a line, and of standard error; of a line of JSON; of a read
_SHOWN, _TAIL, _LINE, _CHUNK = 100, 2_000, 1 << 16, 1 << 20
_ANSWERS = frozenset({"send", "notify_at", "state", "done"})

Command: TypeAlias = tuple[str, ...]
Environment: TypeAlias = tuple[tuple[str, str], ...]


def shown(command: Command) -> str:
    """A program, for messages.

    >>> shown(("python3", "totals.py"))
    "program 'python3 totals.py'"
    """
    text = shlex.join(command)
    return f"program {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'!r}"


class ProgramError(TimelyError, RuntimeError):
    """A program that a vertex runs cannot be started, ended, was silent, or broke the protocol.

    Attributes:
        ended: whether the program ended, so that another one may do better.

    >>> issubclass(ProgramError, RuntimeError)
    True
    """

    ended: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of a program: its line of JSON, and the bytes that follow."""

    head: Mapping[str, Any]
    body: bytes

    @property
    def verb(self) -> str:
        """The kind of the answer."""
        verb: str = self.head["verb"]
        return verb


class Program:
    """A running program. After an error it is killed.

    >>> done = Program(("sed", "-u", 's/.*/{"verb": "done"}/'), ())
    >>> done.ask({"verb": "checkpoint"})
    [Reply(head={'verb': 'done'}, body=b'')]
    >>> done.kill()
    """

    def __init__(self, command: Command, environment: Environment) -> None:
        self.command = command
        #: seconds for which it may be silent
        self.timeout = 60.0
        #: what it may answer
        self.answers = _ANSWERS
        #: what state it has, if that is known
        self.holds: tuple[Any, ...] = ()
        self.unused_since = 0.0
        self._answered, self._stderr = bytearray(), b""
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's program, without a shell
                command,
                env=os.environ | dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl-C in a terminal is for the flow
            )
        except OSError as error:
            msg = f"{self} cannot be started: {error}"
            hint = "install it on every machine, the driver's included, or give its whole path."
            raise ProgramError(msg, hint=hint) from error
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            if hasattr(fcntl, "F_SETPIPE_SZ"):  # on Linux, if the limit of the user allows it
                with contextlib.suppress(OSError):
                    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _CHUNK)
        self._reader = threading.Thread(target=self._read_stderr, name="program", daemon=True)
        self._reader.start()

    def __str__(self) -> str:
        """The program, for messages."""
        return shown(self.command)

    # -- messages --------------------------------------------------------------------------------------------

    def ask(self, head: Mapping[str, Any], body: bytes = b"") -> list[Reply]:
        """Send a message; returns the answers; the last one is `done`.

        Raises:
            ProgramError: the program ended, wrote something else, or was silent for too long.
        """
        line = json.dumps({**head, "bytes": len(body)}, separators=(",", ":")) + "\n"
        try:
            return self._asked([memoryview(line.encode()), memoryview(body)])
        except BaseException:
            self.kill()
            raise

    def _asked(self, unsent: list[memoryview]) -> list[Reply]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        answers: list[Reply] = []
        with selectors.DefaultSelector() as pipes:
            # both ways at once: a program may answer before it has read everything
            pipes.register(stdout, selectors.EVENT_READ)
            pipes.register(stdin, selectors.EVENT_WRITE)
            while True:
                while (answer := self._next()) is not None:
                    answers.append(answer)
                    if answer.verb != "done":
                        continue
                    if unsent or self._answered:
                        msg = "sent 'done' before the end of a message, or more after it"
                        raise self._error(msg)
                    return answers
                ready = [key.fileobj for key, _ in pipes.select(self.timeout)]
                if not ready:
                    msg = f"did not answer within {self.timeout} s"
                    raise self._error(msg, hint="give timeout= more seconds, or flush its output.")
                if stdin in ready and not self._write(stdin.fileno(), unsent):
                    pipes.unregister(stdin)
                if stdout in ready:
                    if not (chunk := os.read(stdout.fileno(), _CHUNK)):
                        raise self._ended()
                    self._answered += chunk

    def _write(self, to: int, unsent: list[memoryview]) -> bool:
        """Write a part of what is left; returns whether more is left."""
        try:
            sent = os.write(to, unsent[0][:_CHUNK])
        except BrokenPipeError:
            raise self._ended() from None
        unsent[0] = unsent[0][sent:]
        unsent[:] = [part for part in unsent if len(part)]
        return bool(unsent)

    def _next(self) -> Reply | None:
        """The next answer of those that have arrived; None if it is not whole."""
        end = self._answered.find(b"\n", 0, _LINE)
        if end < 0:
            if len(self._answered) >= _LINE:
                raise self._junk(bytes(self._answered))
            return None
        line = bytes(self._answered[:end])
        try:
            head = json.loads(line)
            size = head.get("bytes", 0)
            valid = head["verb"] in self.answers and type(size) is int and size >= 0
        except (ValueError, AttributeError, KeyError, TypeError):
            valid = False
        if not valid:
            raise self._junk(line)
        if len(self._answered) < end + 1 + size:
            return None
        body = bytes(memoryview(self._answered)[end + 1 : end + 1 + size])
        del self._answered[: end + 1 + size]
        return Reply(head, body)

    # -- errors ----------------------------------------------------------------------------------------------

    def _error(
        self, what: str, *, hint: str = "write messages as the page 'A vertex in another program' says."
    ) -> ProgramError:
        stderr = self._stderr.decode(errors="replace").strip()
        more = f"; its standard error: {stderr}" if stderr else ""
        return ProgramError(f"{self} {what}{more}", hint=hint)

    def _junk(self, line: bytes) -> ProgramError:
        text = line[:_SHOWN].decode(errors="replace")
        return self._error(
            f"wrote {text!r}, which is not a message",
            hint="print to standard error: standard output is for messages only.",
        )

    def _ended(self) -> ProgramError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self._reader.join(timeout=1)  # what it wrote last
        code = self._process.returncode
        how = "closed its standard output" if code is None else f"ended with code {code}"
        how = f"was killed by signal {-code}" if code is not None and code < 0 else how
        error = self._error(how, hint="let it read messages until its input ends.")
        error.ended = True
        return error

    # -- its life --------------------------------------------------------------------------------------------

    @property
    def runs(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the program at once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_stderr(self) -> None:
        """Keep the end of what the program writes to standard error; end a program that is not used."""
        stderr = self._process.stderr
        assert stderr is not None
        with stderr, selectors.DefaultSelector() as pipe:
            pipe.register(stderr, selectors.EVENT_READ)
            while True:
                if not pipe.select(IDLE_SECONDS / 2):
                    if _forgotten(self):
                        self.kill()
                    continue
                if not (chunk := os.read(stderr.fileno(), _CHUNK)):
                    return
                self._stderr = (self._stderr + chunk)[-_TAIL:]


# -- programs that are not in use ----------------------------------------------------------------------------

#: by process, vertex and worker; another process after a fork has none
_unused: dict[tuple[Any, ...], Program] = {}
_lock = threading.Lock()


def reused(key: tuple[Any, ...]) -> Program | None:
    """The program that was put back under this key; None if there is no such program, or it has ended."""
    with _lock:
        program = _unused.pop((os.getpid(), *key), None)
    if program is None or program.runs:
        return program
    program.kill()
    return None


def put_back(key: tuple[Any, ...], program: Program) -> None:
    """Keep a program for the next vertex with this key; it takes the place of an earlier one."""
    program.unused_since = time.monotonic()
    place = (os.getpid(), *key)
    with _lock:
        earlier = _unused.pop(place, None)
        _unused[place] = program
    if earlier is not None:
        earlier.kill()


def _forgotten(program: Program) -> bool:
    """Whether a program has not been used for too long; it is not reused any more then."""
    with _lock:
        keys = [key for key, unused in _unused.items() if unused is program]
        if not keys or time.monotonic() - program.unused_since < IDLE_SECONDS:
            return False
        del _unused[keys[0]]
        return True


@atexit.register
def _end_all() -> None:
    with _lock:
        own = [program for (process, *_), program in _unused.items() if process == os.getpid()]
        _unused.clear()
    for program in own:
        program.kill()
