"""A quarter of an hour of requests on the one-machine Kubernetes, and in the simulator."""
