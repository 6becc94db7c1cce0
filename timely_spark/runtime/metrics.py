"""Metrics of the queries of this process: for Prometheus, OpenTelemetry, and beside Spark's own events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from timely_spark.errors import TimelyError
from timely_spark.graph import caller, integer, is_text, refuse
from timely_spark.runtime.handle.living import query_of, running
from timely_spark.runtime.handle.log_view import LogView, Progress
from timely_spark.runtime.storage.latencies import QUANTILES

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry
    from pyspark.sql.streaming.listener import QueryProgressEvent

#: A running query by its name, and its last progress.
_Running: TypeAlias = tuple[str, LogView, Progress]
_HINT = "pip install 'timely-spark[metrics]'."


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric: a number for each value of `label`; without a label, one number under the empty text."""

    name: str
    label: str | None
    help: str
    numbers: Callable[[LogView, Progress], Mapping[str, float]]
    #: whether it only grows
    counter: bool = False


def _age(view: LogView, _: Progress) -> dict[str, float]:
    """For how long the oldest epoch in flight has waited; 0 if all are complete."""
    epochs = view.newest().open_epochs
    since = view.history().all_open_since(epochs) if epochs else []
    return {"": max(0.0, time.time() - min(since)) if since else 0.0}


_METRICS = (
    _Metric("micro_batch", None, "The newest batch that is done.", lambda _, p: {"": p.epoch}),
    _Metric(
        "micro_batch_seconds",
        None,
        "The duration of the newest batch.",
        lambda _, p: {} if p.duration_ms is None else {"": p.duration_ms / 1000},
    ),
    _Metric(
        "batch_seconds",
        "quantile",
        "The seconds within which the batches of the run were done.",
        lambda w, _: {
            str(part): milliseconds / 1000
            for part in QUANTILES.values()
            if (milliseconds := w.newest().took.quantile(part)) is not None
        },
    ),
    _Metric("micro_batch_records", None, "Records that it delivered.", lambda _, p: {"": p.records}),
    _Metric("rounds", None, "Rounds since the flow began.", lambda _, p: {"": p.rounds}, counter=True),
    _Metric("epochs_in_flight", None, "Begun, not complete.", lambda w, _: {"": len(w.newest().open_epochs)}),
    _Metric("rows_in_flight", None, "Messages for the next round.", lambda _, p: {"": p.rows_in_flight}),
    _Metric("frontier", "output", "The least epoch that may still appear.", lambda w, _: w.least_epochs()),
    _Metric("state_bytes", "step", "Bytes of state of all workers.", lambda _, p: p.state_bytes),
    _Metric("memory_bytes", "step", "Bytes in memory of all workers.", lambda _, p: p.memory_bytes),
    _Metric("late_rows", "input", "Late rows since the flow began.", lambda _, p: p.late, counter=True),
    _Metric("cut_off", "loop", "Records that limits dropped.", lambda _, p: p.cut_off, counter=True),
    _Metric(
        "waiting",
        "input",
        "Files, entries, epochs, messages or Delta versions that no batch has begun to read.",
        lambda w, _: {name: one.waiting for name, one in w.accounts().items()},
    ),
    _Metric(
        "output_records",
        "output",
        "Records that an output was given since the flow began; of a collection changes.",
        lambda w, _: {name: one.records for name, one in w.newest().outputs.items()},
        counter=True,
    ),
    _Metric(
        "output_timestamp_seconds",
        "output",
        "When an epoch was delivered last, in seconds since 1970.",
        lambda w, _: {name: one.when for name, one in w.newest().outputs.items() if one.when is not None},
    ),
    _Metric("epoch_age_seconds", None, "How long the oldest epoch in flight has waited.", _age),
    _Metric(
        "quarantined",
        "input",
        "Files or messages that were quarantined since the flow began.",
        lambda w, _: w.newest().quarantined,
        counter=True,
    ),
    _Metric(
        "negative_records",
        "step",
        "Records that were removed more often than inserted, since the flow began.",
        lambda w, _: {step: number for step, (number, _) in w.newest().negatives.items()},
        counter=True,
    ),
    _Metric(
        "expectation_records",
        "step",
        "Records that an expectation has checked; of a collection those in it.",
        lambda w, _: {step: counts.checked for step, counts in w.newest().expectations.items()},
    ),
    _Metric(
        "expectation_failed_records",
        "step",
        "Records that failed an expectation; of a collection those in it.",
        lambda w, _: {step: counts.failed for step, counts in w.newest().expectations.items()},
    ),
    _Metric(
        "process_seconds",
        "process",
        "Processor time of the driver, the JVM, tasks and sources on its machine, which queries share.",
        lambda w, _: {kind: one.seconds for kind, one in w.usage().processes.items()},
        counter=True,
    ),
    _Metric(
        "process_memory_bytes",
        "process",
        "Resident memory of these processes.",
        lambda w, _: {kind: one.memory for kind, one in w.usage().processes.items()},
    ),
    _Metric(
        "stored_bytes",
        "place",
        "Bytes of the files with states and messages on the driver's disk, and of these in its memory.",
        lambda w, _: {
            place: size
            for place, size in (("disk", w.usage().stored), ("memory", w.usage().cached))
            if size is not None
        },
    ),
    _Metric(
        "worker_seconds",
        "worker",
        "How long each worker worked in the newest batch: their difference is the skew.",
        lambda w, _: {worker: ms / 1000 for worker, ms in w.newest().stats.get("took", {}).items()},
    ),
)


