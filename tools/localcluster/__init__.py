"""A real single-node Kubernetes on this machine, from binaries that one pinned go.mod builds."""
