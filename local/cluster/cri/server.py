"""The CRI over gRPC: maps each call of `runtime.v1` that the kubelet makes to `pods.py`.

A method of `Service` handles the call of the same name; a call without a method answers
UNIMPLEMENTED. `_guarded` turns our exceptions into gRPC statuses.
"""

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc

from local.cluster.cri import api_pb2
from local.cluster.cri.fork.spawner import SpawnError
from local.cluster.cri.images import Image, ImageUnknownError
from local.cluster.cri.oci.artifacts import Artifact
from local.cluster.cri.oci.reference import Login, PullError, Reference, can_be_reached
from local.cluster.cri.pods import Container, NotFoundError, Pod, Pods, RefusedError

_log = logging.getLogger("cri")

_CODES = {
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ImageUnknownError: grpc.StatusCode.NOT_FOUND,
    RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
    SpawnError: grpc.StatusCode.UNKNOWN,
    PullError: grpc.StatusCode.UNKNOWN,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    OSError: grpc.StatusCode.INTERNAL,
}


def handlers(service: object) -> list[grpc.GenericRpcHandler]:
    """gRPC handlers for every rpc that `service` has a method for."""
    found = []
    for descriptor in api_pb2.DESCRIPTOR.services_by_name.values():
        methods = {
            rpc.name: grpc.unary_unary_rpc_method_handler(
                _guarded(getattr(service, rpc.name)),
                request_deserializer=getattr(api_pb2, rpc.input_type.name).FromString,
                response_serializer=getattr(api_pb2, rpc.output_type.name).SerializeToString,
            )
            for rpc in descriptor.methods
            if hasattr(service, rpc.name)
        }
        found.append(grpc.method_handlers_generic_handler(descriptor.full_name, methods))
    return found


