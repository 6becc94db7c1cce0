"""`Files`: the files of a checkpoint by relative names, on local and remote file systems."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from timely_spark.errors import LogDamaged, StorageFailed
from timely_spark.runtime.errors import BadLocation
from timely_spark.runtime.storage.cache import Cache, Stamp, stamp
from timely_spark.runtime.storage.checksums import Intact, checksum, sealed, unsealed
from timely_spark.runtime.storage.stores import SCHEMES, Local, connect, without_options
from timely_spark.state.arrow import from_bytes
from timely_spark.state.bounds import parse_json

#: The longest result of `quoted`; file systems allow 255 bytes, and callers add some.
_LONGEST = 150
#: The key of the JSON head in the metadata of an Arrow file's schema.
HEAD = b"timely"
#: A capital, or a code of `quote`, whose letters are capitals.
_CAPITAL = re.compile(r"%..|[A-Z]")
_NUMBERED = re.compile(r"(-?\d+)(?:\.(?:arrow|json))?", re.ASCII)
#: Errors of reading that concern the file itself; others are those of the file system and of rights.
_OF_THE_FILE = {errno.EINVAL, errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}
_intact = Intact()

T = TypeVar("T")


def location(text: str | os.PathLike[str]) -> str:
    """The canonical text of a path or URI: equal for equal locations.

    Plain paths, `file:` URIs and Databricks mounts (`dbfs:`, `/Volumes/...`) are local. pyarrow reads and
    writes `s3://` (or `s3a`, `s3n`), `gs://`, `abfss://` and `hdfs://`, with credentials from the environment
    and options from the query. The path of a URI is literal, as in Spark.

    >>> location("file:/tmp/a%20b"), location("dbfs:/x"), location("s3a://bucket//x/")
    ('/tmp/a b', '/dbfs/x', 's3://bucket/x')
    >>> location("s3://bucket/x?region=eu-west-1")
    's3://bucket/x?region=eu-west-1'
    """
    text = os.fspath(text)
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in SCHEMES:
        return local_path(text)
    place, mark, query = rest.partition("?")
    authority, _, path = place.partition("/")
    parts = [part for part in path.split("/") if part]
    if ":" in authority.rpartition("@")[0] or (authority.count("@") and SCHEMES[scheme] == "s3"):
        msg = f"The {scheme}: URI holds credentials, which Spark's logs would show."
        hint = "leave them out, and set them in the environment of driver and executors."
        raise BadLocation(msg, hint=hint)
    if (not authority and scheme != "hdfs") or {".", ".."} & set(parts):
        raise BadLocation.incomplete(without_options(text))
    return f"{SCHEMES[scheme]}://{'/'.join([authority, *parts])}{mark}{query}"


def local_path(location: str) -> str:
    """The local path of a plain path, a `file:` URI or a mounted `dbfs:` URI.

    >>> local_path("file:/tmp/a%20b"), local_path("/tmp/x/"), local_path("dbfs:/x")
    ('/tmp/a b', '/tmp/x', '/dbfs/x')
    >>> local_path("~/x") == os.path.expanduser("~/x")
    True
    """
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        location = unquote(parts.path)
    elif parts.scheme == "dbfs":
        location = "/dbfs/" + unquote(parts.path).lstrip("/")
    elif len(parts.scheme) > 1:  # one letter is a drive
        schemes = ", ".join(sorted(SCHEMES))
        msg = f"{without_options(location)!r} is not a local path, and its scheme is none of {schemes}."
        hint = "give a path or URI that driver and executors both reach; on Databricks /Volumes/...."
        raise BadLocation(msg, hint=hint)
    if not location or "\0" in location:
        raise BadLocation.incomplete(location)
    return os.path.abspath(os.path.expanduser(location))


def quoted(name: str) -> str:
    """A component of a path for any name, and never `.` or `..`.

    It is different for different names, also on a file system that ignores case.

    >>> quoted("words"), quoted("Word"), quoted("../a b"), quoted(".."), quoted("")
    ('words', '%57ord', '%2E.%2Fa%20b', '%2E.', '%')
    >>> len(quoted("long" * 100))
    150
    """
    text = quote(name, safe="", errors="surrogatepass") or "%"  # `quote` never gives a single %
    text = _CAPITAL.sub(lambda match: f"%{ord(match[0]):X}" if len(match[0]) == 1 else match[0], text)
    if text.startswith("."):  # a hidden file
        text = f"%2E{text[1:]}"
    if len(text) <= _LONGEST:
        return text
    end = f"%-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return text[: _LONGEST - len(end)] + end


class Files:
    """The files below a root, addressed by relative names, which cannot leave the root.

    A file appears whole or not at all:

    * locally, and on abfss with a hierarchical namespace, by a temporary file and a rename. On hdfs an
      *overwritten* file is missing for a moment, because a rename on hdfs does not replace a file;
    * on s3 and gs by the upload: the object appears when all of it has arrived. An interrupted upload is
      invisible; a lifecycle rule of the bucket removes it.

    With `new`, an existing file is never overwritten if `exclusive` is true: locally, on a file system with
    hard links. Elsewhere (object stores, hdfs, mounts of Databricks) a check precedes the write, so two
    processes at the same instant may both succeed.

    Files are readable by their owner and group at most, as the umask allows. A root may be a symbolic link;
    writing and removing never follow a symbolic link at the end of a name.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        #: The root with its options, from which another process makes an equal object.
        self.location = location(root)
        #: The root without options, for messages.
        self.root = without_options(self.location)
        self._store, self._top = connect(self.location)

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return Files, (self.location,)

    @property
    def local(self) -> bool:
        """Whether `path` is a path of the operating system."""
        return isinstance(self._store, Local)

    @cached_property
    def exclusive(self) -> bool:
        """Whether `new` is atomic; on local file systems by a trial, once."""
        with self._owned("."):
            return self._store.exclusive(self._top)

    @property
    def for_spark(self) -> str:
        """The root as a URI for Spark and Hadoop, without pyarrow's options.

        >>> Files("/tmp/x").for_spark, Files("dbfs:/x").for_spark, Files("/Volumes/a/b/c").for_spark
        ('file:/tmp/x', 'dbfs:/x', '/Volumes/a/b/c')
        """
        if not self.local:
            return f"s3a{self.root[2:]}" if self.root.startswith("s3:") else self.root
        if self.root.startswith("/dbfs/"):
            return f"dbfs:{self.root[5:]}"
        return self.root if self.root.startswith("/Volumes/") else f"file:{self.root}"

    def below(self, folder: str) -> Files:
        """The files of a folder.

        >>> Files("/tmp/x").below("a/b").root
        '/tmp/x/a/b'
        """
        self.path(folder)
        return Files(f"{self.root}/{folder}{self.location[len(self.root) :]}")

    def path(self, name: str) -> str:
        """The path of a file."""
        if {"", ".", ".."} & set(name.split("/")) or "\\" in name or "\0" in name:
            raise LogDamaged.escapes(self.root, name)
        return f"{self._top}/{name}"

    def write(
        self, name: str, content: bytes | pa.Buffer, *, durable: bool = False, new: bool = False
    ) -> None:
        """Write a file atomically; `durable`: sync it to disk; `new`: refuse an existing file.

        Raises:
            FileExistsError: the file exists, and `new` is true.
        """
        with self._owned(name):
            self._store.write(self.path(name), pa.py_buffer(content), durable=durable, new=new)

    def sync(self, name: str) -> None:
        """Wait until a file that was written is on the disk, as `write` with `durable` does."""
        with self._owned(name, "synced to the disk"):
            self._store.sync(self.path(name))

    def write_part(self, name: str, content: bytes, *, crc32: int) -> None:
        """Write an immutable file, which is one `part`; this process need not verify its checksum."""
        self.write(name, content)
        path = self.path(name)
        if self.local and (written := stamp(path)) is not None:
            _intact.add((path, written, 0, len(content), crc32))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""
        content = self._content(name, self._store.read)
        return None if content is None else content.to_pybytes()

    def _content(self, name: str, read: Callable[[str], pa.Buffer]) -> pa.Buffer | None:
        with self._owned(name, "read"):
            try:
                return read(self.path(name))
            except FileNotFoundError:
                return None
            except OSError as error:
                # of a store without errnos the network may be the reason
                if error.errno in _OF_THE_FILE or (error.errno is None and self.local):
                    raise LogDamaged.unreadable(self.root, name, error) from error
                raise

    @contextmanager
    def _owned(self, name: str, verb: str = "written") -> Iterator[None]:
        """Raise errors of the file system in the body as errors of a file, not of the step that runs."""
        try:
            yield
        except (FileExistsError, StorageFailed):
            raise
        except OSError as error:
            raise StorageFailed.of(
                self.root if name == "." else f"{self.root}/{name}", error, verb
            ) from error

    def buffer(self, name: str, version: Stamp | None = None) -> pa.Buffer | None:
        """The content of an immutable file, memory-mapped; None if there is no such file.

        A remote file is fetched once per machine (see `cache.Cache`), and not checked for existence again. If
        another file may get its name, give the `version`.
        """
        if isinstance(self._store, Local):
            return self._content(name, self._store.mapped)
        key, cache = self._key(f"{self.path(name)}{version or ''}"), Cache.of_this_user()
        if (copy := cache.get(key)) is not None:
            return copy
        content = self._content(name, self._store.read)
        return None if content is None else cache.put(key, content)

    def part(
        self, name: str, *, of: int, start: int, size: int, crc32: int
    ) -> tuple[pa.Buffer, Hashable | None]:
        """A part of an immutable file of `of` bytes, mapped, whose checksum is `crc32`; and its version.

        A process verifies the checksum of a file that it has not written, once, and again if the file was
        replaced or changed: then its version differs. None if the version is not known.
        """
        path = self.path(name)
        stamp = self._stamp(path)
        buffer = self.existing(name, self.buffer(name))
        if stamp != self._stamp(path):  # it was replaced meanwhile, so what is mapped is either of both
            stamp = None
        if buffer.size != of or start + size > of:
            reason = f"it has {buffer.size} bytes, expected were {max(of, start + size)}"
            raise LogDamaged.unreadable(self.root, name, reason)
        part, key = buffer.slice(start, size), (path, stamp, start, size, crc32)
        version = None if stamp is None else key
        if version is not None and version in _intact:
            return part, version
        if (computed := checksum(part)) == crc32:
            if version is not None:
                _intact.add(version)
            return part, version
        if self.local or stamp is None:
            raise LogDamaged.altered(self.root, name, expected=f"{crc32:08x}", computed=f"{computed:08x}")
        Cache.of_this_user().drop(self._key(path))  # perhaps only this machine's copy is damaged
        return self.part(name, of=of, start=start, size=size, crc32=crc32)

    def _key(self, path: str) -> str:
        return f"{self.location}\0{path}"

    def _stamp(self, path: str) -> Stamp | None:
        """The stamp of the file that `buffer` maps."""
        return stamp(path) if self.local else Cache.of_this_user().stamp(self._key(path))

    def exists(self, name: str) -> bool:
        """Whether the file exists."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """The size in bytes; None if there is no such file."""
        with self._owned(name, "looked up"):
            return self._store.size(self.path(name))

    def version(self, name: str) -> Stamp | None:
        """What identifies a file beside its name: another file of the name has another version."""
        with self._owned(name, "looked up"):
            return self._store.version(self.path(name))

    def written(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970; None if it is not on this machine."""
        current = stamp(self.path(name)) if self.local else None
        return None if current is None else current[3] / 1e9  # its nanoseconds

    def existing(self, name: str, content: T | None) -> T:
        """The content of a file that must exist."""
        if content is None:
            raise LogDamaged.no_file(self.root, name)
        return content

    # -- files with a checksum -------------------------------------------------------------------------------
    def write_json(
        self, name: str, content: Mapping[str, Any], *, durable: bool = False, new: bool = False
    ) -> None:
        """Write a small JSON file; see `write`."""
        self.write(name, sealed(name, json.dumps(content, indent=1).encode()), durable=durable, new=new)

    def write_once(self, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Write a small JSON file durably, unless it exists; returns what the first writer wrote."""
        try:
            self.write_json(name, content, durable=True, new=True)
        except FileExistsError:
            return self.existing(name, self.json(name))
        return dict(content)

    def json(self, name: str) -> dict[str, Any] | None:
        """The content of a file of `write_json`; None if there is no such file."""
        content = self._unsealed(name)
        return None if content is None else self.parsed(name, content.to_pybytes())

    def write_table(self, name: str, table: pa.Table, *, durable: bool = False, new: bool = False) -> None:
        """Write a table as an Arrow IPC stream; see `write`."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self.write(name, sealed(name, sink.getvalue()), durable=durable, new=new)

    def schema(self, name: str) -> pa.Schema | None:
        """The schema of an Arrow file with its metadata; None if there is no such file."""
        reader = self._arrow(name, rows=False)
        return None if reader is None else reader.schema

    def table(self, name: str) -> pa.Table | None:
        """The table in a file of `write_table`; None if there is no such file."""
        return self._arrow(name, rows=True)

    def head(self, name: str, schema: pa.Schema) -> dict[str, Any]:
        """The JSON head in the metadata of an Arrow file's schema."""
        return self.parsed(name, (schema.metadata or {}).get(HEAD, b""))

    def _arrow(self, name: str, *, rows: bool) -> Any:
        content = self._unsealed(name)
        if content is None:
            return None
        try:
            if not rows:
                return pa.ipc.open_stream(content)
            table = from_bytes(content)
        except (pa.ArrowException, OSError) as error:
            raise LogDamaged.unreadable(self.root, name, error) from error
        return table

    def _unsealed(self, name: str) -> pa.Buffer | None:
        content = self._content(name, self._store.read)
        return None if content is None else unsealed(self.root, name, content)

    def parsed(self, name: str, text: bytes) -> dict[str, Any]:
        """A text in a file as JSON."""
        try:
            return dict(parse_json(text))
        except (ValueError, TypeError) as error:
            raise LogDamaged.unreadable(self.root, name, error) from error

    def numbers(self, folder: str) -> list[int]:
        """The numbers among the names in a folder (`7`, `7.arrow`), ascending; lists the folder once."""
        matches = map(_NUMBERED.fullmatch, self._names(folder))
        return sorted(int(match[1]) for match in matches if match)

    def names(self, folder: str) -> list[str]:
        """The names of the complete files in a folder (`.` is the root); lists the folder once."""
        return sorted(name for name in self._listed(folder) if not name.rpartition("/")[2].startswith("."))

    def tidy(self, folder: str) -> None:
        """Remove unfinished files of killed processes in a folder (`.` is the root), also of Spark.

        No other process may write to the folder meanwhile.
        """
        for name in self._listed(folder):
            if name.rpartition("/")[2].startswith(".") and ".tmp" in name:
                self.remove(name)

    def _listed(self, folder: str) -> list[str]:
        above = "" if folder == "." else f"{folder}/"
        return [above + name for name in self._names(folder)]

    def _names(self, folder: str) -> list[str]:
        with self._owned(folder, "listed"):
            return self._store.names(self._top if folder == "." else self.path(folder))

    def drop(self, folder: str) -> None:
        """Remove an empty folder, on file systems that have empty folders."""
        self._store.drop(self.path(folder))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with self._owned(name, "removed"):
            self._store.remove(self.path(name))
