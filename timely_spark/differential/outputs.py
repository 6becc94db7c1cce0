"""Outputs of collections: the outputs of streams, applied to the changes; each returns the collection."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from timely_spark.differential.collections import Collection
from timely_spark.differential.lift import changes_of, lift_output
from timely_spark.graph import absolute, operator, path_text, seconds
from timely_spark.operators import outputs
from timely_spark.operators.outputs import Probe, Release, add_output

for _output in (
    outputs.inspect,
    outputs.capture,
    outputs.to_memory,
    outputs.subscribe,
    outputs.foreach_epoch,
    outputs.to_files,
    outputs.to_kafka,
    outputs.capture_to,
):
    lift_output(_output)


@operator(Collection)
def probe(collection: Collection, name: str | None = None) -> Probe:
    """Add a probe, at which the frontier can be read."""
    return collection.index.probe(name)


@operator(Collection)
def to_delta(
    collection: Collection,
    table: str,
    *,
    keys: str | Sequence[str] | None = None,
    diff: str = "diff",
    epoch: bool | None = None,
    overwrite: bool = False,
    partition_by: str | Sequence[str] | None = None,
    cluster_by: str | Sequence[str] | None = None,
    comment: str | None = None,
    properties: Mapping[str, str] | None = None,
    release: Release = "epoch",
    name: str | None = None,
) -> Collection:
    """Write to a Delta table, each epoch exactly once: as `Stream.to_delta` of `changes(diff)`.

    Args:
        keys: None means a log of the changes, with their epoch. Else the current collection, one row per key:
            keys must be unique.
        diff: the name of the column of differences.
        epoch: whether a table with `keys` has a column of the epoch of a row's last change. None means that
            a table that has the column keeps it up to date.
        release: "epoch", or, for a log, "arrival".

    **Columns:** without keys epoch long, the records', `diff` long. With keys the records'; epoch comes
    first if it is asked for.

    Raises:
        GraphError: the collection is in a loop; or `keys` are combined with `release` "arrival".
        SchemaError: a key is missing; the records have a column `diff`, or nested ones.
    """
    changes_of(collection, diff, name).to_delta(
        table,
        keys=keys,
        diff=None if keys is None else diff,
        epoch=epoch,
        overwrite=overwrite,
        partition_by=partition_by,
        cluster_by=cluster_by,
        comment=comment,
        properties=properties,
        release=release,
        name=name,
    )
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
    epoch's changes, exactly once, and the frontier of this flow. Each such flow arranges the records for
    itself. If this collection is arranged (`arrange`), the snapshots are sorted by its keys, and
    ``flow.import_arrangement(path, name)`` maps them in place: however many flows of a machine import them,
    it has one copy. Source: differential's `import`; McSherry et al., Shared arrangements.

    Compaction waits for readers: each holds what it has not read. A reader that has ended loses its hold
    after `lease`; if it comes back later, and epochs that it needs are summed up, it ends with an error.

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
        BadArgument: `path` is not a path, or `lease` is not a duration.
        SchemaError: the records have a column `diff`, or nested ones.
        OutputMismatch: at the start: the folder holds other files.
        TableTaken: at the start: another checkpoint's epochs are there, and `overwrite` is false.
    """
    options: dict[str, Any] = {
        "path": absolute(path_text(path, "give a folder that all flows can reach")),
        "overwrite": bool(overwrite),
        "lease": seconds("lease", lease),
        "diff": diff,
        "arranged": collection.keys or (),
    }
    add_output(changes_of(collection, diff, name), "publish", name, "folder", "epoch", **options)
    return collection
