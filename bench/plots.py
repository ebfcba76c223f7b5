"""Small plots as SVG: lines over numbers, bars by class. Forty lines in place of a plotting library."""

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#5f4b8b", "#8d99ae")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 64, 40, 170, 52


def lines(title: str, across: str, up: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Curves over a common axis."""
    points = [point for curve in curves.values() for point in curve]
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    low_y, high_y = min(y for _, y in points), max(y for _, y in points)
    parts = [_frame(title, across, up), *_grid(low_y, high_y), *_ticks(low_x, high_x)]
    for number, curve in enumerate(curves.values()):
        path = " ".join(f"{_x(x, low_x, high_x):.1f},{_y(y, low_y, high_y):.1f}" for x, y in curve)
        dash = ' stroke-dasharray="5 4"' if number % 2 else ""
        parts.append(f'<polyline fill="none" stroke="{COLOURS[number % 6]}" stroke-width="2"{dash} points="{path}"/>')
    return _document([*parts, *_legend(curves)])


def bars(title: str, up: str, classes: Sequence[str], groups: Mapping[str, Sequence[float]]) -> str:
    """A bar for each group in each class, on a logarithmic scale from 0.01."""
    most = max([value for group in groups.values() for value in group] + [1.0])
    parts = [_frame(title, "", up + ", logarithmic")]
    wide = (WIDTH - LEFT - RIGHT) / max(len(classes), 1)
    for power in (0.01, 0.1, 1, 10, 100, 1000):
        if power <= most:
            parts += _rule(_y(_log(power), _log(0.01), _log(most)), f"{power:g}")
    for place, name in enumerate(classes):
        parts.append(_text(LEFT + (place + 0.5) * wide, HEIGHT - BOTTOM + 20, name, "middle"))
        for number, group in enumerate(groups.values()):
            y = _y(_log(max(group[place], 0.01)), _log(0.01), _log(most))
            x, width = (
                LEFT + place * wide + 0.1 * wide + number * 0.8 * wide / len(groups),
                0.8 * wide / len(groups) - 1,
            )
            bottom = HEIGHT - BOTTOM
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{bottom - y:.1f}" fill="{COLOURS[number % 6]}"/>'
            )
    return _document([*parts, *_legend(groups)])


def _log(value: float) -> float:
    from math import log10

    return log10(value)


def _x(value: float, low: float, high: float) -> float:
    return LEFT + (value - low) / ((high - low) or 1) * (WIDTH - LEFT - RIGHT)


def _y(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / ((high - low) or 1) * (HEIGHT - TOP - BOTTOM)


def _grid(low: float, high: float) -> list[str]:
    return [
        part
        for step in range(6)
        for part in _rule(_y(low + (high - low) * step / 5, low, high), f"{low + (high - low) * step / 5:.0f}")
    ]


def _rule(y: float, label: str) -> list[str]:
    rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return [rule, _text(LEFT - 8, y + 4, label, "end")]


def _ticks(low: float, high: float) -> list[str]:
    values = [low + (high - low) * step / 6 for step in range(7)]
    return [_text(_x(value, low, high), HEIGHT - BOTTOM + 20, f"{value:.0f}", "middle") for value in values]


def _frame(title: str, across: str, up: str) -> str:
    return "".join([
        _text(LEFT, 22, title, "start", 15), _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, across, "middle"),
        f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">{escape(up)}</text>',
    ])  # fmt: skip


def _legend(groups: Mapping[str, object]) -> list[str]:
    parts = []
    for number, name in enumerate(groups):
        y = TOP + 12 + 20 * number
        parts.append(
            f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 9}" width="12" height="10" fill="{COLOURS[number % 6]}"/>'
        )
        parts.append(_text(WIDTH - RIGHT + 32, y, name, "start"))
    return parts


def _text(x: float, y: float, text: str, anchor: str, size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _document(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>"]) + "\n"
