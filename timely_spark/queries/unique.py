"""Columns in which no two rows of a relation agree, derived from its operators."""

from __future__ import annotations

from timely_spark.queries.relations import (
    Aggregation,
    Compared,
    ConstantRows,
    Distinct,
    Limit,
    Matched,
    Named,
    Projection,
    Recursion,
    Relation,
    RelationJoin,
    Selection,
    Window,
)


def unique_columns(relation: Relation) -> frozenset[str] | None:  # noqa: PLR0911 - a table
    """Columns that no two rows agree in, no columns for one row at most; None if they are not known."""
    match relation:
        case Distinct() | Compared(all=False) | Named():
            return frozenset(relation.schema.names)
        case Aggregation(keys=keys):
            return frozenset(keys)
        case Projection(input=of, columns=columns):
            return _renamed(unique_columns(of), columns)
        case Selection() | Limit() | Window():
            return unique_columns(relation.inputs[0])
        case Matched() | RelationJoin(how="semi" | "anti"):
            return unique_columns(relation.inputs[0])
        case RelationJoin(how="inner", left=left, right=right):
            left_unique, right_unique = unique_columns(left), unique_columns(right)
            if left_unique is None or right_unique is None:
                return None
            same = dict(zip(relation.right_keys, relation.left_keys, strict=True))
            return left_unique | {same.get(one, one) for one in right_unique}
        case Recursion(name=name, names=names, bodies=bodies):
            # rows of `Named` differ if those of all bodies do, as one body may read another's rows
            unique = [unique_columns(body) for body in bodies]
            return None if None in unique else unique[names.index(name)]
        case ConstantRows(rows=rows):
            return frozenset() if len(rows) < 2 else None
    return None


def _renamed(
    columns: frozenset[str] | None, projected: tuple[tuple[str, object], ...]
) -> frozenset[str] | None:
    if columns is None:
        return None
    new = {column: name for name, column in reversed(projected) if isinstance(column, str)}
    return frozenset(new[one] for one in columns) if columns <= new.keys() else None
