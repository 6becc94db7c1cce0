"""Files, reached in each way there is: by the operating system, and by pyarrow with and without renaming."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyarrow import fs

from tests.support.turns import CHARACTERS
from timely_spark.errors import LogDamaged, StorageFailed
from timely_spark.runtime.errors import BadLocation
from timely_spark.runtime.storage import files as files_module
from timely_spark.runtime.storage.blobs import Blobs
from timely_spark.runtime.storage.cache import LIMIT, PLACE, Cache
from timely_spark.runtime.storage.checksums import Intact, checksum
from timely_spark.runtime.storage.files import Files, location, quoted
from timely_spark.runtime.storage.stores import Remote, connect

BIG = os.urandom(1 << 20) * 12  # more than one part of an upload
S3_BACKEND = "moto.s3.models.S3Backend"


def _in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """A bucket behind a server that speaks S3."""
    from moto.server import ThreadedMotoServer  # imports for a third of a second, in each process of tests

    logging.getLogger("werkzeug").disabled = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server = ThreadedMotoServer("127.0.0.1", port=0)
        server.start()
        try:
            _, port = server.get_host_and_port()
            options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
            system, _ = fs.FileSystem.from_uri(f"s3://bucket?{options}&allow_bucket_creation=true")
            system.create_dir("bucket")
            yield f"s3a://bucket/%s?{options}"
        finally:
            server.stop()


@pytest.fixture
def s3(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Files:
    """Files of a folder of their own in the bucket, and a cache of their own."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    return Files(bucket % f"{uuid.uuid4().hex}/timely")


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Files:
    """What hdfs and abfss go through: pyarrow, with a temporary file that is moved."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    store = Remote(fs.LocalFileSystem(), renames=True)
    monkeypatch.setattr(files_module, "connect", lambda place: (store, place))
    return Files(tmp_path / "moved")


@pytest.fixture(params=["local", "moved", "s3"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(tmp_path / "local") if request.param == "local" else request.getfixturevalue(request.param)


# -- the same everywhere -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_file_has_the_content_written_last(files: Files) -> None:
    for content in (b"first", pa.py_buffer(b"second, longer"), b"3", BIG, b""):
        files.write("a/b/c.json", content, durable=True)

        assert files.read("a/b/c.json") == bytes(content)
        assert files.size("a/b/c.json") == len(bytes(content))
        assert files.exists("a/b/c.json")
    assert files.names("a/b") == ["a/b/c.json"], "no temporary file is left"


@pytest.mark.slow
def test_a_missing_file_is_none_and_a_missing_folder_empty(files: Files) -> None:
    for ask in (files.read, files.buffer, files.size, files.schema, files.table):
        assert ask("no/such.arrow") is None
    assert not files.exists("no/such.arrow")
    assert files.names("no") == files.numbers("no") == files.names(".") == []
    files.remove("no/such.arrow")


def test_a_network_that_fails_is_no_damage(moved: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    moved.write_json("a.json", {})
    down = OSError("When reading information for key 'a.json': AWS Error NETWORK_CONNECTION")
    monkeypatch.setattr(Remote, "read", Mock(side_effect=down))
    for ask in (moved.read, moved.json, moved.buffer):
        with pytest.raises(StorageFailed, match=r"a\.json cannot be read: .*NETWORK_CONNECTION"):
            ask("a.json")


def test_a_listing_has_no_unfinished_files(files: Files) -> None:
    for name in ("7.arrow", "12.arrow", "-1.arrow", "x.json", "20/1.arrow", ".begun.tmp"):
        files.write(name, b"x")

    assert files.numbers(".") == [-1, 7, 12, 20]
    assert files.names(".") == ["-1.arrow", "12.arrow", "20", "7.arrow", "x.json"]
    assert files.names("20") == ["20/1.arrow"]
    assert files.below("20").names(".") == ["1.arrow"]


def test_a_new_file_never_replaces_one(files: Files) -> None:
    files.write("terms/0.json", b"mine", new=True)
    with pytest.raises(FileExistsError):
        files.write("terms/0.json", b"theirs", new=True)

    assert files.read("terms/0.json") == b"mine"
    assert files.names("terms") == ["terms/0.json"]


def test_a_process_remembers_only_so_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("timely_spark.runtime.storage.checksums._MOST", 2)
    known = Intact()
    for part in "abc":
        known.add(part)

    assert [part in known for part in "abc"] == [False, True, True]


@pytest.mark.slow
def test_fifty_rounds_are_written_read_listed_and_removed(files: Files) -> None:
    for batch in range(50):
        schema = pa.schema([("worker", pa.int64())], metadata={b"timely": str(batch).encode()})
        files.write_table(f"rounds/0/{batch}.arrow", pa.table({"worker": [batch, 1]}, schema=schema))
        assert files.schema(f"rounds/0/{batch}.arrow").metadata == {b"timely": str(batch).encode()}
        if batch >= 10:
            files.remove(f"rounds/0/{batch - 10}.arrow")

    assert files.numbers("rounds/0") == list(range(40, 50))
    tables = [files.table(name) for name in files.names("rounds/0")]
    assert [table.column("worker")[0].as_py() for table in tables] == list(range(40, 50))


@pytest.mark.slow
def test_a_blob_is_found_by_its_reference_and_through_a_pickle(files: Files) -> None:
    reference = Blobs(files).put("worker-0-1", BIG)

    assert Blobs(files).get(reference).to_pybytes() == BIG
    assert pickle.loads(pickle.dumps(files)).location == files.location


@pytest.mark.slow
def test_a_blob_is_verified_once_by_each_process_that_has_not_written_it(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(data: Any, start: int = 0) -> int:
        verified.append(len(data))
        return checksum(data, start)

    verified, blobs = list[int](), Blobs(files)
    reference = blobs.put("worker-0-1", BIG)
    monkeypatch.setattr(files_module, "checksum", counted)
    assert blobs.get(reference).to_pybytes() == BIG
    assert verified == ([] if files.local else [len(BIG)])
    monkeypatch.setattr(files_module, "_intact", Intact())  # another process
    verified.clear()
    for _ in range(3):
        blobs.get(reference)
    assert verified == [len(BIG)]


# -- whole or not at all -------------------------------------------------------------------------------------
def _deny(*_: object, **__: object) -> None:
    from moto.s3.exceptions import S3ClientError

    code = "AccessDenied"
    raise S3ClientError(code, "not now")


@pytest.mark.slow
@pytest.mark.parametrize("before", [None, b"before"])
@pytest.mark.parametrize("step", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
def test_an_upload_that_fails_at_any_step_leaves_what_there_was(
    s3: Files, monkeypatch: pytest.MonkeyPatch, step: str, before: bytes | None
) -> None:
    if before is not None:
        s3.write("a/b", before)
    monkeypatch.setattr(f"{S3_BACKEND}.{step}", _deny)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        s3.write("a/b", BIG)

    assert s3.read("a/b") == before


@pytest.mark.parametrize("before", [None, b"before"])
def test_a_small_object_is_one_request_and_nothing_if_it_fails(
    s3: Files, monkeypatch: pytest.MonkeyPatch, before: bytes | None
) -> None:
    monkeypatch.setattr(f"{S3_BACKEND}.create_multipart_upload", _deny)
    if before is not None:
        s3.write("a/b", before)
    monkeypatch.setattr(f"{S3_BACKEND}.put_object", _deny)
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        s3.write("a/b", b"after")

    assert s3.read("a/b") == before


@pytest.mark.parametrize("content", [b"small", BIG], ids=["small", "large"])
def test_a_bucket_that_is_missing_is_empty_and_not_written(bucket: str, content: bytes) -> None:
    files = Files(bucket.replace("//bucket", "//missing") % "a")

    assert files.read("b") is None
    assert files.numbers(".") == []
    with pytest.raises(OSError, match=r"(?i)bucket"):
        files.write("b", content)


class _Breaking:
    """A file system whose streams break in the middle, or whose move fails."""

    def __init__(self, *, at: str) -> None:
        self._system, self._at = fs.LocalFileSystem(), at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def open_output_stream(self, path: str) -> Any:
        stream, at = self._system.open_output_stream(path), self._at

        class Stream:
            def write(self, content: pa.Buffer) -> None:
                stream.write(content.slice(0, content.size // 2))
                if at == "write":
                    raise OSError(at)
                stream.write(content.slice(content.size // 2))

            def __enter__(self) -> Any:
                return self

            def __exit__(self, *_: object) -> None:
                stream.close()

        return Stream()

    def move(self, source: str, target: str) -> None:
        if self._at == "move":
            raise OSError(self._at)
        self._system.move(source, target)


@pytest.mark.parametrize("at", ["write", "move"])
def test_a_moved_file_that_fails_leaves_what_there_was(
    at: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moved: Files
) -> None:
    moved.write("a/b", b"before")
    monkeypatch.setattr(moved, "_store", Remote(_Breaking(at=at), renames=True))
    with pytest.raises(OSError, match=at):
        moved.write("a/b", b"after")
    with pytest.raises(OSError, match=at):
        moved.write("a/c", b"after")

    assert moved.read("a/b") == b"before"
    assert _in(tmp_path / "moved" / "a") == ["b"]


@pytest.mark.slow
def test_a_local_file_that_outgrows_the_disk_leaves_what_there_was(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("a/b", b"before")
    script = """if True:
        import resource, signal, sys
        from timely_spark.runtime.storage.files import Files

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        for name in ("b", "c"):
            try:
                Files(sys.argv[1]).write(f"a/{name}", bytes(10_000), new=name == "c")
            except OSError as error:
                print(error.__cause__.strerror)
    """
    printed = subprocess.check_output([sys.executable, "-c", script, str(tmp_path)], text=True)

    assert printed.splitlines() == ["File too large"] * 2
    assert files.read("a/b") == b"before"
    assert _in(tmp_path / "a") == ["b"]


def test_only_unfinished_files_are_tidied_away(tmp_path: Path) -> None:
    files = Files(tmp_path)
    for name in ("a/1.arrow", "a/step.tmp", "a/of.tmp.a", "a/.hidden", "a/.b.tmp", "a/.2.arrow.tmp-7"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    files.tidy("a")
    assert _in(tmp_path / "a") == [".hidden", "1.arrow", "of.tmp.a", "step.tmp"]


def test_of_many_who_create_a_local_file_one_succeeds(tmp_path: Path) -> None:
    files, won, start = Files(tmp_path), [], threading.Barrier(8)

    def create(who: int) -> None:
        start.wait()
        try:
            files.write("terms/0.json", str(who).encode(), new=True)
            won.append(who)
        except FileExistsError:
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    assert [str(who).encode() for who in won] == [files.read("terms/0.json")]


def test_whether_creating_is_exclusive_is_known(tmp_path: Path, s3: Files, monkeypatch: Any) -> None:
    linked = Files(tmp_path / "a")
    assert (linked.local, linked.exclusive) == (True, True)
    assert _in(tmp_path / "a") == []
    assert (s3.local, s3.exclusive) == (False, False)
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))
    mounted = Files(tmp_path / "b")
    assert (mounted.local, mounted.exclusive) == (True, False)
    mounted.write("c", b"1", new=True)
    with pytest.raises(FileExistsError):
        mounted.write("c", b"2", new=True)
    assert _in(tmp_path / "b") == ["c"]


def test_a_mount_that_maps_nothing_is_read_all_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(path: str) -> None:
        if not Path(path).exists():
            raise FileNotFoundError(path)
        raise OSError(errno.ENODEV, path)

    files = Files(tmp_path)
    files.write("a", b"content")
    monkeypatch.setattr(pa, "memory_map", refuse)

    assert files.buffer("a") == pa.py_buffer(b"content")
    assert files.buffer("b") is None


# -- names and modes -----------------------------------------------------------------------------------------
PARTS = st.sampled_from(["..", ".", "", "a", "b.arrow", "\0", "a\\b", "..\\x", "c", "/"])


@given(st.lists(PARTS, min_size=1, max_size=5).map("/".join))
def test_a_name_is_below_the_root_or_refused(name: str) -> None:
    root = "/tmp/checkpoint"
    wanted = f"{root}/{name}"
    if os.path.normpath(wanted) == wanted and "\\" not in name and "\0" not in name:
        assert Files(root).path(name) == wanted
    else:
        with pytest.raises(LogDamaged, match=r"(?s)/tmp/checkpoint.*Hint") as caught:
            Files(root).path(name)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", "..\\x", "a\0", "a/./b", "a/"]
)
def test_no_method_takes_a_name_that_leads_elsewhere(files: Files, name: str) -> None:
    table = pa.table({"x": [1]})
    ways: list[Callable[[], Any]] = [
        lambda: files.read(name),
        lambda: files.buffer(name),
        lambda: files.exists(name),
        lambda: files.size(name),
        lambda: files.schema(name),
        lambda: files.table(name),
        lambda: files.remove(name),
        lambda: files.numbers(name),
        lambda: files.names(name),
        lambda: files.below(name),
        lambda: files.write(name, b"x"),
        lambda: files.write_table(name, table, new=True),
    ]
    for way in ways:
        with pytest.raises(LogDamaged, match="not the name of a file below"):
            way()


NAMES = st.text(CHARACTERS, max_size=300) | st.text(CHARACTERS, max_size=3).map(lambda end: "x" * 150 + end)


@pytest.mark.slow
@given(NAMES, NAMES)
@example("Words", "words")
@example("%57", "W")
@example("X" * 200, "x" * 200)
def test_a_quoted_name_is_one_harmless_part_of_a_path(first: str, second: str) -> None:
    parts = [quoted(first), quoted(second)]
    for part in parts:
        assert Files("/tmp/x").path(part) == os.path.normpath(f"/tmp/x/{part}")
        assert "/" not in part
        assert not part.startswith(".")
        assert len(part.encode()) <= 150
    assert (parts[0].casefold() == parts[1].casefold()) == (first == second)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["..", "", "a/b", "../x", "ä" * 200, "%41", "x" * 1000, "a b?c#d"])
def test_a_step_of_any_name_has_its_files(files: Files, name: str) -> None:
    files.write(f"inputs/{quoted(name)}/0.arrow", b"x")

    assert files.numbers(f"inputs/{quoted(name)}") == [0]
    assert files.names("inputs") == [f"inputs/{quoted(name)}"]


@pytest.mark.parametrize(
    ("umask", "folder", "file"), [(0, 0o770, 0o660), (0o022, 0o750, 0o640), (0o077, 0o700, 0o600)]
)
def test_nobody_else_can_read_a_checkpoint(tmp_path: Path, umask: int, folder: int, file: int) -> None:
    before = os.umask(umask)
    try:
        files = Files(tmp_path / "a" / "b")
        files.write("c/d/e", b"x", durable=True)
        files.write("c/d/new", b"x", new=True)
    finally:
        os.umask(before)

    made = sorted((tmp_path / "a").rglob("*"))
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "a", *made]}
    assert found == {"a": folder, "b": folder, "c": folder, "d": folder, "e": file, "new": file}


def test_a_link_is_replaced_and_removed_never_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"theirs")
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "first").symlink_to(tmp_path / "outside")
    (tmp_path / "real" / "second").symlink_to(tmp_path / "outside")
    files = Files(tmp_path / "root")

    files.write("first", b"mine")
    files.remove("second")
    (tmp_path / "real" / "third").symlink_to(tmp_path / "outside")
    with pytest.raises(FileExistsError):
        files.write("third", b"mine", new=True)

    assert (tmp_path / "outside").read_bytes() == b"theirs"
    assert (tmp_path / "real" / "first").read_bytes() == b"mine"
    assert not (tmp_path / "real" / "second").is_symlink()


# -- places --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a/b%20c", "/a/b c"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("dbfs:/a", "/dbfs/a"),
        ("/Volumes/a/b/c", "/Volumes/a/b/c"),
        ("s3n://bucket/a b%20", "s3://bucket/a b%20"),
        ("s3a://bucket", "s3://bucket"),
        ("gs://bucket/a/?endpoint_override=x:1", "gs://bucket/a?endpoint_override=x:1"),
        ("abfss://c@account.dfs.core.windows.net/a//b", "abfss://c@account.dfs.core.windows.net/a/b"),
        ("hdfs:///a", "hdfs:///a"),
        ("hdfs://host:8020/a", "hdfs://host:8020/a"),
    ],
)
def test_a_location_has_one_canonical_text(text: str, expected: str) -> None:
    assert location(text) == expected == location(expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ftp://host/a", "none of abfss, gs, hdfs, s3, s3a, s3n"),
        ("wasbs://c@a/x", "none of abfss"),
        ("file://host/a", "not a local path"),
        ("s3:bucket/a", "not a local path"),
        ("s3:///a", "names no place"),
        ("s3://bucket/../a", "names no place"),
        ("", "names no place"),
        ("a\0b", "names no place"),
        ("s3://key:secret@bucket/a", "holds credentials"),
        ("s3://bucket/a?no_such_option=secret", "does not reach s3://bucket/a: .*no_such_option"),
        ("abfss://no-account/a", "does not reach abfss://no-account/a"),
    ],
)
def test_an_unreachable_location_is_refused_at_once(text: str, says: str) -> None:
    with pytest.raises(BadLocation, match=rf"(?s){says}.*Hint") as caught:
        Files(text)
    assert "secret" not in str(caught.value)


def test_a_file_system_that_pyarrow_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Without:
        @staticmethod
        def from_uri(uri: str) -> Any:
            msg = f"Got GCS URI but Arrow compiled without GCS support: {uri}"
            raise NotImplementedError(msg)

    monkeypatch.setattr(fs, "FileSystem", Without)
    with pytest.raises(BadLocation, match=r"(?s)gs://nobody/a: .*without GCS.*Hint"):
        Files("gs://nobody/a")


def test_paths_of_objects_are_taken_literally(bucket: str) -> None:
    _, path = connect(location(bucket % "a b/%2E"))

    assert path == "bucket/a b/%2E"


def test_spark_gets_the_location_without_options(bucket: str) -> None:
    files = Files(bucket % "x/y")

    assert files.for_spark == "s3a://bucket/x/y"
    assert files.root == "s3://bucket/x/y", "shown without them, too"
    assert files.below("z").location == files.location.replace("x/y?", "x/y/z?")


# -- the cache -----------------------------------------------------------------------------------------------
@pytest.fixture(params=["moved", "s3"])
def remote(request: pytest.FixtureRequest) -> Files:
    return request.getfixturevalue(request.param)


def _copies(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache").glob("timely-*/*"))


@pytest.mark.slow
def test_a_blob_is_fetched_once(remote: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.write("blobs/a", BIG)
    first = remote.buffer("blobs/a")
    monkeypatch.setattr(remote, "_store", None)

    assert remote.buffer("blobs/a").equals(first)
    assert first.address % 64 == 0, "Arrow reads it in place"
    (copy,) = _copies(tmp_path)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == 0o700


def test_the_same_name_elsewhere_is_another_blob(remote: Files) -> None:
    remote.write("a/x", b"1")
    remote.write("b/x", b"2")

    assert [remote.below(folder).buffer("x").to_pybytes() for folder in "abab"] == [b"1", b"2", b"1", b"2"]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 3, 8, 500, 1007])
def test_a_copy_of_the_wrong_size_is_fetched_again(remote: Files, tmp_path: Path, keep: int) -> None:
    content = os.urandom(1000)
    remote.write("blobs/a", content)
    remote.buffer("blobs/a")
    (copy,) = _copies(tmp_path)
    copy.write_bytes(copy.read_bytes()[:keep])

    assert remote.buffer("blobs/a").to_pybytes() == content
    assert copy.stat().st_size == 1008


@pytest.mark.slow
def test_a_copy_that_vanishes_is_fetched_again_and_stays_readable(remote: Files, tmp_path: Path) -> None:
    remote.write("blobs/a", BIG)
    held = remote.buffer("blobs/a")
    _copies(tmp_path)[0].unlink()

    assert remote.buffer("blobs/a").to_pybytes() == BIG
    assert held.to_pybytes() == BIG


def test_the_least_recently_used_go_first_and_the_bytes_are_bounded(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), limit=10_000)
    for i in range(40):
        cache.put(str(i), pa.py_buffer(bytes([i]) * 992))
        cache.get("0")

        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    assert [i for i in range(40) if cache.get(str(i)) is not None] == [0, *range(31, 40)]


def test_unfinished_copies_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".begun.tmp").write_bytes(bytes(9_000))
    os.utime(tmp_path / ".begun.tmp", (0, 0))
    cache = Cache(str(tmp_path), limit=10_000)
    cache.put("a", pa.py_buffer(bytes(2_000)))

    assert not (tmp_path / ".begun.tmp").exists()
    assert cache.get("a") is not None


def test_content_larger_than_the_cache_is_returned_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(str(tmp_path), limit=100)
    assert cache.put("a", pa.py_buffer(bytes(93))).size == 93
    assert _in(tmp_path) == []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cache.put("a", pa.py_buffer(bytes(20))).size == 20
    assert _in(tmp_path) == []


_SHARING = """
import random, sys
import pyarrow as pa
from timely_spark.runtime.storage.cache import Cache

