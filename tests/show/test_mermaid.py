"""What `to_mermaid` draws, whole, for small flows; and that any name may be drawn."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

import timely_spark as ts
from tests.show.test_explain import nested, reachability, word_count
from timely_spark.errors import GraphError
from timely_spark.show import to_mermaid

# the flows that explain's tests print: one drawing and one text of each


WORD_COUNT = """\
flowchart TD
    s0(["lines<br/>source clock"])
    s1["words<br/>flat_map #60;lambda#62;"]
    s2["counts<br/>aggregate count=count()"]
    s3[["totals<br/>output capture"]]
    s0 --> s1
    s1 -->|"by word, free"| s2
    s2 --> s3
"""

REACHABILITY = """\
flowchart TD
    s0(["edges<br/>source clock"])
    s1(["roots<br/>source clock"])
    subgraph loop0["loop hops"]
        s2("enter")
        s3("enter_2<br/>enter")
        s4("variable")
        s5["join<br/>join node = src"]
        s6["select<br/>select node=dst"]
        s7("concat")
        s8["near<br/>distinct"]
        s9("feedback")
    end
    s10("hops.leave<br/>leave")
    s11[["near<br/>output memory"]]
    s1 --> s2
    s2 -->|"by node, free"| s4
    s9 -.->|"next iteration"| s4
    s0 --> s3
    s4 --> s5
    s3 -->|"by src, free"| s5
    s5 --> s6
    s6 ==>|"by node"| s7
    s4 --> s7
    s7 --> s8
    s8 --> s9
    s8 --> s10
    s10 --> s11
"""

NESTED = """\
flowchart TD
    s0(["x<br/>source manual"])
    subgraph loop0["loop outer, at most 3 iterations"]
        s1("enter")
        s2("variable")
        subgraph loop1["loop outer.inner"]
            s3("enter")
            s4("variable")
            s5["known<br/>distinct"]
            s6("feedback")
        end
        s7("inner.leave<br/>leave")
        s8["inner.leave.settled<br/>settle"]
        s9["sums<br/>aggregate v=sum(v)"]
        s10["new<br/>distinct"]
        s11("feedback<br/>feedback at most 3 iterations")
    end
    s12("outer.leave<br/>leave")
    s13["outer.leave.settled<br/>settle"]
    s14["counts<br/>aggregate n=count()"]
    s15[["out<br/>output capture"]]
    s0 --> s1
    s1 -->|"by k, v, free"| s2
    s11 -.->|"next iteration"| s2
    s2 --> s3
    s3 --> s4
    s6 -.->|"next iteration"| s4
    s4 --> s5
    s5 --> s6
    s5 --> s7
    s7 --> s8
    s8 ==>|"by k"| s9
    s9 ==>|"by k, v"| s10
    s10 --> s11
    s10 --> s12
    s12 --> s13
    s13 ==>|"by k"| s14
    s14 --> s15
"""


@pytest.mark.parametrize(
    ("flow", "text"), [(word_count, WORD_COUNT), (reachability, REACHABILITY), (nested, NESTED)]
)
def test_a_flow_is_drawn(flow: Callable[[], ts.Dataflow], text: str) -> None:
    assert flow().to_mermaid() + "\n" == text


#: All that is used of Mermaid's grammar: a text is quoted, and holds nothing that means something to it.
TEXT = r'"(?:[^"#;:<>&`{}|$~*@\[\]\n]|#\d+;|<br/>)*"'
LINE = re.compile(
    rf"flowchart TD|\ +(?:end|subgraph loop\d+\[{TEXT}\]"
    rf"|s\d+(?:\(\[{TEXT}\]\)|\[\[{TEXT}\]\]|\[{TEXT}\]|\({TEXT}\))"
    rf"|s\d+ (?:-->|==>|-\.->)(?:\|{TEXT}\|)? s\d+)"
)


@pytest.mark.parametrize(
    "name",
    [
        'say "hi"', "end", "a|b", "<b>x<b> & #1;", "`md`", "1) one", "- x", "+ y", "{}[]()", "naïve 数 %% x",
        "subgraph", "a;b", "  ", "$$x$$", "*a* _b_ ~c~", "fa:fa-car", "@{shape: x}", "o", "a\tb", "it's",
    ],
)  # fmt: skip
def test_any_name_can_be_drawn(name: str) -> None:
    flow = ts.Dataflow("odd")
    x = flow.input(name, "n long")
    x.loop(lambda variable: variable.distinct(name=name), name=f"{name} loop").capture(f"{name} out")

    lines = to_mermaid(flow).splitlines()

    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert (
        sum(line.strip().startswith("subgraph loop") for line in lines)
        == sum(line.strip() == "end" for line in lines)
        == 1
    )


def test_a_label_does_not_begin_a_markdown_list() -> None:
    flow = ts.Dataflow("lists")
    flow.input("1) one", "n long").where(lambda row: row.n > 0, name="- two").capture("+ three")

    text = to_mermaid(flow)

    assert '"1#41; one<br/>' in text
    assert '"#45; two<br/>' in text
    assert '"#43; three<br/>' in text


def test_an_incomplete_flow_is_refused() -> None:
    with pytest.raises(GraphError, match="no input"):
        to_mermaid(ts.Dataflow("empty"))


REGIONS = """\
flowchart TD
    s0(["x<br/>source clock"])
    subgraph region0["region a #34;b#34; #60;c#62;"]
        subgraph loop0["loop a #34;b#34; #60;c#62;.down"]
            s1("enter")
            s2("variable")
            s3["own<br/>distinct"]
            s4("feedback")
        end
        s5("down.leave<br/>leave")
        subgraph region1["region a #34;b#34; #60;c#62;.inner"]
            s6["seen<br/>distinct"]
        end
    end
    s7[["out<br/>output capture"]]
"""


def test_regions_are_subgraphs_around_their_steps_and_loops_with_escaped_names() -> None:
    flow = ts.Dataflow("regions")
    with flow.region('a "b" <c>'):
        down = flow.input("x", "n long").loop(lambda n: n.distinct(name="own"), name="down")
        with flow.region("inner"):
            down.distinct(name="seen").capture("out")

    drawn = to_mermaid(flow, expand=True)

    assert re.sub(r"    s\d+ [-=].*\n?", "", drawn) == REGIONS
    assert drawn.count("subgraph") == drawn.count("    end")
