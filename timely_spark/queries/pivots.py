"""`PIVOT` as aggregates of the rows of each value; `UNPIVOT` as rows of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from timely_spark.queries import calls
from timely_spark.queries.binder import Binder, cast_to, tree_of
from timely_spark.sql import parse
from timely_spark.sql.parse import exp


def pivoted(binder: Binder, node: Any, columns: Sequence[str]) -> Any:
    """The query that a table with `PIVOT` or `UNPIVOT` is.

    The groups of `PIVOT` are the columns that neither the aggregates nor `FOR` read. Columns that `UNPIVOT`
    does not read are in each of its rows.

    Args:
        binder: for mistakes.
        node: the table or subquery.
        columns: the names of its columns.
    """
    (pivot, *more) = node.args["pivots"]
    if more or len(pivot.args["fields"]) != 1:
        raise binder.refuse(node, "several PIVOT", "select each in a subquery of FROM.")
    (field,) = pivot.args["fields"]
    source = node.copy()
    source.set("pivots", None)
    if pivot.args.get("unpivot"):
        return _unpivoted(pivot, field, source, columns)
    keys = field.this.expressions if isinstance(field.this, exp.Tuple) else [field.this]
    read = {
        one.name.lower()
        for expression in (*pivot.expressions, *keys)
        for one in expression.find_all(exp.Column)
    }
    groups = [exp.column(exp.to_identifier(one, quoted=True)) for one in columns if one.lower() not in read]
    selected: list[Any] = [*groups]
    for value in field.expressions:
        expression = value.this if isinstance(value, exp.PivotAlias | exp.Alias) else value
        values = expression.expressions if isinstance(expression, exp.Tuple) else [expression]
        if len(keys) != len(values):
            raise binder.refuse(value, f"FOR of {len(keys)} columns IN {len(values)} values", "give as many.")
        pairs = zip(keys, values, strict=True)
        written = binder.constant(cast_to(expression, pa.string()))
        text = value.alias or ("null" if written is None else written)
        here = exp.and_(*(exp.NullSafeEQ(this=a.copy(), expression=b.copy()) for a, b in pairs), copy=False)
        for aggregate in pivot.expressions:
            tree = aggregate.this if isinstance(aggregate, exp.Alias) else aggregate
            filtered = _filtered(exp.Paren(this=tree.copy()), here)
            case = "CASE WHEN count(*) FILTER (WHERE here) > 0 THEN x END"
            column = tree_of(case, here=here, x=filtered)
            of = aggregate.alias or tree.sql(dialect=parse.dialect()).lower()
            name = f"{text}_{of}" if len(pivot.expressions) > 1 else text
            selected.append(exp.alias_(column, name, quoted=True))
    query = exp.select(*selected, dialect=parse.dialect()).from_(source)
    if not any(any(calls.aggregates_in(one)) for one in pivot.expressions):
        raise binder.refuse(
            pivot.expressions[0], "PIVOT without an aggregate", "write sum(...), or max(...)."
        )
    return query.group_by(*groups) if groups else query


def _unpivoted(pivot: Any, field: Any, source: Any, columns: Sequence[str]) -> Any:
    """A row for each group of columns, with the group's name; without those whose values are all null."""

    def parts(node: Any) -> list[Any]:
        return node.expressions if isinstance(node, exp.Tuple) else [node]

    view = "rows of unpivot"
    values, structs, read = parts(pivot.expressions[0]), [], set[str]()
    for one in field.expressions:
        read_columns = parts(one.this if isinstance(one, exp.PivotAlias) else one)
        read |= {column.name.lower() for column in read_columns}
        label = one.alias or "_".join(column.name for column in read_columns)
        named = zip(
            ("name", *(f"value {n}" for n in range(len(read_columns)))),
            (exp.Literal.string(label), *read_columns),
            strict=True,
        )
        pairs = [each for name, of in named for each in (exp.Literal.string(name), of.copy())]
        structs.append(exp.Anonymous(this="named_struct", expressions=pairs))
    call = exp.Anonymous(this="inline", expressions=[exp.Anonymous(this="array", expressions=structs)])
    names = [exp.to_identifier(one.name, quoted=True) for one in (field.this, *values)]
    alias = exp.TableAlias(this=exp.to_identifier(view, quoted=True), columns=names)
    selected = [exp.column(one.copy(), exp.to_identifier(view, quoted=True)) for one in names]
    others = [exp.column(exp.to_identifier(one, quoted=True)) for one in columns if one.lower() not in read]
    query = exp.select(*others, *selected).from_(source)
    query.set("laterals", [exp.Lateral(this=call, view=True, alias=alias)])
    if pivot.args.get("include_nulls"):
        return query
    return query.where(exp.or_(*(one.copy().is_(exp.null()).not_() for one in selected[1:])), copy=False)


def _filtered(tree: Any, condition: Any) -> Any:
    """A tree whose aggregates read the rows of a condition."""
    for one in list(calls.aggregates_in(tree)):
        one.replace(exp.Filter(this=one.copy(), expression=exp.Where(this=condition.copy())))
    return tree
