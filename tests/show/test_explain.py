"""The whole text of `explain` for small flows, and parts of it for special ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import timely_spark as ts
from timely_spark.errors import GraphError
from timely_spark.show import explain
from timely_spark.show.explain import step_plans


def word_count() -> ts.Dataflow:
    flow = ts.Dataflow("wordcount")
    lines = flow.source("lines", "line string")
    words = lines.flat_map(lambda row: row.line.split(), "word string", name="words")
    words.group_by("word").aggregate(count="count", name="counts").capture("totals")
    return flow


def reachability() -> ts.Dataflow:
    flow = ts.Dataflow("reachability")
    edges, roots = flow.input("edges", "src long, dst long"), flow.input("roots", "node long")

    def hop(reached: ts.Stream) -> ts.Stream:
        links = reached.scope.enter(edges)
        targets = reached.join(links, left=["node"], right=["src"]).select(node="dst")
        return targets.concat(reached).distinct(name="near")

    roots.loop(hop, name="hops").to_memory("near")
    return flow


def nested() -> ts.Dataflow:
    flow = ts.Dataflow("nested")

    def step(stream: ts.Stream) -> ts.Stream:
        known = stream.loop(lambda inner: inner.distinct(name="known"), name="inner")
        sums = known.group_by("k").aggregate(v=("sum", "v"), name="sums")
        return sums.distinct(name="new")

    left = flow.input("x", "k long, v long", epochs="manual").loop(step, name="outer", max_iterations=3)
    left.group_by("k").aggregate(n="count", name="counts").capture("out")
    return flow


WORD_COUNT = """\
Flow 'wordcount' on 2 workers

Steps: in topological order, loops indented
  lines   source clock                        (line string)               test_explain.py:N
  words   flat_map <lambda>        <- lines   (word string)               test_explain.py:N
  counts  aggregate count=count()  <- words   (word string, count int64)  test_explain.py:N
  totals  output capture           <- counts                              test_explain.py:N

Vertices: each worker hosts one instance; below each, its input channels
  counts  aggregate count=count(), waits until a time is complete
    from lines: partitioned by word at the source, free; runs in the source's tasks: words
  totals  output capture
    from counts: stays on its worker

Rounds
  an epoch takes 1 round, loops included: there is no exchange on its path
  exchanges without a round: 1 at the sources, 0 elided (already partitioned)
  epochs: what a batch finds is an epoch (lines); no input delays the flow
  micro-batches: each stays for many epochs where start() allows it (query.status["residency"])
"""

REACHABILITY = """\
Flow 'reachability' on 2 workers

Steps: in topological order, loops indented
  edges            source clock                                     (src int64, dst int64)   test_explain.py:N
  roots            source clock                                     (node int64)             test_explain.py:N
  hops:            loop                                                                      test_explain.py:N
    hops.enter     enter            <- roots                        (node int64)             test_explain.py:N
    hops.enter_2   enter            <- edges                        (src int64, dst int64)   test_explain.py:N
    hops.variable  variable         <- hops.enter, hops.feedback    (node int64)             test_explain.py:N
    hops.join      join node = src  <- hops.variable, hops.enter_2  (node int64, dst int64)  test_explain.py:N
    hops.select    select node=dst  <- hops.join                    (node int64)             test_explain.py:N
    hops.concat    concat           <- hops.select, hops.variable   (node int64)             test_explain.py:N
    hops.near      distinct         <- hops.concat                  (node int64)             test_explain.py:N
    hops.feedback  feedback         <- hops.near                    (node int64)             test_explain.py:N
  hops.leave       leave            <- hops.near                    (node int64)             test_explain.py:N
  near             output memory    <- hops.leave                                            test_explain.py:N

