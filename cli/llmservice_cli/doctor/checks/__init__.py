"""All checks, in the order in which they are reported. Another one is a row in its module."""

from __future__ import annotations

from llmservice_cli.doctor.findings import Check

from . import crd, namespace, nodes, operator, rights, server

CHECKS: tuple[Check, ...] = (
    *server.CHECKS,
    *rights.CHECKS,
    *crd.CHECKS,
    *operator.CHECKS,
    *nodes.CHECKS,
    *namespace.CHECKS,
)