def _guarded(method: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await method(request)
        except tuple(_CODES) as error:
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            if code is not grpc.StatusCode.NOT_FOUND:
                _log.warning("%s: %s", method.__name__, error)
            await context.abort(code, str(error))
        except Exception:
            _log.exception("%s failed", method.__name__)
            raise

    return call


class Service:
    """RuntimeService and ImageService of one node."""

    def __init__(self, pods: Pods, *, root: str) -> None:
        self._pods = pods
        self._root = root

    # ---- the runtime itself

    async def Version(self, request: api_pb2.VersionRequest) -> api_pb2.VersionResponse:
        return api_pb2.VersionResponse(
            version="0.1.0",
            runtime_name="local-processes",
            runtime_version="0.1.0",
            runtime_api_version="v1",
        )

    async def Status(self, request: api_pb2.StatusRequest) -> api_pb2.StatusResponse:
        conditions = [
            api_pb2.RuntimeCondition(type=kind, status=True)
            for kind in ("RuntimeReady", "NetworkReady")
        ]
        return api_pb2.StatusResponse(
            status=api_pb2.RuntimeStatus(conditions=conditions),
            runtime_handlers=[api_pb2.RuntimeHandler(name="")],
        )

    async def RuntimeConfig(
        self, request: api_pb2.RuntimeConfigRequest
    ) -> api_pb2.RuntimeConfigResponse:
        return api_pb2.RuntimeConfigResponse(
            linux=api_pb2.LinuxRuntimeConfiguration(cgroup_driver=api_pb2.CGROUPFS)
        )

    async def UpdateRuntimeConfig(
        self, request: api_pb2.UpdateRuntimeConfigRequest
    ) -> api_pb2.UpdateRuntimeConfigResponse:
        return api_pb2.UpdateRuntimeConfigResponse()

    # ---- pods

    async def RunPodSandbox(
        self, request: api_pb2.RunPodSandboxRequest
    ) -> api_pb2.RunPodSandboxResponse:
        return api_pb2.RunPodSandboxResponse(
            pod_sandbox_id=await self._pods.run_pod(request.config)
        )

    async def StopPodSandbox(
        self, request: api_pb2.StopPodSandboxRequest
    ) -> api_pb2.StopPodSandboxResponse:
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.stop_pod(request.pod_sandbox_id)
        return api_pb2.StopPodSandboxResponse()

    async def RemovePodSandbox(
        self, request: api_pb2.RemovePodSandboxRequest
    ) -> api_pb2.RemovePodSandboxResponse:
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.remove_pod(request.pod_sandbox_id)
        return api_pb2.RemovePodSandboxResponse()

    async def PodSandboxStatus(
        self, request: api_pb2.PodSandboxStatusRequest
    ) -> api_pb2.PodSandboxStatusResponse:
        pod = self._pods.pod(request.pod_sandbox_id)
        namespaces = pod.config.linux.security_context.namespace_options
        status = api_pb2.PodSandboxStatus(
            network=api_pb2.PodSandboxNetworkStatus(ip=pod.state.address),
            linux=api_pb2.LinuxPodSandboxStatus(namespaces=api_pb2.Namespace(options=namespaces)),
            **_pod_fields(pod),
        )
        return api_pb2.PodSandboxStatusResponse(status=status)

    async def ListPodSandbox(
        self, request: api_pb2.ListPodSandboxRequest
    ) -> api_pb2.ListPodSandboxResponse:
        wanted = request.filter
        items = [
            api_pb2.PodSandbox(**_pod_fields(pod))
            for pod in self._pods.pods.values()
            if (not wanted.id or pod.id.startswith(wanted.id))
            and (not wanted.HasField("state") or _pod_phase(pod) == wanted.state.state)
            and _selected(wanted.label_selector, pod.config.labels)
        ]
        return api_pb2.ListPodSandboxResponse(items=items)

    # ---- containers

    async def CreateContainer(
        self, request: api_pb2.CreateContainerRequest
    ) -> api_pb2.CreateContainerResponse:
        key = self._pods.create_container(request.pod_sandbox_id, request.config)
        return api_pb2.CreateContainerResponse(container_id=key)

    async def StartContainer(
        self, request: api_pb2.StartContainerRequest
    ) -> api_pb2.StartContainerResponse:
        await self._pods.start_container(request.container_id)
        return api_pb2.StartContainerResponse()

    async def StopContainer(
        self, request: api_pb2.StopContainerRequest
    ) -> api_pb2.StopContainerResponse:
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.stop_container(request.container_id, grace_s=request.timeout)
        return api_pb2.StopContainerResponse()

    async def RemoveContainer(
        self, request: api_pb2.RemoveContainerRequest
    ) -> api_pb2.RemoveContainerResponse:
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.remove_container(request.container_id)
        return api_pb2.RemoveContainerResponse()

    async def ListContainers(
        self, request: api_pb2.ListContainersRequest
    ) -> api_pb2.ListContainersResponse:
        wanted = request.filter
        found = [
            api_pb2.Container(
                pod_sandbox_id=container.state.sandbox, **_container_fields(container)
            )
            for container in self._pods.containers.values()
            if (not wanted.id or container.id.startswith(wanted.id))
            and (not wanted.HasField("state") or container.state.phase == wanted.state.state)
            and container.state.sandbox.startswith(wanted.pod_sandbox_id)
            and _selected(wanted.label_selector, container.config.labels)
        ]
        return api_pb2.ListContainersResponse(containers=found)

    async def ContainerStatus(
        self, request: api_pb2.ContainerStatusRequest
    ) -> api_pb2.ContainerStatusResponse:
        container = self._pods.container(request.container_id)
        state, config = container.state, container.config
        pod = self._pods.pods.get(state.sandbox)
        log_path = f"{pod.config.log_directory.rstrip('/')}/{config.log_path}" if pod else ""
        user = api_pb2.LinuxContainerUser(
            uid=state.uid, gid=state.gid, supplemental_groups=state.groups
        )
        status = api_pb2.ContainerStatus(
            started_at=state.started_ns,
            finished_at=state.finished_ns,
            exit_code=state.exit_code,
            reason=state.reason,
            message=state.message,
            mounts=config.mounts,
            log_path=log_path,
            user=api_pb2.ContainerUser(linux=user),
            stop_signal=config.stop_signal,
            **_container_fields(container),
        )
        return api_pb2.ContainerStatusResponse(status=status)

    async def UpdateContainerResources(
        self, request: api_pb2.UpdateContainerResourcesRequest
    ) -> api_pb2.UpdateContainerResourcesResponse:
        return api_pb2.UpdateContainerResourcesResponse()  # limits are not enforced

    async def UpdatePodSandboxResources(
        self, request: api_pb2.UpdatePodSandboxResourcesRequest
    ) -> api_pb2.UpdatePodSandboxResourcesResponse:
        return api_pb2.UpdatePodSandboxResourcesResponse()

    async def ReopenContainerLog(
        self, request: api_pb2.ReopenContainerLogRequest
    ) -> api_pb2.ReopenContainerLogResponse:
        self._pods.reopen_log(request.container_id)
        return api_pb2.ReopenContainerLogResponse()

    async def ExecSync(self, request: api_pb2.ExecSyncRequest) -> api_pb2.ExecSyncResponse:
        try:
            code, output, errors = await self._pods.exec(
                request.container_id, list(request.cmd), timeout_s=request.timeout or None
            )
        except TimeoutError:
            raise TimeoutError(
                f"command {' '.join(request.cmd)!r} timed out after {request.timeout} s"
            ) from None
        return api_pb2.ExecSyncResponse(stdout=output, stderr=errors, exit_code=code)

    # ---- statistics: nothing is measured per container

    async def ListContainerStats(
        self, request: api_pb2.ListContainerStatsRequest
    ) -> api_pb2.ListContainerStatsResponse:
        return api_pb2.ListContainerStatsResponse()

    async def ListPodSandboxStats(
        self, request: api_pb2.ListPodSandboxStatsRequest
    ) -> api_pb2.ListPodSandboxStatsResponse:
        return api_pb2.ListPodSandboxStatsResponse()

    # ---- images

    async def ListImages(self, request: api_pb2.ListImagesRequest) -> api_pb2.ListImagesResponse:
        wanted = request.filter.image.image
        if wanted:
            found = self._image(wanted)
            return api_pb2.ListImagesResponse(images=[] if found is None else [found])
        programs = [_image(image) for image in self._pods.images.all()]
        pulled = [_artifact(artifact) for artifact in self._pods.artifacts.all()]
        return api_pb2.ListImagesResponse(images=[*programs, *pulled])

    async def ImageStatus(self, request: api_pb2.ImageStatusRequest) -> api_pb2.ImageStatusResponse:
        # Without an image the kubelet pulls, and PullImage says why it cannot.
        return api_pb2.ImageStatusResponse(image=self._image(request.image.image))

    def _image(self, reference: str) -> api_pb2.Image | None:
        try:
            return _image(self._pods.images.find(reference))
        except ImageUnknownError:
            artifact = self._pods.artifacts.find(reference)
            return None if artifact is None else _artifact(artifact)

    async def PullImage(self, request: api_pb2.PullImageRequest) -> api_pb2.PullImageResponse:
        try:
            program = self._pods.images.find(request.image.image)
        except ImageUnknownError:
            reference = Reference.parse(request.image.image)
            if reference is None or not can_be_reached(reference.host):
                raise
        else:
            return api_pb2.PullImageResponse(image_ref=program.id)
        artifacts = self._pods.artifacts
        try:
            pulled = await asyncio.to_thread(artifacts.pull, reference, _login(request.auth))
        except PullError as error:
            raise PullError(f"cannot pull {reference}: {error}") from error
        return api_pb2.PullImageResponse(image_ref=artifacts.keep(reference, pulled).id)

    async def RemoveImage(self, request: api_pb2.RemoveImageRequest) -> api_pb2.RemoveImageResponse:
        artifact = self._pods.artifacts.find(request.image.image)
        if artifact is not None:
            self._pods.remove_artifact(artifact)
        return api_pb2.RemoveImageResponse()  # those of the images file stay

    async def ImageFsInfo(self, request: api_pb2.ImageFsInfoRequest) -> api_pb2.ImageFsInfoResponse:
        usage = api_pb2.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=api_pb2.FilesystemIdentifier(mountpoint=self._root),
            used_bytes=api_pb2.UInt64Value(
                value=sum(artifact.size for artifact in self._pods.artifacts.all())
            ),
            inodes_used=api_pb2.UInt64Value(value=0),
        )
        return api_pb2.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