Vertices: each worker hosts one instance; below each, its input channels
  hops.variable  variable
    from roots at input 0: partitioned by node at the source, free; over hops.enter
    from hops.near at input 1: stays on its worker, already partitioned by node; over hops.feedback
  hops.join  join node = src
    from hops.variable at input 0: stays on its worker, already partitioned by node
    from edges at input 1: partitioned by src at the source, free; over hops.enter_2
  hops.near  distinct
    from hops.variable: stays on its worker, already partitioned by node; over hops.concat
    from hops.join: EXCHANGE by node, combined before it is sent; runs before it: hops.select; over hops.concat
  near  output memory
    from hops.near: stays on its worker, already partitioned by node; over hops.leave

Rounds
  an epoch takes 1 round, and 1 more for each exchange on its path: 1 in loop 'hops'
  exchanges without a round: 2 at the sources, 4 elided (already partitioned)
  loop 'hops': iterations are not distinguished, the loop runs to a fixed point; a round ends when records must change workers
  epochs: what a batch finds is an epoch (edges, roots); no input delays the flow
  micro-batches: each stays for many epochs where start() allows it (query.status["residency"])
"""  # noqa: E501

NESTED = """\
Flow 'nested' on 2 workers

Steps: in topological order, loops indented
  x                            source manual                                                              (k int64, v int64)  test_explain.py:N
  outer:                       loop, at most 3 iterations                                                                     test_explain.py:N
    outer.enter                enter                          <- x                                        (k int64, v int64)  test_explain.py:N
    outer.variable             variable                       <- outer.enter, outer.feedback              (k int64, v int64)  test_explain.py:N
    outer.inner:               loop                                                                                           test_explain.py:N
      outer.inner.enter        enter                          <- outer.variable                           (k int64, v int64)  test_explain.py:N
      outer.inner.variable     variable                       <- outer.inner.enter, outer.inner.feedback  (k int64, v int64)  test_explain.py:N
      outer.inner.known        distinct                       <- outer.inner.variable                     (k int64, v int64)  test_explain.py:N
      outer.inner.feedback     feedback                       <- outer.inner.known                        (k int64, v int64)  test_explain.py:N
    outer.inner.leave          leave                          <- outer.inner.known                        (k int64, v int64)  test_explain.py:N
    outer.inner.leave.settled  settle                         <- outer.inner.leave                        (k int64, v int64)  test_explain.py:N, inserted
    outer.sums                 aggregate v=sum(v)             <- outer.inner.leave.settled                (k int64, v int64)  test_explain.py:N
    outer.new                  distinct                       <- outer.sums                               (k int64, v int64)  test_explain.py:N
    outer.feedback             feedback at most 3 iterations  <- outer.new                                (k int64, v int64)  test_explain.py:N
  outer.leave                  leave                          <- outer.new                                (k int64, v int64)  test_explain.py:N
  outer.leave.settled          settle                         <- outer.leave                              (k int64, v int64)  test_explain.py:N, inserted
  counts                       aggregate n=count()            <- outer.leave.settled                      (k int64, n int64)  test_explain.py:N
  out                          output capture                 <- counts                                                       test_explain.py:N

Vertices: each worker hosts one instance; below each, its input channels
  outer.inner.known  distinct
    from x: partitioned by k, v at the source, free; over outer.enter, outer.variable, outer.inner.enter, outer.inner.variable
    from outer.inner.known: stays on its worker, already partitioned by k, v; over outer.inner.feedback, outer.inner.variable
    from outer.new: stays on its worker, already partitioned by k, v; over outer.feedback, outer.variable, outer.inner.enter, outer.inner.variable
  outer.inner.leave.settled  settle, waits until a time is complete
    from outer.inner.known: stays on its worker, already partitioned by k, v; over outer.inner.leave
  outer.sums  aggregate v=sum(v), waits until a time is complete
    from outer.inner.leave.settled: EXCHANGE by k, combined before it is sent
  outer.new  distinct
    from outer.sums: EXCHANGE by k, v, combined before it is sent
  outer.leave.settled  settle, waits until a time is complete
    from outer.new: stays on its worker, already partitioned by k, v; over outer.leave
  counts  aggregate n=count(), waits until a time is complete
    from outer.leave.settled: EXCHANGE by k, combined before it is sent
  out  output capture
    from counts: stays on its worker

