"""A scope in another program: its protocol, what it reports, and the ways in which it fails."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.progress.nested import Connection, Operate, Operator, Subgraph
from tests.progress.nested.external import ExternalScope
from timely_spark.errors import TimelyError
from timely_spark.operators.program import ProgramError
from timely_spark.times import PRODUCT, Antichain, Time

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="no perl")

# Perl starts in milliseconds. One input; what arrives is held for one report, and sent with the next.
PROGRAM = """
use JSON::PP; $| = 1; binmode STDIN; binmode STDOUT; my (@got, @held);
my $done = '{"verb":"done","version":1}' . "\\n";
sub answer { my ($head, $body) = @_; $head->{bytes} = length $body; print encode_json($head) . "\\n" . $body }
while (my $line = <STDIN>) {
  my $m = decode_json($line); my $v = $m->{verb}; my $body = "";
  read(STDIN, $body, $m->{bytes}) if $m->{bytes};
  %s
  if ($v eq "open") { @held = $body ? map { [$_->[0], pack("H*", $_->[1])] } @{decode_json($body)} : ();
    answer({verb => "summary", inputs => 1, outputs => 1, paths => [[[[[1 << 62], [1], []]]]],
            internal => [[map { [$_->[0], 1] } @held]]}, "") }
  push @got, [$m->{time}, $body] if $v eq "recv";
  if ($v eq "pull_internal_progress") {
    answer({verb => "send", time => [$_->[0][0] + 1]}, $_->[1]) for @held;
    my @internal = ((map { [$_->[0], -1] } @held), (map { [$_->[0], 1] } @got));
    answer({verb => "progress", internal => [\\@internal], consumed => [[map { [$_->[0], 1] } @got]],
            produced => [[map { [[$_->[0][0] + 1], 1] } @held]]}, "");
    @held = @got; @got = () }
  my @state = map { [$_->[0], unpack("H*", $_->[1])] } @held;
  answer({verb => "state"}, encode_json(\\@state)) if $v eq "checkpoint";
  print $done;
}
"""
PULLED = """
  if ($v eq "pull_internal_progress") { answer({verb => "progress", internal => %s}, ""); print $done; next }
"""
SAME = PRODUCT.identity(0)
ROWS = pa.table({"n": [1, 2]})


def scope(first: str = "", **options: Any) -> ExternalScope:
    return ExternalScope(["perl", "-e", PROGRAM.replace("%s", first)], **options)


def around(one: ExternalScope) -> Subgraph:
    """A source, the scope, which comes back to itself five epochs later, and an end."""
    wires = [Connection((0, 0), (1, 0), SAME), Connection((1, 0), (2, 0), SAME)]
    wires.append(Connection((1, 0), (1, 0), PRODUCT.delay(0, 5)))
    made = Subgraph([Operator(0, 1), one, Operator(1, 0)], wires, inner=SAME, outer=SAME)
    made.start()
    return made


@needs_perl
def test_a_program_keeps_the_protocol_of_scopes_and_goes_on_from_its_state() -> None:
    one = scope()
    assert isinstance(one, Operate)
    assert one.get_internal_summary()[0][0][0].elements[0].results_in(Time(3)) == Time(4)
    flow = around(one)
    source: Any = flow.operators[0]
    source.produce(0, Time(2))
    one.recv(0, Time(2), ROWS)
    with pytest.raises(TimelyError, match="before its last messages were reported"):
        one.checkpoint()
    assert flow.pull_internal_progress().unreported
    # it holds what it consumed, at epoch 2; the path through it leads to epoch 3, and around it to epoch 8
    assert (flow.frontier(2, 0), flow.frontier(1, 0)) == (Antichain([Time(2)]), Antichain([Time(7)]))
    state = one.checkpoint()
    one.close()
    with pytest.raises(ProgramError, match="has ended"):
        one.pull_internal_progress()

    one = scope(state=state)
    flow = around(one)
    assert flow.frontier(2, 0) == Antichain([Time(2)])
    assert flow.pull_internal_progress().unreported
    assert one.sent == [(0, Time(3), ROWS)]
    flow.operators[2].consume(0, Time(3))  # type: ignore[attr-defined]
    flow.pull_internal_progress()
    assert (flow.frontier(2, 0), flow.frontier(1, 0)) == (Antichain([Time(9)]), Antichain([Time(8)]))
    one.close()


@needs_perl
def test_a_program_may_tell_a_time_for_each_message() -> None:
    one = scope()
    for _ in range(2):
        one.recv(0, Time(2), ROWS)

    held, sent = one.pull_internal_progress(), one.pull_internal_progress()
    one.close()

    assert (held.consumed, held.internal) == ([[(Time(2), 2)]], [[(Time(2), 2)]])
    assert (sent.produced, sent.internal) == ([[(Time(3), 2)]], [[(Time(2), -2)]])


@pytest.mark.slow
@needs_perl
@pytest.mark.parametrize(
    ("first", "match"),
    [
        ("exit 3;", "ended with code 3"),
        ('print "hello\\n";', "'hello', which is not a message"),
        ('answer({verb => "notify_at", time => [0]}, "");', "which is not a message"),
        ('if ($v eq "open") { print $done; next }', "0 answers 'summary' to 'open'"),
        ('if ($v eq "open") { answer({verb => "summary"}, ""); print $done; next }', "KeyError: 'inputs'"),
        ('answer({verb => "progress"}, "") if $v eq "recv";', "an answer to 'recv'"),
        ('answer({verb => "send", time => [3], output => 1}, "") if $v eq "recv";', "there are 1 outputs"),
        ('answer({verb => "send", time => "now"}, "") if $v eq "recv";', "InvalidTime: .* not integers"),
        ('answer({verb => "send", time => [3]}, "") if $v eq "recv";', "ArrowInvalid"),
        ('answer({verb => "send", time => [3]}, $body) if $v eq "recv";', "other messages than it sent"),
        ('push @got, [[9], ""] if $v eq "recv";', "that it did not get"),
        (PULLED.replace("%s", "[]"), None),
        (PULLED.replace("%s", "[[], []]"), "internal of 2 ports, there are 1"),
    ],
)
def test_a_program_that_breaks_the_protocol_is_ended_with_the_reason(first: str, match: str | None) -> None:
    def run() -> Any:
        one = scope(first)
        one.recv(0, Time(0), ROWS)
        return one.pull_internal_progress()

    if match is None:  # nothing has changed
        assert run().internal == [[]]
        return
    with pytest.raises(ProgramError, match=match) as error:
        run()
    assert "Hint: " in str(error.value)


# Collatz's sequence, one step of all its numbers for each report: work that nobody outside sees.
COLLATZ = r"""
import json
import sys

