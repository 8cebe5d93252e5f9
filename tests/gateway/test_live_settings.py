"""The settings of a gateway that runs: taken from an object that changes, is wrong, or goes."""

import asyncio
import contextlib
import hashlib
import json

import pytest

from argosy_gateway.cli import parse
from argosy_gateway.config import Limits, Slo, SloClass
from argosy_gateway.options import KEY, Settings
from argosy_gateway.pods.credentials import ApiServer
from argosy_gateway.pods.watch import WatchTimes, follow_settings
from argosy_gateway.relay.verdicts import Ending, Outcome
from argosy_gateway.server.admin import admin_app, why_unready
from argosy_gateway.server.app import api_app
from tests.gateway.server.asked import asked, gateway_of

WORDS = ["--served-name", "m", "--slo-ttft-ms", "200", "--slo-tpot-ms", "50"]


def data(*words):
    return {KEY: json.dumps(words)}


def started(**settings):
    """A fleet whose gateway has read no settings yet."""
    gateway = gateway_of(served_names=(), settings_name="f-gateway", **settings)
    return gateway, Settings(gateway)


def sample(gateway, name, **labels):
    return gateway.metrics.registry.get_sample_value(name, labels)


def test_words_of_the_object_mean_what_they_mean_on_the_command_line():
    words = [
        *WORDS,
        *("--served-name", "n", "--strategy", "kvAware", "--max-queue", "7", "--queue", "deadline"),
        *("--queue-timeout-s", "2.5", "--wake-timeout-s", "60", "--first-token", "within-target"),
        *("--shed-ttft-factor", "1.5", "--max-body-bytes", "9000", "--drain-timeout-s", "90"),
        *("--drain-mode", "migrate", "--engine-max-num-seqs", "64", "--slo-class=batch:9000:200:5"),
    ]
    whole = ["run", "--fleet", "f", "--namespace", "n", "--port", "81"]
    gateway = gateway_of(served_names=())
    gateway.config = parse([*whole, "--settings", "f-gateway"])
    take = Settings(gateway)
    take(data(*words))
    by_flags = parse([*whole, *words])
    assert gateway.config.settings_name == "f-gateway"
    for name in by_flags.__dataclass_fields__:
        if name != "settings_name":
            assert getattr(gateway.config, name) == getattr(by_flags, name), name


def test_a_gateway_is_unready_and_answers_503_until_it_has_read_its_settings():
    gateway, take = started()
    assert why_unready(gateway) == "the settings were not read yet"
    take(data(*WORDS))
    assert why_unready(gateway) is None


async def test_a_request_waits_for_the_first_settings_of_a_process_that_has_just_begun():
    gateway, take = started()
    answer = asyncio.create_task(asked(api_app(gateway), "/v1/models/a"))
    await asyncio.sleep(0)
    assert not answer.done()
    take(data("--served-name", "a"))
    assert json.loads((await answer).body)["id"] == "a"


async def test_no_model_is_said_to_be_unknown_before_the_names_are_known():
    gateway, take = started(limits=Limits(settings_s=0.0))
    refused = await asked(api_app(gateway), "/v1/models")
    assert refused.status == 503
    assert json.loads(refused.body)["error"]["type"] == "server_error"
    take(data("--served-name", "a", "--served-name", "b"))
    models = json.loads((await asked(api_app(gateway), "/v1/models")).body)["data"]
    assert [model["id"] for model in models] == ["a", "b"]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"other": "[]"},
        {KEY: "{"},
        {KEY: '{"a": 1}'},
        {KEY: "[1]"},
        {KEY: "[" * 100_000},
        data(),
        data("--max-queue", "7"),
        data(*WORDS, "--max-queue", "none"),
        data(*WORDS, "--max-queue", "0"),
        data(*WORDS, "--strategy", "dice"),
        data("--served-name", "m", "--slo-ttft-ms", "200"),
        data("--served-name", "m", "--queue", "deadline"),
        data(*WORDS, "--max-queue"),
    ],
)
def test_settings_that_are_wrong_or_gone_leave_the_last_good_ones_and_a_metric_says_so(wrong):
    gateway, take = started()
    take(data(*WORDS))
    good = gateway.config
    assert sample(gateway, "argosy_gateway_settings_stale") == 0
    take(wrong)
    assert gateway.config == good
    assert sample(gateway, "argosy_gateway_settings_stale") == 1
    take(data(*WORDS, "--max-queue", "9"))
    assert gateway.config.max_queue == 9
    assert sample(gateway, "argosy_gateway_settings_stale") == 0


async def said(gateway):
    """What /load says of the settings; None if nothing."""
    answer = await asked(admin_app(gateway), "/load")
    return json.loads(answer.body).get("settings")


def digest(found):
    return hashlib.sha256(found[KEY].encode()).hexdigest()[:16]


async def test_load_says_why_settings_are_refused_until_usable_ones_come():
    gateway, take = started()
    good, wrong = data(*WORDS), data(*WORDS, "--max-queue", "0")
    take(good)
    take(wrong)
    why = "--max-queue must be at least 1"
    assert await said(gateway) == {"digest": digest(wrong), "refused": why}
    take(None)
    assert await said(gateway) == {"digest": "", "refused": "there is no ConfigMap f-gateway"}
    take({"other": "[]"})
    why = f"ConfigMap f-gateway has no {KEY}"
    assert await said(gateway) == {"digest": "", "refused": why}
    take(good)
    assert await said(gateway) == {"digest": digest(good), "refused": ""}


