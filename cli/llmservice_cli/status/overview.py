"""`llmservice status` without a name: a line for each service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from llmservice_cli.api import Json
from llmservice_cli.services import conditions_of
from llmservice_cli.text import age, table

NO_VALUE = "-"
HEADER = ("NAME", "READY", "REASON", "PROGRESS", "GPUS", "MODEL", "URL", "AGE")


def overview(services: Sequence[Json], now: datetime, *, with_namespace: bool) -> list[str]:
    """Lines of text."""
    rows = []
    for service in services:
        status, metadata = service.get("status") or {}, service["metadata"]
        row = [
            metadata["name"],
            status.get("ready", NO_VALUE),
            reason_of(service),
            share_done(status.get("progress") or {}),
            str(status.get("gpus", NO_VALUE)),
            service["spec"]["model"]["uri"],
            (status.get("endpoint") or {}).get("url", NO_VALUE),
            age(str(metadata.get("creationTimestamp") or ""), now),
        ]
        rows.append([metadata["namespace"], *row] if with_namespace else row)
    return table(["NAMESPACE", *HEADER] if with_namespace else HEADER, rows)


def reason_of(service: Json) -> str:
    """Of the condition Ready."""
    return next((c.reason for c in conditions_of(service) if c.type == "Ready"), "not reconciled yet")


def share_done(progress: Json) -> str:
    """Of a start: its percentage, else its phase."""
    percent = progress.get("percent")
    if percent is not None:
        return f"{percent} %"
    return str(progress.get("phase") or NO_VALUE)


def change(service: Json) -> str:
    """One line that is another one whenever something that matters changes."""
    status, metadata = service.get("status") or {}, service["metadata"]
    progress = status.get("progress") or {}
    doing = " ".join(str(progress[key]) for key in ("phase", "step") if progress.get(key))
    done = share_done(progress)
    parts = [f"{status.get('ready', NO_VALUE)} ready", doing, done if done.endswith("%") else ""]
    failure = status.get("failure") or {}
    told = f": {failure['message']} What to do: {failure.get('remedy', NO_VALUE)}" if failure.get("message") else ""
    return f"{metadata['namespace']}/{metadata['name']}: {reason_of(service)}, {', '.join(filter(None, parts))}{told}"
