"""Conditions as syntax trees: split at `AND`, and what all alternatives of an `OR` share."""

from __future__ import annotations

from typing import Any

from timely_spark.sql.parse import exp


def conjuncts(node: Any) -> list[Any]:
    """The conditions that must all hold; those that all alternatives of an `OR` have are taken out of it."""
    if isinstance(node, exp.Paren):
        inner = conjuncts(node.this)
        return inner if len(inner) > 1 or not isinstance(inner[0], exp.Or) else [node]
    if isinstance(node, exp.And):
        return [each for one in node.flatten(unnest=False) for each in conjuncts(one)]
    if isinstance(node, exp.Not) and isinstance(bare(node.this), exp.Or):
        inside = bare(node.this)
        sides = (exp.Not(this=exp.Paren(this=side)) for side in (inside.this, inside.expression))
        return [one for side in sides for one in conjuncts(side)]
    return [node]


def bare(node: Any) -> Any:
    """A tree without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _alternatives(node: Any) -> list[Any]:
    node = bare(node)
    sides = (node.this, node.expression) if isinstance(node, exp.Or) else ()
    return [one for side in sides for one in _alternatives(side)] or [node]


def factored(node: Any) -> list[Any]:
    """A condition, and before it those that all of its alternatives have: keys of joins are among these."""
    sides = [[bare(one) for one in conjuncts(side)] for side in _alternatives(node)]
    if len(sides) < 2:
        return [node]
    return [*(one for one in sides[0] if all(one in other for other in sides[1:])), node]
