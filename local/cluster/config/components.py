"""Command lines and configuration files of the Kubernetes components: values in, values out.

They deviate from a production cluster only where one machine without containers needs it: no
cgroups, no eviction by disk or memory, an etcd without fsync on a tmpfs.
"""

import base64
import json
from pathlib import Path
from typing import Any

from local.cluster.layout import (
    API_ADDRESS,
    API_PORT,
    DNS_SERVICE,
    POD_NETWORK,
    SERVICE_NETWORK,
    Files,
    Spec,
    node_address,
)

API_URL = f"https://{API_ADDRESS}:{API_PORT}"
# Machine-wide settings that a kubelet would write. Each node shows it files with these values.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def kubeconfig(server: str, ca: bytes, user: str, token: str, name: str) -> str:
    """A kubeconfig as JSON, with certificate and token inside."""
    authority = base64.b64encode(ca).decode()
    cluster = {"server": server, "certificate-authority-data": authority}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        },
        indent=1,
    )


def admission() -> dict[str, Any]:
    """Pod Security `restricted` for every namespace but kube-system."""
    levels = {
        f"{mode}{suffix}": value
        for mode in ("enforce", "audit", "warn")
        for suffix, value in (("", "restricted"), ("-version", "latest"))
    }
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [
            {
                "name": "PodSecurity",
                "configuration": {
                    "apiVersion": "pod-security.admission.config.k8s.io/v1",
                    "kind": "PodSecurityConfiguration",
                    "defaults": levels,
                    "exemptions": {"namespaces": ["kube-system"]},
                },
            }
        ],
    }


def audit_policy() -> dict[str, Any]:
    """Every request as metadata, except the components' own reads and health checks."""
    components = [
        "system:apiserver",
        "system:kube-controller-manager",
        "system:kube-scheduler",
        "system:kube-proxy",
        "system:coredns",
    ]
    reads = ["get", "list", "watch"]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*"]},
            {"level": "None", "users": components, "verbs": reads},
            {"level": "None", "userGroups": ["system:nodes"], "verbs": reads},
            {"level": "Metadata"},
        ],
    }


def kubelet_config(files: Files, node: str) -> dict[str, Any]:
    """KubeletConfiguration of one node."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{files.runtime_socket(node)}",
        "address": node_address(node),
        "port": 10250,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(files.pki / "ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": str(files.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(files.pki / "kubelet.key"),
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "failCgroupV1": False,
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "hairpinMode": "none",
        "localStorageCapacityIsolation": False,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": dict.fromkeys(
            ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), "0%"
        ),
        "oomScoreAdj": 0,
        "maxOpenFiles": 20000,
        "maxPods": 250,
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "shutdownGracePeriod": "0s",
    }


def corefile(files: Files) -> str:
    """CoreDNS's configuration: Service names only, nothing is forwarded outside."""
    return (
        ".:53 {\n    errors\n    ready 127.0.0.1:8181\n"
        "    kubernetes cluster.local in-addr.arpa {\n"
        f"        kubeconfig {files.config / 'coredns.kubeconfig'}\n"
        "        pods insecure\n        ttl 5\n    }\n}\n"
    )


def node_objects() -> list[tuple[str, dict[str, Any]]]:
    """(collection path, object) that let every kubelet read pods and claims.

    The Node authorizer allows it once it has seen that the pod is on the node, or that a pod on the
    node uses the claim. A kubelet may be faster. Then it tries a pod with a claim again only after
    10 s or more, and writes the status of a pod, before which it reads the pod, up to 10 s later.
    Here the kubelets share a machine with the API server, so this happens often.
    """
    resources = ["pods", "persistentvolumeclaims"]
    rules = [{"apiGroups": [""], "resources": resources, "verbs": ["get"]}]
    return _grant("one-machine:kubelets-read", "Group", "system:nodes", rules)


def _grant(
    name: str, kind: str, subject: str, rules: list[dict[str, Any]]
) -> list[tuple[str, dict[str, Any]]]:
    """A ClusterRole with these rules, and its binding to a user or a group."""
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    bound = {"apiGroup": rbac, "kind": kind, "name": subject}
    meta = {"metadata": {"name": name}}
    return [
        (f"/apis/{rbac}/v1/clusterroles", {**meta, "rules": rules}),
        (
            f"/apis/{rbac}/v1/clusterrolebindings",
            {**meta, "roleRef": role, "subjects": [bound]},
        ),
    ]


