"""`wcoj`: worst-case-optimal joins of many relations, by delta queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.differential.arranged import check_removals
from timely_spark.differential.collections import Collection, check_collection
from timely_spark.differential.consolidation import transient
from timely_spark.differential.prefixes import AT, BEST, FEWEST, Counting, Index, IndexLookup, Locate, Match
from timely_spark.differential.trace import DIFF
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import Partition, caller, check_columns, check_reserved, locate_errors
from timely_spark.operators.rows import computed
from timely_spark.streams import Stream

JoinInput = Collection | tuple[Collection, Mapping[str, str]]
"""A relation: its columns are attributes, or the mapping names the attributes of some."""

_Step = dict[int, IndexLookup]
"""A step of a delta query: the relations by number, each with how it is looked up."""


@locate_errors
def wcoj(
    relations: Sequence[JoinInput], *, without: Sequence[JoinInput] = (), name: str | None = None
) -> Collection:
    """The natural join of many relations: all at once, one attribute after the other.

    A relation is a collection whose columns are the attributes, or a pair of a collection and a mapping from
    some of its columns to attributes. A record of the result has one of each relation that agree in the
    attributes that they share; multiplicities multiply. If two columns of a relation are one attribute, they
    are equal. A null in a shared attribute joins nothing. Give one collection with several mappings, rather
    than several selections of it: its indexes are then shared.

    For each relation there is a *delta query*: its changes are prefixes of results, to which the other
    relations add one attribute after another. Of the relations that have the attribute, the one with the
    fewest records for the prefix proposes values, and the others drop those that they do not have. So
    between two relations of triangles no more pairs are made than the least degree allows, and no
    intermediate result is stored: state is an index of each relation by each key by which it is read. Changes
    of the same epoch see each other in the order of the relations: each change extends once.

    There is no loop. An index costs one exchange. Adding an attribute that r relations share costs r
    exchanges to count candidates, one to propose them, and r - 1 to filter them. The first attribute of a
    change costs one less; delta queries run at the same time. An epoch costs the prefixes of its changes. The
    number of prefixes is worst-case optimal if relations have two shared attributes. A relation with more
    shared attributes proposes values of all that a prefix lacks at once, unless the prefix lacks only one.

    Inside a loop, times are not totally ordered. There the result comes from ordinary joins, one relation
    after another, which store the intermediate results.

    Args:
        relations: the relations, at least one. Each shares an attribute with another one.
        without: relations that must have no record that agrees, in attributes of `relations`.

    **Columns:** out: the attributes, in the order in which the relations have them.

    Example:
        The triangles of a directed graph; and its paths of two edges that none closes:

        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("wcoj")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> ab, bc, ca = ({"src": a, "dst": b} for a, b in ("ab", "bc", "ca"))
        >>> _ = ts.wcoj([(edges, ab), (edges, bc), (edges, ca)]).changes().capture("cycles")
        >>> _ = ts.wcoj([(edges, ab), (edges, bc)], without=[(edges, ca)]).changes().capture("open")
        >>> made = ts.testing.run(flow, {"edges": [[(1, 2, 1), (2, 3, 1)], [(3, 1, 1)]]}, workers=2)
        >>> made["cycles"].rows()
        {0: [], 1: [(1, 2, 3, 1), (2, 3, 1, 1), (3, 1, 2, 1)]}
        >>> made["open"].rows()
        {0: [(1, 2, 3, 1)], 1: [(1, 2, 3, -1)]}

    Raises:
        GraphError: there are no relations; one is not a collection, or of another flow or an unrelated loop;
            or they have no attributes in common, so that all pairs of records would match.
        SchemaError: a column is missing or nested, an attribute has two types, or one of `without` is in none
            of the relations.

    Source: Ammar et al., Distributed evaluation of subgraph queries using worst-case optimal low-memory
    dataflows, VLDB 2018 (BiGJoin, and its delta queries).
    """
    operands = _operands(relations, without)
    first = max((relation for relation, _, _ in operands), key=lambda one: one.scope.graph_scope.depth)
    with first.index.flow.graph.parts(first.scope.graph_scope, name):
        atoms = _atoms(operands)
        if first.scope.graph_scope.parent is not None:
            return _one_by_one(atoms, name)
        queries = [_planned(number, atoms) for number in range(len(atoms))]
        wiring = _Wiring(atoms)
        for step in (step for steps in queries for step in steps):
            for number, probe in step.items():
                wiring.index(number, probe.keys, probe.within)
        one, *more = [wiring.delta(number, steps) for number, steps in enumerate(queries)]
        return transient(first.like(one.concat(*more, name=name)))


@dataclass(frozen=True, eq=False)
class _Atom:
    """A relation, with the attributes that its columns are."""

    relation: Collection
    #: attribute -> column
    columns: dict[str, str]
    negated: bool
    #: the attributes that another relation has, too
    shared: tuple[str, ...]
    #: the others, each with its column
    others: tuple[tuple[str, str], ...]


# -- the relations -------------------------------------------------------------------------------------------


def _operands(relations: Any, without: Any) -> list[tuple[Collection, Any, bool]]:
    """The relations, each with its mapping, if it has one, and whether it must not match."""
    operands = [*((one, False) for one in relations), *((one, True) for one in without)]
    if not operands or operands[0][1]:
        msg = "wcoj: there are no relations"
        raise GraphError(msg, where=caller(), hint="give a list of collections, or of pairs with mappings.")
    pairs = [
        (*one, no) if isinstance(one, tuple) and len(one) == 2 else (one, None, no) for one, no in operands
    ]
    for relation, _, _ in pairs:
        check_collection("wcoj", relation)
    inside = pairs[0][0].together("wcoj", *(relation for relation, _, _ in pairs[1:]))
    return [(relation, mapping, no) for relation, (_, mapping, no) in zip(inside, pairs, strict=True)]


def _atoms(operands: Sequence[tuple[Collection, Any, bool]]) -> list[_Atom]:
    """The relations, checked, without records that cannot join."""
    mapped = [_mapped(collection, mapping) for collection, mapping, _ in operands]
    signs = [negated for _, _, negated in operands]
    _check_types(mapped, signs)
    uses = Counter(attribute for _, columns in mapped for attribute in columns)
    joined = Counter(a for (_, columns), no in zip(mapped, signs, strict=True) if not no for a in columns)
    chosen: dict[Any, Collection] = {}
    atoms = []
    for (relation, columns), negated in zip(mapped, signs, strict=True):
        names = tuple(columns.values())
        valid = tuple(column for a, column in columns.items() if joined[a] > 1 or negated)
        key = (id(relation.index), names, valid, negated)
        if key not in chosen:
            chosen[key] = _chosen(relation, names, valid, distinct=negated)
        shared = tuple(a for a in columns if uses[a] > 1)
        others = tuple((a, column) for a, column in columns.items() if uses[a] == 1)
        atoms.append(_Atom(chosen[key], columns, negated, shared, others))
    return atoms


def _mapped(relation: Collection, mapping: Any) -> tuple[Collection, dict[str, str]]:
    """A relation with the column of each attribute; columns that are one attribute are equal."""
    mapping = {name: name for name in relation.schema.names} if mapping is None else dict(mapping)
    check_columns("wcoj", relation.schema, list(mapping), keys=True)
    check_reserved("wcoj", caller(), list(mapping.values()))
    columns: dict[str, str] = {}
    for column, attribute in mapping.items():
        if attribute in columns:
            relation = relation.where(pc.field(columns[attribute]) == pc.field(column))
        columns.setdefault(attribute, column)
    if not columns:
        msg = "wcoj: a relation has no attributes"
        raise SchemaError(msg, where=caller(), hint="map at least one column, as in {'src': 'a'}.")
    return relation, columns


def _check_types(mapped: Sequence[tuple[Collection, dict[str, str]]], negated: Sequence[bool]) -> None:
    kinds: dict[str, pa.DataType] = {}
    for (relation, columns), no in zip(mapped, negated, strict=True):
        for attribute, column in columns.items():
            kind = relation.schema.field(column).type
            if no and attribute not in kinds:
                msg = f"wcoj: {attribute!r} is an attribute of `without` only; the relations have {[*kinds]}"
                raise SchemaError(msg, where=caller(), hint="map only the columns that must agree.")
            if kinds.setdefault(attribute, kind) != kind:
                msg = f"wcoj: attribute {attribute!r} is {kinds[attribute]} and, as column {column!r}, {kind}"
                raise SchemaError(msg, where=caller(), hint="cast one of the columns with select.")


def _chosen(
    relation: Collection, columns: Sequence[str], valid: Sequence[str], *, distinct: bool
) -> Collection:
    """The columns of a relation, without nulls in some of them."""
    chosen = relation.select(*columns)
    for column in valid:
        chosen = chosen.where(pc.is_valid(pc.field(column)))
    return chosen.distinct() if distinct else chosen


# -- the plan of a delta query -------------------------------------------------------------------------------


def _planned(number: int, atoms: Sequence[_Atom]) -> list[_Step]:
    """The steps that extend the changes of a relation by all others."""
    bound = {*atoms[number].shared}
    left = {n: atom for n, atom in enumerate(atoms) if n != number}
    steps = []
    while left:
        chosen = _next(bound, left)
        if not chosen:
            attributes = [", ".join(atom.columns) for atom in (atoms[number], *left.values())]
            msg = f"wcoj: the relations fall apart: ({') ('.join(attributes)}) have no attribute in common"
            raise GraphError(msg, where=caller(), hint="give each relation an attribute of another one.")
        probes = {}
        for n in chosen:
            atom = left.pop(n)
            keys = tuple(a for a in atom.shared if a in bound)
            within = tuple(a for a in atom.shared if a not in bound)
            if not within:  # it is only asked whether there is such a record
                keys, within = keys[:1], keys[1:]
            probes[n] = IndexLookup(n > number, keys, within, atom.others, atom.negated)
        bound |= {a for n in chosen for a in atoms[n].shared}
        steps.append(probes)
    return steps


def _key(step: _Step) -> tuple[str, ...]:
    """The key's attributes for the first look-up of a step."""
    return next(iter(step.values())).keys


