"""The CRI over gRPC: each call of `runtime.v1` that the kubelet makes, mapped to `pods.py`.

Handlers are found by name: a method of `Service` called as the rpc is. A call without one answers
UNIMPLEMENTED. Errors of the domain become gRPC statuses in one place, `_guarded`.
"""

import contextlib
import logging
import time

import grpc

from local.cluster.cri import api_pb2 as api
from local.cluster.cri.fork.spawner import SpawnError
from local.cluster.cri.images import Image, ImageUnknownError
from local.cluster.cri.pods import Container, NotFoundError, Pod, Pods, RefusedError

_log = logging.getLogger("cri")

_CODES = {
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ImageUnknownError: grpc.StatusCode.NOT_FOUND,
    RefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    ValueError: grpc.StatusCode.INVALID_ARGUMENT,
    SpawnError: grpc.StatusCode.UNKNOWN,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    OSError: grpc.StatusCode.INTERNAL,
}


def handlers(service: object) -> list[grpc.GenericRpcHandler]:
    """gRPC handlers for every rpc that `service` has a method for."""
    found = []
    for descriptor in api.DESCRIPTOR.services_by_name.values():
        methods = {
            rpc.name: grpc.unary_unary_rpc_method_handler(
                _guarded(getattr(service, rpc.name)),
                request_deserializer=getattr(api, rpc.input_type.name).FromString,
                response_serializer=getattr(api, rpc.output_type.name).SerializeToString,
            )
            for rpc in descriptor.methods
            if hasattr(service, rpc.name)
        }
        found.append(grpc.method_handlers_generic_handler(descriptor.full_name, methods))
    return found


