"""Functions of texts and bytes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from timely_spark.sql.lists import part_of_lists, reversed_lists
from timely_spark.sql.patterns import JavaPattern, java_pattern
from timely_spark.sql.plain import longs, to_numpy
from timely_spark.sql.registry import Failures, Value, as_array, spark_function
from timely_spark.sql.texts import Characters, mapped, of_distinct, texts_of_bytes
from timely_spark.sql.types import array_of


def _all_ascii(texts: pa.Array) -> bool:
    data = Characters(texts)
    first, last = data.offsets[0], data.offsets[-1]
    return bool((data.data[first:last] < 128).all())


@spark_function("upper ucase", "string -> string")
def _upper(text: pa.Array) -> Any:
    return pc.ascii_upper(text) if _all_ascii(text) else mapped(text, str.upper)


@spark_function("lower lcase", "string -> string")
def _lower(text: pa.Array) -> Any:
    return pc.ascii_lower(text) if _all_ascii(text) else mapped(text, str.lower)


@spark_function("initcap", "string -> string")
def _initcap(text: pa.Array) -> Any:
    words = pc.split_pattern(text, " ")
    flat = words.flatten()
    first = mapped(pc.utf8_slice_codeunits(flat, 0, 1), str.title)
    rest = _lower(pc.utf8_slice_codeunits(flat, 1, 2**31 - 1))
    joined = pc.binary_join_element_wise(first, rest, "")
    return pc.binary_join(pa.ListArray.from_arrays(words.offsets, joined), " ")


@spark_function("length len char_length character_length", "string -> int", "binary -> int")
def _length(text: Value) -> Any:
    return pc.binary_length(text) if pa.types.is_binary(text.type) else pc.utf8_length(text)


@spark_function("$concat", "string... -> string")
def _concat(*texts: Value, length: int) -> Any:
    if not texts:
        return pa.scalar("")
    return pc.binary_join_element_wise(*(as_array(one, length) for one in texts), "")


@spark_function("$binary_concat", "binary... -> binary")
def _binary_concat(*values: Value, length: int) -> Any:
    return pc.binary_join_element_wise(*(as_array(one, length) for one in values), b"")


@spark_function("reverse", "string -> string", "binary -> binary", "array<T> -> array<T>")
def _reverse(value: pa.Array) -> Any:
    return reversed_lists(value) if pa.types.is_list(value.type) else Characters(value).reversed()


spark_function("octet_length", "string -> int", "binary -> int")(pc.binary_length)


@spark_function("bit_length", "string -> int", "binary -> int")
def _bit_length(text: Value) -> Any:
    return pc.multiply(pc.binary_length(text), 8)


def _trimmed(names: str, trim: Any) -> None:
    @spark_function(names, "string, string? -> string", constant=[1])
    def _kernel(text: Value, characters: pa.Scalar | None = None) -> Any:
        return trim(text, " " if characters is None else characters.as_py())


_trimmed("$trim", pc.utf8_trim)
_trimmed("$ltrim", pc.utf8_ltrim)
_trimmed("$rtrim", pc.utf8_rtrim)


def _padding(text: pa.Array, size: Value, pad: Value | None, length: int) -> tuple[pa.Array, pa.Array]:
    """The texts, cut if they are too long, and what is to be added to each."""
    x = Characters(text)
    wanted = np.broadcast_to(np.maximum(to_numpy(size), 0), length).astype(np.int64)
    space = pa.scalar(" " if pa.types.is_string(text.type) else b"\0")
    pads = as_array(space if pad is None else pad, length)
    missing = np.maximum(wanted - x.lengths, 0)
    if missing.sum() > 2**30:
        msg = f"the padded texts of {length} rows would have {missing.sum()} characters"
        raise pa.ArrowInvalid(msg)
    width = Characters(pads).lengths
    times = np.where(width == 0, 0, -(-missing // np.maximum(width, 1)))
    repeated = pc.binary_repeat(pads, pa.array(times))
    return x.cut(np.zeros(length, np.int64), wanted), Characters(repeated).cut(
        np.zeros(length, np.int64), missing
    )


def _joined(*parts: pa.Array) -> Any:
    return pc.binary_join_element_wise(*parts, "" if pa.types.is_string(parts[0].type) else b"")


@spark_function("lpad", "string, int, string? -> string", "binary, int, binary? -> binary")
def _lpad(text: Value, size: Value, pad: Value | None = None, *, length: int) -> Any:
    cut, added = _padding(as_array(text, length), size, pad, length)
    return _joined(added, cut)


@spark_function("rpad", "string, int, string? -> string", "binary, int, binary? -> binary")
def _rpad(text: Value, size: Value, pad: Value | None = None, *, length: int) -> Any:
    cut, added = _padding(as_array(text, length), size, pad, length)
    return _joined(cut, added)


@spark_function("substring substr", "string, int, int? -> string", "binary, int, int? -> binary")
def _substring(text: Value, start: Value, size: Value | None = None, *, length: int) -> Any:
    x = Characters(as_array(text, length))
    begin = longs(start, length)
    begin = np.where(begin > 0, begin - 1, np.where(begin < 0, begin + x.lengths, 0))
    count = 2**31 - 1 if size is None else longs(size, length)
    return x.cut(begin, begin + count)


@spark_function("left", "string, int -> string", "binary, int -> binary")
def _left(text: Value, size: Value, *, length: int) -> Any:
    n = longs(size, length)
    return Characters(as_array(text, length)).cut(np.zeros(length, np.int64), n)


@spark_function("right", "string, int -> string")
def _right(text: Value, size: Value, *, length: int) -> Any:
    x = Characters(as_array(text, length))
    n = np.maximum(longs(size, length), 0)
    return x.cut(x.lengths - n, x.lengths)


@spark_function("substring_index", "string, string, int -> string", constant=[1, 2])
def _substring_index(text: Value, mark: pa.Scalar, count: pa.Scalar, *, length: int) -> Any:
    pattern, n = mark.as_py(), count.as_py()
    if not pattern or not n:
        return pa.repeat("", length)
    parts = pc.split_pattern(as_array(text, length), pattern)
    if n < 0:
        parts = pc.split_pattern(as_array(text, length), pattern, max_splits=-n, reverse=True)
        sizes = np.asarray(pc.list_value_length(parts))
        chosen = part_of_lists(parts, np.where(sizes > -n, 1, 0), sizes)
    else:
        chosen = part_of_lists(
            parts, np.zeros(length, np.int64), np.minimum(np.asarray(pc.list_value_length(parts)), n)
        )
    return pc.binary_join(chosen, pattern)


def _place_of(text: pa.Array, part: str, begin: Any) -> Any:
    """The number (from 1) of the character where a part begins, at or after some character; 0 if nowhere."""
    x = Characters(text)
    rest = x if begin is None else Characters(x.cut(begin, x.lengths))
    at = np.asarray(pc.find_substring(rest.texts, part))
    number = rest.at_bytes(np.maximum(at, 0)) + 1 + (0 if begin is None else np.minimum(begin, x.lengths))
    return np.where(at < 0, 0, number).astype(np.int32)


@spark_function("instr", "string, string -> int", constant=[1])
def _instr(text: Value, part: pa.Scalar) -> Any:
    return _place_of(text, part.as_py(), None)


@spark_function("$locate", "string, string, int? -> int", constant=[0])
def _locate(part: pa.Scalar, text: Value, start: Value | None = None, *, length: int) -> Any:
    array = as_array(text, length)
    if start is None:
        return _place_of(array, part.as_py(), None)
    first = longs(start, length) - 1
    if not part.as_py():  # as Java: at the begin, wherever it is looked for
        return (first >= 0).astype(np.int32)
    places = _place_of(array, part.as_py(), np.maximum(first, 0))
    past = first > Characters(array).lengths
    return np.where((first < 0) | past, 0, places).astype(np.int32)


def _tested(name: str, test: Any) -> None:
    @spark_function(name, "string, string -> boolean", "binary, binary -> boolean", constant=[1])
    def _kernel(text: Value, part: pa.Scalar) -> Any:
        return test(text, part.as_py())


_tested("contains", pc.match_substring)
_tested("startswith", pc.starts_with)
_tested("endswith", pc.ends_with)


@spark_function("replace", "string, string, string? -> string", constant=[1, 2])
def _replace(text: Value, part: pa.Scalar, by: pa.Scalar | None = None) -> Any:
    if not part.as_py():
        return text
    return pc.replace_substring(text, part.as_py(), "" if by is None else by.as_py())


@spark_function("translate", "string, string, string -> string", constant=[1, 2])
def _translate(text: pa.Array, source: pa.Scalar, target: pa.Scalar) -> Any:
    to = target.as_py()
    table: dict[int, str | None] = {}
    for place, one in enumerate(source.as_py()):
        table.setdefault(ord(one), to[place] if place < len(to) else None)
    return mapped(text, lambda joined: joined.translate(table))


@spark_function("repeat", "string, int -> string")
def _repeat(text: Value, times: Value, *, length: int) -> Any:
    n = np.maximum(np.broadcast_to(to_numpy(times), length), 0)
    return pc.binary_repeat(as_array(text, length), pa.array(n))


@spark_function("space", "int -> string")
def _space(times: Value) -> Any:
    n = pa.array(np.maximum(to_numpy(times), 0))
    return pc.binary_repeat(pa.repeat(" ", len(n)), n)


@spark_function("ascii", "string -> int")
def _ascii(text: pa.Array) -> Any:
    first = pc.utf8_slice_codeunits(text, 0, 1)
    x = Characters(first)
    codes = np.zeros(len(text), np.int32)
    rows = np.flatnonzero(x.lengths)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], first), "")[0].as_py()
    codes[rows] = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
    return codes


@spark_function("chr char", "bigint -> string")
def _chr(code: Value) -> Any:
    x = to_numpy(code)
    letters = pa.array([chr(n) for n in range(256)]).take(pa.array(x & 0xFF))
    return pc.if_else(pa.array(x < 0), "", letters)


@spark_function("split", "string, string, int? -> array<string>", constant=[1, 2])
def _split(text: pa.Array, pattern: pa.Scalar, limit: pa.Scalar | None = None) -> Any:
    return split_texts(text, pattern.as_py(), 0 if limit is None else limit.as_py())


@spark_function("split_part", "string, string, int -> string", constant=[1])
def _split_part(text: Value, mark: pa.Scalar, number: Value, *, length: int, failures: Failures) -> Any:
    n = longs(number, length)
    failures.at(n == 0, "the number of a part is 0", "count parts from 1, or from -1 at the end.")
    array = as_array(text, length)
    parts = pc.split_pattern(array, mark.as_py()) if mark.as_py() else _single(array)
    sizes = np.asarray(pc.list_value_length(parts))
    place = np.where(n > 0, n - 1, sizes + n)
    inside = (place >= 0) & (place < sizes)
    where = np.asarray(parts.offsets)[:-1] + np.where(inside, place, 0)
    part = parts.values.take(pa.array(np.minimum(where, max(len(parts.values) - 1, 0))))
    return pc.if_else(pa.array(inside), part, "")


def _single(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1), pa.int32()), array)


@spark_function("find_in_set", "string, string -> int", constant=[1])
def _find_in_set(text: pa.Array, listed: pa.Scalar) -> Any:
    values = listed.as_py().split(",")
    distinct = list(dict.fromkeys(values))
    place = np.asarray(pc.fill_null(pc.index_in(text, pa.array(distinct, pa.string())), -1))
    return np.array([*(values.index(one) + 1 for one in distinct), 0], np.int32)[place]


@spark_function("overlay", "string, string, int, int? -> string", "binary, binary, int, int? -> binary")
def _overlay(text: Value, by: Value, start: Value, size: Value | None = None, *, length: int) -> Any:
    x, new = Characters(as_array(text, length)), Characters(as_array(by, length))
    begin = longs(start, length)
    count = new.lengths if size is None else longs(size, length)
    count = np.where(count < 0, new.lengths, count)
    zero = np.zeros(length, np.int64)
    before = x.cut(zero, np.maximum(begin - 1, 0))
    after = _substring(x.texts, pa.array(begin + count), length=length)
    return _joined(before, new.texts, after)


@spark_function("hex", "bigint -> string", "string -> string", "binary -> string")
def _hex(value: pa.Array) -> Any:
    if pa.types.is_integer(value.type):
        x = to_numpy(value).astype(">i8").view(np.uint8)
        digits = _hex_of(x, np.arange(0, len(x) + 1, 8))
        short = pc.utf8_ltrim(digits, "0")
        return pc.if_else(pc.equal(short, ""), "0", short)
    bytes_ = Characters(value if pa.types.is_string(value.type) else value.view(pa.string()))
    first = bytes_.offsets[0]
    return _hex_of(bytes_.data[first : bytes_.offsets[-1]], bytes_.offsets - first)


_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def _hex_of(data: Any, offsets: Any) -> pa.Array:
    both = np.stack([_DIGITS[data >> 4], _DIGITS[data & 15]], axis=1).ravel()
    return texts_of_bytes(both, offsets * 2)


@spark_function("bin", "bigint -> string")
def _bin(value: Value) -> Any:
    x = to_numpy(value).astype(">i8").view(np.uint8)
    bits = np.unpackbits(x) + np.uint8(48)
    digits = texts_of_bytes(bits, np.arange(0, len(bits) + 1, 64))
    short = pc.utf8_ltrim(digits, "0")
    return pc.if_else(pc.equal(short, ""), "0", short)


#: numbers in a table of prefixes' distances
_AT_ONCE = 1 << 21


@spark_function("levenshtein", "string, string -> int")
def _levenshtein(a: Value, b: Value, *, length: int) -> Any:
    left, right = (as_array(one, length) for one in (a, b))
    sizes = np.maximum(*(Characters(one).lengths for one in (left, right)))
    distances = np.zeros(length, np.int32)
    order = np.argsort(sizes)  # a long text makes tables wide, so it shares one with others as long
    first = 0
    while first < length:
        widest = 2 * sizes[order[first]] + 1
        some = order[first : np.searchsorted(sizes[order], widest, "right")][: max(1, _AT_ONCE // widest)]
        rows = pa.array(some)
        distances[some] = _distances(*_padded_codes(left.take(rows)), *_padded_codes(right.take(rows)))
        first += len(some)
    return distances


def _distances(left: Any, sizes: Any, right: Any, others: Any) -> Any:
    """The distances of texts, by those of all prefixes whose lengths have the same sum: 0, 1, 2, ..."""
    rows, width, height = np.arange(len(left)), left.shape[1], right.shape[1]
    distances = np.zeros(len(left), np.int32)
    # of the prefixes of `left`, in rows of their lengths
    before, last = np.zeros((2, width + 1, len(left)), np.int32)
    left, right = left.T, right.T[::-1]
    for total in range(1, width + height + 1):
        # lengths for which both prefixes have a last character
        low, high = max(1, total - height), min(width + 1, total)
        now = np.full_like(last, total)
        changed = left[low - 1 : high - 1] != right[height - total + low : height - total + high]
        now[low:high] = np.minimum(
            np.minimum(last[low - 1 : high - 1], last[low:high]) + 1, before[low - 1 : high - 1] + changed
        )
        before, last = last, now
        ended = rows[sizes + others == total]
        distances[ended] = now[sizes[ended], ended]
    return distances


def _padded_codes(texts: pa.Array) -> tuple[Any, Any]:
    """The characters of each text in a row of numbers, and how many they are."""
    sizes = Characters(texts).lengths
    joined = (
        pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "")[0].as_py() if len(texts) else ""
    )
    owners = np.repeat(np.arange(len(texts)), sizes)
    codes = np.zeros((len(texts), int(sizes.max(initial=0))), np.uint32)
    codes[owners, np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = np.frombuffer(
        joined.encode("utf-32-le"), np.uint32
    )
    return codes, sizes


@spark_function("unhex", "string -> binary")
def unhex(text: pa.Array) -> Any:
    """The bytes of hexadecimal digits; null for a text that has others."""
    good = pc.match_substring_regex(text, "^[0-9a-fA-F]*$")
    even = pc.if_else(good, pc.binary_join_element_wise(_odd_zero(text), text, ""), "")
    x = Characters(even)
    digits = x.data[x.offsets[0] : x.offsets[-1]]
    values = np.where(digits < 58, digits - 48, (digits | 32) - 87).astype(np.uint8)
    decoded = texts_of_bytes((values[::2] << 4) | values[1::2], (x.offsets - x.offsets[0]) // 2).view(
        pa.binary()
    )
    return pc.if_else(good, decoded, pa.scalar(None, pa.binary()))


def _odd_zero(text: pa.Array) -> pa.Array:
    """A zero for texts of an odd length."""
    return pc.if_else(pc.equal(pc.bit_wise_and(pc.binary_length(text), 1), 1), "0", "")


# -- patterns ------------------------------------------------------------------------------------------------


def like_pattern(pattern: str, escape: str) -> str:
    """A pattern of LIKE as a regular expression."""
    out, place = [], 0
    while place < len(pattern):
        one = pattern[place]
        if one == escape:
            place += 1
            one = pattern[place : place + 1]
            if one not in {"%", "_", escape} or not one:
                msg = f"in the pattern {pattern!r} the escape {escape!r} is not before %, _ or itself"
                raise pa.ArrowInvalid(msg)
            out.append(re.escape(one))
        else:
            out.append({"%": "(?s:.*)", "_": "(?s:.)"}.get(one) or re.escape(one))
        place += 1
    return "^" + "".join(out) + r"\z"


def _like(text: pa.Array, pattern: pa.Scalar, escape: pa.Scalar | None = None) -> Any:
    mark = "\\" if escape is None else escape.as_py()
    return pc.match_substring_regex(text, like_pattern(pattern.as_py(), mark))


@spark_function("ilike", "string, string, !=string? -> boolean", constant=[1, 2])
def _ilike(text: pa.Array, pattern: pa.Scalar, escape: pa.Scalar | None = None) -> Any:
    return _like(_lower(text), pa.scalar(pattern.as_py().lower()), escape)


spark_function("like", "string, string, !string? -> boolean", constant=[1, 2])(_like)


@spark_function("rlike regexp regexp_like", "string, string -> boolean", constant=[1])
def _rlike(text: pa.Array, pattern: pa.Scalar) -> Any:
    compiled = java_pattern(pattern.as_py())

    def slow(one: str) -> bool:
        return compiled.expression.search(one) is not None

    return compiled.applied(text, pc.match_substring_regex, slow, pa.bool_())


def split_texts(texts: pa.Array, pattern: str, limit: int = 0) -> pa.Array:
    """The parts of texts between matches of a pattern of Java's; at most `limit` if that is positive."""
    compiled = java_pattern(pattern)

    def slow(text: str) -> list[str]:
        most = limit if pattern or 0 < limit <= len(text) else len(text)
        # no part ends where the text begins
        matches = [one for one in compiled.matches(text) if one.end()][: most - 1 if most > 0 else None]
        begins = [0, *(one.end() for one in matches)]
        ends = [*(one.start() for one in matches), len(text)]
        return [text[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def fast(some: pa.Array, source: str) -> Any:
        return pc.split_pattern_regex(some, source, max_splits=limit - 1 if limit > 0 else None)

    same = not compiled.of_nothing and not compiled.anchored
    return compiled.applied(texts, fast if same else None, slow, array_of(pa.string()))


@spark_function("regexp_replace", "string, string, string -> string", constant=[1, 2])
def _regexp_replace(text: pa.Array, pattern: pa.Scalar, by: pa.Scalar) -> Any:
    compiled = java_pattern(pattern.as_py())

    def written(group: str) -> str:
        """The replacement, with references to groups in the words of RE2 or of Python."""

        def part(one: re.Match[str]) -> str:
            if one[2] or one[3]:
                return group.format(one[2] or compiled.names.get(one[3], 0))
            return "\\\\" if one[1] in {None, "\\"} else one[1]

        return re.sub(r"\\(.)|\$(\d)|\$\{(\w+)\}|\\", part, by.as_py())

    def slow(of: str) -> str:
        out, end = [], 0
        for one in compiled.matches(of):
            out += [of[end : one.start()], one.expand(written(r"\g<{}>"))]
            end = one.end()
        return "".join([*out, of[end:]])

    def fast(some: pa.Array, source: str) -> Any:
        return pc.replace_substring_regex(some, source, written(r"\{}"))

    return compiled.applied(text, None if compiled.of_nothing else fast, slow, pa.string())


@spark_function("regexp_count", "string, string -> int", constant=[1])
def _regexp_count(text: pa.Array, pattern: pa.Scalar) -> Any:
    compiled = java_pattern(pattern.as_py())
    same = not compiled.of_nothing and not compiled.anchored

    def slow(one: str) -> int:
        return sum(1 for _ in compiled.matches(one))

    return compiled.applied(text, pc.count_substring_regex if same else None, slow, pa.int32())


def _captured(text: pa.Array, pattern: JavaPattern, group: int) -> Any:
    """The text of a group of the first match: empty for a group that is not in it; null without a match."""

    def fast(some: pa.Array, source: str) -> Any:
        return pc.struct_field(pc.extract_regex(some, f"(?P<g0>{source})"), f"g{group}")

    def slow(of: str) -> str | None:
        match = pattern.expression.search(of)
        return None if match is None else match[group] or ""

    return pattern.applied(text, fast, slow, pa.string())


@spark_function("regexp_extract", "string, string, int? -> string", constant=[1, 2])
def _regexp_extract(
    text: pa.Array, pattern: pa.Scalar, group: pa.Scalar | None = None, *, failures: Failures
) -> Any:
    compiled, number = java_pattern(pattern.as_py()), 1 if group is None else group.as_py()
    exists = 0 <= number <= compiled.groups
    captured = _captured(text, compiled, number if exists else 0)
    if not exists:
        _no_group(compiled, number, captured.is_valid(), failures)
    return pc.fill_null(captured, "")


def _no_group(pattern: JavaPattern, number: int, rows: Any, failures: Failures) -> None:
    failures.at(rows, f"the pattern has no group {number}", f"it has {pattern.groups} groups.")


@spark_function("regexp_substr", "string, string -> string", constant=[1])
def _regexp_substr(text: pa.Array, pattern: pa.Scalar) -> Any:
    captured = _captured(text, java_pattern(pattern.as_py()), 0)
    return pc.if_else(pc.equal(captured, ""), None, captured)


@spark_function("regexp_extract_all", "string, string, int? -> array<string>", constant=[1, 2])
def _regexp_extract_all(
    text: pa.Array, pattern: pa.Scalar, group: pa.Scalar | None = None, *, result: Any, failures: Failures
) -> Any:
    compiled, number = java_pattern(pattern.as_py()), 1 if group is None else group.as_py()
    if not 0 <= number <= compiled.groups:
        _no_group(compiled, number, _captured(text, compiled, 0).is_valid(), failures)
        number = 0
    return of_distinct(text, lambda one: [match[number] or "" for match in compiled.matches(one)], result)


@spark_function("regexp_instr", "string, string -> int", constant=[1])
def _regexp_instr(text: pa.Array, pattern: pa.Scalar) -> Any:
    compiled = java_pattern(pattern.as_py())

    def fast(some: pa.Array, source: str) -> Any:
        captured = pc.extract_regex(some, f"(?s)\\A(?P<before>.*?)(?P<match>{source})")
        before = pc.struct_field(captured, "before")
        # Java counts the characters of other planes twice
        twice = pc.count_substring_regex(before, r"[\x{10000}-\x{10FFFF}]")
        return pc.add(pc.fill_null(pc.add(pc.utf8_length(before), twice), -1), 1)

    def slow(of: str) -> int:
        match = compiled.expression.search(of)
        return 0 if match is None else len(of[: match.start()].encode("utf-16-le")) // 2 + 1

    return compiled.applied(text, fast, slow, pa.int32())
