"""What a run leaves behind, in a form that two runs can be compared by; and what it must not leave behind."""

from __future__ import annotations

import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.support.flows import SCENARIOS
from timely_spark.compiler import Plan
from timely_spark.coordinator import Coordinator
from timely_spark.differential.joins import JoinChanges
from timely_spark.operators.aggregate import Aggregate
from timely_spark.operators.expire import Sessions
from timely_spark.operators.join import Join
from timely_spark.operators.monotone import Improvements
from timely_spark.operators.output_vertex import MonotoneOutput
from timely_spark.runtime.sinks.sink import STAMP
from timely_spark.runtime.storage.blobs import Blobs, files_of
from timely_spark.runtime.storage.deliveries import Deliveries
from timely_spark.runtime.storage.log import RoundLog
from timely_spark.runtime.storage.manifest import Manifest
from timely_spark.runtime.storage.states import StateRefs
from timely_spark.state.arrangement import Arrangement
from timely_spark.state.hashing import hashes
from timely_spark.state.row_times import advanced
from timely_spark.times import PRODUCT
from timely_spark.worker import Worker
from timely_spark.worker.vertex_snapshot import Invocation
from timely_spark.worker.wire import Header

Outcome = dict[str, Any]
#: Vertices whose compaction advances times only.
COMPACTED = (Aggregate, Join, Improvements, MonotoneOutput)
#: The first differing rows that are shown.
SHOWN = 5


@dataclass(eq=False, repr=False)
class Rows:
    """A table as a bag of rows."""

    table: pa.Table

    def __post_init__(self) -> None:
        table = self.table
        for at, column in enumerate(table.schema):
            if pa.types.is_dictionary(column.type):
                table = table.set_column(at, column.name, table.column(at).cast(column.type.value_type))
        table = table.replace_schema_metadata(None)
        self.table = table.sort_by([(name, "ascending") for name in table.schema.names]).combine_chunks()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self.table.equals(other.table)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.table.num_rows} rows {self.table.slice(0, SHOWN).to_pylist()}"

    def counted(self) -> Counter[tuple[Any, ...]]:
        """Each row, and how often it is there."""
        return Counter(zip(*(column.to_pylist() for column in self.table.columns), strict=True))


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """What is not the same, in words; empty: nothing."""
    delivered = []
    for name in sorted({*expected, *found}):
        if name not in expected or name not in found:
            delivered.append(f"{name}: only in the {'unfailed' if name in expected else 'failed'} run")
        elif expected[name] != found[name]:
            delivered.append(f"{name}: {_difference(expected[name], found[name])}")
    return delivered


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, Rows) and isinstance(found, Rows):
        one, two = expected.counted(), found.counted()
        lost, more = list((one - two).elements()), list((two - one).elements())
        return f"lost {len(lost)} rows {lost[:SHOWN]}, {len(more)} too many {more[:SHOWN]}"
    return f"expected {str(expected)[:500]}; found {str(found)[:500]}"


# -- the outcome ---------------------------------------------------------------------------------------------


def outcome(home: Path) -> Outcome:
    """Outputs, states, progress and pending notifications at the end of a run."""
    params = json.loads((home / "run.json").read_text())
    scenario = SCENARIOS[params["scenario"]]
    plan = scenario.build(home).compile(params["workers"])
    log = RoundLog(str(home / "checkpoint"))
    newest = log.newest()
    found = None if newest is None else log.manifest_and_rows(newest)
    if found is None:
        return {"manifest": "there is none"}
    manifest, rows = found
    out: Outcome = dict(captured(home))
    out |= {f"table/{name}": table for name, table in delta_tables(home, by_batch=scenario.by_batch)}
    out |= {f"files/{file.name}": Rows(pq.read_table(file)) for file in (home / "files").glob("epoch-*")}
    out |= {f"told/{epoch}": lines for epoch, lines in delivered(home).items()}
    states = StateRefs.of(rows).by_worker
    out["workers with state"] = sorted(states)
    blobs = Blobs(log.files)
    for index, state in sorted(states.items()):
        worker = Worker(plan, blobs.get(state.reference), index, blobs)
        since = Header.decode(manifest.header).oldest
        out |= {f"state/{index}/{name}": value for name, value in state_of(worker, plan, since).items()}
    progress = dict(manifest.coordinator)
    out["released"] = sorted(each for batch in range(newest + 1) for each in released(log, batch))
    out["waiting outputs"] = waiting(log, manifest.unreleased, blobs)
    out["runnable"], out["complete"] = manifest.runnable, manifest.complete
    out["frontier"], out["late"] = canonical(manifest.frontier), manifest.late
    if scenario.by_batch:
        out["batch"], out["rounds"] = manifest.batch, manifest.rounds
    else:
        progress.pop("batch")
        # how deep a loop went in an open epoch depends on which of its records arrived together
        progress["loops"] = {name: value for name, value in progress["loops"].items() if name != "reached"}
    out |= {f"progress/{name}": canonical(value) for name, value in progress.items()}
    # The tracker has a memory: what it knows must be what one made from it knows.
    again = Coordinator.decode(plan, manifest.coordinator).encode()
    if canonical(again) != canonical(manifest.coordinator):
        out["progress"] = "is another one when it is read back"
    return out


