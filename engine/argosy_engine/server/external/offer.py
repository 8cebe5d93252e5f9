"""A prompt that a router has computed here for another engine: vLLM's `do_remote_decode`.

Takes a job to the engine through `PrefillPort` and waits until it is computed. Its KV is held under
a lease; the answer's `kv_transfer_params` say where, and a decode engine claims it with them.
"""

import asyncio

from starlette.types import Receive, Scope

from argosy_engine.config import EngineConfig
from argosy_engine.core.handover.fit import prompt_digest
from argosy_engine.core.handover.messages import (
    LeaseReady,
    Offer,
    PrefillEvent,
    PrefillPort,
    PrefillRefused,
    RemotePrefill,
)
from argosy_engine.core.limits import Refusal
from argosy_engine.core.request import NewRequest
from argosy_engine.errors import ClientGoneError, LeaseGoneError
from argosy_engine.server.openai.answer import TextFlow
from argosy_engine.server.openai.errors import ApiError, refused
from argosy_engine.server.openai.fragments import Fragments

__all__ = ["answer"]


async def answer(
    config: EngineConfig,
    prefill: PrefillPort,
    request: NewRequest,
    flow: TextFlow,
    fragments: Fragments,
    scope: Scope,
    receive: Receive,
) -> bytes:
    """The body for the router: where the prompt's KV is, and the first token's text.

    Raises ApiError, and ClientGoneError when the router closes its connection; then nothing is
    held.
    """
    job = RemotePrefill(
        request_id=request.request_id,
        attempt=request.attempt,
        token_ids=tuple(request.token_ids),
        sampling=request.sampling,
        lease_s=config.lease_s,
    )
    ticket, ready = await _compute(prefill, job, receive, flow.prompt_name)
    usage: dict[str, object] = {
        "prompt_tokens": ready.n_tokens,
        "completion_tokens": 1,
        "total_tokens": ready.n_tokens + 1,
    }
    params = _transfer_params(config, scope, ticket, ready)
    text = flow.first(ready.first_token)
    choice = fragments.choice(text, "length")
    return fragments.whole([choice], usage, kv_transfer_params=params)


async def _compute(
    prefill: PrefillPort, job: RemotePrefill, receive: Receive, prompt_name: str
) -> tuple[str, LeaseReady]:
    """The lease's ticket and what was computed, offered to who shows the ticket."""
    events: asyncio.Queue[PrefillEvent] = asyncio.Queue()
    aio = asyncio.get_running_loop()

    def on_event(event: PrefillEvent) -> None:
        aio.call_soon_threadsafe(events.put_nowait, event)

    ticket = prefill.submit_remote_prefill(job, on_event)
    gone = asyncio.create_task(_gone(receive))
    computed = asyncio.create_task(_computed(events, prompt_name))
    try:
        await asyncio.wait((gone, computed), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGoneError
        ready = computed.result()
        prefill.offer(Offer(ready=ready, prompt=prompt_digest(job.token_ids)))
    except LeaseGoneError as error:
        raise ApiError(503, f"the prompt is not held: {error}", "server_error") from error
    except BaseException:
        prefill.abort_remote_prefill(job.request_id, job.attempt)
        raise
    finally:
        gone.cancel()
        computed.cancel()
    return ticket, ready


def _transfer_params(
    config: EngineConfig, scope: Scope, ticket: str, ready: LeaseReady
) -> dict[str, object]:
    """vLLM's members, with what a router may look at, and our ticket.

    `remote_host` is the pod's address, or else the one on which the router called.
    """
    server = scope.get("server")
    called = server[0] if server else ""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": ready.key.engine_epoch,
        "remote_block_ids": list(range(ready.n_blocks)),
        "remote_host": config.pod_ip or called,
        "remote_port": config.kv_port,
        "remote_request_id": ready.key.request_id,
        "argosy_ticket": ticket,
    }


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _computed(events: "asyncio.Queue[PrefillEvent]", prompt_name: str) -> LeaseReady:
    while True:
        match await events.get():
            case LeaseReady() as ready:
                return ready
            case PrefillRefused(reason="failed", message=message):
                raise ApiError(500, message, "server_error", code="failed")
            case PrefillRefused(reason="queue_timeout" as code, message=message):
                raise ApiError(
                    503, message, "server_error", code=code, headers={"retry-after": "1"}
                )
            case PrefillRefused(reason=reason, message=message):
                refusal = Refusal(reason, message)  # type: ignore[arg-type]
                raise refused(refusal, prompt_name)
