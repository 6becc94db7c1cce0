"""`BlockNames`: a block's relation, and the names and expressions that its clauses may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.queries.binder import UNIT, Binder, Domain, Views, cast_to, column_node
from timely_spark.queries.relations import Relation, with_columns
from timely_spark.queries.scopes import Ambiguous, Fresh, NamedColumn, VisibleColumns
from timely_spark.queries.time_windows import with_time_windows
from timely_spark.sql import parse
from timely_spark.sql.binder import OF_SEVERAL_ROWS, SPECIAL, near, no_function
from timely_spark.sql.parse import exp
from timely_spark.sql.registry import FUNCTIONS
from timely_spark.sql.types import common_of, is_decimal, is_float, is_number, name_of


class BlockNames(ABC):
    """The state of a block that is bound.

    `Subqueries`, `FromItems`, `Joins`, `Aggregating` and `Block` bind its clauses, in this order.
    """

    def __init__(
        self, binder: Binder, node: Any, views: Views, around: VisibleColumns | None, domain: Domain | None
    ) -> None:
        self.binder, self.views, self.around, self.domain = binder, views, around, domain
        self.node, self.window = with_time_windows(binder, node)
        self.fresh = Fresh()
        self.names = VisibleColumns([], [], around)
        self.relation: Relation = UNIT
        #: columns that a join has made one
        self.same: dict[str, str] = {}
        #: the names in conditions of WHERE that were tested before a join
        self.tested_early: list[Any] = []
        #: conditions of inner joins that have subqueries: they are tested after all joins
        self.asked_by_on: list[Any] = []
        #: after the aggregates: their columns, and those of the keys, by what they compute
        self.computed: dict[Any, str] | None = None
        self.windows: dict[Any, str] = {}
        #: aggregates of this block that its subqueries read, by their names there
        self.of_subqueries: dict[str, Any] = {}
        #: the keys of groups, by their canonical form; and those that have subqueries
        self.keys_by_form: dict[Any, Any] = {}
        self.keys_of_queries: dict[Any, str] = {}
        #: with grouping sets, the column that tells them apart, and the keys that its bits stand for
        self.grouped: tuple[str, list[Any]] | None = None
        self._before: VisibleColumns | None = None
        self._types_only = False
        #: the tables and names of the columns that GROUP BY names
        self.grouped_by: set[tuple[str, str]] = set()
        #: the selected expressions, each with its alias
        self.items: list[tuple[str | None, Any]] = []
        self._aliases: dict[str, Any] = {}
        self._variables: set[str] = set()

    def window_clauses(self) -> dict[str, Any]:
        """The windows of the clause `WINDOW`, by their names."""
        named: dict[str, Any] = {}
        for one in self.node.args.get("windows") or ():
            if named.setdefault(one.name.lower(), one) is not one:
                raise self.binder.refuse(one, f"two windows {one.name}", "give one another name.")
        return named

    def condition(self, node: exp.Expression, *, casts: bool = False) -> Any:
        """A bound condition; a value of another type is cast to one, or refused."""
        term = self.binder.bound(self.final(node), self.relation.schema)
        if casts and term.type != pa.bool_():
            return self.binder.bound(cast_to(self.final(node), pa.bool_()), self.relation.schema)
        if term.type != pa.bool_():
            raise self.binder.refuse(
                node, f"{term} is {name_of(term.type)}, not boolean", "write a condition."
            )
        return term

    # -- names -----------------------------------------------------------------------------------------------

    def final(self, node: Any) -> Any:
        """A tree in which columns that joins have dropped are those that equal them."""
        return renamed(node, self.final_name) if self.same else node

    def final_name(self, column: str) -> str:
        """The column that a column has become."""
        while column in self.same:
            column = self.same[column]
        return column

    def named(self, node: Any, names: VisibleColumns | None = None) -> Any:
        """The column, or the field of one, that a name means."""
        names = names or self.names
        parts = [one.name for one in node.parts]
        if node.meta.get("resolved"):
            column = self.final_name(node.name)
            if names is self.names and self.computed is not None and column not in self.relation.schema.names:
                raise self._unknown(node, parts, names)
            return column_node(column, node)
        alias = self.aliased(node)
        # another column of the result comes before those of the blocks around; so does one that is not a key
        lost = self._before is not None and names is self.names and self._before.has(parts)
        other = not names.has(parts) and (alias is not None or lost)
        match = None if other else self._entry_of(node, parts, names)
        if match is None:
            if alias is not None:
                if lost and self._types_only and len(parts) == 1 and self._before is not None:
                    ((entry, _),) = filter(None, [self._before.find(parts)])
                    return cast_to(exp.null(), entry.type)  # Spark casts as of the input
                self._refuse_repeated(node, parts[0])
                aliased: exp.Expression = self._of_alias(node, alias, names)
                if lost and not self._types_only:
                    self._refuse_other_type(node, aliased)
                for part in parts[1:]:
                    aliased = exp.Dot(this=aliased, expression=exp.to_identifier(part))
                return aliased
            raise self._unknown(node, parts, names)
        entry, used = match
        tree: exp.Expression = column_node(self.final_name(entry.column), node)
        if entry.column != entry.name:  # another table has such a column
            tree.meta[parse.WRITTEN] = ".".join(f"`{part}`" for part in parts[:used])
        for part in parts[used:]:
            tree = exp.Dot(this=tree, expression=exp.to_identifier(part))
        return tree

    def _entry_of(
        self, node: Any, parts: Sequence[str], names: VisibleColumns
    ) -> tuple[NamedColumn, int] | None:
        """The column of a name, and how many of its parts name it."""
        try:
            return names.find(parts)
        except Ambiguous as error:
            columns = {(one.table.lower(), one.name.lower()): one for one in error.entries}
            hint = f"write one of {', '.join(f'{one.table}.{one.name}' for one in columns.values())}."
            if len(columns) == 1 or not all(one.table for one in error.entries):
                hint = "give each table, and each of its columns, a name of its own by AS."
            raise self.binder.refuse(node, f"{'.'.join(parts)} is ambiguous", hint) from None

    def aliased(self, node: Any) -> Any:
        """The selected expression that a name is the alias of: in a selected one, one of those before it."""
        parts = [one.name for one in node.parts]
        alias = self._aliases.get(parts[0].lower())
        if alias is None:
            return None
        places = {id(tree): n for n, (_, tree) in enumerate(self.items)}
        while node is not None and id(node) not in places:
            node = node.parent
        if node is None:
            return alias
        hidden = self._before is not None and self._before.has(parts)
        return None if hidden or places.get(id(alias), -1) >= places[id(node)] else alias

    def refuse_ambiguous(self, columns: Iterable[Any]) -> None:
        """Refuse names that are those of several columns."""
        for one in columns:
            self._entry_of(one, [part.name for part in one.parts], self.names)

    def _refuse_repeated(self, node: Any, name: str) -> None:
        """Refuse an alias that several selected expressions have."""
        if sum((alias or "").lower() == name.lower() for alias, _ in self.items) > 1:
            hint = "give each selected expression an alias of its own."
            raise self.binder.refuse(node, f"{name} is ambiguous: several expressions have this alias", hint)

    def _refuse_other_type(self, node: Any, aliased: Any) -> None:
        """Refuse in HAVING a result of another type than a column of its name, as which Spark compares it."""
        assert self._before is not None
        parts, schema, beside = [one.name for one in node.parts], self.relation.schema, _beside(node)
        self._types_only = True  # of the names beside it
        try:
            entry, used = self._before.find(parts) or (None, 0)
            trees = [aliased, *map(self.rewritten, beside)]
            result, *others = (self.binder.bound(self.final(tree), schema).type for tree in trees)
        except (Ambiguous, SqlError):  # which the names themselves end in
            return
        finally:
            self._types_only = False
        one_of = isinstance(node.parent, exp.In)
        if entry is None or not beside or _compared_alike(entry.type, result, others, one_of=one_of):
            return
        column, kind = ".".join(parts[:used]), name_of(entry.type)
        problem = f"{column} is {name_of(result)} in the result and {kind} in the input"
        hint = f"give the expression another alias, as Spark compares it as {kind}."
        raise self.binder.refuse(node, problem, hint)

    def _of_alias(self, node: Any, alias: Any, names: VisibleColumns) -> Any:
        """The expression of another column of the result, as Spark lets names of its aliases be used."""
        name = node.parts[0].name.lower()
        aliases, self._aliases = self._aliases, {n: tree for n, tree in self._aliases.items() if n != name}
        try:
            return self.rewritten(alias) if names is self.names else self.plain(alias, names)
        finally:
            self._aliases = aliases

    def _unknown(self, node: Any, parts: Sequence[str], names: VisibleColumns) -> SqlError:
        candidates = list(names.all_known())
        text = ".".join(parts)
        if self._before is not None and names is self.names and self._entry_of(node, parts, self._before):
            call = node
            while (call := call.find_ancestor(exp.Anonymous)) is not None:
                over = OF_SEVERAL_ROWS if isinstance(call.parent, exp.Window | exp.Filter) else ()
                if call.name.lower() not in {*FUNCTIONS, *SPECIAL, *over, *self.binder.functions}:
                    return self.binder.refuse(call, *no_function(call.name.lower(), self.binder.functions))
            hint = f"add it to GROUP BY, or write an aggregate, such as any_value({text})."
            return self.binder.refuse(node, f"{text} is neither in GROUP BY nor in an aggregate", hint)
        listed = list(
            dict.fromkeys(f"{one.table}.{one.name}" if len(parts) > 1 else one.name for one in candidates)
        )
        hint = near(text, listed) or f"the columns are: {', '.join(listed) or 'none'}."
        return self.binder.refuse(node, f"no column {text}", hint)

    # -- expressions -----------------------------------------------------------------------------------------

    @abstractmethod
    def rewritten(self, node: Any) -> Any:
        """A tree with the columns of the relation: those of aggregates, windows and subqueries, too.

        A subquery extends the relation.
        """

    def plain(self, node: Any, names: VisibleColumns) -> Any:
        """A tree with the columns of a relation, of an expression without aggregates and subqueries."""
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            return node if self._is_variable(node) else self.named(node, names)
        return self._rebuilt(node, lambda one: self.plain(one, names))

    def _is_variable(self, node: Any) -> bool:
        return not node.meta.get("resolved") and node.parts[0].name.lower() in self._variables

    def _rebuilt(self, node: Any, each: Callable[[Any], Any]) -> Any:
        """A node whose children are rewritten; a lambda's variables are not columns."""
        if not isinstance(node, exp.Expression):
            return node
        before = self._variables
        if isinstance(node, exp.Lambda):
            self._variables = before | {one.name.lower() for one in node.expressions}
        arguments = {}
        for key, value in node.args.items():
            if isinstance(value, list):
                arguments[key] = [each(one) if isinstance(one, exp.Expression) else one for one in value]
            else:
                arguments[key] = each(value) if isinstance(value, exp.Expression) else value
        self._variables = before
        tree = type(node)(**arguments)
        tree.meta.update(node.meta)
        return tree

    def add(self, node: exp.Expression, wanted: str) -> str:
        """The column with an expression's values, which is added to the relation if it lacks it."""
        column = self.binder.column(self.final(node), self.relation.schema)
        if isinstance(column, str):
            return column
        name = self.fresh.name(wanted)
        self.relation = with_columns(self.relation, (name, column))
        return name


