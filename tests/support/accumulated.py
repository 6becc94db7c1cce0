"""What changes add up to: records are rows, each with its difference last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Changes = Iterable[Sequence[Any]]


def after_each(
    epochs: Mapping[int, Changes] | Sequence[Changes], number: int | None = None
) -> Iterator[Counter[Any]]:
    """How often each record is there at the end of each epoch, without those that are not there.

    Args:
        epochs: the changes of each epoch; an epoch that is missing has none.
        number: how many epochs there are.
    """
    changes = epochs if isinstance(epochs, Mapping) else dict(enumerate(epochs))
    total: Counter[Any] = Counter()
    for epoch in range(len(epochs) if number is None else number):
        for *record, diff in changes.get(epoch, ()):
            total[tuple(record)] += diff
        yield Counter({record: n for record, n in total.items() if n})


def after(changes: Changes) -> Counter[Any]:
    """How often each record is there after changes, without those that are not there."""
    return next(after_each([changes]))
