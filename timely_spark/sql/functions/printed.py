"""Numbers as texts in formats, and the digits of other bases."""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.registry import Failures, spark_function
from timely_spark.sql.texts import of_distinct

#: a part of printf's format: its argument's number, flags, width, precision and letter
DIRECTIVE = re.compile(r"%(?:(\d+)\$)?([-#+ 0,(]*)(\d+)?(?:\.(\d+))?([a-zA-Z%])")


@spark_function(
    "$printed",
    *("bigint, string -> string", "double, string -> string", "decimal, string -> string"),
    constant=[1],
)
def _printed(x: pa.Array, directive: pa.Scalar) -> Any:
    """Numbers as a part of printf's format says."""
    *_, flags, width, digits, letter = DIRECTIVE.fullmatch(directive.as_py()).groups()  # type: ignore[union-attr]
    wide = int(width or 0)
    if letter == "s":  # of decimals, which Java writes as Python does
        return of_distinct(x, str, pa.string())

    def shown(one: Any) -> str:
        if letter == "c":
            return chr(one)
        if not math.isfinite(one):
            body = "NaN" if math.isnan(one) else "Infinity"
        elif letter in "efg":
            body = _rounded(abs(one), letter, 6 if digits is None else int(digits), "," in flags)
        else:
            body = f"{abs(one):,d}" if "," in flags else str(abs(one))
        negative = math.copysign(1, one) < 0 and not math.isnan(one)
        plus = "" if math.isnan(one) else "+" if "+" in flags else " " if " " in flags else ""
        before, behind = (("(", ")") if "(" in flags else ("-", "")) if negative else (plus, "")
        if "0" in flags and math.isfinite(one):
            body = body.zfill(wide - len(before) - len(behind))
        return before + body + behind

    return of_distinct(x, shown, pa.string())


def _rounded(value: float, letter: str, digits: int, grouped: bool) -> str:  # noqa: FBT001
    """A double's shortest digits, rounded half up as Java does."""
    with localcontext(Context(prec=400, rounding=ROUND_HALF_UP)):
        exact = Decimal(repr(value))
        if len(exact.as_tuple().digits) == 1:  # Java has two at least: of the smallest doubles other ones
            exact = Decimal(f"{value:.1e}")
        if letter == "g":  # so many digits in all, as %e where a number is small or large
            digits = max(digits, 1)
            place = int(format(exact, f".{digits - 1}e").partition("e")[2]) if value else 0
            letter, digits = ("f", digits - 1 - place) if -4 <= place < digits else ("e", digits - 1)
        text = format(exact, f"{',' if grouped else ''}.{digits}{letter}")
    mantissa, mark, exponent = text.partition("e")
    if mark and not value:
        exponent = "+0"
    return f"{mantissa}{mark}{exponent[:1]}{exponent[1:].zfill(2)}" if mark else text


@spark_function("$unsigned", "bigint, int, string -> string", constant=[1, 2])
def _unsigned(x: pa.Array, bits: pa.Scalar, directive: pa.Scalar) -> Any:
    """Integers of some bits in base 16 or 8."""
    *_, flags, width, _, letter = DIRECTIVE.fullmatch(directive.as_py()).groups()  # type: ignore[union-attr]
    prefix = {"x": "0x", "o": "0"}[letter] if "#" in flags else ""
    wide = int(width or 0) - len(prefix) if "0" in flags else 0

    def shown(one: int) -> str:
        return prefix + format(one % (1 << bits.as_py()), letter).zfill(wide)

    return of_distinct(x, shown, pa.string())


@spark_function("$padded", "string, int -> string", constant=[1])
def _padded(text: pa.Array, width: pa.Scalar) -> Any:
    """Texts with blanks before them; behind them for a negative width."""
    wide = width.as_py()
    return pc.utf8_lpad(text, wide) if wide >= 0 else pc.utf8_rpad(text, -wide)


_BASE_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNSIGNED = 1 << 64


def _in_base(number: int, base: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, base)
        digits = _BASE_DIGITS[digit] + digits
    return digits


@spark_function("conv", "string, int, int -> string", constant=[1, 2])
def _conv(text: pa.Array, source: pa.Scalar, target: pa.Scalar, *, failures: Failures) -> Any:
    base, to = source.as_py(), target.as_py()

    def converted(one: str) -> str | None:
        one = one.strip(" ")
        if not one or not 2 <= base <= 36 or not 2 <= abs(to) <= 36:
            return None
        negative, number = one.startswith("-"), 0
        for digit in one[negative:]:
            place = _BASE_DIGITS.find(digit.upper()) if digit.isascii() else -1
            if not 0 <= place < base:
                break
            number = number * base + place
        if number >= _UNSIGNED:
            return ""
        if negative and to > 0:
            number = _UNSIGNED - 1 if number >= _UNSIGNED // 2 else -number % _UNSIGNED
        if to < 0 and number >= _UNSIGNED // 2:
            negative, number = True, _UNSIGNED - number
        return ("-" if negative and to < 0 else "") + _in_base(number, abs(to))

    texts = of_distinct(text, converted, pa.string())
    too_large = pc.fill_null(pc.equal(texts, ""), fill_value=False)
    failures.at(too_large, "the number is too large for 64 bits", "shorten it.")
    return texts


@spark_function("format_number", "=number, =int -> string", constant=[1])
def _format_number(x: pa.Array, digits: pa.Scalar) -> Any:
    if digits.as_py() < 0:
        return pa.nulls(len(x), pa.string())
    endless = {"nan": "NaN", "inf": "∞", "-inf": "-∞"}

    def shown(one: Any) -> str:
        # Java writes zeros behind the 17 digits of a double
        binary = isinstance(one, float) and not 1e15 < abs(one) < math.inf
        exact = one if binary else Decimal(str(one))
        text = f"{exact:,.{digits.as_py()}f}"
        return endless.get(text, text)

    return of_distinct(x, shown, pa.string())
