"""The folders of outputs: each belongs to one output, from its first epoch to its last."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import timely_spark as ts
from timely_spark.errors import StorageFailed
from timely_spark.runtime.errors import OutputMismatch
from timely_spark.runtime.sinks import folder as folder_module
from timely_spark.runtime.sinks.delivery import Delivery
from timely_spark.runtime.sinks.outputs import outputs_of
from timely_spark.runtime.sinks.sink import Output
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.files import Files
from timely_spark.state.arrow import to_bytes


def to_files(stream: ts.Stream, path: Path, **options: Any) -> None:
    stream.to_files(path, name="out", **options)


def capture_to(stream: ts.Stream, path: Path, **options: Any) -> None:
    stream.capture_to(path, name="out", **options)


@pytest.fixture(params=[to_files, capture_to])
def begin(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Output]:
    """Prepares an output to the folder `out`, for a checkpoint with this identity."""

    def prepared(identity: str, *, resumed: bool = False, **options: Any) -> Output:
        flow = ts.Dataflow("x")
        request.param(flow.input("n", "n long"), tmp_path / "out", **options)
        (output,) = outputs_of(flow.compile(), flow.outputs)
        session: Any = None
        output = replace(output, resumed=resumed)
        output.sink.prepare(session, output, "", identity)
        output.sink.claim(session, output)
        return output

    return prepared


def deliver(output: Output, epoch: int, folder: Path, *more: int) -> None:
    blobs, session = Blobs(Files(str(folder))), None
    payload = to_bytes(pa.table({"n": pa.array([epoch, *more], pa.int64())}))
    output.sink.deliver(session, epoch, [Delivery(epoch, [payload], blobs, output.vertex)])  # type: ignore[arg-type]


def epochs(folder: Path) -> list[int]:
    return sorted(int(path.stem[-20:]) for path in folder.glob("epoch-*"))


def test_no_epoch_follows_in_a_folder_that_was_removed(begin: Callable[..., Output], tmp_path: Path) -> None:
    output = begin("one")
    deliver(output, 0, tmp_path)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(OutputMismatch, match="out lacks epochs that this checkpoint has delivered"):
        deliver(output, 1, tmp_path)
    with pytest.raises(OutputMismatch, match="out lacks epochs that this checkpoint has delivered"):
        begin("one", resumed=True)
    assert not (tmp_path / "out").exists()


def test_no_epoch_follows_in_a_folder_that_another_flow_took(
    begin: Callable[..., Output], tmp_path: Path
) -> None:
    first = begin("one")
    deliver(first, 0, tmp_path)
    deliver(first, 1, tmp_path)
    deliver(begin("two", overwrite=True), 0, tmp_path)
    with pytest.raises(OutputMismatch, match="overwritten by another flow"):
        deliver(first, 2, tmp_path)
    assert epochs(tmp_path / "out") == [0]


def test_two_runs_of_copies_of_a_checkpoint_do_not_both_go_on(
    begin: Callable[..., Output], tmp_path: Path
) -> None:
    original = begin("one")
    deliver(original, 0, tmp_path)
    copy = begin("one", resumed=True)
    deliver(copy, 1, tmp_path, 7)
    deliver(copy, 2, tmp_path)
    with pytest.raises(OutputMismatch, match=r"epoch-0*1\.\w+ was written by another run of this output"):
        deliver(original, 1, tmp_path)
    deliver(original, 2, tmp_path)  # the same records
    deliver(copy, 3, tmp_path, 7, 7, 8)
    deliver(original, 3, tmp_path, 8, 7, 7)  # in another order: a run that lost the checkpoint writes late
    again = begin("one", resumed=True)
    deliver(again, 2, tmp_path, 8)  # the run before may have written it, and then ended
    deliver(again, 2, tmp_path)  # tried again
    (present,) = (tmp_path / "out").glob("*3.*")
    present.write_text("damaged")
    with pytest.raises(OutputMismatch, match=r"epoch-0*3\.\w+ was written by another run of this output"):
        deliver(again, 3, tmp_path)


def test_readers_of_files_find_rows_with_nan_which_statistics_would_leave_out(tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2], "x": [7.0, float("nan")]})
    with folder_module._open("parquet", str(tmp_path / "a"), table.schema) as writer:
        writer.write_table(table)

    for condition in (pc.field("x") != 7, ~(pc.field("x") < 9)):
        assert pq.read_table(tmp_path / "a", filters=condition)["k"].to_pylist() == [2]
    statistics = pq.ParquetFile(tmp_path / "a").metadata.row_group(0).column(0).statistics
    assert (statistics.min, statistics.max) == (1, 2)


def test_a_folder_that_lost_its_owner_lacks_epochs_whatever_it_holds(
    begin: Callable[..., Output], tmp_path: Path
) -> None:
    deliver(begin("one"), 0, tmp_path)
    (tmp_path / "out" / "_timely_spark.json").unlink()
    with pytest.raises(OutputMismatch, match="lacks epochs"):
        begin("one", resumed=True)
    with pytest.raises(OutputMismatch, match="holds other files"):
        begin("one")


def test_a_file_in_place_of_the_folder_is_not_a_damaged_checkpoint(
    begin: Callable[..., Output], tmp_path: Path
) -> None:
    output = begin("one")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("a file")
    refused(begin, output, tmp_path, StorageFailed, "out/_timely_spark.json cannot be read: Not a directory")


def test_an_owner_that_cannot_be_read_is_not_one_that_is_missing(
    begin: Callable[..., Output], tmp_path: Path
) -> None:
    output, owner = begin("one"), tmp_path / "out" / "_timely_spark.json"
    deliver(output, 0, tmp_path)
    owner.write_text("{")
    refused(begin, output, tmp_path, OutputMismatch, "that owns this folder, cannot be read: .*Hint: restore")
    owner.unlink()
    owner.mkdir()
    refused(begin, output, tmp_path, StorageFailed, "json cannot be read: not a regular file")


def refused(
    begin: Callable[..., Output], output: Output, folder: Path, error: type[Exception], message: str
) -> None:
    """Check that no delivery and no start takes the folder as it is."""
    for tried in (
        lambda: deliver(output, 1, folder),
        lambda: begin("one", resumed=True),
        lambda: begin("one"),
    ):
        with pytest.raises(error, match=f"(?s){message}"):
            tried()
