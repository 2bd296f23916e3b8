"""Times as Kubernetes and logs write them: RFC 3339, in UTC, ending in Z."""

from datetime import UTC, datetime


def rfc3339(moment: datetime, timespec: str = "seconds") -> str:
    """metav1.Time with "seconds", metav1.MicroTime with "microseconds"; the rest is cut off. `moment` has a zone."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"