def _guarded(method):
    async def call(request, context):
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

    async def Version(self, request):
        return api.VersionResponse(
            version="0.1.0",
            runtime_name="local-processes",
            runtime_version="0.1.0",
            runtime_api_version="v1",
        )

    async def Status(self, request):
        conditions = [
            api.RuntimeCondition(type=kind, status=True)
            for kind in ("RuntimeReady", "NetworkReady")
        ]
        return api.StatusResponse(
            status=api.RuntimeStatus(conditions=conditions),
            runtime_handlers=[api.RuntimeHandler(name="")],
        )

    async def RuntimeConfig(self, request):
        return api.RuntimeConfigResponse(
            linux=api.LinuxRuntimeConfiguration(cgroup_driver=api.CGROUPFS)
        )

    async def UpdateRuntimeConfig(self, request):
        return api.UpdateRuntimeConfigResponse()

    # ---- pods

    async def RunPodSandbox(self, request):
        return api.RunPodSandboxResponse(pod_sandbox_id=await self._pods.run_pod(request.config))

    async def StopPodSandbox(self, request):
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.stop_pod(request.pod_sandbox_id)
        return api.StopPodSandboxResponse()

    async def RemovePodSandbox(self, request):
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.remove_pod(request.pod_sandbox_id)
        return api.RemovePodSandboxResponse()

    async def PodSandboxStatus(self, request):
        pod = self._pods.pod(request.pod_sandbox_id)
        namespaces = pod.config.linux.security_context.namespace_options
        status = api.PodSandboxStatus(
            network=api.PodSandboxNetworkStatus(ip=pod.state.address),
            linux=api.LinuxPodSandboxStatus(namespaces=api.Namespace(options=namespaces)),
            **_pod_fields(pod),
        )
        return api.PodSandboxStatusResponse(status=status)

    async def ListPodSandbox(self, request):
        wanted = request.filter
        items = [
            api.PodSandbox(**_pod_fields(pod))
            for pod in self._pods.pods.values()
            if (not wanted.id or pod.id.startswith(wanted.id))
            and (not wanted.HasField("state") or _pod_phase(pod) == wanted.state.state)
            and _selected(wanted.label_selector, pod.config.labels)
        ]
        return api.ListPodSandboxResponse(items=items)

    # ---- containers

    async def CreateContainer(self, request):
        key = self._pods.create_container(request.pod_sandbox_id, request.config)
        return api.CreateContainerResponse(container_id=key)

    async def StartContainer(self, request):
        await self._pods.start_container(request.container_id)
        return api.StartContainerResponse()

    async def StopContainer(self, request):
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.stop_container(request.container_id, grace_s=request.timeout)
        return api.StopContainerResponse()

    async def RemoveContainer(self, request):
        with contextlib.suppress(NotFoundError):  # the CRI asks for success
            await self._pods.remove_container(request.container_id)
        return api.RemoveContainerResponse()

    async def ListContainers(self, request):
        wanted = request.filter
        found = [
            api.Container(pod_sandbox_id=container.state.sandbox, **_container_fields(container))
            for container in self._pods.containers.values()
            if (not wanted.id or container.id.startswith(wanted.id))
            and (not wanted.HasField("state") or container.state.phase == wanted.state.state)
            and container.state.sandbox.startswith(wanted.pod_sandbox_id)
            and _selected(wanted.label_selector, container.config.labels)
        ]
        return api.ListContainersResponse(containers=found)

    async def ContainerStatus(self, request):
        container = self._pods.container(request.container_id)
        state, config = container.state, container.config
        pod = self._pods.pods.get(state.sandbox)
        log_path = f"{pod.config.log_directory.rstrip('/')}/{config.log_path}" if pod else ""
        user = api.LinuxContainerUser(
            uid=state.uid, gid=state.gid, supplemental_groups=state.groups
        )
        status = api.ContainerStatus(
            started_at=state.started_ns,
            finished_at=state.finished_ns,
            exit_code=state.exit_code,
            reason=state.reason,
            message=state.message,
            mounts=config.mounts,
            log_path=log_path,
            user=api.ContainerUser(linux=user),
            stop_signal=config.stop_signal,
            **_container_fields(container),
        )
        return api.ContainerStatusResponse(status=status)

    async def UpdateContainerResources(self, request):
        return api.UpdateContainerResourcesResponse()  # limits are not enforced

    async def UpdatePodSandboxResources(self, request):
        return api.UpdatePodSandboxResourcesResponse()

    async def ReopenContainerLog(self, request):
        self._pods.reopen_log(request.container_id)
        return api.ReopenContainerLogResponse()

    async def ExecSync(self, request):
        try:
            code, output, errors = await self._pods.exec(
                request.container_id, list(request.cmd), timeout_s=request.timeout or None
            )
        except TimeoutError:
            raise TimeoutError(
                f"command {' '.join(request.cmd)!r} timed out after {request.timeout} s"
            ) from None
        return api.ExecSyncResponse(stdout=output, stderr=errors, exit_code=code)

    # ---- statistics: nothing is measured per container

    async def ListContainerStats(self, request):
        return api.ListContainerStatsResponse()

    async def ListPodSandboxStats(self, request):
        return api.ListPodSandboxStatsResponse()

    # ---- images

    async def ListImages(self, request):
        wanted = request.filter.image.image
        if wanted:
            try:
                return api.ListImagesResponse(images=[_image(self._pods.images.find(wanted))])
            except ImageUnknownError:
                return api.ListImagesResponse()
        return api.ListImagesResponse(images=[_image(i) for i in self._pods.images.all()])

    async def ImageStatus(self, request):
        try:
            return api.ImageStatusResponse(
                image=_image(self._pods.images.find(request.image.image))
            )
        except ImageUnknownError:
            return api.ImageStatusResponse()  # the kubelet pulls, and PullImage says why not

    async def PullImage(self, request):
        return api.PullImageResponse(image_ref=self._pods.images.find(request.image.image).id)

    async def RemoveImage(self, request):
        return api.RemoveImageResponse()

    async def ImageFsInfo(self, request):
        usage = api.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=api.FilesystemIdentifier(mountpoint=self._root),
            used_bytes=api.UInt64Value(value=0),
            inodes_used=api.UInt64Value(value=0),
        )
        return api.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


def _pod_phase(pod: Pod) -> int:
    return api.SANDBOX_READY if pod.state.ready else api.SANDBOX_NOTREADY


def _pod_fields(pod: Pod) -> dict:
    return {
        "id": pod.id,
        "metadata": pod.config.metadata,
        "state": _pod_phase(pod),
        "created_at": pod.state.created_ns,
        "labels": pod.config.labels,
        "annotations": pod.config.annotations,
    }


def _container_fields(container: Container) -> dict:
    return {
        "id": container.id,
        "metadata": container.config.metadata,
        "image": api.ImageSpec(image=container.state.image),
        "image_ref": container.state.image_id,
        "image_id": container.state.image_id,
        "state": container.state.phase,
        "created_at": container.state.created_ns,
        "labels": container.config.labels,
        "annotations": container.config.annotations,
    }


def _selected(selector, labels) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


def _image(image: Image) -> api.Image:
    return api.Image(
        id=image.id,
        repo_tags=[image.name],
        repo_digests=[f"{image.name.split(':')[0]}@{image.id}"],
        size=1,
        uid=api.Int64Value(value=image.user),
        spec=api.ImageSpec(image=image.name),
        pinned=True,  # there is nothing to collect
    )
