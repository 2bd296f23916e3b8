"""What the API server would say of a manifest, said without one: the CRD's own schema and rules, evaluated here."""
