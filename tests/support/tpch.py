"""Tables like those of TPC-H, drawn from a seed, whose 22 queries have rows also where they are small.

Keys, types and the values that the queries ask for are the benchmark's; the generator is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

QUERIES = Path(__file__).parents[1] / "oracle" / "tpch.sql"
NATIONS = {
    "AFRICA": ["ALGERIA", "ETHIOPIA", "KENYA", "MOROCCO", "MOZAMBIQUE"],
    "AMERICA": ["ARGENTINA", "BRAZIL", "CANADA", "PERU", "UNITED STATES"],
    "ASIA": ["CHINA", "INDIA", "INDONESIA", "JAPAN", "VIETNAM"],
    "EUROPE": ["FRANCE", "GERMANY", "ROMANIA", "RUSSIA", "UNITED KINGDOM"],
    "MIDDLE EAST": ["EGYPT", "IRAN", "IRAQ", "JORDAN", "SAUDI ARABIA"],
}
MONEY = pa.decimal128(15, 2)
FIRST, LAST = np.datetime64("1992-01-01"), np.datetime64("1998-08-02")


def queries() -> dict[int, str]:
    """The queries by their numbers."""
    parts = QUERIES.read_text(encoding="utf-8").split("\n-- ")[1:]
    return {int(one.split("\n", 1)[0]): one.split("\n", 1)[1].strip().rstrip(";") for one in parts}


def tables(scale: float, seed: int = 0) -> dict[str, pa.Table]:
    """The eight tables; at scale 1 there would be six million lines of orders."""
    of = np.random.default_rng(seed)
    parts, suppliers = max(int(200_000 * scale), 40), max(int(10_000 * scale), 10)
    customers, orders = max(int(150_000 * scale), 30), max(int(1_500_000 * scale), 60)

    def words(*choices: Sequence[str], n: int) -> list[str]:
        return [" ".join(one) for one in zip(*(of.choice(each, n) for each in choices), strict=True)]

    def money(least: float, most: float, n: int) -> pa.Array:
        return _decimals(of.integers(int(least * 100), int(most * 100), n))

    def phones(nations: Any) -> list[str]:
        return [
            f"{10 + nation}-{number}"
            for nation, number in zip(nations, of.integers(100, 999, len(nations)), strict=True)
        ]

    filler = ["", "fast", "special", "requests", "Customer", "Complaints", "quick"]
    nations = [name for each in NATIONS.values() for name in each]
    made: dict[str, Any] = {
        "region": {"r_regionkey": _ints(range(5)), "r_name": list(NATIONS), "r_comment": [""] * 5},
        "nation": {
            "n_nationkey": _ints(range(25)),
            "n_name": nations,
            "n_regionkey": _ints(np.arange(25) // 5),
            "n_comment": [""] * 25,
        },
    }
    part = np.arange(1, parts + 1)
    made["part"] = {
        "p_partkey": _ints(part),
        "p_name": words(["forest", "green", "red", "blue"], ["almond", "green", "rose", "navy"], n=parts),
        "p_mfgr": words(["Manufacturer#1", "Manufacturer#2"], n=parts),
        "p_brand": words(["Brand#12", "Brand#23", "Brand#34", "Brand#45"], n=parts),
        "p_type": words(
            ["ECONOMY", "PROMO", "MEDIUM"], ["ANODIZED", "POLISHED"], ["STEEL", "BRASS"], n=parts
        ),
        "p_size": _ints(of.choice([3, 9, 14, 15, 19, 23, 36, 45, 49, 1, 5], parts)),
        "p_container": words(["SM", "MED", "LG"], ["BOX", "CASE", "PACK", "PKG", "BAG"], n=parts),
        "p_retailprice": money(900, 2_000, parts),
        "p_comment": words(filler, n=parts),
    }
    home = of.integers(0, 25, suppliers)
    made["supplier"] = {
        "s_suppkey": _ints(range(1, suppliers + 1)),
        "s_name": [f"Supplier#{n:09}" for n in range(1, suppliers + 1)],
        "s_address": words(filler, filler, n=suppliers),
        "s_nationkey": _ints(home),
        "s_phone": phones(home),
        "s_acctbal": money(-999, 9_999, suppliers),
        "s_comment": words(filler, filler, n=suppliers),
    }
    many = min(4, suppliers)
    supplied = (part[:, None] * 7 + np.arange(many) * max(suppliers // many, 1)) % suppliers + 1
    made["partsupp"] = {
        "ps_partkey": _ints(np.repeat(part, many)),
        "ps_suppkey": _ints(supplied.ravel()),
        "ps_availqty": _ints(of.integers(1, 200, parts * many)),
        "ps_supplycost": money(1, 1_000, parts * many),
        "ps_comment": words(filler, n=parts * many),
    }
    home = of.integers(0, 25, customers)
    made["customer"] = {
        "c_custkey": _ints(range(1, customers + 1)),
        "c_name": [f"Customer#{n:09}" for n in range(1, customers + 1)],
        "c_address": words(filler, filler, n=customers),
        "c_nationkey": _ints(home),
        "c_phone": phones(home),
        "c_acctbal": money(-999, 9_999, customers),
        "c_mktsegment": words(["BUILDING", "AUTOMOBILE", "MACHINERY"], n=customers),
        "c_comment": words(filler, filler, n=customers),
    }
    day = FIRST + of.integers(0, int((LAST - FIRST).astype(int)), orders)
    lines = of.integers(1, 8, orders)
    order = np.arange(1, orders + 1)
    made["orders"] = {
        "o_orderkey": _ints(order),
        "o_custkey": _ints(of.integers(1, customers * 2 // 3 + 1, orders)),
        "o_orderstatus": words(["F", "O", "P"], n=orders),
        "o_totalprice": money(800, 500_000, orders),
        "o_orderdate": pa.array(day),
        "o_orderpriority": words(["1-URGENT", "2-HIGH", "3-MEDIUM", "5-LOW"], n=orders),
        "o_clerk": words(["Clerk#1", "Clerk#2"], n=orders),
        "o_shippriority": _ints(np.zeros(orders)),
        "o_comment": words(filler, filler, n=orders),
    }
    n = int(lines.sum())
    of_part, ordered = of.integers(1, parts + 1, n), np.repeat(day, lines)
    shipped = ordered + of.integers(1, 122, n)
    made["lineitem"] = {
        "l_orderkey": _ints(np.repeat(order, lines)),
        "l_partkey": _ints(of_part),
        "l_suppkey": _ints(supplied[of_part - 1, of.integers(0, many, n)]),
        "l_linenumber": _ints(np.arange(n) - np.repeat(np.cumsum(lines) - lines, lines) + 1),
        "l_quantity": _decimals(of.integers(1, 76, n) * 100),
        "l_extendedprice": money(900, 100_000, n),
        "l_discount": _decimals(of.integers(0, 11, n)),
        "l_tax": _decimals(of.integers(0, 9, n)),
        "l_returnflag": words(["A", "N", "R"], n=n),
        "l_linestatus": words(["F", "O"], n=n),
        "l_shipdate": pa.array(shipped),
        "l_commitdate": pa.array(ordered + of.integers(30, 91, n)),
        "l_receiptdate": pa.array(shipped + of.integers(1, 31, n)),
        "l_shipinstruct": words(["DELIVER IN PERSON", "NONE"], n=n),
        "l_shipmode": words(["AIR", "AIR REG", "MAIL", "SHIP"], n=n),
        "l_comment": words(filler, n=n),
    }
    return {name: _table(columns) for name, columns in made.items()}


def _ints(values: Any) -> pa.Array:
    return pa.array(np.asarray(values).astype(np.int64))


def _decimals(cents: Any) -> pa.Array:
    pairs = np.column_stack([cents.astype(np.int64), cents.astype(np.int64) >> 63])
    return pa.Array.from_buffers(MONEY, len(pairs), [None, pa.py_buffer(pairs)])


def _table(columns: Mapping[str, Any]) -> pa.Table:
    texts = {name: pa.array(one, pa.string()) for name, one in columns.items() if isinstance(one, list)}
    return pa.table({name: texts.get(name, one) for name, one in columns.items()})
