"""A block of a query, `SELECT ... FROM ... WHERE ...`: from its clauses to a relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.queries import calls
from timely_spark.queries.aggregating import Aggregating, with_own_aggregates
from timely_spark.queries.binder import ORDERED, BoundQuery, column_node, ordering, orders_of
from timely_spark.queries.frames import frame_of
from timely_spark.queries.generators import is_generator
from timely_spark.queries.relations import Limit, Projection, Relation, Window, selected
from timely_spark.queries.scopes import Fresh, VisibleColumns, in_star_order
from timely_spark.sql import parse, strict
from timely_spark.sql.binder import CASTS, near
from timely_spark.sql.parse import exp

#: Clauses of a block that are not kept up to date, or mean nothing for a collection.
REFUSED = {
    "sort": ("SORT BY", "a collection has no order: leave it out."),
    "cluster": ("CLUSTER BY", "a collection has no order: leave it out."),
    "distribute": ("DISTRIBUTE BY", "rows are exchanged as joins and aggregates need it: leave it out."),
    "sample": ("TABLESAMPLE", "keep rows by a hash of a key: WHERE crc32(CAST(id AS string)) % 100 < 10."),
    "connect": ("CONNECT BY", "write WITH RECURSIVE."),
    "match": ("MATCH_RECOGNIZE", "write joins or window functions."),
    "into": ("SELECT INTO", "write CREATE MATERIALIZED VIEW ... AS SELECT."),
    "locks": ("FOR UPDATE", "leave it out."),
    "prewhere": ("PREWHERE", "write WHERE."),
    "kind": ("SELECT AS STRUCT", "write struct(...)."),
}


class Block(Aggregating):
    """Binds one block; its relation grows clause by clause."""

    # -- the clauses -----------------------------------------------------------------------------------------

    def answer(self) -> BoundQuery:
        """The block's relation."""
        self.node, self.of_subqueries = with_own_aggregates(self.node)
        node = self.node
        for clause, (shown, hint) in REFUSED.items():
            if node.args.get(clause):
                raise self.binder.refuse(_first(node.args[clause]), f"{shown} is not supported", hint)
        self.read_sources()
        items = self.items = self._selected()
        # of equal ones the first, as in Spark
        self._aliases = {alias.lower(): tree for alias, tree in reversed(items) if alias is not None}
        self._refuse_aliases(items)
        if self.window is not None:
            self._aliases.setdefault("window", self.window)
        aggregates = self.aggregate(items)
        if (having := node.args.get("having")) is not None:
            self.filter(having.this, casts=True)
        self._window(items)
        if (qualify := node.args.get("qualify")) is not None:
            self.filter(qualify.this)
        single = aggregates and node.args.get("group") is None and having is None and qualify is None
        return self._projected(items, single=single)

    def _refuse_aliases(self, items: Sequence[tuple[str | None, Any]]) -> None:
        """Refuse selected aggregates and windows that read an alias of the same SELECT, as Spark does."""
        calls_of = ((*calls.aggregates_in(tree), *calls.windows_in(tree)) for _, tree in items)
        for call in (one for each in calls_of for one in each if not calls.has_query(one)):
            for one in call.find_all(exp.Column):
                parts = [part.name for part in one.parts]
                if not self.names.has(parts) and not one.find_ancestor(exp.Lambda) and self.aliased(one):
                    hint = "write the expression again, or select it in a subquery of FROM."
                    problem = f"{one.name} is an alias of this SELECT, in an aggregate or a window"
                    raise self.binder.refuse(one, problem, hint)

    # -- expressions -----------------------------------------------------------------------------------------

    def rewritten(self, node: Any) -> Any:  # noqa: PLR0911 - a table
        """A tree with the columns of the relation: those of aggregates, windows and subqueries, too.

        A subquery extends the relation.
        """
        if self.is_subquery(node):
            key = self.keys_of_queries.get(node)
            return self.of_subquery(node) if key is None else column_node(self.final_name(key), node)
        if isinstance(node, exp.Window):
            if node not in self.windows:
                shown = node.sql(dialect=parse.dialect())
                hint = "write it in SELECT or QUALIFY."
                raise self.binder.refuse(node, f"{shown} where no window function may be", hint)
            return column_node(self.windows[node], node)
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return self.grouping(node)
        if isinstance(node, exp.Column) and self.grouped is not None and node.name.lower() == "grouping__id":
            return self.grouping(exp.GroupingId())  # Hive's name of it
        if calls.is_aggregate(node):
            if self.computed is None:
                shown = node.sql(dialect=parse.dialect())
                hint = "write it in SELECT or HAVING."
                raise self.binder.refuse(node, f"{shown} where no aggregate may be", hint)
            return column_node(self.computed[self._call_key(node)], node)
        if self.computed is not None and (group := self._group_of(node)) is not None:
            return column_node(group, node)
        if isinstance(node, exp.Column):
            return node if self._is_variable(node) else self.named(node)
        return self._rebuilt(node, self.rewritten)

    def _group_of(self, node: Any) -> str | None:
        """The key of the groups that an expression is."""
        assert self._before is not None
        assert self.computed is not None
        if node in self.keys_of_queries:
            return self.keys_of_queries[node]
        if calls.has_query(node) or any(calls.aggregates_in(node)) or any(calls.windows_in(node)):
            return None
        try:
            tree = self.plain(node, self._before)
        except SqlError:
            return None
        # of the equal columns of two joined tables GROUP BY has those that it names
        return self.computed.get(self.known_key(tree)) if self.written(node) <= self.grouped_by else None

    # -- what is selected ------------------------------------------------------------------------------------

    def _selected(self) -> list[tuple[str | None, Any]]:
        """The selected expressions, stars expanded: each with its alias."""
        items: list[tuple[str | None, Any]] = []
        for one in map(self._with_stars, self.node.expressions):
            star = one.this if isinstance(one, exp.Column) and isinstance(one.this, exp.Star) else one
            if isinstance(star, exp.Star):
                items += self._starred(one, star)
            elif isinstance(one, exp.Alias | exp.Aliases) and is_generator(one.this):
                names = [one.alias] if isinstance(one, exp.Alias) else [x.name for x in one.expressions]
                items += self.generated_items(one.this, names, one)
            elif is_generator(one):
                items += self.generated_items(one, (), one)
            elif isinstance(one, exp.Alias):
                items.append((one.alias, one.this))
            elif isinstance(one, exp.Aliases):
                raise self.binder.refuse(one, "several aliases of one expression", "give it one.")
            else:
                bare = one.unnest() if isinstance(one, exp.Paren) else one
                items.append((self._name_of_cast(bare), bare))
        return items

    def _name_of_cast(self, node: Any) -> str | None:
        """The name of a column that is cast, which it keeps: `a` of `CAST(t.a AS string)` and `string(a)`."""
        called = isinstance(node, exp.Anonymous) and node.name.lower() in CASTS.split()
        values = node.expressions if called else [node.this] if isinstance(node, exp.Cast) else []
        for column in [one.unnest() for one in values]:
            if self.is_named(column, self.names):
                entry, used = self.names.find([one.name for one in column.parts]) or (None, 0)
                return str(column.name) if entry is not None and used == len(column.parts) else None
        return None

    def _with_stars(self, node: Any) -> Any:
        """An expression whose calls have the columns of `*` as arguments, as in `struct(*)`."""

        def expanded(one: Any) -> list[Any]:
            star = one.this if isinstance(one, exp.Column) else one
            if not isinstance(star, exp.Star):
                return [one]
            return [
                exp.alias_(tree, name, quoted=True) if named else tree
                for name, tree in self._starred(one, star)
            ]

        if node.find(exp.Star) is None:
            return node
        block = node.copy()  # a block may be bound again
        stars = [one for one in block.find_all(exp.Star) if one.find_ancestor(exp.Select) is None]
        calls_of_stars = (one.find_ancestor(exp.Anonymous, exp.Distinct) for one in stars)
        for call in {id(of): of for of in calls_of_stars if of is not None}.values():
            named = call.name.lower() == "struct"
            call.set("expressions", [each for one in call.expressions for each in expanded(one)])
            strict.name_fields(call)
        return block

    def _starred(self, node: Any, star: Any) -> list[tuple[str | None, Any]]:
        table = node.table.lower() if isinstance(node, exp.Column) else None
        if star.args.get("replace") or star.args.get("rename"):
            raise self.binder.refuse(node, "* REPLACE", "list the columns.")
        columns = self._columns_of(table, node)
        if not columns:
            problem = f"no table {node.table}" if table else "* without FROM"
            raise self.binder.refuse(node, problem, "list columns.")
        for one in star.args.get("except_") or ():
            left = [
                each
                for each in columns
                if each[1].lower() != one.name.lower()
                or one.text("table").lower() not in {"", each[0].lower()}
            ]
            if len(left) == len(columns):
                shown = one.sql(dialect=parse.dialect())
                hint = near(one.name, [name for _, name, _ in columns]) or "name columns of the star."
                raise self.binder.refuse(one, f"EXCEPT of {shown}, which the star has not", hint)
            columns = left
        if not columns:
            raise self.binder.refuse(node, "EXCEPT of all columns", "leave one.")
        return [(name, tree) for _, name, tree in columns]

    def _columns_of(self, table: str | None, node: Any) -> list[tuple[str, str, Any]]:
        """The columns of a star: those of all tables, of one, also around the block, or a struct's fields.

        Each has the name of its table, its own, and its tree.
        """
        if table is None:
            shown = in_star_order(one for one in self.names.entries if not one.hidden)
            return [(one.table, one.name, column_node(one.column, node)) for one in shown]
        names: VisibleColumns | None = self.names
        while names is not None:
            if entries := in_star_order(one for one in names.entries if one.table.lower() == table):
                if names is self.names:
                    return [(one.table, one.name, column_node(one.column, node)) for one in entries]
                return [
                    (one.table, one.name, exp.column(one.name, one.table, quoted=True)) for one in entries
                ]
            for one in names.entries:
                if one.name.lower() == table and pa.types.is_struct(one.type):
                    of = exp.column(one.name, one.table or None, quoted=True)
                    fields = [(field.name, exp.to_identifier(field.name, quoted=True)) for field in one.type]
                    return [("", name, exp.Dot(this=of.copy(), expression=part)) for name, part in fields]
            names = names.around
        return []

    def _projected(self, items: Sequence[tuple[str | None, Any]], *, single: bool) -> BoundQuery:
        node, binder = self.node, self.binder
        # first all rewriting, which may extend the relation
        trees = [self.rewritten(expression) for _, expression in items]
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            hint = "write QUALIFY row_number() OVER (PARTITION BY ... ORDER BY ...) = 1."
            raise binder.refuse(_first(distinct.args["on"]), "DISTINCT ON", hint)
        order = node.args.get("order")
        count, offset = binder.limits(node)
        limits = count is not None or offset > 0
        before = self.relation
        by = self._order_of(order, items, trees) if order is not None else []
        schema = self.relation.schema
        fresh = Fresh()
        names = [_name_of(expression) if alias is None else alias for alias, expression in items]
        columns = [
            (fresh.name(name), binder.column(self.final(tree), schema))
            for name, tree in zip(names, trees, strict=True)
        ]
        outer = [
            (fresh.name(one), self.final_name(one)) for one in (entry.column for _, entry in self.names.outer)
        ]
        more: list[tuple[str, Any]] = []
        orders = []
        for place, tree, one in by:
            if place is None:
                more.append((fresh.name("order"), binder.column(self.final(tree), schema)))
                orders.append(ordering(more[-1][0], one))
            else:
                orders.append(ordering(columns[place][0], one))
        if more and distinct is not None:
            hint = "order by a selected column."
            raise binder.refuse(order, "ORDER BY of a column that DISTINCT drops", hint)
        relation: Relation = Projection(self.relation, (*columns, *outer, *more))
        binder.refuse_maps(order, relation, [one.column for one in orders], "ordered")
        if order is not None and not limits:  # it was checked, and orders nothing
            binder.notes.append(ORDERED)
            more, relation = [], Projection(before, (*columns, *outer))
        if distinct is not None:
            relation = binder.distinct(relation)
        if limits:
            relation = Limit(relation, tuple(name for name, _ in outer), tuple(orders), count, offset)
        if more:
            relation = selected(relation, (name for name, _ in (*columns, *outer)))
        answer = BoundQuery(
            relation,
            tuple(names),
            tuple(name for name, _ in columns),
            tuple(name for name, _ in outer),
            single=single and not limits and distinct is None,
        )
        if distinct is not None:
            binder.refuse_maps(node, relation, answer.columns)
        return answer

    def _order_of(
        self, order: Any, items: Sequence[tuple[str | None, Any]], trees: Sequence[Any]
    ) -> list[Any]:
        """For each `ORDER BY` the number of the selected expression that it is, or a tree.

        A name is that of a selected expression, if there is one such, also where a column has it.
        """
        names = [(alias or _name_of(expression)).lower() for alias, expression in items]
        outputs = {name: n for n, name in enumerate(names) if names.count(name) == 1}

        def output(node: Any) -> Any:
            """A tree with selected expressions for their names; aggregates and windows read columns."""
            own = isinstance(node, exp.Column) and not node.table and not self._is_variable(node)
            if own and node.name.lower() in outputs:
                return exp.Paren(this=trees[outputs[node.name.lower()]].copy())
            if isinstance(node, exp.Window) or calls.is_aggregate(node) or self.is_subquery(node):
                return node
            return self._rebuilt(node, output)

        beyond = self.computed is not None and (bool(self.windows) or self._filters_more(trees))
        entries: list[Any] = []
        for one in orders_of(order, len(items)):
            ordered, place = one.this, calls.place_of(one.this)
            if place is not None:
                if not 0 <= place < len(items):
                    raise self.binder.refuse(
                        one, f"ORDER BY {ordered.this}", f"write a number from 1 to {len(items)}."
                    )
            elif isinstance(ordered, exp.Column) and not ordered.table:
                place = outputs.get(ordered.name.lower())
            tree = None
            if place is None:
                self._refuse_order(ordered, outputs, beyond=beyond)
                tree = self.rewritten(output(ordered))
                same = [n for n, each in enumerate(trees) if each == tree]
                place = same[0] if same else None
            entries.append((place, tree, one))
        return entries

    def _filters_more(self, trees: Sequence[Any]) -> bool:
        """Whether `HAVING` reads a key or an aggregate that is not selected."""

        def more(node: Any) -> bool:
            if calls.has_query(node) or (isinstance(node, exp.Column) and self.aliased(node) is not None):
                return False
            if isinstance(node, exp.Expression) and self.rewritten(node) in trees:
                return False
            if calls.is_aggregate(node) or self._group_of(node) is not None:
                return True
            return any(map(more, node.iter_expressions()))

        having = self.node.args.get("having")
        return having is not None and more(having.this)

    def _refuse_order(self, node: Any, outputs: Mapping[str, int], *, beyond: bool) -> None:
        """Refuse in `ORDER BY` tests of subqueries, as Spark does, and what no longer is a column.

        Args:
            node: an expression of the clause.
            outputs: the names of what is selected.
            beyond: whether windows, or more than is selected in `HAVING`, come between groups and order.
        """
        tests = [one for one in node.find_all(exp.In, exp.Exists) if self.is_subquery(one)]
        if any(one not in self.keys_of_queries for one in tests):
            raise self.binder.refuse(
                node, "a test of a subquery in ORDER BY", "select it, and order by its name."
            )
        if beyond:
            for one in node.walk(prune=lambda part: isinstance(part, exp.Window)):
                column = isinstance(one, exp.Column) and (bool(one.table) or one.name.lower() not in outputs)
                if calls.is_aggregate(one) or (column and self._group_of(one) is None):
                    shown = one.sql(dialect=parse.dialect())
                    hint = "select it, and order by its name or number."
                    raise self.binder.refuse(one, f"ORDER BY {shown} behind HAVING or a window", hint)

    # -- windows ---------------------------------------------------------------------------------------------

    def _window(self, items: Sequence[tuple[str | None, Any]]) -> None:
        """Compute the functions of windows."""
        node = self.node
        read = [tree for _, tree in items]
        if (qualify := node.args.get("qualify")) is not None:
            read.append(qualify.this)
        if (order := node.args.get("order")) is not None:
            read += [one.this for one in order.expressions]
        read = [*map(self._alias_expanded, read), *self._aliases.values()]
        windows = dict.fromkeys(window for tree in read for window in calls.windows_in(tree))
        if qualify is not None and not windows:
            raise self.binder.refuse(
                qualify, "QUALIFY without a function OVER a window", "write WHERE or HAVING."
            )
        # functions of one window are computed together: they must see equal rows in one order
        together: dict[Any, list[Any]] = {}
        for one in windows:
            with self.binder.clause(one):
                partition, by, call = frame_of(self, one, self.window_clauses())
            name = self.windows[one] = self.fresh.name(call.function)
            outer = [self.final_name(entry.column) for _, entry in self.names.outer]
            keys = tuple(dict.fromkeys([*outer, *partition]))
            together.setdefault((keys, tuple(by)), [one]).append((name, call))
        for (keys, order_by), (first, *functions) in together.items():
            with self.binder.clause(first):
                rows = self.binder.compared_rows(self.relation)
                self.relation = Window(rows, keys, order_by, tuple(functions))


def _name_of(node: Any) -> str:
    """The name of a selected expression without an alias."""
    if isinstance(node, exp.Column | exp.Dot):
        return str(node.name)
    return str(node.sql(dialect=parse.dialect())).lower().replace("`", "")


def _first(value: Any) -> Any:
    return (value[0] if value else None) if isinstance(value, list) else value
