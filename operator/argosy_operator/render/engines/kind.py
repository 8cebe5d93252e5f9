"""What the operator must know about an engine to run it: `EngineKind`.

`workload.py` renders the pod around it: labels, security, volumes, resources, drain and rollout are
the same for every kind. A kind says how the container is started and where it answers.
designs/0004-engine-kinds.md says what other parts of the product still expect of our engine.
"""

from dataclasses import dataclass

from argosy_operator.api.model import PodTemplate
from argosy_operator.api.v1alpha1 import RoleName, ServingDeployment
from argosy_operator.api.v1alpha1.roles import NVIDIA, GpuType
from argosy_operator.core.snapshot.objects import Object
from argosy_operator.core.snapshot.revision import drain_timeout_s
from argosy_operator.render.images import Images
from argosy_operator.render.template import installed_with

WEIGHTS = "/models"
"""Where the claim of spec.model.uri is mounted, read-only."""

ROLE_FILE = "/etc/argosy/role/role"
"""In pods that may change their role: the kubelet writes the pod's label there, and writes it anew
within seconds of a change."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A page of the engine: port of the pod, and path."""

    port: int
    path: str


@dataclass(frozen=True, slots=True)
class EnginePod:
    """One role's engine pod in one revision: what its workload is rendered from."""

    fleet: ServingDeployment
    role: RoleName
    revision: str
    image: str
    drain_s: int
    """Seconds that the engine has to finish its answers when its pod leaves."""
    installed: PodTemplate
    """The template of the operator's installation, as it was when the Deployment was made."""

    @classmethod
    def of(
        cls,
        fleet: ServingDeployment,
        role: RoleName,
        revision: str,
        images: Images,
        live: Object | None = None,
    ) -> "EnginePod":
        """`live` is the Deployment as it exists, whose drain time-out and installed template
        stay; None for a new one."""
        image = fleet.spec.engine.image or images.engine
        installed, drain_s = installed_with(live, images.template), drain_timeout_s(fleet, live)
        return cls(fleet, role, revision, image, drain_s, installed)

    @property
    def disaggregated(self) -> bool:
        return self.fleet.spec.mode == "disaggregated"

    @property
    def verifies(self) -> bool:
        """It asks its callers for a token."""
        return self.fleet.spec.verifies_peers

    @property
    def shows_token(self) -> bool:
        """It may call other engines of its fleet, and these ask for a token. Prefill engines have
        one too: they may become decode engines."""
        return self.verifies and self.disaggregated

    @property
    def certificate(self) -> str | None:
        """The Secret for TLS of its ports; None: they speak without."""
        tls = self.fleet.spec.security.tls
        return None if tls is None else tls.secret_name

    @property
    def gpus(self) -> int:
        return self.fleet.spec.role(self.role).resources.gpu

    @property
    def gpu_type(self) -> GpuType | None:
        """The GPU type that it runs on; None: any."""
        return self.fleet.spec.type_of(self.role)

    @property
    def gpu_resource(self) -> str:
        """The resource by which it asks for GPUs."""
        return self.fleet.spec.role(self.role).resources.gpu_resource or NVIDIA

    @property
    def claims_gpus(self) -> bool:
        """Its GPUs come with claims."""
        return self.fleet.spec.role(self.role).resources.gpu_from == "Claims"

    @property
    def flips(self) -> bool:
        """It may change its role while it runs."""
        return self.fleet.spec.flips_roles

    @property
    def claim(self) -> str | None:
        """The PersistentVolumeClaim with the model; None for a model without one."""
        uri, fetched = self.fleet.spec.model.uri, self.fleet.fetched_model
        if fetched is not None:
            return fetched.claim_name
        return uri.removeprefix("pvc://").partition("/")[0] if uri.startswith("pvc://") else None

    @property
    def model_image(self) -> str | None:
        """The image that is the model; None for another model."""
        return self.fleet.model_image

    @property
    def weights(self) -> str:
        """The model's folder inside the container."""
        if self.model_image is not None:
            return WEIGHTS
        fetched = self.fleet.fetched_model
        if fetched is not None:
            return f"{WEIGHTS}/{fetched.path}"
        path = self.fleet.spec.model.uri.removeprefix("pvc://").partition("/")[2]
        return f"{WEIGHTS}/{path}" if path else WEIGHTS
