"""How `printf` is bound: a text of its parts, each printed by a function of the table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from timely_spark.sql import terms
from timely_spark.sql.binder import ExpressionBinder, special
from timely_spark.sql.functions.printed import DIRECTIVE
from timely_spark.sql.terms import Term
from timely_spark.sql.types import is_date_or_time, is_decimal, is_integral, name_of


@special("printf format_string", 1)
def _printf(binder: ExpressionBinder, node: Any) -> Term:
    """The parts of the format, each of which prints one argument."""
    pattern, *values = binder.many(node.expressions)
    if not isinstance(pattern, terms.Constant) or pattern.type not in {pa.string(), pa.null()}:
        raise binder.refuse(node, f"{node.name} with a format that is not a literal", "write concat(...).")
    if not pattern.value.is_valid:
        return binder.constant(pa.scalar(None, pa.string()))
    text, parts, place, number = pattern.value.as_py(), list[Term](), 0, 0
    for match in DIRECTIVE.finditer(text):
        parts.append(
            binder.constant(pa.scalar(_without_directive(binder, node, text[place : match.start()])))
        )
        place = match.end()
        if match[5] in "%n":
            parts.append(binder.constant(pa.scalar({"%": "%", "n": "\n"}[match[5]])))
            continue
        number += match[1] is None
        at = int(match[1] or number) - 1
        if not 0 <= at < len(values):
            raise binder.refuse(node, f"{match[0]} has no argument", f"there are {len(values)}.")
        parts.append(_directed(binder, node, match, values[at]))
    parts.append(binder.constant(pa.scalar(_without_directive(binder, node, text[place:]))))
    return binder.called(node, "$concat", parts)


def _without_directive(binder: ExpressionBinder, node: Any, text: str) -> str:
    if "%" in text:
        raise binder.refuse(node, f"the format {text!r}", "write %% for a sign of per cent.")
    return text


def _directed(binder: ExpressionBinder, node: Any, match: Any, value: Term) -> Term:
    """An argument of printf, printed as a part of the format says."""
    flags, width, digits, letter = match.groups()[1:]
    lower = letter.lower()
    if is_date_or_time(value.type):  # Spark prints the days and microseconds that it stores
        value = binder.called(node, "unix_date" if pa.types.is_date32(value.type) else "$micros", [value])
    if lower == "b":
        truth = value if pa.types.is_boolean(value.type) else binder.called(node, "isnotnull", [value])
        value, lower = terms.Coalesce(pa.bool_(), (truth, binder.constant(pa.scalar(value=False)))), "s"
    integers = is_integral(value.type) or value.type == pa.null()
    fits = {
        "s": not (pa.types.is_nested(value.type) or value.type == pa.binary()),
        "c": integers and value.type != pa.int64() and letter == "c" and digits is None,
        "d": integers and letter == "d" and digits is None,
        "x": integers and digits is None,
        "o": integers and letter == "o" and digits is None,
        **dict.fromkeys("efg", pa.types.is_floating(value.type) and letter != "F"),
    }
    if not fits.get(lower, False):
        hint = "cast it; known are %s %b of what is a text, %d %x %o %c of integers, %e %f %g of doubles."
        raise binder.refuse(node, f"{match[0]} of {name_of(value.type)}", hint)
    directive = binder.constant(pa.scalar(f"%{flags}{width or ''}{'.' + digits if digits else ''}{lower}"))
    if lower == "s" and not is_decimal(value.type):
        shown = binder.cast(value, pa.string(), node)
    elif lower in "xo":
        bits = binder.constant(pa.scalar(64 if value.type == pa.null() else value.type.bit_width, pa.int32()))
        shown = binder.called(node, "$unsigned", [value, bits, directive])
    else:
        value = binder.cast(value, pa.float64(), node) if lower in "efg" else value
        shown = binder.called(node, "$printed", [value, directive])
    cut = None if digits is None else int(digits)  # of a text, and of null
    if lower == "s" and digits is not None:
        shown = binder.called(node, "left", [shown, binder.constant(pa.scalar(cut, pa.int32()))])
    shown = terms.Coalesce(pa.string(), (shown, binder.constant(pa.scalar("null"[:cut]))))
    if letter.isupper():
        shown = binder.called(node, "upper", [shown])
    if width:
        wide = binder.constant(pa.scalar(-int(width) if "-" in flags else int(width), pa.int32()))
        shown = binder.called(node, "$padded", [shown, wide])
    return shown
