"""Tables of TPC-DS in which its queries find rows, from sqlglot's fixture and a seed.

The fixture has the first rows of each table: facts that meet few rows of others. Here a table has a few rows,
keys refer to rows that are there, and a column that queries compare with constants has these.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import sqlglot
from sqlglot import exp

#: by the end of a key's name the table that it refers to, its key, and how many rows there are
KEYS = {
    "item_sk": ("item", "i_item_sk", 120),
    "customer_sk": ("customer", "c_customer_sk", 150),
    "cdemo_sk": ("customer_demographics", "cd_demo_sk", 80),
    "addr_sk": ("customer_address", "ca_address_sk", 100),
    "hdemo_sk": ("household_demographics", "hd_demo_sk", 60),
    "store_sk": ("store", "s_store_sk", 6),
    "promo_sk": ("promotion", "p_promo_sk", 6),
    "warehouse_sk": ("warehouse", "w_warehouse_sk", 4),
    "ship_mode_sk": ("ship_mode", "sm_ship_mode_sk", 8),
    "web_page_sk": ("web_page", "wp_web_page_sk", 6),
    "site_sk": ("web_site", "web_site_sk", 4),
    "call_center_sk": ("call_center", "cc_call_center_sk", 4),
    "page_sk": ("catalog_page", "cp_catalog_page_sk", 20),
    "reason_sk": ("reason", "r_reason_sk", 5),
    "band_sk": ("income_band", "ib_income_band_sk", 10),
}
#: rows of each fact; the days from 1998 on, and the first one's number
FACTS, DAYS, FIRST = 3_000, 1_900, 2_450_815
DATES = f"""
    SELECT {FIRST} + i AS d_date_sk, 'D' || i AS d_date_id, DATE '1998-01-01' + i::INT AS d_date,
      year(d_date) * 12 + month(d_date) - 22777 AS d_month_seq, 5114 + i // 7 AS d_week_seq,
      (year(d_date) - 1900) * 4 + quarter(d_date) AS d_quarter_seq, year(d_date) AS d_year,
      dayofweek(d_date) AS d_dow, month(d_date) AS d_moy, day(d_date) AS d_dom, quarter(d_date) AS d_qoy,
      dayname(d_date) AS d_day_name, year(d_date) || 'Q' || quarter(d_date) AS d_quarter_name
    FROM range({DAYS}) AS days(i)"""
TIMES = """
    SELECT 60 * i AS t_time_sk, 60 * i AS t_time, i // 60 AS t_hour, i % 60 AS t_minute,
      CASE WHEN i < 720 THEN 'AM' ELSE 'PM' END AS t_am_pm,
      CASE WHEN i < 600 THEN 'breakfast' ELSE 'dinner' END AS t_meal_time FROM range(1440) AS minutes(i)"""


def queries(folder: Path) -> dict[int, str]:
    """The queries by their numbers; one names a column otherwise than the fixture's tables."""
    given = (folder / "tpc-ds.sql").read_text(encoding="utf-8")
    given = given.replace("c_last_review_date,", "c_last_review_date_sk,")
    parts = re.split(r"-{20,}\n-- TPC-DS (\d+)\n-{20,}\n", given)
    return {
        int(number): text.partition(";")[0].replace("# execute: true", "").strip()
        for number, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def constants(texts: list[str]) -> dict[str, list[str]]:
    """By column the texts of the constants that queries compare it with."""
    found: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for node in sqlglot.parse_one(text, read="spark").find_all(exp.EQ, exp.In, exp.Between):
            if isinstance(node.this, exp.Column):
                literals = [one.this for one in node.iter_expressions() if isinstance(one, exp.Literal)]
                found[node.this.name.lower()].update(literals)
    return {name: sorted(values) for name, values in found.items() if values}


def tables(folder: Path, seed: int) -> dict[str, pa.Table]:
    """The tables."""
    of, wanted, made = np.random.default_rng(seed), constants([*queries(folder).values()]), {}
    owners = {name: (key, many) for name, key, many in KEYS.values()}
    with duckdb.connect() as duck:
        for path in sorted(folder.glob("*.csv.gz")):
            name = path.name.partition(".")[0]
            given = duck.read_csv(str(path), delimiter="|", header=True).limit(FACTS).to_arrow_table()
            key, many = owners.get(name, ("", given.num_rows))
            rows = given.take(pa.array(np.arange(many) % given.num_rows))
            columns = {field.name: column(field, rows[field.name], key, wanted, of) for field in rows.schema}
            made[name] = pa.table(columns)
        made["date_dim"], made["time_dim"] = (duck.sql(text).to_arrow_table() for text in (DATES, TIMES))
    return made


def column(
    field: pa.Field, values: Any, key: str, wanted: dict[str, list[str]], of: np.random.Generator
) -> pa.Array:
    """A column: keys of rows that are there, constants of the queries, and money as decimals."""
    name, rows = field.name, len(values)
    end = next((KEYS[one] for one in KEYS if name.endswith(one)), None)
    if name == key:
        return pa.array(np.arange(1, rows + 1))
    if name.endswith("_zip"):
        values = values.cast(pa.string())
    if name.endswith("_id") and pa.types.is_string(values.type):
        return pa.array([f"{one.as_py()}{n // 2}" for n, one in enumerate(values)])  # versions of a thing
    if name.endswith("_sk"):
        numbers = values.cast(pa.int64(), safe=False)
        many, first, step = (DAYS, FIRST, 1) if end is None else (end[2], 1, 1)
        if "time" in name:
            many, first, step = 1_440, 0, 60
        chosen = np.asarray(numbers.fill_null(0)) * (37 if end is None else 1) % many * step + first
        return pa.array(chosen, mask=np.asarray(numbers.is_null()))
    if name in wanted:
        constants = pa.array([wanted[name][n] for n in of.integers(0, len(wanted[name]), rows)])
        kind = values.type
        with_constants = pa.compute.if_else(
            pa.array(of.random(rows) < 0.9), constants, values.cast(pa.string())
        )
        return _tried(with_constants, kind)
    return values.cast(pa.decimal128(12, 2)) if pa.types.is_floating(values.type) else values.combine_chunks()


def _tried(texts: Any, kind: pa.DataType) -> Any:
    """Texts as a type; as texts if they are not values of it."""
    try:
        made = texts.cast(kind)
    except pa.ArrowInvalid:
        return texts
    return made.cast(pa.decimal128(12, 2)) if pa.types.is_floating(kind) else made
