"""`GROUP BY`, grouping sets and aggregates of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa

from timely_spark.queries import calls
from timely_spark.queries.aggregates import TYPES
from timely_spark.queries.binder import UNIT, as_compared, cast_to, column_node, ordering, tree_of
from timely_spark.queries.groups import AggregateFunction
from timely_spark.queries.joins import Joins
from timely_spark.queries.relations import Aggregation, Concat, Distinct, Projection, Relation, selected
from timely_spark.queries.scopes import NamedColumn, VisibleColumns
from timely_spark.queries.statistics import SHAPES
from timely_spark.queries.weights import PAIRS, VARIANCES
from timely_spark.sql import parse
from timely_spark.sql.parse import exp
from timely_spark.sql.types import array_of, has_float, has_map, is_atomic, is_float, is_number, name_of

#: the aggregates that may be told to ignore nulls
_NULLS_COUNT = {"first", "last", "any_value", "collect_list", "collect_set"}
#: the aggregates whose values may have an order
_ORDERED = {"first", "last", "any_value", "collect_list", "collect_set", "string_agg"}
#: as whose columns subqueries read the aggregates of the block around them
OWN = "aggregates of the query"


def with_own_aggregates(node: Any) -> tuple[Any, dict[str, Any]]:
    """A block in which subqueries of HAVING read its own aggregates as columns; and these by their names.

    `SELECT g FROM t GROUP BY g HAVING EXISTS (SELECT 1 FROM u WHERE u.x = max(t.x))` has one: its columns are
    those of a table of the block.
    """
    names: dict[str, Any] = {}
    having = node.args.get("having")
    if having is None or not calls.has_query(having):
        return node, names
    tree = node.copy()
    sources = [tree.args.get("from_"), *(tree.args.get("joins") or ())]
    own = {"", *(name for one in sources if one is not None for name in _sources_of(one.this))}
    for query in list(tree.args["having"].find_all(exp.Query)):
        inner = {one.alias_or_name.lower() for one in query.find_all(exp.Table, exp.Subquery, exp.Values)}
        inner |= {""} if inner else set()  # a name without a table is that of a column of its own tables
        for call in [one for one in query.find_all(exp.Func, exp.Filter) if calls.is_aggregate(one)]:
            tables = {one.table.lower() for one in call.find_all(exp.Column)}
            if tables and tables <= own - inner:
                name = f"aggregate {len(names)}"
                names[name] = call.copy()
                call.replace(exp.column(name, OWN, quoted=True))
    return tree, names


def _sources_of(node: Any) -> set[str]:
    """The names of a source, and of those that are joined with it; of joins in parentheses those in these."""
    names: set[str] = set()
    if node.alias_or_name:
        names = {node.alias_or_name.lower()}
    elif isinstance(node.this, exp.Table | exp.Subquery):
        names = _sources_of(node.this)
    return names.union(*(_sources_of(one.this) for one in node.args.get("joins") or ()))


class Aggregating(Joins):
    """The part of a block that groups and aggregates."""

    _listed: list[Any]

    def aggregate(self, items: Sequence[tuple[str | None, Any]]) -> bool:
        """Group and aggregate, if the block does."""
        node = self.node
        group = node.args.get("group")
        read = [tree for _, tree in items]
        read += [one.this for clause in ("having", "qualify") if (one := node.args.get(clause)) is not None]
        if (order := node.args.get("order")) is not None:
            read += [one.this for one in order.expressions]
        read += self.window_clauses().values()
        aggregates = [one for tree in read for one in calls.aggregates_in(self._alias_expanded(tree))]
        aggregates += self.of_subqueries.values()
        if group is None and not aggregates and node.args.get("having") is None:
            return False
        self._listed = []
        sets = self._grouping_sets(group, items)
        self._before = replace(self.names)
        by = list(dict.fromkeys([*self._listed, *(one for each in sets for one in each)]))
        keys = [self.key(one) for one in by]
        outer = [self.final_name(entry.column) for _, entry in self.names.outer]
        has_sets = group is not None and self._has_sets(group)
        if has_sets and sets == [[]] and not by:  # GROUPING SETS (()) has a row also of no rows
            has_sets, self.grouped = False, ("", [])
        if has_sets:  # a set may lack a key, and never a column around
            keys = [self._copied(one) if one in outer else one for one in keys]
        names, specs, columns = self._named_calls(aggregates)
        if not specs and not by:  # one row, as of an aggregate
            specs.append((self.fresh.name("count"), AggregateFunction("count", (), pa.int64())))
        schema = self.relation.schema
        listed = [*dict.fromkeys([*outer, *keys])]
        projection = (*((k, k) for k in listed), *columns) or ((schema.names[0], schema.names[0]),)
        relation: Relation = Projection(self.relation, projection)
        if has_sets:
            relation, listed = self._expanded(
                relation, listed, sets, dict(zip(by, keys, strict=True)), columns
            )
        always = None
        if not by and not has_sets:
            always = UNIT if self.domain is None else self.domain.relation
        if not specs:
            # only keys are asked for
            relation = Distinct(selected(relation, listed))
        else:
            relation = Aggregation(relation, tuple(listed), tuple(specs), always)
        self.relation = relation
        self.computed = {**dict(zip(by, keys, strict=True)), **names}
        own = [
            NamedColumn(OWN, name, column, self.relation.schema.field(column).type, hidden=True)
            for name, call in self.of_subqueries.items()
            for column in [self.computed[self._call_key(call)]]
        ]
        # a key that is a column has its name, also where its maps are sorted
        columns_of = {
            one.name: key for one, key in zip(by, keys, strict=True) if type(one).__name__ == "Column"
        }
        final = [(one, self.final_name(one.column)) for one in self.names.entries]
        entries = [
            replace(one, column=columns_of.get(column, column))
            for one, column in final
            if (one.table, one.name) in self.grouped_by
        ]
        self.names = VisibleColumns(
            [*(one for one in entries if one.column in keys), *own],
            [(depth, replace(one, column=self.final_name(one.column))) for depth, one in self.names.outer],
            self.around,
        )
        return True

    def _named_calls(
        self, aggregates: Sequence[Any]
    ) -> tuple[dict[Any, str], list[tuple[str, AggregateFunction]], list[tuple[str, Any]]]:
        """The names of aggregates, the aggregates by their names, and the columns of their arguments."""
        names: dict[Any, str] = {}
        specs: list[tuple[str, AggregateFunction]] = []
        arguments: dict[Any, str] = {}
        columns: list[tuple[str, Any]] = []
        for one in aggregates:
            key = self._call_key(one)
            if key not in names:
                call = self._call(one, arguments, columns)
                names[key] = self.fresh.name(call.function)
                specs.append((names[key], call))
        return names, specs, columns

    def key(self, tree: Any) -> str:
        """The column of a key, whose equal values are written alike."""
        kind = self.binder.bound(self.final(tree), self.relation.schema).type
        return self.add(as_compared(tree) if has_map(kind) or has_float(kind) else tree, "key")

    def _alias_expanded(self, node: Any) -> Any:
        """A tree in which the names of other selected expressions are these, to find their aggregates."""
        if isinstance(node, exp.Column) and len(node.parts) == 1 and (aliased := self.aliased(node)):
            return aliased
        return node

    def _has_sets(self, group: Any) -> bool:
        sets = exp.Rollup | exp.Cube | exp.GroupingSets
        return any(group.args.get(one) for one in ("rollup", "cube", "grouping_sets")) or any(
            isinstance(one, sets) for one in group.expressions
        )

    def _grouping_sets(self, group: Any, items: Sequence[tuple[str | None, Any]]) -> list[list[Any]]:
        """The keys of each grouping set, as trees."""
        if group is None:
            return [[]]
        if group.args.get("all") is False:
            raise self.binder.refuse(group, "GROUP BY DISTINCT", "leave DISTINCT out.")
        elements = list(group.expressions)
        if group.args.get("all"):
            if (column := self._column_called_all()) is None:
                return [
                    [self._grouped_by(tree, items) for _, tree in items if not any(calls.aggregates_in(tree))]
                ]
            elements.append(column)
        sets: list[list[Any]] = [[]]
        for one in elements:
            sets = [[*dict.fromkeys([*a, *b])] for a in sets for b in self._sets_of(one, items)]
        if group.args.get("rollup"):  # WITH ROLLUP
            return _prefixes([[one] for one in sets[0]])
        if group.args.get("cube"):
            return _subsets([[one] for one in sets[0]])
        for one in group.args.get("grouping_sets") or ():  # GROUP BY a, b GROUPING SETS (...)
            self._listed = sets[0]
            return self._sets_of(one, items)
        return sets

    def _column_called_all(self) -> Any:
        """The tree of a column or an alias `all`, which `GROUP BY all` means if there is one; else None."""
        column = exp.column("all")
        return column if self.is_named(column, self.names) or self.aliased(column) is not None else None

    def _sets_of(self, node: Any, items: Sequence[tuple[str | None, Any]]) -> list[list[Any]]:
        """The grouping sets of one part of GROUP BY: most are one key."""

        def keys(element: Any) -> list[Any]:
            inside = (
                element.expressions
                if isinstance(element, exp.Tuple)
                else [element.this if isinstance(element, exp.Paren) else element]
            )
            return [self._grouped_by(one, items) for one in inside]

        if isinstance(node, exp.Rollup | exp.Cube):
            parts = [keys(one) for one in node.expressions]
            if [] in parts:
                raise self.binder.refuse(node, "an empty set in ROLLUP or CUBE", "leave it out.")
            return _prefixes(parts) if isinstance(node, exp.Rollup) else _subsets(parts)
        if isinstance(node, exp.GroupingSets):
            return [each for one in node.expressions for each in self._sets_of(one, items)]
        return [keys(node)]

    def _grouped_by(self, node: Any, items: Sequence[tuple[str | None, Any]]) -> Any:
        """A key of GROUP BY as a tree: an expression, the number of a selected one, or its alias."""
        selected = any(node is tree for _, tree in items)  # of GROUP BY ALL, where 1 is no place
        if not selected and (place := calls.place_of(node)) is not None:
            if not 0 <= place < len(items):
                raise self.binder.refuse(
                    node, f"GROUP BY {node.this}", f"write a number from 1 to {len(items)}."
                )
            if any(isinstance(one, exp.Star) for one in self.node.expressions):
                raise self.binder.refuse(node, f"GROUP BY {place + 1} of a star", "name the column.")
            node = items[place][1]
        alias = self._alias_expanded(node)
        if alias is not node and not self.names.has([part.name for part in node.parts]):
            node = alias
        self._refuse_key(node, selected=any(node is tree for _, tree in items))
        self.grouped_by |= self.written(node)
        if calls.has_query(node):
            tree = self.final(self.rewritten(node))
            self.keys_of_queries[node] = self.add(tree, "key")
            return column_node(self.keys_of_queries[node])
        return self.known_key(self.final(self.plain(node, self.names)))

    def _refuse_key(self, node: Any, *, selected: bool) -> None:
        """Refuse in `GROUP BY` an aggregate, columns of the query around, and aliases in what is selected."""
        if any(calls.aggregates_in(node)):
            raise self.binder.refuse(node, "GROUP BY of an aggregate", "group by a column of the input.")
        for one in node.find_all(exp.Column):
            if self.names.has([part.name for part in one.parts]):
                continue
            if self.is_named(one, self.names):
                hint = "leave it out: it has one value for each row of that query."
                raise self.binder.refuse(one, "GROUP BY of a column of the query around", hint)
            if selected and self.aliased(one) is not None:
                hint = "write the expression again, or select it in a subquery of FROM."
                raise self.binder.refuse(one, f"{one.name} is an alias of this SELECT, in a key", hint)

    def written(self, node: Any) -> set[tuple[str, str]]:
        """The tables and names of the columns in an expression over the rows that are grouped."""
        names = self.names if self._before is None else self._before
        written: set[tuple[str, str]] = set()
        for one in node.find_all(exp.Column):
            if one.meta.get("resolved"):
                column = self.final_name(one.name)
                written |= {(e.table, e.name) for e in names.entries if self.final_name(e.column) == column}
            elif self.is_named(one, names):
                entry, _ = names.find([part.name for part in one.parts]) or (None, 0)
                written |= {(entry.table, entry.name)} if entry is not None else set()
            elif (alias := self.aliased(one)) is not None and alias is not node:
                written |= self.written(alias)
        return written

    def known_key(self, tree: Any) -> Any:
        """The key of GROUP BY that a tree is, up to the order of operands and parentheses; else the tree."""
        other = any(type(one).__name__ in {"Paren", *_COMMUTATIVE} for one in tree.walk())
        return self.keys_by_form.setdefault(canonical(tree) if other else tree, tree)

    def _call_key(self, node: Any) -> Any:
        """The key by which two aggregates are one: the same tree over the same columns."""
        assert self._before is not None
        return node if calls.has_query(node) else self.final(self.plain(node, self._before))

    def _call(
        self, node: Any, arguments: dict[Any, str], columns: list[tuple[str, Any]]
    ) -> AggregateFunction:
        """An aggregate of the block; its arguments become columns."""
        one, before = calls.read_call(node), self._before
        assert before is not None
        for inner in (each for tree in one.arguments for each in calls.aggregates_in(tree)):
            text = inner.sql(dialect=parse.dialect())
            raise self.binder.refuse(
                inner, f"{text} in another aggregate", "compute it in a subquery of FROM first."
            )
        self._refuse_outer(node, calls.function_name(one.node), one.arguments)

        def plain(tree: Any) -> Any:
            return self.rewritten(tree) if calls.has_query(tree) else self.plain(tree, before)

        def argument(tree: Any) -> str:
            if tree not in arguments:
                arguments[tree] = self.fresh.name("argument")
                columns.append((arguments[tree], self.binder.column(tree, self.relation.schema)))
            return arguments[tree]

        return self.aggregate_function(node, plain, argument)

    def aggregate_function(
        self, node: Any, read: Callable[[Any], Any], add: Callable[[Any], str]
    ) -> AggregateFunction:
        """An aggregate of the block or of a window.

        Args:
            node: the call, with what is around it.
            read: the tree of an argument with the columns of the relation.
            add: the column of such a tree.
        """
        one, binder = calls.read_call(node), self.binder
        shown = calls.function_name(one.node)
        if not one.function:
            hint = "compute it before the flow, or with Collection.reduce_batches."
            raise binder.refuse(node, f"{shown} is not kept up to date", hint)
        if one.distinct and not one.arguments:
            raise binder.refuse(node, f"{shown} of distinct rows in this clause", "list the columns.")
        if one.unread:
            text = one.unread[0].sql(dialect=parse.dialect())
            raise binder.refuse(one.unread[0], f"{shown} with the argument {text}", "leave it out.")
        if one.ignores and one.function not in _NULLS_COUNT:
            raise binder.refuse(node, f"{shown} IGNORE NULLS", "leave IGNORE NULLS out: it counts no null.")
        condition = None if one.filter is None else read(one.filter)
        if condition is not None:
            self.condition(condition)

        def argument(tree: Any) -> str:
            if condition is not None:
                tree = exp.Case(ifs=[exp.If(this=condition.copy(), true=tree)])
            return add(self.final(tree))

        self._check_order(one, shown)
        inputs, kind = self._typed(node, one, [read(argument_tree) for argument_tree in one.arguments])
        if one.filter is not None and one.function in {"first", "last"}:  # which do not pass over nulls
            inputs = [*inputs, exp.Boolean(this=True)]
        order = tuple(ordering(argument(read(by.this)), by) for by in one.order)
        options = self._options(node, one, kind)
        if (one.function in calls.BESTS and options) or isinstance(next(iter(options), None), tuple):
            kind = array_of(kind)
        return AggregateFunction(
            one.function,
            tuple(argument(argument_tree) for argument_tree in inputs),
            kind,
            one.distinct,
            options,
            order,
        )

    def _check_order(self, one: calls.AggregateCall, shown: str) -> None:
        """Refuse an order that says nothing, one of which distinct values have several, and their mode."""
        own = [each for tree in one.arguments for each in (tree, tree.this)]  # also before a cast
        if one.order and one.function not in _ORDERED:
            hint = "leave it out, as the order of its values says nothing."
            raise self.binder.refuse(one.order[0], f"ORDER BY in {shown}", hint)
        if one.distinct and shown in {"mode", "percentile_cont", "percentile_disc"}:
            hint = "select the distinct values in a subquery of FROM."
            raise self.binder.refuse(one.node, f"{shown} of DISTINCT values", hint)
        if (one.distinct or one.function == "collect_set") and any(by.this not in own for by in one.order):
            hint = "order by the argument, or leave DISTINCT out."
            raise self.binder.refuse(one.order[0], f"{shown} of DISTINCT values in another order", hint)

    def _refuse_outer(self, node: Any, shown: str, arguments: Sequence[Any]) -> None:
        """Refuse an aggregate that reads columns of the query around alone: SQL takes it for one of that.

        Names say whose a column is: in the relation, `WHERE own = outer` has made one column of two.
        """
        assert self._before is not None
        columns = (one for tree in arguments for one in tree.find_all(exp.Column))
        read = [one for one in columns if not isinstance(one.this, exp.Star) and not self._is_variable(one)]
        own = (
            one.meta.get("resolved")
            or self._before.has([part.name for part in one.parts])
            or self.aliased(one) is not None
            for one in read
        )
        if read and not any(own) and not any(map(calls.has_query, arguments)):
            hint = "aggregate in that query, or write the column without the aggregate."
            raise self.binder.refuse(node, f"{shown} of columns of the query around only", hint)

    def _typed(
        self, node: Any, one: calls.AggregateCall, arguments: list[Any]
    ) -> tuple[list[Any], pa.DataType]:
        """The arguments of an aggregate, cast if need be, and the type of its results."""
        if one.function in {"count", "count_if"}:
            arguments = _counted(one, arguments)
        many, typed = TYPES[one.function]
        shown = calls.function_name(one.node)
        if len(arguments) != many if one.function != "count" else not any(one.node.iter_expressions()):
            raise self.binder.refuse(node, f"{shown} of {len(arguments)} arguments", f"give {many}.")
        if not arguments:
            return arguments, pa.int64()
        if one.function in {*PAIRS, *VARIANCES, *SHAPES}:
            arguments = [self._double(node, shown, each) for each in arguments]
        if one.function in PAIRS:  # only pairs of two values count
            some = all_valid(arguments)
            arguments = [tree_of("CASE WHEN some THEN x END", some=some, x=each) for each in arguments]
        kinds = [self.binder.bound(self.final(each), self.relation.schema).type for each in arguments]
        first = kinds[0]
        kind = typed(first)
        for to in (pa.float64(), pa.bool_(), pa.string()):
            fits = is_atomic(first) if pa.types.is_string(to) else pa.types.is_string(first)
            if kind is None and fits and typed(to) == to:
                arguments, kind = [cast_to(arguments[0], to)], to
        if pa.types.is_null(first) and kind not in {pa.null(), pa.list_(pa.field("element", pa.null()))}:
            options = (pa.float64(), pa.bool_(), pa.string(), pa.int32())
            to = next(option for option in options if typed(option) is not None)
            arguments, kind = [cast_to(arguments[0], to), *arguments[1:]], typed(to)
        unsafe = is_float(first) or bool(getattr(first, "tz", None))  # of several such values one text may be
        unordered = one.function in calls.BESTS and has_map(kinds[1])
        unsafe = unsafe and one.function == "string_agg" and one.distinct and bool(one.order)
        if kind is None or unordered or unsafe:
            hint = "cast the argument, or take a part of it."
            raise self.binder.refuse(node, f"{shown} of {', '.join(map(name_of, kinds))}", hint)
        return arguments, kind

    def _double(self, node: Any, shown: str, tree: Any) -> Any:
        """An argument as a double."""
        kind = self.binder.bound(self.final(tree), self.relation.schema).type
        if not (is_number(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)):
            raise self.binder.refuse(node, f"{shown} of {name_of(kind)}", "give two numbers.")
        return cast_to(tree, pa.float64())

    def _options(self, node: Any, one: calls.AggregateCall, kind: pa.DataType) -> tuple[Any, ...]:
        """The constants of an aggregate."""
        shown = calls.function_name(one.node)
        constants = (
            self.binder.constant(value) if isinstance(value, exp.Expression) else value
            for value in one.options
        )
        options = tuple(map(_plain, constants))
        if one.function in calls.PERCENTILES:
            shares = options[0] if options and isinstance(options[0], tuple) else options[:1]
            if not shares or not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
                hint = "write a number from 0 to 1, or an array of several."
                raise self.binder.refuse(node, f"{shown} without a share", hint)
        if pa.types.is_binary(kind) and isinstance(next(iter(options), None), str):
            raise self.binder.refuse(node, f"{shown} of binary with a text between", "write X'2C'.")
        if one.function in calls.BESTS and options and options[0] not in range(1, 100_001):
            raise self.binder.refuse(node, f"{shown} of {options[0]} rows", "give a number from 1 to 100000.")
        return options

    def _expanded(
        self,
        relation: Relation,
        keys: list[str],
        sets: Sequence[Sequence[Any]],
        named: dict[Any, str],
        columns: Sequence[tuple[str, Any]],
    ) -> tuple[Relation, list[str]]:
        """Each row once for each grouping set, with null for the keys that the set lacks."""
        schema, group_id = relation.schema, self.fresh.name("grouping_id")
        self.grouped = group_id, list(named)
        order = list(named.values())
        present = [{named[one] for one in each} for each in sets]
        numbers = [
            sum(1 << n for n, key in enumerate(reversed(order)) if key not in each) for each in present
        ]
        marks: dict[str, Sequence[int]] = {group_id: numbers}
        if len({*numbers}) < len(numbers):  # a set that is listed twice is there twice
            marks[self.fresh.name("grouping_set")] = range(len(numbers))
        parts = []
        for n, each in enumerate(present):
            nulls = {key: self.binder.null(schema.field(key).type, schema) for key in {*order} - each}
            values = [
                (name, self.binder.bound(cast_to(exp.Literal.number(of[n]), pa.int64()), schema))
                for name, of in marks.items()
            ]
            key_columns = ((key, nulls.get(key, key)) for key in keys)
            parts.append(Projection(relation, (*key_columns, *((one, one) for one, _ in columns), *values)))
        return Concat(tuple(parts)), [*keys, *marks]

    def grouping(self, node: Any) -> Any:
        """`grouping(key)` and `grouping_id(keys)`: which keys a grouping set lacks."""
        shown = calls.function_name(node)
        if self.grouped is None or self._before is None:
            hint = "group by ROLLUP, CUBE or GROUPING SETS."
            raise self.binder.refuse(node, f"{shown} without grouping sets", hint)
        column, keys = self.grouped
        trees = [self.known_key(self.final(self.plain(one, self._before))) for one in node.expressions]
        unknown = [one for one, tree in zip(node.expressions, trees, strict=True) if tree not in keys]
        if unknown or (isinstance(node, exp.Grouping) and len(trees) != 1):
            where = unknown[0] if unknown else node
            raise self.binder.refuse(where, f"{shown} of what is not a key", "name one that is in GROUP BY.")
        if isinstance(node, exp.GroupingId) and trees in ([], keys) and keys:
            return column_node(column, node)
        places = [len(keys) - 1 - keys.index(one) for one in trees or keys]
        bits = [
            f"shiftleft(shiftright(x, {shift}) & 1, {len(places) - 1 - n})" for n, shift in enumerate(places)
        ]
        kind = "tinyint" if isinstance(node, exp.Grouping) else "bigint"
        return tree_of(f"CAST({' | '.join(bits) or 0} AS {kind})", x=column)


def _plain(value: Any) -> Any:
    """A constant with doubles for decimals and a tuple for an array."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return float(value) if isinstance(value, Decimal) else value


