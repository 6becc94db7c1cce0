"""Regular expressions of Java's, as RE2 reads them, and as Python does where RE2 cannot.

Java's letters, digits and cases are those of ASCII, and its lines end in other ways. Arrow has RE2, which is
fast; look-around, back-references and matches of nothing are Python's.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.registry import scatter
from timely_spark.sql.texts import of_distinct

#: code points, both ends included
Ranges = list[tuple[int, int]]

LAST = 0x10FFFF
_BREAKS = "\n\r\x85\u2028\u2029"
_BREAK = r"(?:\r\n|[\n\r\u0085\u2028\u2029])"
#: in Python: before the last line break, and before or behind any one
_END = rf"(?={_BREAK}?\Z)(?<!\r(?=\n))"
_LINE_END = rf"(?=\Z|{_BREAK})(?<!\r(?=\n))"
#: the texts in which they are not where RE2 has them
_LINES = rf"[{_BREAKS}]|^\z"
_OTHER_LETTERS = r"[^\x00-\x7f]"
_LINE_START = r"(?:\A|(?<=[\n\r\u0085\u2028\u2029])(?<!\r(?=\n)))(?!\Z)"


def _ranges(characters: str) -> Ranges:
    return [(ord(one), ord(one)) for one in characters]


_DIGITS, _LOWER, _UPPER = (ord("0"), ord("9")), (ord("a"), ord("z")), (ord("A"), ord("Z"))
_PUNCTUATION = _ranges(string.punctuation)
_ALNUM: Ranges = [_DIGITS, _LOWER, _UPPER]
#: classes by the letter behind the backslash; a capital letter is the complement
_ESCAPES: dict[str, Ranges] = {
    "d": [_DIGITS],
    "w": [*_ALNUM, *_ranges("_")],
    "s": _ranges(" \t\n\x0b\f\r"),
    "h": [*_ranges(" \t\xa0\u1680\u180e\u202f\u205f\u3000"), (0x2000, 0x200A)],
    "v": _ranges("\x0b\f" + _BREAKS),
}
_POSIX: dict[str, Ranges] = {
    "Lower": [_LOWER],
    "Upper": [_UPPER],
    "ASCII": [(0, 127)],
    "Alpha": [_LOWER, _UPPER],
    "Digit": [_DIGITS],
    "Alnum": _ALNUM,
    "Punct": _PUNCTUATION,
    "Graph": [*_ALNUM, *_PUNCTUATION],
    "Print": [(32, 126)],
    "Blank": _ranges(" \t"),
    "Cntrl": [(0, 31), (127, 127)],
    "XDigit": [_DIGITS, (97, 102), (65, 70)],
    "Space": _ESCAPES["s"],
}
#: by the letter behind the backslash the place in RE2, in Python, and the texts in which they differ
_EDGES = {
    "b": (r"\b", r"\b", _OTHER_LETTERS),
    "B": (r"\B", r"(?!\b)", _OTHER_LETTERS),
    "Z": (r"\z", _END, _LINES),
    "z": (r"\z", r"\Z", ""),
}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}


@cache
def _category(name: str) -> Ranges:
    """The characters of a category of Unicode, such as `Lu`, or of several, such as `L`."""
    codes = [code for code in range(LAST + 1) if unicodedata.category(chr(code)).startswith(name)]
    breaks = [n for n in range(1, len(codes)) if codes[n] != codes[n - 1] + 1]
    bounds = zip([0, *breaks], [*breaks, len(codes)], strict=True)
    return [(codes[first], codes[behind - 1]) for first, behind in bounds if behind]


def _complement(ranges: Ranges) -> Ranges:
    result, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            result.append((start, low - 1))
        start = max(start, high + 1)
    return [*result, (start, LAST)] if start <= LAST else result


def _common(a: Ranges, b: Ranges) -> Ranges:
    return _complement([*_complement(a), *_complement(b)])


@dataclass
class _Class:
    """What is in brackets: code points, and Unicode's properties, which only RE2 knows."""

    ranges: Ranges = field(default_factory=list)
    properties: list[str] = field(default_factory=list)


class _Unread(Exception):
    """A construct that one of the two cannot have."""


