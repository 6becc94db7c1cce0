"""`BlockNames`: a block's relation, and the names and expressions that its clauses may use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from timely_spark.errors import SqlError
from timely_spark.queries.binder import UNIT, Binder, Domain, Views, column_node
from timely_spark.queries.relations import Projection, Relation
from timely_spark.queries.scopes import Ambiguous, Fresh, VisibleColumns
from timely_spark.queries.time_windows import with_time_windows
from timely_spark.sql.binder import near
from timely_spark.sql.types import name_of

if TYPE_CHECKING:
    from sqlglot import exp


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
        self._aliases: dict[str, Any] = {}
        self._variables: set[str] = set()

    def window_clauses(self) -> dict[str, Any]:
        """The windows of the clause `WINDOW`, by their names."""
        return {one.name.lower(): one for one in self.node.args.get("windows") or ()}

    def condition(self, node: exp.Expression) -> Any:
        """A bound condition."""
        made = self.binder.bound(self.final(node), self.relation.schema)
        if made.type not in {pa.bool_(), pa.null()}:
            raise self.binder.refuse(
                node, f"{made} is {name_of(made.type)}, not boolean", "write a condition."
            )
        return made if made.type == pa.bool_() else self.binder.null(pa.bool_(), self.relation.schema)

    # -- names -----------------------------------------------------------------------------------------------

    def final(self, node: Any) -> Any:
        """A tree in which columns that joins have dropped are those that equal them."""
        from sqlglot import exp

        if not self.same:
            return node
        made = node.copy()
        for one in list(made.find_all(exp.Column)) if not isinstance(made, exp.Column) else [made]:
            one.set("this", exp.to_identifier(self.final_name(one.name), quoted=True))
        return made

    def final_name(self, column: str) -> str:
        """The column that a column has become."""
        while column in self.same:
            column = self.same[column]
        return column

    def named(self, node: Any, names: VisibleColumns | None = None) -> Any:
        """The column, or the field of one, that a name means."""
        from sqlglot import exp

        names = names or self.names
        parts = [one.name for one in node.parts]
        if node.meta.get("resolved"):
            column = self.final_name(node.name)
            if names is self.names and self.computed is not None and column not in self.relation.schema.names:
                raise self._unknown(node, parts, names)
            return column_node(column, node)
        try:
            found = names.find(parts)
        except Ambiguous as error:
            tables = ", ".join(f"{one.table}.{one.name}" for one in error.entries)
            raise self.binder.refuse(
                node, f"{'.'.join(parts)} is ambiguous", f"write one of {tables}."
            ) from None
        if found is None:
            if (alias := self._aliases.get(parts[0].lower())) is not None:
                of: exp.Expression = self._of_alias(node, alias, names)
                for part in parts[1:]:
                    of = exp.Dot(this=of, expression=exp.to_identifier(part))
                return of
            raise self._unknown(node, parts, names)
        entry, used = found
        made: exp.Expression = column_node(self.final_name(entry.column), node)
        for part in parts[used:]:
            made = exp.Dot(this=made, expression=exp.to_identifier(part))
        return made

    def _of_alias(self, node: Any, alias: Any, names: VisibleColumns) -> Any:
        """The expression of another column of the result, as Spark lets names of its aliases be used."""
        name = node.parts[0].name.lower()
        kept, self._aliases = self._aliases, {n: of for n, of in self._aliases.items() if n != name}
        try:
            return self.rewritten(alias) if names is self.names else self.plain(alias, names)
        finally:
            self._aliases = kept

    def _unknown(self, node: Any, parts: Sequence[str], names: VisibleColumns) -> SqlError:
        known = list(names.all_known())
        text = ".".join(parts)
        if self._before is not None and names is self.names and self._before.find(parts) is not None:
            hint = f"add it to GROUP BY, or write an aggregate, such as any_value({text})."
            return self.binder.refuse(node, f"{text} is neither in GROUP BY nor in an aggregate", hint)
        listed = list(
            dict.fromkeys(f"{one.table}.{one.name}" if len(parts) > 1 else one.name for one in known)
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
        from sqlglot import exp

        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            return node if self._is_variable(node) else self.named(node, names)
        return self._rebuilt(node, lambda one: self.plain(one, names))

    def _is_variable(self, node: Any) -> bool:
        return node.name in self._variables and len(node.parts) == 1

    def _rebuilt(self, node: Any, each: Callable[[Any], Any]) -> Any:
        """A node whose children are rewritten; a lambda's variables are no columns."""
        from sqlglot import exp

        if not isinstance(node, exp.Expression):
            return node
        before = self._variables
        if isinstance(node, exp.Lambda):
            self._variables = before | {one.name for one in node.expressions}
        arguments = {}
        for key, value in node.args.items():
            if isinstance(value, list):
                arguments[key] = [each(one) if isinstance(one, exp.Expression) else one for one in value]
            else:
                arguments[key] = each(value) if isinstance(value, exp.Expression) else value
        self._variables = before
        made = type(node)(**arguments)
        made.meta.update(node.meta)
        return made

    def add(self, node: exp.Expression, wanted: str) -> str:
        """The column of the relation with an expression's values, which is added if there is none."""
        made = self.binder.column(self.final(node), self.relation.schema)
        if isinstance(made, str):
            return made
        name = self.fresh.name(wanted)
        kept = [(one, one) for one in self.relation.schema.names]
        self.relation = Projection(self.relation, (*kept, (name, made)))
        return name
