"""Change the code in small ways, each in a copy, and see whether the tests named for it notice.

    .venv/bin/python tests/mutate.py                    all of `mutations.py`
    .venv/bin/python tests/mutate.py times/ driver.py   those of files whose names contain one of these
    .venv/bin/python tests/mutate.py --number 7 12      some again

Only tests without Spark are asked, fast and slow ones. A mutation is killed when one fails, or the code
cannot be imported; it survives when all pass; it is stale when its text does not stand exactly once in its
file. The exit code is 0 if nine of ten were killed and none is stale; it is 2 if the tests fail as the code
is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
#: seconds; who takes longer hangs, which is noticed
PATIENCE = 240
ENOUGH = 0.9
#: where pytest's words are, in a copy
SAID = "said.txt"
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["pytest", "hypothesis", "numpy", "pandas", "pyarrow.compute"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One change of one text, and the tests of which one must fail."""

    number: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether the text no longer stands exactly once."""
        path = ROOT / self.file
        return not path.exists() or path.read_text().count(self.old) != 1

    def into(self, tree: Path) -> None:
        """Make the change in a copy."""
        path = tree / self.file
        path.write_text((ROOT / self.file).read_text().replace(self.old, self.new))

    def out_of(self, tree: Path) -> None:
        """Take the change back."""
        shutil.copyfile(ROOT / self.file, tree / self.file)

    def __str__(self) -> str:
        return f"{self.number:3}  {self.file}: {' '.join(self.old.split())}  ->  {' '.join(self.new.split())}"


def mutations() -> list[Mutation]:
    """All of them."""
    sys.path.insert(0, str(Path(__file__).parent))
    from mutations import GROUPS

    found: list[Mutation] = []
    for file, tests, pairs in GROUPS:
        for old, new in pairs:
            number = len(found) + 1
            found.append(
                Mutation(number=number, file=f"timely_spark/{file}", old=old, new=new, tests=tuple(tests))
            )
    return found


def copied(into: Path) -> Path:
    """A copy of what the tests need."""
    for folder in ("timely_spark", "tests"):
        shutil.copytree(ROOT / folder, into / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", into)
    return into


def passes(tree: Path, tests: Sequence[str], patience: float = PATIENCE) -> bool:
    """Whether the tests pass in a copy.

    Raises:
        RuntimeError: pytest found none of them, or could not be asked.
    """
    process = FORKED.Process(target=_ask, args=(str(tree), list(tests)))
    process.start()
    process.join(patience)
    if process.exitcode is None:
        process.kill()
        process.join()
        return False
    if process.exitcode in {3, 4, 5}:
        raise RuntimeError((tree / SAID).read_text())
    return process.exitcode == 0


def _ask(tree: str, tests: list[str]) -> None:
    """What a forked process does: pytest is imported already, and much of what tests import."""
    import pytest

    os.chdir(tree)
    printed = os.open(SAID, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(printed, stream)
    # under CI hypothesis tries the same examples every time
    os.environ |= {"PYTHONPATH": tree, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, tree)
    code = 3
    try:
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *quiet, "-m", "not spark", *tests]))
    finally:
        os._exit(code)  # what tests leave running is not waited for


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", help="only those of files whose names contain one of these")
    parser.add_argument("--number", type=int, nargs="*", help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--trust", action="store_true", help="that the tests pass as the code is")
    options = parser.parse_args(arguments)
    chosen = [
        one
        for one in mutations()
        if (not options.files or any(part in one.file for part in options.files))
        and (not options.number or one.number in options.number)
    ]
    stale = [one for one in chosen if one.stale]
    survived: list[Mutation] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="timely-mutate-") as folder:
        trees: Queue[Path] = Queue()
        for job in range(options.jobs):
            trees.put(copied(Path(folder) / str(job)))

        def survives(one: Mutation) -> bool:
            tree = trees.get()
            try:
                one.into(tree)
                passed = passes(tree, one.tests)
            finally:
                one.out_of(tree)
                trees.put(tree)
            print(f"{'SURVIVED' if passed else 'killed  '} {one}", flush=True)
            return passed

        runs = [one for one in chosen if not one.stale]
        named = sorted({test for one in runs for test in one.tests})
        if not options.trust:
            if not passes(tree := trees.get(), named, 10 * PATIENCE):
                print((tree / SAID).read_text())
                print("the tests fail as the code is: nothing can be told by them")
                return 2
            trees.put(tree)
        with ThreadPoolExecutor(options.jobs) as pool:
            survived = [one for one, passed in zip(runs, pool.map(survives, runs), strict=True) if passed]
    for one in stale:
        print(f"STALE    {one}")
    killed = len(chosen) - len(stale) - len(survived)
    print(
        f"{killed} of {len(chosen)} killed, {len(survived)} survived, {len(stale)} stale; "
        f"{(time.monotonic() - began) / 60:.1f} minutes"
    )
    return int(bool(stale) or killed < ENOUGH * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
