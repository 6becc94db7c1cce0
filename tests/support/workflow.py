"""Runs a workflow's jobs here, each on a fresh clone: `python -m tests.support.workflow [job ...]`.

Of the steps of others, a checkout is a clone of what is committed, and `setup-python` an environment of that
Python, which must be installed; any other is left out, and said. Java is the one that is there.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
GIVEN = re.compile(r"\$\{\{ *matrix\.(\w+) *\}\}")


class Job(NamedTuple):
    """A job with the values of its matrix."""

    name: str
    values: dict[str, str]
    steps: list[dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.name} {' '.join(f'{name}={value}' for name, value in self.values.items())}".strip()

    def filled(self, text: str) -> str:
        """A text with the values of the matrix."""
        return GIVEN.sub(lambda found: self.values[found[1]], text)


def jobs_of(workflow: str) -> Iterator[Job]:
    """The jobs of a workflow, one for each combination of its matrix."""
    text = (ROOT / ".github" / "workflows" / f"{workflow}.yml").read_text(encoding="utf-8")
    for name, job in yaml.safe_load(text)["jobs"].items():
        matrix = job.get("strategy", {}).get("matrix", {})
        for values in product(*matrix.values()):
            yield Job(name, dict(zip(matrix, map(str, values), strict=True)), job["steps"])


def run(job: Job, folder: Path) -> bool:
    """Run a job's steps; whether all have succeeded."""
    clone = folder / "clone"
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    for step in job.steps:
        uses = step.get("uses", "").partition("@")[0]
        if uses == "actions/checkout":
            command = ["git", "clone", "--quiet", str(ROOT), str(clone)]
        elif uses == "actions/setup-python":
            version = job.filled(step["with"]["python-version"])
            if (python := shutil.which(f"python{version}")) is None:
                print(f"  there is no python{version}", flush=True)
                return False
            environment["PATH"] = f"{folder / 'python' / 'bin'}{os.pathsep}{environment['PATH']}"
            command = [python, "-m", "venv", str(folder / "python")]
        elif "run" in step:
            command = ["bash", "-euo", "pipefail", "-c", job.filled(step["run"])]
        else:
            print(f"  left out: {step['uses']}", flush=True)
            continue
        print(f"  {command[-1] if 'run' in step else uses}", flush=True)
        if subprocess.run(
            command, cwd=clone if clone.exists() else folder, env=environment, check=False
        ).returncode:
            return False
    return True


def main() -> int:
    """Run what was asked for; the exit code is the number of jobs that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.workflow", description=__doc__)
    parser.add_argument("job", nargs="*", help="parts of the names of jobs, by default all")
    parser.add_argument("--workflow", default="check", help="check or release (%(default)s)")
    parser.add_argument("--list", action="store_true", help="name the jobs, and run none")
    args = parser.parse_args()
    failed = []
    for job in jobs_of(args.workflow):
        if args.job and not any(part in str(job) for part in args.job):
            continue
        print(job, flush=True)
        if args.list:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="timely-workflow-") as folder:
            good = run(job, Path(folder))
        print(f"{job}: {'passed' if good else 'FAILED'}, {time.perf_counter() - began:.0f} s", flush=True)
        failed += [job] * (not good)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
