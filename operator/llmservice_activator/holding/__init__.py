"""Requests to services without a ready pod: answered, held until one is ready, forwarded. No Kubernetes in here."""
