"""The eval's two plots as small PNG images, for Dagster's Markdown metadata and for files."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eval.calibrate import BARS, Selection
from eval.judged import Judged
from eval.metrics import reliability

SIZE = (5.0, 3.6)
DPI = 80


def reliability_png(judged: Sequence[Judged], said_by: str) -> bytes:
    """How often the judge was right where it said how sure it was; an honest one is on the line."""
    figure = Figure(figsize=SIZE, dpi=DPI)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], linestyle="--", color="0.6", label="as sure as right")
    rows = reliability(judged, bins=10)
    axes.bar(
        [row.lower for row in rows],
        [row.accuracy for row in rows],
        width=[row.upper - row.lower for row in rows],
        align="edge",
        color="#9ecae1",
        edgecolor="white",
    )
    axes.plot(
        [row.confidence for row in rows],
        [row.accuracy for row in rows],
        marker="o",
        color="#08519c",
        label="measured",
    )
    for row in rows:
        axes.annotate(str(row.size), (row.confidence, row.accuracy), fontsize=7)
    axes.set(xlim=(0, 1), ylim=(0, 1.05), xlabel="probability", ylabel="share right")
    axes.set_title(f"Reliability: {said_by}", fontsize=9)
    axes.legend(loc="upper left", fontsize=7)
    return _png(figure)


def precision_png(selection: Selection, said_by: str) -> bytes:
    """Precision by threshold, an action a line, with each action's bar as dots."""
    figure = Figure(figsize=SIZE, dpi=DPI)
    axes = figure.subplots()
    for action, color in zip(BARS, ("#08519c", "#238b45", "#cb181d"), strict=True):
        rows = [row for row in selection.table if row.action == action and row.proposed]
        axes.plot(
            [row.threshold for row in rows],
            [row.correct / row.proposed for row in rows],
            marker="o",
            color=color,
            label=f"{action} (bar {BARS[action]:.2f})",
        )
        axes.axhline(BARS[action], linestyle=":", linewidth=0.8, color=color)
        chosen = selection.thresholds[action]
        if chosen is not None:
            axes.axvline(chosen, linewidth=0.8, color=color, alpha=0.4)
    axes.set(xlim=(0.48, 0.97), ylim=(0, 1.05), xlabel="threshold", ylabel="precision")
    axes.set_title(f"Precision by threshold: {said_by}", fontsize=9)
    axes.legend(loc="lower right", fontsize=7)
    return _png(figure)


def markdown(images: Mapping[str, bytes]) -> str:
    """Images by what they show, inside one Markdown text."""
    return "\n\n".join(
        f"![{what}](data:image/png;base64,{base64.b64encode(png).decode()})"
        for what, png in images.items()
    )


def _png(figure: Figure) -> bytes:
    figure.set_layout_engine("tight")
    FigureCanvasAgg(figure)
    written = io.BytesIO()
    figure.savefig(written, format="png", metadata={"Software": None})
    return written.getvalue()
