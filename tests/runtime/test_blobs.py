"""References to blobs: `storage.blobs`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from timely_spark.runtime.storage import blobs as module
from timely_spark.runtime.storage.blobs import EMBEDDED, Blobs, file_of, files_of
from timely_spark.runtime.storage.files import Files


def rows(*payloads: bytes | None) -> pa.Table:
    return pa.table({"payload": pa.array(payloads, pa.binary())})


def test_large_payloads_alone_are_written_in_one_file_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(str(tmp_path))
    blobs, large = Blobs(files, 3), [bytes([n]) * (EMBEDDED + n) for n in (1, 2)]
    few = rows(large[0])
    assert blobs.refer("w", few) is few, "together they are not larger than BULK"
    assert blobs.refer_outputs("w", few) is few
    monkeypatch.setattr(module, "BULK", EMBEDDED)
    reference, small = blobs.put("r", b"r" * 2 * EMBEDDED), b"s" * EMBEDDED
    payloads = [None, small, large[0], reference, large[1]]

    referred = blobs.refer_outputs("w", rows(*payloads))

    stored = referred.column("payload").to_pylist()
    assert [stored[n] for n in (0, 1, 3)] == [None, small, reference]
    assert file_of(stored[2]) == file_of(stored[4])
    assert [module._span(stored[n])[1] % 64 for n in (2, 4)] == [0, 0], "Arrow reads them where they are"
    read = blobs.resolve(referred).column("payload").to_pylist()
    assert read == [None, small, large[0], b"r" * 2 * EMBEDDED, large[1]]
    written = set(files.names("blobs"))
    assert files_of(referred) == written

    assert blobs.refer_outputs("x", referred).equals(referred)
    many = rows(small, small)
    assert blobs.refer_outputs("x", many).equals(many)
    assert set(files.names("blobs")) == written
