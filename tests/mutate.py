"""Change the code in small ways, one at a time, and see whether the tests notice.

    .venv/bin/python -m tests.mutate                       400 changes, those of seed 0
    .venv/bin/python -m tests.mutate times/ Coordinator    those whose names contain one of these
    .venv/bin/python -m tests.mutate --number 4000 --seed 1
    .venv/bin/python -m tests.mutate --fast                only fast tests are asked
    .venv/bin/python -m tests.mutate --survivors           those that survived, again, by all tests

`support/mutations.py` makes the changes from the syntax tree. Only tests without Spark are asked. First it is
recorded which functions each test calls. Then each change is made in a process of its own, which is forked
when all tests are collected, and runs the tests that call the changed function: first those that have killed
other changes of the module, then those of the module, then some of each file, the shortest first. A change is
killed when one fails or hangs; it survives when all pass. What was found is in `build/mutations`, and a run
that was interrupted goes on from there. The exit code is 0 if 95 of 100 were killed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from cProfile import Profile
from dataclasses import dataclass, field
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.support.equivalent import EQUIVALENT
from tests.support.mutations import FUNCTION, PACKAGE, ROOT, Mutation, first_line, mutations_of, put

#: the modules that answers depend on
FOLDERS = (
    "progress", "times", "worker", "coordinator", "state", "operators", "differential", "graphs",
    "runtime/storage", "runtime/sources", "runtime/query", "runtime/sinks",
)  # fmt: skip
ENOUGH = 0.95
FOUND = ROOT / "build" / "mutations"
#: bytes that a changed process may take beyond what it has
ROOM = 6 << 30


def all_mutations() -> list[Mutation]:
    """Those of the modules that answers depend on."""
    paths = sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
    return [one for path in paths for one in mutations_of(path.read_text(), str(path.relative_to(PACKAGE)))]


def in_turn(groups: Iterable[Iterable[Any]]) -> list[Any]:
    """The first of each group, then the second of each, and so on."""
    return [one for row in zip_longest(*groups) for one in row if one is not None]


def drawn(mutations: Iterable[Mutation], seed: int) -> list[Mutation]:
    """In an order that a seed decides, in which folders and kinds take turns."""
    groups: dict[str, dict[str, list[Mutation]]] = defaultdict(lambda: defaultdict(list))
    for one in sorted(mutations, key=lambda one: hashlib.sha256(f"{seed} {one.name}".encode()).digest()):
        groups[next(folder for folder in FOLDERS if one.file.startswith(folder))][one.kind].append(one)
    return in_turn(in_turn(kinds.values()) for kinds in groups.values())


@dataclass
class Calls:
    """Which functions each test calls, and how long it takes; known until the text of its file changes."""

    #: a line for each file that was recorded; the last one of a file counts
    path: Path = FOUND / "calls.jsonl"
    #: by file: what its text was, of each test that passed the seconds and functions, and those that failed
    files: dict[str, tuple[str, dict[str, tuple[float, list[str]]], list[str]]] = field(default_factory=dict)

    def load(self) -> None:
        if self.path.exists():
            with self.path.open() as lines:
                self.files = dict(map(json.loads, lines))

    def add(self, file: str, recorded: tuple[str, dict[str, tuple[float, list[str]]], list[str]]) -> None:
        """Keep what a file's tests called; an interrupted run goes on with the next file."""
        self.files[file] = recorded
        with self.path.open("a") as lines:
            lines.write(json.dumps([file, recorded]) + "\n")

    def tests_of(self, mutation: Mutation, budget: float, killers: Collection[str] = ()) -> list[str]:
        """The tests for a change, within some seconds; those first that have killed others of its file."""
        key, stem = f"{mutation.file}::{mutation.function}", Path(mutation.file).stem
        mirrored, others = [], []
        for file, (_, tests, _) in self.files.items():
            those = sorted(
                (seconds, test) for test, (seconds, functions) in tests.items() if key in functions
            )
            mirror = Path(file).stem in {stem, f"test_{stem}"}
            (mirrored if mirror else others).append(those)
        seconds, chosen = 0.0, []
        those = [*in_turn(mirrored), *in_turn(sorted(others, key=len, reverse=True))]
        for took, test in sorted(those, key=lambda one: one[1] not in killers):
            if seconds + took <= budget or not chosen:
                seconds += took
                chosen.append(test)
        return chosen


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


