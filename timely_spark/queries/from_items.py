"""The items of `FROM`: tables, subqueries, joins in parentheses, and functions that make rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from timely_spark.queries import calls
from timely_spark.queries.binder import (
    UNIT,
    BoundQuery,
    Domain,
    Views,
    column_node,
    has_clauses,
    named_rows,
    written_name,
)
from timely_spark.queries.generators import (
    GENERATORS,
    Generated,
    elements_of,
    generator_name,
    is_generator,
    parts_of,
    rows_of_range,
)
from timely_spark.queries.pivots import pivoted
from timely_spark.queries.relations import Projection, Relation, RelationJoin
from timely_spark.queries.scopes import Correlated, FromItem, NamedColumn, VisibleColumns, in_star_order
from timely_spark.queries.subqueries import Subqueries
from timely_spark.sql import parse
from timely_spark.sql.binder import near
from timely_spark.sql.parse import exp


class FromItems(Subqueries):
    """The part of a block that binds one table or subquery of `FROM`."""

    if TYPE_CHECKING:  # of `Joins`

        def take(self, item: FromItem) -> None: ...
        def names_of(self, parts: Sequence[FromItem]) -> VisibleColumns: ...
        def connected(self, parts: Sequence[FromItem], conditions: Sequence[Any]) -> FromItem: ...
        def of_domain(self, domain: Domain) -> FromItem: ...
        def join_all(self, joins: list[Any], parts: list[FromItem], later: list[Any]) -> Any: ...
        def asked(self, source: FromItem, conditions: Sequence[Any]) -> FromItem: ...
        def outer_join(self, how: str, left: FromItem, right: FromItem) -> FromItem: ...

    def source(self, node: Any) -> FromItem:
        """A table, view or subquery, with new names for its columns."""
        if isinstance(node, exp.Lateral) or isinstance(node.this, exp.Values):  # the first in FROM
            kind = exp.Subquery if isinstance(node.this, exp.Query | exp.Values) else exp.Table
            node = kind(this=node.this, alias=node.args.get("alias"))
        if node.args.get("pivots"):
            alone = node.copy()
            alone.set("joins", None)
            alone.set("laterals", None)
            plain = alone.copy()
            plain.set("pivots", None)
            names = [one.name for one in self.source(plain).entries if not one.hidden]
            alias = node.args["pivots"][0].args.get("alias")
            query = pivoted(self.binder, alone, names)
            named = exp.Subquery(
                this=query, alias=alias or exp.TableAlias(this=exp.to_identifier(node.alias))
            )
            return self.derived(named)
        if node.args.get("sample"):
            hint = "keep rows by a hash of a key: WHERE crc32(CAST(id AS string)) % 100 < 10."
            raise self.binder.refuse(node, "TABLESAMPLE is not supported", hint)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            view = self._view(node)
            if view.inlined is not None:
                return self._inlined(node, *view.inlined)
            answer, alias = view.query, node.alias or node.name
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table | exp.Subquery):
            return self.in_parentheses(node)
        elif isinstance(node, exp.Subquery | exp.Values | exp.Query):
            return self.derived(named_rows(node) if isinstance(node, exp.Values) else node)
        elif isinstance(node, exp.Table) and is_generator(node.this):
            return self._generated_in_from(node)
        elif isinstance(node, exp.Table) and _is_range(node.this):
            answer = BoundQuery(rows_of_range(self.binder, node.this), ("id",), ("id",))
            alias = node.alias
        else:
            text = node.sql(dialect=parse.dialect())
            hint = "read a table, a view, a subquery, VALUES, range(...) or explode(...)."
            raise self.binder.refuse(node, f"{text} in FROM", hint)
        return self.source_of(node, answer, alias)

    def _generated_in_from(self, node: Any) -> FromItem:
        """The rows of a function, which may read columns of the blocks around this one."""
        try:
            return self._generated(node, node.this, FromItem(UNIT, [], []))
        except Correlated:
            if self.domain is None:
                raise
        return self._generated(node, node.this, self.of_domain(self.domain))

    def derived(self, node: Any) -> FromItem:
        """A subquery in `FROM`. It reads tables, and in a subquery columns of the blocks around that."""
        query = node.this if isinstance(node, exp.Subquery) and not has_clauses(node) else node
        try:
            return self.source_of(node, self.binder.query(query, self.views, self.around), node.alias)
        except Correlated:
            if self.domain is None:
                raise
        answer = self.binder.query(query, self.views, self.around, self.domain)
        item = self.source_of(node, answer, node.alias)
        outer = [self.fresh.name(one) for one in answer.outer]
        columns = dict(zip(item.relation.schema.names, answer.columns, strict=True))
        relation = Projection(answer.relation, (*columns.items(), *zip(outer, answer.outer, strict=True)))
        names = [
            (depth, replace(entry, column=name))
            for (depth, entry), name in zip(self.domain.entries, outer, strict=True)
        ]
        return FromItem(relation, item.entries, names)

    def _inlined(self, node: Any, cte: Any, views: Views) -> FromItem:
        """A query of `WITH` that reads columns of the blocks around it, as a subquery."""
        columns = (node.args.get("alias") or cte.args["alias"]).args.get("columns") or cte.args[
            "alias"
        ].columns
        alias = exp.TableAlias(this=exp.to_identifier(node.alias or node.name), columns=columns)
        outer, self.views = self.views, views
        try:
            return self.derived(exp.Subquery(this=cte.this.copy(), alias=alias))
        finally:
            self.views = outer

    def _joined_inside(self, first: Any, parts: list[FromItem]) -> FromItem:
        """The joins behind a first source, and before it the domain, if they read its columns."""
        item = self.source(first)
        parts = [item] if item.outer else [*parts, item]
        parts, early, later = self.join_all([*(first.args.get("joins") or ())], parts, [])
        item = self.asked(self.connected(parts, early), later)
        for one in first.args.get("laterals") or ():
            item = self.lateral_view(one, item)
        return item

    def in_parentheses(self, node: Any) -> FromItem:
        """Joins in parentheses, which may have a name."""
        before, self.asked_by_on = self.asked_by_on, []
        try:
            item = self._joined_inside(node.this, [])
        except Correlated:
            if self.domain is None:
                raise
            self.asked_by_on = []
            item = self._joined_inside(node.this, [self.of_domain(self.domain)])
        finally:
            self.asked_by_on = before
        entries = [replace(one, place=0) for one in in_star_order(item.entries)]
        if node.alias:
            shown = [one for one in entries if not one.hidden]
            names = self.binder.names_given(node.args["alias"], len(shown)) or [one.name for one in shown]
            entries = [
                replace(one, table=node.alias, name=name) for one, name in zip(shown, names, strict=True)
            ]
        return replace(item, entries=entries)

    def source_of(self, node: Any, answer: BoundQuery, alias: str) -> FromItem:
        """An answer with new names for its columns, and the aliases of a node for them."""
        names = self.binder.names_given(node.args.get("alias"), len(answer.columns)) or answer.names
        new = [self.fresh.name(name) for name in names]
        schema = answer.relation.schema
        entries = [
            NamedColumn(alias, name, column, schema.field(old).type)
            for name, column, old in zip(names, new, answer.columns, strict=True)
        ]
        relation: Relation = answer.relation
        if list(answer.columns) != new or relation.schema.names != new:
            relation = Projection(relation, tuple(zip(new, answer.columns, strict=True)))
        return FromItem(relation, entries, [])

    def _view(self, node: Any) -> Any:
        name = written_name(node)
        matches = [one for one in self.views if one.lower() == name.lower()]
        if len(matches) > 1:
            hint = "give one of them another name: names are the same in any case."
            raise self.binder.refuse(node, f"{name} may be {' or '.join(matches)}", hint)
        if matches:
            return self.views[matches[0]]
        names = sorted(self.views)
        hint = near(name, names) or f"the tables are {', '.join(names) or 'none'}."
        around, named = node, set[str]()
        while (around := around.parent) is not None:
            if (clause := around.args.get("with_")) is not None:
                named |= {one.alias.lower() for one in clause.expressions}
        if name.lower() in named:
            hint = "write WITH RECURSIVE, where a query may read itself, and those behind it."
        elif name.lower() in self.binder.later:
            hint = f"write CREATE VIEW {name} before it."
        raise self.binder.refuse(node, f"no table {name}", hint)

    def lateral(self, node: Any, left: FromItem, side: str, join: Any) -> FromItem:
        """A subquery that reads the tables before it."""
        query = node.this if isinstance(node, exp.Lateral) else node
        query = query.this if isinstance(query, exp.Subquery) and not has_clauses(query) else query
        on = join.args.get("on")
        if isinstance(on, exp.Boolean) and on.this:
            on = None
        if _is_range(query):
            query = exp.select("*").from_(exp.Table(this=query))
        if not isinstance(query, exp.Query) and (on is None or not side):
            item = self.lateral_view(node, left, outer=side == "LEFT")
            return item if on is None else self.connected([item], [on])
        if not isinstance(query, exp.Query):
            query = exp.select("*").from_(exp.Table(this=query, alias=node.args.get("alias")))
        if side not in {"", "LEFT"}:
            raise self.binder.refuse(node, f"{side} JOIN LATERAL", "write JOIN or LEFT JOIN.")
        if on is not None and side:
            # the condition belongs to the subquery, which reads the tables before it as well
            inside = exp.Subquery(this=query, alias=node.args.get("alias"))
            query, on = exp.select("*").from_(inside, copy=False).where(on, copy=False), None
        self.take(left)
        answer, keys = self.answer_for_each(query)
        source = self.source_of(node, answer, node.alias)
        right_keys = [self.fresh.name(one) for one in answer.outer]
        columns = [
            *zip(source.relation.schema.names, answer.columns, strict=True),
            *zip(right_keys, answer.outer, strict=True),
        ]
        right = Projection(answer.relation, tuple(columns))
        how: Any = "left" if side == "LEFT" else "inner"
        if how == "left" and not keys:  # it reads no table before it
            return self.outer_join(how, left, FromItem(right, source.entries, []))
        relation = RelationJoin(
            self.relation, right, how, tuple(keys), tuple(right_keys), null_safe=bool(keys)
        )
        item = FromItem(relation, [*left.entries, *source.entries], left.outer)
        return item if on is None else self.connected([item], [on])

    def lateral_view(self, node: Any, left: FromItem, *, outer: bool = False) -> FromItem:
        """A source with the rows that `LATERAL VIEW` makes of each of its rows."""
        if not is_generator(node.this):
            hint = "the functions that make rows are explode, posexplode, inline, json_tuple and stack."
            raise self.binder.refuse(node, f"LATERAL {node.this.sql(dialect=parse.dialect())}", hint)
        return self._generated(node, node.this, left, outer=outer or bool(node.args.get("outer")))

    def _generated(self, node: Any, call: Any, left: FromItem, *, outer: bool = False) -> FromItem:
        """A source, and for each row the rows that a function makes of it."""
        tree = self.plain(elements_of(self.binder, call), self.names_of([left]))
        before, self.relation = self.relation, left.relation
        column = self.add(tree, "elements")
        relation, self.relation = self.relation, before
        generated = parts_of(self.binder, call, relation.schema.field(column).type)
        listed = self.binder.names_given(node.args.get("alias"), len(generated))
        names = listed or [name for name, _, _ in generated]
        parts = tuple(
            (self.fresh.name(name), kind, part)
            for name, (_, kind, part) in zip(names, generated, strict=True)
        )
        relation = Generated(relation, column, outer or GENERATORS[generator_name(call)][1], parts)
        entries = [
            NamedColumn(node.alias, name, column, kind)
            for name, (column, kind, _) in zip(names, parts, strict=True)
        ]
        return FromItem(relation, [*left.entries, *entries], left.outer)

    def generated_items(self, call: Any, names: Sequence[str], node: Any) -> list[tuple[str | None, Any]]:
        """The columns of a function that makes rows in `SELECT`. The relation gets the rows."""
        if any(calls.aggregates_in(call)) or calls.has_query(call):
            hint = "select its argument in a subquery of FROM first."
            raise self.binder.refuse(node, f"{calls.function_name(call)} of an aggregate or a subquery", hint)
        left = FromItem(self.relation, self.names.entries, self.names.outer)
        columns = exp.TableAlias(columns=[exp.to_identifier(one) for one in names])
        item = self._generated(exp.Table(alias=columns), call, left)
        self.relation = item.relation
        new = item.entries[len(left.entries) :]
        return [(one.name, column_node(one.column, node)) for one in new]


def _is_range(node: Any) -> bool:
    return type(node).__name__ == "Anonymous" and node.name.lower() == "range"