def _beside(node: Any) -> list[Any]:
    """The expressions for which Spark may cast a name: those beside it in its comparison."""
    beside: list[Any] = []
    while isinstance(parent := node.parent, exp.Expression):
        if isinstance(parent, _NEVER_CAST):
            return []
        if isinstance(parent, exp.Having | exp.Connector | exp.Not | exp.Cast):
            break
        beside += [one for one in parent.iter_expressions() if one is not node]
        if isinstance(parent, exp.Predicate):
            break
        node = parent
    return beside


_NEVER_CAST = (exp.Is, exp.Like, exp.ILike, exp.RegexpLike)


def _compared_alike(
    column: pa.DataType, result: pa.DataType, others: Sequence[pa.DataType], *, one_of: bool
) -> bool:
    """Whether the casts of a column beside others leave a result as it is; Spark casts each that is `IN`."""
    if pa.types.is_integer(result) and (is_number(column) or column == pa.string()):
        return True
    if not all(map(is_number, [column, result, *others])):
        return column == result or {*others} == {column}
    kind = common_of([column, *others])
    assert kind is not None  # numbers have one
    if is_float(kind) or (kind == column and not one_of):
        return True
    return kind == result or (is_decimal(kind) and is_decimal(result) and result.scale <= kind.scale)


def renamed(node: Any, name: Callable[[str], str]) -> Any:
    """A tree with other names of the relation's columns; variables of lambdas keep theirs."""
    tree = node.copy()
    for one in list(tree.find_all(exp.Column)):
        if one.meta.get("resolved"):
            one.set("this", column_node(name(one.name), one).this)
    return tree
