"""One module per `make bench-<name>`."""
