"""Subqueries in conditions and expressions: each is a join.

A subquery that reads columns of the block around it has an answer for each of their combinations: its
*domain*. The domain joins the subquery's tables, its columns are keys of the subquery's aggregates, windows
and limits, and the answers are joined with the block by them; null equals null there.
Source: Neumann and Kemper, Unnesting arbitrary queries, BTW 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from timely_spark.queries import calls
from timely_spark.queries.binder import UNIT, BoundQuery, Domain, cast_to, column_node, has_clauses, tree_of
from timely_spark.queries.generators import is_generator
from timely_spark.queries.groups import AggregateFunction
from timely_spark.queries.names import BlockNames
from timely_spark.queries.relations import (
    Aggregation,
    Distinct,
    DomainRows,
    Projection,
    Relation,
    RelationJoin,
    selected,
    with_columns,
    with_condition,
)
from timely_spark.queries.scopes import Correlated, Fresh, NamedColumn
from timely_spark.sql import types
from timely_spark.sql.binder import unaliased
from timely_spark.sql.parse import exp
from timely_spark.sql.types import name_of


class Subqueries(BlockNames):
    """The part of a block that binds subqueries."""

    def is_subquery(self, node: Any) -> bool:
        """Whether a node is a subquery, or a test of one."""
        if isinstance(node, exp.In):
            return node.args.get("query") is not None
        return isinstance(node, exp.Query | exp.Exists)

    def answer_for_each(self, query: Any) -> tuple[BoundQuery, list[str]]:
        """A subquery's answer, and the columns of this block that it is an answer for."""
        wanted: list[tuple[int, NamedColumn]] = []
        while True:
            domain = self._domain(wanted) if wanted else None
            try:
                answer = self.binder.query(query, self.views, self.names, domain)
            except Correlated as error:
                outer = (error.depth, self._own(error))
                if outer in wanted:
                    problem = f"{error.entry.name} of the query around this one where it cannot be read"
                    raise self.binder.refuse(query, problem, "read it in WHERE.") from None
                wanted.append(outer)
            else:
                return answer, [self.final_name(entry.column) for _, entry in wanted]

    def _own(self, error: Correlated) -> NamedColumn:
        """The column of this block's relation that a subquery reads."""
        if error.depth == 1:
            return error.entry
        for depth, own in self.names.outer:
            if depth == error.depth - 1 and (own.table, own.name) == (error.entry.table, error.entry.name):
                return own
        raise Correlated(error.entry, error.depth - 1)

    def _domain(self, wanted: Sequence[tuple[int, NamedColumn]]) -> Domain:
        columns, entries, fresh = [], [], Fresh()
        for depth, entry in wanted:
            name = fresh.name(f"outer_{entry.name}")
            columns.append((name, self.final_name(entry.column)))
            entries.append((depth, replace(entry, column=name)))
        return Domain(DomainRows(Projection(self.relation, tuple(columns))), tuple(entries))

    # -- conditions that keep or drop rows -------------------------------------------------------------------

    def by_subquery(self, node: Any) -> bool:
        """Keep the rows of a condition that is a test of a subquery, by a semi or anti join; else nothing."""
        negated = False
        while isinstance(node, exp.Paren | exp.Not):
            negated ^= isinstance(node, exp.Not)
            node = node.this
        if isinstance(node, exp.Exists):
            self._exists(_query(node), "anti" if negated else "semi")
            return True
        if isinstance(node, exp.In) and node.args.get("query") is not None and not negated:
            self._among(node)
            return True
        return False

    def _exists(self, query: Any, how: Any) -> None:
        answer, keys = self.answer_for_each(_without_limit(query))
        rows = self._renamed(answer.relation, answer.outer)
        names = tuple(rows.schema.names[: len(keys)])
        self.relation = RelationJoin(self.relation, rows, how, tuple(keys), names, null_safe=bool(keys))

    def _among(self, node: Any) -> None:
        answer, keys = self.answer_for_each(_query(node))
        left_keys, right_keys, compared = self._compared(node, answer)
        relation = self._renamed(compared, (*answer.outer, *right_keys))
        names = tuple(relation.schema.names)
        if keys:  # null equals null in the domain, and in the values never
            for name in names[len(keys) :]:
                relation = with_condition(relation, self._valid(name, relation))
        self.relation = RelationJoin(
            self.relation, relation, "semi", (*keys, *left_keys), names, null_safe=bool(keys)
        )

    def _valid(self, name: str, relation: Relation) -> Any:
        return self.binder.bound(tree_of("x IS NOT NULL", x=name), relation.schema)

    def _compared(self, node: Any, answer: BoundQuery) -> tuple[list[str], list[str], Relation]:
        """Columns of this block and of an answer that `IN` compares, of the same types; and the answer."""
        inside = node.this.this if isinstance(node.this, exp.Paren) else node.this
        of_several = isinstance(inside, exp.Tuple) or (
            isinstance(inside, exp.Anonymous) and inside.name.lower() == "struct"
        )
        sides = [unaliased(one) for one in inside.expressions] if of_several else [inside]
        if len(sides) != len(answer.columns):
            problem = f"{len(sides)} values IN a query of {len(answer.columns)} columns"
            raise self.binder.refuse(node, problem, "select as many columns.")
        left_keys: list[str] = []
        right_keys: list[tuple[str, Any]] = []
        schema = answer.relation.schema
        for one, column in zip(sides, answer.columns, strict=True):
            tree = self.rewritten(one)
            bound = self.binder.bound(self.final(tree), self.relation.schema)
            other = schema.field(column).type
            kind = types.common(bound.type, other)
            if kind is None:
                problem = f"{name_of(bound.type)} IN a query of {name_of(other)}"
                raise self.binder.refuse(node, problem, "cast one side.")
            name = self.add(tree if bound.type == kind else cast_to(tree, kind), "value")
            left_keys.append(self._copied(name) if name in left_keys else name)
            right_keys.append((column, self.binder.cast(column, schema, kind)))
        cast = (*((one, one) for one in answer.outer), *right_keys)
        return left_keys, [name for name, _ in right_keys], Projection(answer.relation, cast)

    def _copied(self, column: str) -> str:
        name = self.fresh.name("value")
        self.relation = with_columns(self.relation, (name, column))
        return name

    def _renamed(self, relation: Relation, columns: Sequence[str]) -> Relation:
        """Columns of an answer with names that are new in this block; without any, a constant."""
        if not columns:
            columns = relation.schema.names[:1]
        return Projection(relation, tuple((self.fresh.name(one), one) for one in dict.fromkeys(columns)))

    # -- subqueries as values --------------------------------------------------------------------------------

    def of_subquery(self, node: Any) -> Any:
        """The value of a subquery, or of a test of one; the relation is joined with it."""
        if isinstance(node, exp.Exists):
            return self._count_positive(_query(node), node)
        if isinstance(node, exp.In):
            return self._membership(node)
        query = node.this if isinstance(node, exp.Subquery) and not has_clauses(node) else node
        if (inside := _expression_of(query)) is not None:
            return exp.Paren(this=self.rewritten(inside))
        answer, keys = self.answer_for_each(query)
        if len(answer.columns) != 1:
            problem = f"a subquery with {len(answer.columns)} columns where one value belongs"
            raise self.binder.refuse(node, problem, "select one column.")
        (value,) = answer.columns
        relation = answer.relation
        if not answer.single:
            call = AggregateFunction("single", (value,), relation.schema.field(value).type)
            relation = self._for_each(answer, keys, (("value", call),))
            value = "value"
        return column_node(self._joined_with(relation, keys, answer.outer, [value])[0], node)

    def _for_each(
        self, answer: BoundQuery, keys: Sequence[str], calls: tuple[tuple[str, AggregateFunction], ...]
    ) -> Relation:
        """Aggregates of an answer, for each row of its domain."""
        always: Relation = UNIT
        if keys:
            # two columns around the subquery may be one, as a join has made them equal
            always = DomainRows(Projection(self.relation, tuple(zip(answer.outer, keys, strict=True))))
        return Aggregation(answer.relation, answer.outer, calls, always)

    def _joined_with(
        self,
        relation: Relation,
        keys: Sequence[str],
        outer: Sequence[str],
        values: Sequence[str],
        how: Any = "inner",
    ) -> list[str]:
        """Join the relation with an answer, by the columns of its domain; the new names of its values."""
        columns = [(self.fresh.name(one), one) for one in (*outer, *values)]
        right_keys = tuple(new for new, _ in columns[: len(outer)])
        right = Projection(relation, tuple(columns))
        self.relation = RelationJoin(self.relation, right, how, tuple(keys), right_keys, null_safe=bool(keys))
        return [new for new, _ in columns[len(outer) :]]

    def _count_positive(self, query: Any, node: Any) -> Any:
        answer, keys = self.answer_for_each(_without_limit(query))
        counted = self._for_each(answer, keys, (("rows", AggregateFunction("count", (), pa.int64())),))
        (rows,) = self._joined_with(counted, keys, answer.outer, ["rows"])
        return tree_of("(n > 0)", n=column_node(rows, node))

    def _membership(self, node: Any) -> Any:
        """`IN` as a value: null if the value, or another of the query, is null, and it is not found."""
        answer, keys = self.answer_for_each(_query(node))
        left_keys, right_keys, compared = self._compared(node, answer)
        answer = replace(answer, relation=compared)
        if len(left_keys) > 1:
            return self._membership_of_rows(keys, answer.outer, left_keys, right_keys, compared)
        counts = (
            ("rows", AggregateFunction("count", (), pa.int64())),
            ("valid", AggregateFunction("count", (right_keys[0],), pa.int64())),
        )
        rows, valid = self._joined_with(
            self._for_each(answer, keys, counts), keys, answer.outer, ["rows", "valid"]
        )
        values = Distinct(selected(answer.relation, dict.fromkeys((*answer.outer, right_keys[0]))))
        present = with_condition(values, self._valid(right_keys[0], values))
        true = self.binder.bound(exp.Boolean(this=True), present.schema)
        marked = with_columns(present, ("found", true))
        (flag,) = self._joined_with(
            marked, (*keys, left_keys[0]), (*answer.outer, right_keys[0]), ["found"], "left"
        )
        return tree_of(
            "CASE WHEN present THEN true WHEN n = 0 THEN false"
            " WHEN x IS NULL OR valid < n THEN NULL ELSE false END",
            present=flag,
            n=rows,
            x=left_keys[0],
            valid=valid,
        )

    def _membership_of_rows(
        self,
        keys: Sequence[str],
        outer: Sequence[str],
        left_keys: Sequence[str],
        right_keys: Sequence[str],
        answer: Relation,
    ) -> Any:
        """`IN` of several columns as a value: null if no row is equal, and one may be, as a value is null.

        All pairs of distinct rows that do not differ are counted, so no equality of values can be a key.
        """
        fresh = Fresh()
        asked = [(fresh.name(f"ours_{one}"), one) for one in dict.fromkeys((*keys, *left_keys))]
        ours = DomainRows(Projection(self.relation, tuple(asked)))
        renamed = [(fresh.name(f"theirs_{one}"), one) for one in dict.fromkeys((*outer, *right_keys))]
        other = Distinct(Projection(answer, tuple(renamed)))
        new, old = {column: name for name, column in asked}, {column: name for name, column in renamed}
        by = tuple(new[one] for one in keys), tuple(old[one] for one in outer)
        # a join drops the right keys, which may be compared, too
        pairs: Relation = RelationJoin(ours, other, "inner", *by, null_safe=bool(keys))
        sides = [(new[a], old[b]) for a, b in zip(left_keys, right_keys, strict=True)]
        for x, y in sides:
            maybe = self.binder.bound(tree_of("NOT ((x = y) IS false)", x=x, y=y), pairs.schema)
            pairs = with_condition(pairs, maybe)
        every: Any = exp.and_(*(tree_of("x = y", x=x, y=y) for x, y in sides))
        same = self.binder.bound(every, pairs.schema)
        names = tuple(new.values())
        marked = Projection(pairs, (*((name, name) for name in names), ("same", same)))
        best = AggregateFunction("bool_or", ("same",), pa.bool_())
        some = AggregateFunction("count", (), pa.int64())
        matches = Aggregation(marked, names, (("found", best), ("rows", some)))
        values = self._joined_with(matches, tuple(new), names, ["found", "rows"], "left")
        present, rows = values
        return tree_of("CASE WHEN n IS NULL THEN false WHEN present THEN true END", present=present, n=rows)


def _expression_of(query: Any) -> Any:
    """The expression that a query without tables and clauses selects, which is its value; else None."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    one = query.expressions[0].unalias()
    several = any(calls.aggregates_in(one)) or any(calls.windows_in(one)) or is_generator(one) or one.is_star
    clauses = [name for name, value in query.args.items() if value and name != "expressions"]
    return None if several or clauses else one


def _query(node: Any) -> Any:
    query = node.args.get("query") if isinstance(node, exp.In) else node.this
    while isinstance(query, exp.Subquery) and not has_clauses(query):
        query = query.this
    return query


def _without_limit(query: Any) -> Any:
    """A query that is asked only whether it has rows: its order and a limit of 1 or more say nothing."""
    if not isinstance(query, exp.Select) or query.args.get("offset") is not None:
        return query
    limit = query.args.get("limit")
    if limit is not None and not (isinstance(limit.expression, exp.Literal) and limit.expression.name != "0"):
        return query
    tree = query.copy()
    tree.set("limit", None)
    tree.set("order", None)
    return tree
