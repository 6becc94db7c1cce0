"""Splink on its own example data: trained once, then pairs of new records, and everything again."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import pyarrow as pa
import splink
import splink.comparison_library as cl
from splink import DuckDBAPI, Linker, SettingsCreator, block_on, splink_datasets
from splink.clustering import cluster_pairwise_predictions_at_threshold

#: By set of data: the columns of each blocking rule, the comparisons, and the columns of training.
MODELS: dict[str, tuple[list[list[str]], list[Any], list[list[str]]]] = {
    "fake_1000": (
        [["first_name", "dob"], ["surname", "dob"], ["email"], ["surname", "city"]],
        [
            cl.NameComparison("first_name"),
            cl.NameComparison("surname"),
            cl.DateOfBirthComparison("dob", input_is_string=False),
            cl.ExactMatch("city"),
            cl.EmailComparison("email"),
        ],
        [["first_name", "surname"], ["dob"]],
    ),
    "historical_50k": (
        [
            ["first_name", "surname"],
            ["surname", "dob"],
            ["first_name", "dob"],
            ["postcode_fake", "first_name"],
            ["postcode_fake", "surname"],
            ["dob", "birth_place"],
            ["postcode_fake", "dob"],
            ["postcode_fake", "occupation"],
        ],
        [
            cl.NameComparison("first_name"),
            cl.NameComparison("surname"),
            cl.DateOfBirthComparison("dob", input_is_string=True),
            cl.PostcodeComparison("postcode_fake"),
            cl.ExactMatch("birth_place"),
            cl.ExactMatch("occupation"),
        ],
        [["first_name", "surname"], ["dob"]],
    ),
}


class Splink:
    """A trained model, and its records by number.

    Raises:
        OSError: the data is not there, and cannot be fetched.
    """

    version = splink.__version__

    def __init__(self, data: str, threshold: float) -> None:
        self.data, self.threshold = data, threshold
        with redirect_stdout(StringIO()):
            table = getattr(splink_datasets, data)
            self.records = np.arange(table.num_rows)
            self.table = table.set_column(
                table.schema.get_field_index("unique_id"), "unique_id", pa.array(self.records)
            )
            rules, comparisons, training = MODELS[data]
            self.api = DuckDBAPI()
            settings = SettingsCreator(
                link_type="dedupe_only",
                blocking_rules_to_generate_predictions=[block_on(*rule) for rule in rules],
                comparisons=comparisons,
            )
            self.linker = Linker(self.api.register(self.table), settings, logging.ERROR)
            train = self.linker.training
            exact = block_on("first_name", "surname", "dob")
            train.estimate_probability_two_random_records_match([exact], recall=0.7)
            train.estimate_u_using_random_sampling(max_pairs=1e6, seed=1)
            for columns in training:
                train.estimate_parameters_using_expectation_maximisation(block_on(*columns))

    def pairs_of(self, new: np.ndarray, present: np.ndarray) -> pa.Table:
        """The scored pairs of new records, with each other and with those that are present."""
        with redirect_stdout(StringIO()):
            come = self._of(new)
            parts = [self._scored(self.linker.inference.predict_within, come)]
            if len(present):
                parts.append(self._scored(self.linker.inference.predict_between, self._of(present), come))
        return pa.concat_tables(map(_pairs, parts))

    def again(self, present: np.ndarray) -> dict[int, int]:
        """The cluster of each record, from nothing."""
        with redirect_stdout(StringIO()):
            pairs = self.linker.inference.predict_within(
                records := self._of(present), threshold_match_probability=self.threshold, warning_mode="never"
            )
            clusters = cluster_pairwise_predictions_at_threshold(
                records, pairs, self.api, "unique_id", threshold_match_probability=self.threshold
            )
        rows = clusters.as_duckdbpyrelation().to_arrow_table()
        return dict(zip(rows["unique_id"].to_pylist(), rows["cluster_id"].to_pylist(), strict=True))

    def _of(self, records: np.ndarray) -> Any:
        return self.api.register(self.table.take(pa.array(records)))

    def _scored(self, predict: Any, *of: Any) -> pa.Table:
        scored = predict(*of, threshold_match_probability=self.threshold, warning_mode="never")
        return scored.as_duckdbpyrelation().to_arrow_table()


def _pairs(scored: pa.Table) -> pa.Table:
    columns = {"a": "unique_id_l", "b": "unique_id_r", "score": "match_probability"}
    return pa.table({name: scored[column] for name, column in columns.items()})
