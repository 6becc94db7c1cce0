"""Filters of one relation: what one of them tests, others that test more read from it.

So `WHERE a < b` and, elsewhere in the text, `WHERE a < b AND a < 3` test `a < b` once. What all filters of a
relation test has one of its own; and if all readers of a table test it, only such rows of its files are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from timely_spark.queries.relations import Relation, Selection


def with_shared_filters(roots: Sequence[Relation]) -> list[Relation]:
    """The relations, whose filters read the one of the same relation that tests most of their conditions."""
    order = list(dict.fromkeys(one for root in roots for one in root.walk()))
    conditions = {one: frozenset(one.conditions) for one in order if isinstance(one, Selection)}
    # by relation, by conditions in any order
    filters: defaultdict[Relation, dict[frozenset[object], Selection]] = defaultdict(dict)
    for selection, tests in conditions.items():
        filters[selection.input].setdefault(tests, selection)
    for others in filters.values():
        first, common = next(iter(others.values())), frozenset.intersection(*others)
        if common:
            in_order = tuple(each for each in first.conditions if each in common)
            others.setdefault(common, replace(first, conditions=in_order))
    new: dict[Relation, Relation] = {}

    def shared(tests: frozenset[object], source: Relation) -> Relation:
        others = filters[source]
        first = others[tests]
        if first not in new:
            less = max((each for each in others if each < tests), key=len, default=frozenset())
            more = tuple(each for each in first.conditions if each not in less)
            new[first] = replace(first, input=shared(less, source) if less else new[source], conditions=more)
        return new[first]

    for one in order:
        if isinstance(one, Selection):
            new[one] = shared(conditions[one], one.input)
        else:
            new[one] = one.over([new[each] for each in one.inputs]) if one.inputs else one
    return [new[root] for root in roots]
