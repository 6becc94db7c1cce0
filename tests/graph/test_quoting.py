"""Whatever a name or a text holds, in SQL it stays one name or one text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from timely_spark.errors import GraphError
from timely_spark.graph.quoting import identifier, literal, table_name

TEXTS = st.text(st.sampled_from("`'\"\\; .-ab\n"), min_size=1, max_size=8)


def _names(text: str) -> list[str]:
    """How SQL reads quoted names with dots between."""
    parts, at = [], 0
    while True:
        assert text[at] == "`"
        part, at = "", at + 1
        while text[at] != "`" or text[at : at + 2] == "``":
            part += text[at]
            at += 2 if text[at] == "`" else 1
        parts.append(part)
        at += 1
        if at == len(text):
            return parts
        assert text[at] == "."
        at += 1


@given(st.lists(TEXTS, min_size=1, max_size=4))
@example(["`", "``", "a`.`b"])
def test_quoted_names_are_read_back(parts: list[str]) -> None:
    assert _names(identifier(*parts)) == parts
    assert _names(table_name(identifier(*parts))) == parts, "and what is quoted already stays"


@given(TEXTS)
@example("\\")
@example("\\'")
def test_a_quoted_text_has_the_same_end(text: str) -> None:
    quoted, found, at = literal(text), "", 1
    while quoted[at] != "'":
        at += quoted[at] == "\\"
        found += quoted[at]
        at += 1
    assert (found, at) == (text, len(quoted) - 1)


@pytest.mark.parametrize(
    "name", ["", "a b", "a;", "a (n long) USING delta --", "a..b", "`a", "a`b", "`a`b", "`", "``", "a.", " a"]
)
def test_an_invalid_table_name_is_refused(name: str) -> None:
    if name == "a;":  # one word; nothing but a name once it is quoted
        assert table_name(name) == "`a;`"
        return
    with pytest.raises(GraphError, match=r"(?s)is not the name of a table.*Hint"):
        table_name(name)
