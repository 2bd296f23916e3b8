"""The API server's answer to a manifest, without a server: the CRD's own schema and rules are evaluated here."""
