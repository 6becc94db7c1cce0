"""What Prometheus and OpenTelemetry are told is what the query says of itself."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import timely_spark as ts
from timely_spark.runtime import metrics
from timely_spark.runtime.handle.log_view import LogView
from timely_spark.runtime.storage.log import RoundLog

#: What differs from one look to the next.
USED = {"timely_process_seconds", "timely_process_memory_bytes", "timely_stored_bytes"}
DASHBOARD = Path(__file__).parents[2] / "conf" / "grafana.json"


@pytest.fixture
def query(spark: SparkSession) -> Iterator[ts.Query]:
    flow = ts.Dataflow("measured")
    numbers = flow.input("numbers", "n long", epochs="manual")
    numbers.expect("small", "n < 5").group_by("n").count(name="counts").capture("out")
    removed = flow.input("removed", "k long, diff long", epochs="manual")
    removed.collection(diff="diff").count("many", keys="k", name="left").capture("remaining")
    with flow.start(spark, workers=2) as query:
        removed.send([(7, -1)])
        removed.advance_to(3)
        numbers.send([1, 2, 2])
        numbers.advance_to(3)
        query.wait_for(epoch=2)
        numbers.send([5])
        query.process_all_available()
        yield query


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def expected(query: ts.Query) -> dict[tuple[str, ...], float]:
    progress = query.last_progress
    assert progress is not None
    state = {
        ("timely_state_bytes", *sorted(["measured", step])): size
        for step, size in progress.state_bytes.items()
    }
    assert state
    memory = {
        ("timely_memory_bytes", *sorted(["measured", step])): size
        for step, size in progress.memory_bytes.items()
    }
    assert memory
    return {
        ("timely_micro_batch", "measured"): progress.epoch,
        ("timely_rounds", "measured"): query.rounds,
        ("timely_epochs_in_flight", "measured"): 1,
        ("timely_frontier", "measured", "out"): 3,
        ("timely_frontier", "measured", "remaining"): 3,
        ("timely_negative_records", "left", "measured"): 1,
        ("timely_expectation_records", "measured", "small"): 4,
        ("timely_expectation_failed_records", "measured", "small"): 1,
        **state,
        **memory,
    }


@pytest.mark.spark
def test_a_scrape_and_a_reading_say_what_the_query_says(
    query: ts.Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, reader = free_port(), InMemoryMetricReader()
    stop = ts.prometheus_metrics(port, registry=prometheus_client.CollectorRegistry())
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(ts.TimelyError, match=rf"(?s)cannot listen at 127.0.0.1:{port}.*Hint: stop"):
            ts.prometheus_metrics(port)
    finally:
        stop()
        stop()
    ts.opentelemetry_metrics(MeterProvider(metric_readers=[reader]))

    families = list(text_string_to_metric_families(text))
    scraped = {
        (family.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }
    data: Any = reader.get_metrics_data()
    read = {
        (metric.name.replace(".", "_"), *sorted(point.attributes.values())): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert expected(query).items() <= scraped.items()
    assert str(query.expectations()["small"]) == "1 of 4 records failed, first {'n': 5} in epoch 3"
    age, later = (seen.pop(("timely_epoch_age_seconds", "measured")) for seen in (scraped, read))
    assert 0 < age < later
    for seen in (scraped, read):
        used = {key: seen.pop(key) for key in list(seen) if key[0] in USED}
        assert {key[0] for key in used} == USED
        assert used["timely_process_seconds", "driver", "measured"] > 0
        assert used["timely_process_seconds", "JVM", "measured"] > 0
    assert scraped == read
    names = {family.name for family in families} | {f"{family.name}_total" for family in families}
    shown = set(re.findall(r"(timely_\w+)\{", DASHBOARD.read_text(encoding="utf-8")))
    assert shown <= names, "the dashboard has metrics that there are not"
    assert len(shown) == len(families), "the dashboard shows all"

    def names_of_samples() -> set[str]:
        made = metrics._families(GaugeMetricFamily, CounterMetricFamily)
        return {family.name for family in made if family.samples}

    reads = list[int]()
    monkeypatch.setattr(RoundLog, "read", lambda _, batch: reads.append(batch))
    before = names_of_samples()
    assert reads == [], "of a batch that it has seen a scrape reads nothing again"
    monkeypatch.setattr(LogView, "accounts", lambda _: 1 / 0)
    assert before - names_of_samples() == {"timely_waiting"}, "what cannot be read hides nothing else"


@pytest.mark.parametrize("port", [0, -1, 1 << 16, "9464", True])
def test_a_wrong_port_is_refused(port: Any) -> None:
    with pytest.raises(ts.TimelyError, match=r"port=.*test_metrics.py.*\nHint: give a number, as in port="):
        ts.prometheus_metrics(port)


def test_a_wrong_provider_is_refused() -> None:
    provider: Any = 3
    with pytest.raises(ts.TimelyError, match=r"provider=3.*test_metrics.py.*\nHint: "):
        ts.opentelemetry_metrics(provider)


def test_the_dashboard_is_json_with_a_query_in_each_panel() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]

    assert all(panel["targets"][0]["expr"] and panel["title"] for panel in panels)
