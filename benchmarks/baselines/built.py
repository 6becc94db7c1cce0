"""Baselines in Rust and in Pathway: built once, in the folder for temporary files."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PATHWAY = "pathway==0.33.0"
_PLACE = Path(tempfile.gettempdir())


def rust(program: str, crate: str = "differential") -> str:
    """The path of a program of a crate beside this file.

    Raises:
        OSError, subprocess.CalledProcessError: there is no cargo, or it cannot fetch or build the crate.
    """
    place, sources = _PLACE / f"timely-bench-{crate}", Path(__file__).parent / crate
    shutil.copytree(sources, place, dirs_exist_ok=True, copy_function=_changed)
    build = ["cargo", "build", "--release", "--quiet", "--target-dir", "target"]
    subprocess.run(build, cwd=place, check=True, capture_output=True)
    return str(place / "target" / "release" / program)


def _changed(source: str, target: str) -> None:
    """Copy a file if its content differs: cargo takes minutes to rebuild what has a later time."""
    if not Path(target).exists() or not filecmp.cmp(source, target, shallow=False):
        shutil.copyfile(source, target)


def in_pathway(program: str, *arguments: str, threads: int) -> list[dict[str, Any]]:
    """The lines that a program beside this file prints, one for each epoch, in a Python that has Pathway.

    Pathway needs another pandas than we do; it takes 1.6 GB.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or the program fails.
    """
    place = _PLACE / "timely-bench-pathway"
    python, done = str(place / "bin" / "python"), place / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, capture_output=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PATHWAY], check=True, capture_output=True)
        done.touch()
    command = [python, str(Path(__file__).with_name(program)), *arguments]
    env = os.environ | {"PATHWAY_THREADS": str(threads)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
