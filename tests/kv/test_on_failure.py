"""`--kv-on-failure`: what a client gets when no prefill engine hands its prompt over."""

import socket
from dataclasses import replace

import pytest

from argosy_engine.core.handover.messages import FailedPrefill, PullFailed
from argosy_engine.core.handover.pulls import after_failure
from argosy_engine.core.step import StepOutput
from argosy_engine.transfer.wire import Kind
from tests.kv.nodes import BLOCK, node, until
from tests.kv.peers import liar

PROMPT = list(range(100, 100 + 4 * BLOCK))
BUSY = (Kind.REFUSED, {"reason": "queue_full", "message": "retry later"})


def nobody() -> str:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return f"127.0.0.1:{unused.getsockname()[1]}"


def failure(*failed, reason="", message="why"):
    named = tuple(FailedPrefill(f"10.0.0.{i}:8002", each) for i, each in enumerate(failed))
    return PullFailed(
        request_id="r", attempt=1, cause="refused", message=message, reason=reason, failed=named
    )


@pytest.mark.parametrize(
    ("failed", "served_by"),
    [
        pytest.param((), {"recompute", "colocated"}, id="all are left alone"),
        pytest.param(("connect",), {"recompute", "colocated"}, id="nobody is there"),
        pytest.param(("connect", "draining"), {"recompute", "colocated"}, id="the last one leaves"),
        pytest.param(("queue_full",), {"recompute"}, id="it is full"),
        pytest.param(("connect", "timeout"), {"recompute"}, id="one is there and slow"),
        pytest.param(("corrupt",), {"recompute"}, id="it lies"),
    ],
)
def test_decode_serves_alone_as_the_option_says(failed, served_by):
    modes = ("recompute", "fail", "colocated")
    served = {mode for mode in modes if after_failure(failure(*failed), mode) is None}
    assert served == served_by


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("10.0.0.1:8002: invalid: token ids", "token ids"),
        ("token ids", "token ids"),
    ],
)
def test_a_fault_of_the_client_is_told_without_the_engines_address(message, told):
    refusal = after_failure(failure("invalid", reason="invalid", message=message), "recompute")
    assert (refusal.code, refusal.message) == ("invalid", told)


async def test_t38_fail_answers_that_it_failed_and_names_each_candidate_with_its_reason():
    with node("decode", kv_on_failure="fail") as decode:
        async with liar(BUSY) as busy:
            gone = nobody()
            client = decode.ask(PROMPT, gone, busy.address)
            await until(lambda: client.end is not None)
    assert (client.ids, client.end, client.code) == ([], "error", "kv_transfer_failed")
    assert client.failed_prefills == ((gone, "connect"), (busy.address, "queue_full"))
    assert decode.metric("argosy_local_prefill_fallback_total") == 0
    assert decode.metric("argosy_kv_transfer_failures_total", cause="refused") == 1
    assert decode.scheduler.pool.used == 0


async def test_a_request_that_no_frame_holds_is_the_clients_fault_and_no_engine_is_asked():
    with node("prefill") as prefill, node("decode", kv_on_failure="fail") as decode:
        client = decode.ask(PROMPT, prefill.address, bad_words=((7,),) * 300_000)
        await until(lambda: client.end is not None)
        assert (client.end, client.code) == ("error", "invalid")
        assert "127.0.0.1" not in client.message
        assert client.failed_prefills == ((prefill.address, "invalid"),)
        again = decode.ask(PROMPT, prefill.address, name="r2")
        await until(lambda: again.end is not None)
        assert again.prefill_pod == "prefill-pod"


@pytest.mark.parametrize(
    ("code", "reason"),
    [("internal_error", "failed"), ("invalid", "invalid"), ("queue_timeout", "queue_timeout")],
)
async def test_only_an_error_of_a_prefill_engine_is_called_a_failure_of_it(code, reason):
    with node("prefill") as prefill, node("decode", kv_on_failure="fail") as decode:

        def execute(plan):
            names = [chunk.request_id for chunk in plan.chunks]
            excluded = frozenset(names) if code == "invalid" else frozenset()
            ids = [0 for chunk in plan.chunks if chunk.samples]
            return StepOutput(
                token_ids=ids, busy_s=0.0, failed=dict.fromkeys(names, "why"), excluded=excluded
            )

        if code == "queue_timeout":
            prefill.scheduler.limits = replace(prefill.scheduler.limits, max_num_seqs=0)
        prefill.runner.execute = execute
        client = decode.ask(PROMPT, prefill.address)
        if code == "queue_timeout":
            await until(lambda: prefill.scheduler.waiting)
            for sequence in prefill.scheduler.waiting:
                sequence.wait_deadline_s = 0.0
        await until(lambda: client.end is not None)
        assert client.failed_prefills == ((prefill.address, reason),)
