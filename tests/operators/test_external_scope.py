"""A scope in another program: its protocol, what it reports, and the ways in which it fails."""

from __future__ import annotations

import shutil
from typing import Any

import pyarrow as pa
import pytest

from timely_spark.errors import TimelyError
from timely_spark.operators.external_scope import ExternalScope
from timely_spark.operators.program import ProgramError
from timely_spark.progress import Connection, Operate, Operator, Subgraph
from timely_spark.times import PRODUCT, Antichain, Time

pytestmark = pytest.mark.skipif(shutil.which("perl") is None, reason="no perl")

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


def test_a_program_may_tell_a_time_for_each_message() -> None:
    one = scope()
    for _ in range(2):
        one.recv(0, Time(2), ROWS)

    held, sent = one.pull_internal_progress(), one.pull_internal_progress()
    one.close()

    assert (held.consumed, held.internal) == ([[(Time(2), 2)]], [[(Time(2), 2)]])
    assert (sent.produced, sent.internal) == ([[(Time(3), 2)]], [[(Time(2), -2)]])


@pytest.mark.parametrize(
    ("first", "match"),
    [
        ("exit 3;", "ended with code 3"),
        ('print "hello\\n";', "'hello', which is no message"),
        ('answer({verb => "notify_at", time => [0]}, "");', "which is no message"),
        ('if ($v eq "open") { print $done; next }', "0 answers 'summary' to 'open'"),
        ('if ($v eq "open") { answer({verb => "summary"}, ""); print $done; next }', "KeyError: 'inputs'"),
        ('answer({verb => "progress"}, "") if $v eq "recv";', "an answer to 'recv'"),
        ('answer({verb => "send", time => [3], output => 1}, "") if $v eq "recv";', "there are 1 outputs"),
        ('answer({verb => "send", time => "now"}, "") if $v eq "recv";', "InvalidTime: .* no whole numbers"),
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
