"""One engine process, from its options to its exit status.

Order: bind all ports (a port in use is a clear error) → admin answers → load the model → engine
thread, KV service → API answers → ready → SIGTERM → drain → everything closed, exit 0.
"""

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp

from argosy import descriptors, http_server
from argosy.descriptors import Listener
from argosy_engine.config import MOST_AUTO_TOKENS, EngineConfig, Role
from argosy_engine.core.batching import BATCHING
from argosy_engine.core.blocks import BlockPool, HostPool
from argosy_engine.core.capacity import POLICIES
from argosy_engine.core.handover.messages import TransferService
from argosy_engine.core.limits import Limits
from argosy_engine.core.preemption import Preemption
from argosy_engine.core.runner import Launcher, Runner
from argosy_engine.core.scheduler import Scheduler
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.errors import EngineError, LoadError
from argosy_engine.runtime.cpu import begin
from argosy_engine.runtime.loop import EngineLoop, Worker
from argosy_engine.runtime.machine import StartPhases, set_spinning
from argosy_engine.runtime.metrics import EngineMetrics, Readings
from argosy_engine.server.admin import Admin
from argosy_engine.server.deliveries import Deliveries
from argosy_engine.server.drain import Drain
from argosy_engine.server.openai.routes import OpenAiApi
from argosy_engine.server.role import Admission, EngineRole, RoleFile, role_at_start
from argosy_engine.text.grammar_process import GrammarProcess
from argosy_engine.transfer.callers import Certificates, Verifier
from argosy_engine.transfer.mounted_file import TokenFile

log = logging.getLogger(__name__)

_SWEEP_S = 1.0
_FLUSH_S = 5  # to send the last bytes of answers that are complete
KEEP_ALIVE_S = 75
"""How long a connection waits for its next request. Gateways close theirs earlier."""


OnLost = Callable[[EngineError], None]
"""Ends the process: a rank has died. Called on any thread."""


