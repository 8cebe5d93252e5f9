"""The Kubernetes objects of a fleet, as functions of its spec. Nothing here reads or writes.

workload.py: the engine Deployment of a role; engines/ says how an engine is started. gateway.py:
the gateway and the Service; pool.py: what stands in place of both. role.py: the ServingRole and its
disruption budget. common.py: metadata and pod security of all of them. pods/: what users ask of
pods, laid over these.
"""
