"""`WITH` and `WITH RECURSIVE`: names for queries, which may read each other and themselves.

`UNION` is the least fixed point of sets. `UNION ALL` is that of multisets, which is SQL's iteration if the
step is linear: it reads one recursive name once, and neither counts nor compares its rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import pyarrow as pa

from timely_spark.queries.binder import UNIT, Binder, BoundQuery, View, Views, has_clauses
from timely_spark.queries.generators import Generated
from timely_spark.queries.groups import AggregateFunction
from timely_spark.queries.improving import warn_of_dropped
from timely_spark.queries.relations import (
    Aggregation,
    Compared,
    Concat,
    ConstantRows,
    Distinct,
    DomainRows,
    Matched,
    Named,
    Projection,
    Recursion,
    Relation,
    RelationJoin,
    Selection,
    selected,
)
from timely_spark.queries.scopes import Correlated, Fresh, VisibleColumns
from timely_spark.queries.time_windows import NAME, WINDOW
from timely_spark.sql import parse
from timely_spark.sql.parse import exp
from timely_spark.sql.types import casts_itself, name_of

LINEAR = (Projection, Selection, RelationJoin, Concat, Generated)


#: how a column `all` behind SELECT is parsed, which sqlglot takes for the opposite of DISTINCT
_ALL = "a1l"
#: the names that identifiers stand for, by how they are parsed
MEANT = {WINDOW: NAME, _ALL: "all"}
#: the words behind which a query may begin
_BEFORE_QUERIES = {"(", ")", ";", "AS", "UNION", "ALL", "DISTINCT", "EXCEPT", "MINUS", "INTERSECT"}


@dataclass(frozen=True)
class Clause:
    """A clause of a recursive name that sqlglot does not parse: it stands at an offset of the text."""

    start: int
    kind: Literal["raise", "return", "key"]
    #: the number of levels, or the text in parentheses
    value: str


def take_clauses(text: str) -> tuple[str, list[Clause]]:
    """A text with spaces instead of the clauses that sqlglot does not parse; and these.

    >>> take_clauses("WITH RECURSIVE r MAX RECURSION LEVEL 5 AS (SELECT 1) SELECT * FROM r")[1]
    [Clause(start=17, kind='raise', value='5')]
    """
    sqlglot = parse.needs_sqlglot()
    try:
        tokens = sqlglot.tokenize(text, dialect=parse.dialect())
    except sqlglot.errors.TokenError:
        return text, []  # parsing it tells the mistake
    words = [text[token.start : token.end + 1].upper() for token in tokens]  # of quoted ones with the quotes
    clauses: list[Clause] = []
    blank: list[tuple[int, int]] = []

    def has(at: int, *wanted: str) -> bool:
        return words[at : at + len(wanted)] == list(wanted)

    for n, token in enumerate(tokens):
        for kind, phrase in (
            ("raise", ("MAX", "RECURSION", "LEVEL")),
            ("raise", ("ERROR", "AT", "RECURSION", "LIMIT")),
            ("return", ("RETURN", "AT", "RECURSION", "LIMIT")),
        ):
            if has(n, *phrase) and n + len(phrase) < len(tokens) and words[n + len(phrase)].isdecimal():
                last = tokens[n + len(phrase)]
                clauses.append(Clause(token.start, kind, last.text))  # type: ignore[arg-type]
                blank.append((token.start, last.end + 1))
        if has(n, "USING", "KEY", "("):
            depth, at = 1, n + 3
            while at < len(words) and depth:
                depth += (words[at] == "(") - (words[at] == ")")
                at += 1
            inside = text[tokens[n + 2].end + 1 : tokens[at - 1].start]
            clauses.append(Clause(token.start, "key", inside))
            blank.append((token.start, tokens[at - 1].end + 1))
    text = _reworded(text, tokens, words)
    for start, end in blank:
        text = text[:start] + "".join("\n" if c == "\n" else " " for c in text[start:end]) + text[end:]
    return text, clauses


def _reworded(text: str, tokens: Sequence[Any], words: Sequence[str]) -> str:
    """A text with other words, as long, where sqlglot takes a name for a clause, or knows no such query."""
    for n, token in enumerate(tokens):
        if words[n] == "WINDOW" and words[n + 2 : n + 3] != ["AS"]:  # no clause: a function, or a column
            new = WINDOW
        elif words[n - 1 : n + 1] == ["SELECT", "ALL"] and words[n + 1 : n + 2] in ([","], ["FROM"], ["AS"]):
            new = _ALL
        elif words[n] == "TABLE" and (n == 0 or words[n - 1] in _BEFORE_QUERIES) and _is_name(tokens, n + 1):
            new = "FROM "  # `TABLE t`
        else:
            continue
        text = text[: token.start] + new + text[token.end + 1 :]
    return text


def _is_name(tokens: Sequence[Any], n: int) -> bool:
    """Whether there is a token that is a name and no keyword."""
    return n < len(tokens) and tokens[n].token_type.name in {"VAR", "IDENTIFIER"}


def with_queries(binder: Binder, node: Any, views: Views, around: VisibleColumns | None) -> Views:
    """The views, and the queries of a `WITH`; one that reads columns around it is bound where it is read."""
    names = [one.alias.lower() for one in node.expressions]
    if len(set(names)) < len(names):
        again = next(one for one in node.expressions if names.count(one.alias.lower()) > 1)
        raise binder.refuse(again.args["alias"], f"two queries are called {again.alias}", "rename one.")
    visible = dict(views)
    if not node.args.get("recursive"):
        for one in node.expressions:
            visible[one.alias] = _view(binder, one, visible, around)
            _shadow(visible, one.alias)
        return visible
    queries = {one.alias.lower(): one for one in node.expressions}
    for group in _groups(queries):
        loop = Loop(binder, [queries[name] for name in group], visible, around)
        if loop.recursive:
            views_of = loop.views()
        else:
            (one,) = loop.nodes
            views_of = {one.alias: _view(binder, one, visible, around)}
        for name, view in views_of.items():
            visible[name] = view
            _shadow(visible, name)
    return visible


def _shadow(views: dict[str, View], name: str) -> None:
    """Drop other spellings of a name."""
    for other in [one for one in views if one.lower() == name.lower() and one != name]:
        del views[other]


def _view(binder: Binder, node: Any, views: Views, around: VisibleColumns | None) -> View:
    """A query's view, with the names of its columns that `WITH name(a, b)` gives."""
    try:
        answer = binder.query(node.this, views, around)
    except Correlated:
        return View(UNIT, (), (), (node, dict(views)))
    names = binder.names_given(node.args["alias"], len(answer.columns)) or answer.names
    return View(answer.relation, tuple(names), answer.columns)