class Forked:
    """A process of its own that runs something, which tells what it found in a file."""

    def __init__(self, work: Callable[[], Any], patience: float) -> None:
        self.folder = tempfile.mkdtemp(prefix="timely-mutate-")
        self.until = time.monotonic() + patience
        self.pid = os.fork()
        if self.pid == 0:
            self._work(work)

    def _work(self, work: Callable[[], Any]) -> None:
        try:
            os.setsid()  # what tests leave running ends with it
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
            found = json.dumps(work())
            Path(self.folder, "found").write_text(found)
        finally:
            os._exit(0)

    def ended(self) -> bool:
        """Whether it has ended; it is ended when its time is over."""
        if os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            if time.monotonic() < self.until:
                return False
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        return True

    def found(self) -> Any:
        """What it told, or None if it came to nothing."""
        path = Path(self.folder, "found")
        try:
            return json.loads(path.read_text()) if path.exists() else None
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def side_by_side(
    works: Iterable[tuple[Any, Callable[[], Any], float]], jobs: int
) -> Iterator[tuple[Any, Any]]:
    """Do works in processes of their own, some at a time; what each found, when it has ended."""
    waiting, running = iter(works), dict[Forked, Any]()
    more = True
    while more or running:
        while more and len(running) < jobs:
            if (following := next(waiting, None)) is None:
                more = False
            else:
                what, work, patience = following
                running[Forked(work, patience)] = what
        for one in [one for one in running if one.ended()]:
            yield running.pop(one), one.found()
        time.sleep(0.01)


class Mutating:
    """Instead of running the tests: runs those that fit, with each change in turn."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        self.options, self.say = options, say
        self.calls = Calls()
        #: of the tests that run in this process
        self.failed: list[str] = []
        self.code = 2

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.record(items)
        self.code = self.run(items)
        return True

    # -- what tests call -------------------------------------------------------------------------------------

    def record(self, items: dict[str, pytest.Item]) -> None:
        """Find out which functions tests call, of the files that are new or were changed."""
        self.calls.load()
        files: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in items.values():
            files[item.nodeid.partition("::")[0]].append(item)
        now, tests = {file: digest(ROOT / file) for file in files}, self.calls.files

        def known(file: str) -> bool:
            text, passed, failed = tests.get(file, ("", {}, []))
            return text == now[file] and all(
                one.nodeid in passed or one.nodeid in failed for one in files[file]
            )

        new = [file for file in files if not known(file)]
        works = [(file, lambda of=files[file]: self.recorded(of), 1800.0) for file in new]
        for number, (file, found) in enumerate(side_by_side(works, self.options.jobs), 1):
            if found is None:
                self.say(f"the tests of {file} cannot be recorded")
                tests.pop(file, None)
                continue
            passed, failed = found
            self.calls.add(file, (now[file], passed, failed))
            self.say(f"recorded {number} of {len(new)}: {file}, {len(passed)} tests")
            for test in failed:
                self.say(f"fails as the code is: {test}")

    def recorded(self, items: list[pytest.Item]) -> tuple[dict[str, tuple[float, list[str]]], list[str]]:
        """Run tests; of each that passes its seconds, and the functions that it called."""
        root, names = f"{PACKAGE}{os.sep}", functions_of()
        passed: dict[str, tuple[float, list[str]]] = {}
        for item, following in in_order(items):
            self.failed.clear()
            began = time.perf_counter()
            with Profile(subcalls=False, builtins=False) as profile:  # a trace function takes twice as long
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if not self.failed:
                codes = [one.code for one in profile.getstats() if not isinstance(one.code, str)]
                places = {(one.co_filename.removeprefix(root), one.co_firstlineno) for one in codes}
                functions = sorted(names[place] for place in places if place in names)
                passed[item.nodeid] = (round(time.perf_counter() - began, 3), functions)
        return passed, [item.nodeid for item in items if item.nodeid not in passed]

    # -- changes ---------------------------------------------------------------------------------------------

    def run(self, items: dict[str, pytest.Item]) -> int:  # noqa: C901 - what is done with each change
        """Make the changes, say what becomes of each, and add it up."""
        path = FOUND / "found.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        before = {(one["name"], one["source"]): one for one in map(json.loads, lines)}
        sources = {file.relative_to(PACKAGE).as_posix(): digest(file) for file in PACKAGE.rglob("*.py")}
        options, verdicts, unreached, equal, todo = self.options, dict[str, str](), 0, 0, list[Any]()
        killers = defaultdict[str, set[str]](set)
        for one in map(json.loads, lines):
            killers[one["name"].partition("::")[0]].add(one["by"])
        for one in drawn(all_mutations(), options.seed):
            if len(verdicts) + len(todo) >= options.number:
                break
            if options.names and not any(part in one.name for part in options.names):
                continue
            if one.name in EQUIVALENT:
                equal += 1
                continue
            known = before.get((one.name, sources[one.file]))
            if known and not (options.survivors and known["verdict"] == "survived"):
                verdicts[one.name] = known["verdict"]
            elif options.survivors and not known:
                continue
            elif tests := [
                items[test]
                for test in self.calls.tests_of(one, options.seconds, killers[one.file])
                if test in items
            ]:
                todo.append(
                    (one, lambda one=one, tests=tests: self.asked(one, tests), 3 * options.seconds + 120)
                )
            else:
                unreached += 1
        began = time.monotonic()
        with path.open("a") as file:
            for one, found in side_by_side(todo, options.jobs):
                verdict, by = found or ("killed", "its process, which hung or died")
                verdicts[one.name] = verdict
                row = {"name": one.name, "source": sources[one.file], "verdict": verdict, "by": by}
                file.write(json.dumps(row) + "\n")
                file.flush()
                self.say(f"{verdict:8} {one}{f'  by {by}' if verdict == 'killed' else ''}")
        killed = sum(verdict == "killed" for verdict in verdicts.values())
        for name, verdict in verdicts.items():
            if verdict != "killed":
                self.say(f"{verdict.upper()} {name}")
        self.say(
            f"{killed} of {len(verdicts)} killed ({len(verdicts) - len(todo)} known before); beside them "
            f"{equal} are known to change nothing, and {unreached} are in functions that no such test calls; "
            f"{(time.monotonic() - began) / 60:.1f} minutes"
        )
        return int(not verdicts or killed < ENOUGH * len(verdicts))

    def asked(self, mutation: Mutation, items: list[pytest.Item]) -> tuple[str, str]:
        """Make a change in this process, and run tests until one fails."""
        path = PACKAGE / mutation.file
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        import_module(".".join(parts).removesuffix(".__init__"))  # tests may import it later only
        gc.unfreeze()  # the package's functions among them
        if not put(path.read_text(), mutation, str(path)):
            return "lost", ""  # the function is not there to be changed
        self.failed.clear()
        for item, following in in_order(items):
            seconds = self.calls.files[item.nodeid.partition("::")[0]][1][item.nodeid][0]
            item.add_marker(pytest.mark.timeout(max(20, 10 * seconds)), append=False)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return "killed", self.failed[0]
        return "survived", ""


def in_order(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each with the one that follows."""
    return zip(items, [*items[1:], None], strict=True)