def test_a_word_of_a_newer_operator_is_skipped_and_the_others_count():
    gateway, take = started()
    take(data(*WORDS, "--new-thing", "5", "--max-queue", "7", "--newer=x"))
    assert (gateway.config.max_queue, gateway.config.served_names) == (7, ("m",))
    assert sample(gateway, "argosy_gateway_settings_stale") == 0


def test_settings_cannot_move_the_process_to_other_ports_or_another_fleet():
    gateway, take = started()
    take(data(*WORDS, "--port", "1", "--fleet", "other"))
    assert (gateway.config.port, gateway.config.fleet) == (8080, "f")


def test_a_new_slo_is_an_edge_of_the_histograms_and_counters_go_on():
    gateway, take = started()
    take(data(*WORDS))
    gateway.metrics.count_accepted("m")
    ended = Outcome(Ending.OK, received_at=0.0, ended_at=0.3, first_content_at=0.21)
    gateway.metrics.count_ended(ended, role_mode="colocated", usage=None)
    counted = "argosy_slo_requests_total"
    labels = {"role_mode": "colocated", "class": "default", "revision": "", "tpot": "ok"}
    assert sample(gateway, counted, ttft="miss", **labels) == 1
    take(data("--served-name", "m", "--slo-ttft-ms", "217", "--slo-tpot-ms", "50"))
    assert sample(gateway, "argosy_gateway_ttft_seconds_bucket", le="0.217") == 0
    gateway.metrics.count_accepted("m")
    gateway.metrics.count_ended(ended, role_mode="colocated", usage=None)
    assert sample(gateway, counted, ttft="miss", **labels) == 1
    assert sample(gateway, counted, ttft="ok", **labels) == 1
    assert sample(gateway, "argosy_gateway_ttft_seconds_bucket", le="0.217") == 1
    assert sample(gateway, "argosy_requests_received_total", outcome="accepted") == 2


def test_a_request_whose_class_went_is_judged_as_one_of_the_default_class():
    gateway, take = started()
    take(data(*WORDS, "--slo-class=batch:9000:200:5"))
    assert gateway.class_of("batch") == SloClass("batch", Slo(9.0, 0.2), 5)
    gateway.metrics.count_accepted("m")
    take(data(*WORDS))
    assert gateway.class_of("batch").name == "default"
    ended = Outcome(Ending.OK, received_at=0.0, ended_at=1.0, first_content_at=1.0)
    gateway.metrics.count_ended(ended, role_mode="colocated", usage=None, slo_class="batch")
    labels = {
        "role_mode": "colocated",
        "class": "default",
        "revision": "",
        "ttft": "miss",
        "tpot": "ok",
    }
    assert sample(gateway, "argosy_slo_requests_total", **labels) == 1


def test_strategy_queue_and_bounds_follow():
    gateway, take = started()
    take(data(*WORDS, "--strategy", "roundRobin"))
    first = gateway.strategy
    assert gateway.queue is None
    take(data(*WORDS, "--strategy", "kvAware", "--queue", "deadline", "--max-body-bytes", "99"))
    assert type(gateway.strategy) is not type(first)
    queue = gateway.queue
    assert queue is not None
    assert gateway.bodies.limits.body_bytes == 99
    take(data(*WORDS, "--strategy", "kvAware"))
    assert gateway.queue is None
    take(data(*WORDS, "--strategy", "kvAware", "--queue", "deadline"))
    assert gateway.queue is queue  # what it has learnt of the pods is kept


def test_a_strategy_that_did_not_change_keeps_what_it_has_learnt():
    gateway, take = started()
    take(data(*WORDS, "--strategy", "kvAware"))
    strategy = gateway.strategy
    take(data(*WORDS, "--strategy", "kvAware", "--max-queue", "7"))
    assert gateway.strategy is strategy


class Api:
    """An API server that gives each caller the next answer, and then the last one again."""

    def __init__(self, *answers):
        self.answers, self.targets = list(answers), []

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.targets.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode())
            status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()


def config_map(**found):
    return json.dumps({"kind": "ConfigMap", "data": found}).encode()


async def followed(*answers, enough):
    """What is taken until it is `enough`, and the paths that were asked for."""
    api, taken, done = Api(*answers), [], asyncio.Event()

    def take(found):
        taken.append(found)
        if len(taken) >= enough:
            done.set()

    async with await asyncio.start_server(api.serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        server = ApiServer("127.0.0.1", port)
        target = "/api/v1/namespaces/n/configmaps/f-gateway"
        following = asyncio.create_task(
            follow_settings(server, target, take, times=WatchTimes(answer_s=0.5), every_s=0.01)
        )
        async with asyncio.timeout(20):
            await done.wait()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    return taken, set(api.targets)


async def test_the_object_is_read_by_its_name_from_the_api_servers_cache():
    taken, targets = await followed((200, config_map(a="1")), enough=1)
    assert taken == [{"a": "1"}]
    assert targets == {"/api/v1/namespaces/n/configmaps/f-gateway?resourceVersion=0"}


async def test_an_object_that_changes_or_goes_is_taken_as_it_is():
    taken, _ = await followed(
        (200, config_map(a="1")), (200, config_map(a="2")), (404, b"{}"), enough=3
    )
    assert taken == [{"a": "1"}, {"a": "2"}, None]


@pytest.mark.parametrize(
    "trouble",
    [(500, b"x"), (403, b"{}"), (401, b"{}"), (200, b"{"), (200, b"[]"), (200, b'{"kind":"Pod"}')],
)
async def test_an_api_server_in_trouble_changes_nothing(trouble):
    taken, _ = await followed((200, config_map(a="1")), trouble, (200, config_map(a="2")), enough=2)
    assert taken == [{"a": "1"}, {"a": "2"}]