def _read(node: Any, queries: Mapping[str, Any]) -> list[str]:
    """The names of `WITH` that a query reads, each as often as it does; a `WITH` inside may hide one."""
    tables = (one for one in node.find_all(exp.Table) if not one.db)
    return [one.name.lower() for one in tables if one.name.lower() in queries and not _hidden(one, node)]


def _hidden(table: Any, top: Any) -> bool:
    """Whether a `WITH` between a table and the query that it is in has its name."""
    path = [table]
    while path[-1] is not top and path[-1].parent is not None:
        path.append(path[-1].parent)
    for at, node in enumerate(path):
        if (ctes := node.args.get("with_")) is not None:
            names = [one.alias.lower() for one in ctes.expressions]
            if path[at - 1] is ctes and not ctes.args.get("recursive"):  # a query of it reads those before it
                names = names[: next(n for n, one in enumerate(ctes.expressions) if one is path[at - 2])]
            if table.name.lower() in names:
                return True
    return False


def _groups(queries: Mapping[str, Any]) -> list[list[str]]:
    """The names in groups that read each other, those that others read first (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in dict.fromkeys(_read(queries[name].this, queries)):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            groups.append(sorted(group, key=list(queries).index))

    for name in queries:
        if name not in index:
            visit(name)
    return groups


class Loop:
    """Queries that read each other or themselves."""

    def __init__(
        self, binder: Binder, nodes: Sequence[Any], views: Views, around: VisibleColumns | None
    ) -> None:
        self.binder, self.nodes, self.outer, self.around = binder, nodes, views, around
        self.names = {one.alias.lower(): one for one in nodes}
        #: its names, and its place in the text: where a `WITH` is read twice, its loops are the same
        self.loop = f"{'_'.join(self.names)} {parse.start_of(nodes[0].args['alias'].this)}"
        #: by name, the names of its columns in the text; and the columns of its relation
        self.columns: dict[str, list[str]] = {}
        self.schemas: dict[str, pa.Schema] = {}

    @property
    def recursive(self) -> bool:
        """Whether there is a loop; `USING KEY` says something without one, too."""
        reads = any(_read(one.this, self.names) for one in self.nodes)
        return reads or any(self._key(one) is not None for one in self.nodes)

    def views(self) -> dict[str, View]:
        """The least fixed point."""
        branches = {one.alias.lower(): self._branches(one) for one in self.nodes}
        self._infer(branches)
        starts, bodies = [], []
        for one in self.nodes:
            start, body = self._body(one, branches[one.alias.lower()])
            starts.append(start)
            bodies.append(body)
        limit, on_limit = self._limit()
        tells = [self._why_not_monotone(body, node) for body, node in zip(bodies, self.nodes, strict=True)]
        if any(tells) and limit is None:
            what, node = next((what, node) for what, node in zip(tells, self.nodes, strict=True) if what)
            hint = (
                "a loop that takes back what it had may never end: write MAX RECURSION LEVEL n, or RETURN AT "
                "RECURSION LIMIT n, before AS; or aggregate by MIN or MAX as the whole body."
            )
            raise self.binder.refuse(node.args["alias"], f"{node.alias} reads itself through {what}", hint)
        if any(tells):
            what = next(one for one in tells if one)
            warnings.warn(
                f"the recursion {self.loop.rpartition(' ')[0]} reads itself through {what}: its result "
                "after the last level may be no fixed point",
                stacklevel=2,
            )
        if limit is None:
            warn_of_dropped(self.loop, [one.alias for one in self.nodes], bodies)
        else:
            empty = any(isinstance(one, ConstantRows) for one in starts)
            limit += (on_limit == "raise") + empty
        names = tuple(one.alias for one in self.nodes)
        views = {}
        for one in self.nodes:
            schema = self.schemas[one.alias.lower()]
            with self.binder.clause(one.args["alias"]):
                relation = Recursion(
                    self.loop, one.alias, names, tuple(starts), tuple(bodies), limit, on_limit
                )
            views[one.alias] = View(relation, tuple(self.columns[one.alias.lower()]), tuple(schema.names))
        return views

    # -- the parts of a body ---------------------------------------------------------------------------------

    def _branches(self, node: Any) -> tuple[bool | None, list[Any]]:
        """Whether the parts of a `UNION` are a set, and these parts; None if it is another query."""
        body = _bare(node.this)
        if isinstance(body, exp.Union) and (ctes := body.args.get("with_")) is not None:
            inner = body.copy()
            inner.set("with_", None)
            if not has_clauses(inner):
                distinct, parts = self._parts_of(inner)
                return distinct, [_with(ctes, one) for one in parts]
        return self._parts_of(body)

    def _parts_of(self, body: Any) -> tuple[bool | None, list[Any]]:
        if not isinstance(body, exp.Union) or has_clauses(body):
            return None, [body]
        distinct = bool(body.args.get("distinct"))
        parts: list[Any] = []
        for side in map(_bare, (body.left, body.right)):
            inner = isinstance(side, exp.Union) and not has_clauses(side)
            if inner and (distinct or not side.args.get("distinct")):
                parts += self._parts(side)
            elif inner and _read(side, self.names):
                hint = "write UNION for all parts."
                raise self.binder.refuse(side, "a UNION inside of UNION ALL in a recursion", hint)
            else:
                parts.append(side)
        return distinct, parts

    def _parts(self, node: Any) -> list[Any]:
        node = _bare(node)
        if isinstance(node, exp.Union) and not has_clauses(node):
            return [*self._parts(node.left), *self._parts(node.right)]
        return [node]

    def _columns_view(self, node: Any) -> View:
        schema = self.schemas[node.alias.lower()]
        named = Named(schema, self.loop, node.alias)
        return View(named, tuple(self.columns[node.alias.lower()]), tuple(schema.names))

    def _infer(self, branches: Mapping[str, tuple[bool | None, list[Any]]]) -> None:
        """The columns of each name, by parts that read no name of unknown columns."""
        waiting = list(self.names)
        while waiting:
            before = len(waiting)
            for name in list(waiting):
                ready = [one for one in branches[name][1] if not set(_read(one, self.names)) & {*waiting}]
                ready = ready or self._anchors_inside(branches[name][1], waiting)
                if not ready:
                    continue
                answers = self.binder.aligned(ready, [self._query(one) for one in ready])
                node = self.names[name]
                listed = self.binder.names_given(node.args["alias"], len(answers[0].columns))
                self.columns[name] = listed = listed or [*answers[0].names]
                fresh = Fresh()
                fields = [(fresh.name(c), kind) for c, kind in zip(listed, answers[0].types, strict=True)]
                if any(pa.types.is_null(kind) for _, kind in fields):
                    raise self.binder.refuse(
                        node.args["alias"], "a column that is NULL at the start", "cast it."
                    )
                self.schemas[name] = pa.schema(fields)
                waiting.remove(name)
            if len(waiting) == before:
                node = self.names[waiting[0]]
                hint = "begin with a SELECT that reads no recursive name, and go on by UNION."
                raise self.binder.refuse(node.args["alias"], f"{node.alias} has no start", hint)

    def _anchors_inside(self, parts: Sequence[Any], waiting: Sequence[str]) -> list[Any]:
        """A body such as `SELECT k, min(v) FROM (start UNION ALL step) GROUP BY k` without its steps."""
        if len(parts) != 1:
            return []
        anchor = parts[0].copy()
        for union in list(anchor.find_all(exp.Union)):
            if union.args.get("with_"):
                continue
            anchors = [one for one in self._parts(union) if not set(_read(one, self.names)) & {*waiting}]
            if anchors and len(anchors) < len(self._parts(union)):
                copies = (one.copy() for one in anchors)
                union.replace(reduce(lambda a, b: exp.Union(this=a, expression=b, distinct=False), copies))
        return [] if set(_read(anchor, self.names)) & {*waiting} else [anchor]

    def _query(self, part: Any) -> BoundQuery:
        """A part of a body."""
        try:
            return self.binder.query(part, self._views(), self.around)
        except Correlated as error:
            problem = f"{error.entry.name} of a query around a recursion"
            hint = "read its table in the recursion, and keep the column there: a row for each of its values."
            raise self.binder.refuse(part, problem, hint) from None

    def _views(self) -> Views:
        own = {
            node.alias: self._columns_view(node) for name, node in self.names.items() if name in self.schemas
        }
        outer = {name: view for name, view in self.outer.items() if name.lower() not in self.names}
        return {**outer, **own}

    def _body(self, node: Any, branches: tuple[bool | None, list[Any]]) -> tuple[Relation, Relation]:
        """The start of a name, and its body."""
        distinct, parts = branches
        schema = self.schemas[node.alias.lower()]
        key = self._key(node)
        starts: list[Relation] = []
        steps: list[Relation] = []
        for part in parts:
            read = _read(part, self.names)
            relation = self._cast(part, self._query(part), schema)
            (steps if read else starts).append(relation)
            if distinct is False and key is None and read:
                self._check_linear(part, relation, read)
        every = [*starts, *steps]
        whole: Relation = every[0] if len(every) == 1 else Concat(tuple(every))
        empty = ConstantRows(schema, ())
        if key is not None:
            return empty, self._by_key(node, whole, schema, key)
        if distinct is None:
            return empty, whole
        start: Relation = empty if not starts else starts[0] if len(starts) == 1 else Concat(tuple(starts))
        return start, self.binder.distinct(whole) if distinct else whole

    def _cast(self, node: Any, answer: BoundQuery, schema: pa.Schema) -> Relation:
        """An answer with the names and types of the recursive name."""
        if len(answer.columns) != len(schema):
            problem = f"the step has {len(answer.columns)} columns, and the start {len(schema)}"
            raise self.binder.refuse(node, problem, "select as many columns.")
        columns = []
        for field, column, kind in zip(schema, answer.columns, answer.types, strict=True):
            if not casts_itself(kind, field.type):
                problem = (
                    f"column {field.name} is {name_of(field.type)} at the start, and then {name_of(kind)}"
                )
                raise self.binder.refuse(node, problem, "cast it at the start.")
            columns.append((field.name, self.binder.cast(column, answer.relation.schema, field.type)))
        return Projection(answer.relation, tuple(columns))

    def _check_linear(self, node: Any, relation: Relation, read: Sequence[str]) -> None:
        """Refuse a step of `UNION ALL` whose fixed point is not SQL's iteration."""
        if len(read) > 1:
            problem = f"UNION ALL with {len(read)} recursive references in one part"
            raise self.binder.refuse(node, problem, "write UNION, which is the least fixed point of sets.")
        plain = all(isinstance(one, (Projection, Concat)) for one, _ in _paths(relation, self.loop))
        if plain and len(self.nodes) == 1 and self._limit()[0] is None:
            problem = "UNION ALL whose step keeps each row never ends"
            hint = "write a condition in the step, UNION, or RETURN AT RECURSION LIMIT n before AS."
            raise self.binder.refuse(node, problem, hint)
        for one, number in _paths(relation, self.loop):
            keeps_left = isinstance(one, (RelationJoin, Matched)) and number == 0  # a left row stays or goes
            if not isinstance(one, LINEAR) or (isinstance(one, RelationJoin) and one.how != "inner"):
                if keeps_left and not (isinstance(one, RelationJoin) and one.how == "full"):
                    continue
                compared = {"Compared": "INTERSECT or EXCEPT", "RelationJoin": "IN or EXISTS"}
                what = takes_back(one, number) or compared.get(type(one).__name__, "DISTINCT")
                hint = "write UNION, or as the whole body SELECT k, MIN(v) FROM (...) GROUP BY k."
                raise self.binder.refuse(node, f"UNION ALL whose step applies {what} to its own rows", hint)

    # -- keys and limits -------------------------------------------------------------------------------------

    def _clauses(self, node: Any) -> Iterator[Clause]:
        """The clauses of a name: those that follow it before the next one."""
        start = parse.start_of(node.args["alias"].this) or 0
        for clause in self.binder.clauses:
            owners = [s for s in self.binder.starts if s < clause.start]
            if owners and max(owners) == start:
                yield clause

    def _limit(self) -> tuple[int | None, Any]:
        clauses = [c for node in self.nodes for c in self._clauses(node) if c.kind in {"raise", "return"}]
        if not clauses:
            return None, None
        return min(int(one.value) for one in clauses), "return" if all(
            c.kind == "return" for c in clauses
        ) else "raise"

    def _key(self, node: Any) -> str | None:
        return next((one.value for one in self._clauses(node) if one.kind == "key"), None)

    def _by_key(self, node: Any, whole: Relation, schema: pa.Schema, key: str) -> Relation:
        """DuckDB's ``USING KEY (k, min(v))``: one row for each key, with the least value."""
        names = {name.lower(): name for name in schema.names}
        keys, calls = dict[str, None](), dict[str, str]()
        for one in parse.parse_expression(f"key({key})").expressions:
            column = one.this if isinstance(one, exp.Min | exp.Max) else one
            name = names.get(column.name.lower(), column.name)
            if one is column and isinstance(one, exp.Column):
                keys[name] = None
            elif isinstance(column, exp.Column) and name not in calls:
                calls[name] = type(one).__name__.lower()
            else:
                shown = one.sql(dialect=parse.dialect())
                hint = "list keys, then min(column) or max(column)."
                raise self.binder.refuse(node.args["alias"], f"{shown} in USING KEY", hint)
        if sorted([*keys, *calls]) != sorted(schema.names) or not keys:
            left = [name for name in schema.names if name not in {*keys, *calls}]
            wrong = f"leaves out {', '.join(left) or 'the keys'}"
            wrong = wrong if left or not keys else "names other columns, or one twice"
            problem = f"USING KEY ({key}) {wrong}"
            hint = "say min(column) or max(column) for each other column, as none is last."
            raise self.binder.refuse(node.args["alias"], problem, hint)
        specs = tuple(
            (name, AggregateFunction(function, (name,), schema.field(name).type))
            for name, function in calls.items()
        )
        best = Aggregation(whole, tuple(keys), specs) if specs else Distinct(whole)
        return selected(best, schema.names)

    # -- what a loop can take back ---------------------------------------------------------------------------

    def _why_not_monotone(self, body: Relation, node: Any) -> str | None:
        """The operator through which a body takes back rows when its names get more; or None."""
        top = body
        while isinstance(top, Projection) and top.renames:
            top = top.input
        for one, number in _paths(body, self.loop):
            if (
                one is top
                and isinstance(one, Aggregation)
                and all(c.function in {"min", "max"} for _, c in one.calls)
            ):
                continue
            if (what := takes_back(one, number)) is not None:
                return what
        return None


