"""Random expressions of each type, over the columns of `tests.support.expressions`."""

from __future__ import annotations

import random
import re

#: by type its columns and literals, and how it is made of others
GRAMMAR = {
    "bigint": (
        ["n", "k", "0L", "7L", "CAST(NULL AS BIGINT)"],
        ["{bigint} + {bigint}", "{bigint} - {int}", "{bigint} * {bigint}", "{bigint} div {bigint}",
         "{bigint} % {bigint}", "coalesce({bigint}, {bigint})", "if({boolean}, {bigint}, {int})",
         "abs({bigint})", "pmod({bigint}, {bigint})", "try_add({bigint}, {bigint})",
         "greatest({bigint}, {bigint})", "CAST({double} AS BIGINT)", "try_cast({string} AS BIGINT)",
         "nullif({bigint}, {bigint})", "aggregate({array}, 0L, (acc, q) -> acc + coalesce(q, 0))",
         "array_position({array}, {int})",
         "CASE WHEN {boolean} THEN {bigint} WHEN {boolean} THEN {bigint} ELSE {int} END"],
    ),
    "int": (
        ["i", "j", "1", "-3"],
        ["{int} + {int}", "{int} * {int}", "{int} & {int}", "length({string})", "year({date})",
         "day({date})", "size({array})", "datediff({date}, {date})", "instr({string}, 'a')",
         "CAST({boolean} AS INT)", "coalesce({int}, 0)", "least({int}, {int})", "ascii({string})"],
    ),
    "double": (
        ["x", "z", "1.5D", "CAST('NaN' AS DOUBLE)"],
        ["{double} + {double}", "{double} * {double}", "{double} / {double}", "{bigint} / {int}",
         "round({double}, 2)", "sqrt({double})", "CAST({decimal} AS DOUBLE)",
         "nanvl({double}, {double})", "-{double}", "greatest({double}, {double})",
         "CAST({bigint} AS DOUBLE)"],
    ),
    "decimal": (
        ["d", "c", "2.50", "CAST(i AS DECIMAL(12, 2))"],
        ["{decimal} + {decimal}", "{decimal} - {decimal}", "{decimal} * {decimal}",
         "{decimal} / {decimal}", "{decimal} % {decimal}", "round({decimal}, 1)", "-{decimal}",
         "coalesce({decimal}, {decimal})", "{decimal} * {int}", "CAST({decimal} AS DECIMAL(10, 1))"],
    ),
    "string": (
        ["s", "t", "'abc'", "''"],
        ["{string} || {string}", "upper({string})", "substring({string}, {small}, {small})",
         "CAST({bigint} AS STRING)", "CAST({decimal} AS STRING)", "CAST({double} AS STRING)",
         "trim({string})", "replace({string}, 'a', 'bb')", "reverse({string})",
         "coalesce({string}, 'none')", "concat_ws('-', {string}, {string})",
         "if({boolean}, {string}, {string})", "left({string}, {small})", "CAST({date} AS STRING)",
         "CAST({boolean} AS STRING)", "regexp_replace({string}, '[a-c]+', '<$0>')"],
    ),
    "boolean": (
        ["b", "g", "TRUE", "CAST(NULL AS BOOLEAN)"],
        ["{boolean} AND {boolean}", "{boolean} OR {boolean}", "NOT {boolean}", "{bigint} < {bigint}",
         "{double} >= {double}", "{string} = {string}", "{decimal} > {int}", "{string} LIKE 'a%'",
         "{bigint} IN ({bigint}, {int}, 7)", "{date} <= {date}", "{bigint} IS NULL",
         "{string} <=> {string}", "{double} = {double}", "{int} BETWEEN {int} AND {int}",
         "{boolean} IS TRUE", "array_contains({array}, {int})", "exists({array}, q -> q > {int})"],
    ),
    "date": (
        ["day", "day2", "DATE '2024-01-31'"],
        ["add_months({date}, {small})", "date_add({date}, {small})", "last_day({date})",
         "trunc({date}, 'MM')", "CAST({string} AS DATE)", "coalesce({date}, {date})",
         "{date} + INTERVAL '1' MONTH"],
    ),
    "array": (
        ["a", "a2", "array(1, 2, NULL)"],
        ["array({int}, {int})", "transform({array}, q -> q + 1)", "filter({array}, q -> q > {int})",
         "array_distinct({array})", "concat({array}, {array})", "sort_array({array})",
         "array_union({array}, {array})", "slice({array}, 1, 2)"],
    ),
    "small": (
        ["j", "2", "-1", "0"],
        ["length(t)", "-{small}"],
    ),
}  # fmt: skip


def draw(seed: int, depth: int = 4) -> str:
    """A random expression: the same for the same seed."""
    rng = random.Random(seed)

    def of(kind: str, left: int) -> str:
        leaves, made = GRAMMAR[kind]
        if left <= 0 or rng.random() < 0.15:
            return rng.choice(leaves)
        return re.sub(r"\{(\w+)\}", lambda hole: f"({of(hole[1], left - 1)})", rng.choice(made))

    return of(rng.choice(sorted(GRAMMAR)), depth)