Rounds
  an epoch takes 1 round, and 1 more for each exchange on its path: 2 in loop 'outer', 1 outside loops
  exchanges without a round: 1 at the sources, 4 elided (already partitioned)
  loop 'outer': outer.leave.settled waits until the loop has ended on all workers, up to 1 round more
  loop 'outer': iterations are distinguished (there are at most 3 and outer.sums, outer.inner.leave.settled wait); each takes a round per exchange in it
  loop 'outer.inner': iterations are not distinguished, the loop runs to a fixed point; no exchange in it
  epochs: x delays the flow until the program advances or closes it
  micro-batches: each stays for many epochs where start() allows it (query.status["residency"])
"""  # noqa: E501


@pytest.mark.parametrize(
    ("flow", "text"), [(word_count, WORD_COUNT), (reachability, REACHABILITY), (nested, NESTED)]
)
def test_a_flow_is_explained(flow: Callable[[], ts.Dataflow], text: str) -> None:
    assert re.sub(r"\.py:\d+", ".py:N", explain(flow(), 2, expand=True)) + "\n" == text


COMPONENTS = """\
Flow 'components' on 2 workers

Steps: in topological order, loops indented
  edges    source clock                                                  (src int64, dst int64)                     test_explain.py:N
  select   select src, dst, diff=1                           <- edges    (src int64, dst int64)                     test_explain.py:N
  parts    strongly_connected_components: 87 steps, 4 loops  <- select   (node int64, component int64)              test_explain.py:N
  changes  changes: 2 steps                                  <- parts    (node int64, component int64, diff int64)  test_explain.py:N
  out      output capture                                    <- changes                                             test_explain.py:N

Vertices: each worker hosts one instance; below each, its input channels
  parts  strongly_connected_components, 35 vertices, 13 exchanges between them, 12 wait until a time is complete
    from edges: partitioned by src, dst at the source, free
  changes  changes, 1 vertex, waits until a time is complete
    from parts: stays on its worker, already partitioned by node
  out  output capture
    from changes: stays on its worker; runs before it: changes

Rounds
  an epoch takes 1 round, and 1 more for each exchange on its path: 6 outside loops, 7 in loops of 'parts'
  exchanges without a round: 1 at the sources, 38 elided (already partitioned)
  epochs: what a batch finds is an epoch (edges); no input delays the flow
  micro-batches: each stays for many epochs where start() allows it (query.status["residency"])
