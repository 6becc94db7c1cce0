"""Where an output goes: a relative path is one of the working directory when the flow is built."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import timely_spark as ts
from timely_spark.errors import BadArgument
from timely_spark.runtime.storage.log import RoundLog


def place(write: Callable[[Any], object]) -> Any:
    flow = ts.Dataflow("places")
    write(flow.input("x", "n long"))
    options = flow.outputs[0].options
    return options["target"] if "target" in options else options["path"]


WRITERS: dict[str, Callable[[Any, Any], object]] = {
    "to_delta": lambda stream, path: stream.to_delta(path),
    "to_files": lambda stream, path: stream.to_files(path),
    "capture_to": lambda stream, path: stream.capture_to(path),
    "publish": lambda stream, path: stream.distinct().collection().publish(path),
    "to_delta of a collection": lambda stream, path: stream.distinct().collection().changes().to_delta(path),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_relative_path_is_one_of_the_folder_in_which_the_flow_is_built(
    write: Callable[[Any, Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in (
        "out/found",
        "./out/found",
        "out/x/../found",
        Path("out/found"),
        tmp_path / "out" / "found",
    ):
        assert place(lambda stream, given=given: write(stream, given)) == str(tmp_path / "out" / "found")
    for uri in ("s3://bucket/out", "dbfs:/out", "file:/out", "abfss://c@a.dfs.core.windows.net/x"):
        assert place(lambda stream, uri=uri: write(stream, uri)) == uri
    for bad in ("", 7, None):
        with pytest.raises(BadArgument, match=r"(?s)(path|table)=.*Hint"):
            place(lambda stream, bad=bad: write(stream, bad))


@pytest.mark.parametrize("name", ["found", "graph.found", "main.graph.`near by`"])
def test_a_name_in_the_catalog_stays_a_name(name: str) -> None:
    assert place(lambda stream: stream.to_delta(name)) == name


def test_inputs_and_checkpoints_are_found_by_the_same_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n\n1\n")
    monkeypatch.chdir(tmp_path)
    flow = ts.Dataflow("read")
    flow.files("x", "in", format="csv")
    log = RoundLog("checkpoint")
    monkeypatch.chdir(os.sep)
    source: Any = flow.frames["x"]
    assert source.folder.path == str(tmp_path / "in")
    assert log.checkpoint == str(tmp_path / "checkpoint")
