"""Dashboards as Grafana 10 and later read them. Pure; the source of data is chosen on the page."""

from typing import Any

from hekla.api.meta import Document
from hekla.app.monitoring.dashboards import Dashboard, Panel, Row, Shape, Variable

SCHEMA_VERSION = 39
"""Of Grafana 11; newer ones bring it up by themselves, Grafana 10 ignores what it does not know."""

COLUMNS = 24
HEIGHT = 8
"""Of a panel, in Grafana's units of 30 pixels."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def dashboard_json(dashboard: Dashboard) -> Document:
    """One dashboard as a document to import, to provision from a file or to put into a ConfigMap."""
    panels: list[Document] = []
    top = 0
    for row in dashboard.rows:
        placed, top = _row(row, top, first_id=len(panels) + 1)
        panels += placed
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["hekla"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(one) for one in dashboard.variables)]},
        "panels": panels,
    }


def _source() -> Document:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> Document:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _row(row: Row, top: int, *, first_id: int) -> tuple[list[Document], int]:
    """A row's panels from left to right, in as many lines as they need; and where the next row begins."""
    title: Document = {
        "id": first_id,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        "panels": [],
    }
    placed, left, line = [title], 0, top + 1
    for number, panel in enumerate(row.panels, first_id + 1):
        if left + panel.width > COLUMNS:
            left, line = 0, line + HEIGHT
        placed.append(_panel(panel, number, {"x": left, "y": line, "w": panel.width, "h": HEIGHT}))
        left += panel.width
    return placed, line + HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> Document:
    return {
        "id": number,
        "type": panel.shape.value,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": one.expr, "legendFormat": one.named}
            for at, one in enumerate(panel.series)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": _lines(panel)}, "overrides": []},
        "options": _options(panel),
    }


def _lines(panel: Panel) -> Document:
    if panel.shape is not Shape.LINES:
        return {}
    return {
        "fillOpacity": 20 if panel.is_stacked else 0,
        "lineWidth": 1,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.shape is Shape.LINES:
        return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