def functions_of() -> dict[tuple[str, int], str]:
    """All functions, by file and first line: as calls are told."""
    import ast

    found = {}

    def walk(node: ast.AST, file: str, path: list[str]) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, (*FUNCTION, ast.ClassDef))
            inner = [*path, child.name] if named else path  # type: ignore[attr-defined]
            if isinstance(child, FUNCTION):
                found[file, first_line(child)] = f"{file}::{'.'.join(inner)}"
            walk(child, file, inner)

    for path in PACKAGE.rglob("*.py"):
        walk(ast.parse(path.read_text()), path.relative_to(PACKAGE).as_posix(), [])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="only those whose names contain one of these")
    parser.add_argument("--number", type=int, default=400, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="which, and in which order (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of tests for one, as recorded (default: %(default)s)"
    )
    parser.add_argument("--survivors", action="store_true", help="ask those again that survived")
    parser.add_argument("--tests", nargs="*", default=[], help="ask only those in these files and folders")
    parser.add_argument("--fast", action="store_true", help="ask only fast tests, those of `make check`")
    options = parser.parse_args(arguments)
    FOUND.mkdir(parents=True, exist_ok=True)
    printed = os.dup(1)
    os.dup2(os.open(FOUND / "pytest.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)  # what pytest says

    def say(text: str) -> None:
        os.write(printed, f"{text}\n".encode())

    os.environ["CI"] = "1"  # hypothesis tries the same examples every time
    mutating = Mutating(options, say)
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler", "--show-capture=no"]
    chosen = "not spark and not slow" if options.fast else "not spark"
    pytest.main([*quiet, "--tb=no", "-m", chosen, *options.tests], plugins=[mutating])
    if not mutating.calls.files:
        say((FOUND / "pytest.txt").read_text())
    return mutating.code


if __name__ == "__main__":
    sys.exit(main())
