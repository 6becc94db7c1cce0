"""What sqlglot takes and Spark does not: words that lack, clauses in another order, texts as names."""

# ruff: noqa: SLF001 - the parts of sqlglot's parser have no other names

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

#: Whether a method read its words as Spark has them: with the word before them, and the one behind.
Fine: TypeAlias = Callable[[str, list[str], str], bool]

#: in a call's meta: the written name of its function, as sqlglot has one class for several
CALLED = "called"


def _is_bound(before: str, words: Sequence[str], after: str) -> bool:
    """Whether words are the first, or the last, bound of a frame."""
    if before != "AND" and ("BETWEEN" in {before, words[0]}) != (after == "AND"):
        return False
    sided = words[-1] in {"PRECEDING", "FOLLOWING"}
    return words[-3:-1] != _ROW if sided else words[-2:] == _ROW


def _has_two_orders(words: Sequence[str]) -> bool:
    """Whether `a ASC DESC`, or `a NULLS FIRST NULLS LAST`; a column may have one of these names."""
    directions = len(words) > 2 and {*words[-2:]} <= {"ASC", "DESC"}
    nulls = len(words) > 4 and words[-4] == words[-2] == "NULLS" and words[-3] in {"FIRST", "LAST"}
    return nulls or (directions and words[-3] not in _OPERATORS)


_OPERATORS = {*"+-*/%~!&|^=<>.", "||", "==", "<=>", "<=", ">=", "<>", "!=", "NOT", "AND", "OR", "DIV", "LIKE"}
_ROW = ["CURRENT", "ROW"]
_TRIMMED = {"BOTH", "LEADING", "TRAILING"}
#: by the parser's method what is fine, and else what is wrong
_WRITTEN: dict[str, tuple[Fine, str]] = {
    "_parse_case": (lambda _, words, __: words.count("WHEN") == words.count("THEN"), "WHEN without THEN"),
    "_parse_between": (lambda _, words, __: "AND" in words, "BETWEEN without AND"),
    "_parse_where": (lambda before, words, _: "WHERE" in {before, words[0]}, "a condition without WHERE"),
    "_parse_using_identifiers": (lambda _, words, __: words[0] == "(", "USING without parentheses"),
    "_parse_star_op": (
        lambda _, words, __: len(words) > 3 and words[0] != "EXCLUDE" and words[1] == "(",
        "write * EXCEPT (a, b)",
    ),
    "_parse_types": (
        lambda before, words, _: before not in {"AS", "::"} or words[-1] not in {"CHAR", "VARCHAR"},
        "CHAR or VARCHAR without a length: write string",
    ),
    "_parse_alias": (
        lambda _, words, __: words[-1] != "AS",
        "AS without a name: a text or a number is not one",
    ),
    "_parse_table_alias": (
        lambda before, words, _: words[-1] != "AS" and (before, words[0]) != (")", "("),
        "AS, or names of columns, without the name of a table",
    ),
    "_parse_ordered": (lambda _, words, __: not _has_two_orders(words), "two orders of one value"),
    "_parse_window": (lambda _, words, __: words[-1] != "OVER", "OVER without a window"),
    "_parse_substring": (lambda _, words, __: words[-1] != "FOR" or "," in words, "FOR without a length"),
    "_parse_trim": (
        lambda _, words, __: words[0] not in _TRIMMED or len(words) == 1 or "," in words or "FROM" in words,
        "write trim(BOTH FROM text)",
    ),
    "_parse_window_spec": (_is_bound, "write a frame as ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"),
}


def _listed(parser: Any, parse: Callable[[], Any], sep: Any = None) -> list[Any]:
    """The items between commas, where sqlglot takes a comma with nothing before or behind it.

    An item may be nothing: sqlglot first tries the arguments of `array(NULL, 'c')` as types.
    """
    from sqlglot import TokenType as tokens  # noqa: N813

    items = [parse()]
    comma = sep or tokens.COMMA
    ends = {tokens.SENTINEL, tokens.R_PAREN, tokens.FROM, tokens.ALIAS, tokens.ROWS, tokens.RANGE, comma}
    ends |= {*parser.QUERY_MODIFIER_TOKENS, *parser.SET_OPERATIONS}
    if items[0] is None and parser._match(comma, advance=False):
        parser.raise_error("nothing is before a comma")
    while parser._match(comma):
        items.append(parse())
        if items[-1] is None and parser._match_set(ends, advance=False):
            parser.raise_error("nothing is behind a comma")
    return [one for one in items if one is not None]


