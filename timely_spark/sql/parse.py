"""Texts in Spark's SQL as syntax trees of sqlglot; mistakes show their place in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from timely_spark.errors import GraphError, SqlError
from timely_spark.graph import caller, offset
from timely_spark.sql import strict


class _Trees:
    """The classes of syntax trees. sqlglot is imported when the first one is needed."""

    def __getattr__(self, name: str) -> Any:
        tree = getattr(needs_sqlglot().exp, name)
        setattr(self, name, tree)
        return tree


if TYPE_CHECKING:
    from sqlglot import exp as exp  # noqa: PLC0414 - others import it from here
else:
    exp = _Trees()


#: Functions with syntax of their own, such as `CAST(a AS int)`; all others are a name and arguments.
_OWN_SYNTAX = {
    *("CAST", "TRY_CAST", "EXTRACT", "TRIM", "POSITION", "SUBSTRING", "SUBSTR", "OVERLAY"),
    *("ARGMAX", "ARGMIN", "ARG_MAX", "ARG_MIN", "PERCENTILE_APPROX"),
    *("APPROX_PERCENTILE", "LISTAGG", "STRING_AGG"),
}


#: Spark's binary operators by sqlglot's names of them, those first that bind most tightly
_OPERATORS = (
    "Mul Div IntDiv Mod",
    "Add Sub DPipe",
    "BitwiseLeftShift BitwiseRightShift",
    "BitwiseAnd",
    "BitwiseXor",
    "BitwiseOr",
    "EQ NEQ LT LTE GT GTE NullSafeEQ",
)
_LEVELS = {name: level for level, names in enumerate(_OPERATORS) for name in names.split()}
_COMPARES = len(_OPERATORS) - 1
#: functions whose first argument of three is a unit of time
_OF_UNITS = {"timestampadd", "dateadd", "date_add", "timestampdiff", "datediff", "date_diff"}
_PREDICATES = {"Like", "ILike", "RegexpLike", "Escape", "In", "Between", "NullSafeNEQ"}


#: how deep expressions may be: Python pickles a tree by recursion
MOST_LEVELS = 150


@contextmanager
def stack_checked(text: str) -> Iterator[None]:
    """Let an error name a text whose parts are nested more deeply than Python's stack is."""
    try:
        yield
    except RecursionError:
        depths = [*accumulate((one == "(") - (one == ")") for one in text)]
        hint = "compute a part of it in a view, or in a query of WITH."
        place = depths.index(max(depths))
        raise mistake(text, place, "this is nested too deeply", hint=hint) from None


def checked(text: str, tree: exp.Expression, *, step: str = "") -> exp.Expression:
    """The tree of a text with Spark's precedence of operators, if each of its parts is read.

    Raises:
        SqlError: an expression is too deep; a node has a part that is neither read nor refused in words of
            its own, such as a clause of another dialect; or a comparison is compared again.
    """
    levels: dict[int, int] = {}
    every: Any = tree.walk()
    for node in every:
        flat = node.parent is None or isinstance(node, exp.And | exp.Or | exp.Query)
        levels[id(node)] = level = 0 if flat else levels.get(id(node.parent), 0) + 1
        if level > MOST_LEVELS:
            hint = "compute a part of it in a subquery of FROM, or in a view."
            raise mistake(text, start_of(node) or 0, "an expression is too deep", hint=hint, step=step)
        while (
            isinstance(node, exp.Subquery) and type(inner := node.this) is exp.Subquery and inner.is_wrapper
        ):
            node.set("this", inner.this)  # of `((SELECT ...))`, which is the same as `(SELECT ...)`
        units = isinstance(node, exp.Anonymous) and node.name.lower() in _OF_UNITS
        if units and len(node.expressions) > 2 and isinstance(node.expressions[0], exp.Column):
            node.expressions[0].replace(exp.var(node.expressions[0].name))  # a word, and no column
        strict.name_fields(node)
        for wrong, problem, hint in strict.problems(node):
            raise mistake(text, start_near(wrong) or 0, problem, hint=hint, step=step)
    return _regrouped(text, tree, step)


