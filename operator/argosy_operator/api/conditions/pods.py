"""Reasons that are about the start of pods, as `Reason` takes them: word, meaning, what to do,
commands."""

from argosy_operator.api.conditions import kubectl

POD_NOT_STARTED = (
    "PodNotStarted",
    "a pod has not started, or a Job has made no pod, within spec.progressDeadline",
    "Read the events of the pod or of the Job: they name what it waits for.",
    *kubectl.POD_STATES,
    kubectl.JOB,
)
UNSCHEDULABLE = (
    "Unschedulable",
    "no node has room for a pod",
    "Add nodes, or lower the role's replicas or resources.",
    *kubectl.POD_STATES,
    kubectl.NODES,
)
