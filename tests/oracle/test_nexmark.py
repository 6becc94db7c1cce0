"""Nexmark's queries: rows come in random epochs, some go and come again, and the last epoch is DuckDB's."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from tests.support.duck import plain
from tests.support.outside.epochs import last_epoch

TIME = pa.timestamp("us")


def queries() -> dict[int, tuple[str, str]]:
    """By number each query, and DuckDB's words for it."""
    text = (Path(__file__).parent / "nexmark.sql").read_text(encoding="utf-8")
    made = {}
    for block in re.split(r"\n\n-- (?=\d)", text)[1:]:
        number, _, query = block.partition(" ")
        _, _, query = query.partition("\n")
        ours, _, theirs = query.partition("-- DuckDB\n")
        made[int(number)] = (ours.strip().rstrip(";"), (theirs or ours).strip().rstrip(";"))
    return made


def tables(seed: int, *, bids: int = 60) -> dict[str, pa.Table]:
    """People, auctions, bids of different prices and times, and a table of the side."""
    of = random.Random(seed)

    def at(seconds: float) -> datetime:
        return datetime(2024, 2, 28, 23, 59, 0) + timedelta(seconds=seconds)  # noqa: DTZ001 - it has no zone

    people = [
        {
            "id": n,
            "name": f"name {n % 4}",
            "city": of.choice(["Bend", "Boise"]),
            "state": state,
            "ts": at(n * 7),
        }
        for n, state in enumerate(of.choices(["OR", "ID", "CA", "WA"], k=10))
    ]
    auctions = [
        {"id": n, "item": f"item {n}", "ts": at(n * 5), "expires": at(n * 5 + of.randint(10, 90)),
         "seller": of.randrange(12), "category": of.choice([10, 11])}
        for n in range(12)
    ]  # fmt: skip
    prices = of.sample(range(1, 6_000), bids)
    urls = ["https://a.example/x/y/z", "https://a.example/q?a=1&channel_id=7&b=2", "ftp:"]
    bidding = [
        {"auction": of.randrange(14), "bidder": of.randrange(6), "price": price, "channel": of.choice(
            ["apple", "Google", "other"]), "url": of.choice(urls), "ts": at(n * 2.3), "extra": of.choice(
            ["", "cc", "abc"])}
        for n, price in enumerate(prices)
    ]  # fmt: skip
    made = {"person": people, "auction": auctions, "bid": bidding}
    side = [{"key": n, "value": f"value {n}"} for n in range(4)]
    return {name: pa.Table.from_pylist(rows) for name, rows in (made | {"side": side}).items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in range(1, 8))])
def test_all_queries_are_kept_up_to_date(seed: int) -> None:
    texts, made = queries(), tables(seed)
    assert list(texts) == list(range(23))
    with duckdb.connect() as duck:
        for name, table in made.items():
            duck.register(name, table)
        theirs = {n: Counter(map(plain, duck.execute(query).fetchall())) for n, (_, query) in texts.items()}
    ours = last_epoch([query for query, _ in texts.values()], made, seed=seed, epochs=3 if seed else 2)
    got = {n: Counter(map(plain, zip(*(one.to_pylist() for one in table.columns), strict=True)))
           for n, table in zip(texts, ours, strict=True)}  # fmt: skip
    assert {n: (got[n] - theirs[n], theirs[n] - got[n]) for n in texts if got[n] != theirs[n]} == {}
    assert [n for n in texts if not theirs[n]] == []
