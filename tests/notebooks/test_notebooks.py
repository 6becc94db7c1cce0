"""The notebooks run top to bottom in the session that all tests share, and are kept without outputs."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]


@pytest.mark.share(9)
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    notebook: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt  # here: half a second that only this test needs

    drawn: list[int] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(plt, "show", lambda: drawn.extend(plt.get_fignums()))
    plt.switch_backend("agg")  # draws, and shows to nobody
    names: dict[str, Any] = {"__name__": "__main__"}  # so what is pickled is pickled by value

    for i, cell in enumerate(cells(notebook)):
        exec(compile("".join(cell["source"]), f"{notebook.name}, cell {i}", "exec"), names)

    plt.close("all")
    assert drawn, "it shows no picture"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs_and_linked(notebook: Path) -> None:
    for cell in cells(notebook):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        source = "".join(cell["source"])
        compile(source, notebook.name, "exec")  # no magic: it is Python alone
        assert "__timely" not in source
    assert f"notebooks/{notebook.name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS
