"""The kill campaign: flows are killed at random points, restarted until they end, and compared.

    python -m tests.support.campaign --kills 1000 [--seed N] [--jobs 2] [--inside] [--scenarios keyed looping]

A chain is one flow on one checkpoint: killed, restarted, killed elsewhere, ..., until it comes to its end;
then what it leaves is compared with what an unfailed run of the same flow left. Several chains share a
session: the orders are for one of them in turn, and the others are killed wherever they are. Prints each
start, then kills, restarts and differences; ends with 1 if there is a difference, and keeps the checkpoint of
each that differs. Packs of chains are numbered by the seed, and `--first N` goes on with pack N.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from tests.support import child, points, verdict
from tests.support.flows import SCENARIOS
from tests.support.sessions import hasten
from timely_spark.runtime.forks import ENVIRONMENT, IMPORTED

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
PATIENCE = 600
#: Flows in one session: starting it takes far longer than what one flow does.
PACK = 4
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
        """One start; whether the flow came to its end. Errors are those of `start_together`."""
        return start_together([self], orders)[0]

    @property
    def failure(self) -> str:
        """Why the flow failed in its last start, if it did."""
        file = self.home / child.FAILED
        return file.read_text() if file.exists() else ""

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


@cache
def forks() -> ForkServerContext:
    """Starts processes of flows: forks of one that has imported all, with all points wrapped."""
    hasten()
    variables = ENVIRONMENT | {
        "TIMELY_CHAOS": "on",  # what `sitecustomize` looks for
        "PYTHONPATH": os.pathsep.join([str(CHAOS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    before = dict(os.environ)
    os.environ |= variables
    try:
        context = get_context("forkserver")
        context.set_forkserver_preload([*IMPORTED, "tests.support.child"])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ |= before
    return context


def start_children(homes: Sequence[Path], *, linger: float = 0) -> tuple[int, str]:
    """Runs flows in one session (of processes, and of Spark), and gives its end and its last words.

    `linger`: how long what outlives a killed group may go on, in seconds.
    """
    local = Path(tempfile.mkdtemp(prefix="chaos-"))  # short: sockets lie in it
    log = homes[0] / "log"
    begin = log.stat().st_size if log.exists() else 0
    run = forks().Process(target=child.main, args=(homes, local, log))
    run.start()
    run.join(PATIENCE * len(homes))
    code = 124 if run.exitcode is None else run.exitcode
    time.sleep(linger)
    points.kill_session(run.pid)  # what a killed driver left behind, and what would not end
    run.join()
    shutil.rmtree(local, ignore_errors=True)
    return code, log.read_bytes()[begin:].decode(errors="replace") if log.exists() else ""


def start_together(chains: Sequence[Chain], orders: Sequence[Order] = ()) -> list[bool]:
    """One start of flows in one session; which of them came to their ends. The orders are for the first flow.

    Raises:
        RuntimeError: a flow ended otherwise than by a kill that was ordered.
    """
    first = chains[0]
    run = points.Run(first.home, first.starts, list(orders))
    for chain in chains:
        replace(run, home=chain.home, start=chain.starts, orders=run.orders if chain is first else []).write()
        for name in (child.ENDED, child.FAILED):
            (chain.home / name).unlink(missing_ok=True)
        chain.starts += 1
    began = time.monotonic()
    linger = 0.3 if any(victim == "group" for *_, victim in orders) else 0
    code, printed = start_children([chain.home for chain in chains], linger=linger)
    fired = [order for index, order in enumerate(orders) if run.fired(index).exists()]
    first.kills += [(point, victim) for point, _, victim in fired]
    first.missed += len(orders) - len(fired)
    first.doubles += run.met.exists()
    killed = next((victim for _, _, victim in fired if victim in points.DRIVER), None)
    # Spark gives a query up when the process of its Python source dies: that is not a task
    stopped = any(victim == "python" and point not in points.TASKS for point, _, victim in fired)
    ended = [(chain.home / child.ENDED).exists() for chain in chains]
    for chain, end in zip(chains, ended, strict=True):
        failure = chain.failure
        if end or BUSY in failure or (failure and stopped and chain is first):
            continue
        if failure or not killed or code != -9:
            msg = f"start {chain.starts - 1} of {chain.home} ended with {code} after {fired or 'no kill'}:\n"
            raise RuntimeError(msg + (failure or printed)[-3000:])
        if chain is not first:
            chain.kills.append(("anywhere", killed))
    names = [f"{chain.params.scenario}{' ended' * end}" for chain, end in zip(chains, ended, strict=True)]
    kills = ", ".join(f"{victim} at {point}" for point, _, victim in fired) or "no kill"
    print(f"{time.monotonic() - began:5.1f} s  {', '.join(names)}: {kills}", flush=True)
    return ended


@dataclass
class Unfailed:
    """An unfailed run: what it left, and how often each point was reached in it."""

    outcome: verdict.Outcome
    counts: dict[str, int]


def unfailed(params: Iterable[Params], base: Path) -> dict[Params, Unfailed]:
    """Runs flows undisturbed: those of one master, and with as many large rounds, in one session."""
    chains = {
        each: Chain(each, base / f"unfailed-{number}") for number, each in enumerate(dict.fromkeys(params))
    }
    sessions: dict[tuple[str, bool], list[Chain]] = {}
    for each, chain in chains.items():
        sessions.setdefault((each.master, each.parallel), []).append(chain)
    for together in sessions.values():
        start_together(together)
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

    def draw_packs(self, count: int) -> list[list[Params]]:
        """Ways to run flows, which share a session; scenarios take turns, the later with further rounds."""
        chance = random.Random(self.seed)
        packs: list[list[Params]] = []
        names: list[str] = []
        while len(packs) < count:
            master = chance.choices([LOCAL, RETRYING, CLUSTER], [6, 3, 1])[0]
            parallel, later = chance.random() < 0.4, len(packs) * PACK >= len(self.names)
            size = 1 if master == CLUSTER else min(PACK, len(self.names))
            if len(names) < size:
                names += chance.sample(sorted({*self.names} - {*names}), len(self.names) - len(names))
            pack, names = names[:size], names[size:]
            workers = [chance.choice([1, 2, 3]) for _ in pack]
            packs.append(
                [
                    Params(
                        name,
                        number,
                        chance.choice([1, 1, 3, None]) if later else None,
                        chance.randint(1, min(2, number)),
                        master,
                        parallel,
                    )
                    for name, number in zip(pack, workers, strict=True)
                ]
            )
        return packs

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

    def run(self, pack: Sequence[Params], known: dict[Params, Unfailed], seed: int) -> None:
        """The chains of one pack, to their ends, and the comparison."""
        chance = random.Random(seed)
        chains = [Chain(each, self.base / f"chain-{seed}-{each.scenario}") for each in pack]
        expected = {each: known[replace(each, master=LOCAL)] for each in pack}
        with self.lock:
            self.chains += chains
        error = ""
        try:
            going, turn = list(chains), 0
            while going and not self.is_enough:
                turn += 1
                first = going[turn % len(going)]
                order = self.draw(
                    first.params,
                    expected[first.params].counts,
                    chance,
                    max(1, self.length - len(first.kills)),
                )
                together = [first, *(chain for chain in going if chain is not first)]
                for chain, ended in zip(together, start_together(together, order), strict=True):
                    again = chain.forget_commit() if ended or chance.random() < 0.2 else True
                    if len(chain.kills) >= self.length or (ended and not again) or turn > 4 * self.length:
                        going.remove(chain)
            left = chains
            while left:  # to the end; and it removes what the starts before it left
                left = [chain for chain, end in zip(left, start_together(left), strict=True) if not end]
        except Exception as raised:  # noqa: BLE001 - a chain that cannot go on is what is looked for
            error = f"{type(raised).__name__}: {raised}"
        for chain in chains:
            report = [error] if error else chain.differences(expected[chain.params].outcome)
            if report:
                with self.lock:
                    kept = f"pack {seed}, {chain.params}, {chain.kills}: kept in {chain.home}"
                    self.failures.append("\n  ".join([kept, *report[:20]]))
            else:
                shutil.rmtree(chain.home)
            text = "\n  ".join(["DIFFERS", *report]) if report else "the same"
            print(f"pack {seed}, {chain.params.scenario}, {len(chain.kills)} kills: {text}", flush=True)

    @property
    def is_enough(self) -> bool:
        """Whether there were as many kills as there shall be."""
        return sum(len(chain.kills) for chain in self.chains) >= self.kills

    def go(
        self,
        packs: Sequence[Sequence[Params]],
        jobs: int,
        known: dict[Params, Unfailed] | None = None,
        first: int = 0,
    ) -> None:
        """All of it, in several packs at once; `known`: the unfailed runs, if there are any."""
        params = [each for pack in packs for each in pack]
        known = known or unfailed([replace(each, master=LOCAL) for each in params], self.base)
        never = set(points.points()) - {point for each in known.values() for point in each.counts}
        whole = {each.scenario for each in params} == set(SCENARIOS)
        if whole and (never := never - points.FLEETING):
            self.failures.append(f"points that no run reached: {sorted(never)}")

        def run_each(job: int) -> None:
            number = first + job
            while not self.is_enough:
                self.run(packs[number % len(packs)], known, self.seed * 100_000 + number)
                number += jobs

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run_each, range(jobs)))

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
    parser.add_argument("--first", type=int, default=0, help="the pack to begin with; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="flows at once; default: %(default)s")
    args = parser.parse_args()
    seed = int(time.time()) % 100_000 if args.seed is None else args.seed
    base = Path(tempfile.mkdtemp(prefix="timely-chaos-"))
    print(f"seed {seed}, {args.kills} kills, in {base}", flush=True)
    names = tuple(args.scenarios)
    campaign = Campaign(seed, base, args.kills, inside=args.inside, names=names)
    try:
        campaign.go(campaign.draw_packs(max(3, min(20, args.kills // 40))), args.jobs, first=args.first)
    finally:
        print(campaign.report(), flush=True)
    if not campaign.failures:
        shutil.rmtree(base)
    return min(1, len(campaign.failures))


if __name__ == "__main__":
    sys.exit(main())
