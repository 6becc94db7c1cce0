"""The present contents of a source, and whether a batch has read them: a wait needs both.

A batch's offset of a source says what was read up to that batch (see `file_readers`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from operator import ge

from timely_spark.errors import LogDamaged
from timely_spark.runtime.sources.arrivals import Unread
from timely_spark.runtime.sources.delta_log import DeltaSource
from timely_spark.runtime.sources.folder import FileSource
from timely_spark.runtime.sources.journal import FileJournal
from timely_spark.runtime.sources.kafka import KafkaSource
from timely_spark.runtime.sources.replay import ReplaySource
from timely_spark.runtime.sources.skipped import Skipped
from timely_spark.runtime.sources.source import JournaledSource
from timely_spark.runtime.storage.files import Files
from timely_spark.runtime.storage.spark_log import StoredOffset

Read = Callable[[StoredOffset], bool]
"""Whether a batch has read everything that a source had at some moment, given its offset in the batch."""

#: Seconds between two looks at a folder whose files are awaited.
_LOOK = 1.0


def present(source: JournaledSource, name: str, log: Files) -> Read:
    """The present contents of a source.

    Args:
        name: the input's name.
        log: `RoundLog.files` of the checkpoint.
    """
    if isinstance(source, ReplaySource):
        last, complete = last_captured(source)
        return lambda offset: (offset["epoch"], offset["complete"]) >= (last, complete)
    if isinstance(source, DeltaSource):
        return _versions(source, Skipped.of(log, name).versions)
    if isinstance(source, KafkaSource):
        return _messages(source)
    assert isinstance(source, FileSource)
    return _files(source, name, log)


def last_captured(source: ReplaySource) -> tuple[int, bool]:
    """The last epoch that a captured folder has, -1 for none; and whether no later one follows."""
    captured, published = source.after(-1), source.published
    since = -1 if published is None else published.newest()
    return max([since, *(epoch for epoch, _ in captured.epochs)]), captured.complete


def _messages(source: KafkaSource) -> Read:
    ends = source.ends()

    def read(offset: StoredOffset) -> bool:
        begun: Mapping[str, Sequence[int]] = offset["offsets"]
        pairs = ((begun.get(topic, ()), end) for topic, end in ends.items())
        return all(len(at) >= len(end) and all(map(ge, at, end)) for at, end in pairs)

    return read


def _versions(source: DeltaSource, skipped: Collection[int]) -> Read:
    log = source.log
    newest = log.newest()

    @cache  # the log is read once for each version
    def read(version: int) -> bool:
        if source.from_version is None and version == -1:
            return not log.snapshot(newest)
        return not any(log.files(each) for each in range(version + 1, newest + 1) if each not in skipped)

    return lambda offset: read(offset["version"])


def _files(source: FileSource, name: str, log: Files) -> Read:
    """A file that is removed before it is read is not waited for."""

    def unread() -> set[str]:
        journal = FileJournal(log, name, watches=True)
        waiting = Unread(journal.identities())
        waiting.enter(source.folder.files())
        last.append(journal.last)
        return {file.path for file in waiting.next()}

    last: list[int] = []
    awaited: set[str] | None = None
    looked, before = float("-inf"), -2

    def read(offset: StoredOffset) -> bool:
        nonlocal awaited, looked, before
        number, now = offset["files"], time.monotonic()
        if (awaited is None or awaited) and (number != before or now > looked + _LOOK):
            looked, before = now, number
            with suppress(LogDamaged):  # the query merges batches of its journal at this moment
                awaited = unread() if awaited is None else awaited & unread()
        return awaited is not None and not awaited and number >= last[-1]

    with suppress(LogDamaged):
        awaited = unread()
    return read
