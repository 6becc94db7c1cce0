"""pipe and ExternalVertex: the protocol, state, restarts, and every way in which a program fails."""

from __future__ import annotations

import gc
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import timely_spark as ts
from tests.support.rescaling import move
from timely_spark.errors import CapabilityError, GraphError, StateError, VertexError
from timely_spark.graph import Partition
from timely_spark.operators import pipe
from timely_spark.operators import program as module
from timely_spark.state.arrow import to_bytes
from timely_spark.state.exchange import partitioned
from timely_spark.testing import Simulation, run

ROOT = Path(__file__).parents[2]
TRIED = {"pipe": lambda x, _: x.pipe(perl(FORWARD), "k long, v long", name="it")}

# Perl has no Arrow, but starts in milliseconds: it passes records on, and counts messages.
LOOP = """
use JSON::PP; $| = 1; binmode STDIN; binmode STDOUT; my $calls = 0;
sub answer { my ($head, $body) = @_; $head->{bytes} = length $body; print encode_json($head) . "\\n" . $body }
while (my $line = <STDIN>) {
  my $m = decode_json($line); my $body = ""; read(STDIN, $body, $m->{bytes}) if $m->{bytes};
  %s
  print '{"verb":"done","version":1}' . "\\n";
}
"""
FORWARD = 'answer({verb => "send", time => $m->{time}}, $body) if $m->{verb} eq "recv";'
#: holds each batch back until its time is complete; has a state that only it can read
BUFFER = """
  our %held; my $v = $m->{verb};
  if ($v eq "open") { %held = $body ? %{decode_json($body)} : () }
  if ($v eq "recv") { $held{encode_json($m->{time})} = unpack("H*", $body);
                      answer({verb => "notify_at", time => $m->{time}}, "") }
  if ($v eq "notify" and defined(my $b = delete $held{encode_json($m->{time})})) {
    answer({verb => "send", output => 0, time => $m->{time}}, pack("H*", $b)) }
  answer({verb => "state"}, JSON::PP->new->canonical->encode(\\%held)) if $v eq "checkpoint" and %held;
"""

pytestmark = pytest.mark.skipif(shutil.which("perl") is None, reason="no perl")


def perl(body: str) -> list[str]:
    return ["perl", "-e", LOOP.replace("%s", body)]


def flow(command: Any, *, by: Any = "n", **options: Any) -> ts.Dataflow:
    made = ts.Dataflow("piped")
    made.input("x", "n long").pipe(command, "n long", by=by, name="it", **options).capture("out")
    return made


@pytest.fixture(scope="module")
def totals(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """The program of the page."""
    page = (ROOT / "docs/programs.md").read_text()
    (text,) = re.findall(r'PROGRAM = r"""\n(.*?)"""', page, re.DOTALL)
    script = tmp_path_factory.mktemp("program") / "totals.py"
    script.write_text(text)
    return [sys.executable, str(script)]


def totals_flow(command: Sequence[str]) -> ts.Dataflow:
    made = ts.Dataflow("totals")
    made.input("x", "key string, n long").pipe(
        command, "key string, total long", by="key", name="total"
    ).capture("out")
    return made


@pytest.mark.parametrize("workers", [1, 3])
def test_records_go_through_a_program_of_another_language(workers: int) -> None:
    epochs = [[3, 1, 2], [], [1]]
    rows = run(flow(perl(FORWARD)), {"x": epochs}, workers=workers)["out"].rows()
    assert rows == {i: [(n,) for n in sorted(epoch)] for i, epoch in enumerate(epochs)}


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(6))
def test_notifications_and_state_are_those_of_a_vertex_whatever_crashes(seed: int) -> None:
    # a worker's batches of a time are one; more than one worker, late messages, budgets and crashes
    epochs = [[epoch, epoch + 10] for epoch in range(4)]
    rows = run(flow(perl(BUFFER)), {"x": epochs}, workers=2, seed=seed, crashes=0.4)["out"].rows()
    assert rows == {epoch: [(epoch,), (epoch + 10,)] for epoch in range(4)}


@pytest.mark.slow
def test_a_program_of_python_keeps_state_by_key_and_is_rescaled(totals: Sequence[str]) -> None:
    made = totals_flow(totals)
    epochs = [[("a", 1), ("b", 2)], [("a", 10), ("c", 5)]]
    first = Simulation(made, workers=2, seed=3, crashes=0.3)
    for epoch in epochs:
        first.send("x", epoch)
        first.run()
    assert first.captured["out"].rows() == {0: [("a", 1), ("b", 2)], 1: [("a", 11), ("c", 5)]}
    move(first, made, 3)
    first.send("x", [("c", 1), ("b", 1), ("a", 1)])
    first.run()
    assert first.captured["out"].rows()[2] == [("a", 12), ("b", 3), ("c", 6)]


