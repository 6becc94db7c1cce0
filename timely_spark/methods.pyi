# Written by `make methods`. Operators add themselves to streams and collections, but type checkers
# do not see it: they read this file. Only here a name may come from a layer above.
import os
from collections.abc import Callable, Mapping
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame

import timely_spark.differential.arranged
import timely_spark.differential.asof
import timely_spark.differential.broadcasts
import timely_spark.differential.joins
import timely_spark.differential.linear
import timely_spark.differential.loops
import timely_spark.differential.map_reduce
import timely_spark.differential.outputs
import timely_spark.differential.reductions
import timely_spark.differential.sets
import timely_spark.differential.upserts
import timely_spark.differential.windows
import timely_spark.operators.aggregate
import timely_spark.operators.asof
import timely_spark.operators.branch
import timely_spark.operators.call
import timely_spark.operators.custom
import timely_spark.operators.expect
import timely_spark.operators.expire
import timely_spark.operators.finalise
import timely_spark.operators.group_by
import timely_spark.operators.group_map
import timely_spark.operators.join
import timely_spark.operators.lattice
import timely_spark.operators.loop
import timely_spark.operators.monotone
import timely_spark.operators.outputs
import timely_spark.operators.pipe
import timely_spark.operators.route
import timely_spark.operators.rows
import timely_spark.operators.sets
import timely_spark.operators.top_k
import timely_spark.operators.windows
from timely_spark.dataflow import Dataflow as Dataflow
from timely_spark.differential.collections import Collection
from timely_spark.graph import Suggests
from timely_spark.input_streams import Input as Input
from timely_spark.operators.outputs import Release
from timely_spark.runtime.handle.query import Query as Query

class StreamMethods(Suggests):
    __slots__ = ()
    aggregate = timely_spark.operators.aggregate.aggregate
    asof_join = timely_spark.operators.asof.asof_join
    binary = timely_spark.operators.custom.binary
    binary_notify = timely_spark.operators.custom.binary_notify
    branch = timely_spark.operators.branch.branch
    broadcast = timely_spark.operators.route.broadcast
    call = timely_spark.operators.call.call
    capture = timely_spark.operators.outputs.capture
    capture_to = timely_spark.operators.outputs.capture_to
    collection = timely_spark.differential.linear.collection
    concat = timely_spark.operators.route.concat
    count_distinct = timely_spark.operators.lattice.count_distinct
    delay = timely_spark.operators.route.delay
    distinct = timely_spark.operators.monotone.distinct
    enter = timely_spark.operators.loop.enter
    exchange = timely_spark.operators.route.exchange
    expect = timely_spark.operators.expect.expect
    expire = timely_spark.operators.expire.expire
    filter = timely_spark.operators.rows.where
    flat_map = timely_spark.operators.rows.flat_map
    foreach_epoch = timely_spark.operators.outputs.foreach_epoch
    group_by = timely_spark.operators.group_by.group_by
    inspect = timely_spark.operators.outputs.inspect
    intersect = timely_spark.operators.sets.intersect
    join = timely_spark.operators.join.join
    leave = timely_spark.operators.loop.leave
    loop = timely_spark.operators.loop.loop
    map = timely_spark.operators.rows.map
    map_batches = timely_spark.operators.rows.map_batches
    max = timely_spark.operators.monotone.max
    merge = timely_spark.operators.lattice.merge
    min = timely_spark.operators.monotone.min
    pipe = timely_spark.operators.pipe.pipe
    probe = timely_spark.operators.outputs.probe
    select = timely_spark.operators.rows.select
    select_many = timely_spark.operators.rows.flat_map
    settle = timely_spark.operators.finalise.settle
    stateful_map = timely_spark.operators.group_map.stateful_map
    stateful_map_batches = timely_spark.operators.group_map.stateful_map_batches
    subscribe = timely_spark.operators.outputs.subscribe
    subtract = timely_spark.operators.sets.subtract
    to_delta = timely_spark.operators.outputs.to_delta
    to_files = timely_spark.operators.outputs.to_files
    to_kafka = timely_spark.operators.outputs.to_kafka
    to_memory = timely_spark.operators.outputs.to_memory
    top_k = timely_spark.operators.top_k.top_k
    unary = timely_spark.operators.custom.unary
    unary_notify = timely_spark.operators.custom.unary_notify
    union = timely_spark.operators.sets.union
    upserts = timely_spark.differential.upserts.upserts
    when = timely_spark.operators.lattice.when
    where = timely_spark.operators.rows.where
    window = timely_spark.operators.windows.window

