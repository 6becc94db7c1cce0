"""Outputs of collections: the outputs of streams, applied to the changes; each returns the collection."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from timely_spark.differential.collections import Collection
from timely_spark.graph import operator, path_text, seconds
from timely_spark.operators.outputs import Probe, Release, add_output
from timely_spark.streams import Stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def _changes(collection: Collection, diff: str, name: str | None) -> Stream:
    """The changes, by steps that are named after the output."""
    with collection.index.flow.graph.parts(collection.scope.graph_scope, name):
        return collection.changes(diff)


@operator(Collection)
def probe(collection: Collection, name: str | None = None) -> Probe:
    """Add a probe, at which the frontier can be read: as `Stream.probe`.

    **Columns:** in: any.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("watched")
        >>> flow.input("x", "n long").collection().distinct().probe("seen").name
        'seen'

    Raises:
        GraphError: another step has the name.
    """
    return collection.index.probe(name)


@operator(Collection)
def inspect(
    collection: Collection, name: str | None = None, *, limit: int = 20, diff: str = "diff"
) -> Collection:
    """Print changes on arrival, on the driver, also in loops: as `Stream.inspect` of `changes(diff)`.

    **Columns:** printed: the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("shown")
        >>> flow.input("x", "n long").collection().distinct().inspect("shown")
        Collection(distinct: n int64)

    Raises:
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).inspect(name, limit=limit)
    return collection


@operator(Collection)
def capture(collection: Collection, name: str | None = None, *, diff: str = "diff") -> Collection:
    """Store each epoch's changes: as `Stream.capture` of `changes(diff)`. `snapshot` accumulates them.

    **Columns:** stored: the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("kept")
        >>> words = flow.input("words", "word string, diff int").collection(diff="diff")
        >>> _ = words.count("n", keys="word").capture("counts")
        >>> made = ts.testing.run(flow, {"words": [[("to", 1), ("be", 1)], [("to", 1), ("be", -1)]]})
        >>> made["counts"].rows()
        {0: [('be', 1, 1), ('to', 1, 1)], 1: [('be', 1, -1), ('to', 1, -1), ('to', 2, 1)]}
        >>> ts.snapshot(made["counts"]).to_pylist()
        [{'word': 'to', 'n': 2}]

    Raises:
        GraphError: the collection is in a loop, or another step has the name.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).capture(name)
    return collection


@operator(Collection)
def to_memory(
    collection: Collection, name: str, *, release: Release = "epoch", diff: str = "diff"
) -> Collection:
    """Show all changes so far as a temporary view: as `Stream.to_memory` of `changes(diff)`.

    **Columns:** epoch long, then the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("viewed")
        >>> flow.input("x", "n long").collection().distinct().to_memory("numbers")
        Collection(distinct: n int64)

    Raises:
        GraphError: the collection is in a loop, or another step has the name.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).to_memory(name, release=release)
    return collection


@operator(Collection)
def subscribe(
    collection: Collection,
    on_epoch: Callable[[int, pa.Table], object],
    on_complete: Callable[[], object] | None = None,
    *,
    release: Release = "epoch",
    diff: str = "diff",
    name: str | None = None,
) -> Collection:
    """Call `on_epoch(epoch, changes)` for each complete epoch: as `Stream.subscribe` of `changes(diff)`.

    **Columns:** the function gets the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("subscribed")
        >>> numbers = flow.input("x", "n long").collection().distinct()
        >>> numbers.subscribe(lambda epoch, changes: print(epoch, changes.num_rows), name="subscribed")
        Collection(distinct: n int64)

    Raises:
        GraphError: the collection is in a loop, or another step has the name.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    changes = _changes(collection, diff, name)
    changes.subscribe(on_epoch, on_complete, release=release, name=name)
    return collection


@operator(Collection)
def foreach_epoch(
    collection: Collection,
    function: Callable[[DataFrame, int], object],
    *,
    release: Release = "epoch",
    diff: str = "diff",
    name: str | None = None,
) -> Collection:
    """Call `function(DataFrame, epoch)` for each epoch: as `Stream.foreach_epoch` of `changes(diff)`.

    **Columns:** the function gets the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> def write(changes, epoch):
        ...     changes.write.mode("overwrite").parquet(f"/data/changes/{epoch}")
        >>> flow = ts.Dataflow("archive")
        >>> flow.input("x", "n long").collection().distinct().foreach_epoch(write, name="archive")
        Collection(distinct: n int64)

    Raises:
        GraphError: the collection is in a loop, or another step has the name.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).foreach_epoch(function, release=release, name=name)
    return collection