def _joins(parse: Any) -> Any:
    """Read joins, where sqlglot takes `FROM a,` for `FROM a`."""

    def join(parser: Any, *arguments: Any, **options: Any) -> Any:
        from sqlglot import TokenType

        comma = parser._match(TokenType.COMMA, advance=False)
        if (joined := parse(parser, *arguments, **options)) is None and comma:
            parser.raise_error("nothing is behind a comma")
        if joined is None and parser._match(TokenType.NATURAL, advance=False):
            parser.raise_error("NATURAL without JOIN")
        return joined

    return join


def _call(parse: Any) -> Any:
    """Read a call, and keep the written name of its function."""

    def call(parser: Any, *arguments: Any, **options: Any) -> Any:
        first = parser._curr
        parsed = parse(parser, *arguments, **options)
        inner = parsed
        while type(inner).__name__ in {"Window", "Filter", "WithinGroup", "IgnoreNulls", "RespectNulls"}:
            inner = inner.this
        if inner is not None:
            inner.meta.setdefault(CALLED, first.text.lower())
        return parsed

    return call


def _written(parse: Any, fine: Fine, problem: str) -> Any:
    """A method that reads a part, and minds what was written."""

    def read(parser: Any, *arguments: Any, **options: Any) -> Any:
        first = parser._index
        parsed = parse(parser, *arguments, **options)
        words = _words(parser._tokens[first : parser._index]) or [""]
        before, after = _word(parser._tokens[first - 1]), _word(parser._curr)
        if (parsed is not None or words[-1] in {"AS", "EXCEPT"}) and not fine(before, words, after):
            parser.raise_error(problem)
        return parsed

    return read


#: the clauses behind FROM in their order, which sqlglot does not mind
_CLAUSES = (
    *("where", "group", "having", "windows", "qualify"),
    *("order", "cluster", "distribute", "sort", "limit", "offset"),
)


def _in_order(parse: Any) -> Any:
    """Read the clauses of one query: those that were read last are the parser's."""

    def modifiers(parser: Any, this: Any) -> Any:
        around, parser.clauses = getattr(parser, "clauses", []), []
        try:
            return parse(parser, this)
        finally:
            parser.clauses = around

    return modifiers


def _clause(parse: Any) -> Any:
    """Read one clause, where sqlglot takes WHERE behind GROUP BY, and `LIMIT 5, 10`."""

    def clause(parser: Any) -> Any:
        word = parser._curr.text.upper()
        key, tree = parse(parser)
        place = _CLAUSES.index(key) if key in _CLAUSES else -1
        if key == "windows":  # Spark has it behind QUALIFY and the orders, too
            place = min(max([place, *(before for before, _ in parser.clauses)]), _CLAUSES.index("sort"))
        for before, other in parser.clauses:
            if before > place >= 0:
                parser.raise_error(f"{word} behind {other}")
        parser.clauses.append((place, word))
        if key == "offset" and parser._prev.text.upper() in {"ROW", "ROWS"}:
            parser.raise_error("ROWS behind OFFSET: leave it out", parser._prev)
        if key == "limit" and tree is not None and tree.args.get("offset"):
            parser.raise_error("LIMIT of two numbers: write LIMIT n OFFSET m")
        return key, tree

    return clause


def methods(parser: Any) -> dict[str, Any]:
    """What a parser that minds has instead of what a parser of sqlglot's has.

    A version of sqlglot that lacks one of the methods takes what this one would refuse.
    """
    from sqlglot import TokenType

    minding: dict[str, Callable[[Any], Any]] = {
        **{name: partial(_written, fine=fine, problem=text) for name, (fine, text) in _WRITTEN.items()},
        "_parse_join": _joins,
        "_parse_function_call": _call,
        "_parse_query_modifiers": _in_order,
        "_parse": _balanced,
    }
    return {
        **{name: mind(getattr(parser, name)) for name, mind in minding.items() if hasattr(parser, name)},
        "_parse_csv": _listed,
        "QUERY_MODIFIER_PARSERS": {
            token: _clause(parse) for token, parse in parser.QUERY_MODIFIER_PARSERS.items()
        },
        # no text is a name: `a AS 'x'`, and of a table `t 'x'`
        "RESERVED_TOKENS": parser.RESERVED_TOKENS | {TokenType.STRING, TokenType.NUMBER},
        "_parse_string_as_identifier": lambda _: None,
    }


