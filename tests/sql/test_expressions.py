"""Expressions in SQL: names, places of mistakes, laziness, and that workers need no sqlglot."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest

from timely_spark.errors import ExpressionError, SqlError
from timely_spark.sql import bind
from timely_spark.sql.binder import SPECIAL
from timely_spark.sql.lists import dense_ranks
from timely_spark.sql.registry import FUNCTIONS

ROWS = pa.table(
    {
        "a": pa.array([1, 2, None], pa.int64()),
        "s": ["x", "Ä", None],
        "p": [{"x": 1}, {"x": 2}, None],
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a + 1", [2, 3, None]),
        ("A + 1", [2, 3, None]),
        ("`a` > 1 and s = 'Ä'", [False, True, None]),
        ("case when a = 1 then 0 else 1 / (a - 1) end", [0.0, 1.0, None]),
        ("a = 1 or 1 / (a - 1) > 0", [True, True, None]),
        ("coalesce(a, 7)", [1, 2, 7]),
        ("p.x * 2", [2, 4, None]),
        ("1 + 1", [2, 2, 2]),
        ("cbrt(27.0 * a * a * a)", [3.0, 6.0, None]),
        ("repeat('x', a) NOT LIKE ALL ('x', '_')", [False, True, None]),
        ("repeat('x', a) NOT LIKE ANY ('x', 'xx', '__')", [True, True, None]),
        ("NOT repeat('x', a) LIKE ALL ('x', '_')", [False, True, None]),
        ("regexp_instr(repeat('xy', a), 'y+')", [2, 2, None]),
        ("regexp_extract_all(repeat('xy', a), '(x)y')", [["x"], ["x", "x"], None]),
        ("mask(s || 'aB1日')", ["xxXn日", "XxXn日", None]),
        ("elt(a, s, 'b')", ["x", "b", None]),
        ("luhn_check('7992739871' || (a + 2))", [True, False, None]),
        ("decode(encode(s, 'UTF-16BE'), 'UTF-16BE')", ["x", "Ä", None]),
        ("hex(try_to_binary(s || ' bc', 'base64'))", ["C5B7", None, None]),
        ("hex(to_binary('616' || a))", ["6161", "6162", None]),
        (
            "lpad(binary(s), 2) || rpad(binary(s), 3, X'ff')",
            [b"\0xx\xff\xff", "\u00c4\u00c4".encode() + b"\xff", None],
        ),
        ("left(binary(s), 1) || reverse(binary(s))", [b"xx", b"\xc3\x84\xc3", None]),
        (
            "typeof(1.5 + 1) || typeof(1.5 + 1::int) || typeof(try_add(1.5, 1L))",
            ["decimal(3,1)decimal(12,1)decimal(3,1)"] * 3,
        ),
        ("typeof(decode(s, 'x', 1))", ["bigint"] * 3),
        (
            "printf('%05d|%-3s|%,.1f|%x%%', a, s, a * 1234.25D, -a)",
            [
                "00001|x  |1,234.3|ffffffffffffffff%",
                "00002|Ä  |2,468.5|fffffffffffffffe%",
                " null|null|n|null%",
            ],
        ),
        ("conv(repeat('z', a), 36, 10) || soundex(repeat('Robert', a))", ["35R163", "1295R163", None]),
        (
            "try_parse_url('http://' || a || '.example:80/p?q=' || s, 'HOST')",
            ["1.example", "2.example", None],
        ),
        (
            "map_zip_with(map(1, a), map(1L, 2, 2L, 3), (k, x, y) -> k + x + y)",
            [[(1, 4), (2, None)], [(1, 5), (2, None)], [(1, None), (2, None)]],
        ),
        ("if(a > 2, raise_error('too many'), a)", [1, 2, None]),
        ("format_number(a * 1234.565, 2)", ["1,234.56", "2,469.13", None]),
        ("arrays_zip(array(a), array(s))[0].`1`", ["x", "Ä", None]),
        ("string(DATE '2024-01-01' + INTERVAL '1 12' DAY TO HOUR)", ["2024-01-02 12:00:00"] * 3),
        ("date_format(DATE '2024-02-03', 'yyyy[-MM]')", ["2024-02"] * 3),
        ("string(to_timestamp('10:11:12.5', '[yyyy-MM-dd ]HH:mm:ss[.SSS]'))", ["1970-01-01 10:11:12.5"] * 3),
        ("transform(array(a), rows -> rows + 1)", [[2], [3], [None]]),
        ("transform(array(1), x -> transform(array(10), X -> X + x))", [[[20]]] * 3),
        ("transform(array(p), P -> P.x)", [[1], [2], [None]]),
        ("string(try_to_date(repeat('2024-02', a), 'yyyy-MM[-dd]'))", ["2024-02-01", None, None]),
    ],
)
def test_an_expression_has_a_value_for_each_record(text: str, values: list[object]) -> None:
    assert bind(text, ROWS.schema).evaluate(ROWS).to_pylist() == values


@pytest.mark.slow
def test_a_condition_may_have_many_parts() -> None:
    text = " OR ".join(f"a = {n}" for n in range(1, 600))

    assert bind(text, ROWS.schema).evaluate(ROWS).to_pylist() == [True, True, None]


def test_a_field_of_each_struct_of_a_part_of_a_column() -> None:
    lists = pa.array([[{"x": 1}], [{"x": 2}, {"x": 3}], None])
    rows = pa.table({"l": lists.slice(1)})

    assert bind("l.x", rows.schema).evaluate(rows).to_pylist() == [[2, 3], None]


def test_columns_have_names_of_types_of_other_systems() -> None:
    rows = pa.table({"text": ["a"], "json": ["b"], "uuid": [1], "list": [2]})

    assert bind("concat(text, json, uuid + list)", rows.schema).evaluate(rows).to_pylist() == ["ab3"]


AT = pa.timestamp("us", "UTC")
ZONED = pa.schema([("n", pa.int64()), ("s", pa.string()), ("d", pa.date32()), ("t", AT), ("l", pa.list_(AT))])


@pytest.mark.parametrize(
    "text", ["1 / n < 1", "string(n)", "CAST(s AS date)", "string(d)", "try_cast(s AS int)"]
)
def test_where_no_value_depends_on_the_zone_the_text_does_not(text: str) -> None:
    assert bind(text, ZONED, zone="Asia/Tokyo").sql == bind(text, ZONED).sql


@pytest.mark.parametrize(
    "text", ["string(t)", "string(l)", "hour(t)", "timestamp(d)", "unix_timestamp(s)", "date(t)"]
)
def test_where_values_depend_on_the_zone_the_text_does(text: str) -> None:
    assert bind(text, ZONED, zone="Asia/Tokyo").sql == f"{bind(text, ZONED).sql} /* in Asia/Tokyo */"


def test_a_name_of_two_columns_in_other_cases_is_neither() -> None:
    schema = pa.schema({"Ab": pa.int32(), "aB": pa.int32()})

    assert bind("aB", schema).columns == ("aB",)
    with pytest.raises(SqlError, match="no column 'ab'"):
        bind("ab", schema)


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("a +\n  zz", 2, 3, "no column 'zz'"),
        ("uper(s)", 1, 1, "did you mean upper"),
        ("to_number(s, '9')", 1, 1, "AS decimal(12, 2)"),
        ("to_char(a, '9')", 1, 1, "format_number"),
        ("a and true", 1, 1, "a is bigint, not boolean"),
        ("a > 0 or s + s = s", 1, 10, "+ of two texts"),
        ("1 + sum(a)", 1, 5, "SUM(a) is of several rows"),
        ("a + row_number()", 1, 5, "write row_number() OVER"),
        ("DATE '2024-13-01'", 1, 6, "'2024-13-01' is not of type date"),
        ("date_format(DATE '2024-01-31', 'YYYY')", 1, 1, "years are y"),
        ("to_date(s, 'yyyy Q')", 1, 1, "which Spark only writes"),
        ("s.x", 1, 1, "only structs have fields"),
        ("CAST(a AS INT8)", 1, 11, "'INT8' is not a type"),
        ("CAST(a AS FLOAT(24))", 1, 6, "no column stores FLOAT"),
        ("CAST(s AS TIMESTAMP WITHOUT TIME ZONE)", 1, 29, "'TIME' is not expected here"),
        ("a +", 1, 3, "lacks an operand"),
        ("'x", 1, 1, "does not end"),
        ("a b c", 1, 5, "'c' is not expected here"),
    ],
)
def test_a_mistake_shows_its_place(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(SqlError) as raised:
        bind(text, ROWS.schema)

    message = str(raised.value)
    assert says in message
    assert (
        f"in line {line}, column {column}\n  {text.splitlines()[line - 1]}\n  {' ' * (column - 1)}^\n"
        in message
    )
    assert __file__ in message


#: by pattern of Java's what it matches in TEXTS, in Spark
PATTERNS = {
    r"(?i)k|ä": ["K", "ä"],
    r"(?i)[^a-ck]": ["\n", "ä", "\u017f", "S", "\u212a"],
    r"\w+": ["ab", "K", "S", "a"],
    r"[^\W\d]": ["a", "b", "K", "S"],
    r"\bä": ["ä"],
    r"b$": ["b"],
    r"(?s)b.$": ["b\n"],
    r"(?m)^.": ["a", "ä", "S"],
    r"[a-zä&&[^b]]": ["a", "ä"],
    r"[a[K]]": ["a", "K"],
    r"(.)\1": [],
    r"a(?=b)": ["a"],
    r"\p{Lu}": ["K", "S", "\u212a"],
    r"(?<=ab)\p{L}|\p{Upper}": ["K", "S"],
    r"\QK\E": ["K"],
}
TEXTS = ["ab\n", "äK", "S\u017f", "a\u212a"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_what_it_does_in_java(pattern: str) -> None:
    texts = pa.table({"s": TEXTS})
    matches = bind(f"regexp_extract_all(s, r'{pattern}', 0)", texts.schema).evaluate(texts).to_pylist()
    assert sorted({one for each in matches for one in each}) == sorted(PATTERNS[pattern])
    like = bind(f"s RLIKE r'{pattern}'", texts.schema).evaluate(texts).to_pylist()
    assert like == [bool(each) for each in matches]


@pytest.mark.slow
@pytest.mark.parametrize(
    "pattern", [r"\X", "(?u)a", "a{", "[a", "(?<n", r"\y", "a)", r"\2", "[a&&]", r"\p{Foo}"]
)
def test_a_pattern_that_is_not_read_is_refused_where_it_is(pattern: str) -> None:
    with pytest.raises(SqlError, match="the regex"):
        bind(f"s RLIKE r'{pattern}'", ROWS.schema)
    with pytest.raises(SqlError, match="Hint:"):  # before there is a row, also beside another constant
        bind(f"'a' RLIKE r'{pattern}'", ROWS.schema)


@pytest.mark.slow
@pytest.mark.share(3)
@pytest.mark.parametrize("count", range(5))
def test_a_function_refuses_arguments_that_do_not_fit(count: int) -> None:
    """Of any number and type: whatever is refused is so in words."""
    of = random.Random(count)
    values = ["a", "s", "p", "1.5", "NULL", "true", "array(1)", "map('a', 1)", "DATE '2024-01-01'", "x -> x"]
    for name in sorted({*FUNCTIONS, *SPECIAL}):
        for _ in range(2):
            with suppress(SqlError):
                bind(f"{name}({', '.join(of.choice(values) for _ in range(count))})", ROWS.schema)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("coalesce()", "coalesce has 0 arguments"),
        ("position('a', s, 1, 2)", "position has 4 arguments"),
        ("substring(s, 1, 2, 3)", r"substring of \(string, int, int, int\)"),
        ("transform(array(a))", "it takes 2"),
        ("aggregate(array(a), 0)", "it takes 3 to 4"),
        ("bigint(a, a)", "it takes 1"),
        ("map_concat()", "map_concat"),
    ],
)
def test_a_number_of_arguments_that_does_not_fit_is_told(text: str, says: str) -> None:
    with pytest.raises(SqlError, match=says):
        bind(text, ROWS.schema)


def test_an_error_that_the_query_raises_is_told() -> None:
    with pytest.raises(ExpressionError, match="2 are too many"):
        bind("if(a > 1, raise_error(a || ' are too many'), a)", ROWS.schema).evaluate(ROWS)


def test_an_expression_without_a_value_says_which() -> None:
    with pytest.raises(
        ExpressionError, match="9223372036854775807 \\+ a: the number is too large for bigint"
    ):
        bind("9223372036854775807 + a", ROWS.schema).evaluate(ROWS)


@pytest.mark.slow
def test_a_worker_evaluates_without_sqlglot() -> None:
    expression = pickle.dumps((bind("upper(s) || a", ROWS.schema), ROWS))
    program = (
        "import pickle, sys; expression, rows = pickle.loads(sys.stdin.buffer.read());"
        "print(expression.evaluate(rows).to_pylist(), 'sqlglot' in sys.modules)"
    )
    made = subprocess.run([sys.executable, "-c", program], input=expression, capture_output=True, check=True)

    assert made.stdout.decode().split("\n")[0] == "['X1', 'Ä2', None] False"


def test_names_may_be_resolved_by_the_caller() -> None:
    def resolve(parts: list[str]) -> tuple[str, int] | None:
        return (f"{parts[0]}.{parts[1]}", 2) if parts[0] in {"l", "r"} else None

    schema = pa.schema({"l.a": pa.int64(), "r.p": pa.struct({"x": pa.int32()})})
    expression = bind("l.a + r.p.x", schema, resolve=resolve)
    assert expression.columns == ("l.a", "r.p")
    assert expression.type == pa.int64()


@pytest.mark.slow
def test_lists_are_ranked_element_by_element_however_long_one_of_them_is() -> None:
    draw = random.Random(0)
    elements, sizes = [None, 0, 1, 2], [0, 0, 1, 2, 7]
    lists = [
        None if draw.random() < 0.1 else draw.choices(elements, k=draw.choice(sizes)) for _ in range(300)
    ]
    keys = [(-1,) if one is None else (0, *(-1 if e is None else e for e in one)) for one in lists]
    ranked = [*map(sorted({*keys}).index, keys)]
    assert dense_ranks(pa.array(lists, pa.list_(pa.int64()))).tolist() == ranked
    long = [*range(100_000)]  # with as many others, a table as wide would have 80 GB
    assert dense_ranks(pa.array([*([n] for n in range(100_000)), long]))[-1] == 1


@pytest.mark.slow
def test_distances_of_texts_are_those_of_the_definition_however_long_one_of_them_is() -> None:
    draw = random.Random(1)
    a, b = (
        ["".join(draw.choices("abä😀", k=draw.choice([0, 1, 3, 9, 30]))) for _ in range(60)] for _ in "ab"
    )
    long = "a" * 3_000
    table = pa.table({"a": [*a, long, *["x"] * 50_000], "b": [*b, long[:-7], *["y"] * 50_000]})
    distances = bind("levenshtein(a, b)", table.schema).evaluate(table).to_pylist()
    assert distances == [*map(distance, a, b), 7, *[1] * 50_000]


def distance(a: str, b: str) -> int:
    """How many characters are added, removed or replaced."""
    row = [*range(len(b) + 1)]
    for n, x in enumerate(a):
        diagonal, row[0] = row[0], n + 1
        for m, y in enumerate(b):
            diagonal, row[m + 1] = row[m + 1], min(row[m] + 1, row[m + 1] + 1, diagonal + (x != y))
    return row[-1]


DOUBLES = """
import contextlib, hashlib
import numpy as np, pyarrow as pa
from timely_spark.errors import TimelyError
from timely_spark.sql import bind
from timely_spark.sql.registry import FUNCTIONS

