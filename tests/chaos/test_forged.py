"""What forged files of a checkpoint cannot do: read foreign memory, fill the memory, end the process."""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from timely_spark.errors import LogDamaged, StateError
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.checksums import sealed
from timely_spark.runtime.storage.files import HEAD, Files
from timely_spark.runtime.storage.published import Published
from timely_spark.state import Arrangement, codec
from timely_spark.state.arrow import from_bytes, to_bytes
from timely_spark.state.bounds import DEPTH
from timely_spark.state.codec import Codec, pack_parts
from timely_spark.times import PRODUCT

ROWS = 4000


def with_checksum_of(good: bytes, forged: bytearray, free: range) -> bytes:
    """The forged bytes, of which some free ones are chosen so that they have the CRC-32 of the good ones."""
    base = zlib.crc32(forged)
    basis: dict[int, tuple[int, int]] = {}  # highest bit -> (difference of the checksum, flipped bits)
    bits = [(at, bit) for at in free for bit in range(8)]
    for number, (at, bit) in enumerate(bits):
        forged[at] ^= 1 << bit
        difference, flips = zlib.crc32(forged) ^ base, 1 << number
        forged[at] ^= 1 << bit
        while difference and difference.bit_length() in basis:
            other, with_it = basis[difference.bit_length()]
            difference, flips = difference ^ other, flips ^ with_it
        if difference:
            basis[difference.bit_length()] = difference, flips
    wanted, chosen = base ^ zlib.crc32(good), 0
    while wanted:
        other, with_it = basis[wanted.bit_length()]
        wanted, chosen = wanted ^ other, chosen ^ with_it
    for number, (at, bit) in enumerate(bits):
        forged[at] ^= (chosen >> number & 1) << bit
    assert zlib.crc32(forged) == zlib.crc32(good)
    return bytes(forged)


def replace(path: Path, content: bytes) -> None:
    """Put another file in a file's place."""
    other = path.with_name("other")
    other.write_bytes(content)
    other.replace(path)


def overwrite(path: Path, content: bytes) -> None:
    """Change a file in place, and set its time back."""
    info = path.stat()
    with path.open("r+b") as file:
        file.write(content)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (info.st_ino, info.st_mtime_ns)


@pytest.mark.parametrize("swap", [replace, overwrite])
def test_a_forged_blob_of_the_same_name_size_and_checksum_is_validated_again(
    swap: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    blobs = Blobs(Files(str(tmp_path)), 0)
    words = [f"word {n:08}" for n in range(ROWS)]
    writer = Codec(PRODUCT, blobs)
    written = writer.write(Arrangement(("n",), [pa.table({"n": np.arange(ROWS), "word": words})]))
    (path,) = (tmp_path / "blobs").iterdir()
    for _ in range(2):  # this process has validated the file
        Codec(PRODUCT, blobs).read(written)
    good = path.read_bytes()
    offsets = np.arange(0, 13 * (ROWS + 1), 13, np.int32).tobytes()
    forged, text = bytearray(good), good.rindex(b"word 0")
    assert good.count(offsets) == 1, "the words are in the order of their hashes, of one length"
    forged[good.index(offsets) + 4 : good.index(offsets) + 8] = np.int32(1 << 28).tobytes()
    swap(path, with_checksum_of(good, forged, range(text, text + 12)))
    with pytest.raises(LogDamaged, match="blobs/0-"):
        Codec(PRODUCT, blobs).read(written)


def test_a_blob_that_is_swapped_while_it_is_opened_is_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(str(tmp_path))
    reference = Blobs(files, 0).put("state", to_bytes(pa.table({"word": ["x" * 20] * ROWS})))
    (path,) = (tmp_path / "blobs").iterdir()
    good = path.read_bytes()
    forged = bytearray(good)
    at = good.index(np.arange(0, 20 * (ROWS + 1), 20, np.int32).tobytes())
    forged[at + 4 : at + 8] = np.int32(1 << 28).tobytes()
    bad = with_checksum_of(good, forged, range(good.rindex(b"x" * 20), len(good) - 20))
    opened = files.buffer

    def swapped(name: str) -> pa.Buffer | None:
        replace(path, bad)
        return opened(name)

    assert Blobs(files, 0).table(reference).num_rows == ROWS
    monkeypatch.setattr(files, "buffer", swapped)
    with pytest.raises(LogDamaged, match="blobs/0-state"):
        Blobs(files, 0).table(reference)


def bomb(rows: int = 10_000_000) -> bytes:
    """An Arrow stream that is a thousand times as large when it is decompressed."""
    sink = pa.BufferOutputStream()
    table = pa.table({"n": np.zeros(rows, np.int64)})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def nulls() -> bytes:
    """An Arrow stream of so many rows that no memory holds them, of a type whose values have no bytes."""
    sink = pa.BufferOutputStream()
    schema = pa.schema([("nothing", pa.null())])
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.record_batch([pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])], schema=schema)
        )
    return bytes(sink.getvalue())


def dictionary() -> bytes:
    """An Arrow stream whose dictionary alone is compressed."""
    values = pa.array([str(n % 7) * 100 for n in range(1000)] + ["z" * 1_000_000]).dictionary_encode()
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, pa.schema([("d", values.type)]), options=options) as writer:
        writer.write_table(pa.table({"d": values}))
    return bytes(sink.getvalue())