cache, chance = Cache(sys.argv[1], limit=50_000), random.Random(int(sys.argv[2]))
found = 0
for _ in range(500):
    i = chance.randrange(40)
    copy = cache.get(str(i))
    found += copy is not None
    copy = copy or cache.put(str(i), pa.py_buffer(bytes([i]) * 3_000))
    assert copy.to_pybytes() == bytes([i]) * 3_000
print(found)
"""


@pytest.mark.slow
def test_processes_share_a_cache(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", _SHARING, str(tmp_path), str(i)], stdout=subprocess.PIPE)
        for i in range(2)
    ]
    found = [int(process.communicate()[0]) for process in running]

    assert all(process.returncode == 0 for process in running)
    assert min(found) > 50
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 50_000
    assert not list(tmp_path.glob(".*"))


def test_a_cache_that_others_can_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path / "new"))
    mine = Path(Cache.of_this_user().folder)
    mine.chmod(0o755)
    with pytest.raises(BadLocation, match=rf"(?s)others can read.*{PLACE}"):
        Cache.of_this_user()
    mine.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    mine.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadLocation, match="others can read"):
        Cache.of_this_user()


def test_a_disk_that_refuses_the_cache_owns_the_error(
    moved: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved.write("blobs/a", b"x")
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(os, "makedirs", Mock(side_effect=refused))
    with pytest.raises(StorageFailed, match=rf"{tmp_path}/cache/timely-\d+, .*Read-only") as caught:
        moved.buffer("blobs/a")
    assert caught.value.errno == errno.EROFS


def test_the_bound_of_the_cache_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))
    assert Cache.of_this_user().limit == 1 << 30
    monkeypatch.setenv(LIMIT, "5000")
    assert Cache.of_this_user().limit == 5000
    monkeypatch.setenv(LIMIT, "1 GB")
    with pytest.raises(BadLocation, match=r"(?s)'1 GB'.*Hint"):
        Cache.of_this_user()


# -- what the disk has ---------------------------------------------------------------------------------------
def test_a_durable_file_is_synced_with_all_its_folders(tmp_path: Path, synced: list[str]) -> None:
    top = tmp_path / "checkpoint"
    files = Files(top / "timely")
    files.write("inputs/x/0.arrow", b"first", durable=True, new=True)

    made = [tmp_path, top, top / "timely", top / "timely" / "inputs"]
    *folders, content, folder = synced
    assert folders == list(map(str, made)), "each is new, so the folder above it is synced"
    assert content.startswith(f"{top}/timely/inputs/x/."), "the content has its first name still"
    assert folder == f"{top}/timely/inputs/x"

    synced.clear()
    files.write("inputs/x/1.arrow", b"second", durable=True, new=True)
    assert len(synced) == 2, "the content, and the name"


def test_a_folder_is_durable_whatever_it_was_made_for(tmp_path: Path, synced: list[str]) -> None:
    files = Files(tmp_path)
    files.write("inputs/x/0.arrow", b"not durable")
    assert synced == [str(tmp_path), f"{tmp_path}/inputs"]
    files.write("inputs/x/1.arrow", b"not durable")
    assert len(synced) == 2


@pytest.mark.parametrize("which", [0, 1], ids=["content", "name"])
def test_a_disk_that_fails_to_sync_fails_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    files = Files(tmp_path)
    calls: list[int] = []

    def fail(handle: int) -> None:
        calls.append(handle)
        if len(calls) > which:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.write("a", b"x", durable=True)


def test_a_mount_that_syncs_no_folders_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def refuse(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "no such thing here")
        real(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    Files(tmp_path).write("a/b", b"x", durable=True)
    assert Files(tmp_path).read("a/b") == b"x"
