"""The deliveries of an output, whatever of them is merged: `storage.deliveries`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from timely_spark.errors import LogDamaged
from timely_spark.runtime.storage import deliveries as module
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.merged_files import Span


class Killed(BaseException):
    """The process ends."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 4)


def rows(version: int, count: int) -> pa.Table:
    names = pa.array([f"{version}.{n}" for n in range(count)], pa.string())
    return pa.table({"epoch": pa.array([version] * count, pa.int64()), "n": names})


def written(folder: Path, versions: Iterator[int] | range, count: int = 2) -> Deliveries:
    deliveries = Deliveries(str(folder), "out")
    for version in versions:
        deliveries.write(version, rows(version, count))
    return deliveries


def names(folder: Path) -> list[str]:
    return sorted(path.stem for path in (folder / "timely/captured/out").iterdir())


def test_files_of_others_in_the_folder_are_not_deliveries(tmp_path: Path) -> None:
    written(tmp_path, range(2))
    for name in ("2.arrow.bak", "desktop.ini", "1-x.arrow"):
        (tmp_path / "timely/captured/out" / name).touch()
    assert [version for version, _ in Deliveries(str(tmp_path), "out").read()] == [0, 1]


def killing(at: int) -> Callable[[Any], Any]:
    """Wrap a method of `Files`: the process is killed before the call with this number."""
    calls = iter(range(at))

    def wrap(real: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return real(*args, **options)

        return call

    return wrap


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_reader_sees_the_same_deliveries_whenever_they_are_merged_and_the_process_is_killed(
    tmp_path: Path, seed: int
) -> None:
    draw, expected = random.Random(seed), dict[int, pa.Table]()
    deliveries, at = Deliveries(str(tmp_path), "out"), -1
    for _ in range(60):
        at += draw.choice([1, 1, 3])
        expected[at] = rows(at, draw.choice([0, 1, 2]))
        deliveries.write(at, expected[at])
        if draw.random() < 0.4:
            wrap = killing(draw.randrange(8))
            with (
                mock.patch.object(Files, "remove", wrap(Files.remove)),
                mock.patch.object(Files, "write_table", wrap(Files.write_table)),
            ):
                try:
                    deliveries.merge(draw.choice([*expected]))
                except Killed:
                    deliveries = Deliveries(str(tmp_path), "out")
            after = draw.choice([-1, *expected])
            assert list(deliveries.read(at, after=after)) == [
                (v, t) for v, t in expected.items() if v > after
            ]
    deliveries = Deliveries(str(tmp_path), "out")
    deliveries.merge(at)
    assert len(names(tmp_path)) < 20, names(tmp_path)


@pytest.mark.slow
def test_files_are_few_and_each_record_is_written_a_few_times(tmp_path: Path) -> None:
    deliveries, sizes = Deliveries(str(tmp_path), "out"), dict[bool, int]()
    real = Files.write

    def counted(files: Files, name: str, content: bytes, **options: bool) -> None:
        merged = "-" in name
        sizes[merged] = sizes.get(merged, 0) + len(content)
        real(files, name, content, **options)

    with mock.patch.object(Files, "write", counted):
        for version in range(256):
            deliveries.write(version, rows(version, 100))
            deliveries.merge(version - 2)

    assert len(names(tmp_path)) <= 3 + 4 + 8  # delivered again; fewer than four; powers of two
    assert sizes[True] <= 8 * sizes[False]
    assert [version for version, _ in deliveries.read()] == [*range(256)]


def test_a_delivery_looks_at_the_folder_only_if_another_process_may_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, listed = list[str](), Files.names

    def names(self: Files, folder: str) -> Iterator[str]:
        looked.append(folder)
        return listed(self, folder)

    monkeypatch.setattr(Files, "names", names)
    deliveries = written(tmp_path, range(7))
    assert len(looked) == 1
    for before in [2] * 9 + [3]:  # an epoch of many rounds; four can be merged at 4
        deliveries.merge(before)
    assert len(looked) == 2
    deliveries.merge(4)
    assert len(looked) == 4, "and once when the files are merged"


def test_a_reader_that_lacks_the_newest_delivery_alone_lists_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries = written(tmp_path, [0, 1, 4, 6])
    with monkeypatch.context() as patched:
        patched.setattr(Files, "names", lambda *_: pytest.fail("listed"))
        for after in (4, 5):
            ((version, table),) = deliveries.read(6, after=after)
            assert (version, table) == (6, rows(6, 2))
    assert [version for version, _ in deliveries.read(6, after=3)] == [4, 6]
    deliveries.merge(7)
    assert not list(deliveries.read(6, after=6))


def test_a_reader_goes_on_while_deliveries_are_merged(tmp_path: Path) -> None:
    deliveries = written(tmp_path, range(6))
    reader = Deliveries(str(tmp_path), "out").read(5)

    first = [next(reader), next(reader)]
    deliveries.merge(5)

    assert names(tmp_path) == ["0-4", "5"]
    assert [version for version, _ in [*first, *reader]] == [*range(6)]


def test_what_may_be_delivered_again_is_not_merged_and_is_overwritten(tmp_path: Path) -> None:
    deliveries = written(tmp_path, range(7))
    deliveries.merge(5)

    again = written(tmp_path, range(5, 7))

    assert names(tmp_path) == ["0-4", "5", "6"]
    assert [version for version, _ in again.read(6, after=3)] == [4, 5, 6]


def test_large_deliveries_and_those_with_other_columns_stay_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries = written(tmp_path, range(4), count=200)
    monkeypatch.setattr(module, "MOST", 4 * 1_500)
    deliveries.merge(4)
    assert names(tmp_path) == ["0", "1", "2", "3"]

    monkeypatch.undo()
    monkeypatch.setattr(module, "EVERY", 4)
    for version in range(4, 8):
        deliveries.write(version, rows(version, 1))
    deliveries.write(8, pa.table({"epoch": [8]}))
    for before in range(5, 10):
        deliveries.merge(before)
    assert names(tmp_path) == ["0", "1", "2", "3", "4-7", "8"]
    assert [version for version, _ in deliveries.read(8)] == [*range(9)]

    second = tmp_path / "second"
    written(second, range(4)).merge(4)
    deliveries = written(second, range(4, 8))
    monkeypatch.setattr(module, "MOST", sum(deliveries._size(Span(n, n)) for n in range(4, 8)))
    deliveries.merge(8)
    assert names(second) == ["0-3", "4-7"], "together they are too large"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    written(tmp_path, range(9)).merge(6)
    (tmp_path / "timely/captured/out/0-5.arrow").unlink()

    with pytest.raises(LogDamaged, match=r"captured/out/5.arrow"):
        list(Deliveries(str(tmp_path), "out").read())
