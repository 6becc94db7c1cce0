"""`Folder`: the files below a folder as Arrow: listing, the schema, and reading parts of files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from operator import and_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from timely_spark.compiler.pushdown import Needed
from timely_spark.errors import Where
from timely_spark.graph import as_schema, describe, path_text, refuse
from timely_spark.runtime.errors import BadFile
from timely_spark.runtime.sources.arrivals import File, FileValues, Part, is_visible
from timely_spark.runtime.sources.bad_row import what_to_do, with_place
from timely_spark.runtime.sources.csv_files import csv_batches
from timely_spark.runtime.sources.file_formats import (
    Decompressed,
    Format,
    file_kind,
    with_options,
    with_quoted_lines,
)
from timely_spark.runtime.sources.file_types import (
    INSTANT,
    changes_values,
    check_calendar,
    check_paths,
    folded,
    folder_values,
    intervals,
    other_calendar,
    partition_value,
    plain,
    row_groups_in,
    scalar_of,
    single_values,
    types,
    unless_empty,
    valid,
    with_instants,
    with_times_as_texts,
    zones,
)
from timely_spark.runtime.sources.json_files import json_batches, reading_json
from timely_spark.runtime.sources.listing import walk
from timely_spark.runtime.sources.source import JournaledSource
from timely_spark.runtime.sources.text_files import open_text
from timely_spark.runtime.storage.files import location
from timely_spark.runtime.storage.stores import filesystem_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds

#: Errors of pyarrow about the content of a file.
_DAMAGE = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True)
class Folder:
    """A folder of files of one format, which every process of the run can reach."""

    #: the source's name and the user's line, for messages
    source: str
    where: Where
    #: a path or URI; with `filesystem`, a path in it
    path: str
    #: one of `Format`, or a format with options
    form: str | ds.FileFormat
    filesystem: fs.FileSystem | None = None
    #: the values of columns in files that lack them
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: the columns of the newest file when the flow was built
    newest_columns: tuple[str, ...] = ()
    #: None means that each file may be skipped; else the Delta versions of files, which are skipped together
    versions: Mapping[str, int] | None = field(default=None, hash=False)
    #: the checkpoint of the flow that runs, for hints
    checkpoint: str = "CHECKPOINT"

    @classmethod
    def of(
        cls,
        source: str,
        where: Where,
        path: Any,
        form: Any,
        filesystem: Any,
        *,
        defaults: Any = None,
        versions: Mapping[str, int] | None = None,
    ) -> Folder:
        """The folder that a user describes.

        Raises:
            BadArgument: the path, the format or the file system is of another kind.
            BadLocation: the path cannot be reached.
        """
        text = path_text(path, "give the folder; files below it are read, too")
        if form not in list(get_args(Format)) and not file_kind(form):
            expected = f"one of {', '.join(map(repr, get_args(Format)))}, or a pyarrow.dataset.FileFormat"
            hint = "read other formats with flow.source(name, spark.readStream...)"
            refuse(form, what="format", expected=expected, hint=hint)
        if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
            hint = "leave it out for paths and URIs."
            refuse(filesystem, what="filesystem", expected="one of pyarrow.fs", hint=hint)
        if not isinstance(defaults, Mapping | None):
            refuse(defaults, what="defaults", expected="a dict", hint='as in defaults={"diff": 1}')
        path = text if filesystem is not None else location(text)
        return cls(source, where, path, form, filesystem, dict(defaults or {}), versions=versions)

    @cached_property
    def kind(self) -> str:
        """The format without its options."""
        return self.form if isinstance(self.form, str) else file_kind(self.form)

    @cached_property
    def format(self) -> ds.FileFormat:
        """The format with its options."""
        return with_quoted_lines(with_options(self.form) if isinstance(self.form, str) else self.form)

    @property
    def divisible(self) -> bool:
        """Whether tasks can read parts of a file."""
        return self.kind == "parquet"

    @cached_property
    def place(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        if self.filesystem is None:
            return filesystem_of(self.path)
        system, path = self.filesystem, self.path
        while isinstance(system, fs.SubTreeFileSystem):
            system, path = system.base_fs, f"{system.base_path.rstrip('/')}/{path.lstrip('/')}".rstrip("/")
        return system, path

    def __getstate__(self) -> dict[str, object]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def check_exists(self) -> None:
        """Check that the folder exists."""
        system, top = self.place
        if system.get_file_info(top).type == fs.FileType.NotFound:
            hint = "give the folder itself, without patterns, or make it first."
            raise self.error(self.path + " does not exist", hint)

    def files(self) -> list[File]:
        """All visible files below the folder, each once; or the one file that the path names."""
        return self.listing()[0]

    def listing(self) -> tuple[list[File], dict[str, str]]:
        """The visible files; and, by name, the files that are not read, with the reason.

        Raises:
            BadFile: a folder cannot be listed.
        """
        system, top = self.place
        info = system.get_file_info(top)
        if info.type == fs.FileType.File:
            return [File(info.mtime_ns or 0, info.path, info.size)], {}
        if isinstance(system, fs.LocalFileSystem):
            with self.reading(top):
                files, ignored = walk(top)
            return [
                each.file()._replace(values=None if each.name == each.path else self.keys(each.name))
                for each in files
            ], ignored
        below = system.get_file_info(fs.FileSelector(top, recursive=True, allow_not_found=True))
        return [
            File(info.mtime_ns or 0, info.path, info.size)
            for info in below
            if info.type == fs.FileType.File and is_visible(self._relative(info.path))
        ], {}

    def sizes(self, files: Sequence[File]) -> dict[str, int | None]:
        """The size that each file has now, by path; None if it was removed."""
        infos = self.place[0].get_file_info([file.path for file in files])
        return {info.path: info.size for info in infos}

    def why_bad(self, file: File, schema: pa.Schema, columns: Sequence[str]) -> str | None:
        """Why a file's content cannot be read; None if it can, or if the file was removed.

        Raises:
            BadFile: not the content is the reason, but that the storage does not give it.
        """
        if self._unreadable(file, schema, columns) is None:
            return None
        with self.reading(file.path), self.place[0].open_input_stream(file.path, None) as content:
            while content.read(16 << 20):
                pass
        return self._unreadable(file, schema, columns)  # perhaps the storage did not give it before

    def _unreadable(self, file: File, schema: pa.Schema, columns: Sequence[str]) -> str | None:
        """Why a file cannot be read; None if it can, or if it was removed."""
        try:
            for _ in self.read([Part(file.path, 0, file.size, file.values, file.size)], schema, columns):
                pass
        except BadFile as error:
            return None if isinstance(error.__cause__, FileNotFoundError) else error.message
        return None

    def error(self, what: str, hint: str) -> BadFile:
        """An error of the source, with the user's line."""
        return BadFile(f"source {self.source!r}: {what}", where=self.where, hint=hint)

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.place[1]).lstrip("/")

    # -- the schema ------------------------------------------------------------------------------------------
    def inspect(self, declared: Any, *, quarantine: bool = False) -> tuple[pa.Schema, Folder]:
        """The schema; and the folder, which knows the columns of the newest file.

        The schema is what a user gives, checked against the newest file; else that file's, and `defaults`.
        With `quarantine` it is the newest file that can be read, and has the columns of `declared`.

        Raises:
            BadFile: there is no schema and no file, or the newest file cannot be read or has other columns.
            BadArgument: a default is not a value of its column.
        """
        if declared is None:
            schema, schemas = self._inferred_schema(quarantine=quarantine)
        else:
            schema = as_schema(declared)
            schemas = self._newest_columns(schema, quarantine=quarantine)
        for name, value in self.defaults.items():
            kind = schema.field(name).type if name in schema.names else None
            if kind is None or value is None or scalar_of(value, kind) is None:
                expected = f"values of columns of ({describe(schema)})"
                hint = "columns without a default are null in files that lack them."
                if kind is not None and zones(kind):
                    hint = "times of a timestamp have a zone (tzinfo=timezone.utc), of a timestamp_ntz none."
                refuse({name: value}, what="defaults", expected=expected, hint=hint)
        return schema, replace(self, newest_columns=tuple(schemas))

    def _newest_columns(self, schema: pa.Schema, *, quarantine: bool) -> Sequence[str]:
        """The columns of the newest file, checked against a schema; with `quarantine`, one that fits."""
        first: BadFile | None = None
        for file in self._newest_first():
            if self._opens(file.path):  # else it is reported, skipped or quarantined when it is read
                try:
                    return self._checked(file, schema)
                except BadFile as error:
                    first = first or error
                if not quarantine:
                    break
        if first is not None:
            raise first
        return ()

    def _newest_first(self) -> list[File]:
        return sorted((file for file in self.files() if file.size), reverse=True)

    def _inferred_schema(self, *, quarantine: bool) -> tuple[pa.Schema, Sequence[str]]:
        self.check_exists()
        files = self._newest_first()
        newest = next((file for file in files if not quarantine or self._opens(file.path)), None)
        newest = newest or next(iter(files), None)
        if newest is None:
            hint = 'files(..., schema="id long, name string"); names that begin with "." or "_" do not count.'
            msg = f"no schema is given, and {self.path} has no file to take it from"
            raise self.error(msg, hint)
        with self.reading(newest.path):
            fragment = self._fragment(newest.path, pa.schema([]), ())
            own = self._columns_of(fragment)
            columns = {field.name: self._inferred(newest.path, field) for field in own}
            if empty := [name for name, kind in columns.items() if pa.types.is_null(kind)]:
                hint = f'give one: files(..., schema="{empty[0]} string, ...").'
                msg = f"{newest.path} has no value in {empty}, so they have no type"
                raise self.error(msg, hint)
        for key, text in self._values(newest.path, newest.values):
            columns[key] = pa.int64() if text is not None and text.isdecimal() else pa.string()
        for name, value in self.defaults.items():
            if name not in columns and (scalar := scalar_of(value)) is not None:
                columns[name] = scalar.type
        return as_schema(pa.schema(list(columns.items()))), own.names

    def _checked(self, file: File, schema: pa.Schema) -> Sequence[str]:
        """The columns of a file, which has all those of the schema."""
        keys = self._values(file.path, file.values)
        with self.reading(file.path):
            names: Sequence[str] = self._columns_of(self._fragment(file.path, schema, keys)).names
            self._check(file.path, names, schema, schema.names, dict(keys), all_of_them=True)
        return names

    def _opens(self, path: str) -> bool:
        try:
            with self.reading(path):
                self._columns_of(self._fragment(path, pa.schema([]), ()))
        except BadFile:
            return False
        return True

    def _inferred(self, path: str, field: pa.Field) -> pa.DataType:
        """The type of a column; Arrow infers that no time in JSON has a zone, so its first block is read."""
        kind = plain(field.type)
        if not (self.kind == "json" and pa.types.is_timestamp(kind)):
            return kind
        zoned = {field.name: pc.field(field.name)}
        try:
            next(self._json(path, pa.schema([(field.name, INSTANT)]), zoned, {}), None)
        except pa.ArrowInvalid:
            return kind
        return INSTANT

    def _values(self, path: str, values: FileValues | None) -> FileValues:
        """The columns that have one value in a file."""
        return self.keys(path) if values is None else values

    def keys(self, path: str) -> FileValues:
        """The columns in the names of the folders above a file: ``day=1/a.parquet``."""
        return folder_values(self._relative(path))

    def _validated(self, path: str) -> Any:
        """An Arrow file in memory, with its offsets and texts checked: Arrow's reader checks neither."""
        if self.kind != "arrow":
            return path
        with self.place[0].open_input_file(path) as file:
            content = file.read_buffer()
        with pa.ipc.open_file(content) as reader:
            for number in range(reader.num_record_batches):
                reader.get_batch(number).validate(full=True)
        return pa.BufferReader(content)

    def _fragment(self, path: Any, schema: pa.Schema, values: FileValues) -> Any:
        """A file; some of its columns have one value."""
        equal = [
            pc.field(name).is_null()
            if text is None
            else pc.field(name) == partition_value(text, schema.field(name).type)
            for name, text in values
            if name in schema.names
        ]
        expression = reduce(and_, equal) if equal else None
        place = self.place[0] if isinstance(path, str) else None
        if self.kind == "csv" and str(path).endswith(".zst"):  # Arrow's format decompresses .zstd alone
            place = fs.PyFileSystem(fs.FSSpecHandler(Decompressed(place)))
        return self.format.make_fragment(path, place, partition_expression=expression)

    def _columns_of(self, fragment: Any) -> pa.Schema:
        """The columns that a file has."""
        if self.kind == "json":
            with self.place[0].open_input_stream(fragment.path) as raw, reading_json(raw, self.format) as own:
                return own.schema
        own = with_instants(fragment) if self.divisible else fragment.physical_schema
        check_paths(own)
        return own

    def _check(
        self,
        path: str,
        own: Sequence[str],
        schema: pa.Schema,
        columns: Sequence[str],
        values: Mapping[str, Any],
        *,
        all_of_them: bool,
    ) -> None:
        """Check that a file has the columns.

        Without `all_of_them` it may lack some, as files do from before a column was added; they are null, or
        have their default. Records of JSON may lack any, but none is written in another case.
        """
        missing = [name for name in columns if name not in own and name not in values]
        other_case = {name.lower() for name in missing} & {name.lower() for name in [*own, *values]}
        if not other_case:
            missing = [name for name in missing if name not in self.defaults]
        lacks = self.kind != "json" and (all_of_them or {*own}.isdisjoint(schema.names))
        if missing and (lacks or other_case):
            present = sorted({*own, *values})
            has = f"source {self.source!r} has columns ({describe(schema)})"
            msg = f"{has}; {path} lacks {missing}, it has {present}"
            more = self._or_quarantined(path)
            if all_of_them:  # when the flow is built: nothing is skipped then
                some = (
                    f"of a column that only some files have defaults={{{missing[0]!r}: ...}} gives the value"
                )
                more = "" if other_case else f'; {some}; with on_bad_file="quarantine" an older file may fit'
            hint = f"give files(schema=...) the columns of the files; case counts{more}."
            raise BadFile(msg, where=self.where, hint=hint)

    def _check_types(self, path: str, own: pa.Schema, schema: pa.Schema, columns: Sequence[str]) -> None:
        """Check that Arrow changes or misses no value of a file's types, also of nested ones."""
        # texts are read as the types given, or are an error
        typed = self.kind not in {"csv", "json"}
        spans = intervals(own)
        for name in sorted({*columns} & {*own.names} & {*schema.names}):
            own_type, declared = own.field(name).type, schema.field(name).type
            own_types, wanted_types = dict(types(own_type, (name,))), dict(types(declared, (name,)))
            changed = typed and any(
                changes_values(own_types[at], wanted_types[at])
                for at in {*own_types} & {*wanted_types}
                if not (at in spans and wanted_types[at] == pa.duration("us"))
            )
            if changed or folded({*wanted_types} - {*own_types}) & folded(own_types):
                what = f"column {name!r} is {declared}, and {own_type} in {path}"
                hint = "give files(schema=...) the types of the files; case counts"
                raise self.error(what, f"{hint}{self._or_quarantined(path)}.")

    # -- reading ---------------------------------------------------------------------------------------------
    def read(
        self,
        parts: Iterable[Part],
        schema: pa.Schema,
        columns: Sequence[str],
        condition: pc.Expression | None = None,
        computed: Mapping[str, pc.Expression] = MappingProxyType({}),
        *,
        unknown: Callable[[str, list[str], list[str]], object] = lambda *_: None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of parts of files, in order, with columns of the schema's types.

        Args:
            condition: row groups whose statistics exclude it need not be read.
            computed: columns that are computed from a file's other columns where it lacks them.
            unknown: called with the path, the file's columns that are new since the flow was built, and those
                of the schema that it lacks.

        Raises:
            BadFile: a file is missing, damaged, or has other columns.
        """
        import pyarrow.dataset as ds

        for path, start, end, constants, size in parts:
            values = self._values(path, constants)
            part = Part(path, start, end, constants, size)
            with self.reading(path, partial(with_place, self, part, schema, columns)):
                self._check_size(path, size)
                fragment = self._fragment(self._validated(path), schema, values)
                opened = partial(open_text, self.place[0], path, self.format)
                if (own := unless_empty(self._columns_of, fragment, opened)) is None:
                    continue
                present = {*own.names, *dict(values)}
                if self.newest_columns and (new := {*own.names} - {*self.newest_columns, *schema.names}):
                    lacks = [name for name in schema.names if name not in {*present, *self.defaults}]
                    unknown(path, sorted(new), lacks)
                exprs = {
                    name: computed[name] if name in computed and name not in present else pc.field(name)
                    for name in columns
                }
                self._check(path, own.names, schema, columns, {**computed, **dict(values)}, all_of_them=False)
                self._check_types(path, own, schema, columns)
                if self.kind == "json":
                    yield from valid(self._json(path, schema, exprs, dict(values)))
                    continue
                if self.kind == "csv":
                    single = single_values(columns, schema, present, dict(values), self.defaults)
                    yield from valid(csv_batches(opened, self.format, schema, columns, single, own=own.names))
                    continue
                limits = other_calendar(own)
                if self.divisible:
                    groups = row_groups_in(fragment, start, end, size)
                    fragment = fragment.subset(row_group_ids=groups)
                    # statistics do not know of defaults, and are of the file's calendar
                    exact = present >= self.defaults.keys() and not limits
                    if condition is not None and groups and exact:
                        with suppress(pa.ArrowNotImplementedError):  # numbers beside texts
                            fragment = fragment.subset(condition, schema=schema)
                    if not fragment.row_groups:
                        continue
                if limits:
                    check_calendar(fragment, own, own.names if computed else columns, limits)
                # one thread: a task has one core, and the rows stay in order
                every = pa.schema([*schema, *(field for field in own if field.name not in schema.names)])
                exprs |= {n: one for n, one in self._defaults(schema, exprs).items() if n not in present}
                scanner = ds.Scanner.from_fragment(fragment, schema=every, columns=exprs, use_threads=False)
                yield from valid(scanner.to_batches())

    def _check_size(self, path: str, size: int | None) -> None:
        """Check that a file is as long as when it was listed: its parts, and replays, are of that file."""
        info = None if size is None else self.place[0].get_file_info(path)
        if info is not None and info.is_file and info.size != size:
            what = f"{path} had {size:,} bytes when it was listed, and has {info.size:,}: it was changed"
            hint = f"restore it, and rename complete files into the folder{self.or_without(path)}."
            raise self.error(what, hint)

    def _json(
        self,
        path: Any,
        schema: pa.Schema,
        exprs: Mapping[str, pc.Expression],
        values: Mapping[str, str | None],
    ) -> Iterator[pa.RecordBatch]:
        """The records of a file of JSON.

        Arrow's reader of data sets makes nulls of columns that the file's first block lacks.
        """
        import pyarrow.dataset as ds

        wanted = pa.schema([field for field in schema if field.name in exprs and field.name not in values])
        texts, exprs = with_times_as_texts(wanted, exprs)
        exprs |= {name: pc.coalesce(exprs[name], one) for name, one in self._defaults(schema, exprs).items()}
        for name in values.keys() & exprs.keys():
            exprs[name] = pc.scalar(partition_value(values[name], schema.field(name).type))
        opened = self.place[0].open_input_stream if isinstance(path, str) else pa.BufferReader
        for batch in json_batches(partial(opened, path), self.format, texts):
            scanner = ds.Scanner.from_batches([batch], schema=texts, columns=exprs, use_threads=False)
            yield from scanner.to_batches()

    def json_rows(self, lines: bytes, values: FileValues, schema: pa.Schema, columns: Sequence[str]) -> Any:
        """The rows of some lines of JSON, checked."""
        exprs = {name: pc.field(name) for name in columns}
        return valid(self._json(lines, schema, exprs, dict(values)))

    def as_it_is(self, path: str) -> Any:
        """A file with its own columns and types."""
        return self._fragment(path, pa.schema([]), ())

    def _defaults(self, schema: pa.Schema, columns: Iterable[str]) -> dict[str, pc.Expression]:
        """The defaults of columns."""
        return {
            name: pc.scalar(scalar_of(self.defaults[name], schema.field(name).type))
            for name in columns
            if name in self.defaults
        }

    def or_without(self, path: str) -> str:
        """The command by which a flow goes on without a file, for hints; empty if it must have the file."""
        command = f"python -m timely_spark skip {shlex.quote(self.checkpoint)}"
        if self.versions is None:
            return f"; or go on without it: {command} --file {shlex.quote(path)}"
        if (version := self.versions.get(path)) is None:
            return ""
        return f"; or go on without all of version {version}: {command} --version {version}"

    def _or_quarantined(self, path: str) -> str:
        """As `or_without`, and how a flow goes on without all such files."""
        more = '; files(on_bad_file="quarantine") does so from then on' if self.versions is None else ""
        return self.or_without(path) + more

    @contextmanager
    def reading(self, path: str, with_place: Callable[[str], str] = str) -> Iterator[None]:
        """Name the source and the file in errors."""
        try:
            yield
        except BadFile:
            raise
        except FileNotFoundError as error:
            msg = f"{path} was removed after it was listed, before the flow had read it"
            hint = f"restore it and start again{self.or_without(path)}."
            raise self.error(msg, hint) from error
        except _DAMAGE as error:
            reason = with_place(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
            hint = what_to_do(error, reason, path, self.kind, mendable=self.versions is None)
            msg, more = f"{path} cannot be read: {reason}", self._or_quarantined(path)
            if getattr(error, "errno", None):  # what the storage does not give is not quarantined
                more = "" if os.path.isdir(path) else self.or_without(path)
            raise self.error(msg, f"{hint}{more}.") from error


@dataclass(frozen=True)
class FileSource(JournaledSource):
    """A source that reads files.

    Args:
        folder: the files.
        files_per_epoch: the most files of a batch; None means all that are there.
        max_bytes_per_epoch: the most bytes of a batch, but one file at least.
        on_bad_file: what becomes of a file that cannot be read.
    """

    folder: Folder
    files_per_epoch: int | None = None
    max_bytes_per_epoch: int | None = None
    on_bad_file: Literal["fail", "quarantine"] = "fail"

    @property
    def name(self) -> str:
        return self.folder.source

    @property
    def where(self) -> Where:
        return self.folder.where

    @property
    def computed(self) -> Mapping[str, pc.Expression]:
        """Columns that are computed from a file's other columns where it lacks them."""
        return {}

    @property
    def watched(self) -> str | None:
        """A local folder in which something changes when a file arrives, unless it is in a folder below."""
        system, top = self.folder.place
        return top if isinstance(system, fs.LocalFileSystem) else None

    def check_exists(self) -> None:
        self.folder.check_exists()

    def bind(self, checkpoint: str, read: Needed, tasks: int) -> JournaledSource:
        """Do as `JournaledSource.bind`, and let hints name the checkpoint."""
        bound = replace(self, folder=replace(self.folder, checkpoint=checkpoint))
        return super(FileSource, bound).bind(checkpoint, read, tasks)
