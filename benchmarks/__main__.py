"""Runs benchmarks, each in a process of its own, and sums up: `python -m benchmarks [name ...] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.harness import QUICK, RESULTS, ROOT, markdown_table, times, yes_or_no

#: Seconds after which a benchmark counts as failed.
LIMIT, QUICK_LIMIT = 1200, 240
#: Of those that take longer.
LIMITS = {
    "alternatives": 2400, "endurance": 7200, "engine": 2700,
    "graphs": 5400, "resident": 2400, "scaling": 2400,
}  # fmt: skip

#: What shows nothing within seconds, and is left out of a quick run unless it is named.
STEADY = ("durable", "endurance", "latency", "system_log", "waits")


def names() -> list[str]:
    """The modules that are benchmarks: those with a `run`."""
    paths = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return [path.stem for path in paths if "\ndef run(quick: bool)" in path.read_text(encoding="utf-8")]


def main() -> int:
    """Run what was asked for.

    Returns:
        The exit code: the number of benchmarks that failed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"which ones, by default all: {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="seconds each, for a first impression")
    parser.add_argument("--here", action="store_true", help="in this process, without summing up")
    args = parser.parse_args()
    unknown = [name for name in args.name if name not in names()]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(names())}")
    chosen = args.name or [name for name in names() if not (args.quick and name in STEADY)]
    if args.here:
        for name in chosen:
            importlib.import_module(f"benchmarks.{name}").run(args.quick)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what runs is ended, too
    failed = [name for name in chosen if not _apart(name, quick=args.quick)]
    folder = QUICK if args.quick else RESULTS
    print(summary(folder, failed), flush=True)
    if not args.quick:
        figures.main()
    return len(failed)


def _apart(name: str, *, quick: bool) -> bool:
    print(f"--- {name}", flush=True)
    began = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks", name, "--here", *(["--quick"] if quick else [])]
    # a session of its own, so that what it leaves running (a JVM) can be ended with it
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        code: int | str = process.wait(QUICK_LIMIT if quick else LIMITS.get(name, LIMIT))
    except subprocess.TimeoutExpired:
        code = "did not end in time"
    finally:
        _end(process)
    print(
        f"--- {name}: {time.perf_counter() - began:.0f} s" + (f", FAILED ({code})" if code else ""),
        flush=True,
    )
    return code == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def summary(folder: Path, failed: list[str]) -> str:
    """All results that there are, one line each; written beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[list[str]] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows += [_line(path.stem, content, row) for row in content["rows"]]
    text = "# Summary\n\n"
    text += markdown_table(["name", "case", "ours", "baseline", "ratio", "aim", "met", "measured"], rows)
    if failed:
        text += f"\nFailed in the last run, so that older results may stand above: {', '.join(failed)}.\n"
    (folder / "summary.md").write_text(text, encoding="utf-8")
    return text


def _line(name: str, content: dict[str, Any], row: dict[str, Any]) -> list[str]:
    ours, baseline = (
        "" if row[key] is None else f"{row[key]:,.4g} {row['unit']}".strip() for key in ("ours", "baseline")
    )
    verdict = yes_or_no(row["met"])
    return [name, row["case"], ours, baseline, times(row["ratio"]), row["aim"], verdict, content["date"][:16]]


if __name__ == "__main__":
    sys.exit(main())