def _word(token: Any) -> str:
    """A token's word; nothing of texts and names in quotes."""
    quoted = token.token_type.name.endswith(("STRING", "IDENTIFIER"))
    return "" if quoted else str(token.text).upper()


def _words(tokens: Sequence[Any]) -> list[str]:
    """The words of tokens; nothing of one that others name: `x.then`, `a AS where`, `:on`."""
    words = list[str]()
    for one in tokens:
        is_name = words and words[-1] in {"AS", ".", ":"} and one.text[:1].isalpha()
        words.append("" if is_name else _word(one))
    return words


_EXPECTING = {"WHERE", "ON", "GROUP BY", "HAVING", "QUALIFY", "PARTITION BY", "ORDER BY"}
_ENDING = {")", ",", ";", "AS", "AND", "OR", "FROM", "UNION", "EXCEPT", "INTERSECT", "END OF TEXT"}
_ENDING |= _EXPECTING
_NEVER = {("SELECT", "AS"), ("WITH", "AS"), ("INTERVAL", "INTERVAL"), ("BETWEEN", "BETWEEN")}
_NEVER |= {("FROM", "."), ("JOIN", ".")}
_PAIRS = {"(": ")", "[": "]"}


def _balanced(parse: Any) -> Any:
    """Read statements in which no word lacks what it expects, and no parenthesis the other one."""
    from sqlglot import TokenType

    def read(parser: Any, parse_method: Any, raw_tokens: Sequence[Any], sql: str = "") -> Any:
        parser.reset()
        parser.sql, opened, tokens = sql, list[Any](), raw_tokens
        words = [*_words(tokens), "END OF TEXT"]
        for token, *three in zip(tokens[1:], words, words[1:], words[2:], strict=False):
            if three == ["GROUP BY", "ALL", ","]:  # a column of this name
                token.token_type = TokenType.VAR
        for token, word, after, third in zip(tokens, words, words[1:], [*words[2:], ""], strict=False):
            lacks = word in _EXPECTING and after in _ENDING
            if lacks or ((word, after) in _NEVER and not third.isdecimal()):  # DISTINCT FROM .5 is right
                parser.raise_error(f"{word} before {after.replace('END OF TEXT', 'the end')}", token)
            if token.token_type.name == "HEX_STRING" and sql[token.start] == "0":
                parser.raise_error("not a number: write X'1F' for bytes", token)
            if word in _PAIRS:
                opened.append(token)
            elif word in _PAIRS.values() and (not opened or _PAIRS[opened.pop().text] != word):
                parser.raise_error(f"a {word} that nothing opens", token)
        if opened:
            parser.raise_error(f"a {opened[-1].text} that nothing closes", opened[-1])
        return parse(parser, parse_method, raw_tokens, sql)

    return read


#: in a node's meta: the names of a row's fields as they are written, "" where a value is no name
FIELDS = "fields"


def name_fields(node: Any) -> None:
    """Note the names of the fields of `(a, t.b)`, `struct` and `arrays_zip`: columns get other ones."""
    kind = type(node).__name__
    if kind == "Tuple" or (kind == "Anonymous" and node.name.lower() in {"struct", "arrays_zip"}):
        written = (one.alias_or_name if type(one).__name__ in _NAMED else "" for one in node.expressions)
        node.meta[FIELDS] = [*written]


_NAMED = {"Alias", "Column", "Dot", "Identifier"}

Problems: TypeAlias = Iterator[tuple[Any, str, str]]


def problems(node: Any) -> Problems:
    """What is wrong with a node that sqlglot makes of what Spark does not take: where, why, what to write."""
    kind = type(node).__name__
    if (check := _CHECKS.get(kind)) is not None:
        yield from check(node)
    yield from _of_arguments(node)
    for one in node.args.get("laterals") or ():
        if not one.args.get("view"):
            yield one, "LATERAL behind a table", "write a comma before it, or LATERAL VIEW."
    parts = _PARTS.get(kind)
    for name in [name for name, value in node.args.items() if value and parts and name not in parts]:
        what = f"{name.strip('_').upper().replace('_', ' ')} in {kind.upper()}"
        yield node, f"{what} is not supported", "leave it out."


