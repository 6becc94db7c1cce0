"""The kill campaign: flows are killed at random points, restarted until they end, and compared.

    python -m tests.support.campaign --kills 1000 [--seed N] [--jobs 2] [--inside] [--scenarios keyed looping]

A chain is one flow on one checkpoint: killed, restarted, killed elsewhere, ..., until it comes to its end;
then what it leaves is compared with what an unfailed run of the same flow left. Prints kills, restarts and
differences; ends with 1 if there is a difference, and keeps the checkpoint of each that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support import points, verdict
from tests.support.flows import SCENARIOS

ROOT = Path(__file__).parents[2]
#: has the `sitecustomize` that every process of a run imports first
CHAOS = ROOT / "tests" / "chaos"
#: one attempt at a task more than a start has kills: three of one task would end the job
LOCAL, RETRYING, CLUSTER = "local[2]", "local[2,4]", "local-cluster[2,1,1024]"
#: What Spark says when the machine was too busy to start its Python processes: the start is made again.
BUSY = "Python worker failed to connect back"
#: Who can be killed where; only where Spark makes a task again is it of use to kill less than all.
VICTIMS = {
    LOCAL: {"driver", "group"},
    RETRYING: {"driver", "group", "python"},
    CLUSTER: {"driver", "group", "executor", "twice"},
}
#: Seconds for one start of one flow.
PATIENCE = 240
Order = tuple[str, int, str]


@dataclass(frozen=True)
class Params:
    """How a flow is run; what an unfailed run leaves depends on it."""

    scenario: str
    workers: int = 2
    rounds: int | None = None
    partitions: int = 1
    master: str = LOCAL
    #: whether every further round counts as large
    parallel: bool = False

    def text(self) -> str:
        """As a child reads it."""
        return json.dumps(vars(self))


@dataclass
class Chain:
    """One flow on one checkpoint, through all its starts."""

    params: Params
    home: Path
    starts: int = 0
    #: (point, victim) of each kill
    kills: list[tuple[str, str]] = field(default_factory=list)
    #: commits that were deleted, so that their batches ran again
    replays: int = 0
    #: starts in which two attempts at one task did its work, one of them cut off from its executor
    doubles: int = 0
    #: orders at points that were not reached any more
    missed: int = 0

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        (self.home / "run.json").write_text(self.params.text())
        SCENARIOS[self.params.scenario].write(self.home)

    def start(self, orders: Sequence[Order] = ()) -> bool:
        """One start; whether the flow came to its end.

        Raises:
            RuntimeError: it ended otherwise than by a kill that was ordered.
        """
        run = points.Run(self.home, self.starts, list(orders))
        run.write()
        self.starts += 1
        linger = 0.3 if any(victim == "group" for *_, victim in orders) else 0
        code, printed = start_children([self.home], linger=linger)
        fired = [order for index, order in enumerate(orders) if run.fired(index).exists()]
        self.kills += [(point, victim) for point, _, victim in fired]
        self.missed += len(orders) - len(fired)
        self.doubles += run.met.exists()
        killed = any(victim in points.DRIVER for _, _, victim in fired)
        # Spark gives a query up when the process of its Python source dies: that is not a task
        stopped = any(victim == "python" and point not in points.TASKS for point, _, victim in fired)
        if (killed and code == -9) or (code == 1 and (stopped or BUSY in printed)):
            return False
        if code != 0 or killed:
            msg = f"start {self.starts - 1} ended with {code} after {fired or 'no kill'}:\n{printed[-3000:]}"
            raise RuntimeError(msg)
        return True

    def forget_commit(self) -> bool:
        """Deletes the newest commit, so that its batch runs again; False: Spark has begun the next batch."""
        newest = {
            folder: max((int(file.name) for file in place.iterdir() if file.name.isdigit()), default=-1)
            for folder in ("offsets", "commits")
            if (place := self.home / "checkpoint" / folder).exists()
        }
        if len(newest) < 2 or newest["commits"] < 0 or newest["commits"] != newest["offsets"]:
            return False
        (self.home / "checkpoint" / "commits" / str(newest["commits"])).unlink()
        self.replays += 1
        return True

    def differences(self, expected: verdict.Outcome) -> list[str]:
        """What is not as in an unfailed run, and what lies about."""
        return verdict.differences(expected, verdict.outcome(self.home)) + verdict.litter(self.home)


def start_children(homes: Sequence[Path], *, linger: float = 0) -> tuple[int, str]:
    """Runs flows in one session (of processes, and of Spark), and gives its end and its last words.

    `linger`: how long what outlives a killed group may go on, in seconds.
    """
    local = Path(tempfile.mkdtemp(prefix="chaos-"))  # short: sockets lie in it
    env = os.environ | {
        "TIMELY_CHAOS": "on",  # what `sitecustomize` looks for
        "TMPDIR": str(local),
        "PYTHONPATH": os.pathsep.join([str(CHAOS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.support.child", *map(str, homes)]
    with (homes[0] / "log").open("a+b") as log:
        begin = log.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=local,
        )
        try:
            code = child.wait(PATIENCE * len(homes))
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            time.sleep(linger)
            points.kill_session(child.pid)  # what a killed driver left behind, and what would not end
            child.wait()
            shutil.rmtree(local, ignore_errors=True)
        log.seek(begin)
        return code, log.read().decode(errors="replace")


@dataclass
class Unfailed:
    """An unfailed run: what it left, and how often each point was reached in it."""

    outcome: verdict.Outcome
    counts: dict[str, int]


def unfailed(params: Iterable[Params], base: Path) -> dict[Params, Unfailed]:
    """Runs flows undisturbed: those of one master, with Delta or without, in one session."""
    chains = {
        each: Chain(each, base / f"unfailed-{number}") for number, each in enumerate(dict.fromkeys(params))
    }
    sessions: dict[tuple[str, bool], list[Chain]] = {}
    for each, chain in chains.items():
        points.Run(chain.home).write()
        sessions.setdefault((each.master, SCENARIOS[each.scenario].delta), []).append(chain)
    for together in sessions.values():
        code, printed = start_children([chain.home for chain in together])
        if code != 0:
            names = [chain.params for chain in together]
            msg = f"an unfailed run of {names} ended with {code}:\n{printed[-3000:]}"
            raise RuntimeError(msg)
    found = {}
    for each, chain in chains.items():
        found[each] = Unfailed(verdict.outcome(chain.home), points.Run(chain.home).counts())
        if lies := verdict.litter(chain.home):
            msg = f"an unfailed run of {each} leaves {lies}"
            raise RuntimeError(msg)
    return found


@dataclass
class Campaign:
    """Kills until there were enough, spread over all points; safe to be used by several threads."""

    seed: int
    base: Path
    kills: int
    #: of each chain, at most
    length: int = 8
    #: whether kills are inside of micro-batches only
    inside: bool = False
    #: the scenarios
    names: tuple[str, ...] = tuple(sorted(SCENARIOS))
    by_point: Counter[tuple[str, str]] = field(default_factory=Counter)
    chains: list[Chain] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)

    def draw_params(self, count: int) -> list[Params]:
        """Ways to run flows; each scenario at least once, and with further rounds, if there are enough."""
        chance = random.Random(self.seed)
        drawn: list[Params] = []
        while len(drawn) < count:
            names = list(self.names)
            chance.shuffle(names)
            for name in names:
                master = chance.choices([LOCAL, RETRYING, CLUSTER], [6, 3, 1])[0]
                workers = chance.choice([1, 2, 3])
                rounds = chance.choice([1, 1, 3, None]) if len(drawn) >= len(names) else None
                partitions, parallel = chance.randint(1, min(2, workers)), chance.random() < 0.4
                drawn.append(Params(name, workers, rounds, partitions, master, parallel))
        return drawn[:count]

    def draw(self, params: Params, counts: dict[str, int], chance: random.Random, left: int) -> list[Order]:
        """Whom to kill next, and where: what was killed least. Of those that Spark replaces, several."""
        able = [
            (point, victim)
            for point, of in points.points().items()
            if counts.get(point)
            for victim in of
            if victim in VICTIMS[params.master]
            and (not self.inside or point in points.INSIDE)
            # by then Spark's file source has put down what the batch reads, and the next one reads it, too
            and not (point == "offsets.temp" and not SCENARIOS[params.scenario].script)
        ]
        with self.lock:
            least = min(self.by_point[each] for each in able)
            drawn = [chance.choice([each for each in able if self.by_point[each] == least])]
            if drawn[0][1] not in points.DRIVER:
                same = [each for each in able if each[1] == drawn[0][1]]
                drawn += chance.sample(same, min(2, len(same) - 1))
            self.by_point.update(drawn)
        # the flow shall get on between two kills, and not come to its end too soon
        return [(point, 1 + int(chance.random() * counts[point] / left), victim) for point, victim in drawn]

    def run(self, params: Params, known: Unfailed, seed: int) -> None:
        """One chain, to its end, and the comparison."""
        chance = random.Random(seed)
        chain = Chain(params, self.base / f"chain-{seed}")
        with self.lock:
            self.chains.append(chain)
        try:
            left = self.length
            while left and not self.is_enough:
                before = len(chain.kills)
                ended = chain.start(self.draw(params, known.counts, chance, left))
                left = max(0, left - max(1, len(chain.kills) - before))
                if ended and not chain.forget_commit():
                    break
                if not ended and chance.random() < 0.2:
                    chain.forget_commit()
            while not chain.start():  # to the end; and it removes what the starts before it left
                pass
            report = chain.differences(known.outcome)
        except Exception as error:  # noqa: BLE001 - a chain that cannot go on is what is looked for
            report = [f"{type(error).__name__}: {error}"]
        if report:
            with self.lock:
                kept = f"chain {seed} of seed {self.seed}, {params}, {chain.kills}: kept in {chain.home}"
                self.failures.append("\n  ".join([kept, *report[:20]]))
        else:
            shutil.rmtree(chain.home)
        kills = ", ".join(f"{victim} at {point}" for point, victim in chain.kills)
        print(
            f"{params.scenario} on {params.master}: {kills}: {'DIFFERS' if report else 'the same'}",
            flush=True,
        )

    @property
    def is_enough(self) -> bool:
        """Whether there were as many kills as there shall be."""
        return sum(len(chain.kills) for chain in self.chains) >= self.kills

    def go(self, params: Sequence[Params], jobs: int, known: dict[Params, Unfailed] | None = None) -> None:
        """All of it, in several chains at once; `known`: the unfailed runs, if there are any."""
        known = known or unfailed([replace(each, master=LOCAL) for each in params], self.base)
        never = set(points.points()) - {point for each in known.values() for point in each.counts}
        whole = {each.scenario for each in params} == set(SCENARIOS)
        if whole and (never := never - points.FLEETING):
            self.failures.append(f"points that no run reached: {sorted(never)}")

        def chains(first: int) -> None:
            seed = self.seed * 100_000 + first
            while not self.is_enough:
                each = params[(seed - self.seed * 100_000) % len(params)]
                self.run(each, known[replace(each, master=LOCAL)], seed)
                seed += jobs

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(chains, range(jobs)))

    def report(self) -> str:
        """Kills, restarts, differences."""
        kills = Counter(kill for chain in self.chains for kill in chain.kills)
        lines = [f"{count:5} {victim:9} {point}" for (point, victim), count in sorted(kills.items())]
        printed = {
            "kills": kills.total(),
            "restarts": sum(chain.starts - 1 for chain in self.chains),
            "replays of a committed batch": sum(chain.replays for chain in self.chains),
            "tasks done twice": sum(chain.doubles for chain in self.chains),
            "orders at points not reached any more": sum(chain.missed for chain in self.chains),
            "checkpoints": len(self.chains),
            "seed": self.seed,
            "differences": len(self.failures),
        }
        return "\n".join([*lines, *(f"{name}: {value}" for name, value in printed.items()), *self.failures])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--inside", action="store_true", help="kill inside of micro-batches only")
    parser.add_argument("--scenarios", nargs="*", default=sorted(SCENARIOS), help="default: all")
    parser.add_argument("--jobs", type=int, default=1, help="flows at once; default: %(default)s")
    args = parser.parse_args()
    seed = int(time.time()) % 100_000 if args.seed is None else args.seed
    base = Path(tempfile.mkdtemp(prefix="timely-chaos-"))
    print(f"seed {seed}, {args.kills} kills, in {base}", flush=True)
    names = tuple(args.scenarios)
    campaign = Campaign(seed, base, args.kills, inside=args.inside, names=names)
    campaign.go(campaign.draw_params(max(5, min(60, args.kills // 10))), args.jobs)
    print(campaign.report(), flush=True)
    if not campaign.failures:
        shutil.rmtree(base)
    return min(1, len(campaign.failures))


if __name__ == "__main__":
    sys.exit(main())
