"""Fleets of engines that are not ours, on the one-machine Kubernetes."""