def test_state_that_only_the_program_reads_is_not_rescaled() -> None:
    count = 'answer({verb => "state"}, "x") if $m->{verb} eq "checkpoint";'
    made = flow(perl(count))
    simulation = Simulation(made, workers=2)
    simulation.send("x", [1, 2, 3, 4])
    simulation.run()
    with pytest.raises(VertexError, match=r"(?s)'it'.*state that only it can read.*Hint: start with"):
        move(simulation, made, 3)


def test_a_state_without_the_columns_of_the_key_is_not_rescaled() -> None:
    vertex = ts.ExternalVertex(perl(FORWARD))
    states = [{"state": to_bytes(pa.table({"m": [1]})), "table": True}]
    key = Partition(("n",))
    with pytest.raises(StateError, match=r"(?s)state with columns \(m int64\).*n.*Hint: answer"):
        vertex.repartition(states, 2, lambda _, table: list(partitioned(table, key, 2).values()))


def test_a_program_without_state_is_rescaled() -> None:
    made = flow(perl(FORWARD))
    simulation = Simulation(made, workers=2)
    simulation.send("x", [1, 2, 3])
    simulation.run()
    move(simulation, made, 1)
    simulation.send("x", [4])
    simulation.run()
    assert simulation.captured["out"].rows() == {0: [(1,), (2,), (3,)], 1: [(4,)]}


def test_several_inputs_and_outputs_and_a_loop() -> None:
    switch = """answer({verb => "send", output => 1 - $m->{input}, time => $m->{time}}, $body)
                if $m->{verb} eq "recv";"""
    made = ts.Dataflow("switched")
    sides = [made.input("x", "n long"), made.input("y", "n long")]
    for name, out in zip(
        "ab", made.vertex(ts.ExternalVertex(perl(switch)), sides, ["n long"] * 2), strict=True
    ):
        out.capture(name)
    results = run(made, {"x": [[1]], "y": [[2]]})
    assert (results["a"].rows(), results["b"].rows()) == ({0: [(2,)]}, {0: [(1,)]})
    # each iteration is a time of its own: three counters pass through the program, and back
    looped = ts.Dataflow("looped")

    def body(n: ts.Stream) -> ts.Stream:
        less = n.pipe(perl(BUFFER), "n long").select(n=pc.subtract(pc.field("n"), 1))
        return less.where(pc.field("n") > 0)

    looped.input("x", "n long").loop(body, name="down").capture("out")
    assert run(looped, {"x": [[3], [2]]}, workers=2)["out"].rows() == {0: [(1,), (2,)], 1: [(1,)]}


def test_one_program_serves_a_worker_for_many_batches(tmp_path: Path) -> None:
    started = tmp_path / "started"
    counting = (
        f'if ($m->{{verb}} eq "open") {{ open(my $f, ">>", "{started}"); '
        r'print $f $m->{worker}, $m->{table} ? " with" : " without", " a table\n" }'
    )
    simulation = Simulation(flow(perl(counting + FORWARD)), workers=2)
    for epoch in range(5):
        simulation.send("x", [epoch, epoch + 1, epoch + 2, epoch + 3])
        simulation.run()
        gc.collect(0)  # vertices of batches before
    opened = sorted(started.read_text().splitlines())
    assert opened == [f"{worker} without a table" for worker in range(2)], (
        "each worker opens its program once"
    )


@pytest.mark.parametrize("kept", [1 << 20, 0])  # 0: the state is asked for after each call
def test_a_program_that_is_killed_in_the_middle_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(pipe, "_REPLAYED_BYTES", kept)
    # it dies once in the second call of its second batch, after it has answered half
    once = tmp_path / "once"
    count = f"""
      our $n; my $v = $m->{{verb}};
      $n = $body || 0 if $v eq "open";
      if ($v eq "recv") {{
        $n++; answer({{verb => "send", time => $m->{{time}}}}, $body);
        if ($n == 5 and !-e "{once}") {{ open(my $f, ">", "{once}"); kill 9, $$ }}
      }}
      answer({{verb => "state"}}, $n) if $v eq "checkpoint" and $n;
    """

    def rows() -> Any:
        made = ts.Dataflow("two")
        xs = [made.input(name, "n long") for name in "xyz"]
        (out,) = made.vertex(ts.ExternalVertex(perl(count)), xs, ["n long"], name="it")
        out.capture("out")
        simulation = Simulation(made)
        for epoch in range(3):
            for name in "xyz":
                simulation.send(name, [epoch])
            simulation.run()
        return simulation.captured["out"].rows(), simulation.states[0]

    killed = rows()
    assert once.exists()
    assert killed == rows(), "the state, too: replayed calls are counted once"
    assert killed[0] == {epoch: [(epoch,)] * 3 for epoch in range(3)}