#: sqlglot's names of the operators whose operands may change places
_COMMUTATIVE = {"Add", "Mul", "And", "Or", "EQ", "NullSafeEQ", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}


def canonical(tree: Any) -> Any:
    """A tree in which the operands of `a + b + c`, and the like, have one order, without parentheses."""

    def ordered(node: Any) -> Any:
        binary = type(node).__name__ in {"EQ", "NullSafeEQ"}
        operands = sorted((node.left, node.right) if binary else node.flatten(), key=lambda one: one.sql())
        return reduce(lambda a, b: type(node)(this=a, expression=b), operands)

    bare = exp.Paren(this=tree.copy())
    for one in list(bare.this.find_all(exp.Paren)):
        one.replace(one.this)
    for one in reversed(list(bare.this.walk(bfs=True))):  # inner ones first
        if type(one).__name__ in _COMMUTATIVE:
            one.replace(ordered(one))
    return bare.this


def _counted(one: calls.AggregateCall, arguments: list[Any]) -> list[Any]:
    """The arguments of `count` and `count_if`, whose values are counted that are not null."""
    if one.function == "count_if":
        return [tree_of("CASE WHEN x THEN true END", x=each) for each in arguments]
    if len(arguments) > 1 and not one.distinct:
        return [all_valid(arguments)]
    return arguments or ([exp.Boolean(this=True)] if one.filter is not None else [])


def _prefixes(parts: Sequence[list[Any]]) -> list[list[Any]]:
    """The grouping sets of `ROLLUP`."""
    return [[one for part in parts[:n] for one in part] for n in range(len(parts), -1, -1)]


def _subsets(parts: Sequence[list[Any]]) -> list[list[Any]]:
    """The grouping sets of `CUBE`."""
    masks = range((1 << len(parts)) - 1, -1, -1)
    return [[one for n, part in enumerate(parts) if mask >> n & 1 for one in part] for mask in masks]


def all_valid(arguments: Sequence[Any]) -> Any:
    """True, or null if one of several values is null."""
    some = exp.or_(*(tree_of("x IS NULL", x=one) for one in arguments))
    return tree_of("CASE WHEN x THEN NULL ELSE true END", x=some)
