"""Where a run can be killed: functions of the runtime wrapped from outside, and files that Spark writes.

The one table of points. A point counts each time it is reached, in whatever process of a run; an order says
at which count of which point whom to kill. `install` wraps; Spark's Python workers and the process of the
flow's source get there by `sitecustomize`. The package itself knows nothing of all this.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

RUNTIME = "timely_spark.runtime."
#: Who can be killed where a point is reached.
DRIVER, SOURCE = ("driver", "group"), ("driver", "group", "python")
TASK = (*SOURCE, "executor")


@dataclass(frozen=True)
class Call:
    """A function of the runtime: the points `<name>.before` and `<name>.after`."""

    name: str
    module: str
    function: str
    #: a path below the run's folder, from the arguments
    path: Callable[..., Any]
    victims: tuple[str, ...] = DRIVER


CALLS = (
    Call("claim", "storage.log", "RoundLog.claim", lambda log, *_: log.checkpoint),
    Call("align", "storage.log", "RoundLog.align", lambda log: log.checkpoint),
    Call("sweep", "storage.log", "RoundLog.sweep", lambda log: log.checkpoint),
    Call("batch", "query.driver", "Driver.__call__", lambda driver, *_: driver.context.checkpoint),
    Call("begin", "storage.log", "RoundLog.begin", lambda log, *_: log.checkpoint),
    Call("hosted", "query.hosted", "Hosted.run", lambda it, *_, **__: it.context.checkpoint, TASK),
    Call("manifest", "storage.log", "RoundLog.write", lambda log, *_: log.checkpoint),
    Call("outputs", "storage.log", "RoundLog.write_outputs", lambda log, *_: log.checkpoint),
    Call("prune", "storage.log", "RoundLog.prune", lambda log, *_, **__: log.checkpoint),
    Call("capture", "sinks.sink", "CaptureSink.deliver", lambda sink, *_: sink.deliveries.checkpoint),
    Call("subscribe", "sinks.sink", "SubscribeSink.deliver", lambda sink, *_: sink.on_epoch.path),
    Call("folder", "sinks.folder", "FolderSink.deliver", lambda sink, *_: sink.path),
    Call("delta", "sinks.delta", "DeltaSink.deliver", lambda sink, *_: sink.target),
    Call(
        "entry",
        "handle.input_handle",
        "InputHandle._append",
        lambda handle, *_: handle._log and handle._log.checkpoint,
    ),
    Call(
        "poll",
        "query.flow_reader",
        "FlowReader.latest_offset",
        lambda reader, *_, **__: reader.log.checkpoint,
        SOURCE,
    ),
    Call("read", "query.flow_reader", "FlowReader.read", lambda reader, *_: reader.log.checkpoint, TASK),
    Call("taken", "query.flow_reader", "FlowReader.commit", lambda reader, *_: reader.log.checkpoint, SOURCE),
    Call("journal", "sources.journal", "FileJournal.append", lambda it, *_: it._folder.files.root, SOURCE),
    Call("share", "sources.file_readers", "FilesReader.shares", lambda it, *_: it.context.checkpoint, SOURCE),
    Call("operator", "query.streaming", "_work", lambda context, *_: context.checkpoint, TASK),
    Call("localrounds", "query.rounds", "_run", lambda job, *_: job.context.checkpoint, TASK),
    Call("round", "query.live", "Live.round", lambda live, *_: live.log.checkpoint, TASK),
    Call("blob", "storage.blobs", "Blobs.put", lambda blobs, *_: blobs.files.root, TASK),
)
#: Folders of the round log: `<folder>.temp`, a file is written and not yet in its place.
FOLDERS = {
    "rounds": DRIVER,
    "outputs": DRIVER,
    "captured": DRIVER,
    "inputs": DRIVER,
    "epochs": DRIVER,
    "files": SOURCE,
    "blobs": TASK,
}
#: What Spark and Delta write, seen by looking: `<name>.there`; and `.temp`, which a look may miss.
WATCHED = {
    "offsets": "checkpoint/offsets",
    "commits": "checkpoint/commits",
    "store": "checkpoint/state/0/0",
    "deltalog": "table/_delta_log",
    "epochfile": "files",
}
#: What stands in the generator between the work of a worker and its rows' way to Spark.
MADE = "operator.made"


def points() -> dict[str, tuple[str, ...]]:
    """All points, and who can be killed at each."""
    found = {f"{call.name}.{when}": call.victims for call in CALLS for when in ("before", "after")}
    found[MADE] = TASK
    found["operator.before"] += ("twice",)
    found |= {f"{folder}.temp": victims for folder, victims in FOLDERS.items()}
    return found | {f"{name}.{what}": DRIVER for name in WATCHED for what in ("there", "temp")}


#: Those in Spark's tasks, which Spark makes again.
TASKS = frozenset(point for point, victims in points().items() if "executor" in victims)
#: Those that a micro-batch with work reaches, and no start or end of a session.
INSIDE = frozenset(
    point
    for point in points()
    if point.partition(".")[0]
    in {"operator", "localrounds", "round", "blob", "blobs", "manifest", "outputs", "rounds", "capture"}
    | {"delta", "deltalog", "store", "begin", "hosted", "epochs"}
)
#: A look every millisecond may come too late for these.
FLEETING = frozenset(f"{name}.temp" for name in WATCHED)


# -- what happens at a point ---------------------------------------------------------------------------------


@dataclass
class Run:
    """The orders of one start, and what was reached; shared by its processes through files."""

    home: Path
    start: int = 0
    #: (point, count, victim)
    orders: list[tuple[str, int, str]] = field(default_factory=list)

    def reached(self, point: str, detail: str | None = None) -> None:
        """Counts, and obeys."""
        count = self._count(point)
        if detail is not None:
            self._count(f"{point}@{detail}")
        for index, (at, least, victim) in enumerate(self.orders):
            if at == point and count >= least and self._once(index, victim):
                act(victim, self, point, detail)

    def _count(self, name: str) -> int:
        handle = os.open(self.hits / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(handle, b".")
            return os.fstat(handle).st_size
        finally:
            os.close(handle)

    def _once(self, index: int, victim: str) -> bool:
        if victim in {"python", "executor", "twice"} and ROLE == "driver":
            return False  # a function that tasks and the driver both call
        try:
            os.close(os.open(self.fired(index), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    @property
    def hits(self) -> Path:
        """A file per point, a byte per time."""
        return self.home / "chaos" / f"hits-{self.start}"

    def fired(self, index: int) -> Path:
        """Where it is noted that an order was obeyed."""
        return self.home / "chaos" / f"fired-{self.start}-{index}"

    @property
    def met(self) -> Path:
        """Where it is noted that two attempts at one task did its work."""
        return self.home / "chaos" / f"met-{self.start}"

    def counts(self) -> dict[str, int]:
        """How often each point was reached."""
        return {file.name: file.stat().st_size for file in self.hits.iterdir() if "@" not in file.name}

    def write(self) -> None:
        """Gives the orders to the run that starts next."""
        self.hits.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"start": self.start, "orders": self.orders})
        (self.home / "chaos" / "orders.json").write_text(text)

    @classmethod
    def read(cls, home: Path) -> Run:
        """The reverse."""
        found = json.loads((home / "chaos" / "orders.json").read_text())
        return cls(home, found["start"], [tuple(order) for order in found["orders"]])


#: "driver" in the child itself, "python" in every other process.
ROLE = "python"


@functools.cache
def run_of(path: str) -> Run | None:
    """The run to which a path belongs."""
    for folder in Path(path).parents:
        if (folder / "chaos" / "orders.json").exists():
            return Run.read(folder)
    return None


def reached(path: Any, point: str, detail: str | None = None) -> None:
    """A point is reached, by something below a run's folder."""
    if path is not None and (run := run_of(os.fspath(path))) is not None:
        run.reached(point, detail)


