"""What Prometheus and Grafana need to watch Hekla: alerts that say what to do, dashboards, and where to read.

    alerts.py      when to call somebody, as a table
    dashboards.py  what is shown, as a table
    grafana.py     a dashboard as Grafana's JSON
    prometheus.py  rules and scrape configurations as Prometheus' YAML
    objects.py     the same as objects of the Prometheus Operator, for `hekla install --with monitoring`

Tables name metrics of docs/reference/metrics.md; `tests/app/monitoring/` asks a real Prometheus about each expression.
"""
