"""What `bench` and `probe` send load with: the server, one exchange, pace, figures and the display meanwhile."""