def act(victim: str, run: Run, point: str, detail: str | None) -> None:
    """Kills whom the order names."""
    match victim:
        case "driver":
            kill_session(os.getsid(0))
        case "group":  # Spark's Python daemons have groups of their own and end a moment later, as in life
            os.killpg(os.getsid(0), signal.SIGKILL)
        case "python":
            os.kill(os.getpid(), signal.SIGKILL)
        case "executor":
            os.kill(_executor(), signal.SIGKILL)
        case "twice":  # cut off, but alive: it goes on when another attempt at the task has done its work
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            other, until = run.hits / f"{MADE}@{detail}", time.monotonic() + 60
            before = other.stat().st_size if other.exists() else 0
            os.kill(_executor(), signal.SIGKILL)
            while time.monotonic() < until:
                if other.exists() and other.stat().st_size > before:
                    run.met.touch()
                    return
                time.sleep(0.002)
        case _:
            msg = f"an order to kill {victim!r} at {point}"
            raise ValueError(msg)


def session(sid: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit():
                state, _, _, of, *_ = (process / "stat").read_text().rpartition(") ")[2].split()
                if state != "Z" and int(of) == sid:
                    found.append(int(process.name))
    return found


def kill_session(sid: int) -> None:
    """Kills all of a session: its leader and the JVM in one blow; the caller, if it belongs to it, last."""
    me = os.getpid()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(sid, signal.SIGKILL)
    while others := [pid for pid in session(sid) if pid != me]:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    if os.getsid(0) == sid:
        os.kill(me, signal.SIGKILL)


def _executor() -> int:
    pid = os.getpid()
    while b"CoarseGrainedExecutorBackend" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
        if pid <= 1:
            msg = "this process belongs to no executor"
            raise ProcessLookupError(msg)
    return pid


# -- wrapping ------------------------------------------------------------------------------------------------


def owner_of(call: Call) -> tuple[Any, str]:
    """What holds the function, and its name there; an AttributeError where the table is out of date."""
    owner: Any = sys.modules[RUNTIME + call.module]
    *above, name = call.function.split(".")
    for part in above:
        owner = getattr(owner, part)
    getattr(owner, name)
    return owner, name


def wrap(call: Call) -> None:
    """Wraps one function."""
    owner, name = owner_of(call)
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        reached(call.path(*args, **kwargs), f"{call.name}.before")
        result = function(*args, **kwargs)
        reached(call.path(*args, **kwargs), f"{call.name}.after")
        return result

    @functools.wraps(function)
    def worked(context: Any, key: Any, *args: Any) -> Iterator[Any]:
        detail = str(key[0])
        reached(context.checkpoint, "operator.before", detail)
        for made in function(context, key, *args):
            reached(context.checkpoint, MADE, detail)
            yield made
            reached(context.checkpoint, "operator.after", detail)

    setattr(owner, name, worked if call.name == "operator" else called)


def wrap_renames() -> None:
    """Wraps what puts a complete file in its place."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            root, mark, name = os.fsdecode(os.fspath(target)).partition("/timely/")
            if mark and (folder := name.partition("/")[0]) in FOLDERS:
                reached(f"{root}/timely/{name}", f"{folder}.temp")
            return function(source, target, *args, **kwargs)

        return called

    for name in ("replace", "rename", "link"):
        setattr(os, name, wrapped(getattr(os, name)))


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps a module's functions when it has been executed, before anybody takes them from it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        calls = [call for call in CALLS if RUNTIME + call.module == name]
        if not calls or (spec := importlib.machinery.PathFinder.find_spec(name, path)) is None:
            return None
        execute = spec.loader.exec_module  # type: ignore[union-attr]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for call in calls:
                wrap(call)

        spec.loader.exec_module = exec_module  # type: ignore[union-attr, method-assign]
        return spec


def install() -> None:
    """Wraps everything in this process; before timely_spark.runtime is imported."""
    sys.meta_path.insert(0, _Finder())
    wrap_renames()


def watch(home: Path) -> threading.Event:
    """Looks for what Spark writes, until the event that it gives is set."""
    done, run = threading.Event(), Run.read(home)
    folders = {name: home / place for name, place in WATCHED.items()}

    def names(folder: Path) -> set[str]:
        try:
            return {file.name for file in os.scandir(folder)}
        except FileNotFoundError:
            return set()

    seen = {name: names(folder) for name, folder in folders.items()}

    def look() -> None:
        while not done.wait(0.001):
            for name, folder in folders.items():
                now = names(folder)
                for new in sorted(now - seen[name]):
                    run.reached(f"{name}.{'temp' if new.startswith('.') else 'there'}")
                seen[name] = now

    threading.Thread(target=look, daemon=True).start()
    return done