def _of_arguments(node: Any) -> Problems:
    """What is wrong with the arguments of a call."""
    from sqlglot import exp

    arguments: Any = node.iter_expressions() if isinstance(node, exp.Anonymous | exp.AggFunc) else ()
    for one in arguments:
        if isinstance(one, exp.Query) and not isinstance(one, exp.Subquery):
            hint = "write f((SELECT ...)); a list of its rows is (SELECT collect_list(x) FROM ...)."
            yield node, "a query as an argument, without parentheses of its own", hint
        if (isinstance(one, exp.Order) and one.this is None) or (
            isinstance(one, exp.Distinct) and not any(one.expressions)
        ):
            hint = f"write f(x ORDER BY y), f(DISTINCT x). {_QUOTED}"
            yield node, f"{type(one).__name__.upper()} of no value", hint


def _of_alias(node: Any) -> Problems:
    parent, alias = type(node.parent).__name__, node.args["alias"]
    if type(alias).__name__ != "Identifier":
        yield node, f"{alias.sql()} is not a name", "write AS and a name; a field is s.a, of a map m['a']."
    elif parent not in _NAMING and not (parent == "Anonymous" and node.parent.name.lower() == "struct"):
        yield node, f"the name {node.alias} where none may be", "name what is selected, or a field of struct."


def _of_group(node: Any) -> Problems:
    if node.args.get("all") and node.expressions:
        yield node, "GROUP BY ALL with further columns", "leave ALL out, or the columns."


def _of_values(node: Any) -> Problems:
    if not node.expressions and type(node.parent).__name__ != "GroupingSets":
        yield node, "() without a value", "write a value."


def _of_select(node: Any) -> Problems:
    # sqlglot reads JOIN without FROM, and so `SELECT a, join FROM t`, which Spark takes for two columns
    if node.args.get("joins") and not node.args.get("from_"):
        joined = node.args["joins"][0]
        table = (one for one in joined.walk() if type(one).__name__ == "Table")  # the star has no place
        yield next(table, joined), "JOIN without FROM", f"write FROM and a table before it. {_QUOTED}"
    if not node.expressions:
        yield node, "SELECT of no columns", f"list columns, or write *. {_QUOTED}"


def _of_join(node: Any) -> Problems:
    if node.method == "NATURAL" and node.kind == "CROSS":
        yield node, "NATURAL CROSS JOIN", "leave NATURAL out, or CROSS."


def _of_sides(node: Any) -> Problems:
    # sqlglot moves the clauses behind the last side to the whole
    for side in (node.this, node.expression):
        if type(side).__name__ == "Select" and any(map(side.args.get, ("order", "limit", "offset"))):
            yield side, "ORDER BY or LIMIT before a set operation", "put this SELECT into parentheses."


_QUOTED = "A column that is called as a clause is stands in backticks: `join`."
#: what may have names in it
_NAMING = {"NoneType", "Pivot", "Select", "Tuple", "Values"}
_CHECKS: dict[str, Callable[[Any], Problems]] = {
    "Alias": _of_alias,
    "Group": _of_group,
    "Join": _of_join,
    "Select": _of_select,
    "Values": _of_values,
    "Tuple": _of_values,
    **dict.fromkeys(("Union", "Except", "Intersect"), _of_sides),
}
#: by sqlglot's name of a node its parts that are read, or refused with their own words, where it has others
_PARTS = {
    kind: frozenset(names.split())
    for kind, names in {
        "Select": "with_ kind expressions hint distinct into from_ match laterals joins connect prewhere "
        "where group having qualify windows distribute sort cluster order limit offset locks sample",
        **dict.fromkeys(
            ("Union", "Except", "Intersect"), "with_ this expression distinct by_name order limit offset"
        ),
        "Table": "this alias db laterals joins pivots sample",
        "Subquery": "this alias with_ laterals joins pivots order limit offset sample lateral",
        "Join": "this on side kind using method hint",
        "Window": "this partition_by order spec alias over",
        "Ordered": "this desc nulls_first",
        "Order": "this expressions",
        "Group": "expressions grouping_sets cube rollup all",
        "Limit": "expression limit_options",
        "CTE": "this alias materialized",
        "With": "expressions recursive",
        "Values": "expressions alias",
        "Lateral": "this view outer alias",
        "Star": "except_ replace rename",
        "NthValue": "this offset",
        "Pivot": "expressions fields unpivot include_nulls alias columns identify_pivot_strings "
        "prefixed_pivot_columns pivot_column_naming value_columns_first",
        "In": "this expressions query field negate",
        "Between": "this low high negate",
        **dict.fromkeys(("Cast", "TryCast"), "this to safe"),
    }.items()
}
