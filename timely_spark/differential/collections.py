"""`Collection`: a multiset of records that changes with time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pyarrow as pa

from timely_spark.differential.consolidation import lasting, transient
from timely_spark.differential.trace import DIFF, SEQUENCE
from timely_spark.errors import GraphError, SchemaError
from timely_spark.graph import (
    Skew,
    Suggests,
    caller,
    check_reserved,
    composed,
    describe,
    locate_errors,
    no_items,
    no_truth_value,
)
from timely_spark.graph.suggest import a_type
from timely_spark.operators.rows import computed
from timely_spark.show.table import schema_table
from timely_spark.state.hashing import HASH
from timely_spark.streams import Scope, Stream, check_same_scope
from timely_spark.times import PRODUCT

if TYPE_CHECKING:
    from timely_spark.methods import CollectionMethods
else:  # `operator` adds the methods
    CollectionMethods = Suggests

Columns: TypeAlias = str | Sequence[str] | None
"""The names of columns: one, several, or the default."""


@locate_errors
class Collection(CollectionMethods):
    """A multiset of records that changes with time, as a stream of changes.

    The law: at every time, an operator's accumulated output (the sum of its changes at earlier or equal
    times) is what a batch program computes from the accumulated inputs. So operators work in loops, and
    inputs may insert and delete records at any time.

    Made by `Stream.collection` and by operators on collections. Their argument `name` is that of `Stream`'s
    operators. `index`, `keys`, `skew`, `once`, `like` and `together` are for writing operators.

    **Columns:** `schema` has the records' columns; `stream` these, then `DIFF`, a long: the change of the
    record's multiplicity from the change's time on.

    Example:
        >>> import timely_spark as ts
        >>> flow = ts.Dataflow("degrees")
        >>> edges = flow.input("edges", "src long, dst long, diff long").collection(diff="diff")
        >>> _ = edges.count(keys="src").changes().capture("degrees")
        >>> ts.testing.run(flow, {"edges": [[(1, 2, 1), (1, 3, 1)], [(1, 2, -1)]]})["degrees"].rows()
        {0: [(1, 2, 1)], 1: [(1, 1, 1), (1, 2, -1)]}

    Source: McSherry et al., Differential dataflow, CIDR 2013.
    """

    __slots__ = ("_plain", "checks_removals", "index", "keys", "lasting", "later", "once", "signed", "skew")
    #: the class whose docstrings complete those of the methods of the same name here
    _explained_by = Stream
    #: reductions name their keys themselves
    _suggestions = dict.fromkeys(
        ("groupby", "agg", "aggregate", "reducebykey", "applyinpandas"),
        "count, sum, mean, min, max, top_k, reduce or reduce_batches, each with keys=...",
    )
    _elsewhere = Stream, "streams: call it before collection(), or behind changes()"

    def __init__(
        self,
        stream: Stream,
        keys: tuple[str, ...] | None = None,
        *,
        once: bool = False,
        skew: Skew | None = None,
        later: bool = False,
    ) -> None:
        #: whether each time's changes are consolidated, and whether those of later iterations than 0 are
        self.once, self.later = once, later
        #: the columns by which it is arranged; None if it is not
        self.keys = keys
        #: the hot keys of the arrangement; their records are on all workers
        self.skew = skew
        #: the output of its step; that of an arrangement also has sequence numbers, and H of the keys
        self.index = stream
        #: makes this collection without transient records; None if it has none
        self.lasting: Callable[[], Collection] | None = None
        #: whether multiplicities may be negative, so that records of two collections may cancel each other
        self.signed = False
        #: whether arrangements, outside loops, report records that are removed and were not inserted
        self.checks_removals = False
        self._plain = stream if keys is None else None
        if not self.schema.names:
            msg = "collection: its records have no columns"
            hint = "keep a column, or add a constant: select(one=pc.scalar(1))."
            raise SchemaError(msg, where=caller(), hint=hint)

    @property
    def stream(self) -> Stream:
        """The changes: the records' columns and `DIFF`."""
        if self._plain is None:
            with self.index.flow.graph.parts_of(self.index.stage):  # the name must not depend on the reader
                self._plain = self.index.select(*self.schema.names, DIFF)
        return self._plain

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records."""
        return pa.schema([field for field in self.index.schema if field.name not in {DIFF, SEQUENCE, HASH}])

    @property
    def scope(self) -> Scope:
        """The loop context of the collection."""
        return self.index.scope

    @property
    def quarantined(self) -> Collection:
        """The records that fail an ``expect(..., action="quarantine")``, of its result.

        **Columns:** out as in.

        Example: see `Stream.expect`.

        Raises:
            GraphError: the step does not quarantine.
        """
        return self.like(self.index.quarantined)

    def like(
        self,
        stream: Stream,
        keys: tuple[str, ...] | None = None,
        *,
        once: bool = False,
        skew: Skew | None = None,
    ) -> Collection:
        """A collection of the changes that an operator's step sends. For writing operators.

        Args:
            stream: the changes.
            keys: the columns by which they are arranged, if `stream` is the output of an `Arrange`.
            once: whether the step consolidates each time's changes.
            skew: the hot keys of the arrangement.

        **Columns:** in: the records', then `DIFF`; of an arrangement also the sequence number and H of
        the keys.

        Example:
            >>> import timely_spark as ts
            >>> x = ts.Dataflow("like").input("x", "n long").collection()
            >>> x.like(x.stream.exchange("n"))
            Collection(exchange: n int64)

        Raises:
            SchemaError: the only column is `DIFF`.
        """
        collection = Collection(stream, keys, once=once, skew=skew)
        collection.signed = self.signed
        collection.checks_removals = self.checks_removals
        return collection if once or self.lasting is None else transient(collection)

    def enter(self, scope: Scope, *, name: str | None = None) -> Collection:
        """This collection inside a loop, unchanged by its iterations.

        Operators let collections from outside their loop enter by themselves. Arrangements stay arranged.

        **Columns:** out as in.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("enter")
            >>> loop = flow.scope.inner(name="outer").inner(name="inner")
            >>> x = flow.input("x", "n long").collection().enter(loop)
            >>> x.scope.name, x.leave().scope.name
            ('outer.inner', 'outer')

        Raises:
            GraphError: `scope` is not inside the collection's.
        """
        check_product_order("enter", scope)
        entered = Collection(scope.enter(self.index, name=name), self.keys, skew=self.skew)
        entered.signed = self.signed
        return entered if self.lasting is None else transient(entered, lambda: lasting(self).enter(scope))

    def variable(self, scope: Scope, *, name: str | None = None) -> CollectionVariable:
        """A loop variable with this initial value; `set` must define its next value.

        **Columns:** out as in.

        Example:
            >>> import pyarrow.compute as pc, timely_spark as ts
            >>> flow = ts.Dataflow("countdown")
            >>> x = flow.input("x", "n long").collection()
            >>> n = x.variable(flow.scope.inner(name="loop"))
            >>> n.set(n.select(n=pc.field("n") - 1).where(pc.field("n") >= 0).concat(x).distinct())
            >>> _ = n.leave().changes().capture("out")
            >>> ts.testing.run(flow, {"x": [[2]]})["out"].rows()
            {0: [(0, 1), (1, 1), (2, 1)]}

        Raises:
            GraphError: `scope` is not a loop, or not inside the collection's scope.
        """
        return CollectionVariable(self, scope, name=name)

    def leave(self, *, name: str | None = None) -> Collection:
        """This collection outside its innermost loop: its value after the last iteration.

        The changes of all iterations leave, as they come: `consolidate` them if they are joined then, since a
        join would match what later iterations undo.

        **Columns:** out as in.

        Example:
            The value of the last iteration leaves:

            >>> import pyarrow.compute as pc, timely_spark as ts
            >>> flow = ts.Dataflow("halve")
            >>> n = flow.input("x", "n long").collection().variable(flow.scope.inner(name="loop"))
            >>> n.set(n.select(n=pc.shift_right(pc.field("n"), 1)))
            >>> _ = n.leave().changes().capture("out")
            >>> ts.testing.run(flow, {"x": [[5]]})["out"].rows()
            {0: [(0, 1)]}

        Raises:
            GraphError: the collection is in no loop.
        """
        left = Collection(self.stream.leave(name=name))
        left.signed = self.signed
        return transient(left)  # what an iteration inserts and a later one deletes

    @composed
    def changes(self, diff: str = "diff", *, name: str | None = None) -> Stream:
        """The collection as a stream of consolidated changes: per time at most one of each record.

        The changes up to an epoch sum up to the collection at that epoch: see `snapshot`.

        Args:
            diff: the name of the column of differences.

        **Columns:** out: the records'; then `diff`, a long that is not 0.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("changes")
            >>> _ = flow.input("x", "n long").collection().distinct().changes().capture("out")
            >>> ts.testing.run(flow, {"x": [[1, 1], [1, 2]]})["out"].rows()
            {0: [(1, 1)], 1: [(2, 1)]}

        Raises:
            SchemaError: the records have a column `diff`, or one without equality, such as an interval.
        """
        if diff in self.schema.names:
            msg = f"changes: diff={diff!r} is a column already ({describe(self.schema)})"
            raise SchemaError(msg, where=caller(), hint="give changes(diff=...) another name.")
        check_reserved("changes", caller(), [diff])
        columns = [*self.schema.names, {diff: DIFF}]
        if self.once:
            return computed(self.stream, *columns, name=name)
        return self.consolidate(name=name).stream.select(*columns)

    def together(self, operator: str, *others: Collection) -> list[Collection]:
        """This collection and others in one scope: those of outer scopes enter it. For writing operators.

        Example:
            >>> import timely_spark as ts
            >>> flow = ts.Dataflow("together")
            >>> x, y = flow.input("x", "n long").collection(), flow.input("y", "n long").collection()
            >>> y = y.enter(flow.scope.inner(name="loop"))
            >>> [one.scope.name for one in x.together("merge", y)]
            ['loop', 'loop']

        Raises:
            GraphError: one is not a collection, or of another flow, or in an unrelated loop.
        """
        for other in others:
            check_collection(operator, other, beside=self)
        every = [self, *others]
        scope = max((one.scope for one in every), key=lambda one: one.graph_scope.depth)
        return [one if one.scope == scope else one.enter(scope) for one in every]

    def __bool__(self) -> bool:
        return no_truth_value("collection")

    def __getitem__(self, column: object) -> NoReturn:
        no_items("collection", column)

    def __repr__(self) -> str:
        return f"Collection({self.index.name}: {describe(self.schema)})"

    def _repr_html_(self) -> str:
        keyed = "" if self.keys is None else f", arranged by {', '.join(self.keys)}"
        step = self.index.stage
        return schema_table(f"Collection {step.name}{keyed} ({step.where})", self.schema).html()


Stream._elsewhere = Collection, "collections: call it behind collection()"  # noqa: SLF001 - defined before this class


@locate_errors
class CollectionVariable(Collection):
    """A loop variable: in iteration 0 the initial collection, then the collection given to `set`.

    After iteration 0, its value is that of `set`'s collection in the iteration before. Several variables in
    one loop make a mutual recursion. Made by `Collection.variable`. The variable of streams is
    `timely_spark.Variable`, which has `feed`. Source: differential's Variable.

    Example:
        >>> import pyarrow.compute as pc, timely_spark as ts
        >>> flow = ts.Dataflow("halves")
        >>> loop = flow.scope.inner(name="loop")
        >>> n = flow.input("x", "n long").collection().variable(loop)
        >>> n.set(n.concat(n.select(n=pc.shift_right(pc.field("n"), 1))).distinct())
        >>> _ = n.leave().changes().capture("out")
        >>> ts.testing.run(flow, {"x": [[5]]})["out"].rows()
        {0: [(0, 1), (1, 1), (2, 1), (5, 1)]}
    """

    __slots__ = ("_initial",)

    def __init__(self, initial: Collection, scope: Scope, *, name: str | None = None) -> None:
        initial = lasting(initial)  # once before the loop, rather than in its iterations
        with scope.flow.graph.parts(scope.graph_scope, name):
            self._initial = initial.enter(scope)
            super().__init__(scope.variable(initial.stream, name=name))
        self.signed = initial.signed

    def set(self, result: Any, *, consolidate: bool = True) -> None:
        """Define the variable's next value: in each iteration `result` of the iteration before. Call it once.

        Args:
            result: a collection in the loop's scope, or one around it.
            consolidate: consolidate the changes that are fed back (see `iterate`).

        **Columns:** in: the variable's.

        Example:
            Two variables, each the other minus one: the values of a countdown after an even number of steps.

            >>> import pyarrow.compute as pc, timely_spark as ts
            >>> flow = ts.Dataflow("parity")
            >>> loop, x = flow.scope.inner(name="loop"), flow.input("x", "n long").collection()
            >>> less = lambda of: of.select(n=pc.field("n") - 1).where(pc.field("n") >= 0)
            >>> even, odd = x.variable(loop), x.where(pc.scalar(False)).variable(loop)
            >>> even.set(less(odd).concat(x).distinct())
            >>> odd.set(less(even).distinct())
            >>> _ = even.leave().changes().capture("out")
            >>> ts.testing.run(flow, {"x": [[5]]})["out"].rows()
            {0: [(1, 1), (3, 1), (5, 1)]}

        Raises:
            GraphError: the variable is set already, or `result` is not a collection, or of another loop.
            SchemaError: `result` has other columns.
        """
        check_collection("set", result, beside=self)
        if result.schema != self.schema:
            msg = (
                f"set: the variable has ({describe(self.schema)}), its next value ({describe(result.schema)})"
            )
            raise SchemaError(msg, where=caller(), hint="select the variable's columns, in its order.")
        variable: Any = self.index
        with variable.flow.graph.parts_of(variable.stage):
            if result.scope != self.scope:
                result = result.enter(self.scope)
            # the initial value is there in iteration 0 only
            both = result.concat(self._initial.negate()).stream
            fed = Collection(both, later=result.once)
            variable.feed((fed.consolidate() if consolidate else fed).stream)


def check_product_order(operator: str, scope: Scope) -> None:
    """Check that a scope's times are numbers in product order."""
    if scope.graph_scope.times != PRODUCT:
        where = f"scope {scope.name!r}" if scope.flow.graph.times == PRODUCT else f"flow {scope.flow.name!r}"
        msg = f"{operator}: {where} has times of its own kind, and traces compare times as columns of numbers"
        hint = (
            "collections need the product order of numbers: Dataflow's default, loops, and inner(time=int), "
            "in which enter_at(scope, '9 - n') turns an order round, and two nested scopes have pairs."
        )
        raise GraphError(msg, where=caller(), hint=hint)


def check_collection(operator: str, other: Any, *, beside: Collection | None = None) -> None:
    """Check that an argument is a collection, and of the flow of `beside`; None means of any flow.

    Example:
        >>> check_collection("peel", [(1, 2)])
        Traceback (most recent call last):
        timely_spark.errors.GraphError: peel got a list, not a collection (...)
        Hint: make a stream one with stream.collection().

    Raises:
        GraphError: it is not.
    """
    if not isinstance(other, Collection):
        msg = f"{operator} got {a_type(other)}, not a collection"
        raise GraphError(msg, where=caller(), hint="make a stream one with stream.collection().")
    if beside is not None and other.index.flow is not beside.index.flow:
        check_same_scope(operator, beside.index, [other.index])
