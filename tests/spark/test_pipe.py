"""A vertex in another program on Spark: programs and Python workers are killed, the query is restarted."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import timely_spark as ts

# Perl starts in milliseconds. The n of a batch's records are the bytes that follow it; the state is how many
# batches there were, and each is sent as often as that.
PROGRAM = r"""
use JSON::PP; $| = 1; binmode STDIN; binmode STDOUT; my $batches = 0;
sub answer { my ($head, $body) = @_; $head->{bytes} = length $body; print encode_json($head) . "\n" . $body }
sub once { my ($name) = @_; return 0 if -e "$ENV{FOLDER}/$name"; open(my $f, ">", "$ENV{FOLDER}/$name"); 1 }
while (my $line = <STDIN>) {
  my $m = decode_json($line); my $body = ""; read(STDIN, $body, $m->{bytes}) if $m->{bytes};
  my $v = $m->{verb};
  $batches = $body || 0 if $v eq "open";
  if ($v eq "recv") {
    $batches++;
    answer({verb => "send", time => $m->{time}}, $body) for 1..$batches;
    kill 9, $$ if $batches == 2 and once("program");
    open(my $f, "<", "/proc/" . getppid() . "/cmdline"); my $parent = <$f>;
    kill 9, getppid() if $batches == 3 and $parent =~ /pyspark|forks/ and once("worker");
  }
  answer({verb => "state"}, $batches) if $v eq "checkpoint";
  print '{"verb":"done","version":1}' . "\n";
}
"""


@pytest.mark.skipif(shutil.which("perl") is None, reason="no perl")
def test_a_program_a_worker_and_the_query_may_end_in_the_middle(
    spark: SparkSession, checkpoint: str, tmp_path: Path
) -> None:
    def flow() -> tuple[ts.Dataflow, ts.Input]:
        made = ts.Dataflow("piped")
        x = made.input("x", "n long", epochs="manual")
        x.pipe(["perl", "-e", PROGRAM], "n long", env={"FOLDER": str(tmp_path)}, name="it").capture("out")
        return made, x

    made, x = flow()
    with made.start(spark, checkpoint=checkpoint, workers=1, resident=False) as query:  # in Spark's worker
        for n in range(2):
            x.send([n])
            x.advance_to(n + 1)
            query.wait_for(timeout=120)
        assert (tmp_path / "program").exists()
        x.send([2])
        x.advance_to(3)
        with pytest.raises(ts.TimelyError):
            query.wait_for(timeout=120)
        assert (tmp_path / "worker").exists()

    made, x = flow()
    with made.start(spark, checkpoint=checkpoint) as query:
        x.send([3])
        x.close()
        query.wait_for(timeout=120)
        rows = query.captured("out").rows()
    assert rows == {n: [(n,)] * (n + 1) for n in range(4)}


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="no compiler of Java")
def test_the_program_of_the_page_in_java(tmp_path: Path) -> None:
    words = ("arrow", "commons", "flatbuffers", "jackson", "log4j", "netty", "slf4j")
    jars = [jar for word in words for jar in Path(pyspark.__file__).parent.glob(f"jars/*{word}*.jar")]
    path = ":".join(map(str, jars))
    program = Path(__file__).with_name("Totals.java")
    subprocess.run(["javac", "-cp", path, "-d", tmp_path, program], check=True)  # once, not at each start
    java = ["java", "-XX:TieredStopAtLevel=1", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
    made = ts.Dataflow("totals")
    sales = made.input("sales", "key string, n long")
    command = [*java, "-cp", f"{tmp_path}:{path}", "Totals"]
    sales.pipe(command, "key string, total long", by="key").capture("out")

    epochs = {"sales": [[("a", 1), ("b", 2)], [("a", 10), ("ä", 3)]]}
    rows = ts.testing.run(made, epochs, workers=2, seed=1, crashes=0.3)["out"].rows()

    assert rows == {0: [("a", 1), ("b", 2)], 1: [("a", 11), ("ä", 3)]}
