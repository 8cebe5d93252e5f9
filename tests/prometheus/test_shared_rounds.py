"""One round of queries per interval serves all fleets, however many, and keeps them apart."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiohttp import web

from argosy_law.goals import Windows
from argosy_law.observe import FleetMetrics, Idle, Unknown, Value
from argosy_law.signals.samples import RECEIVED, RUNNING
from argosy_operator.adapters.prometheus import queries
from argosy_operator.adapters.prometheus.allowlist import Allowlist
from argosy_operator.adapters.prometheus.collect import Question
from argosy_operator.adapters.prometheus.metrics import PrometheusMetrics
from argosy_operator.adapters.prometheus.queries import Spans
from argosy_operator.adapters.prometheus.rounds import SPREAD_SHARE, SharedRounds
from argosy_operator.adapters.prometheus.server import LONGEST_GET
from argosy_operator.adapters.protocols import FleetPods
from argosy_operator.api.fields import FLEET_NAME
from argosy_operator.core.snapshot.objects import FleetKey
from tests.support.virtual import run

pytestmark = pytest.mark.slow

WINDOWS = Windows(scrape_s=1, rate_s=5, interval_s=15)
QUERIES = 4
"""Targets, gateways' samples, engines' samples, quantiles."""
NOW = 5000.0


def fleets(number: int) -> list[FleetKey]:
    return [(f"team-{n % 7}", f"fleet-{n}") for n in range(number)]


@dataclass
class Prometheus:
    """Answers every query with rows of all fleets that it has, and with `extra` ones."""

    fleets: list[FleetKey]
    extra: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Rows on top, by a word of the query."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and query of each request."""

    async def answer(self, request: web.Request) -> web.Response:
        form = parse_qs(await request.text())
        query = form["query"][0] if form else request.query["query"]
        self.asked.append((request.method, query))
        rows = [row for key in self.fleets for row in self.rows(query, key)]
        rows += [row for word, more in self.extra.items() if word in query for row in more]
        rows = [row for row in rows if matches(query, row["metric"])]
        if "vector(time())" in query:
            rows.append({"metric": {}, "value": [NOW, "5000"]})
        return web.json_response({"status": "success", "data": {"result": rows}})

    def rows(self, query: str, key: FleetKey) -> list[dict[str, Any]]:
        number = self.fleets.index(key) + 1
        if '"up"' in query:
            gateway = labels(key, role="gateway", pod="gateway")
            engine = labels(key, role="decode", pod="engine")
            return [{"metric": m, "value": [NOW, "1"]} for m in (gateway, engine)]
        if RECEIVED in query:
            grown = [[NOW - 15 + n, str(n * number)] for n in range(16)]
            name = labels(key, __name__=RECEIVED, outcome="accepted", role="gateway", pod="gateway")
            return [{"metric": name, "values": grown}]
        if RUNNING in query:
            return [running(key, "engine", number)]
        return []


def labels(key: FleetKey, **others: str) -> dict[str, str]:
    return {"namespace": key[0], "fleet": key[1], **others}


def running(key: FleetKey, pod: str, number: int) -> dict[str, Any]:
    name = labels(key, __name__=RUNNING, role="decode", pod=pod)
    return {"metric": name, "values": [[NOW - 1, str(number)], [NOW, str(number)]]}


def matches(query: str, metric: dict[str, str]) -> bool:
    """As Prometheus does: the two labels are matched apart."""
    matchers = [(name, re.search(f'{name}=~"([^"]*)"', query)) for name in ("namespace", "fleet")]
    return all(found and re.fullmatch(found[1], metric[name]) for name, found in matchers)


