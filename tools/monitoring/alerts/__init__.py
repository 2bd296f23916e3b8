"""The alerts, by who acts on them: of one service, of what it gives its clients, of the operator."""

from monitoring.alerts import operator, requests, services
from monitoring.recording import GROUP
from monitoring.rules import Alert

GROUPS = (GROUP, services.GROUP, requests.GROUP, operator.GROUP)
ALERTS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
