"""Which columns of each relation are read: others are dropped before they are exchanged and stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from timely_spark.queries.relations import Projection, Recursion, Relation, Selection, selected

#: operators that keep no state, and pass columns on as they are
_PASS = (Selection, Projection)


def narrowed(roots: Sequence[Relation]) -> list[Relation]:
    """The relations, without columns that nothing reads.

    A relation that several read keeps what any of them reads, so it is built once.
    """
    order, needed = _needed_columns(roots)
    readers = Counter(input_ for one in order for input_ in one.inputs)
    #: what one relation reads
    read_once: set[Relation] = set()
    narrow: dict[Relation, Relation] = {}
    for one in order:
        read_once.update(narrow[input_] for input_ in one.inputs if readers[input_] < 2)
        inputs = [narrow[input_] for input_ in one.inputs]
        if not isinstance(one, (*_PASS, Recursion)):
            wanted = one.needs(needed[one])
            inputs = [_only(input_, columns, one) for input_, columns in zip(inputs, wanted, strict=True)]
        narrow[one] = _simple(one.over(inputs).narrowed(needed[one]), read_once) if inputs else one
    return [_exactly(narrow[root], root.schema.names, root) for root in roots]


def _needed_columns(roots: Sequence[Relation]) -> tuple[list[Relation], dict[Relation, frozenset[str]]]:
    """All relations, inputs before their readers; and by relation the columns that a reader needs."""
    order = [*dict.fromkeys(one for root in roots for one in root.walk())]
    needed: dict[Relation, frozenset[str]] = defaultdict(frozenset)
    for root in roots:
        needed[root] |= frozenset(root.schema.names)
    for one in reversed(order):
        for input_, columns in zip(one.inputs, one.needs(needed[one]), strict=True):
            needed[input_] |= columns
    return order, needed


def _simple(one: Relation, read_once: set[Relation]) -> Relation:
    """A projection of a projection as one, and none that changes nothing."""
    if not isinstance(one, Projection):
        return one
    inner = one.input
    if isinstance(inner, Projection) and one.renames and (inner in read_once or inner.renames):
        columns = dict(inner.columns)
        return replace(inner, columns=tuple((name, columns[str(value)]) for name, value in one.columns))
    if one.renames and [(name, name) for name in inner.schema.names] == list(one.columns):
        return inner
    return one


def _only(relation: Relation, columns: frozenset[str], reader: Relation) -> Relation:
    """A relation without other columns, for one that reads it."""
    names = [name for name in relation.schema.names if name in columns] or relation.schema.names[:1]
    return _exactly(relation, names, reader)


def _exactly(relation: Relation, names: Sequence[str], reader: Relation) -> Relation:
    if relation.schema.names == list(names):
        return relation
    if isinstance(relation, Projection):
        columns = dict(relation.columns)
        return replace(relation, columns=tuple((name, columns[name]) for name in names))
    return replace(selected(relation, names), where=reader.where)
