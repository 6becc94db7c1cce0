"""Functions that make rows: `explode`, `posexplode`, `inline`, `json_tuple`, `stack`."""

from __future__ import annotations

from collections.abc import Collection as Listed
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from timely_spark.authors import DIFF, flat
from timely_spark.differential.collections import Collection
from timely_spark.graph import Stateless
from timely_spark.queries import calls
from timely_spark.queries.relations import Building, ConstantRows, Needs, Relation
from timely_spark.sql import types
from timely_spark.sql.parse import exp
from timely_spark.sql.types import name_of

if TYPE_CHECKING:
    from timely_spark.queries.binder import Binder

#: by `generator_name` a call: whether rows have a place, and whether a row without elements stays
GENERATORS = {
    "Explode": (False, False),
    "ExplodeOuter": (False, True),
    "Posexplode": (True, False),
    "PosexplodeOuter": (True, True),
    "Inline": (False, False),
    "inline": (False, False),
    "inline_outer": (False, True),
    "json_tuple": (False, False),
    "Stack": (False, False),
}
#: rows of `range(...)` that a plan may have
MOST_ROWS = 100_000


def generator_name(node: Any) -> str:
    """The name of a call among the generators."""
    kind = type(node).__name__.lstrip("_")  # sqlglot has two classes of explode_outer
    return str(node.name.lower()) if kind == "Anonymous" else kind


def is_generator(node: Any) -> bool:
    """Whether a call makes rows."""
    return generator_name(node) in GENERATORS


def elements_of(binder: Binder, node: Any) -> Any:
    """The array, or map, whose elements a generator makes rows of."""
    if isinstance(node, exp.Stack):
        return _stacked(binder, node)
    if generator_name(node) == "json_tuple":
        return exp.Anonymous(this="$json_tuple", expressions=node.expressions)
    arguments = [*([] if isinstance(node, exp.Anonymous) else [node.this]), *node.expressions]
    if len(arguments) != 1:
        problem = f"{calls.function_name(node)} of {len(arguments)} arguments"
        raise binder.refuse(node, problem, "give one array or map.")
    return arguments[0]


def _stacked(binder: Binder, node: Any) -> Any:
    """The array of structs of `stack(rows, values ...)`; values that lack at the end are null."""
    first, *values = [one for one in (node.args.get("this"), *node.expressions) if one is not None]
    rows = binder.constant(first)
    if not isinstance(rows, int) or rows < 1 or not values:
        raise binder.refuse(node, f"stack of {rows} rows", "write stack(2, a, b).")
    width = -(-len(values) // rows)
    values += [exp.Null()] * (rows * width - len(values))
    structs = [
        exp.Anonymous(
            this="named_struct",
            expressions=[
                each for n in range(width) for each in (exp.Literal.string(f"col{n}"), values[at + n])
            ],
        )
        for at in range(0, rows * width, width)
    ]
    return exp.Anonymous(this="$stacked", expressions=structs)


@dataclass(frozen=True, eq=False)
class Generated(Relation):
    """A row for each element of an array, or entry of a map, with columns of its parts.

    A part is ``pos``, the element's number; ``value``, the element; or the number of a field of it.
    """

    input: Relation
    array: str
    #: whether a row without elements stays, with nulls
    outer: bool
    parts: tuple[tuple[str, pa.DataType, str | int], ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The input's columns, and the parts."""
        return pa.schema([*self.input.schema, *((name, kind) for name, kind, _ in self.parts)])

    def needs(self, columns: Needs) -> list[Needs]:
        return [columns.intersection(self.input.schema.names) | {self.array}]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """A step that keeps no state."""
        source = inputs[0]
        schema = pa.schema([*self.schema, (DIFF, pa.int64())])
        stream = source.stream.then(
            "explode",
            [schema],
            vertex=Explode(self.array, self.parts, schema, outer=self.outer),
            keeps={name: name for name in (*source.schema.names, DIFF)},
            detail=self.detail,
            parameters={"outer": True} if self.outer else {},
            own=(DIFF,),
        )[0]
        return source.like(stream)

    @property
    def detail(self) -> str:
        return (
            f"{self.array} as {', '.join(name for name, _, _ in self.parts)}{' outer' if self.outer else ''}"
        )


class Explode(Stateless):
    """Make rows of the elements of a column."""

    def __init__(
        self,
        array: str,
        parts: Sequence[tuple[str, pa.DataType, str | int]],
        schema: pa.Schema,
        *,
        outer: bool,
    ) -> None:
        self.array, self.parts, self.schema, self.outer = array, tuple(parts), schema, outer

    def reads(self, columns: Sequence[str], schema: pa.Schema) -> Listed[str]:
        return {*columns, self.array, DIFF}

    def apply(self, batch: pa.Table) -> tuple[pa.Table, ...]:
        lists = flat(batch.column(self.array))
        valid = lists.is_valid().to_numpy(zero_copy_only=False)
        offsets = lists.offsets.to_numpy().astype(np.int64)
        sizes = np.where(valid, np.diff(offsets), 0)
        many = np.maximum(sizes, 1) if self.outer else sizes
        rows = np.repeat(np.arange(len(sizes)), many)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(many) - many, many)
        missing = sizes[rows] == 0
        elements = lists.values.take(pa.array(np.where(missing, 0, offsets[rows] + place), mask=missing))
        fields = elements.flatten() if pa.types.is_struct(elements.type) else []
        columns = dict(zip(batch.schema.names, batch.take(pa.array(rows)).columns, strict=True))
        for name, kind, part in self.parts:
            if part == "pos":
                columns[name] = pa.array(place, mask=missing).cast(kind)
            else:
                columns[name] = (fields[part] if isinstance(part, int) else elements).cast(kind)
        return (pa.table([columns[one.name] for one in self.schema], schema=self.schema),)


def parts_of(binder: Binder, node: Any, kind: pa.DataType) -> list[tuple[str, pa.DataType, str | int]]:
    """The columns that a generator makes of values of a type, with the names that Spark gives them."""
    name = generator_name(node)
    with_place, _ = GENERATORS[name]
    position: list[tuple[str, pa.DataType, str | int]] = [("pos", pa.int32(), "pos")] if with_place else []
    if pa.types.is_map(kind):
        return [*position, ("key", kind.key_type, 0), ("value", kind.item_type, 1)]
    if not types.is_array(kind):
        shown = calls.function_name(node)
        raise binder.refuse(node, f"{shown} of {name_of(kind)}", "give an array or a map.")
    if name.lower().startswith(("inline", "json", "stack")):
        if not pa.types.is_struct(kind.value_type):
            raise binder.refuse(node, f"inline of {name_of(kind)}", "give an array of structs.")
        return [(one.name, one.type, n) for n, one in enumerate(kind.value_type)]
    return [*position, ("col", kind.value_type, "value")]


def rows_of_range(binder: Binder, node: Any) -> ConstantRows:
    """The rows of `range(end)` and `range(start, end, step)`."""
    bounds = [binder.constant(one) for one in node.expressions]
    whole = 1 <= len(bounds) <= 4 and all(isinstance(one, int) for one in bounds)
    start, end, step, *_ = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1, 1, 1)
    if not whole or not step:
        hint = "write range(end), range(start, end) or range(start, end, step)."
        raise binder.refuse(node, "range of other than whole numbers, or with step 0", hint)
    rows = max(0, -((start - end) // step))
    if rows > MOST_ROWS:
        raise binder.refuse(node, f"range of {rows:,} rows", f"give a table of more than {MOST_ROWS:,}.")
    return ConstantRows(pa.schema([("id", pa.int64())]), tuple((one,) for one in range(start, end, step)))