@dataclass
class _Translation:
    """Reads a pattern once, for RE2 or for Python."""

    pattern: str
    python: bool
    place: int = 0
    flags: frozenset[str] = frozenset()
    groups: int = 0
    #: by RE2's patterns, the texts in which RE2 finds other matches
    other_texts: set[str] = field(default_factory=set)
    #: whether it is bound to the begin of a text
    anchored: bool = False
    names: dict[str, int] = field(default_factory=dict)

    # -- reading ---------------------------------------------------------------------------------------------

    def taken(self, text: str) -> bool:
        """Go past a text, if it is next."""
        if not self.pattern.startswith(text, self.place):
            return False
        self.place += len(text)
        return True

    def matched(self, expression: str) -> re.Match[str] | None:
        """Go past a match of an expression, if it is next."""
        match = re.compile(expression, re.DOTALL).match(self.pattern, self.place)
        self.place = self.place if match is None else match.end()
        return match

    def refuse(self, *, problem: str) -> pa.ArrowInvalid:
        return pa.ArrowInvalid(f"in the regex {self.pattern!r}, {problem}")

    # -- writing ---------------------------------------------------------------------------------------------

    def character(self, code: int) -> str:
        """A literal character."""
        one = chr(code)
        if one.isascii():
            return one if one.isalnum() else f"\\x{code:02x}"
        return f"\\U{code:08x}" if self.python else f"\\x{{{code:x}}}"

    def of_class(self, members: _Class, *, negated: bool = False) -> str:
        each = [
            self.character(low) if low == high else f"{self.character(low)}-{self.character(high)}"
            for low, high in members.ranges
        ]
        if not negated and not members.properties and 0 < len(each) <= 2:  # as in `literal`
            return f"(?:{'|'.join(f'[{one}]' for one in each)})"
        inside = "".join([*each, *members.properties])
        if not inside:
            inside, negated = f"{self.character(0)}-{self.character(LAST)}", not negated
        return f"[{'^' if negated else ''}{inside}]"

    def only_python(self, text: str, what: str) -> str:
        if not self.python:
            raise _Unread(what)
        return text

    # -- the pattern -----------------------------------------------------------------------------------------

    def alternatives(self, *, inside: bool = False) -> str:
        """The pattern up to its end, or up to the parenthesis that closes a group."""
        out: list[str] = []
        while self.place < len(self.pattern):
            if inside and self.taken(")"):
                return "".join(out)
            if self.taken("|"):
                out.append("|")
                continue
            out.append(self.atom() + self.quantifier())
        if inside:
            raise self.refuse(problem="a group does not end")
        return "".join(out)

    def quantifier(self) -> str:
        match = self.matched(r"([*+?]|\{\d+(?:,\d*)?\})([?+]?)")
        if match is None:
            return ""
        return self.only_python(match[0], "a possessive quantifier") if match[2] == "+" else match[0]

    def atom(self) -> str:
        """One character, class, group or edge."""
        if self.taken("("):
            return self.group()
        if self.taken("["):
            members, negated = self.brackets()
            return self.of_class(members, negated=negated)
        if self.taken("\\"):
            return self.escaped()
        one = self.pattern[self.place]
        if one in "*+?{)":
            raise self.refuse(problem=f"{one!r} is out of place")
        self.place += 1
        if one == ".":
            return self.of_class(_Class([(0, LAST)] if "s" in self.flags else _complement(_ranges(_BREAKS))))
        if one == "^":
            self.anchored = True
            return self.edge("^", _LINE_START, _LINES) if "m" in self.flags else "^"
        if one == "$":
            return self.edge(r"\z", _LINE_END if "m" in self.flags else _END, _LINES)
        return self.literal(ord(one))

    def edge(self, in_re2: str, in_python: str, other_texts: str) -> str:
        """A place that RE2 finds in some texts only."""
        self.other_texts |= {other_texts} - {""}
        return in_python if self.python else in_re2

    def literal(self, code: int) -> str:
        if "i" in self.flags and (one := chr(code)).isascii() and one.isalpha():
            return f"(?:{one}|{one.swapcase()})"  # beside `|` RE2 takes [kK] for each case of Unicode
        return self.character(code)

    def group(self) -> str:
        flags, before = self.flags, self.place
        if not self.taken("?"):
            self.groups += 1
            opening = f"(?P<g{self.groups}>"
        elif match := self.matched(r"<([a-zA-Z][a-zA-Z0-9]*)>"):
            self.groups += 1
            self.names[match[1]] = self.groups
            opening = f"(?P<g{self.groups}>"
        elif match := self.matched(r"=|!|<=|<!|>"):
            opening = self.only_python(f"(?{match[0]}", "look-around")
        elif match := self.matched(r"([a-zA-Z]*)(-[a-zA-Z]+)?([:)])"):
            off = set(match[2] or "")
            if unread := sorted({*match[1], *off} - set("ims-")):
                raise self.refuse(problem=f"the flag {unread[0]} is not supported")
            self.flags = frozenset({*self.flags, *match[1]} - off)
            if match[3] == ")":  # up to the end of the group around it
                return ""
            opening = "(?:"
        else:
            raise self.refuse(problem=f"{self.pattern[before - 1 : before + 2]!r} is not supported")
        body = self.alternatives(inside=True)
        self.flags = flags
        return f"{opening}{body})"

    def escaped(self) -> str:
        """What a backslash begins."""
        if self.taken("Q"):
            end = self.pattern.find("\\E", self.place)
            quoted = self.pattern[self.place : end if end >= 0 else None]
            self.place = end + 2 if end >= 0 else len(self.pattern)
            return "(?:" + "".join(self.literal(ord(one)) for one in quoted) + ")"
        if self.taken("R"):
            return rf"(?:\r\n|{self.of_class(_Class(_ESCAPES['v']))})"
        if self.taken("A"):
            self.anchored = True
            return r"\A"
        if match := self.matched("[bBZz]"):
            in_re2, in_python, other_texts = _EDGES[match[0]]
            return self.edge(in_re2, in_python, other_texts)
        if match := self.matched(r"[1-9]|k<(\w+)>"):
            number = self.names.get(match[1], 0) if match[1] else int(match[0])
            if not 0 < number <= self.groups:
                raise self.refuse(problem=f"there is no group {match[1] or match[0]} before its reference")
            return self.only_python(f"(?P=g{number})", "a back-reference")
        if (members := self.of_escape()) is not None:
            return self.of_class(members)
        return self.literal(self.code())

    def of_escape(self) -> _Class | None:
        """The class behind a backslash, if it is one."""
        if match := self.matched("[dDwWsShHvV]"):
            ranges = _ESCAPES[match[0].lower()]
            return _Class(_complement(ranges) if match[0].isupper() else ranges)
        match = self.matched(r"([pP])(?:\{(\w+)\}|(\w))")
        if match is None:
            return None
        name = match[2] or match[3]
        if "i" in self.flags and name in {"Lower", "Upper"}:
            name = "Alpha"
        if name in _POSIX:
            return _Class(_complement(_POSIX[name]) if match[1] == "P" else _POSIX[name])
        if self.python:
            if not (ranges := _category(name.removeprefix("Is"))):
                msg = f"{match[0]} is RE2's only"
                raise _Unread(msg)
            return _Class(_complement(ranges) if match[1] == "P" else ranges)
        return _Class([], [f"\\{match[1]}{{{name.removeprefix('Is')}}}"])

    def code(self, *, escaped: bool = True) -> int:
        """The code point of a character."""
        if not escaped:
            self.place += 1
            return ord(self.pattern[self.place - 1])
        if match := self.matched(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]+)\}"):
            return int(match[1] or match[2] or match[3], 16)
        if match := self.matched("0([0-3]?[0-7]{1,2})"):
            return int(match[1], 8)
        if match := self.matched("c(.)"):
            return ord(match[1]) ^ 64
        match = self.matched(".")
        if match is None or (match[0].isascii() and match[0].isalnum() and match[0] not in _CONTROLS):
            raise self.refuse(problem=f"\\{match[0] if match else ''} is not supported")
        return ord(_CONTROLS.get(match[0], match[0]))

    # -- classes ---------------------------------------------------------------------------------------------

    def brackets(self) -> tuple[_Class, bool]:
        """A class up to its bracket, and whether it is negated."""
        negated, members, first = self.taken("^"), _Class(), self.place
        while not (self.place > first and self.taken("]")):
            if self.place >= len(self.pattern):
                raise self.refuse(problem="a class does not end")
            if self.taken("&&"):  # the rest of the class is its other side
                if self.place == first + 2 or self.pattern[self.place : self.place + 1] in {"&", "]"}:
                    raise self.refuse(problem="&& has not two sides")
                return self.intersection(members), negated
            if self.taken("["):
                inner, other = self.brackets()
                members = self.union(members, self.plain(inner) if other else inner, negated=other)
                continue
            escape = self.taken("\\")
            if escape and (of_escape := self.of_escape()) is not None:
                members = self.union(members, of_escape)
                continue
            low = high = self.code(escaped=escape)
            if self.matched(r"-(?=[^\]\[])"):
                high = self.code(escaped=self.taken("\\"))
            if high < low:
                raise self.refuse(problem="a range ends before it begins")
            members.ranges += self.in_both_cases(low, high)
        return members, negated

    def in_both_cases(self, low: int, high: int) -> Ranges:
        ranges = [(low, high)]
        if "i" in self.flags:
            for letters, by in ((_LOWER, -32), (_UPPER, 32)):
                ranges += [(a + by, b + by) for a, b in _common([(low, high)], [letters])]
        return ranges

    def plain(self, members: _Class) -> _Class:
        if members.properties:
            msg = r"\p{...} in a class of classes"
            raise _Unread(msg)
        return members

    def union(self, a: _Class, b: _Class, *, negated: bool = False) -> _Class:
        ranges = _complement(b.ranges) if negated else b.ranges
        return _Class([*a.ranges, *ranges], [*a.properties, *b.properties])

    def intersection(self, left: _Class) -> _Class:
        """What is left of `&&` and in the rest of the class."""
        right, negated = self.brackets()
        ranges = _complement(self.plain(right).ranges) if negated else self.plain(right).ranges
        return _Class(_common(self.plain(left).ranges, ranges))


