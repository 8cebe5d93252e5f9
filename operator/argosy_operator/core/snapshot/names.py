"""Names, labels, annotations and ports of what belongs to a fleet.

Names are functions of the fleet's name alone, so that every round and every replica of the operator
finds the same children. A fleet's name has at most 40 characters. The longest child name is
`<fleet>-colocated-<8 hex digits>`, with 59.
"""

from typing import get_args

from argosy_operator.api.v1alpha1 import RoleName

FLEET = "serving.argosy.dev/fleet"
ROLE = "serving.argosy.dev/role"
REVISION = "serving.argosy.dev/revision"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
FIELD_MANAGER = "argosy"
"""The field manager of server-side apply, and the value of `MANAGED_BY`."""
REPLICAS_MANAGER = "argosy-replicas"
"""The field manager that holds a Deployment's replicas when the operator gives them up."""
GATEWAY_ROLE = "gateway"
FETCH_ROLE = "fetch"
ENGINE_CONTAINER = "engine"
CONTAINERS = (ENGINE_CONTAINER, GATEWAY_ROLE, FETCH_ROLE)
"""Argosy's own containers, by which templates name them. A pod has one of these."""
ENGINE_ROLES: tuple[RoleName, ...] = get_args(RoleName)

DRAIN = "serving.argosy.dev/drain"
"""On a pod: RFC 3339 time when its drain began."""
DRAIN_TIMEOUT = "serving.argosy.dev/drain-timeout-s"
"""On an engine Deployment: the drain time-out that its pods were created with, in seconds."""
INPUTS = "serving.argosy.dev/inputs"
"""On a Deployment: digest of what its pod template was made from. On the Job that fetches a model:
of what the fleet asks of it."""
TEMPLATE = "serving.argosy.dev/template"
"""On a Deployment: number of the rendering code that made its pod template."""
ACCOUNT = "serving.argosy.dev/account"
"""On gateway pods: uid of their ServiceAccount, if it was created again since. The token of a pod
is bound to that uid, so another uid replaces the pods."""
FLIPPED = "serving.argosy.dev/flipped"
"""On a pod: RFC 3339 time when it got its role of now, from the other one."""
RECYCLE = "serving.argosy.dev/recycle"
"""On an engine pod: RFC 3339 time when it was chosen to be replaced, because its handovers fail."""
RECYCLED = "serving.argosy.dev/recycled"
"""On a ServingRole: RFC 3339 time when a pod of the role was last chosen so, a space, and how many
were chosen in a row by then."""
GPU_TYPE = "serving.argosy.dev/gpu-type"
"""On a ServingRole: the GPU type that was chosen for the role, a space, and the RFC 3339 time of
the choice. As a label of engine pods: the type's name alone."""
GPU_TYPES_FULL = "serving.argosy.dev/gpu-types-full"
"""On a ServingRole: the GPU types on which its pods found no node, each as name=RFC 3339 time at
which the role left it, with commas between."""
GPU_RESOURCE = "serving.argosy.dev/gpu-resource"
"""On engine pods whose GPUs are not `nvidia.com/gpu`: the resource that they ask for."""
GPUS_CLAIMED = "serving.argosy.dev/gpus-claimed"
"""On engine pods whose GPUs come with claims: how many they are."""
INSTALLED = "serving.argosy.dev/installed-template"
"""On Deployments: the template of the operator's installation that their pods have, as JSON."""
TLS = "serving.argosy.dev/tls"
"""On engine pods: "true" if their ports 8000 and 8002 speak TLS."""
ENGINE = "serving.argosy.dev/engine"
"""On engine pods of another type than argosy: the type. They have no admin port, and their API key
is the pod's uid."""
TEMPLATE_HASH = "pod-template-hash"
"""Kubernetes' own label: a ReplicaSet selects its pods by it, too."""
FETCHES = "serving.argosy.dev/fetches"
"""On the Job that fetches a model: digest of what it was rendered as."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

PEERS_VOLUME, TOKEN_VOLUME, TLS_VOLUME = "peers", "token", "tls"
"""Volumes of pods that verify their callers, of those that show a token, and of those with TLS."""

API_PORT, ADMIN_PORT, KV_PORT = 8000, 8001, 8002
PEER_UCX_PORTS = (5700, 5899)
"""Ports that UCX uses in pods of vLLM and SGLang, first and last: about five for each network
interface and GPU."""
UCX_PORTS = (8003, 8010)
"""First and last port on which NIXL listens in a pod with kvTransfer.transport nixl."""
GATEWAY_PORT, GATEWAY_ADMIN_PORT, SERVICE_PORT = 8080, 8081, 80
FETCH_PORT = 8081
SETTINGS_KEY = "flags.json"
"""Of the data of the gateways' settings: their arguments as a list."""


