"""Queries of any form: blocks, set operations, `WITH`, `VALUES`, and tables."""

from __future__ import annotations

from typing import Any

from timely_spark.queries.binder import ORDERS, Binder, BoundQuery, Domain, Views
from timely_spark.queries.blocks import Block
from timely_spark.queries.recursion import with_queries
from timely_spark.queries.scopes import VisibleColumns
from timely_spark.sql import parse
from timely_spark.sql.parse import exp


class QueryBinder(Binder):
    """Binds queries: each form by its part."""

    def query(
        self, node: Any, views: Views, around: VisibleColumns | None = None, domain: Domain | None = None
    ) -> BoundQuery:
        """A query of any form.

        Args:
            node: its tree.
            views: the tables and queries that have a name.
            around: the names of the block around a subquery.
            domain: the rows of the blocks around it that it reads.
        """
        if (ctes := node.args.get("with_")) is not None:
            views = with_queries(self, ctes, views, around)
        with self.clause(node):
            match node:
                case exp.Select():
                    return Block(self, node, views, around, domain).answer()
                case exp.SetOperation() | exp.Subquery() if any(node.args.get(one) for one in ORDERS):
                    return Block(self, _as_block(node), views, around, domain).answer()
                case exp.SetOperation():
                    return self.compared(node, views, around, domain)
                case exp.Subquery():
                    return self.query(node.this, views, around, domain)
                case exp.Values():
                    return self.with_values(node, domain)
                case exp.Table():
                    return Block(self, exp.select("*").from_(node), views, around, domain).answer()
        text = node.sql(dialect=parse.dialect()) if isinstance(node, exp.Expression) else str(node)
        raise self.refuse(node, f"{text.split()[0]} is not a query", "write SELECT, VALUES or WITH.")


def _as_block(node: Any) -> exp.Select:
    """A set operation, or a query in parentheses, that is ordered, as a block over it."""
    tree = node.copy()
    clauses = {one: tree.args.pop(one, None) for one in ORDERS}
    tree.set("with_", None)
    block = exp.select("*").from_(tree if isinstance(tree, exp.Subquery) else exp.Subquery(this=tree))
    for one, clause in clauses.items():
        block.set(one, clause)
    return block
