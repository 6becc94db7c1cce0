"""Sizes from which the package takes another way to one answer; tests lower them, so that few rows do."""

from __future__ import annotations

import random
import sys
from importlib import import_module

import pytest

#: by module and name: lower values
SIZES: dict[str, tuple[float, ...]] = {
    "compiler.compile._ROUTES": (0, 1, 2),
    "coordinator.coordinator.MAX_EMPTY": (1,),
    "coordinator.local_rounds.MANY": (1, 2),
    "differential.arranged.LOOKED_UP": (0, 1, 2),
    "differential.joins._MANY": (1, 2),
    "differential.prefixes._SOME": (1, 2),
    "differential.reduce._MANY": (0, 1, 2),
    "differential.skew.SALTS": (1, 2),
    "differential.working._SPARSE": (1, 1000),
    "graphs.components._MANY": (1, 2, 3),
    "graphs.contraction._FEW": (1, 2),
    "graphs.contraction._HASHED": (1, 2),
    "graphs.forest._FEW": (1, 2, 5),
    "graphs.forest._LEVELS": (1, 2),
    "graphs.forest._MANY": (0, 1, 2, 5),
    "graphs.forest._NEAR": (1, 2),
    "graphs.forest._PER_LEVEL": (1, 3),
    "graphs.forest._REMOVAL": (0, 1),
    "graphs.forest._SAMPLE": (1, 2),
    "graphs.forest._STEPS": (1, 2),
    "graphs.pairs._PIECE": (1, 2, 5),
    "graphs.placed._NEWS": (1, 2),
    "graphs.places._DEGREE": (1, 2),
    "graphs.places._GATHERED": (1, 4),
    "graphs.places._MANY": (1, 2),
    "graphs.spanning._TRIES": (0, 1, 2),
    "operators.aggregate._SAMPLE": (1, 2, 4),
    "state.arrangement.BYTES": (1, 100, 2000),
    "state.arrangement.LIMIT": (1, 2, 5, 16),
    "state.arrangement._FEWER": (1, 2),
    "state.arrangement._LARGE": (1, 2),
    "state.arrangement._LEVELS": (1, 2),
    "state.arrow.FEW": (1, 2, 3),
    "state.batch._MOST": (1, 2, 5),
    "state.codec.BLOB_BYTES": (1, 200),
    "state.codes._BEGIN": (1, 3),
    "state.codes._FEW": (0, 1),
    "state.grouping._RUNS": (0, 1, 2, 1000),
    "state.hashing._CACHED": (1, 3),
    "state.hashing._PIECE": (1, 2, 7),
    "state.sums._AT_ONCE": (1, 2),
    "worker.combining._PARTS": (1, 2, 9),
    "worker.hot_keys.HOT": (0.01, 0.3),
    "worker.hot_keys.MANY": (1, 2, 10),
    "worker.hot_keys._SAMPLE": (1, 2),
    "worker.loops.MANY": (1, 10),
    "worker.loops.OFTEN": (1, 10),
    "worker.loops.SAMPLE": (1, 2),
    "worker.pack.PIECE_BYTES": (1, 50),
    "worker.pack.SAMPLE": (1, 2),
    "worker.pack._COMPARED": (1, 2),
    "worker.round.NESTED": (1, 2, 3),
    "worker.vertex_snapshot.LOG_BYTES": (1, 1000),
    "worker.wire._FEW": (0, 1),
    "worker.wire._LARGE": (0, 100),
    "worker.wire._SMALL": (0, 1),
}


def lowered(draw: random.Random, patch: pytest.MonkeyPatch) -> dict[str, float]:
    """Lower some of the sizes; returns these."""
    share = draw.choice([0.1, 0.5, 0.9])
    values = {path: draw.choice(lower) for path, lower in SIZES.items() if draw.random() < share}
    for path, value in values.items():
        module, _, name = f"timely_spark.{path}".rpartition(".")
        size = getattr(import_module(module), name)
        for place, other in [*sys.modules.items()]:  # a public name may have been imported
            if place == module or (
                place.startswith("timely_spark.") and name[0] != "_" and getattr(other, name, None) == size
            ):
                patch.setattr(other, name, value)
    return values