def released(log: RoundLog, batch: int) -> list[tuple[str, int]]:
    """What a batch delivered."""
    manifest = log.read(batch)
    return [] if manifest is None else manifest.released


def captured(home: Path) -> Iterator[tuple[str, Rows]]:
    """The captured deliveries, epoch by epoch."""
    for output in sorted((home / "checkpoint" / "timely" / "captured").glob("*")):
        for epoch, table in Deliveries(str(home / "checkpoint"), output.name).read():
            if any(each != epoch for each in pc.unique(table.column(STAMP)).to_pylist()):
                yield f"captured/{output.name}/{epoch} (of another epoch)", Rows(table)
            yield f"captured/{output.name}/{epoch}", Rows(table)


def delta_tables(home: Path, *, by_batch: bool) -> Iterator[tuple[str, Any]]:
    """The tables' rows; by Delta's own log, without a JVM."""
    for folder in (home / "table", home / "current"):
        commits = sorted((folder / "_delta_log").glob("*.json"))
        actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
        files: dict[str, Path] = {}
        transactions = []
        for action in actions:
            if "add" in action:
                files[action["add"]["path"]] = folder / action["add"]["path"]
            elif "remove" in action:
                files.pop(action["remove"]["path"])
            elif "txn" in action:
                transactions.append(action["txn"]["version"])
        if commits:
            tables = [pq.read_table(file) for file in files.values()]
            yield folder.name, Rows(pa.concat_tables(tables)) if tables else None
            # ascending: none twice
            yield f"{folder.name}/ascending", transactions == sorted(set(transactions))
            # one per epoch; where epochs share commits, how many do depends on the time
            yield f"{folder.name}/transactions", transactions if by_batch else transactions[-1:]


def delivered(home: Path) -> dict[int, list[str]]:
    """What the subscriber heard of each epoch; the same each time that it heard it."""
    found: dict[int, set[str]] = defaultdict(set)
    path = home / "told"
    for line in path.read_text().splitlines() if path.exists() else ():
        found[json.loads(line)[0]].add(line)
    return {epoch: sorted(lines) for epoch, lines in found.items()}


def waiting(log: RoundLog, unreleased: Mapping[str, Mapping[str, Sequence[str]]], blobs: Blobs) -> Any:
    """The outputs of epochs that are not complete."""
    found: dict[str, Any] = {}
    for sink, epochs in unreleased.items():
        for epoch, names in epochs.items():
            tables = [blobs.resolve(log.outputs(name)) for name in names]
            mine = (pc.field("sink") == sink) & (pc.field("epoch") == int(epoch))
            payloads = [part for table in tables for part in table.filter(mine)["payload"].to_pylist()]
            parts = [pa.ipc.open_stream(payload).read_all() for payload in payloads]
            found[f"{sink}/{epoch}"] = Rows(pa.concat_tables(parts))
    return found


