"""The dashboards of the chart: of one service, of the fleet, of the operator."""

from monitoring.dashboards import fleet, operator, service

DASHBOARDS = (service.DASHBOARD, fleet.DASHBOARD, operator.DASHBOARD)
