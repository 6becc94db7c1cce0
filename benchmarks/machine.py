"""What a benchmark ran on: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def commit() -> str | None:
    """The commit of the sources, where there is one."""
    return _output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD") or None


def machine() -> dict[str, Any]:
    """What it runs on, and how busy that is."""
    return {
        "cpu": _first(r"^model name\s*:\s*(.+)$", "/proc/cpuinfo") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(int(_first(r"^MemTotal:\s*(\d+)", "/proc/meminfo") or 0) / 2**20),
        "load": round(os.getloadavg()[0], 2),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Of all that a figure may depend on."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    version = re.search(r'version "([^"]+)"', _output(str(java), "-version"))
    of = {"python": platform.python_version(), "java": version[1] if version else ""}
    for name in ("timely-spark", "pyspark", "pyarrow", "numpy", "pandas", "delta-spark"):
        try:
            of[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # noqa: PERF203 - seven of them
            of[name] = ""
    return of


def _first(pattern: str, path: str) -> str:
    try:
        line = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return line[1].strip() if line else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip() if done.returncode == 0 else ""