def prometheus_metrics(
    port: int | None = 9464, *, address: str = "127.0.0.1", registry: CollectorRegistry | None = None
) -> Callable[[], None]:
    """Serve the metrics of all queries of this process, also of later ones, to Prometheus.

    Each scrape reads the newest manifest of each running query, and asks no executor. A query that has ended
    has no metrics. `conf/grafana.json` is a dashboard of them.

    Args:
        port: where a server of prometheus_client listens; None starts none, as the program serves `registry`.
        address: the address that the server listens at, by default of this machine alone.
        registry: by default prometheus_client's own.

    Returns:
        A function that ends it.

    Example:
        >>> stop = prometheus_metrics(port=None)
        >>> stop()

    Raises:
        TimelyError: prometheus_client is not installed, or the port is in use.
        BadArgument: `port` is not the number of a port, or `address` is not a text.
    """
    try:
        import prometheus_client
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    except ImportError:
        msg = "prometheus_metrics() needs prometheus_client, which is not installed"
        raise TimelyError(msg, where=caller(), hint=_HINT) from None
    if port is not None:
        port = integer("port", port, most=65535, hint="give a number, as in port=9464, or None.")
    if not is_text(address):
        refuse(address, what="address", expected="a text", hint='leave it out, or write address="0.0.0.0".')
    chosen = prometheus_client.REGISTRY if registry is None else registry

    class Collector(prometheus_client.registry.Collector):
        def collect(self) -> Iterable[Any]:
            return _families(GaugeMetricFamily, CounterMetricFamily)

        def describe(self) -> Iterable[Any]:
            return ()  # several may be registered, as by a notebook's cell that runs twice

    server = None
    if port is not None:
        try:
            server, _ = prometheus_client.start_http_server(port, address, chosen)
        except OSError as error:
            msg = f"prometheus_metrics() cannot listen at {address}:{port}: {error.strerror}"
            hint = "stop the other server, or give another port or address."
            raise TimelyError(msg, where=caller(), hint=hint) from None
    collector = Collector()
    chosen.register(collector)

    def stop() -> None:
        with suppress(KeyError):  # stopped before
            chosen.unregister(collector)
        if server is not None:
            server.shutdown()
            server.server_close()

    return stop