SEND = '{verb => "send", time => $m->{time}}'
STATE = """print '{"verb":"state","table":true,"bytes":4}' . "\\njunk" if $m->{verb} eq "checkpoint" """
FAILURES = [
    (
        'print STDERR "no memory\\n"; exit 3 if $recv',
        r"ended with code 3; its standard error: (no memory\s+)+",
    ),
    ("kill 11, $$ if $recv", "was killed by signal 11"),
    ('print "hello\\n" if $recv', "wrote 'hello', which is not a message.*standard error"),
    ('print "[1]\\n" if $recv', r"wrote '\[1\]', which is not a message"),
    ('print "x" x 70000 if $recv', "wrote 'xxx.*which is not a message"),
    ("sleep 60", "did not answer within 0.2 s.*timeout="),
    (f'answer({SEND}, "junk") if $recv', "answered .*Arrow"),
    ('answer({verb => "send", time => "junk"}, $body) if $recv', "answered .*junk"),
    ('answer({verb => "send"}, $body) if $recv', "answered .*KeyError: 'time'"),
    (f"my $s = {SEND}; $s->{{output}} = 5; answer($s, $body) if $recv", "sends by output 5"),
    ('answer({verb => "send", time => [0]}, $body) if $recv and $m->{time}[0]', "sends at .*0"),
    ('answer({verb => "state"}, "") if $recv', "answered 'state' to a call"),
    ('answer({verb => "send", time => [0]}, "") if !$recv and $seen++ > 1', r"\['send'\] to 'checkpoint'"),
    (STATE, "a state that is no Arrow stream"),
    ("""print '{"verb":"done","version":2}', "\\n"; next""", "of version 1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("body", "message"), FAILURES, ids=range(len(FAILURES)))
def test_a_program_that_fails_is_named_with_the_reason(body: str, message: str) -> None:
    body = f'our $seen; my $recv = $m->{{verb}} eq "recv"; {body};'
    made = flow(perl(body), timeout=0.2 if "sleep" in body else 20)
    with pytest.raises((VertexError, CapabilityError), match=rf"(?s)step 'it'.*{message}"):
        run(made, {"x": [[1], [2]]})


def test_an_answer_before_the_end_of_a_message_is_refused() -> None:
    hasty = 'if ($m->{verb} eq "recv") { print qq({"verb":"done"}\n) x 2; next }'
    with pytest.raises(VertexError, match="more after it"):
        run(flow(perl(hasty)), {"x": [[1]]})


def test_a_program_may_answer_while_it_reads() -> None:
    # more than a pipe holds, both ways at once
    eager = """
      if ($m->{verb} eq "recv") { print STDERR "x" x 500000; my $half = length($body);
        answer({verb => "send", time => $m->{time}}, $body) for 1..3 }
    """
    many = pa.table({"n": range(100_000)})
    simulation = Simulation(flow(perl(eager)))
    simulation.send("x", many)
    simulation.run()
    assert simulation.captured["out"].epochs[0].num_rows == 300_000


def test_a_program_that_ends_between_two_batches_costs_no_attempt() -> None:
    mortal = FORWARD + 'if ($m->{verb} eq "checkpoint") { print qq({"verb":"done"}\\n); exit }'
    made = flow(perl(mortal), attempts=1)
    simulation = Simulation(made)
    for n in range(3):
        simulation.send("x", [n])
        simulation.run()
        [*module._unused.values()][-1]._process.wait(10)  # the one that was put back last
    assert simulation.captured["out"].rows() == {n: [(n,)] for n in range(3)}


def test_programs_that_are_not_used_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.02)
    program = module.Program(tuple(perl("")), ())
    module.put_back(("key", 0), program)
    program._process.wait(timeout=10)
    assert module.reused(("key", 0)) is None


def test_mistakes_are_found_when_the_flow_is_built(tmp_path: Path) -> None:
    x = ts.Dataflow("wrong").input("x", "n long")
    with pytest.raises(GraphError, match=r"(?s)program 'nonesuch' is not there.*test_pipe.py.*Hint: install"):
        x.pipe(["nonesuch"], "n long")
    for command in ("", [], [1], [""], "'", 7, None, ["cat", "a\0b"]):
        with pytest.raises(GraphError, match=r"(?s)command=.*test_pipe.py.*Hint: give"):
            x.pipe(command, "n long")  # type: ignore[arg-type]
    for options in ({"timeout": 0}, {"timeout": "1"}, {"env": {"A": 1}}, {"env": "A"}, {"attempts": 0}):
        with pytest.raises(ts.TimelyError, match=r"(?s)test_pipe.py.*Hint"):
            x.pipe("cat -u", "n long", **options)
    here = tmp_path / "here"
    here.write_text("#!/bin/sh\nexec cat")
    with pytest.raises(GraphError, match="cannot be run"):
        x.pipe([str(here)], "n long")
    here.chmod(0o755)
    x.pipe(["here"], "n long", env={"PATH": str(tmp_path)})


def test_the_environment_is_that_of_the_worker_and_more() -> None:
    shown = 'die "no home" if !$ENV{PATH} or $ENV{COLOUR} ne "red";' + FORWARD
    assert run(flow(perl(shown), env={"COLOUR": "red"}), {"x": [[1]]})["out"].rows() == {0: [(1,)]}