def dns_objects() -> list[tuple[str, dict[str, Any]]]:
    """(collection path, object) for CoreDNS, which runs beside the API server, not in a pod."""
    rules = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    ports = [{"name": f"dns-{p.lower()}", "port": 53, "protocol": p} for p in ("UDP", "TCP")]
    in_system = {"name": "kube-dns", "namespace": "kube-system"}
    named = {"kubernetes.io/service-name": "kube-dns"}
    return [
        *_grant("system:coredns", "User", "system:coredns", rules),
        (
            "/api/v1/namespaces/kube-system/services",
            {"metadata": in_system, "spec": {"clusterIP": DNS_SERVICE, "ports": ports}},
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            {
                "metadata": {**in_system, "labels": named},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [API_ADDRESS], "conditions": {"ready": True}}],
                "ports": ports,
            },
        ),
    ]


def write_configs(spec: Spec, files: Files, tokens: dict[str, str]) -> None:
    """Write all configuration files into `files.config`."""
    files.config.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca = (files.pki / "ca.crt").read_bytes()
    users = {
        "controller-manager": "system:kube-controller-manager",
        "scheduler": "system:kube-scheduler",
        "proxy": "system:kube-proxy",
        "coredns": "system:coredns",
        **{node: f"system:node:{node}" for node in spec.node_names},
    }
    for name, user in users.items():
        text = kubeconfig(API_URL, ca, user, tokens[user], spec.name)
        _write(files.config / f"{name}.kubeconfig", text)
    for node in spec.node_names:
        _write(files.config / f"{node}.json", json.dumps(kubelet_config(files, node), indent=1))
    _write(files.config / "admission.json", json.dumps(admission(), indent=1))
    _write(files.config / "audit.json", json.dumps(audit_policy(), indent=1))
    _write(files.config / "Corefile", corefile(files))


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def etcd(files: Files) -> list[str]:
    """Flags of etcd. Its data ends with the cluster, so it is not synced to disk."""
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return [
        "--name=one",
        f"--data-dir={files.mnt / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=one={peer}",
        "--log-level=warn",
    ]


API_SERVER_ENV = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""Its heap may grow to five times what is in use before it is collected, up to this limit. The
start of a cluster and of its pods needs the CPU more than the memory."""


def apiserver(files: Files) -> list[str]:
    """Flags of kube-apiserver."""
    pki = files.pki
    return [
        "--etcd-servers=http://127.0.0.1:2379",
        "--bind-address=0.0.0.0",
        f"--secure-port={API_PORT}",
        f"--advertise-address={API_ADDRESS}",
        f"--tls-cert-file={pki / 'apiserver.crt'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'accounts.key'}",
        f"--service-account-signing-key-file={pki / 'accounts.key'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--admission-control-config-file={files.config / 'admission.json'}",
        f"--service-cluster-ip-range={SERVICE_NETWORK}",
        f"--audit-policy-file={files.config / 'audit.json'}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=2",
        "--shutdown-delay-duration=0s",
        "--profiling=false",
    ]


def controller_manager(files: Files) -> list[str]:
    """Flags of kube-controller-manager."""
    return [
        f"--kubeconfig={files.config / 'controller-manager.kubeconfig'}",
        "--secure-port=0",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--service-account-private-key-file={files.pki / 'accounts.key'}",
        f"--root-ca-file={files.pki / 'ca.crt'}",
        "--kube-api-qps=200",
        "--kube-api-burst=400",  # 20 by default: 4 s of the start
        # A node that is looked at a moment before it is ready keeps its taint for this period. The
        # default is 5 s: about every second start took twice as long.
        "--node-monitor-period=1s",
    ]


def scheduler(files: Files) -> list[str]:
    """Flags of kube-scheduler."""
    config = files.config / "scheduler.kubeconfig"
    rate = ("--kube-api-qps=200", "--kube-api-burst=400")
    return [f"--kubeconfig={config}", "--secure-port=0", "--leader-elect=false", *rate]


def proxy(spec: Spec, files: Files) -> list[str]:
    """One kube-proxy for all nodes: they share one network namespace."""
    return [
        f"--kubeconfig={files.config / 'proxy.kubeconfig'}",
        "--proxy-mode=nftables",
        f"--hostname-override={spec.node_names[0]}",
        f"--cluster-cidr={POD_NETWORK}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--healthz-bind-address=127.0.0.1:10256",
    ]


def kubelet(spec: Spec, files: Files, node: str) -> list[str]:
    """Flags of one node's kubelet; `kubelet_config` has the rest."""
    gates = ["--feature-gates=KubeletInUserNamespace=true"] if spec.rootless else []
    return [
        f"--config={files.config / node}.json",
        f"--hostname-override={node}",
        f"--kubeconfig={files.config / node}.kubeconfig",
        f"--node-ip={node_address(node)}",
        f"--cert-dir={files.node(node) / 'certs'}",
        *gates,
    ]