def _next(bound: set[str], left: Mapping[int, _Atom]) -> list[int]:
    """The relations of the next step: one that only filters; or all that lack one attribute; or another."""
    lacking = {n: [a for a in atom.shared if a not in bound] for n, atom in left.items()}
    for n, lacks in lacking.items():
        if not lacks and left[n].shared:
            return [n]
    joined = [n for n, atom in left.items() if not atom.negated and len(lacking[n]) < len(atom.shared)]
    by_attribute: dict[str, list[int]] = {}
    for n in joined:
        if len(lacking[n]) == 1:
            by_attribute.setdefault(lacking[n][0], []).append(n)
    if by_attribute:
        return max(by_attribute.values(), key=len)
    return sorted(joined, key=lambda n: len(lacking[n]))[:1]


# -- its stages ----------------------------------------------------------------------------------------------


@dataclass
class _Wiring:
    """The stages of all delta queries, and the indexes that they share."""

    atoms: Sequence[_Atom]
    indexes: dict[Any, Stream] = field(default_factory=dict)

    def located(self, number: int, keys: Sequence[str]) -> Stream:
        """The changes of a relation with `AT`."""
        stream = self.atoms[number].relation.stream
        return stream.then(
            "locate",
            [stream.schema.append(pa.field(AT, pa.int64()))],
            own=(AT,),
            vertex=Locate(keys),
            keeps={column: column for column in stream.schema.names},
            detail=", ".join(keys),
            parameters={"keys": list(keys)},
        )[0]

    def index(self, number: int, keys: Sequence[str], within: Sequence[str]) -> Stream:
        """The index of a relation by attributes."""
        atom = self.atoms[number]
        keys, within = (tuple(atom.columns[a] for a in attributes) for attributes in (keys, within))
        key = (id(atom.relation), keys, within)
        if key not in self.indexes:
            stream, by = self.located(number, keys), Partition((AT,))
            index = stream.then(
                "index",
                [stream.schema],
                own=(AT,),
                vertex=Index(keys, within),
                requires=[by],
                guarantees=(AT,),
                detail=", ".join(keys),
                parameters={"keys": list(keys), "within": list(within)},
            )[0]
            if all(relation != id(atom.relation) for relation, _, _ in self.indexes):
                check_removals(atom.relation, index, by)
            self.indexes[key] = index
        return self.indexes[key]

    def delta(self, number: int, steps: Sequence[_Step]) -> Stream:
        """The changes of the result by the changes of one relation."""
        prefixes = self.changes(number, steps)
        keys = [*(_key(step) for step in steps[1:]), ()]
        for step, then in zip(steps, keys, strict=False):
            prefixes = self.extended(prefixes, step, then)
        attributes = dict.fromkeys(a for atom in self.atoms for a in atom.columns)
        return computed(prefixes, *attributes, DIFF, own=(DIFF,))

    def changes(self, number: int, steps: Sequence[_Step]) -> Stream:
        """The changes of a relation, as prefixes; where an index of the relation has them, if possible."""
        atom = self.atoms[number]
        diff = pc.negate(pc.field(DIFF)) if atom.negated else DIFF
        if not steps:
            return computed(atom.relation.stream, {**atom.columns, DIFF: diff}, own=(DIFF,))
        keys = tuple(atom.columns[a] for a in _key(steps[0]))
        same = [
            one
            for (relation, by, _), one in self.indexes.items()
            if relation == id(atom.relation) and by == keys
        ]
        stream = same[0] if same else self.located(number, keys)
        return computed(stream, {**atom.columns, AT: AT, DIFF: diff}, own=(AT, DIFF))

    def extended(self, prefixes: Stream, step: _Step, then: tuple[str, ...]) -> Stream:
        """The prefixes after a step."""
        probes = tuple(step.values())
        indexes = [self.index(n, probe.keys, probe.within) for n, probe in step.items()]
        kinds = {f.name: f.type for f in prefixes.schema if f.name != AT}
        weighed = kinds.pop(DIFF)
        many = len(probes) > 1
        for number, index in enumerate(indexes if many else ()):
            schema = pa.schema(
                [*kinds.items(), (DIFF, weighed), *((n, pa.int64()) for n in (FEWEST, BEST, AT))]
            )
            prefixes = self.stage("count", prefixes, schema, Counting(number, probes), [index])
        for n in step:
            atom = self.atoms[n]
            if not atom.negated:
                kinds |= {a: atom.relation.schema.field(column).type for a, column in atom.columns.items()}
        for turn in range(len(probes)):
            last = turn == len(probes) - 1
            more = [] if last else [BEST]
            more += [AT] if then or not last else []
            schema = pa.schema([*kinds.items(), (DIFF, weighed), *((name, pa.int64()) for name in more)])
            prefixes = self.stage("match", prefixes, schema, Match(schema, probes, turn, then), indexes)
        return prefixes

    def stage(
        self, operator: str, prefixes: Stream, schema: pa.Schema, vertex: Any, indexes: Sequence[Stream]
    ) -> Stream:
        """A look-up of prefixes in indexes."""
        return prefixes.then(
            operator,
            [schema],
            others=indexes,
            own=(AT, BEST, FEWEST),
            vertex=vertex,
            requires=[Partition((AT,))] * (1 + len(indexes)),
        )[0]


# -- in a loop -----------------------------------------------------------------------------------------------


def _one_by_one(atoms: Sequence[_Atom], name: str | None) -> Collection:
    """The join of one relation after another; they are joined in the order of a delta query."""
    order = [0, *(n for step in _planned(0, atoms) for n in step)]
    result, *others = (atoms[n].relation.select(atoms[n].columns) for n in order)
    for n, relation in zip(order[1:], others, strict=True):
        on = [a for a in atoms[n].columns if a in result.schema.names]
        if atoms[n].negated:
            result = result.antijoin(relation, on=on, unique=True)
        else:
            result = result.join(relation, on=on)
    attributes = dict.fromkeys(a for atom in atoms for a in atom.columns)
    return result.select(*attributes, name=name)
