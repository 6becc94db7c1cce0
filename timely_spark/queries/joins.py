"""`FROM`, `JOIN` and `WHERE`: which relations are joined by what, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

from timely_spark.queries import calls
from timely_spark.queries.binder import UNIT, Domain, cast_to, column_node, tree_of
from timely_spark.queries.conditions import bare, conjuncts, factored
from timely_spark.queries.cycles import CyclicJoin, in_cycle
from timely_spark.queries.from_items import FromItems
from timely_spark.queries.names import renamed
from timely_spark.queries.relations import (
    Concat,
    Matched,
    Projection,
    Relation,
    RelationJoin,
    SparkColumns,
    estimated_size,
    selected,
    with_columns,
    with_condition,
)
from timely_spark.queries.scopes import (
    Ambiguous,
    Correlated,
    FromItem,
    NamedColumn,
    VisibleColumns,
    in_star_order,
)
from timely_spark.sql import parse, types
from timely_spark.sql.parse import exp

#: sources, joined as far as they can be; the conditions that wait for others; those of `WHERE`
_Joined: TypeAlias = tuple[list[FromItem], list[Any], list[Any]]
#: equalities, each with both its sides
_Pairs: TypeAlias = Sequence[tuple[Any, Any, Any]]
WRONG_IN_WHERE = (
    ("window function", calls.windows_in, "QUALIFY"),
    ("aggregate", calls.aggregates_in, "HAVING"),
)


class Joins(FromItems):
    """The part of a block that binds `FROM`, `JOIN` and `WHERE`."""

    def read_sources(self) -> None:
        """Make the relation of `FROM`, `JOIN` and `WHERE`."""
        node = self.node
        parts: list[FromItem] = []
        if self.domain is not None:
            parts.append(self.of_domain(self.domain))
        first = node.args.get("from_") or node.args.get("from")
        if first is not None:
            with self.binder.clause(first):
                item = self.source(first.this)
            parts = [item] if item.outer else [*parts, item]
        elif not parts:
            parts.append(FromItem(UNIT, [], []))
        where = node.args.get("where")
        later = conjuncts(where.this) if where is not None else []
        self._refuse_calls(later)
        sides = [node] if first is None else [first.this, node]
        joins = [one for side in sides for one in side.args.get("joins") or ()]
        parts, early, later = self.join_all(joins, parts, later)
        for one in [one for side in sides for one in side.args.get("laterals") or ()]:
            parts = [self.lateral_view(one, self.connected(parts, early))]
            early = []
        plain = [one for one in later if not calls.has_query(one)]
        item = self.connected(parts, [*early, *plain])
        if self._has_hint() and not any(isinstance(one, CyclicJoin) for one in item.relation.walk()):
            self.binder.notes.append(f"the hint WCOJ changes nothing, as {self.no_cycle}")
        self.take(item)
        # of a name that is tested early a join behind it may have added another column
        self.refuse_ambiguous(self.tested_early)
        for one in later:
            if calls.has_query(one):
                self.filter(one)

    def _has_hint(self) -> bool:
        hint = self.node.args.get("hint")
        return hint is not None and any(one.name.upper() == "WCOJ" for one in hint.expressions)

    def _refuse_calls(self, conditions: Sequence[Any]) -> None:
        """Refuse what `WHERE` cannot have."""
        for what, calls_in, clause in WRONG_IN_WHERE:
            for call in (one for condition in conditions for one in calls_in(condition)):
                shown = call.sql(dialect=parse.dialect())
                raise self.binder.refuse(call, f"{shown} where no {what} may be", f"write it in {clause}.")

    def filter(self, condition: Any, *, casts: bool = False) -> None:
        """Keep the rows for which a condition is true; `HAVING` casts other values to one."""
        for one in conjuncts(condition):
            with self.binder.clause(one):
                if self.by_subquery(one):
                    continue
                tree = self.rewritten(one)
                self.relation = with_condition(self.relation, self.condition(tree, casts=casts))

    def take(self, item: FromItem) -> None:
        """Go on with a source as the block's relation."""
        self.relation = item.relation
        self.names = VisibleColumns(item.entries, item.outer, self.around)

    def of_domain(self, domain: Domain) -> FromItem:
        """The rows of the blocks around this one that a subquery has an answer for."""
        renamed = [(self.fresh.name(entry.column), entry.column) for _, entry in domain.entries]
        relation = Projection(domain.relation, tuple(renamed))
        outer = [
            (depth, replace(entry, column=new))
            for (depth, entry), (new, _) in zip(domain.entries, renamed, strict=True)
        ]
        return FromItem(relation, [], outer)

    # -- joins -----------------------------------------------------------------------------------------------

    def join_all(self, joins: list[Any], parts: list[FromItem], later: list[Any]) -> _Joined:
        """The parts with the sources of joins in turn: see `joined`."""
        early: list[Any] = []
        # behind a join that makes rows without a left side, WHERE is of its result
        last = max((n for n, one in enumerate(joins) if _side(one) in {"RIGHT", "FULL"}), default=-1)
        held, later = (later, []) if last >= 0 else ([], later)
        for number, one in enumerate(joins):
            with self.binder.clause(one):
                parts, early, later = self.joined(one, parts, early, later)
            later += held if number == last else []
        return parts, early, later

    def joined(self, node: Any, parts: list[FromItem], early: list[Any], later: list[Any]) -> _Joined:
        """The parts with one more, or joined with it; the conditions that wait, and those of `WHERE`."""
        side, kind = _side(node), (node.kind or "").upper()
        if (node.method or "").upper() == "ASOF" or kind in {"ASOF", "APPLY", "STRAIGHT_JOIN", "ARRAY"}:
            raise self.binder.refuse(node.this, f"{kind or node.method} JOIN", "use Collection.asof_join.")
        right = node.this
        if isinstance(right, exp.Lateral) or (isinstance(right, exp.Subquery) and right.args.get("lateral")):
            if node.args.get("using") or node.method:
                raise self.binder.refuse(right, "USING, or NATURAL, with LATERAL", "write ON a.x = b.x.")
            return [self.lateral(right, self.connected(parts, early), side, node)], [], later
        if isinstance(right, exp.Unnest):
            hint = "write LATERAL VIEW explode(...) t AS column."
            raise self.binder.refuse(right, "UNNEST in FROM", hint)
        # `a JOIN b JOIN c ON ... ON ...` joins b and c first
        inside = right.args.get("joins")
        other = self.in_parentheses(exp.Subquery(this=right)) if inside else self.source(right)
        on = node.args.get("on")
        using = self._using_names(node, parts, other)
        keys = [self._using_columns(node, name, parts, other) for name in using]
        first = min((one.place for item in (*parts, other) for one in item.entries), default=0) - len(keys)
        places = {one: first + n for n, pair in enumerate(keys) for one in pair}
        for item in (*parts, other):
            item.entries = [replace(one, place=places.get(one, one.place)) for one in item.entries]
        inner = not side and kind in {"", "INNER", "CROSS"}
        if inner and on is not None and calls.has_query(on):
            # of inner joins ON is WHERE
            asked = [one for one in conjuncts(on) if calls.has_query(one)]
            self.asked_by_on += asked
            later = [*later, *asked]
            on = exp.and_(exp.true(), *(one for one in conjuncts(on) if one not in asked), copy=False)
        if inner:
            conditions = conjuncts(on) if on is not None else []
            conditions += [self._using(node, name, parts, other) for name in using]
            waiting = [*early, *(self._resolved(one, [*parts, other]) for one in conditions)]
            return self._side_by_side(parts, other, using), waiting, later
        one_side = kind in {"SEMI", "ANTI"} and side in {"RIGHT", "FULL"}
        if (side, kind) == ("", "OUTER") or kind not in {"", "OUTER", "SEMI", "ANTI"} or one_side:
            hint = "write INNER, LEFT, RIGHT, FULL, SEMI or ANTI."
            raise self.binder.refuse(node.this, f"{side} {kind} JOIN", hint)
        parts, early, later = self._before_join(side, parts, early, later)
        return [self._beside(node, self.connected(parts, early), other, on, using)], [], later

    def _side_by_side(self, parts: list[FromItem], other: FromItem, using: Sequence[str]) -> list[FromItem]:
        """The parts, and one more that an inner join adds."""
        same = {name.lower() for name in using}
        other.entries = [replace(e, hidden=e.hidden or e.name.lower() in same) for e in other.entries]
        if other.outer and (outer := [one for one in parts if one.outer]):
            rest = [one for one in parts if one not in outer]
            return [*rest, self._of_one_domain(self.connected(outer, []), other)]
        return [*parts, other]

    def _beside(self, node: Any, left: FromItem, other: FromItem, on: Any, using: Sequence[str]) -> FromItem:
        """An outer, semi or anti join."""
        side, kind = _side(node), (node.kind or "").upper()
        conditions = (
            conjuncts(on) if on is not None else [self._using(node, name, [left], other) for name in using]
        )
        asked = [one for one in conditions if calls.has_query(one)]
        resolved = [self._resolved(one, [left, other]) for one in conditions if one not in asked]
        how = kind.lower() if kind in {"SEMI", "ANTI"} else side.lower()
        item = self.outer_join(how, left, other, resolved, asked)
        if using and how in {"left", "right", "full"}:
            item = self._merged(item, using, how)
        return item

    def _of_one_domain(self, left: FromItem, right: FromItem) -> FromItem:
        """Two sources with columns of the domain, joined for each row of it."""
        keys = tuple(self.final_name(entry.column) for _, entry in left.outer)
        right_keys = tuple(entry.column for _, entry in right.outer)
        relation = RelationJoin(left.relation, right.relation, "inner", keys, right_keys, null_safe=True)
        return FromItem(relation, [*left.entries, *right.entries], left.outer)

    def _before_join(self, side: str, parts: list[FromItem], early: list[Any], later: list[Any]) -> _Joined:
        """What an outer join follows: conditions that decide which left rows there are come before it."""
        if side in {"RIGHT", "FULL"}:
            if self.asked_by_on:
                parts, early = [self.asked(self.connected(parts, early), self.asked_by_on)], []
                later = [one for one in later if one not in self.asked_by_on]
                self.asked_by_on = []
            return parts, early, later
        # what WHERE says of the left side alone may be said before, as the join keeps left rows as they are
        names = self.names_of(parts)
        conditions = []
        for one in later:
            sooner = not calls.has_query(one) and all(
                self.is_named(column, names) for column in one.find_all(exp.Column)
            )
            if sooner:
                early = [*early, self.plain(one, names)]
                self.tested_early += one.find_all(exp.Column)
            else:
                conditions.append(one)
        return parts, early, conditions

    def is_named(self, node: Any, names: VisibleColumns) -> bool:
        """Whether a name is that of a column here; False of expressions that are not names."""
        try:
            parts = [one.name for one in node.parts] if isinstance(node, exp.Column) else []
            return bool(parts) and names.find(parts) is not None
        except (Ambiguous, Correlated):
            return False

    def names_of(self, parts: Sequence[FromItem]) -> VisibleColumns:
        """The names that conditions over several sources can use."""
        entries = [one for part in parts for one in part.entries]
        return VisibleColumns(entries, [one for part in parts for one in part.outer], self.around)

    def _resolved(self, node: Any, parts: Sequence[FromItem]) -> Any:
        return self.plain(node, self.names_of(parts))

    def _using_names(self, node: Any, left: Sequence[FromItem], right: FromItem) -> list[str]:
        """The names of `USING`, or those that both sides of a natural join have."""
        using = [one.name for one in node.args.get("using") or ()]
        if node.args.get("using") == []:
            raise self.binder.refuse(node.this, "USING of no columns", "name them, or write CROSS JOIN.")
        if (node.method or "").upper() != "NATURAL":
            return using
        if using or node.args.get("on") is not None:
            raise self.binder.refuse(node.this, "NATURAL JOIN with ON or USING", "leave NATURAL out.")
        names = {one.name.lower() for one in right.entries if not one.hidden}
        entries = in_star_order(one for part in left for one in part.entries if not one.hidden)
        return list(dict.fromkeys(one.name for one in entries if one.name.lower() in names))

    def _using_columns(
        self, node: Any, name: str, left: Sequence[FromItem], right: FromItem
    ) -> list[NamedColumn]:
        """The columns of both sides that a name of `USING` means."""
        using_columns = []
        for side, entries in (("left", [e for part in left for e in part.entries]), ("right", right.entries)):
            same = [one for one in entries if one.name.lower() == name.lower() and not one.hidden]
            if len({one.column for one in same}) != 1:
                problem = f"USING ({name}): the {side} side has {'several' if same else 'no'} such columns"
                raise self.binder.refuse(node.this, problem, "write ON a.x = b.x.")
            using_columns.append(same[0])
        return using_columns

    def _using(self, node: Any, name: str, left: Sequence[FromItem], right: FromItem) -> Any:
        """The condition of a column of `USING`."""
        one, other = (column_node(e.column, node.this) for e in self._using_columns(node, name, left, right))
        return exp.EQ(this=one, expression=other)

    def _merged(self, item: FromItem, using: Sequence[str], how: str) -> FromItem:
        """The result of an outer join with `USING`: of two columns one, in a left join the left one."""
        relation, entries = item.relation, list(item.entries)
        for name in using:
            both = [one for one in entries if one.name.lower() == name.lower() and not one.hidden]
            left, right = both[0], both[-1]
            merged = replace(right if how == "right" else left, table="", name=left.name, place=left.place)
            if how == "full":
                value = tree_of("coalesce(x, y)", x=left.column, y=right.column)
                bound = self.binder.bound(value, relation.schema)
                merged = replace(merged, column=self.fresh.name(name), type=bound.type)
                relation = with_columns(relation, (merged.column, bound))
            entries = [replace(one, hidden=True) if one in both else one for one in entries]
            entries.insert(entries.index(replace(left, hidden=True)), merged)
        return FromItem(relation, entries, item.outer)

    def connected(self, parts: Sequence[FromItem], conditions: Sequence[Any]) -> FromItem:
        """The parts joined, each with one that it shares a key with if there is one; conditions hold."""
        names = self.names_of(parts)
        left: list[Any] = []
        for one in conditions:
            resolved = all(column.meta.get("resolved") for column in one.find_all(exp.Column))
            left += factored(one if resolved else self.plain(one, names))
        # a condition of one part is a filter below the joins
        parts = list(parts)
        for number, part in enumerate(parts):
            ready = [one for one in left if (used := self._used(one)) and used <= part.columns]
            parts[number] = self._where(part, ready)
            left = [one for one in left if one not in ready]
        # the columns of stars stay in the order of FROM
        entries = [one for part in parts for one in part.entries]
        if self._has_hint():
            parts, done, self.no_cycle = in_cycle(parts, left, self.final_name, self.same)
            left = [one for one in left if one not in done]
        rest = self._by_size(parts)
        first = rest.pop(0)
        while rest:
            # before all pairs with one, the others are joined: an equality may need several of them
            pairs = [*((first, one) for one in rest), *combinations(rest, 2), (first, rest[0])]
            one, other = next((pair for pair in pairs if self._keys(*pair, left)), pairs[-1])
            both, left = self._inner(one, other, left)
            rest = [each for each in rest if each not in (one, other)]
            first, rest = (both, rest) if one is first else (first, [both, *rest])
        return self._where(replace(first, entries=self._moved(entries)), left)

    def _by_size(self, parts: Sequence[FromItem]) -> list[FromItem]:
        """The parts by their sizes, the smallest first; in their order if a size is not known."""
        sizes = [estimated_size(one.relation, self.binder.sizes) for one in parts]
        if None in sizes:
            return [*parts]
        return [part for _, _, part in sorted(zip(sizes, range(len(parts)), parts, strict=True))]

    def _where(self, source: FromItem, conditions: Sequence[Any]) -> FromItem:
        """A source with filters."""
        relation = source.relation
        for one in conditions:
            relation = self._filtered(relation, one)
        return replace(source, relation=relation)

    def _filtered(self, relation: Relation, condition: Any) -> Relation:
        """A relation with a filter, below a renaming of columns: that of `t x` and `t y` may be the same.

        One that may fail stays above it, so that its error has the names of the query.
        """
        tree = self.final(condition)
        outer = self.relation, self.same
        self.relation, self.same = relation, {}
        try:
            with self.binder.clause(condition):
                bound = self.condition(tree)
                if bound.fails or not isinstance(relation, Projection):
                    return with_condition(relation, bound)
                typed = isinstance(relation, SparkColumns)  # its conditions may read the columns as stored
                if not (typed or relation.renames):
                    return with_condition(relation, bound)
            names: Any = {one: one if typed else of for one, of in relation.columns}
            return replace(relation, input=self._filtered(relation.input, renamed(tree, names.__getitem__)))
        finally:
            self.relation, self.same = outer

    def _used(self, tree: Any) -> set[str]:
        return {self.final_name(one.name) for one in tree.find_all(exp.Column)}

    def _keys(self, left: FromItem, right: FromItem, conditions: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
        """The equalities between two relations, with the expressions of both: `<=>` if there is no `=`."""
        keys: list[tuple[Any, Any, Any]] = []
        for kind in (exp.EQ, exp.NullSafeEQ):
            for one in [] if keys else conditions:
                inner = bare(one)
                sides = (inner.this, inner.expression) if isinstance(inner, kind) else ()
                for x, y in (sides, sides[::-1]) if sides else ():
                    if _within(self._used(x), left) and _within(self._used(y), right):
                        keys.append((one, x, y))
                        break
        return keys

    def _key_columns(
        self, left: Relation, right: Relation, pairs: _Pairs, *, copies: bool
    ) -> tuple[Relation, Relation, list[tuple[str, str]]]:
        """Relations with columns for the sides of equalities that can be keys, of one type; and these.

        Args:
            copies: whether the keys are columns of their own, as those of the right side are dropped.
        """
        keys: list[tuple[str, str]] = []
        for _, x, y in pairs:
            bound = [
                self.binder.bound(self.final(tree), side.schema) for tree, side in ((x, left), (y, right))
            ]
            kind = types.common(bound[0].type, bound[1].type)
            if kind is None or not types.is_atomic(kind):
                continue
            trees = [
                self.final(tree) if one.type == kind else cast_to(self.final(tree), kind)
                for tree, one in zip((x, y), bound, strict=True)
            ]
            left, left_key = self._with_key(left, trees[0], copy=copies)
            right, right_key = self._with_key(right, trees[1], copy=copies)
            if left_key not in {a for a, _ in keys} and right_key not in {b for _, b in keys}:
                keys.append((left_key, right_key))
        return left, right, keys

    def _with_key(self, relation: Relation, tree: Any, *, copy: bool) -> tuple[Relation, str]:
        column = self.binder.column(tree, relation.schema)
        if isinstance(column, str) and not copy:
            return relation, column
        name = self.fresh.name("key")
        return with_columns(relation, (name, column)), name

    def _inner(self, left: FromItem, right: FromItem, conditions: list[Any]) -> tuple[FromItem, list[Any]]:
        pairs = self._keys(left, right, conditions)
        left_rows, right_rows, keys = self._key_columns(left.relation, right.relation, pairs, copies=False)
        columns = (tuple(a for a, _ in keys), tuple(b for _, b in keys))
        null_safe = _null_safe(pairs, keys)
        relation = RelationJoin(
            left_rows, right_rows, "inner", *columns, null_safe=null_safe, where=right.where
        )
        for a, b in keys:
            self.same[b] = a
        rest = _without_keys(conditions, pairs, keys)
        item = FromItem(
            relation,
            self._moved([*left.entries, *right.entries]),
            [(d, replace(e, column=self.final_name(e.column))) for d, e in [*left.outer, *right.outer]],
        )
        ready = [one for one in rest if self._used(one) <= item.columns]
        return self._where(item, ready), [one for one in rest if one not in ready]

    def _moved(self, entries: Sequence[NamedColumn]) -> list[NamedColumn]:
        return [replace(one, column=self.final_name(one.column)) for one in entries]

    def outer_join(
        self,
        how: str,
        left: FromItem,
        right: FromItem,
        conditions: Sequence[Any] = (),
        asked: Sequence[Any] = (),
    ) -> FromItem:
        """A join that keeps rows without a match, or only says which have one.

        Args:
            conditions: those without subqueries, over the columns of both sides.
            asked: those with subqueries.
        """
        if how == "right":
            item = self.outer_join("left", right, left, conditions, asked)
            return FromItem(item.relation, [*left.entries, *right.entries], item.outer)
        domain: list[tuple[str, str]] = []
        if right.outer or (
            left.outer and how == "full"
        ):  # rows without a match are so in a row of the domain
            left, right = self._with_domain(left), self._with_domain(right)
            both_sides = zip(left.outer, right.outer, strict=True)
            domain = [(self.final_name(a.column), self.final_name(b.column)) for (_, a), (_, b) in both_sides]
        # a condition of a side whose rows may be dropped is said of it before
        sides = {"left": (right,), "anti": (right,), "semi": (left, right)}.get(how, ())
        for side in sides:
            ready = [one for one in conditions if (used := self._used(one)) and used <= side.columns]
            conditions = [one for one in conditions if one not in ready]
            if side is right:
                right = self._where(side, ready)
            else:
                left = self._where(side, ready)
        pairs = self._keys(left, right, conditions)
        copies = how in {"left", "full"} or bool(domain)
        left_rows, right_rows, keys = self._key_columns(left.relation, right.relation, pairs, copies=copies)
        residual, null_safe = _without_keys(conditions, pairs, keys), _null_safe(pairs, keys)
        names = tuple(a for a, _ in keys), tuple(b for _, b in keys)
        both = FromItem(left_rows, [*left.entries, *right.entries], left.outer)
        every_pair = partial(
            self._all_pairs, both, right_rows, keys, domain, (residual, asked), null_safe=null_safe
        )
        columns = [*left.relation.schema.names, *right.relation.schema.names]
        kind: Any = how
        if how in {"semi", "anti"}:
            relation: Relation = RelationJoin(left_rows, right_rows, kind, *names, null_safe=null_safe)
            if residual or asked or domain:
                matched = _only(every_pair(), left.relation.schema.names)
                relation = Matched(left.relation, matched, present=how == "semi")
            return FromItem(_only(relation, left.relation.schema.names), left.entries, left.outer)
        if keys and not (residual or asked or domain or (null_safe and how == "full")):
            joined = RelationJoin(left_rows, right_rows, kind, *names, null_safe=null_safe)
            relation = _only(joined, columns)
        else:
            pairs_of = _only(every_pair(), columns)
            relation = self._by_matches(how, left.relation, right.relation, pairs_of, dict(domain))
        return FromItem(relation, both.entries, both.outer)

    def _with_domain(self, side: FromItem) -> FromItem:
        """A side of a join for each row of the domain."""
        if side.outer or self.domain is None:
            return side
        return replace(self.connected([self.of_domain(self.domain), side], []), entries=side.entries)

    def _all_pairs(
        self,
        both: FromItem,
        right_input: Relation,
        keys: Sequence[tuple[str, str]],
        domain: Sequence[tuple[str, str]],
        conditions: tuple[Sequence[Any], Sequence[Any]],
        *,
        null_safe: bool,
    ) -> Relation:
        """The pairs of two sides for which conditions hold.

        Args:
            both: the left side's relation, with the names of both sides.
            right_input: the right side.
            domain: the columns of both sides that are of the domain; in these null equals null.
            conditions: further ones, and those with subqueries, which read the pairs.
            null_safe: whether null equals null in keys, too.
        """
        residual, asked = conditions
        for _, key in keys if domain and not null_safe else ():
            right_input = with_condition(right_input, self._valid(key, right_input))
        by = [*keys, *domain]
        # the conditions may read the right keys, which a join drops
        copies = [(b, self.fresh.name("key")) for _, b in by]
        right = with_columns(right_input, *((new, old) for old, new in copies)) if copies else right_input
        relation: Relation = RelationJoin(
            both.relation,
            right,
            "inner",
            tuple(a for a, _ in by),
            tuple(new for _, new in copies),
            null_safe=null_safe or bool(domain),
        )
        for one in residual:
            relation = self._filtered(relation, one)
        return self.asked(replace(both, relation=relation), asked).relation

    def asked(self, source: FromItem, conditions: Sequence[Any]) -> FromItem:
        """The rows of a source for which conditions with subqueries hold."""
        before = self.relation, self.names
        self.take(source)
        for one in conditions:
            self.filter(one)
        relation, (self.relation, self.names) = self.relation, before
        return replace(source, relation=relation)

    def _by_matches(
        self, how: str, left: Relation, right: Relation, pairs: Relation, domain: Mapping[str, str]
    ) -> Relation:
        """An outer join with further conditions: its pairs, and the rows that are in none.

        Args:
            domain: by a column of the left side that is of the domain the right side's.
        """
        parts: list[Relation] = [pairs]
        sides = [(left, right)] if how == "left" else [(left, right), (right, left)]
        for one, other in sides:
            unmatched = Matched(one, _only(pairs, one.schema.names), present=False)
            nulls = {f.name: self.binder.null(f.type, unmatched.schema) for f in other.schema}
            others: dict[str, Any] = {**nulls, **(domain if other is left else {})}
            parts.append(
                Projection(unmatched, tuple((name, others.get(name, name)) for name in pairs.schema.names))
            )
        return Concat(tuple(parts))


def _side(join: Any) -> str:
    """`LEFT`, `RIGHT` or `FULL`; nothing of inner joins."""
    return str(join.side or "").upper()


def _without_keys(conditions: Sequence[Any], pairs: _Pairs, keys: Sequence[Any]) -> list[Any]:
    """The conditions that a join by keys leaves to filters: all, if not each equality is a key."""
    done = [one for one, _, _ in pairs] if len(keys) == len(pairs) else []
    return [one for one in conditions if one not in done]


def _null_safe(pairs: _Pairs, keys: Sequence[Any]) -> bool:
    """Whether null equals null in the keys of equalities, which are all `<=>` or all `=`."""
    return bool(keys) and isinstance(bare(pairs[0][0]), exp.NullSafeEQ)


def _within(columns: set[str], item: FromItem) -> bool:
    """Whether an expression reads columns of one source alone, one at least."""
    return bool(columns) and columns <= item.columns


def _only(relation: Relation, names: Sequence[str]) -> Relation:
    return relation if relation.schema.names == list(names) else selected(relation, names)
