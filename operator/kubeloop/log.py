"""Log records with the object that they are about."""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any

from kubeloop.resources import Key, rfc3339

ObjectLogger = logging.LoggerAdapter[logging.Logger]
"""Adds the object to each record."""


KEY = "object_key"
"""The attribute of a record: `extra={KEY: key}`."""


def object_logger(logger: logging.Logger, key: Key) -> ObjectLogger:
    return ObjectLogger(logger, {KEY: key})


class ConsoleFormatter(logging.Formatter):
    """Text: time, level, object, message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and a traceback if there is one."""
        key = _key_of(record)
        about = f"[{key}] " if key else ""
        text = f"{_timestamp(record)} {record.levelname:<7} {about}{record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if key := _key_of(record):
            line["namespace"], line["name"] = key
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _key_of(record: logging.LogRecord) -> Key | None:
    """The object of a record, from `extra` or from kopf's object reference."""
    key = getattr(record, KEY, None)
    if key is not None:
        return Key(*key)
    reference = getattr(record, "k8s_ref", None)
    return Key(reference.get("namespace") or "", reference.get("name") or "") if reference else None


def _timestamp(record: logging.LogRecord) -> str:
    return rfc3339(datetime.datetime.fromtimestamp(record.created, datetime.UTC), "milliseconds")


def setup(form: str, level: str, stream: Any = None) -> None:
    """Send all records to one handler."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else ConsoleFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Errors that a watch repeats are reported elsewhere.
    logging.getLogger("kopf").setLevel(max(root.level, logging.INFO))
    # kopf logs each event that succeeded.
    for name in ("kopf.objects", "kopf.activities"):
        logging.getLogger(name).setLevel(logging.WARNING)
