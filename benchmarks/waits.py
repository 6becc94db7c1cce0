"""What a person waits for: a first answer in a session at hand, the next one after `kill -9`, a reason.

The flow counts a few words. In the session at hand Spark has answered a small query before. The killed
program is started again at once on its checkpoint: from the start of its process to the answer to what it
sends then; beside it the same of the first start. The commands run while the flow does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import timely_spark as ts
from benchmarks import harness
from benchmarks.harness import ROOT, Report

#: The aim for what a person asks for, in seconds.
_AT_ONCE = "<=1"


def flow_of(name: str) -> tuple[ts.Dataflow, ts.Input]:
    """Counts of words."""
    flow = ts.Dataflow(name)
    words = flow.input("words", "word long")
    words.capture("log")  # for `explain_row`
    words.collection().count("n", keys="word").capture("out")
    return flow, words


def _timed(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def at_hand(checkpoint: str) -> None:
    """In a session that has answered a query: two flows, and questions to the second."""
    session = harness.spark("waits")
    session.range(1000).groupBy().count().collect()
    for name in ("first", "second"):
        flow, words = flow_of(name)
        began = time.perf_counter()
        query = flow.start(session, checkpoint=f"{checkpoint}/{name}", workers=2)
        words.send([(1,), (2,)])
        harness.answered(query)
        _say(f"the {name} flow", time.perf_counter() - began)
    for method, call in (
        ("`query.why()`", query.why),
        ("`query.ask(...)`", lambda: query.ask("out", [1], keys="word")),
        ("`query.explain_row(...)`", lambda: query.explain_row("out", {"word": 1})),
    ):
        _say(method, _timed(call))
    for command in (["status", f"{checkpoint}/second"], ["inspect", f"{checkpoint}/second"]):
        whole = [sys.executable, "-m", "timely_spark", *command]
        took = _timed(lambda whole=whole: subprocess.run(whole, check=True, stdout=subprocess.DEVNULL))
        _say(f"`python -m timely_spark {command[0]}`", took)
    session.stop()


def to_be_killed(checkpoint: str) -> None:
    """Answers, and says so, until it is killed."""
    session = harness.spark("waits")
    flow, words = flow_of("killed")
    query = flow.start(session, checkpoint=f"{checkpoint}/killed", workers=2)
    while True:
        words.send([(1,), (2,)])
        harness.answered(query)
        _say("answered", 0.0)


def _say(what: str, seconds: float) -> None:
    print(json.dumps([what, seconds]), flush=True)


def _killed(checkpoint: str) -> float:
    """The seconds from the start of a process to its first answer; it is killed after the fifth."""
    command = [sys.executable, "-m", "benchmarks.waits", "to_be_killed", checkpoint]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answers = [time.perf_counter() - began for _, _ in zip(process.stdout, range(5), strict=False)]
        process.kill()
    return answers[0]


def run(quick: bool) -> Report:
    report = Report("waits", "What a person waits for", quick=quick)
    command = [sys.executable, "-m", "benchmarks.waits", "at_hand", str(harness.folder())]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    for what, seconds in map(json.loads, said.splitlines()):
        if what.startswith("`"):
            report.add(what, ours=seconds, unit="s", aim=_AT_ONCE)
        else:
            report.add(f"a session at hand, {what}: start to first answer", ours=seconds, unit="s")
    checkpoint = str(harness.folder())
    first, again = (_killed(checkpoint) for _ in range(2))
    case = "restart after `kill -9`: start of the process to the next answer"
    report.add(case, ours=again, unit="s", note=f"the first start on the checkpoint took {first:.1f} s")
    report.write()
    return report


if __name__ == "__main__":
    {"at_hand": at_hand, "to_be_killed": to_be_killed}[sys.argv[1]](sys.argv[2])
