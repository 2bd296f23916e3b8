"""HTTP requests to services without a ready pod: answered, or held until a pod is ready and then forwarded. Independent
of Kubernetes."""
