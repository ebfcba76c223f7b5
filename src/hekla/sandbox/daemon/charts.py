"""What a figure of matplotlib shows, as E2B's clients know it: lines, points, bars, pies and boxes with their numbers.

E2B's own package for it cannot be relied on in an image, and the daemon has the standard library only; `Result.chart` reads this.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Final

_SCALES: Final = frozenset(("linear", "log", "symlog", "logit", "function", "functionlog", "asinh"))
MOST_POINTS = 100_000


def chart_of(figure: Any) -> dict[str, Any] | None:
    """A figure's chart; of several axes one that holds them; None: there is nothing in it."""
    charts = [chart for axes in figure.get_axes() if (chart := _axes(axes))["elements"] or chart["title"]]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else None
    return {"type": "superchart", "title": title, "elements": charts}


def _axes(axes: Any) -> dict[str, Any]:
    kinds = {type(patch).__name__ for patch in axes.patches}
    lines = [line for line in axes.get_lines() if len(line.get_xdata())]
    if "Wedge" in kinds:
        return {"type": "pie", "title": _title(axes), "elements": _wedges(axes)}
    if "PathPatch" in kinds or _are_boxes(axes, lines):
        return {"type": "box_and_whisker", **_named(axes), "elements": _boxes(axes, lines)}
    if axes.containers and "Rectangle" in kinds:
        return {"type": "bar", **_named(axes), "elements": _bars(axes)}
    if lines:
        return {"type": "line", **_named(axes), **_scaled(axes), "elements": [_line(line) for line in lines]}
    dots = [one for one in axes.collections if type(one).__name__ == "PathCollection"]
    if dots:
        return {"type": "scatter", **_named(axes), **_scaled(axes), "elements": [_dots(one) for one in dots]}
    return {"type": "unknown", "title": _title(axes), "elements": []}


def _title(axes: Any) -> str | None:
    return axes.get_title() or None


def _named(axes: Any) -> dict[str, Any]:
    x, y = axes.get_xlabel() or None, axes.get_ylabel() or None
    return {"title": _title(axes), "x_label": x, "y_label": y, "x_unit": _unit(x), "y_unit": _unit(y)}


def _unit(label: str | None) -> str | None:
    """`Distance (km)` is in km."""
    if label and label.endswith(")") and "(" in label:
        return label[label.rindex("(") + 1 : -1]
    return None


def _scaled(axes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        is_time = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
        scale = axis.get_scale() if axis.get_scale() in _SCALES else "unknown"
        if "Date" in is_time:
            scale = "datetime"
        elif "Category" in is_time:
            scale = "categorical"
        ticks = [_number(one) for one in axis.get_ticklocs()]
        told[f"{name}_ticks"] = [_instant(one) for one in ticks] if scale == "datetime" else ticks
        told[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        told[f"{name}_scale"] = scale
    return told


def _instant(days: Any) -> Any:
    return importlib.import_module("matplotlib.dates").num2date(days).isoformat()


def _number(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):  # one of NumPy's
        value = value.item()
        if hasattr(value, "isoformat"):
            return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (int, float, str)) or value is None else str(value)


def _label(artist: Any, number: int = 0) -> str:
    label = str(artist.get_label())
    return label if label and not label.startswith("_") else f"Line {number}" if number else ""


def _line(line: Any) -> dict[str, Any]:
    xs, ys = line.get_xdata(), line.get_ydata()
    points = [[_number(x), _number(y)] for x, y in zip(xs[:MOST_POINTS], ys[:MOST_POINTS])]
    return {"label": str(line.get_label()), "points": points}


def _dots(dots: Any) -> dict[str, Any]:
    points = [[_number(x), _number(y)] for x, y in dots.get_offsets()[:MOST_POINTS]]
    return {"label": _label(dots), "points": points}


def _bars(axes: Any) -> list[dict[str, Any]]:
    names = {round(float(at), 6): label.get_text() for at, label in zip(axes.get_xticks(), axes.get_xticklabels())}
    across = {round(float(at), 6): label.get_text() for at, label in zip(axes.get_yticks(), axes.get_yticklabels())}
    found: list[dict[str, Any]] = []
    for container in axes.containers:
        is_lying = getattr(container, "orientation", "vertical") == "horizontal"
        group = str(container.get_label())
        for bar in container.patches if hasattr(container, "patches") else ():
            middle = bar.get_y() + bar.get_height() / 2 if is_lying else bar.get_x() + bar.get_width() / 2
            label = (across if is_lying else names).get(round(float(middle), 6), "")
            value = bar.get_width() if is_lying else bar.get_height()
            said = label or f"{_number(middle):g}"
            found.append({"label": said, "group": "" if group.startswith("_") else group, "value": _number(value)})
    return found


def _wedges(axes: Any) -> list[dict[str, Any]]:
    wedges = [patch for patch in axes.patches if type(patch).__name__ == "Wedge"]
    return [
        {"label": _label(one), "angle": _number(abs(one.theta2 - one.theta1)), "radius": _number(one.r)}
        for one in wedges
    ]


def _are_boxes(axes: Any, lines: list[Any]) -> bool:
    """`boxplot` draws each box as a closed line of five points, and two whiskers of two."""
    return not axes.containers and any(len(line.get_xdata()) == 5 and _is_closed(line) for line in lines)


def _is_closed(line: Any) -> bool:
    xs, ys = line.get_xdata(), line.get_ydata()
    return bool(xs[0] == xs[-1] and ys[0] == ys[-1])


def _boxes(axes: Any, lines: list[Any]) -> list[dict[str, Any]]:
    """Each box with the whiskers, the median and the outliers that stand where it stands."""
    paths = [patch.get_path().vertices for patch in axes.patches if type(patch).__name__ == "PathPatch"]
    shapes = [list(zip(line.get_xdata(), line.get_ydata())) for line in lines]
    boxes = [[(x, y) for x, y in path] for path in paths] or [one for one in shapes if len(one) == 5]
    names = [label.get_text() for label in axes.get_xticklabels()]
    found: list[dict[str, Any]] = []
    for number, box in enumerate(boxes):
        left, right = min(x for x, _ in box), max(x for x, _ in box)
        low, high = min(y for _, y in box), max(y for _, y in box)
        near = [
            (shape, line)
            for shape, line in zip(shapes, lines)
            if shape and all(left <= x <= right for x, _ in shape) and len(shape) != 5
        ]
        ends = [y for shape, line in near if line.get_linestyle() != "None" for _, y in shape]
        middle = [
            shape[0][1] for shape, line in near
            if line.get_linestyle() != "None" and len(shape) == 2 and shape[0][1] == shape[1][1] and low <= shape[0][1] <= high
        ]  # fmt: skip
        found.append({
            "label": names[number] if number < len(names) else str(number + 1),
            "min": _number(min([*ends, low])), "first_quartile": _number(low),
            "median": _number(middle[-1] if middle else (low + high) / 2), "third_quartile": _number(high),
            "max": _number(max([*ends, high])),
            "outliers": [_number(y) for shape, line in near if line.get_linestyle() == "None" for _, y in shape],
        })  # fmt: skip
    return found
