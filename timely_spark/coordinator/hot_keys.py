"""Hot keys: where one worker gets much more than its share of an exchange, because of one key.

A step with ``skew="auto"`` spreads such keys; of other steps the log names the keys.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from timely_spark.compiler.plan import Plan
from timely_spark.errors import with_hint
from timely_spark.graph import FoundKeys
from timely_spark.worker.hot_keys import MANY, Load, exchange_by_key

#: Longer keys are not repeated in the hint.
_LONGEST = 40
#: A worker has much more than its share from this factor on; of two workers one can have no more than 2.
_FACTOR = 1.5


class HotKey(NamedTuple):
    """A step's hot key, as the log and `status` describe it."""

    text: str
    #: if the run spreads such keys itself, the step of `Plan.found_keys` and H of the keys to spread
    spread: tuple[str, list[int]] | None = None


def hot_keys(plan: Plan, loads: Iterable[Load], batch: int) -> dict[str, HotKey]:
    """The hot keys by step; `loads`: those of all workers in one round of a micro-batch.

    A worker that reports no load of an input has fewer than `MANY` records there, so the share of each worker
    is at most what is computed here.
    """
    by_input: dict[tuple[int, int], list[Load]] = defaultdict(list)
    for load in loads:
        by_input[load.vertex, load.input].append(load)
    hot: dict[str, HotKey] = {}
    for (vertex, input_), reports in by_input.items():
        exchange = exchange_by_key(plan, vertex, input_)
        assert exchange is not None
        stage, by = exchange
        node = plan.nodes[vertex]
        skew = by.skew or getattr(node.template, "skew", None)
        keys = None if skew is None else skew.hot
        if isinstance(keys, FoundKeys):
            stage = node.stage
        workers = plan.workers if by.workers is None else len(by.workers)
        most = max(reports, key=lambda load: (load.records, load.share, load.key))
        share = (sum(load.records for load in reports) + (workers - len(reports)) * MANY) / workers
        if most.records < _FACTOR * share or most.share < 0.5:
            continue
        text = (
            f"step {stage.name!r} ({stage.where}): hot key {', '.join(by.columns)} = {most.key}: of "
            f"{workers} workers one got {most.records:,} records, at least {most.records / share:.1f} times "
            f"its share, and {most.share:.0%} of them have this key (batch {batch})"
        )
        if isinstance(keys, FoundKeys) and not by.copies:
            step = next(step for step, own in plan.found_keys.items() if own is keys)
            hot[stage.name] = HotKey(text, (step, most.hot))
            continue
        if getattr(stage.vertex, "takes_skew", False) and stage.direct:
            key = most.key if _is_literal(most.key) else "..."
            listed = f"skew=[{key}]" + ("" if key == most.key else ", a list of their values")
            do = f"name such keys in your call of {stage.operator}: {listed}"
            text = with_hint(text, f'{do}; or let the run find them: skew="auto".')
        hot.setdefault(stage.name, HotKey(text))
    return hot


def _is_literal(key: str) -> bool:
    """Whether a key's text, which may be cut off, is short Python of the same value, to paste."""
    if len(key) > _LONGEST:
        return False
    try:
        value = ast.literal_eval(key)
    except (ValueError, SyntaxError):  # nan, datetime.date(...)
        return False
    return all(isinstance(one, str | int) for one in (value if isinstance(value, tuple) else (value,)))