def _regrouped(text: str, tree: exp.Expression, step: str) -> exp.Expression:
    """A tree with Spark's precedence of operators, in which long conditions are not deep."""
    every: list[Any] = list(tree.walk())
    for node in every:
        if type(node).__name__ in {"And", "Or"} and type(node.parent) is not type(node):
            sides: list[Any] = list(node.flatten(unnest=False))
            middle = len(sides) // 2
            node.set("this", _balanced(type(node), sides[:middle]))
            node.set("expression", _balanced(type(node), sides[middle:]))
        if _level(node) is None or _level(node.parent) is not None:
            continue
        operands, operators = _flat(node)
        for operator, operand in zip(operators, operands[1:], strict=True):
            bare = operand.this if type(operand).__name__ == "Not" else operand
            if _level(operator) == _COMPARES and type(bare).__name__ in _PREDICATES:
                problem = f"{node.sql(dialect=dialect())} compares the result of a comparison"
                hint = "put the comparison that is made first into parentheses."
                raise mistake(text, start_of(node) or 0, problem, hint=hint, step=step)
        grouped: exp.Expression = _grouped(operands, operators)
        if node is tree:
            return grouped
        node.replace(grouped)
    return tree


def _balanced(kind: Any, sides: Sequence[Any]) -> Any:
    """Conditions in their order as a tree of AND, or of OR, whose depth is the logarithm of their number."""
    middle = len(sides) // 2
    if not middle:
        return sides[0]
    return kind(this=_balanced(kind, sides[:middle]), expression=_balanced(kind, sides[middle:]))


def _level(node: Any) -> Any:
    """How tightly a binary operator binds, 0 for the tightest; None of other nodes."""
    return _LEVELS.get(type(node).__name__)


def _flat(node: Any) -> tuple[list[Any], list[Any]]:
    """The operands and the operators of an expression, in the order of the text."""
    if _level(node) is None:
        return [node], []
    (left, before), (right, after) = _flat(node.this), _flat(node.expression)
    return [*left, *right], [*before, node, *after]


def _grouped(operands: Sequence[Any], operators: Sequence[Any]) -> Any:
    """Operands grouped by Spark's precedence, from the left: sqlglot has `||`, `&`, `^` and `|` as one."""
    waiting, grouped = list[Any](), [operands[0]]
    for operator, operand in zip([*operators, None], [*operands[1:], None], strict=True):
        while waiting and (operator is None or _level(waiting[-1]) <= _level(operator)):
            one, right, left = waiting.pop(), grouped.pop(), grouped.pop()
            grouped.append(type(one)(**{**one.args, "this": left, "expression": right}))
        waiting.append(operator)
        grouped.append(operand)
    return grouped[0]


def needs_sqlglot() -> Any:
    """The module `sqlglot`, or an error that says what to install."""
    try:
        import sqlglot
    except ImportError as error:
        msg = "expressions in SQL need sqlglot, which is not installed"
        hint = "pip install 'timely-spark[sql]'; or write the expression with pyarrow.compute."
        raise GraphError(msg, where=caller(), hint=hint) from error
    return sqlglot


def _exists(arguments: list[Any]) -> Any:
    """A test of a query, also of one in parentheses; else the function of an array."""
    if len(arguments) == 1 and isinstance(arguments[0], exp.Query | exp.Values):
        return exp.Exists(this=arguments[0])
    return exp.Anonymous(this="exists", expressions=arguments)


