"""The schedules of a simulation: how far a batch goes, and which rows arrive when and in which order."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.compiler import Plan
from timely_spark.errors import BadArgument
from timely_spark.times import is_integer
from timely_spark.worker import Budget, wire
from timely_spark.worker.wire import Message

#: The environment variable with the seed of the simulations that are given none.
SEED = "TIMELY_SPARK_SEED"


class Schedule:
    """Draws from a seed what differs between two runs of a flow on Spark.

    Without a seed the draws are those that are common on Spark: rounds that follow in a batch, with the
    workers kept in memory, or wait for the next batch; and the order in which messages arrive. The seed is
    then that of the environment, or a number that depends on the name of the flow and the number of workers.
    With a seed also what is rare is drawn: workers that are skipped, rounds that end early, inputs in parts.

    Args:
        seed: the given seed.
        rounds: the most rounds of each batch; None means drawn.
        budget: the budget of each worker's round; None means with a seed, drawn.
    """

    def __init__(self, plan: Plan, seed: Any, *, rounds: int | None, budget: Budget | None) -> None:
        self.most_rounds, self.given_budget = rounds, budget
        self.rare = seed is not None
        seed = int(seed) if is_integer(seed, None, None) else seed
        #: the seed of all draws
        self.seed = _default_seed(plan) if seed is None else seed
        self.random = random.Random(self.seed)
        self._pairs_inputs = bool(plan.pairing)

    def shards(self) -> int:
        """The number of parts in which an input is read."""
        return self.random.randint(1, 3) if self.rare else 1

    def together(self, inputs: Sequence[str]) -> list[list[str]]:
        """The inputs of an epoch, by the micro-batch that reads them.

        Inputs by the clock come in different batches only where that may change the results.
        """
        if not self._pairs_inputs or len(inputs) < 2 or self.random.random() < 0.5:
            return [list(inputs)]
        return [[name] for name in self.random.sample(list(inputs), len(inputs))]

    def rounds(self) -> int:
        """The most rounds of a batch."""
        if self.most_rounds is not None:
            return self.most_rounds
        return self.random.choice([1, 1, 2, 5, 100] if self.rare else [1, 100])

    def budget(self) -> Budget | None:
        """The budget of a worker's round."""
        if self.rare and self.given_budget is None and self.random.random() < 0.3:
            return Budget(steps=self.random.randint(1, 6))
        return self.given_budget

    def arriving(
        self, waiting: list[pa.Table], busy: set[int], workers: int
    ) -> tuple[list[pa.Table], list[pa.Table]]:
        """The messages for the next batch, and those for later ones: workers may be skipped.

        A worker gets all of its waiting messages, or none. Workers in `busy` have input.
        """
        if not self.rare:
            return [shuffled(pa.concat_tables(waiting), self.random)], []
        late = {w for w in range(workers) if w not in busy and self.random.random() < 0.3}
        arriving, later = [], []
        for table in waiting:
            sent = table if table is waiting[-1] else wire.only(table, Message)  # the newest headers
            waits = pa.array([worker in late for worker in sent.column("worker").to_pylist()], pa.bool_())
            arriving.append(sent.filter(pc.invert(waits)))
            later.append(wire.only(sent.filter(waits), Message))
        return [shuffled(pa.concat_tables(arriving), self.random)], [t for t in later if t.num_rows]


def shuffled(rows: pa.Table, draw: random.Random) -> pa.Table:
    """The rows in random order; rows of equal meta stay in order."""
    metas = rows.column("meta").to_pylist()
    ranks = {meta: draw.random() for meta in dict.fromkeys(metas)}
    return rows.take(pa.array(sorted(range(len(metas)), key=lambda i: ranks[metas[i]]), pa.int64()))


def _default_seed(plan: Plan) -> int:
    text = os.environ.get(SEED)
    if not text:
        return zlib.crc32(f"{plan.name} {plan.workers}".encode())
    try:
        return int(text)
    except ValueError as error:
        msg = f"the environment variable {SEED} is {text!r}, and an integer was expected"
        raise BadArgument(msg, hint=f"set {SEED} to an integer, or unset it.") from error
