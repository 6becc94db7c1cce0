"""Joins of several tables in a circle, such as triangles, as one step: `ts.wcoj`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from timely_spark.differential.collections import Collection
from timely_spark.differential.delta_queries import wcoj
from timely_spark.queries.conditions import bare
from timely_spark.queries.relations import Building, Nary, Needs, Projection
from timely_spark.queries.scopes import FromItem
from timely_spark.sql import types
from timely_spark.sql.parse import exp

NO_CYCLE = "no three tables of plain columns are joined in a cycle by equal columns of one type"


def cycle(parts: Sequence[AbstractSet[str]]) -> list[int]:
    """The sets of attributes that are in a cycle: what is left if those go that share all with another one.

    >>> cycle([{"a", "b"}, {"b", "c"}, {"c", "a"}, {"c", "d"}]), cycle([{"a", "b"}, {"b", "c"}])
    ([0, 1, 2], [])
    """
    left = dict(enumerate(parts))
    while left:
        uses = Counter(attribute for one in left.values() for attribute in one)
        shared = {n: {each for each in one if uses[each] > 1} for n, one in left.items()}
        ears = (n for n, one in shared.items() if not one or any(one <= left[m] for m in left if m != n))
        ear = next(ears, None)
        if ear is None:
            break
        del left[ear]
    return [*left]


def in_cycle(
    parts: Sequence[FromItem], conditions: Sequence[Any], final: Callable[[str], str], same: dict[str, str]
) -> tuple[list[FromItem], list[Any], str]:
    """The parts, with one of those that are joined in a cycle; the conditions that it fulfils; or why none.

    Args:
        final: the name that a column has in the parts.
        same: gets the columns that others stand for.
    """
    schemas = [part.relation.schema for part in parts]
    owner = {name: n for n, schema in enumerate(schemas) for name in schema.names}
    kinds = {one.name: one.type for schema in schemas for one in schema}
    usable, problems = [], []
    for one in conditions:
        equality = bare(one)
        sides = (equality.this, equality.expression) if isinstance(equality, exp.EQ) else ()
        names = [final(side.name) for side in sides if isinstance(side, exp.Column)]
        if len(names) < 2:
            continue
        left, right = (kinds[name] for name in names)
        if left == right and _is_exact(left):
            usable.append((one, *names))
        else:
            shown = dict.fromkeys(types.name_of(kind) for kind in (left, right))
            problems.append(f"{names[0]} = {names[1]} compares {' with '.join(shown)}")
    groups = {name: name for name in owner}
    for _, a, b in usable:
        groups = {name: groups[a] if group == groups[b] else group for name, group in groups.items()}
    many = Counter(groups.values())
    inside = cycle(
        [{group for name in schema.names if many[group := groups[name]] > 1} for schema in schemas]
    )
    members = [parts[n] for n in inside]
    if len(inside) < 3 or any(
        one.outer or any(map(pa.types.is_nested, one.relation.schema.types)) for one in members
    ):
        return [*parts], [], "; ".join([NO_CYCLE, *problems])
    first: dict[str, str] = {}
    for name in (each for one in members for each in one.relation.schema.names):
        same |= {name: leader} if (leader := first.setdefault(groups[name], name)) != name else {}
    leaders = [(name, first[groups[name]]) for one in members for name in one.relation.schema.names]
    times = Counter(leader for _, leader in leaders)
    attributes = tuple((name, leader) for name, leader in leaders if times[leader] > 1)
    relation = CyclicJoin(tuple(one.relation for one in members), attributes)
    item = FromItem(relation, [each for one in members for each in one.entries], [])
    done = [one for one, a, b in usable if {owner[a], owner[b]} <= {*inside}]
    return [item, *(one for n, one in enumerate(parts) if n not in inside)], done, ""


def _is_exact(kind: pa.DataType) -> bool:
    """Whether equal values of a type are the same bytes."""
    of = pa.types
    return bool(of.is_integer(kind) or of.is_string(kind) or of.is_boolean(kind) or of.is_temporal(kind))


@dataclass(frozen=True, eq=False)
class CyclicJoin(Nary):
    """The rows of several relations that agree in the columns that are one attribute.

    `attributes` has each column that equals another one, with the first of those that are equal.
    """

    attributes: tuple[tuple[str, str], ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns of all parts, of equal ones the first."""
        of = dict(self.attributes)
        return pa.schema(
            [one for part in self.parts for one in part.schema if of.get(one.name) in {None, one.name}]
        )

    def needs(self, columns: Needs) -> list[Needs]:
        wanted = columns | {column for column, _ in self.attributes}
        return [wanted.intersection(part.schema.names) for part in self.parts]

    def build(self, building: Building, *inputs: Collection) -> Collection:
        """Delta queries; parts that rename one relation share its indexes."""
        of, operands = dict(self.attributes), []
        for part, own in zip(self.parts, inputs, strict=True):
            names = {name: name for name in part.schema.names}
            if isinstance(part, Projection) and part.renames:
                renamed = {str(column): name for name, column in part.columns}
                if len(renamed) == len(names):
                    own, names = building.collection(part.input), renamed  # noqa: PLW2901
            operands.append((own, {column: of.get(name, name) for column, name in names.items()}))
        return wcoj(operands).select(*self.schema.names)

    @property
    def detail(self) -> str:
        return " and ".join(f"{one} = {other}" for one, other in self.attributes if one != other)
