"""The page at the end of the demonstration: one HTML file with its drawings in it, without scripts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from timely_spark.runtime.handle.charts import line_chart
from timely_spark.runtime.handle.history import convergence
from timely_spark.runtime.handle.log_view import Progress
from timely_spark.show.table import Table, escaped
from timely_spark.show.words import short_number

if TYPE_CHECKING:
    from timely_spark.methods import Dataflow

#: The colours of the largest packages (Okabe and Ito's), and that of all others.
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d31")
_OTHERS = "#bbb"
_SIZE = 720
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
figure{margin:0}.chart{display:flex;font-size:12px}.chart circle{fill:currentColor}.axis,.grid{stroke:#ddd}
polyline{fill:none;stroke:currentColor;stroke-width:2}""" + "".join(
    f".c{n}{{color:{colour}}}" for n, colour in enumerate((*_COLOURS, _OTHERS))
)


def page(
    flow: Dataflow,
    recent: Sequence[Progress],
    table: tuple[Sequence[str], Sequence[Sequence[Any]]],
    names: Sequence[str],
    distance: Mapping[int, int],
) -> str:
    """The page: modules around the root, the epochs, how the loop converged, and the flow.

    Args:
        table: the columns and rows of the epochs.
        names: by number the names of modules.
        distance: by number the imports from the root, of the modules that it imports.
    """
    root = next(names[node] for node, hops in distance.items() if not hops)
    loops = convergence(each for progress in recent for each in progress.iterations)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8"/><title>timely_spark demo</title>',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>What {escaped(root)} imports</h1>",
            f"<p>In the middle {escaped(root)}; on each ring the modules that are one import further away.",
            "A loop found them while the imports arrived in a random order.",
            "Colours are packages; a pointer over a dot shows its module.</p>",
            rings(names, distance),
            "<h2>Epoch by epoch</h2>",
            "<p>Each epoch computes only what its new edges change.</p>",
            Table(*table).html(),
            *(_loop(name, epochs) for name, epochs in loops.items()),
            "<h2>The flow</h2>",
            flow.to_svg(),
            "</body></html>",
        ]
    )


def rings(names: Sequence[str], distance: Mapping[int, int]) -> str:
    """A drawing of the nodes on rings by distance, each package in a sector of its own.

    Example:
        >>> rings(["a", "b.c"], {0: 0, 1: 1}).count("<title>")
        2
    """
    package = {node: names[node].partition(".")[0] for node in distance}
    sizes = Counter(package.values())
    colours = dict(zip((name for name, _ in sizes.most_common()), _COLOURS, strict=False))
    half, farthest = _SIZE / 2, max(distance.values())
    step = (half - 20) / max(farthest, 1)
    parts = [
        f'<circle cx="{half:.0f}" cy="{half:.0f}" r="{hops * step:.1f}" fill="none" stroke="#eee"/>'
        for hops in range(1, farthest + 1)
    ]
    by_ring: dict[int, list[int]] = defaultdict(list)
    for node in sorted(distance, key=lambda node: (-sizes[package[node]], names[node])):
        by_ring[distance[node]].append(node)
    for hops, nodes in by_ring.items():
        for i, node in enumerate(nodes):
            angle = 2 * math.pi * i / len(nodes) - math.pi / 2
            x, y = half + hops * step * math.cos(angle), half + hops * step * math.sin(angle)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if hops else 7}" '
                f'fill="{colours.get(package[node], _OTHERS)}"><title>{escaped(names[node])}</title></circle>'
            )
    entries = [*colours.items(), ("others", _OTHERS)]
    for i, (name, colour) in enumerate(entries):
        parts += [
            f'<circle cx="{_SIZE + 20}" cy="{20 + 20 * i}" r="5" fill="{colour}"/>',
            f'<text x="{_SIZE + 32}" y="{25 + 20 * i}">{escaped(name)}</text>',
        ]
    return _svg(_SIZE + 150, _SIZE, parts)


def _loop(name: str, epochs: Mapping[int, Sequence[tuple[int, float]]]) -> str:
    """Changed records (logarithmic) by iteration, one line an epoch."""
    lines = {f"epoch {n}": [(at, math.log10(value + 1)) for at, value in line] for n, line in epochs.items()}
    drawn = line_chart("changed records", lines, x="iteration", y=lambda log: short_number(10**log - 1))
    return f"<h2>How the loop {escaped(name)} converged</h2>{drawn}"


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" style="max-width:100%;height:auto" '
        'font-family="system-ui,sans-serif" font-size="12">'
    )
    return "\n".join([head, *parts, "</svg>"])