def _of_first(kind: Any, most: int = 1) -> Callable[[list[Any]], Any]:
    """Read `first(x, true)`, which ignores nulls. Sqlglot takes no `false`, and drops further arguments.

    Args:
        kind: the class of the call.
        most: the number of arguments before the one that tells it.
    """

    def build(arguments: list[Any]) -> Any:
        if len(arguments) != most + 1 or not isinstance(arguments[-1], exp.Boolean):
            return kind.from_arg_list(arguments)
        nulls = exp.IgnoreNulls if arguments[-1].this else exp.RespectNulls
        return nulls(this=kind.from_arg_list(arguments[:-1]))

    return build


@cache
def dialect() -> Any:
    """Spark's dialect, in which scalar functions keep their names and arguments as they are written.

    Aggregates, window functions and functions that make rows are sqlglot's own terms.
    """
    needs_sqlglot()
    import inspect

    from sqlglot import TokenType, exp
    from sqlglot.dialects.spark import Spark
    from sqlglot.parsers.spark import SparkParser

    def of_rows(build: Any) -> bool:
        """Whether a function is of several rows, or makes them."""
        arguments = [exp.column("a"), exp.column("b")]
        options = {"dialect": Spark()} if "dialect" in inspect.signature(build).parameters else {}
        try:
            return isinstance(build(arguments, **options), exp.AggFunc | exp.UDTF)
        except Exception:  # noqa: BLE001 - other functions that want other arguments
            return False

    brackets: Any = SparkParser._parse_bracket  # noqa: SLF001 - there is no other name

    def bracket(parser: Any, this: Any = None) -> Any:
        """An element of a call, where sqlglot takes `array(a, b)[0]` for the array of 0."""
        call = exp.Paren(this=this) if isinstance(this, exp.Anonymous) else this
        element = brackets(parser, call)
        return this if element is call else element

    def aggregate(parser: Any) -> Any:
        """An expression of PIVOT with its alias, where sqlglot takes no more than a call."""
        return parser._parse_alias(parser._parse_disjunction())  # noqa: SLF001 - there is no other name

    pairs: Any = SparkParser._match_pair  # noqa: SLF001 - there is no other name

    def pair(parser: Any, first: Any, second: Any, advance: bool = True) -> Any:  # noqa: FBT001, FBT002
        """Two tokens; those of a shift, `<<`, without a blank between them, which sqlglot allows."""
        here, after = parser._curr, parser._next  # noqa: SLF001
        shift = first == second and first in {TokenType.LT, TokenType.GT}
        apart = shift and here is not None and after is not None and here.end + 1 != after.start
        return None if apart else pairs(parser, first, second, advance)

    spans: Any = SparkParser._parse_interval_span  # noqa: SLF001 - there is no other name

    def interval(parser: Any, this: Any, **options: Any) -> Any:
        """An interval of a text, of which sqlglot drops what is not a number and a unit: `1 day ago`."""
        parsed = spans(parser, this, **options)
        rest = exp.INTERVAL_STRING_RE.sub("", this.name) if this.is_string else ""
        return exp.Interval(this=this) if rest and rest != this.name else parsed

    def position(parser: Any) -> Any:
        """`position(a IN b)`; with commas the function, whose other arguments sqlglot drops."""
        arguments = parser._parse_csv(parser._parse_bitwise)  # noqa: SLF001 - there is no other name
        if len(arguments) == 1 and parser._match(TokenType.IN):  # noqa: SLF001
            return exp.StrPosition(this=parser._parse_bitwise(), substr=arguments[0])  # noqa: SLF001
        return exp.Anonymous(this="position", expressions=arguments)

    def plus(parser: Any) -> Any:
        """`+x`, of which sqlglot drops the sign; of a number it says nothing."""
        operand = parser._parse_unary()  # noqa: SLF001 - there is no other name
        number = isinstance(operand, exp.Literal) and not operand.is_string
        return operand if number else exp.Anonymous(this="positive", expressions=[operand])

    names = {
        **strict.methods(SparkParser),
        "_match_pair": pair,
        "_parse_bracket": bracket,
        # a parameter may be called as a keyword is: `:from`
        "COLON_PLACEHOLDER_TOKENS": {
            *SparkParser.COLON_PLACEHOLDER_TOKENS,
            *(token for text, token in Spark.Tokenizer.KEYWORDS.items() if text.isidentifier()),
        },
        "UNARY_PARSERS": SparkParser.UNARY_PARSERS | {TokenType.PLUS: plus},
        "_parse_interval_span": interval,
        "_parse_position": position,
        "_parse_pivot_aggregation": aggregate,
        "FUNCTIONS": {
            name: build
            for name, build in SparkParser.FUNCTIONS.items()
            if of_rows(build) and name not in _OWN_ARGUMENTS
        }
        | {
            "EXISTS": _exists,
            "FIRST": _of_first(exp.First),
            "LAST": _of_first(exp.Last),
            "FIRST_VALUE": _of_first(exp.FirstValue),
            "LAST_VALUE": _of_first(exp.LastValue),
            "ANY_VALUE": _of_first(exp.AnyValue),
            "NTH_VALUE": _of_first(exp.NthValue, 2),
        },
        # sqlglot reads `a FOR b IN (...)` of PIVOT as Python's comprehension
        "RANGE_PARSERS": {
            token: parser for token, parser in SparkParser.RANGE_PARSERS.items() if token.name != "FOR"
        },
        "FUNCTION_PARSERS": _chosen(SparkParser.FUNCTION_PARSERS, _OWN_SYNTAX),
        "NO_PAREN_FUNCTION_PARSERS": _chosen(SparkParser.NO_PAREN_FUNCTION_PARSERS, {"ANY", "CASE", "IF"}),
        # what sqlglot keeps as a text
        "_parse_as_command": lambda parser, _: parser.raise_error("this is not understood"),
        # sqlglot loses parts of some
        "_parse_pipe_syntax_query": lambda parser, _: parser.raise_error("pipes (|>) are not supported"),
        "_warn_unsupported": lambda parser: parser.raise_error("this is not understood"),
        "TIMESTAMPS": set(),  # TIMESTAMP WITHOUT TIME ZONE would be one with a zone
    }
    words, types = Spark.Tokenizer.KEYWORDS.items(), {*_TYPES.split()}
    own = {
        # sqlglot lacks Spark's doubled quotes: 'it''s'
        "STRING_ESCAPES": ["\\", "'", '"'],
        # and has the types of all systems, so that INT8 would be one byte
        "KEYWORDS": {word: of for word, of in words if of not in SparkParser.TYPE_TOKENS or word in types},
    }
    tokenizer = type("Tokenizer", (Spark.Tokenizer,), own)
    # sqlglot writes QUALIFY as a query around, which it fails to name: Spark has the clause
    written = {one: form for one, form in Spark.Generator.TRANSFORMS.items() if one is not exp.Select}
    generator = type("Generator", (Spark.Generator,), {"TRANSFORMS": written})
    parser = type("Parser", (SparkParser,), names)
    return type("Dialect", (Spark,), {"Parser": parser, "Tokenizer": tokenizer, "Generator": generator})