@dataclass(frozen=True)
class JavaPattern:
    """A pattern in both languages.

    Attributes:
        re2: the pattern for Arrow, whose groups are named g1, g2, ...; None if RE2 cannot have it.
        other_texts: RE2's pattern of the texts in which RE2 finds other matches; empty if there are none.
        anchored: whether it is bound to the begin of a text, which Arrow takes for that of each part.
        groups: how many groups it has.
        names: the numbers of the named ones.
    """

    pattern: str
    re2: str | None
    other_texts: str
    anchored: bool
    groups: int
    names: dict[str, int]

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The pattern in Python."""
        try:
            return re.compile(_Translation(self.pattern, python=True).alternatives())
        except (_Unread, re.error) as error:
            msg = f"the regex {self.pattern!r} is not supported: {error}"
            raise pa.ArrowInvalid(msg) from error

    @cached_property
    def of_nothing(self) -> bool:
        """Whether it may match the empty text: there RE2's matches are others."""
        if self.re2 is None or re.search(r"\\[bB]", self.pattern):
            return True
        return bool(pc.match_substring_regex(pa.array([""]), rf"^(?:{self.re2})\z")[0].as_py())

    def applied(
        self,
        texts: pa.Array,
        by_arrow: Callable[[pa.Array, str], Any] | None,
        by_python: Callable[[str], Any],
        kind: pa.DataType,
    ) -> Any:
        """The values of a function of texts, by Arrow as far as RE2 has the same matches as Java.

        Args:
            texts: the texts.
            by_arrow: computes all values of an array; None if RE2 would have other matches.
            by_python: computes the value of one text.
            kind: the type of the values.
        """
        if self.re2 is None or by_arrow is None:
            return of_distinct(texts, by_python, kind)
        other = np.zeros(len(texts), np.bool_)
        if self.other_texts:
            other[:] = np.asarray(pc.match_substring_regex(texts, self.other_texts))
        if not other.any():
            return by_arrow(texts, self.re2)
        rest, others = np.flatnonzero(~other), np.flatnonzero(other)
        fast = by_arrow(texts.take(pa.array(rest)), self.re2).cast(kind)
        slow = of_distinct(texts.take(pa.array(others)), by_python, kind)
        return scatter([(rest, fast), (others, slow)], len(texts), kind)

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """All matches in a text: behind one of nothing the next begins one character later."""
        place = 0
        while place <= len(text) and (match := self.expression.search(text, place)) is not None:
            yield match
            place = match.end() + (match.start() == match.end())


@lru_cache(maxsize=256)
def java_pattern(pattern: str) -> JavaPattern:
    """A pattern of Java's.

    Raises:
        pa.ArrowInvalid: it is not one, or has what neither RE2 nor Python has.
    """
    translation, source = _Translation(pattern, python=False), None
    try:
        source = translation.alternatives()
        pc.match_substring_regex(pa.array([""]), source)
    except (_Unread, pa.ArrowInvalid) as error:
        if isinstance(error, pa.ArrowInvalid) and source is None:
            raise
        source, translation = None, _Translation(pattern, python=True)
        try:
            translation.alternatives()
        except _Unread as unread:
            raise translation.refuse(problem=f"{error}; {unread}") from error
    compiled = JavaPattern(
        pattern,
        source,
        "|".join(sorted(translation.other_texts)),
        translation.anchored,
        translation.groups,
        translation.names,
    )
    if source is None:
        compiled.expression  # noqa: B018 - which refuses what Python has not
    return compiled