def engine_deployment(fleet: str, role: RoleName, revision: str) -> str:
    """The Deployment of one role × revision."""
    return f"{fleet}-{role}-{revision}"


def serving_role(fleet: str, role: RoleName) -> str:
    """The ServingRole of one role, and the role's disruption budget."""
    return f"{fleet}-{role}"


def gateway(fleet: str) -> str:
    """The gateway's Deployment, ServiceAccount, Role, RoleBinding, disruption budget and
    HorizontalPodAutoscaler."""
    return f"{fleet}-gateway"


def settings(fleet: str) -> str:
    """The ConfigMap with the settings that the gateways follow, under `SETTINGS_KEY`."""
    return f"{fleet}-gateway"


def engine_account(fleet: str) -> str:
    """The ServiceAccount of the engine pods."""
    return f"{fleet}-engine"


def peers(fleet: str) -> str:
    """The ConfigMap with the peers file of the engine pods."""
    return f"{fleet}-peers"


def past(fleet: str, revision: str) -> str:
    """The ControllerRevision of a revision of the fleet's history."""
    return f"{fleet}-{revision}"


def learnt(fleet: str) -> str:
    """The ConfigMap with what the scaling law has learnt."""
    return f"{fleet}-learnt"


def fetch_job(fleet: str) -> str:
    """The Job that fetches the model."""
    return f"{fleet}-fetch"


def network_policy(fleet: str) -> str:
    """The NetworkPolicy of the engine pods."""
    return f"{fleet}-engine"


def account_subject(namespace: str, account: str) -> str:
    """A ServiceAccount as its tokens name it in `sub`."""
    return f"system:serviceaccount:{namespace}:{account}"


def audience(namespace: str, fleet: str) -> str:
    """For whom the tokens are that pods of the fleet show to each other."""
    return f"argosy.dev/{namespace}/{fleet}"


def service(fleet: str) -> str:
    """The Service in front of the gateways. It has the fleet's own name."""
    return fleet


def url(fleet: str, namespace: str) -> str:
    """The base address of the fleet's OpenAI API inside the cluster, without /v1."""
    return f"http://{service(fleet)}.{namespace}.svc"


def recommended(fleet: str, component: str | None = None) -> dict[str, str]:
    """The labels that Kubernetes recommends. No selector has them."""
    of_component = {} if component is None else {COMPONENT: component}
    return {
        MANAGED_BY: FIELD_MANAGER,
        "app.kubernetes.io/name": FIELD_MANAGER,
        "app.kubernetes.io/instance": fleet,
        "app.kubernetes.io/part-of": FIELD_MANAGER,
    } | of_component


def labels(fleet: str, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels of a child; with the revision if there is one."""
    return recommended(fleet, role) | selector(fleet, role, revision)


def pod_labels(fleet: str, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels of a child's pods. They are part of pods that run, so they stay as they are."""
    return {MANAGED_BY: FIELD_MANAGER} | selector(fleet, role, revision)


def selector(fleet: str, role: str, revision: str | None = None) -> dict[str, str]:
    """Labels that select the pods of a role, or of one revision of it."""
    of_revision = {} if revision is None else {REVISION: revision}
    return {FLEET: fleet, ROLE: role} | of_revision


def selector_text(fleet: str, role: str, revision: str | None = None) -> str:
    """The selector as text, as list calls and the scale subresource take it."""
    return ",".join(f"{key}={value}" for key, value in selector(fleet, role, revision).items())