async def serve(config: EngineConfig, on_lost: OnLost) -> int:
    """Run until SIGTERM or SIGINT; 0 after a clean end. LoadError when it cannot start."""
    admin = Admin(pod_uid=config.pod_uid)
    admin.verifier = _verifier(config, admin)
    certificates = _certificates(config)
    role = role_at_start(config)
    phases = StartPhases()
    phases.end("process")
    with _bind(config.host, config.admin_port) as admin_sock, _bind(
        config.host, config.port
    ) as api_sock:  # fmt: skip
        admin_server, admin_task = await _start(admin.app(), admin_sock, http_server.PROBES)
        try:
            worker = Worker("engine")
            with _collector_off():
                loading = worker.call(lambda: _load(config, on_lost, phases))
                loaded = await asyncio.wrap_future(loading)
            made = _Made(*loaded, worker, phases)
            return await _run(config, admin, api_sock, made, role, certificates)
        finally:
            admin_server.should_exit = True
            await admin_task


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """Python's garbage collector is off within it, and later skips what exists at its end.

    torch makes some hundred thousand objects that stay. Going through them took a tenth of the
    start, and later stopped all streams each time. Garbage of the start stays, too; no tensor is
    among it.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _Made(NamedTuple):
    """What the start has made before the ports answer."""

    runner: Runner
    tokenizer: Tokenizer
    worker: Worker
    phases: StartPhases


async def _run(
    config: EngineConfig,
    admin: Admin,
    api_sock: Listener,
    made: _Made,
    role: EngineRole,
    certificates: Certificates | None,
) -> int:
    runner, tokenizer, worker, phases = made
    scheduler = _scheduler(config, runner)
    metrics = EngineMetrics(config, max_model_len=scheduler.max_model_len)
    loop = EngineLoop(
        scheduler=scheduler,
        runner=runner,
        metrics=metrics,
        deliver=Deliveries(asyncio.get_running_loop()).post,
        launcher=_launcher(config, runner),
    )
    loop.prefills_for_peers = role.now != "decode"
    loop.lease_s = config.lease_s
    kv = _kv_service(config, runner, loop, admin.verifier, certificates)
    trying = GrammarProcess(runner.grammars) if runner.grammars is not None else None
    api = OpenAiApi(config, loop, tokenizer, runner.sampling_defaults, role, trying)
    admission = Admission(lambda on: setattr(loop, "draining", not on))
    drain = _drain(config, api, loop, role, admission)
    metrics.bind(
        scheduler,
        runner.kv_layout(),
        runner.facts,
        _readings(loop),
    )
    loop.start(kv, worker)
    tls = certificates.server() if certificates else None
    most = _most_callers(config)
    server, task = await _start(api.app(admin.verifier), api_sock, most, tls)
    admin.loop, admin.metrics, admin.drain, admin.serving = loop, metrics, drain, True
    phases.end("ports")
    metrics.observe_start(phases)
    log.info("serving %s as %s on port %d", config.served_name, role.now, config.port)
    following = asyncio.create_task(_follow_role(config, role, admission, loop, drain))
    try:
        clean = await drain.quiet()
        log.info("ending: %s", "all streams and leases ended" if clean else "drain timed out")
    finally:
        following.cancel()
        await asyncio.to_thread(loop.stop)
        server.should_exit = True
        await task
        api.close()
        if trying is not None:
            await trying.close()
        if kv is not None:
            await asyncio.to_thread(kv.close)
        runner.close()
    return 0


def _readings(loop: EngineLoop) -> Readings:
    return Readings(
        leases=lambda: loop.leases.active,
        leases_expired=lambda: loop.leases.expired,
        draining=lambda: loop.draining,
    )


def _verifier(config: EngineConfig, admin: Admin) -> Verifier | None:
    """None without `--peers-file`; then PyJWT is not imported either."""
    if config.peers_file is None:
        return None
    module = importlib.import_module("argosy_engine.transfer.verifier")
    try:
        verifier: Verifier = module.Verifier(config.peers_file, on_refused=admin.count_refused)
    except EngineError as error:
        raise LoadError("BadArgument", f"--peers-file: {error}") from error
    return verifier


def _certificates(config: EngineConfig) -> Certificates | None:
    """None without `--tls-dir`; then cryptography is not imported either."""
    if config.tls_dir is None:
        return None
    module = importlib.import_module("argosy_engine.transfer.certificates")
    try:
        certificates: Certificates = module.Certificates(config.tls_dir)
    except EngineError as error:
        raise LoadError("BadArgument", f"--tls-dir: {error}") from error
    return certificates


def _drain(
    config: EngineConfig, api: OpenAiApi, loop: EngineLoop, role: EngineRole, admission: Admission
) -> Drain:
    """SIGTERM and SIGINT begin it."""
    drain = Drain(
        running=lambda: max(api.active, loop.unfinished),
        leases=lambda: loop.leases.active,
        switch=admission.drains,
        timeout_s=config.drain_timeout_s,
        role=lambda: role.now,
    )
    _on_signals(drain)
    return drain


async def _follow_role(
    config: EngineConfig, role: EngineRole, admission: Admission, loop: EngineLoop, drain: Drain
) -> None:
    if config.role_file is None:
        return

    def take(now: Role) -> None:
        loop.prefills_for_peers = now == "prefill"

    take(role.now)
    await RoleFile(
        Path(config.role_file), role, busy=drain.busy, close=admission.changes_role, take=take
    ).follow()


def _credential(config: EngineConfig) -> Callable[[], str] | None:
    """What this engine shows to prefill engines; None without `--token-file`."""
    if config.token_file is None:
        return None
    try:
        return TokenFile(config.token_file)
    except EngineError as error:
        raise LoadError("BadArgument", f"--token-file: {error}") from error


def _load(config: EngineConfig, on_lost: OnLost, phases: StartPhases) -> tuple[Runner, Tokenizer]:
    """Only the chosen runner's module is imported: a simulated engine never sees torch."""
    try:
        if config.load_format == "sim":
            module = importlib.import_module("argosy_engine.runtime.sim")
            loaded: tuple[Runner, Tokenizer] = module.load(config)
        else:
            loaded = _load_weights(config, on_lost)
        runner, tokenizer = loaded
        if slots := _host_slots(config, runner):
            runner.reserve_host(slots)
        phases.end("model")
        runner.warm_up()
        phases.end("warm_up")
    except ModuleNotFoundError as error:
        message = f"{error}: use the engine image, or pip install 'argosy[engine]'"
        raise LoadError("BadArgument", message) from error
    except MemoryError as error:
        message = f"no memory for the model: raise the limit or lower --kv-cache-tokens ({error})"
        raise LoadError("OutOfMemory", message) from error
    return runner, tokenizer


def _load_weights(config: EngineConfig, on_lost: OnLost) -> tuple[Runner, Tokenizer]:
    """The CPU's trial and the other ranks start beside the import of torch: all take seconds."""
    set_spinning()
    ranks = None
    if config.tensor_parallel_size > 1:
        processes = importlib.import_module("argosy_engine.runtime.torch.ranks.processes")
        config = processes.for_ranks(config)
        ranks = processes.Ranks(config.tensor_parallel_size, on_lost)
    begin(config)
    module = importlib.import_module("argosy_engine.runtime.torch.runner")
    loaded: tuple[Runner, Tokenizer] = module.load(config, ranks)
    return loaded


def _host_slots(config: EngineConfig, runner: Runner) -> int:
    """Blocks that `--swap-space` holds."""
    if config.preemption_mode == "recompute":
        return 0
    layout = runner.kv_layout()
    return int(config.swap_space * (1 << 30)) // (layout.block_bytes * layout.copies)


