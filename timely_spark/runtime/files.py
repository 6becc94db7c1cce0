"""Files of the checkpoint: the only place that knows how they are named and reached."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from timely_spark.errors import LogDamaged
from timely_spark.runtime.cache import Cache, Stamp, stamp
from timely_spark.runtime.checksums import Intact, checksum, sealed, unsealed
from timely_spark.runtime.errors import BadLocation
from timely_spark.runtime.stores import SCHEMES, Local, connect, shown

#: The longest component that `quoted` gives; file systems take 255 bytes, of which callers need some.
_LONGEST = 150
#: Where an Arrow file of ours has its JSON, in the metadata of its schema.
HEAD = b"timely"
_intact = Intact()


def location(text: str | os.PathLike[str]) -> str:
    """The one text for a place, however it was written; equal for equal places, and what `Files` takes.

    Local are plain paths, `file:` URIs, and what Databricks mounts (`dbfs:`, `/Volumes/...`). Through pyarrow
    go `s3://` (or `s3a`, `s3n`), `gs://`, `abfss://` and `hdfs://`, with the credentials that it finds in the
    environment, and the options that it takes in the query. The path of a URI is literal, as in Spark.

    >>> location("file:/tmp/a%20b"), location("dbfs:/x"), location("s3a://bucket//x/")
    ('/tmp/a b', '/dbfs/x', 's3://bucket/x')
    >>> location("s3://bucket/x?region=eu-west-1")
    's3://bucket/x?region=eu-west-1'

    Raises:
        BadLocation: another scheme, no bucket, a password, or a path that leaves its root.
    """
    text = os.fspath(text)
    scheme, mark, rest = text.partition("://")
    if not mark or scheme not in SCHEMES:
        return local_path(text)
    place, mark, query = rest.partition("?")
    authority, _, path = place.partition("/")
    parts = [part for part in path.split("/") if part]
    if ":" in authority.rpartition("@")[0] or (authority.count("@") and SCHEMES[scheme] == "s3"):
        raise BadLocation.credentials(scheme)
    if (not authority and scheme != "hdfs") or {".", ".."} & set(parts):
        raise BadLocation.incomplete(shown(text))
    return f"{SCHEMES[scheme]}://{'/'.join([authority, *parts])}{mark}{query}"


def local_path(location: str) -> str:
    """The local path which a plain path or a `file:` (or mounted `dbfs:`) URI stands for.

    >>> local_path("file:/tmp/a%20b"), local_path("/tmp/x/"), local_path("dbfs:/x")
    ('/tmp/a b', '/tmp/x', '/dbfs/x')

    Raises:
        BadLocation: it is not local.
    """
    parts = urlsplit(location)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        location = unquote(parts.path)
    elif parts.scheme == "dbfs":
        location = "/dbfs/" + unquote(parts.path).lstrip("/")
    elif len(parts.scheme) > 1:  # one letter is a drive
        raise BadLocation.scheme(shown(location), sorted(SCHEMES))
    if not location or "\0" in location:
        raise BadLocation.incomplete(location)
    return os.path.abspath(location)


def quoted(name: str) -> str:
    """One part of a path for any name: another one for another name, and never one that leads elsewhere.

    >>> quoted("words"), quoted("../a b"), quoted(".."), quoted("")
    ('words', '%2E.%2Fa%20b', '%2E.', '%')
    >>> len(quoted("long" * 100))
    150
    """
    text = quote(name, safe="", errors="surrogatepass") or "%"  # quote itself leaves no % without two digits
    if text.startswith("."):  # hidden
        text = f"%2E{text[1:]}"
    if len(text) <= _LONGEST:
        return text
    end = f"%-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return text[: _LONGEST - len(end)] + end


class Files:
    """The files below one place, addressed by relative names, which cannot leave it.

    A file appears whole or not at all, and stays so:

    * locally by a temporary file and a rename, and on abfss too (with a hierarchical namespace). On hdfs a
      file that is *overwritten* is missing for a moment, since its rename replaces nothing;
    * on s3 and gs by the upload, whose object is there when all of it has arrived. What a killed process had
      begun to upload is invisible; a lifecycle rule of the bucket removes it.

    `new` is a guarantee where `exclusive` says so: locally, on a file system with hard links. Elsewhere
    (object stores, hdfs, mounts of Databricks) it looks first and then writes, so of two processes that do so
    in the same instant both may believe to be the first.

    Files are open to their owner and group at most, as the umask allows. A root may be a symbolic link;
    writing and removing never follow one at the end of a name.

    Args:
        root: a path or URI, as `location` takes it.

    >>> import tempfile
    >>> files = Files(tempfile.mkdtemp())
    >>> files.write("a/1.json", b"{}")
    >>> files.read("a/1.json"), files.numbers("a"), files.read("a/2.json")
    (b'{}', [1], None)
    >>> files.read("../x")
    Traceback (most recent call last):
    timely_spark.errors.LogDamaged: ...

    Raises:
        BadLocation: there is no way to that place.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        #: The whole root, options included: what makes the same object elsewhere.
        self.location = location(root)
        #: The root as it is shown to people.
        self.root = shown(self.location)
        self._store, self._top = connect(self.location)

    def __reduce__(self) -> tuple[type[Files], tuple[str]]:
        return Files, (self.location,)

    @property
    def local(self) -> bool:
        """Whether the operating system reaches them, so that `path` is a path."""
        return isinstance(self._store, Local)

    @cached_property
    def exclusive(self) -> bool:
        """Whether `new` is a guarantee; locally found out by trying, once."""
        return self._store.exclusive(self._top)

    @property
    def for_spark(self) -> str:
        """The root as Spark and Hadoop write it, with none of pyarrow's options.

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
        """Where `name` is.

        Raises:
            LogDamaged: the name is not one of a file below the root.
        """
        if {"", ".", ".."} & set(name.split("/")) or "\\" in name or "\0" in name:
            raise LogDamaged.escapes(self.root, name)
        return f"{self._top}/{name}"

    def _folder(self, folder: str) -> str:
        return self._top if folder == "." else self.path(folder)

    def write(
        self, name: str, content: bytes | pa.Buffer, *, durable: bool = False, new: bool = False
    ) -> None:
        """Writes a file whole; `new` refuses an existing one, `durable` survives the machine, too.

        Raises:
            FileExistsError: there is a file, and `new` was asked for.
        """
        self._store.write(self.path(name), pa.py_buffer(content), durable=durable, new=new)

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is no such file."""
        found = self._content(name)
        return None if found is None else found.to_pybytes()

    def _content(self, name: str) -> pa.Buffer | None:
        path = self.path(name)
        try:
            return self._store.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogDamaged.unreadable(self.root, name, error) from error

    def buffer(self, name: str) -> pa.Buffer | None:
        """The content of a file that never changes, memory-mapped; None where there is no such file.

        A remote file is fetched once per machine (see `cache.Cache`); its copy is given even when it is gone.
        """
        path = self.path(name)
        if self.local:
            try:
                with self._store.opened(path) as file:
                    return file.read_buffer()
            except FileNotFoundError:
                return None
            except OSError as error:
                raise LogDamaged.unreadable(self.root, name, error) from error
        key, cache = self._key(path), Cache.of_this_user()
        if (copy := cache.get(key)) is not None:
            return copy
        found = self._content(name)
        return None if found is None else cache.put(key, found)

    def part(self, name: str, *, of: int, start: int, size: int, crc32: int) -> pa.Buffer:
        """A part of a file of `of` bytes, which never changes, memory-mapped, if its checksum is `crc32`.

        A process looks at the checksum once, and again when the file is another one.

        Raises:
            LogDamaged: the file is gone, of another size, or damaged.
        """
        path = self.path(name)
        stamp = self._stamp(path)
        buffer = self.buffer(name)
        if buffer is None:
            raise LogDamaged.no_file(self.root, name)
        if buffer.size != of or start + size > of:
            reason = f"it has {buffer.size} bytes, expected were {max(of, start + size)}"
            raise LogDamaged.unreadable(self.root, name, reason)
        part, key = buffer.slice(start, size), (path, stamp, start, size, crc32)
        if stamp is not None and key in _intact:
            return part
        if (found := checksum(part)) == crc32:
            if stamp is not None:
                _intact.add(key)
            return part
        if self.local or stamp is None:
            raise LogDamaged.altered(self.root, name, expected=f"{crc32:08x}", found=f"{found:08x}")
        Cache.of_this_user().drop(self._key(path))  # this machine's copy is damaged, perhaps not the file
        return self.part(name, of=of, start=start, size=size, crc32=crc32)

    def _key(self, path: str) -> str:
        return f"{self.location}\0{path}"

    def _stamp(self, path: str) -> Stamp | None:
        """Of what `buffer` maps."""
        return stamp(path) if self.local else Cache.of_this_user().stamp(self._key(path))

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such file."""
        return self._store.size(self.path(name))

    # -- files with a checksum at their end ------------------------------------------------------------------
    def write_json(
        self, name: str, content: Mapping[str, Any], *, durable: bool = False, new: bool = False
    ) -> None:
        """A small JSON file."""
        self.write(name, sealed(name, json.dumps(content, indent=1).encode()), durable=durable, new=new)

    def json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote; None where there is no such file.

        Raises:
            LogDamaged: the file is not what was written.
        """
        found = self._unsealed(name)
        return None if found is None else self.parsed(name, found.to_pybytes())

    def write_table(self, name: str, table: pa.Table, *, durable: bool = False, new: bool = False) -> None:
        """An Arrow IPC stream."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self.write(name, sealed(name, sink.getvalue()), durable=durable, new=new)

    def schema(self, name: str) -> pa.Schema | None:
        """The schema (with its metadata) of an Arrow file, its rows not decoded; None where there is none.

        Raises:
            LogDamaged: the file is not what was written.
        """
        found = self._arrow(name, rows=False)
        return None if found is None else found.schema

    def table(self, name: str) -> pa.Table | None:
        """What `write_table` wrote; None where there is no such file.

        Raises:
            LogDamaged: the file is not what was written.
        """
        return self._arrow(name, rows=True)

    def head(self, name: str, schema: pa.Schema) -> dict[str, Any]:
        """The JSON in the metadata of an Arrow file's schema.

        Raises:
            LogDamaged: there is none.
        """
        return self.parsed(name, (schema.metadata or {}).get(HEAD, b""))

    def _arrow(self, name: str, *, rows: bool) -> Any:
        found = self._unsealed(name)
        if found is None:
            return None
        try:
            with pa.ipc.open_stream(found) as reader:
                if not rows:
                    return reader
                table = reader.read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise LogDamaged.unreadable(self.root, name, error) from error
        return table

    def _unsealed(self, name: str) -> pa.Buffer | None:
        found = self._content(name)
        return None if found is None else unsealed(self.root, name, found)

    def parsed(self, name: str, text: bytes) -> dict[str, Any]:
        """A text of a file as JSON.

        Raises:
            LogDamaged: it is none.
        """
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise LogDamaged.unreadable(self.root, name, error) from error

    def numbers(self, folder: str) -> list[int]:
        """The numbers that name what is in a folder (`7`, `7.arrow`), ascending: one listing."""
        return sorted(self._numbers(folder))

    def _numbers(self, folder: str) -> Iterator[int]:
        for name in self._store.names(self._folder(folder)):
            stem = name.partition(".")[0]
            if stem.removeprefix("-").isdecimal():
                yield int(stem)

    def names(self, folder: str) -> list[str]:
        """What is in a folder (`.` is the root) and complete, as names of this object: one listing."""
        above = "" if folder == "." else f"{folder}/"
        found = self._store.names(self._folder(folder))
        return sorted(above + name for name in found if not name.startswith("."))

    def tidy(self, folder: str) -> None:
        """Removes what killed processes have begun to write in a folder (`.` is the root), by us or Spark.

        Only for who knows that nobody else is writing there.
        """
        above = "" if folder == "." else f"{folder}/"
        for name in self._store.names(self._folder(folder)):
            if name.startswith(".") and ".tmp" in name:
                self.remove(above + name)

    def drop(self, folder: str) -> None:
        """Removes a folder, if it is empty and the file system knows empty folders."""
        self._store.drop(self.path(folder))

    def remove(self, name: str) -> None:
        """Removes the file, if it is there."""
        self._store.remove(self.path(name))