class CollectionMethods(Suggests):
    __slots__ = ()
    antijoin = timely_spark.differential.joins.antijoin
    arrange = timely_spark.differential.arranged.arrange
    asof_join = timely_spark.differential.asof.asof_join
    broadcast_join = timely_spark.differential.broadcasts.broadcast_join
    def capture(self, name: str | None = ..., *, diff: str = ...) -> Collection: ...
    def capture_to(
        self, path: str | os.PathLike[str], *, overwrite: bool = ..., name: str | None = ..., diff: str = ...
    ) -> Collection: ...
    concat = timely_spark.differential.linear.concat
    consolidate = timely_spark.differential.linear.consolidate
    count = timely_spark.differential.reductions.count
    distinct = timely_spark.differential.reductions.distinct
    enter_at = timely_spark.differential.loops.enter_at
    expect = timely_spark.differential.linear.expect
    filter = timely_spark.differential.linear.where
    flat_map = timely_spark.differential.linear.flat_map
    def foreach_epoch(
        self,
        function: Callable[[DataFrame, int], object],
        *,
        release: Release = ...,
        name: str | None = ...,
        diff: str = ...,
    ) -> Collection: ...
    def inspect(self, name: str | None = ..., *, limit: int = ..., diff: str = ...) -> Collection: ...
    intersect = timely_spark.differential.sets.intersect
    iterate = timely_spark.differential.loops.iterate
    iterate_until = timely_spark.differential.map_reduce.iterate_until
    join = timely_spark.differential.joins.join
    map = timely_spark.differential.linear.map
    map_batches = timely_spark.differential.linear.map_batches
    map_reduce = timely_spark.differential.map_reduce.map_reduce
    max = timely_spark.differential.reductions.max
    mean = timely_spark.differential.reductions.mean
    min = timely_spark.differential.reductions.min
    negate = timely_spark.differential.linear.negate
    probe = timely_spark.differential.outputs.probe
    publish = timely_spark.differential.outputs.publish
    reduce = timely_spark.differential.reductions.reduce
    reduce_batches = timely_spark.differential.reductions.reduce_batches
    select = timely_spark.differential.linear.select
    semijoin = timely_spark.differential.joins.semijoin
    def subscribe(
        self,
        on_epoch: Callable[[int, pa.Table], object],
        on_complete: Callable[[], object] | None = ...,
        *,
        release: Release = ...,
        name: str | None = ...,
        diff: str = ...,
    ) -> Collection: ...
    subtract = timely_spark.differential.sets.subtract
    sum = timely_spark.differential.reductions.sum
    threshold = timely_spark.differential.reductions.threshold
    to_delta = timely_spark.differential.outputs.to_delta
    def to_files(
        self,
        path: str | os.PathLike[str],
        format: Literal["parquet", "arrow", "csv"] = ...,
        *,
        overwrite: bool = ...,
        name: str | None = ...,
        diff: str = ...,
    ) -> Collection: ...
    def to_kafka(
        self,
        topic: str,
        servers: str,
        *,
        key: str | None = ...,
        value: Callable[[Column], Column] | None = ...,
        options: Mapping[str, str] | None = ...,
        name: str | None = ...,
        diff: str = ...,
    ) -> Collection: ...
    def to_memory(self, name: str, *, release: Release = ..., diff: str = ...) -> Collection: ...
    top_k = timely_spark.differential.reductions.top_k
    union = timely_spark.differential.sets.union
    where = timely_spark.differential.linear.where
    window = timely_spark.differential.windows.window