def _scheduler(config: EngineConfig, runner: Runner) -> Scheduler:
    layout, step_tokens = runner.kv_layout(), config.step_tokens(on_cpu=runner.on_cpu)
    return Scheduler(
        pool=BlockPool(num_blocks=layout.num_blocks, block_size=layout.block_size),
        limits=Limits(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=step_tokens or MOST_AUTO_TOKENS,
            auto_tokens=step_tokens is None,
            long_prefill_threshold=config.long_prefill_token_threshold,
            tpot_limit_s=(config.slo_tpot_ms or 0.0) / 1000,
            max_queue=config.max_queue,
            vocab_size=runner.vocab_size,
            pull_timeout_s=config.kv_timeout_s,
            on_pull_failure=config.kv_on_failure,
        ),
        policy=POLICIES[config.capacity_policy](),
        batching=BATCHING[config.batching],
        preemption=Preemption(config.preemption_mode, HostPool(_host_slots(config, runner))),
        eos=runner.eos_token_ids,
        max_model_len=runner.max_model_len,
    )


def _launcher(config: EngineConfig, runner: Runner) -> Launcher | None:
    """What launches steps ahead, if that is asked for. A simulated engine does only when told to:
    its times are those of a profile."""
    asked, simulated = config.async_scheduling, config.load_format == "sim"
    if asked and runner.launcher is None:
        raise LoadError(
            "BadArgument",
            "--async-scheduling: a step is launched ahead on a single GPU, and not for a model "
            "that transformers runs; leave the option out",
        )
    return None if asked is False or (asked is None and simulated) else runner.launcher


def _kv_service(
    config: EngineConfig,
    runner: Runner,
    loop: EngineLoop,
    verifier: Verifier | None,
    certificates: Certificates | None,
) -> TransferService | None:
    if config.role == "colocated":
        return None

    def authorize(credential: str) -> str | None:
        unproven = verifier.check(credential, "kv") if verifier is not None else None
        return None if unproven is None else unproven.message

    module = importlib.import_module("argosy_engine.transfer.service")
    service: TransferService = module.KvService(
        config=config,
        runner=runner,
        prefill=loop,
        post=loop.post,
        authorize=authorize,
        credential=_credential(config),
        server_ssl=certificates.server() if certificates else None,
        client_ssl=certificates.client if certificates else None,
    )
    try:
        service.start()
    except OSError as error:
        message = f"cannot listen on KV port {config.kv_port}: {error.strerror}; choose another"
        raise LoadError("BadArgument", message) from error
    return service


# ----------------------------------------------------------------- servers


async def _start(
    app: ASGIApp, sock: Listener, most: int, tls: ssl.SSLContext | None = None
) -> tuple[http_server.Server, asyncio.Task[None]]:
    """`most` connections of this port are open at a time."""
    guard = type("Guard", (_Guard,), {"listener": sock})
    bounds = http_server.Bounds(keep_alive_s=KEEP_ALIVE_S)
    config = http_server.server_config(
        app,
        guard,
        bounds,
        most,
        loop="none",
        log_level="warning",
        date_header=False,
        timeout_graceful_shutdown=_FLUSH_S,
    )
    config.load()
    config.ssl = tls  # uvicorn's own options read the files once; this context follows them
    server = http_server.Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    sweeper = asyncio.create_task(_sweep(server))
    task.add_done_callback(lambda _: sweeper.cancel())
    while not server.started:
        if task.done():
            task.result()
        await asyncio.sleep(0)
    return server, task


class _Guard(http_server.Guard):
    """A connection whose TLS handshake is over: from here on the server bounds it."""

    listener: Listener

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.listener.proven(transport.get_extra_info("socket").fileno())
        super().connection_made(transport)


async def _sweep(server: http_server.Server) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        server.check_time(asyncio.get_running_loop().time())


def _most_callers(config: EngineConfig) -> int:
    """Connections of the API port: as many again as may have a request here, for their next one."""
    return descriptors.share(1 / 3, most=2 * (config.max_queue + config.max_num_seqs) + 64)


@contextlib.contextmanager
def _bind(host: str, port: int) -> Iterator[Listener]:
    backlog = descriptors.share(1 / 16, most=2048)
    try:
        sock = Listener((host, port), most=http_server.PROBES, backlog=backlog)
    except OSError as error:
        message = f"cannot listen on {host} port {port}: {error.strerror}; choose another port"
        raise LoadError("BadArgument", message) from error
    # asyncio sets this only on sockets that name their protocol, which `create_server` does not.
    # Without it the first event after a TLS handshake waits 40 ms for the client's delayed ACK.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with sock:
        yield sock


def _on_signals(drain: Drain) -> None:
    aio = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        aio.add_signal_handler(number, drain.terminate)
