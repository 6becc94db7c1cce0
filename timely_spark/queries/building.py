"""From relations to collections: equal ones are built once, and what joins read often is arranged once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from timely_spark.differential.collections import Collection
from timely_spark.differential.consolidation import Consolidate, consolidated
from timely_spark.differential.joins import join_null_safe
from timely_spark.graph import placed
from timely_spark.queries.relations import (
    ConstantRows,
    Named,
    Projection,
    Recursion,
    Relation,
    RelationJoin,
    TableScan,
)
from timely_spark.queries.scopes import Fresh
from timely_spark.streams import Scope, Stream


class Builder:
    """The collections of relations.

    Args:
        tables: by name the collections, or what makes them when they are first read.
    """

    def __init__(self, tables: Mapping[str, Collection | Callable[[], Collection]]) -> None:
        self.tables = dict(tables)
        #: the variables of the loops that are being built
        self.variables: dict[tuple[str, str], Collection] = {}
        self._built: dict[Relation, Collection] = {}
        self._loops: dict[Recursion, dict[str, Collection]] = {}
        self._arranged: dict[tuple[Relation, tuple[str, ...]], Collection] = {}
        #: how many joins read a relation by a key
        self.reads: Counter[Relation] = Counter()
        self._readers: Counter[tuple[Relation, tuple[str, ...]]] = Counter()
        #: by constant rows a table that their query reads, whatever other tables there are
        self._anchors: dict[Relation, str] = {}

    def expect(self, *roots: Relation) -> None:
        """Count the readers of each relation: what several joins read by one key is arranged."""
        every = {one for root in roots for one in root.walk()}
        for root in roots:
            if tables := sorted(one.name for one in root.walk() if isinstance(one, TableScan)):
                for one in root.walk():
                    if isinstance(one, ConstantRows):
                        self._anchors.setdefault(one, tables[0])
        self.reads.update(each for one in every for each in one.inputs)
        for join in every:
            if (
                isinstance(join, RelationJoin)
                and join.how == "inner"
                and join.right_keys
                and not join.null_safe
            ):
                self._readers[_base(join.right, join.right_keys)] += 1

    def shared_keys(self, relation: Relation) -> str:
        """The keys by which several joins read a relation; "" if there are none."""
        shared = [keys for (source, keys), many in self._readers.items() if source == relation and many > 1]
        return " and ".join(f"({', '.join(keys)})" for keys in shared)

    def collection(self, relation: Relation) -> Collection:
        """The collection of a relation."""
        if relation not in self._built:
            # the inputs of a recursion are built inside its loop
            inputs = () if isinstance(relation, Recursion) else relation.inputs
            collections = [*map(self.collection, inputs)]
            with placed(relation.where):
                self._built[relation] = relation.build(self, *collections)
        return self._built[relation]

    def table(self, name: str) -> Collection:
        """A table of the program."""
        table = self.tables[name]
        if not isinstance(table, Collection):
            table = self.tables[name] = table()
        return table

    def anchor(self, rows: Relation) -> Stream:
        """A stream outside of loops, for constant rows."""
        return self.table(self._anchors.get(rows, next(iter(self.tables)))).stream

    # -- joins -----------------------------------------------------------------------------------------------

    def joined(self, join: RelationJoin, left: Collection, right: Collection) -> Collection:
        """A join's collection, with the columns in the order of its schema."""
        names = join.schema.names
        if not join.left_keys:
            return _all_pairs(join, left, right)
        if join.null_safe:
            how: Any = join.how
            return join_null_safe(left, right, join.left_keys, join.right_keys, how)
        keys: dict[str, Any] = {"left": list(join.left_keys), "right": list(join.right_keys)}
        match join.how:
            case "semi":
                return left.semijoin(right, **keys)
            case "anti":
                return left.antijoin(right, **keys)
            case "inner":
                return self._inner(join, left, right)
        result = left.join(right, how="outer" if join.how == "full" else join.how, **keys)
        return result if result.schema.names == names else result.select(*names)

    def _inner(self, join: RelationJoin, left: Collection, right: Collection) -> Collection:
        base, keys = _base(join.right, join.right_keys)
        if self._readers[base, keys] < 2:
            return left.join(right, left=list(join.left_keys), right=list(join.right_keys))
        if (base, keys) not in self._arranged:
            self._arranged[base, keys] = self.collection(base).arrange(list(keys))
        shared = self._arranged[base, keys]
        # the arrangement has the names of the table, which the left side may have, too
        fresh = Fresh(base.schema.names)
        new: dict[str, Any] = {name: fresh.name(f"left {name}") for name in left.schema.names}
        renamed = left.select({own: name for name, own in new.items()})
        pairs = renamed.join(shared, left=[new[name] for name in join.left_keys], right=list(keys))
        if isinstance(join.right, Projection) and base is not join.right:
            new = dict(join.right.columns) | new
        return pairs.select({name: new.get(name, name) for name in join.schema.names})

    # -- loops -----------------------------------------------------------------------------------------------

    def recursion(self, one: Recursion) -> Collection:
        """The collection of one of the names of a loop."""
        key = replace(one, name=one.names[0])  # whichever name is asked for
        if key not in self._loops:
            self._loops[key] = self._loop(one)
        return self._loops[key][one.name]

    def _loop(self, one: Recursion) -> dict[str, Collection]:
        starts = [self.collection(start) for start in one.starts]
        inside = {each for body in one.bodies for each in body.walk()}
        own = {one.loop, *(each.loop for each in inside if isinstance(each, Recursion))}
        outer = [
            self.variables[each.loop, each.name].scope
            for each in inside
            if isinstance(each, Named) and each.loop not in own
        ]
        root = starts[0].index.flow.scope
        around: Scope = max([root, *outer], key=lambda scope: scope.graph_scope.depth)
        scope = around.inner(max_iterations=one.limit, on_limit=one.on_limit)
        for name, start in zip(one.names, starts, strict=True):
            self.variables[one.loop, name] = start.variable(scope)
        bodies = [self.collection(body) for body in one.bodies]
        views = {}
        for name, body in zip(one.names, bodies, strict=True):
            variable: Any = self.variables[one.loop, name]
            variable.set(body)
            view = (body if body.scope == scope else body.enter(scope)).leave()
            if one.on_limit == "return":  # rows depend on the limit: a restart with another one is refused
                levels = {"levels": one.limit}
                views[name] = consolidated(view, Consolidate(first=view.later), parameters=levels)
            else:
                views[name] = view.consolidate()
        return views


def _base(relation: Relation, keys: tuple[str, ...]) -> tuple[Relation, tuple[str, ...]]:
    """The relation that another one only renames, and the other's names of the keys."""
    if isinstance(relation, Projection) and relation.renames:
        names: Any = dict(relation.columns)
        if len(set(names.values())) == len(names):
            return relation.input, tuple(names[key] for key in keys)
    return relation, keys


def _all_pairs(join: RelationJoin, left: Collection, right: Collection) -> Collection:
    """A join without keys: the right side goes to every worker."""
    if join.how == "inner":
        return left.broadcast_join(right)
    if join.how in {"semi", "anti"}:
        unused = "present" + "_" * max(map(len, left.schema.names))
        one = right.select({unused: pc.scalar(True)}).distinct()  # noqa: FBT003 - a constant
        pairs = left.broadcast_join(one).select(*left.schema.names)
        return pairs if join.how == "semi" else left.concat(pairs.negate()).consolidate()
    msg = f"a join of kind {join.how} has keys"
    raise AssertionError(msg)