def _pod_phase(pod: Pod) -> int:
    phase: int = api_pb2.SANDBOX_READY if pod.state.ready else api_pb2.SANDBOX_NOTREADY
    return phase


def _pod_fields(pod: Pod) -> dict[str, Any]:
    return {
        "id": pod.id,
        "metadata": pod.config.metadata,
        "state": _pod_phase(pod),
        "created_at": pod.state.created_ns,
        "labels": pod.config.labels,
        "annotations": pod.config.annotations,
    }


def _container_fields(container: Container) -> dict[str, Any]:
    return {
        "id": container.id,
        "metadata": container.config.metadata,
        "image": api_pb2.ImageSpec(image=container.state.image),
        "image_ref": container.state.image_id,
        "image_id": container.state.image_id,
        "state": container.state.phase,
        "created_at": container.state.created_ns,
        "labels": container.config.labels,
        "annotations": container.config.annotations,
    }


def _selected(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _image(image: Image) -> api_pb2.Image:
    return api_pb2.Image(
        id=image.id,
        repo_tags=[image.name],
        repo_digests=[f"{image.name.split(':')[0]}@{image.id}"],
        size=1,
        uid=api_pb2.Int64Value(value=image.user),
        spec=api_pb2.ImageSpec(image=image.name),
        pinned=True,  # the kubelet must not collect it
    )


def _artifact(artifact: Artifact) -> api_pb2.Image:
    return api_pb2.Image(
        id=artifact.id,
        repo_tags=[name for name in artifact.names if "@" not in name],
        repo_digests=[name for name in artifact.names if "@" in name],
        size=artifact.size,
        spec=api_pb2.ImageSpec(image=artifact.id),
    )


def _login(auth: api_pb2.AuthConfig) -> Login | None:
    """From a pull secret; None where the kubelet has none for the registry."""
    user, password = auth.username, auth.password
    if auth.auth and not user:
        try:
            pair = base64.b64decode(auth.auth, validate=True).decode()
        except ValueError as error:
            raise PullError(f"`auth` of the pull secret is no base64: {error}") from error
        user, _, password = pair.partition(":")
    if auth.identity_token and not auth.registry_token and not password:
        raise PullError(
            "the pull secret has an identity token, which this runtime cannot use: give a user "
            "and a password"
        )
    login = Login(user, password, auth.registry_token)
    return None if login == Login() else login