def progress_of(event: QueryProgressEvent) -> Progress | None:
    """The work of a flow in the micro-batch of one of Spark's progress events.

    Spark's events have no place for it: this is how a `StreamingQueryListener` gets the rounds, the frontier,
    late rows and the bytes of state as well.

    Args:
        event: what Spark gives `StreamingQueryListener.onQueryProgress`.

    Returns:
        The flow's progress; None if the query is not a flow that this process has started, or if the
        micro-batch is older than the checkpoint's history.

    Example:
        >>> class Listener(StreamingQueryListener):  # doctest: +SKIP
        ...     def onQueryProgress(self, event):
        ...         own = ts.progress_of(event)
        ...         if own is not None:
        ...             report(event.progress.name, own.rounds, own.frontier, sum(own.state_bytes.values()))

    Raises:
        BadArgument: `event` is not a progress event.
    """
    progress: Any = getattr(event, "progress", None)
    if progress is None:
        hint = "call it in onQueryProgress(self, event)."
        refuse(event, what="event", expected="a QueryProgressEvent of Spark", hint=hint)
    query = query_of(str(progress.runId))
    if query is None:
        return None
    durations = {progress.batchId: progress.durationMs.get("triggerExecution")}
    return query._watch.micro_batch(progress.batchId, durations)  # noqa: SLF001


def _families(gauge: Any, counter: Any) -> Iterator[Any]:
    queries = _queries()
    for metric in _METRICS:
        labels = _labels(metric)
        family = (counter if metric.counter else gauge)(f"timely_{metric.name}", metric.help, labels=labels)
        for values, number in _numbers(metric, queries):
            family.add_metric(values, number)
        yield family


def opentelemetry_metrics(provider: MeterProvider | None = None) -> None:
    """Make observable instruments of the metrics of all queries of this process, also of later ones.

    The instruments are those of `prometheus_metrics`, under names such as ``timely.epochs_in_flight``. The
    program's own provider says where they are exported, and how often they are read.

    Args:
        provider: by default OpenTelemetry's global one.

    Example:
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> opentelemetry_metrics(MeterProvider())

    Raises:
        TimelyError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        msg = "opentelemetry_metrics() needs opentelemetry-api, which is not installed"
        raise TimelyError(msg, where=caller(), hint=_HINT) from None
    candidate: Any = provider
    if candidate is not None and not isinstance(candidate, metrics.MeterProvider):
        hint = "leave it out for the global one."
        refuse(candidate, what="provider", expected="a MeterProvider of OpenTelemetry", hint=hint)
    meter = metrics.get_meter("timely_spark", meter_provider=provider)
    for metric in _METRICS:

        def observe(_: metrics.CallbackOptions, metric: _Metric = metric) -> Iterable[metrics.Observation]:
            for values, number in _numbers(metric, _queries()):
                yield metrics.Observation(number, dict(zip(_labels(metric), values, strict=True)))

        create = meter.create_observable_counter if metric.counter else meter.create_observable_gauge
        create(f"timely.{metric.name}", callbacks=[observe], description=metric.help)


def _labels(metric: _Metric) -> list[str]:
    return ["query"] if metric.label is None else ["query", metric.label]


def _numbers(metric: _Metric, queries: Iterable[_Running]) -> Iterator[tuple[list[str], float]]:
    """The numbers of a metric, each with the values of its labels; without queries that cannot be read."""
    for name, watch, progress in queries:
        numbers: Mapping[str, float] = {}
        with suppress(Exception):  # the query ends at this moment, or a file of its checkpoint is damaged
            numbers = metric.numbers(watch, progress)
        for value, number in numbers.items():
            yield [name, value][: len(_labels(metric))], number


def _queries() -> list[_Running]:
    """The running queries, by name, and their last progress; without those that cannot be read now.

    The duration is that of the last micro-batch that Spark has timed.
    """
    queries = []
    for query in running():
        with suppress(Exception):  # it ends at this moment
            watch = query._watch  # noqa: SLF001 - reads the newest manifest alone, unlike `recent_progress`
            last = query._query.lastProgress  # noqa: SLF001
            durations = {} if last is None else {last["batchId"]: last["durationMs"].get("triggerExecution")}
            if (progress := watch.progress(watch.newest().batch, durations)) is not None:
                queries.append((query.name or watch.context.name, watch, progress))
    return queries