import pyarrow as pa

SAME = [[2**63 - 1], [0], []]  # the path of a time (epoch) to itself
work, got, held = [], [], []  # numbers under way; times of messages, and of work, since the last report


def write(head, table=None):
    body = pa.BufferOutputStream()
    if table is not None:
        with pa.ipc.new_stream(body, table.schema) as stream:
            stream.write_table(table)
    data = body.getvalue().to_pybytes()
    sys.stdout.buffer.write(json.dumps(head | {"bytes": len(data)}).encode() + b"\n" + data)


def read(size):
    with pa.ipc.open_stream(sys.stdin.buffer.read(size)) as stream:
        return stream.read_all().to_pylist()


def times():
    return sorted({row["epoch"] for row in work})


for line in sys.stdin.buffer:
    message = json.loads(line)
    if message["verb"] == "open":
        work = read(message["bytes"]) if message["bytes"] else []
        held = times()
        capabilities = [[[epoch], 1] for epoch in held]
        write({"verb": "summary", "inputs": 1, "outputs": 1, "paths": [[[SAME]]], "internal": [capabilities]})
    elif message["verb"] == "recv":
        (epoch,) = message["time"]
        got.append(epoch)
        rows = read(message["bytes"])
        work += [{"epoch": epoch, "start": row["n"], "n": row["n"], "steps": 0} for row in rows]
    elif message["verb"] == "pull_internal_progress":
        for row in work:
            if row["n"] != 1:
                row["n"] = 3 * row["n"] + 1 if row["n"] % 2 else row["n"] // 2
                row["steps"] += 1
        found, work = [row for row in work if row["n"] == 1], [row for row in work if row["n"] != 1]
        produced = sorted({row["epoch"] for row in found})
        for epoch in produced:
            rows = [row for row in found if row["epoch"] == epoch]
            table = {name: [row[name] for row in rows] for name in ("start", "steps")}
            write({"verb": "send", "time": [epoch]}, pa.table(table))
        before, held = held, times()
        internal = [[[epoch], 1] for epoch in held if epoch not in before]
        internal += [[[epoch], -1] for epoch in before if epoch not in held]
        consumed = [[[epoch], got.count(epoch)] for epoch in sorted(set(got))]
        sent, got = [[[epoch], 1] for epoch in produced], []
        write({"verb": "progress", "internal": [internal], "consumed": [consumed], "produced": [sent]})
    elif message["verb"] == "checkpoint" and work:
        write({"verb": "state"}, pa.Table.from_pylist(work))
    write({"verb": "done", "version": 1})
    sys.stdout.buffer.flush()
"""


@pytest.mark.slow
def test_a_scope_has_work_of_its_own_between_two_messages(tmp_path: Path) -> None:
    program = tmp_path / "collatz.py"
    program.write_text(COLLATZ, encoding="utf-8")

    def graph(state: bytes = b"") -> tuple[ExternalScope, Subgraph]:
        scope = ExternalScope([sys.executable, str(program)], state=state)
        wires = [Connection((0, 0), (1, 0), SAME), Connection((1, 0), (2, 0), SAME)]
        return scope, Subgraph([Operator(0, 1), scope, Operator(1, 0)], wires, inner=SAME, outer=SAME)

    scope, outside = graph()
    source: Any = outside.operators[0]
    source.hold(0, Time(0))
    outside.start()
    source.produce(0, Time(0))
    scope.recv(0, Time(0), pa.table({"n": [6, 7]}))
    source.hold(0, Time(0), -1)
    for _ in range(5):
        outside.pull_internal_progress()
    assert scope.sent == []
    assert outside.frontier(2, 0) == Antichain([Time(0)]), "the scope may still send at epoch 0"

    state = scope.checkpoint()
    scope.close()
    scope, outside = graph(state)
    outside.start()
    while outside.pull_internal_progress().unreported and len(scope.sent) < 2:
        assert outside.frontier(2, 0) == Antichain([Time(0)])
    assert [table.to_pylist() for _, _, table in scope.sent] == [
        [{"start": 6, "steps": 8}],
        [{"start": 7, "steps": 16}],
    ]
    for _, time, _ in scope.sent:
        outside.operators[2].consume(0, time)  # type: ignore[attr-defined]
    outside.pull_internal_progress()
    assert outside.frontier(2, 0) == Antichain()
    scope.close()