draw = np.random.default_rng(4)
rows = pa.table({"d": draw.random(2_000), "e": 20 * draw.random(2_000)})
for name in sorted({*FUNCTIONS} - {"rand", "random", "randn"}):
    for arguments in ("d", "e", "d, e"):
        with contextlib.suppress(TimelyError):
            expression = bind(f"{name}({arguments})", rows.schema)
            if expression.evaluate(rows[:1]).type == pa.float64():
                values = expression.evaluate(rows)
                print(name, arguments, hashlib.sha256(np.array(values.fill_null(-1))).hexdigest())
"""


@pytest.mark.slow
def test_functions_of_doubles_have_the_same_bits_on_processors_with_fewer_instructions() -> None:
    newer = [int(part) for part in np.__version__.split(".")[:2]] >= [2, 4]
    fewer = {"NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3" if newer else "AVX512_SKX AVX512F AVX2 FMA3"}

    here, there = (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", DOUBLES],
            env=os.environ | more, check=True, stdout=subprocess.PIPE, text=True,
        ).stdout.splitlines()
        for more in ({}, fewer)
    )  # fmt: skip

    assert len(here) > 50, "exp, ln, pow and all others"
    assert here == there


def test_a_double_of_one_digit_is_written_as_it_is_read() -> None:
    texts = [f"{digit}e{power}" for power in range(-324, 309) for digit in range(1, 10)]
    rows = pa.table({"d": [float(text) for text in texts]})

    written = bind("CAST(d AS STRING)", rows.schema).evaluate(rows).to_pylist()

    assert [float(text) for text in written] == rows["d"].to_pylist()