@pytest.mark.parametrize("made_up", [bomb, nulls, dictionary])
def test_a_table_takes_no_more_memory_than_its_file(made_up: Callable[[], bytes], tmp_path: Path) -> None:
    data, files = made_up(), Files(str(tmp_path))
    reads: dict[str, Callable[[], Any]] = {
        "a payload": lambda: from_bytes(data),
        "a file": lambda: files.table("outputs/0-0-1.arrow"),
        "a blob": lambda: Blobs(files, 0).table(reference),
        "a state": lambda: Codec(PRODUCT).read(pack_parts([b'{"table": 0}', data])),
    }
    files.write("outputs/0-0-1.arrow", sealed("outputs/0-0-1.arrow", data))
    reference = Blobs(files, 0).put("state", data + bytes(1 << 15))
    before = pa.total_allocated_bytes()
    for name, read in reads.items():
        with pytest.raises((LogDamaged, pa.ArrowInvalid), match=r"compressed|are not \d+ rows") as caught:
            read()
        assert isinstance(caught.value, LogDamaged) == (name in {"a file", "a blob"}), name
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_a_published_snapshot_is_validated_before_it_is_compacted(tmp_path: Path) -> None:
    published = Published(Files(str(tmp_path)), lease=1.0, diff="diff")
    table = pa.table({"word": ["one", "two"], "diff": [1, 1]})
    for epoch in range(2):
        with pa.ipc.new_file(tmp_path / f"epoch-{epoch:020}.arrow", table.schema) as writer:
            writer.write_table(table)
    forged = tmp_path / f"epoch-{1:020}.arrow"
    offsets = np.array([0, 3, 6], np.int32).tobytes()
    forged.write_bytes(forged.read_bytes().replace(offsets, np.array([0, 3, 1 << 30], np.int32).tobytes()))
    with pytest.raises(LogDamaged, match=forged.name):
        published.compact(small=0)


DEEP = b"[" * 200_000 + b"]" * 200_000


def test_deep_json_is_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(str(tmp_path))
    files.write("flow.json", sealed("flow.json", b'{"id": ' + DEEP + b"}"))
    with pytest.raises(LogDamaged, match=r"flow\.json cannot be read: JSON is nested too deeply"):
        files.json("flow.json")

    table = pa.table({"n": [1]}).replace_schema_metadata({HEAD: b'{"kind": ' + DEEP + b"}"})
    files.write_table("inputs/x/0.arrow", table)
    schema = files.schema("inputs/x/0.arrow")
    with pytest.raises(LogDamaged, match=r"0\.arrow cannot be read: JSON is nested too deeply"):
        files.head("inputs/x/0.arrow", schema)

    with pytest.raises(ValueError, match="nested too deeply"):
        Codec(PRODUCT).read(pack_parts([DEEP]))
    parsed = nested(5000, lambda value: {"tuple": [value]})  # a parser with a higher limit than Python's
    monkeypatch.setattr(codec, "parse_json", lambda _: parsed)
    with pytest.raises(ValueError, match="nested too deeply"):
        Codec(PRODUCT).read(pack_parts([b""]))


def test_a_number_of_thousands_of_digits_is_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    files, digits = Files(str(tmp_path)), b"9" * 5000
    files.write("flow.json", sealed("flow.json", b'{"id": ' + digits + b"}"))
    with pytest.raises(LogDamaged, match=r"flow\.json cannot be read"):
        files.json("flow.json")
    with pytest.raises(ValueError, match="digits"):
        Codec(PRODUCT).read(pack_parts([digits]))


def nested(levels: int, within: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = within(value)
    return value


@pytest.mark.parametrize("within", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: deque([v])])
def test_a_state_that_is_written_can_be_read(within: Callable[[Any], Any]) -> None:
    deepest = nested(DEPTH, within)
    own = Codec(PRODUCT)
    assert own.read(own.write(deepest)) == deepest


@pytest.mark.parametrize("within", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}])
def test_a_state_too_deep_to_be_read_is_not_written(within: Callable[[Any], Any]) -> None:
    own = Codec(PRODUCT)
    with pytest.raises(StateError, match=rf"(?s)more than {DEPTH} levels deep.*Hint: keep its parts"):
        own.write(nested(DEPTH + 1, within))
    assert own.read(own.write([1])) == [1], "the depth is counted anew"


@pytest.mark.parametrize("kind", ["O", "U2", "S8", "V8", "f8", "|O8"])
def test_a_moment_of_another_type_is_refused(kind: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        Codec(PRODUCT).read(pack_parts([b'{"moment": ["%s", 1234567]}' % kind.encode()]))


def test_a_stream_with_any_bytes_changed_is_read_or_refused_by_arrow() -> None:
    table = pa.table({"n": [1, 2], "word": pa.array(["a", "b"]).dictionary_encode()})
    good = to_bytes(table)
    for at in range(len(good)):
        for change in (b"\x00", b"\xff", b"\xff\xff\xff\x7f", b"\xff" * 8):
            forged = good[:at] + change + good[at + len(change) :]
            with suppress(pa.ArrowException, ValueError, OSError):
                from_bytes(forged).validate(full=True)
