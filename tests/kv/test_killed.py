"""Prefill and decode as processes, one of which is killed or stopped while they work together."""

import json
import signal
import threading

import httpx
import pytest

from tests.engine.processes import eventually, sim_engines

pytestmark = pytest.mark.slow

PROMPT = " ".join(f"word{i}" for i in range(1900))
"""Takes prefill a quarter of a second."""
ASK = {"model": "m", "prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
LEASES = "argosy_kv_leases_active"
USED = "vllm:kv_cache_usage_perc"


class Client(threading.Thread):
    """One request; `text` and `headers` when it has joined."""

    def __init__(self, decode, *prefills) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{decode.api}/v1/completions"
        self.sent = {"x-argosy-prefill": ",".join(f"127.0.0.1:{p.kv}" for p in prefills)}
        self.start()

    def run(self) -> None:
        answer = httpx.post(self.url, json=ASK, headers=self.sent, timeout=60, verify=False)
        assert answer.status_code == 200, answer.text
        self.text, self.headers = json.loads(answer.text)["choices"][0]["text"], answer.headers

    def answered(self):
        self.join(60)
        return self.text, self.headers


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_t33_the_other_prefill_engine_computes_what_a_killed_or_stopped_one_began(number):
    with sim_engines("prefill", "prefill", "decode") as (first, second, decode):
        client = Client(decode, first, second)
        eventually(lambda: first.metric(LEASES) == 1)
        first.process.send_signal(number)
        text, headers = client.answered()
        reason = "broken" if number is signal.SIGKILL else "timeout"
        assert headers["x-argosy-failed-prefills"] == f"127.0.0.1:{first.kv}={reason}"
        assert headers["x-argosy-prefill-pod"] == second.name
        assert len(text.split()) == 5
        eventually(lambda: second.metric(LEASES) == 0 and decode.metric(USED) == 0)
        assert Client(decode).answered()[0] == text  # by decode alone


def test_t34_a_killed_decode_engine_leaves_no_lease_and_no_block():
    with sim_engines("prefill", "decode") as (prefill, decode):
        url = f"http://127.0.0.1:{decode.api}/v1/completions"
        sent = {"x-argosy-prefill": f"127.0.0.1:{prefill.kv}"}

        def ask() -> None:
            with pytest.raises(httpx.TransportError):
                httpx.post(url, json=ASK, headers=sent, timeout=60, verify=False)

        asking = threading.Thread(target=ask)
        asking.start()
        eventually(lambda: prefill.metric(LEASES) == 1)
        decode.process.kill()
        eventually(lambda: prefill.metric(LEASES) == 0 and prefill.metric(USED) == 0)
        asking.join(60)