#: Spark's names of types, and what else sqlglot takes for one
_TYPES = (
    "ARRAY BIGINT BINARY BOOLEAN BYTE CHAR CHARACTER DATE DEC DECIMAL DOUBLE FLOAT INT INTEGER INTERVAL "
    "LONG MAP NULL NUMERIC RANGE REAL SHORT SMALLINT STRING STRUCT TIME TIMESTAMP TIMESTAMP_LTZ "
    "TIMESTAMP_NTZ TINYINT UNION UNKNOWN VARCHAR VARIANT"
)
#: sqlglot drops further arguments of some aggregates, and refuses DISTINCT pairs
_OWN_ARGUMENTS = {
    *("PERCENTILE", "MAX_BY", "MIN_BY", "CORR", "COVAR_POP", "COVAR_SAMP", "COLLECT_LIST", "ARRAY_AGG"),
}


def _chosen(table: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name in names}


def parse_expression(text: str, *, step: str = "") -> exp.Expression:
    """Parse one expression, which may end in `AS name`.

    Raises:
        SqlError: the text is not an expression.
    """
    return _parsed(text, exp.Expr, step)


def parse_query(text: str) -> exp.Expression:
    """Parse one statement.

    Raises:
        SqlError: the text is not a statement.
    """
    return _parsed(text)


