"""Which files a batch reads, and which task reads which part of them."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from timely_spark.runtime.sources.arrivals import MOST, OPENING, File, Unread, split_files

sizes = st.integers(1, 3 * MOST)
listed = st.lists(
    st.tuples(st.integers(0, 9), st.text("abc", min_size=1, max_size=3), st.integers(0, 9)).map(
        lambda fields: File(*fields)
    )
)


@given(st.lists(listed), st.integers(1, 4) | st.none(), st.integers(1, 30) | st.none())
def test_each_path_is_read_once_and_in_order_within_a_listing(
    listings: list[list[File]], files: int | None, size: int | None
) -> None:
    unread, read = Unread({}), []
    for listing in listings:
        unread.enter(listing)
        waiting = []
        while batch := unread.next(files, size):
            assert len(batch) <= (files or len(batch))
            assert len(batch) == 1 or sum(file.size for file in batch) <= (size or 1000)
            waiting += batch
        assert waiting == sorted(waiting)
        read += [file.path for file in waiting]

    assert sorted(read) == sorted({file.path for listing in listings for file in listing if file.size})


def test_an_older_file_that_arrives_later_is_read_and_one_that_was_read_is_not() -> None:
    unread = Unread({"read before": None})
    unread.enter([File(5, "new", 1), File(9, "read before", 1)])
    assert [file.path for file in unread.next()] == ["new"]
    unread.enter([File(1, "late", 1), File(7, "new", 2)])

    assert [file.path for file in unread.next()] == ["late"]


def test_a_file_that_was_removed_before_it_was_read_may_come_back_or_have_another_name() -> None:
    unread, ns = Unread({}), 10**9 + 1
    assert unread.enter([File(ns, "a", 1, id="1:1"), File(2 * ns, "b", 1, id="1:2")]) == {}
    assert [file.path for file in unread.next()] == ["a", "b"]
    unread.forget(["a", "b"])

    assert unread.enter([File(3 * ns, "a", 1, id="1:3"), File(2 * ns, "renamed", 1, id="1:2")]) == {}
    assert [file.path for file in unread.next()] == ["renamed", "a"]


@given(sizes=st.lists(sizes, max_size=12), tasks=st.integers(1, 8), divisible=st.booleans())
def test_the_shares_of_tasks_have_every_byte_once_and_are_about_equal(
    sizes: list[int], tasks: int, *, divisible: bool
) -> None:
    files = [File(0, str(n), size) for n, size in enumerate(sizes)]
    shares = split_files(files, tasks, divisible=divisible)
    parts = [part for share in shares for part in share]

    assert [file.path for file in files] == list(dict.fromkeys(part.path for part in parts))
    for file in files:
        bounds = [(part.start, part.end) for part in parts if part.path == file.path]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == file.size
        assert all(end == start for (_, end), (start, _) in itertools.pairwise(bounds))
        assert divisible or len(bounds) == 1
    total = sum(size + OPENING for size in sizes)
    if divisible and sizes:
        assert all(sum(part.end - part.start for part in share) <= MOST for share in shares)
        assert len(shares) <= 2 * max(tasks, total // OPENING + 1)
    room = min(MOST, max(OPENING, -(-total // tasks)))
    for share, (first, *_) in itertools.pairwise(shares):
        taken = sum(part.end - part.start + OPENING for part in share)
        assert taken + first.end - first.start > room, "no share ends before it is full"