@asynccontextmanager
async def serving(prometheus: Prometheus, **options: Any) -> AsyncIterator[PrometheusMetrics]:
    app = web.Application()
    app.router.add_route("*", "/api/v1/query", prometheus.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    metrics = PrometheusMetrics(f"http://127.0.0.1:{port}", timeout_s=20.0, **options)
    try:
        yield metrics
    finally:
        metrics.close()
        await runner.cleanup()


async def ask_all(
    metrics: PrometheusMetrics, keys: list[FleetKey], windows: Windows = WINDOWS
) -> dict[FleetKey, FleetMetrics]:
    questions = [Question(key, windows) for key in keys]
    taken = await asyncio.gather(*(metrics.ask(metrics.url, q) for q in questions))
    return {key: one.metrics for key, one in zip(keys, taken, strict=True)}


@pytest.mark.parametrize("number", [1, 50])
async def test_a_round_is_four_queries_however_many_fleets(number: int) -> None:
    prometheus = Prometheus(fleets(number))
    async with serving(prometheus) as metrics:
        seen = await ask_all(metrics, prometheus.fleets)
        assert len(prometheus.asked) == QUERIES
        again = await ask_all(metrics, prometheus.fleets)  # within the interval
        assert len(prometheus.asked) == QUERIES
    assert again == seen
    for count, key in enumerate(prometheus.fleets, 1):
        arrivals, running_ = seen[key].arrivals, seen[key].role("decode").running
        assert isinstance(arrivals, Value)
        assert arrivals.value == pytest.approx(count), "each fleet takes its own part"
        assert isinstance(running_, Value)
        assert running_.value == count
        assert seen[key].at == NOW


async def test_a_fleet_with_far_too_many_series_leaves_only_itself_without_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("argosy_operator.adapters.prometheus.server.LARGEST_ANSWER", 200_000)
    prometheus = Prometheus(fleets(16))
    flood = prometheus.fleets[5]
    prometheus.extra[RUNNING] = [running(flood, f"engine-{n}", 1) for n in range(2000)]
    async with serving(prometheus) as metrics:
        seen = await ask_all(metrics, prometheus.fleets)
        assert [k for k, m in seen.items() if isinstance(m.arrivals, Unknown)] == [flood]
        splitting = len(prometheus.asked)
        windows = replace(WINDOWS, interval_s=0.2)  # rounds of their own, that follow quickly
        await ask_all(metrics, prometheus.fleets, windows)
        asked = len(prometheus.asked)
        await asyncio.sleep(0.25)
        seen = await ask_all(metrics, prometheus.fleets, windows)
        assert [k for k, m in seen.items() if isinstance(m.arrivals, Unknown)] == [flood]
    assert len(prometheus.asked) - asked < splitting, "the parts that fit are remembered"


@dataclass
class Limited(Prometheus):
    """Refuses queries for more than `most` namespaces, as Thanos and Mimir limit series."""

    most: int = 4
    status: int = 422
    queries: str = RUNNING
    """Only those with this word."""

    async def answer(self, request: web.Request) -> web.Response:
        form = parse_qs(await request.text())
        query = form["query"][0] if form else request.query["query"]
        names = re.search('fleet=~"([^"]*)"', query)
        if self.queries in query and names and names[1].count("|") >= self.most:
            error = {"status": "error", "errorType": "execution", "error": "too many series"}
            return web.json_response(error, status=self.status)
        return await super().answer(request)


@pytest.mark.parametrize("word", [RUNNING, "histogram_quantile"])
@pytest.mark.parametrize("status", [413, 414, 422])
async def test_a_server_that_limits_a_query_is_asked_for_fewer_fleets(
    status: int, word: str
) -> None:
    prometheus = Limited(fleets(16), status=status, queries=word)
    async with serving(prometheus) as metrics:
        seen = await ask_all(metrics, prometheus.fleets)
    assert all(isinstance(one.arrivals, Value) for one in seen.values())
    unknown = {one.ttft_p90_s.reason for one in seen.values() if one.ttft_p90_s != Idle(NOW)}
    assert unknown == {"NoSamples"}, "the server has no histograms"


async def test_a_users_address_gets_no_url_that_a_proxy_would_refuse() -> None:
    prometheus = Prometheus(fleets(300))
    async with serving(prometheus) as metrics:
        metrics.allowed = Allowlist.of([f"127.0.0.1/32:{str(metrics.url).rpartition(':')[2]}"])
        taken = await asyncio.gather(
            *(metrics.ask(f"{metrics.url}/", Question(key, WINDOWS)) for key in prometheus.fleets)
        )
    assert all(isinstance(one.metrics.arrivals, Value) for one in taken)
    assert max(len(query) for _, query in prometheus.asked) <= LONGEST_GET


def test_the_queries_for_one_fleet_always_fit_into_a_url() -> None:
    longest = ("n" * 63, "f" * FLEET_NAME.max_length)
    spans = Spans(*(1e6 + n for n in range(4)))
    for query in (
        queries.targets([longest]),
        queries.gateway_samples([longest], spans),
        queries.engine_samples([longest], spans),
        queries.quantiles([longest], spans),
    ):
        assert len(query) <= LONGEST_GET


async def test_engines_that_the_fleet_does_not_own_do_not_count() -> None:
    key = ("a", "x")
    stranger = labels(key, role="decode", pod="stranger")
    counting = labels(key, __name__=RECEIVED, outcome="accepted", role="decode", pod="engine")
    extra = {
        '"up"': [{"metric": stranger, "value": [NOW, "1"]}],
        RUNNING: [running(key, "stranger", 100)],
        RECEIVED: [{"metric": counting, "values": [[NOW - 1, "0"], [NOW, "900"]]}],
    }
    prometheus = Prometheus([key], extra)
    question = Question(key, WINDOWS, FleetPods(frozenset(), frozenset({"engine"})))
    async with serving(prometheus) as metrics:
        seen = (await metrics.ask(metrics.url, question)).metrics
    assert seen.role("decode").running == Value(1.0, NOW)
    assert isinstance(seen.arrivals, Value)
    assert seen.arrivals.value == pytest.approx(1.0), "an engine reports no arrivals"


async def test_a_fleet_created_anew_takes_no_metrics_of_the_one_before_it() -> None:
    key = ("a", "x")
    prometheus = Prometheus([key])
    before = Question(key, WINDOWS, FleetPods(engines=frozenset({"engine"})), uid="1")
    after = Question(key, WINDOWS, FleetPods(engines=frozenset()), uid="2")
    async with serving(prometheus) as metrics:
        first = (await metrics.ask(metrics.url, before)).metrics
        again = (await metrics.ask(metrics.url, before)).metrics
        anew = (await metrics.ask(metrics.url, after)).metrics
    assert first == again
    assert first.role("decode").pods_reporting == 1
    assert anew.role("decode").pods_reporting == 0
    assert isinstance(anew.arrivals, Unknown)


async def test_a_long_query_is_posted_and_never_to_an_address_of_a_user() -> None:
    prometheus = Prometheus(fleets(300))
    async with serving(prometheus) as metrics:
        await ask_all(metrics, prometheus.fleets)
        assert {method for method, _ in prometheus.asked} == {"POST"}
        await ask_all(metrics, prometheus.fleets[:1], replace(WINDOWS, rate_s=600))
        assert prometheus.asked[-1][0] == "GET"
        prometheus.asked.clear()
        url = f"{metrics.url}/"
        metrics.allowed = Allowlist.of([f"127.0.0.1/32:{url.rpartition(':')[2].strip('/')}"])
        for_all = [Question(key, WINDOWS) for key in prometheus.fleets]
        await asyncio.gather(*(metrics.ask(url, question) for question in for_all))
    assert {method for method, _ in prometheus.asked} == {"GET"}


async def test_a_server_that_is_silent_leaves_the_fleets_of_another_alone() -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    silent = await asyncio.start_server(never, "127.0.0.1", 0)
    number = silent.sockets[0].getsockname()[1]
    prometheus = Prometheus(fleets(5))
    async with serving(prometheus, allowed=Allowlist.of([f"127.0.0.1/32:{number}"])) as metrics:
        metrics.timeout_s = 2.0
        url = f"http://127.0.0.1:{number}"
        lost = [metrics.ask(url, Question(("b", f"{n}"), WINDOWS)) for n in range(20)]
        waiting = asyncio.gather(*lost)
        seen = await ask_all(metrics, prometheus.fleets)
        assert not waiting.done()
        assert all(isinstance(one.arrivals, Value) for one in seen.values())
        assert all(isinstance(one.metrics.arrivals, Unknown) for one in await waiting)
    silent.close()


INTERVAL_S = 15.0


class Rounds:
    """Fleets that ask whenever they are due, in virtual time, of a server that takes `takes_s`."""

    def __init__(self, takes_s: float = 0.5) -> None:
        self.begun: list[tuple[float, frozenset[FleetKey]]] = []
        self.ages: list[float] = []
        self.taken: Counter[FleetKey] = Counter()
        self.rounds = SharedRounds(INTERVAL_S, self.ask)
        self.takes_s = takes_s

    async def ask(self, keys: frozenset[FleetKey]) -> float:
        began = asyncio.get_running_loop().time()
        self.begun.append((began, keys))
        await asyncio.sleep(self.takes_s)
        return began

    async def fleet(self, key: FleetKey, born_s: float, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.sleep(born_s)
        while loop.time() - began < until_s:
            measured_at, next_at = await self.rounds.take(key)
            self.ages.append(loop.time() - measured_at - self.takes_s)
            self.taken[key] += 1
            await asyncio.sleep(max(0.0, next_at - loop.time()))


@pytest.mark.parametrize("number", [1, 2, 100])
def test_in_an_hour_there_is_one_round_an_interval_and_no_fleet_misses_one(number: int) -> None:
    async def main() -> Rounds:
        world = Rounds()
        hour = [world.fleet(key, n * 0.09, 3600) for n, key in enumerate(fleets(number))]
        await asyncio.gather(*hour)
        return world

    world = run(main())
    intervals = 3600 / INTERVAL_S
    start = 9  # at the start a round a second, while fleets appear
    assert intervals * 0.95 <= len(world.begun) <= intervals + 1 + min(number - 1, start)
    assert min(world.taken.values()) >= intervals * 0.9
    steady = world.ages[len(world.ages) // 10 :]
    assert max(steady) <= SPREAD_SHARE * INTERVAL_S + 0.1, "what a fleet reads is fresh"


def test_fleets_that_appear_together_share_a_round_and_those_that_leave_are_forgotten() -> None:
    async def main() -> Rounds:
        world = Rounds()
        stay, *others = fleets(41)
        leaving = [world.fleet(key, 20.0 + 0.01 * n, 60) for n, key in enumerate(others)]
        await asyncio.gather(world.fleet(stay, 0.0, 400), *leaving)
        return world

    world = run(main())
    at = world.begun[0][0]
    appearing = [keys for began, keys in world.begun if 20 <= began - at < 25]
    assert len(appearing) == 2, "the first of them, and a second later all others"
    assert len(appearing[-1]) == 41
    assert len(world.begun[-1][1]) == 1


def test_a_round_that_hangs_is_waited_for_and_not_repeated() -> None:
    async def main() -> Rounds:
        world = Rounds(takes_s=40.0)
        await asyncio.gather(*(world.fleet(key, 0.0, 200) for key in fleets(10)))
        return world

    world = run(main())
    gaps = [b[0] - a[0] for a, b in zip(world.begun, world.begun[1:], strict=False)]
    assert min(gaps) >= 40.0