@operator(Collection)
def to_delta(
    collection: Collection,
    table: str,
    *,
    keys: str | Sequence[str] | None = None,
    diff: str = "diff",
    overwrite: bool = False,
    release: Release = "epoch",
    name: str | None = None,
) -> Collection:
    """Write to a Delta table, each epoch exactly once: as `Stream.to_delta` of `changes(diff)`.

    Args:
        keys: None: a log of the changes, with their epoch. Else the current collection, one row per key: keys
            must be unique.
        release: "epoch", or, for a log, "arrival".

    **Columns:** epoch long (with keys: of the last change), then the records'; without keys `diff` long, too.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("words")
        >>> counts = flow.input("words", "word string").collection().count("n", keys="word")
        >>> _ = counts.to_delta("main.texts.changes").to_delta("main.texts.now", keys="word")

    Raises:
        GraphError: the collection is in a loop; or `keys` are combined with `release` "arrival".
        SchemaError: a key is missing; the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).to_delta(
        table, keys=keys, diff=diff if keys else None, overwrite=overwrite, release=release, name=name
    )
    return collection


@operator(Collection)
def to_files(
    collection: Collection,
    path: str,
    format: Literal["parquet", "arrow", "csv"] = "parquet",
    *,
    diff: str = "diff",
    overwrite: bool = False,
    name: str | None = None,
) -> Collection:
    """Write each epoch's changes to a file of its own: as `Stream.to_files` of `changes(diff)`.

    **Columns:** epoch long, then the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("archive")
        >>> flow.input("x", "n long").collection().distinct().to_files("/data/archive", name="files")
        Collection(distinct: n int64)

    Raises:
        GraphError: the collection is in a loop, or there is no such format.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).to_files(path, format, overwrite=overwrite, name=name)
    return collection


@operator(Collection)
def to_kafka(
    collection: Collection,
    topic: str,
    servers: str,
    *,
    key: str | None = None,
    value: Callable[[Column], Column] | None = None,
    options: Mapping[str, str] | None = None,
    diff: str = "diff",
    name: str | None = None,
) -> Collection:
    """Write each epoch's changes to a Kafka topic: as `Stream.to_kafka` of `changes(diff)`.

    **Columns:** of the messages' values: the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("changes")
        >>> counts = flow.input("words", "word string").collection().count("n", keys="word")
        >>> counts.to_kafka("counts", "127.0.0.1:9092", key="word")
        Collection(count: word string, n int64)

    Raises:
        GraphError: the collection is in a loop.
        BadArgument: an argument is of another kind.
        SchemaError: the key is missing; the records have a column `diff`, or nested ones.
    """
    changes = _changes(collection, diff, name)
    changes.to_kafka(topic, servers, key=key, value=value, options=options, name=name)
    return collection


@operator(Collection)
def capture_to(
    collection: Collection,
    path: str | os.PathLike[str],
    *,
    diff: str = "diff",
    overwrite: bool = False,
    name: str | None = None,
) -> Collection:
    """Write the changes and the progress to a folder: as `Stream.capture_to` of `changes(diff)`.

    ``flow.replay(name, path).collection(diff="diff")`` is the collection in another flow, epoch by epoch.

    **Columns:** written: the records', then `diff` long.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("first")
        >>> numbers = flow.input("x", "n long").collection().distinct()
        >>> numbers.capture_to("/shared/numbers", name="shared")
        Collection(distinct: n int64)

    Raises:
        GraphError: the collection is in a loop.
        BadArgument: `path` is no path.
        SchemaError: the records have a column `diff`, or nested ones.
    """
    _changes(collection, diff, name).capture_to(path, overwrite=overwrite, name=name)
    return collection


@operator(Collection)
def publish(
    collection: Collection,
    path: str | os.PathLike[str],
    *,
    lease: float | str = "10 minutes",
    diff: str = "diff",
    overwrite: bool = False,
    name: str | None = None,
) -> Collection:
    """Publish the collection in a folder, from which other flows import it at any time, without its history.

    As `capture_to`, but the folder stays short: epochs that all readers have read become one snapshot, the
    sum of their changes, when they have grown as large as the last one. So an epoch's changes are written a
    few times (amortised). The driver adds them up, so the collection must fit into its memory.

    ``flow.replay(name, path).collection(diff="diff")`` imports the collection. It begins at a consistent
    epoch, that of the newest snapshot, with all records that are there then; from there on it has each
    epoch's changes, exactly once, and the frontier of this flow. Each importing flow arranges the records for
    itself, as flows share no memory. Source: differential's `import`; McSherry et al., Shared arrangements.

    Compaction waits for readers: each holds what it has not read. A reader that is gone loses its hold, after
    `lease`; if it comes back later, and epochs that it needs are summed up, it ends with an error.

    Args:
        path: a folder for this output alone, which the processes of all flows can reach.
        lease: seconds, or text such as "10 minutes", for which a reader may give no sign of life.
        diff: the column of differences.
        overwrite: remove what another checkpoint published there.

    **Columns:** written: the records', then `diff` long.

    Example:
        >>> import tempfile, timely_spark as ts
        >>> folder, first, late = tempfile.mkdtemp(), ts.Dataflow("first"), ts.Dataflow("late")
        >>> x = first.input("x", "n long, diff long", epochs="manual").collection(diff="diff")
        >>> _ = x.publish(folder, name="numbers")
        >>> _ = ts.testing.run(first, {"x": [[(1, 1), (2, 1)], [(1, -1)]]})
        >>> _ = late.replay("numbers", folder).collection(diff="diff").count("n").capture("size")
        >>> ts.snapshot(ts.testing.run(late, {})["size"]).to_pylist()
        [{'n': 1}]

    Raises:
        GraphError: the collection is in a loop.
        BadArgument: `path` is no path, or `lease` no time.
        SchemaError: the records have a column `diff`, or nested ones.
        OutputMismatch: at the start: the folder holds other files.
        TableTaken: at the start: another checkpoint's epochs are there, and `overwrite` is false.
    """
    folder, held = path_text(path, "give a folder that all flows can reach"), seconds("lease", lease)
    options: dict[str, Any] = {"path": folder, "overwrite": bool(overwrite), "lease": held, "diff": diff}
    add_output(_changes(collection, diff, name), "publish", name, "folder", "epoch", **options)
    return collection