def state_of(worker: Worker, plan: Plan, since: int) -> dict[str, Any]:
    """A worker's vertices, what waits for delivery, and the notifications it was asked for.

    `since`: the epoch before which nothing will arrive any more.
    """
    found: dict[str, Any] = {}
    for node in plan.nodes:
        if node.name not in worker.snapshots:
            continue
        vertex = worker.vertex(node)
        vertex._context.invocation = Invocation(None, since)
        values = {
            name: canonical(value, lambda state, vertex=vertex: _consolidated(vertex, state, since))
            for name, value in dict(vertex.checkpoint()).items()
            if not callable(value)
        }
        found[node.name] = values
    nodes = plan.nodes
    found["queue"] = {
        f"{nodes[index].name}/{input_}/{time}": Rows(pa.concat_tables(tables))
        for (index, input_, time), tables in worker.queue.items()
    }
    found["pending"] = sorted(f"{nodes[p.node].name} {p.guarantee} {p.capability}" for p in worker.pending)
    return found


def _consolidated(vertex: Any, state: Arrangement, since: int) -> Any:
    """All rows of an arrangement, as they would be merged now."""
    if not state.batches():
        return []
    table = pa.concat_tables(state.batches())
    h = hashes(table, state.keys)
    order = np.argsort(h, kind="stable")
    h, table = h[order], table.take(order)
    compact = getattr(vertex, "_compact", None)
    if compact is not None and len(inspect.signature(compact).parameters) == 2:
        table = compact(h, table)[1]
    if not isinstance(vertex, COMPACTED) or isinstance(vertex, JoinChanges | Sessions):
        return table
    since -= getattr(vertex, "expire", None) or 0
    return advanced(table, PRODUCT, since)  # epochs that nothing later can tell apart


def canonical(value: Any, consolidated: Callable[[Arrangement], Any] = Arrangement.batches) -> Any:
    """A value as something that compares by content, whatever the order in which it came about."""
    if isinstance(value, Arrangement):
        value = consolidated(value)
    if isinstance(value, pa.Table):
        return Rows(value)
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key], consolidated) for key in sorted(value, key=str)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        items = list(value)
        if items and all(isinstance(item, pa.Table) for item in items):
            return Rows(pa.concat_tables(items))
        return sorted((canonical(item, consolidated) for item in items), key=repr)
    plain = isinstance(value, str | int | float | bytes | bool | type(None))
    return value if plain else type(value).__name__


# -- what must not be there ----------------------------------------------------------------------------------


def litter(home: Path) -> list[str]:
    """Files of the round log that nothing refers to, after a start that came to its end; and missing ones."""
    root = home / "checkpoint" / "timely"
    log = RoundLog(str(home / "checkpoint"))
    needed: set[str] = set()
    newest = log.newest()
    # those of a batch that ran again, too: until the next start Spark might commit what it was before
    for file in sorted(root.glob("rounds/*/*.arrow")):
        rows = log.files.table(name := file.relative_to(root).as_posix())
        manifest = Manifest.of(log.files, name, rows.schema)
        needed |= {*manifest.garbage, *files_of(rows)}
        needed.update(file for state in StateRefs.of(rows).by_worker.values() for file in state.files)
        for epochs in manifest.unreleased.values():
            for names in epochs.values():
                needed.update(names)
                needed.update(file for name in names for file in files_of(log.outputs(name)))
    there = {file.relative_to(root).as_posix() for file in root.rglob("[!.]*") if file.is_file()}
    known = ("rounds/", "blobs/", "outputs/")
    delivered = [
        f"{name}: nothing refers to it" for name in sorted(there - needed) if name.startswith(known[1:])
    ]
    started = [
        file.relative_to(home)
        for file in home.rglob("*.tmp")
        if root in file.parents or "files" in file.parts
    ]
    delivered += [f"{name}: nobody finished it" for name in sorted(started)]
    batches = Counter(name.rpartition("/")[2] for name in there if name.startswith(known[0]))
    # the batch that ran again last has the manifest of the term before, too, until the next start
    twice = [name for name, count in batches.items() if count > 1]
    if len(twice) > 1 or max(batches.values(), default=0) > 2:
        delivered.append(f"rounds: superseded manifests of {sorted(twice)}")
    # what a manifest says is gone may be gone; all else must be there
    last = None if newest is None else log.manifest_and_rows(newest)
    if last is not None:
        live = files_of(last[1]) | {
            f for state in StateRefs.of(last[1]).by_worker.values() for f in state.files
        }
        delivered += [f"{name}: is missing" for name in sorted(live - there)]
    return delivered