#: operators that never drop a row when an input gets more
_MONOTONE = (Projection, Selection, Generated, Concat, Distinct, Recursion)


def takes_back(one: Relation, number: int) -> str | None:
    """Why an operator may drop rows when an input gets more; None if it never does."""
    if isinstance(one, _MONOTONE) or (isinstance(one, RelationJoin) and one.how in {"inner", "semi"}):
        return None
    match one:
        case RelationJoin(how="left" | "anti") | Compared() | Matched() if number == 0:
            return None
        case Matched(present=True) | Compared(operation="intersect"):
            return None
        case Aggregation(calls=calls):
            return f"the aggregate {', '.join(str(call.function) for _, call in calls)}"
        case RelationJoin(how=how):
            return {"left": "LEFT JOIN", "full": "FULL JOIN", "anti": "NOT EXISTS or an ANTI JOIN"}[how]
    words = {"Compared": "EXCEPT", "Limit": "LIMIT", "Window": "a window function"}
    return words.get(type(one).__name__, "an outer join, or NOT EXISTS")


def _reads(relation: Relation, loop: str, answers: dict[Relation, bool]) -> bool:
    """Whether a relation reads a loop's names, but as the rows that a subquery is asked for.

    Each of them is joined with its own answer, so a subquery over other tables is like a function of a row.
    """
    if relation not in answers:
        direct = isinstance(relation, Named) and relation.loop == loop
        inputs = () if isinstance(relation, DomainRows) else relation.inputs
        answers[relation] = direct or any(_reads(one, loop, answers) for one in inputs)
    return answers[relation]


def _paths(relation: Relation, loop: str) -> Iterator[tuple[Relation, int]]:
    """The operators over a loop's names, each with the number of the input that reads them."""
    answers: dict[Relation, bool] = {}
    for one in relation.walk():
        for number, each in enumerate(() if isinstance(one, DomainRows) else one.inputs):
            if _reads(each, loop, answers):
                yield one, number


def _bare(node: Any) -> Any:
    while isinstance(node, exp.Subquery) and not has_clauses(node) and not node.alias:
        node = node.this
    return node


def _with(ctes: Any, query: Any) -> Any:
    """A part of a `UNION` with the queries of the `WITH` before it."""
    tree = query.copy()
    if not isinstance(tree, exp.Select) or tree.args.get("with_"):
        tree = exp.select("*").from_(exp.Subquery(this=tree, alias=exp.to_identifier("part")))
    tree.set("with_", ctes.copy())
    return tree
