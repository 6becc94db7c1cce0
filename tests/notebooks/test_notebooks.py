"""The notebooks run top to bottom, as one program in a process of its own, and are kept without outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{notebook.stem}.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in cells(notebook)), encoding="utf-8")
    here = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "MPLBACKEND": "agg",  # draws, and shows to nobody
        "MPLCONFIGDIR": str(tmp_path),
    }

    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=os.environ | here,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_linked(notebook: Path) -> None:
    for cell in cells(notebook):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        compile("".join(cell["source"]), notebook.name, "exec")  # no magic: it is Python alone
    assert f"notebooks/{notebook.name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
