"""Alerts, recording rules and dashboards of the chart, as Python; `python -m monitoring` writes their files.

`rules.py` has the shapes, `recording.py` and `alerts/` the content, `dashboards/` the dashboards. Thresholds that users
change are `${name}` in expressions: the chart replaces them by metrics.prometheusRule.thresholds of its values.
"""