def _parsed(text: str, kind: Any = None, step: str = "") -> exp.Expression:
    sqlglot = needs_sqlglot()
    spark = dialect()()
    try:
        with stack_checked(text):
            trees = spark.parse(text) if kind is None else spark.parse_into(kind, text)
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        problem = _readable(first.get("description") or str(error), first.get("highlight") or "")
        raise mistake(text, _offset(text, first), problem, hint=_HINT, step=step) from error
    except sqlglot.errors.TokenError as error:
        place = re.search(r"from \d+:(\d+)$", str(error.__cause__))  # of the quote
        problem = "a text or a name does not end" if place else "a comment does not end"
        raise mistake(text, int(place[1]) if place else 0, problem, hint=_HINT, step=step) from error
    if len(trees) != 1 or trees[0] is None:
        raise mistake(
            text, 0, f"this is not one {'statement' if kind is None else 'expression'}", hint=_HINT, step=step
        )
    return checked(text, trees[0], step=step)


_HINT = "write it in Spark's SQL; texts are in '...', names with spaces or of keywords in `...`."


def _readable(description: str, token: str) -> str:
    """A message of sqlglot's, without the names of its classes, and with the token that it is about."""
    if description.startswith("Invalid expression"):
        return f"{token!r} is not expected here"
    if description.lower().startswith("expected type"):
        return f"{token!r} is not a type that columns have"
    if "Token token_type" in description:
        return "a name is missing here"
    missing = re.match(r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>", description)
    return f"{missing[1]} lacks an operand" if missing else description.partition(". Line ")[0]


def _offset(text: str, error: dict[str, Any]) -> int:
    """The offset of sqlglot's error in the text. sqlglot counts columns from 1, and names the token's end."""
    lines = text.splitlines(keepends=True)
    before = sum(map(len, lines[: (error.get("line") or 1) - 1]))
    token = len(error.get("highlight") or " ")
    return max(before + (error.get("col") or 1) - token, 0)


def mistake(text: str, start: int, problem: str, *, hint: str, step: str = "") -> SqlError:
    """An error that shows the place in the text, which begins at an offset."""
    start = min(max(start, 0), len(text))
    line = text.count("\n", 0, start)
    first = text.rfind("\n", 0, start) + 1
    shown = text.splitlines()[line] if text.splitlines() else ""
    column = start - first
    # a tab is as wide above the caret as in the line
    margin = re.sub(r"[^\t]", " ", shown[:column])
    place = f"in line {line + 1}, column {column + 1}\n  {shown}\n  {margin}^\n "
    msg = f"{step + ': ' if step else ''}{problem}, {place}"
    return SqlError(msg, where=offset(caller(), text, start), hint=hint)


#: in a column's meta: its name in the text, where a relation calls it otherwise
WRITTEN = "written"


def sql_of(node: exp.Expression) -> str:
    """The same text for the same tree."""
    return str(node.sql(dialect=dialect()))


def start_of(node: exp.Expression) -> int | None:
    """The place in the text from which a node was parsed, without its `WITH`; None if that is not known."""
    every = node.walk(prune=lambda one: type(one).__name__ == "With" and one is not node)
    places = [one.meta["start"] for one in every if "start" in one.meta]
    return min(places, default=None)


def start_near(node: Any) -> int | None:
    """The place in the text of a node, or of what is around it; None if neither is known."""
    start = None
    while node is not None and (start := start_of(node)) is None:
        node = node.parent
    return start
