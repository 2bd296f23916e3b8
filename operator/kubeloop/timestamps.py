"""RFC 3339 times in UTC, ending in Z, as in Kubernetes and logs."""

from datetime import UTC, datetime


def rfc3339(moment: datetime, timespec: str = "seconds") -> str:
    """metav1.Time with "seconds", metav1.MicroTime with "microseconds", truncated. `moment` must have a time zone."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
