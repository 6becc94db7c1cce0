"""How arrays, maps and structs are bound, and functions of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from timely_spark.sql import strict, terms, types
from timely_spark.sql.binder import ExpressionBinder, special, syntax, unaliased
from timely_spark.sql.terms import Term
from timely_spark.sql.types import name_of


@special("array")
def _array(binder: ExpressionBinder, node: Any) -> Term:
    values = binder.together(node, binder.many(node.expressions))
    element = values[0].type if values else pa.null()
    return terms.Listed(types.array_of(element), tuple(values))


@special("$stacked")
def _stacked(binder: ExpressionBinder, node: Any) -> Term:
    """The rows of `stack`, an array of structs, whose types must be the same."""
    for parts in zip(*([*one.type] for one in binder.many(node.expressions)), strict=True):
        if len(kinds := {part.type for part in parts} - {pa.null()}) > 1:
            shown = ", ".join(sorted(map(name_of, kinds)))
            raise binder.refuse(node, f"a column of stack has values of {shown}", "cast them to one type.")
    return _array(binder, node)


@special("map")
def _map(binder: ExpressionBinder, node: Any) -> Term:
    arguments = binder.many(node.expressions)
    if len(arguments) % 2 or not arguments:
        raise binder.refuse(node, f"map of {len(arguments)} arguments", "write keys and values in turn.")
    keys, items = binder.together(node, arguments[::2]), binder.together(node, arguments[1::2])
    if types.has_map(keys[0].type):
        raise binder.refuse(node, "a map as a key of a map", "write map_entries(key).")
    listed = [terms.Listed(types.array_of(one[0].type), tuple(one)) for one in (keys, items)]
    return binder.called(node, "map_from_arrays", listed)


def _names(node: Any, prefix: str, first: int) -> list[str]:
    """The names of fields; that of its place has a value that is no name, and the second one of a name."""
    names = list[str]()
    for n, name in enumerate(node.meta[strict.FIELDS], first):
        another = name and name.lower() not in map(str.lower, names)
        names.append(name if another else f"{prefix}{n}")
    return names


@syntax("Tuple")
@special("struct")
def _struct(binder: ExpressionBinder, node: Any) -> Term:
    values = [binder.bind(unaliased(one)) for one in node.expressions]
    return _of_fields(_names(node, "col", 1), values)


@special("named_struct")
def _named_struct(binder: ExpressionBinder, node: Any) -> Term:
    names = [binder.text_of(one, "the name of a field") for one in node.expressions[::2]]
    if len(node.expressions) % 2:
        raise binder.refuse(
            node, "named_struct of an odd number of arguments", "write names and values in turn."
        )
    return _of_fields(names, binder.many(node.expressions[1::2]))


def _of_fields(names: Sequence[str], values: Sequence[Term]) -> Term:
    kind = pa.struct([(name, one.type) for name, one in zip(names, values, strict=True)])
    return terms.Struct(kind, tuple(values))


@syntax("Bracket")
def _bracket(binder: ExpressionBinder, node: Any) -> Term:
    operand, (index, *more) = binder.bind(node.this), node.expressions
    if more:
        raise binder.refuse(more[0], "an element by several places", "write a[0][1].")
    if pa.types.is_map(operand.type):
        key = binder.bind(index)
        if types.casts_itself(key.type, operand.type.key_type):
            key = binder.cast(key, operand.type.key_type, node)
        return binder.call(node, "element_at", operand, key)
    if pa.types.is_struct(operand.type):
        return binder.field(node, operand, binder.text_of(index, "the name of a field"))
    place = binder.bind(index)
    if types.is_array(operand.type) and not (types.is_integral(place.type) or place.type == pa.null()):
        raise binder.refuse(index, f"an element's place is {name_of(place.type)}", "write an integer.")
    return binder.call(node, "$item", operand, place)


# -- functions of functions ----------------------------------------------------------------------------------


def _lambda(
    binder: ExpressionBinder, node: Any, kinds: Sequence[pa.DataType]
) -> tuple[tuple[str, ...], Term]:
    """The variables and the body of a lambda whose variables have these types."""
    if type(node).__name__ != "Lambda" or len(node.expressions) > len(kinds):
        raise binder.refuse(node, "a function is expected here", "write it as x -> x + 1.")
    names = [one.name.lower() for one in node.expressions]
    if len({*names}) < len(names):
        raise binder.refuse(node, f"two variables are called {names[-1]}", "give each a name of its own.")
    columns = tuple(f"{name} ->" for name in names)  # which no column is called
    before, typed = binder.variables, zip(names, columns, kinds, strict=False)
    binder.variables = before | {name: terms.ColumnValue(of, column, of) for name, column, of in typed}
    try:
        body = binder.bind(node.this)
    finally:
        binder.variables = before
    return columns, body


def _operands(
    binder: ExpressionBinder, node: Any, nodes: Sequence[Any], fits: Callable[[Any], bool], takes: str
) -> list[Term]:
    """The operands of a call, which are all of a kind."""
    operands = [binder.bind(unaliased(one)) for one in nodes]
    if not all(fits(one.type) for one in operands):
        kinds = ", ".join(name_of(one.type) for one in operands)
        raise binder.refuse(node, f"{node.name} of {kinds}", f"it takes {takes}.")
    return operands


def _of_array(binder: ExpressionBinder, node: Any) -> tuple[Term, pa.DataType]:
    (array,) = _operands(binder, node, node.expressions[:1], types.is_array, "an array and a function")
    return array, array.type.value_type


@special("transform", 2, 2)
def _transform(binder: ExpressionBinder, node: Any) -> Term:
    array, kind = _of_array(binder, node)
    names, body = _lambda(binder, node.expressions[1], [kind, pa.int32()])
    return terms.Transformed(types.array_of(body.type), array, names, body)


@special("filter", 2, 2)
def _filter(binder: ExpressionBinder, node: Any) -> Term:
    array, kind = _of_array(binder, node)
    names, body = _lambda(binder, node.expressions[1], [kind, pa.int32()])
    return terms.Filtered(array.type, array, names, binder.boolean(node, body))


@special("exists forall", 2, 2)
def _exists(binder: ExpressionBinder, node: Any) -> Term:
    array, kind = _of_array(binder, node)
    names, body = _lambda(binder, node.expressions[1], [kind])
    every = node.name.lower() == "forall"
    return terms.Quantified(pa.bool_(), array, names, binder.boolean(node, body), every)


@special("aggregate reduce", 3, 4)
def _aggregate(binder: ExpressionBinder, node: Any) -> Term:
    array, kind = _of_array(binder, node)
    start = binder.bind(node.expressions[1])
    names, body = _lambda(binder, node.expressions[2], [start.type, kind])
    if body.type != pa.null() and not types.same_but_names(body.type, start.type):
        problem = f"{node.name} begins with {name_of(start.type)}, its function gives {name_of(body.type)}"
        raise binder.refuse(node, problem, "cast the first value to that type.")
    folded: Term = terms.Folded(start.type, array, names, binder.cast(body, start.type, node), start)
    if len(node.expressions) < 4:
        return folded
    (name, *_), last = _lambda(binder, node.expressions[3], [start.type])
    return terms.Applied(last.type, folded, name, last)


@special("map_filter transform_keys transform_values", 2, 2)
def _map_function(binder: ExpressionBinder, node: Any) -> Term:
    (operand,) = _operands(binder, node, node.expressions[:1], pa.types.is_map, "a map and a function")
    name = node.name.lower()
    names, body = _lambda(binder, node.expressions[1], [operand.type.key_type, operand.type.item_type])
    if name == "map_filter":
        return terms.OfEntries(operand.type, operand, names, binder.boolean(node, body), "filter")
    if name == "transform_values":
        return terms.OfEntries(pa.map_(operand.type.key_type, body.type), operand, names, body, "items")
    pairs = terms.OfEntries(types.array_of(body.type), operand, names, body, "keys")
    return binder.called(node, "map_from_arrays", [pairs, binder.called(node, "map_values", [operand])])


@special("arrays_zip", 1)
def _arrays_zip(binder: ExpressionBinder, node: Any) -> Term:
    arrays = _operands(binder, node, node.expressions, types.is_array, "arrays")
    fields = [(name, one.type.value_type) for name, one in zip(_names(node, "", 0), arrays, strict=True)]
    kind = types.array_of(pa.struct(fields))
    return terms.FunctionCall(kind, "$zipped", tuple(arrays), binder.zone, binder.sql(node))


@special("zip_with", 3, 3)
def _zip_with(binder: ExpressionBinder, node: Any) -> Term:
    arrays = _operands(binder, node, node.expressions[:2], types.is_array, "arrays")
    pairs = binder.called(node, "$zipped", arrays)
    kinds = [one.type.value_type for one in arrays]
    names, body = _lambda(binder, node.expressions[2], kinds)
    return terms.Zipped(types.array_of(body.type), pairs, names, body)


@special("map_zip_with", 3, 3)
def _map_zip_with(binder: ExpressionBinder, node: Any) -> Term:
    maps = _operands(binder, node, node.expressions[:2], pa.types.is_map, "two maps and a function")
    keys_of = [one.type.key_type for one in maps]
    if (key := types.common_of(keys_of)) is None or types.mixes_texts(keys_of):
        raise binder.refuse(node, "map_zip_with of maps of other keys", "cast them to one type.")
    maps = [binder.cast(one, pa.map_(key, one.type.item_type), node) for one in maps]
    keys = binder.called(node, "array_union", [binder.called(node, "map_keys", [one]) for one in maps])
    variable = terms.ColumnValue(key, _KEY, key)
    items = [
        terms.Transformed(
            types.array_of(one.type.item_type),
            keys,
            (_KEY,),
            binder.called(node, "try_element_at", [one, variable]),
        )
        for one in maps
    ]
    entries = binder.called(node, "$zipped", [keys, *items])
    names, body = _lambda(binder, node.expressions[2], [key, *(one.type.item_type for one in maps)])
    values = terms.Zipped(types.array_of(body.type), entries, names, body)
    return binder.called(node, "map_from_arrays", [keys, values])


#: the variable of `map_zip_with`, which no text can name
_KEY = "key of both maps"
