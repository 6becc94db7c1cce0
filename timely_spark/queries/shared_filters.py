"""Filters of one relation: what one of them tests, others that test more read from it.

So `WHERE a < b` and, elsewhere in the text, `WHERE a < b AND a < 3` test `a < b` once; and if all readers of
a table test it, only such rows of its files are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from timely_spark.queries.relations import Relation, Selection


def with_shared_filters(roots: Sequence[Relation]) -> list[Relation]:
    """The relations, whose filters read the one of the same relation that tests most of their conditions."""
    order = list(dict.fromkeys(one for root in roots for one in root.walk()))
    # by relation, by conditions in any order
    filters: defaultdict[Relation, dict[frozenset[object], Selection]] = defaultdict(dict)
    for one in order:
        if isinstance(one, Selection):
            filters[one.input].setdefault(frozenset(one.conditions), one)
    new: dict[Relation, Relation] = {}

    def shared(one: Selection) -> Relation:
        others, conditions = filters[one.input], frozenset(one.conditions)
        first = others[conditions]
        if first not in new:
            less = max((each for each in others if each < conditions), key=len, default=frozenset())
            more = tuple(each for each in first.conditions if each not in less)
            source = shared(others[less]) if less else new[one.input]
            new[first] = replace(first, input=source, conditions=more)
        return new[first]

    for one in order:
        if isinstance(one, Selection):
            new[one] = shared(one)
        else:
            new[one] = one.over([new[each] for each in one.inputs]) if one.inputs else one
    return [new[root] for root in roots]
