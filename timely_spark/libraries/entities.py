"""Entities: records that scored pairs connect, with ids that stay while pairs and records come and go.

An entity of many records, or of records that are known to be different, is nearly always a wrong match: so
weak links of such an entity are not used until nothing is wrong with its parts. Ids are stable: see
`stable_ids`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.authors import (
    DIFF,
    Arrangement,
    BufferingVertex,
    Several,
    algorithm,
    caller,
    check_collection,
    check_columns,
    consolidate,
    integer,
)
from timely_spark.differential import Collection
from timely_spark.errors import BadArgument, SchemaError, excerpt
from timely_spark.graphs import connected_components, minimum_spanning_forest
from timely_spark.libraries.bridges import bridges, lesser_first
from timely_spark.libraries.lineage import CHANGE, before_and_after, causes, lineage
from timely_spark.streams import Stream
from timely_spark.times import Timestamp

LEVEL = "level"
_OF_EPOCHS = "ids are made of the epochs in which records come"


@dataclass(frozen=True)
class Entities(Several):
    """The result of `entities`; only what a program reads of it is computed."""

    #: record, entity: the entity of each record
    members: Collection
    _links: Collection
    _refuses: bool
    _name: str | None

    @cached_property
    @algorithm
    def held(self) -> Collection:
        """The links that are not used, between records of different entities: a, b, score."""
        return self._ends.where(pc.field("entity") != pc.field("other")).select("a", "b", "score")

    @cached_property
    @algorithm
    def audit(self) -> Collection:
        """The figures of each entity of several records: entity, records, links, weakest, density.

        Without the pairs of score `weakest` it would fall apart; `density` is the share of its pairs of
        records that are linked.
        """
        return _audit(self._ends, self.members, name=self._named("audit"))

    @cached_property
    @algorithm
    def lineage(self) -> Stream:
        """At each epoch, how many records moved between two entities: from, to, records.

        A null means records that came or went. Two rows with one `to` are a merge, two with one `from` a
        split.
        """
        return lineage(self.members, name=self._named("lineage"))

    @cached_property
    @algorithm
    def causes(self) -> Stream:
        """The reasons of `lineage`: at each epoch the links that join or part records.

        Columns: a, b, score, joined, entity, entity_a, entity_b. A link that joins is used from this epoch
        on; one that parts is used no longer, because its pair went or is held. `entity` is that of both
        records, after they are joined or before they part; `entity_a` and `entity_b` are those of each on the
        other side of the epoch, always different. A null is a record that came or went.

        The law: take each part of an entity that was of one entity before, and each record that came, as a
        point. The links that join connect the points of each entity. Likewise, the links that part connect
        all that an entity falls into. Several links between the same points are a row each.
        """
        links = self._used.select("a", "b", "score") if self._refuses else self._links
        return causes(links, self.members, name=self._named("causes"))

    @cached_property
    @algorithm
    def bridges(self) -> Collection:
        """The pairs without which an entity falls into two parts: entity, a, b, score, smaller.

        `a` is the lesser record, `score` the highest of the pair, and `smaller` the number of records of the
        smaller part. A bridge between two large parts is nearly always a wrong match. An entity that changes
        is computed again from all its links, with a step for each link of its longest shortest path: give
        `max_size` where pairs may chain.
        """
        return bridges(self._used.select("entity", "a", "b", "score"), name=self._named("bridges"))

    @cached_property
    @algorithm
    def _used(self) -> Collection:
        """The links between different records of an entity."""
        inside = pc.field("entity") == pc.field("other")
        return self._ends.where(inside & (pc.field("a") != pc.field("b")), name=self._named("used"))

    @cached_property
    def _ends(self) -> Collection:
        return _with_entities(self._links, self.members, name=self._named("links"))

    def _named(self, part: str) -> str | None:
        """The name of the steps of a part, whichever is read first."""
        return None if self._name is None else f"{self._name}_{part}"


@algorithm
def entities(
    pairs: Collection,
    *,
    threshold: float,
    records: Collection | None = None,
    must_link: Collection | None = None,
    cannot_link: Collection | None = None,
    max_size: int | None = None,
    step: float = 0.01,
    name: str | None = None,
) -> Entities:
    """The entities of records whose pairs were scored, for example by Splink; pairs and records come and go.

    A pair with a score of at least `threshold` is a link, and an entity is all records that links connect.
    With `max_size` or `cannot_link`, an entity that is too large, or has both records of a pair of
    `cannot_link`, is refused: its links in the lowest step of scores are held, until none is refused. Links
    of `must_link` are never held, nor are those with an infinite score. The result depends on the present
    pairs alone; only the ids depend on the past, by the rule of `stable_ids`.

    An epoch costs the records of the entities that change. All parts but `members` cost nothing unless
    they are read; `audit`, which keeps the strongest links of each entity, costs most. Held links cost a loop
    with an iteration for each step of scores that is held, over the links of refused entities only.

    Args:
        pairs: scored pairs; a pair with another score is a deletion and an insertion.
        threshold: the least score of a link.
        records: all records; one without a pair is an entity of its own. None means the records in pairs.
        must_link: pairs that are links, whatever their score.
        cannot_link: pairs of records that are never of one entity.
        max_size: the most records of an entity.
        step: the size of the steps of scores.

    **Columns:** in: ``a``, ``b`` (of one type, long or string), ``score`` (double); of `must_link` and
    `cannot_link` ``a``, ``b``; of `records` ``record``, of the same type. A pair with a null is not a link.
    Out: see `Entities`; ``record``, ``a``, ``b`` of their type, ``entity`` string.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("entities")
        >>> pairs = flow.input("pairs", "a long, b long, score double, diff long").collection(diff="diff")
        >>> found = ts.entities(pairs, threshold=0.8, max_size=3)
        >>> _ = found.members.capture("members"), found.held.capture("held")
        >>> first = [(1, 2, 0.95, 1), (2, 3, 0.99, 1), (3, 4, 0.82, 1), (4, 5, 0.9, 1)]
        >>> out = ts.testing.run(flow, {"pairs": [first, [(1, 2, 0.95, -1)]]}, workers=2)
        >>> [sorted(ts.snapshot(out["members"], at=n)["entity"].to_pylist()) for n in (0, 1)]
        [['1@0', '1@0', '1@0', '4@0', '4@0'], ['1@0', '1@0', '4@0', '4@0']]
        >>> ts.snapshot(out["held"], at=0).to_pylist()
        [{'a': 3, 'b': 4, 'score': 0.82}]

    Raises:
        GraphError: an argument is not a collection, or the pairs are in a loop.
        BadArgument: `threshold`, `max_size` or `step` is not a number in its range.
        SchemaError: a column is missing, or has another type.
    """
    kind = _checked("pairs", pairs, ["a", "b"])
    _checked("pairs", pairs, ["score"], pa.float64())
    for argument, rows in {"must_link": must_link, "cannot_link": cannot_link, "records": records}.items():
        if rows is not None:
            _checked(argument, rows, ["record"] if argument == "records" else ["a", "b"], kind, beside=pairs)
    if max_size is not None:
        max_size = integer("max_size", max_size, step="entities")
    scores: list[tuple[str, Any, bool]] = [("threshold", threshold, False), ("step", step, True)]
    for argument, number, positive in scores:
        if isinstance(number, bool) or not isinstance(number, Real) or not math.isfinite(number):
            msg = f"entities: {argument}={number!r} is not a number"
        elif positive and number <= 0:
            msg = f"entities: {argument}={number!r} is not a positive number"
        else:
            continue
        raise BadArgument(msg, where=caller(), hint="give a score, or a difference of scores, such as 0.9.")
    pairs.stream.check_outside("entities", epochs=_OF_EPOCHS)

    links = pairs.where(pc.field("score") >= threshold).select("a", "b", "score")
    if must_link is not None:
        links = links.concat(must_link.select("a", "b", score=pc.scalar(math.inf)))
    links = links.where(pc.is_valid(pc.field("a")) & pc.is_valid(pc.field("b"))).distinct()
    ends = pairs.select(record="a").concat(pairs.select(record="b"))
    nodes = ends if records is None else ends.concat(records.select("record"))
    nodes = nodes.where(pc.is_valid(pc.field("record"))).distinct()
    groups = connected_components(links.select(src="a", dst="b"), nodes=nodes, node="record")
    refuses = max_size is not None or cannot_link is not None
    if refuses:
        groups = _allowed(groups, links, cannot_link, max_size, step)
    members = stable_ids(groups.select(record="node", group="component"), name=name)
    return Entities(members, links, refuses, name)


def _checked(
    argument: str,
    rows: Collection,
    columns: list[str],
    wanted: pa.DataType | None = None,
    *,
    beside: Collection | None = None,
) -> pa.DataType:
    """Check that columns of an argument are of a type, by default that of the first one; returns the type."""
    check_collection("entities", rows, beside=beside)
    check_columns("entities", rows.schema, columns, of=argument)
    kinds = [rows.schema.field(column).type for column in columns]
    if wanted is None and kinds[0] in {pa.int64(), pa.string()}:
        wanted = kinds[0]
    for column, kind in zip(columns, kinds, strict=True):
        if kind != wanted:
            msg = f"entities: column {column!r} of {argument} is {kind}, not {wanted or 'long or string'}"
            raise SchemaError(msg, where=caller(), hint="cast the column with select first.")
    return kinds[0]


def _allowed(
    groups: Collection,
    links: Collection,
    cannot_link: Collection | None,
    max_size: int | None,
    step: float,
) -> Collection:
    """The groups, where those that are refused fall apart, until none is. Columns: node, component."""

    def refused(groups: Collection) -> Collection:
        """The groups that are too large, or have two records that are different. Columns: component."""
        wrong = []
        if max_size is not None:
            sizes = groups.count("records", keys="component")
            wrong.append(sizes.where(pc.field("records") > max_size).select("component"))
        if cannot_link is not None:
            first = cannot_link.select("a", "b").join(groups, left="a", right="node")
            both = first.semijoin(groups.select("component", b="node"), on=["component", "b"])
            wrong.append(both.select("component"))
        return wrong[0].concat(*wrong[1:]).distinct()

    def weaken(pairs: Collection) -> Collection:
        """The links without those in the lowest step of a refused group."""
        groups = connected_components(pairs.select(src="a", dst="b"))
        grouped = pairs.where(pc.field(LEVEL) < math.inf).join(groups, left="a", right="node")
        grouped = grouped.semijoin(refused(groups), on="component")
        lowest = grouped.min(LEVEL, keys="component")
        held = grouped.semijoin(lowest.select("component", LEVEL), on=["component", LEVEL])
        return pairs.concat(held.select("a", "b", "score", LEVEL).negate())

    wrong = refused(groups)
    wrong_groups = groups.semijoin(wrong, on="component")
    leveled = links.semijoin(wrong_groups, left="a", right="node", unique=True)
    leveled = leveled.select("a", "b", "score", {LEVEL: pc.floor(pc.field("score") / pc.scalar(step))})
    used = leveled.iterate(weaken).select(src="a", dst="b")
    parts = connected_components(used, nodes=wrong_groups.select(record="node"), node="record")
    return groups.antijoin(wrong, on="component").concat(parts)


@algorithm
def _with_entities(links: Collection, members: Collection, *, name: str | None) -> Collection:
    """The links with the entities of both ends."""
    first = links.join(members, left="a", right="record")
    return first.join(members.select(b="record", other="entity"), on="b", name=name)


@algorithm
def _audit(ends: Collection, members: Collection, *, name: str | None) -> Collection:
    """The figures of each entity of several records, by links with the entities of both ends."""
    own = ends.where(pc.field("entity") == pc.field("other")).select("a", "b", "score", "entity")
    weight = pc.field("weight")
    # the strongest links that connect an entity: the weakest of them is the one that it depends on
    strength = pc.if_else(pc.field("score") == math.inf, pc.scalar(_MUST), pc.field("score"))
    scores = own.select(src="a", dst="b", weight=pc.negate(strength))
    needed = minimum_spanning_forest(scores).join(members, left="src", right="record")
    weakest = needed.max("weight", keys="entity")
    weakest = weakest.select("entity", weakest=pc.if_else(weight == -_MUST, math.inf, pc.negate(weight)))
    sizes = members.count("records", keys="entity").where(pc.field("records") > 1)
    number = own.where(pc.field("a") != pc.field("b")).select("a", "b", "entity")
    number = number.map_batches(_in_order, number.schema).distinct().count("links", keys="entity")
    counted = sizes.join(number, on="entity").join(weakest, on="entity")
    records, possible = pc.field("records").cast(pa.float64()), pc.scalar(2.0) * pc.field("links")
    density = possible / (records * (records - pc.scalar(1.0)))
    return counted.select("entity", "records", "links", "weakest", density=density, name=name)


_MUST = float(np.finfo(np.float64).max)


def _in_order(pairs: pa.Table) -> pa.Table:
    """The pairs with the lesser end first."""
    low, high = lesser_first(pairs["a"], pairs["b"])
    return pairs.set_column(0, "a", low).set_column(1, "b", high)


# -- stable ids ----------------------------------------------------------------------------------------------


@algorithm
def stable_ids(
    groups: Collection, *, record: str = "record", group: str = "group", name: str | None = None
) -> Collection:
    """Ids of groups that stay while groups merge and split, for groups whose own labels change.

    The larger keeps its id: of the parts of a group that splits the one with most of its records, and of
    groups that merge the one that brings most records; of equals the one with the older id. Records that come
    in the same epoch are not counted, so nearly all records keep their entity. Another part gets back the
    id of the largest group in it that had merged before, or else the oldest that one of its records holds.
    Each record holds one of its own, written ``record@epoch``, from the epoch in which it comes, or in which
    it parts from the records that keep the one it held.

    A loop of two iterations an epoch, which costs the records of the groups that change.

    Args:
        groups: the group of each record; one row for each record.
        record: the column of records.
        group: the column of groups, of any flat type; their labels may change with each epoch.

    **Columns:** in: `record`, `group`. Rows with nulls are ignored. Out: ``record`` of its type, ``entity``
    string.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("ids")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> groups = ts.graphs.connected_components(edges)
        >>> _ = ts.stable_ids(groups, record="node", group="component").capture("ids")
        >>> out = ts.testing.run(flow, {"edges": [[(5, 6, 1)], [(2, 5, 1)]]}, workers=2)
        >>> sorted(ts.snapshot(out["ids"], at=1).to_pylist(), key=str)  # the least node is another one
        [{'record': 2, 'entity': '5@0'}, {'record': 5, 'entity': '5@0'}, {'record': 6, 'entity': '5@0'}]

    Raises:
        GraphError: `groups` is not a collection, or is in a loop.
        SchemaError: a column is missing or nested, or records are binary.
        VertexError: when it runs: a record has several rows.
    """
    check_collection("stable_ids", groups)
    check_columns("stable_ids", groups.schema, {"record": record, "group": group}, keys=True)
    groups.stream.check_outside("stable_ids", epochs=_OF_EPOCHS)
    kind, label = (groups.schema.field(column).type for column in (record, group))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        msg = f"stable_ids: record={record!r} is {kind}, and ids are texts"
        raise SchemaError(msg, where=caller(), hint="make a text of it with select first.")
    members = groups.select(record=_one_zero(record, kind), group=_one_zero(group, label))
    members = members.where(pc.is_valid(pc.field("record")) & pc.is_valid(pc.field("group")))
    messages = pa.schema(
        [
            ("group", label),
            ("record", kind),
            ("to", label),
            ("since", pa.int64()),
            ("founder", kind),
            ("size", pa.int64()),
            ("entity", pa.string()),
        ]
    )
    results = pa.schema([("record", kind), ("entity", pa.string()), (CHANGE, pa.int64())])
    moved = members.changes().unary_notify(partial(_regrouped, messages), messages, by="record")
    loop = moved.scope.inner()
    message = loop.variable(moved)
    back, changes = moved.flow.vertex(_Ids(messages), message, [messages, results], by="group")
    message.feed(back)
    ids: Collection = changes.leave().collection(diff=CHANGE).select("record", "entity", name=name)
    return ids


def _one_zero(column: str, kind: pa.DataType) -> Any:
    """A column; of floating numbers -0.0 becomes 0.0, which Arrow does not take for equal."""
    return pc.field(column) + pa.scalar(0.0, kind) if pa.types.is_floating(kind) else column


def _regrouped(messages: pa.Schema, _: Any, changes: pa.Table) -> pa.Table:
    """For each record that changes its group, the old one and the new one, which is null if the record goes.

    A record that comes has the new one twice, because all rows without a group would be one worker's. It is
    its own founder.
    """
    records, before, after = before_and_after(changes, "group")
    if changes.num_rows + before.null_count + after.null_count != 2 * len(records):
        msg = f"stable_ids: a record has several rows, among them {excerpt(changes)}"
        raise SchemaError(msg, hint='give one for each: distinct(), or min("group", keys="record").')
    founder = pc.if_else(pc.is_null(before), records, pa.scalar(None, records.type))
    return _filled(messages, record=records, group=pc.coalesce(before, after), to=after, founder=founder)


def _filled(schema: pa.Schema, **columns: Any) -> pa.Table:
    """A table of these columns; the others are null."""
    rows = len(next(iter(columns.values())))
    return pa.table(
        [columns.get(name, pa.nulls(rows, schema.field(name).type)) for name in schema.names], schema
    )


#: What is added to the size of an id that is its group's: it comes before all others.
_REIGNS = 1 << 40


class _Ids(BufferingVertex):
    """The members of each group, with the id that each holds: the group has one of them.

    An id is a founder and an epoch. A record founds one when it comes, and holds it until it goes. But the id
    of a group stays with most of its records: if the holder leaves them, another of them holds it, instead of
    its own, and the holder founds a new one. Records leave their old groups with their ids in iteration 0,
    and come to their new ones in iteration 1: both are partitioned by group.
    """

    counts_epochs: ClassVar[bool] = True

    def __init__(self, messages: pa.Schema) -> None:
        super().__init__()
        self.messages = messages
        self.rows = messages.remove(messages.get_field_index("to"))
        #: group, record; since, founder: the id that it holds; size: the records that had this id when it was
        #: a group's, and `_REIGNS` while it is; entity: its group's, as text; and weights
        self.members = Arrangement(("group",))

    def on_complete(self, time: Timestamp, *batches: list[pa.Table]) -> None:
        if not batches[0]:
            return
        *_, iteration = time.encode()
        batch = pa.concat_tables(batches[0])
        if iteration == 0:
            self._leave(time, batch)
        else:
            self._come(time, batch)

    def _leave(self, time: Timestamp, batch: pa.Table) -> None:
        """Records leave their groups: see `_regrouped`."""
        is_new = batch["founder"].is_valid()
        new, leaving = batch.filter(is_new), batch.filter(pc.invert(is_new))
        groups = leaving["group"].unique()
        before, first, group = _ranked(self._members(groups))
        at = pc.index_in(before["record"], leaving["record"])
        leaves = np.asarray(at.is_valid())
        to = pc.if_else(pa.array(leaves), leaving["to"].take(at), before["group"])
        present = np.flatnonzero(np.asarray(to.is_valid()))

        # the part with most records is the heir, of equals the holder's; its last record holds the id then
        parts, start, sizes, last = _runs(group[present], _codes(to)[present])
        order = np.lexsort((start, -sizes, parts))
        chosen, at_first = np.unique(parts[order], return_index=True)
        heir = order[at_first]
        reigning, holds = first[chosen], np.arange(before.num_rows)
        stays = np.isin(reigning, present) & (start[heir] == np.searchsorted(present, reigning))
        heirs = np.where(stays, reigning, present[last[heir]])
        holds[heirs], founds = reigning, np.isin(holds, reigning[~stays])
        founds[heirs] = False
        own = {"since": time.epoch, "founder": before["record"], "size": 0}
        after = before
        for name, value in own.items():
            held = before[name].take(pa.array(holds))
            after = _with_column(after, name, pc.if_else(pa.array(founds), value, held))

        removed = np.asarray(to.is_null())
        changed = founds | (holds != np.arange(len(holds)))
        self._store(before.filter(pa.array(leaves | changed)), after.filter(pa.array(changed & ~leaves)))
        self._send(time, before.filter(pa.array(removed)), -1)
        brought = after["size"].to_numpy().copy()
        brought[heirs] += sizes[heir]
        moving = _with_column(_with_column(after, "group", to), "size", pa.array(brought))
        moving = moving.filter(pa.array(leaves & ~removed))
        since = pa.array(np.full(new.num_rows, time.epoch))
        size = pa.array(np.zeros(new.num_rows, np.int64))
        come = {"group": new["to"], "record": new["record"], "since": since, "founder": new["record"]}
        lost = {"group": groups}  # they may have lost their id
        messages = ({name: moving[name] for name in moving.column_names}, come | {"size": size}, lost)
        self.send_by(0, time, pa.concat_tables(_filled(self.messages, **one) for one in messages))

    def _come(self, time: Timestamp, batch: pa.Table) -> None:
        """Records come to groups; in rows without a record the group has lost some."""
        new = batch.filter(batch["record"].is_valid()).select(self.rows.names)
        stored = self._members(batch["group"].unique())
        both = pa.concat_tables([stored, new])
        sizes, group = both["size"].to_numpy().copy(), _codes(both["group"])
        own = np.flatnonzero(sizes[: stored.num_rows] == _REIGNS)
        sizes[own] += np.bincount(group[: stored.num_rows], minlength=1)[group[own]]
        is_new = pa.array(np.arange(both.num_rows) >= stored.num_rows)
        ranked, first, group = _ranked(
            _with_column(both, "size", pa.array(sizes))
            .append_column("was", both["size"])
            .append_column("is_new", is_new)
        )
        ids = (ranked[name].take(pa.array(first)).cast(pa.string()) for name in ("founder", "since"))
        entity = pc.binary_join_element_wise(*ids, "@").take(pa.array(group))
        sizes = ranked["size"].to_numpy() % _REIGNS
        sizes[first] = _REIGNS
        is_new = ranked["is_new"]
        before = _with_column(ranked, "size", ranked["was"]).drop_columns(["was", "is_new"])
        after = _with_column(_with_column(before, "entity", entity), "size", pa.array(sizes))
        changed = pc.fill_null(pc.not_equal(before["entity"], entity), fill_value=True)
        stores = pc.or_(changed, pc.not_equal(before["size"], after["size"]))
        self._store(before.filter(pc.and_not(stores, is_new)), after.filter(pc.or_(stores, is_new)))
        self._send(time, before.filter(pc.and_(changed, before["entity"].is_valid())), -1)
        self._send(time, after.filter(changed), 1)

    def _members(self, groups: Any) -> pa.Table:
        """The members of groups."""
        _, rows = self.members.matches(pa.table({"group": groups}), ["group"])
        return consolidate(rows).drop_columns([DIFF]) if rows.num_rows else self.rows.empty_table()

    def _store(self, before: pa.Table, after: pa.Table) -> None:
        rows = pa.concat_tables([_weighted(before, -1), _weighted(after, 1)])
        self.members.insert(rows, compact=_compacted)

    def _send(self, time: Timestamp, rows: pa.Table, diff: int) -> None:
        changes = {"record": rows["record"], "entity": rows["entity"]}
        self.send_by(1, time, pa.table(changes).append_column(CHANGE, pa.array(np.full(rows.num_rows, diff))))


def _ranked(rows: pa.Table) -> tuple[pa.Table, Any, Any]:
    """Members of groups, in each the id of largest size first; the first of each; and for each its group."""
    order = [("group", "ascending"), ("size", "descending"), ("since", "ascending"), ("founder", "ascending")]
    rows = rows.sort_by(order)
    _, first, group = np.unique(_codes(rows["group"]), return_index=True, return_inverse=True)
    return rows, first, group


def _codes(column: pa.ChunkedArray) -> Any:
    """A number for each value of a column; -1 for null."""
    return pc.fill_null(column.combine_chunks().dictionary_encode().indices, -1).to_numpy()


def _runs(groups: Any, to: Any) -> tuple[Any, Any, Any, Any]:
    """The rows of each pair of a group and a target: the group, the first row, how many, and the last row."""
    pairs = groups.astype(np.int64) * (to.max(initial=0) + 1) + to
    _, first, number, size = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
    last = np.zeros(len(first), np.int64)
    last[number] = np.arange(len(number))
    return groups[first], first, size, last


def _with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in a column."""
    return table.set_column(table.column_names.index(name), name, values)


def _weighted(rows: pa.Table, weight: int) -> pa.Table:
    """The rows with a weight."""
    return rows.append_column(DIFF, pa.array(np.full(rows.num_rows, weight)))


def _compacted(hashes: Any, rows: pa.Table) -> tuple[Any, pa.Table]:
    """Consolidated rows with the hashes of their groups, by which they are in order."""
    both = consolidate(rows.append_column("hash", pa.array(hashes))).sort_by("hash")
    return both["hash"].to_numpy(), both.drop_columns(["hash"])