"""  # noqa: E501


def test_an_algorithm_is_one_row() -> None:
    flow = ts.Dataflow("components")
    edges = flow.input("edges", "src long, dst long").collection()
    ts.graphs.strongly_connected_components(edges, name="parts").changes().capture("out")

    assert re.sub(r"\.py:\d+", ".py:N", explain(flow, 2)) + "\n" == COMPONENTS


def test_a_step_shows_the_line_on_which_it_was_written() -> None:
    flow = ts.Dataflow("lines")
    _ = flow.input("x", "n long").capture("out")
    line = sys._getframe().f_lineno - 1

    assert explain(flow).splitlines()[3].endswith(f"  test_explain.py:{line}")


def test_one_worker_exchanges_nothing() -> None:
    text = explain(nested(), 1)

    assert "EXCHANGE" not in text
    assert "worker, already partitioned" not in text
    assert "an epoch takes 1 round, loops included: one worker exchanges nothing" in text


def test_an_explicit_exchange_is_elided_if_the_partitioning_fits() -> None:
    flow = ts.Dataflow("elided")
    flow.input("x", "k long, v long").group_by("k").aggregate(v=("sum", "v")).exchange("k").capture("out")

    text = explain(flow)

    assert "from aggregate: stays on its worker, already partitioned by k; over exchange" in text
    assert "exchanges without a round: 1 at the sources, 1 elided (already partitioned)" in text


def test_a_broadcast_and_an_exchange_behind_a_vertex_cost_a_round_each() -> None:
    flow = ts.Dataflow("costly")
    summed = flow.input("x", "k long, v long").group_by("k").aggregate(v=("sum", "v"), name="sums")
    summed.exchange("v").capture("by_v")
    summed.broadcast().capture("everywhere")

    text = explain(flow, 3)

    assert "from sums: EXCHANGE by v; over exchange" in text
    assert "from sums: EXCHANGE broadcast; over broadcast" in text
    assert "1 more for each exchange on its path: 2 outside loops" in text


def test_an_output_of_several_is_named_by_its_number() -> None:
    flow = ts.Dataflow("branches")
    flow.input("x", "n long").branch(lambda row: row.n > 0, name="sign").falses.capture("out")

    assert "from x: not exchanged; runs in the source's tasks: sign" in explain(flow)
    assert "<- sign[1]" in explain(flow)


def test_explain_shows_how_epochs_end() -> None:
    flow = ts.Dataflow("by column")
    source = flow.source("events", "day long, n long", epoch="day")
    source.capture("out")
    source.late.capture("late")

    text = explain(flow)

    assert "epochs: events ends an epoch a round after a higher day was seen" in text
    assert "from events[1]: not exchanged" in text


def test_an_incomplete_flow_is_refused() -> None:
    flow = ts.Dataflow("open")
    flow.scope.inner().variable(flow.input("x", "n long"))

    with pytest.raises(GraphError, match="never fed"):
        explain(flow)


def test_dataflow_explain_prints(capsys: pytest.CaptureFixture[str]) -> None:
    flow = word_count()
    flow.explain(3)

    assert capsys.readouterr().out == explain(flow, 3) + "\n"


def described() -> str:
    return "\n".join(
        f"{explain(make(), 4)}\n{make().to_mermaid()}" for make in (word_count, reachability, nested)
    )


@pytest.mark.slow
def test_the_text_is_the_same_in_every_process() -> None:
    script = "import runpy, sys; print(end=runpy.run_path(sys.argv[1])['described']())"
    environment = os.environ | {"PYTHONHASHSEED": "1"}  # this process has another one
    command = [sys.executable, "-c", script, Path(__file__)]
    printed = subprocess.check_output(command, env=environment, text=True)

    assert printed == described()
    assert " at 0x" not in printed


def test_each_step_and_box_has_its_part_of_the_plan() -> None:
    assert step_plans(word_count().compile(2)) == {
        "step:words": "runs in the source's tasks, before counts",
        "step:counts": "waits until a time is complete\n"
        "from lines: partitioned by word at the source, free; runs in the source's tasks: words",
        "step:totals": "from counts: stays on its worker",
    }
    plans = step_plans(reachability().compile(2))
    assert plans["step:hops.select"] == "runs with hops.join, before hops.near"
    assert "from hops.join: EXCHANGE by node, combined before it is sent; runs" in plans["step:hops.near"]
    assert "step:edges" not in plans
    flow = ts.Dataflow("parts")
    edges = flow.input("edges", "src long, dst long").collection()
    ts.graphs.strongly_connected_components(edges, name="parts").changes().capture("out")
    plans = step_plans(flow.compile(2))
    first, second = plans["call:parts"].splitlines()
    assert re.fullmatch(r"\d+ vertices, \d+ exchanges between them, \d+ wait until a time is complete", first)
    assert second == "from edges: partitioned by src, dst at the source, free"
    assert "runs in the source's tasks: select, parts.select, parts.where" in plans["step:parts.distinct"]


def test_a_dataframe_keeps_micro_batches_from_staying_unless_it_may_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flow = word_count()
    flow.frames["clicks"] = SimpleNamespace(isStreaming=True)  # type: ignore[assignment]
    flow.explain()
    printed = capsys.readouterr().out
    assert "micro-batches: one for each epoch, because source 'clicks' is a DataFrame" in printed
