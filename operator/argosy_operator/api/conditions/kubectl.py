"""What a person runs to see more of a condition. Words in capitals are placeholders."""

POOLS_MANIFEST = (
    "https://github.com/kubernetes-sigs/gateway-api-inference-extension/releases/download/v1.2.1/"
    "manifests.yaml"
)
"""CRDs of the Gateway API Inference Extension, of the release of the default endpoint picker."""
LEASES = "kubectl get leases -A"
SPEC = "kubectl get sd NAME -n NAMESPACE -o yaml"
PODS = "kubectl get pods -n NAMESPACE -l serving.argosy.dev/fleet=NAME -o wide"
POD = "kubectl describe pod POD -n NAMESPACE"
POD_STATES = (PODS, POD)
LOGS = "kubectl logs POD -n NAMESPACE --previous"
EVENTS = "kubectl get events -n NAMESPACE --field-selector involvedObject.name=NAME"
ROLES = "kubectl get sr -n NAMESPACE"
AUTOSCALERS = "kubectl describe hpa -n NAMESPACE"
GATEWAY_SETTINGS = (
    "kubectl get configmap NAME-gateway -n NAMESPACE -o yaml",
    "kubectl logs -n NAMESPACE -l \\\n"
    "  serving.argosy.dev/fleet=NAME,serving.argosy.dev/role=gateway --prefix --tail=50",
)
FETCHING = "kubectl logs -n NAMESPACE job/NAME-fetch"
JOB = "kubectl describe job -n NAMESPACE NAME-fetch"
FETCH_STATES = (FETCHING, JOB)
CLAIMS = "kubectl get pvc -n NAMESPACE"
QUOTAS = "kubectl describe quota -n NAMESPACE"
NAMESPACE = "kubectl get namespace NAMESPACE -o yaml"
NODES = "kubectl describe nodes | grep -A 8 'Allocated resources'"
EXPLAIN = "kubectl argosy explain NAME -n NAMESPACE"
OPERATOR = (
    "kubectl logs -n OPERATOR_NAMESPACE --tail=200 \\\n"
    "  -l app.kubernetes.io/name=argosy,app.kubernetes.io/component=operator"
)
