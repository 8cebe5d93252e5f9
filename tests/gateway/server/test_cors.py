"""Pages of other origins: which may read answers, and when their streams come."""

import httpx
import pytest

from tests.gateway.engines import Engine, front

APP, OTHER = "https://app.example", "https://other.example"
PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}


def client(f):
    return httpx.AsyncClient(base_url=f.url, timeout=10, verify=False)


def of_cors(answer):
    return {name: value for name, value in answer.headers.items() if "access-control" in name}


async def test_by_default_no_page_of_another_origin_may_read_answers():
    async with front(Engine("a")) as f, client(f) as c:
        assert of_cors(await c.post(PATH, json=CHAT, headers={"origin": APP})) == {}
        refused = await c.options(PATH, headers={"origin": APP, **ASKS})
        assert (refused.status_code, of_cors(refused)) == (405, {})


@pytest.mark.parametrize(("origins", "shown"), [((APP,), APP), ((OTHER, APP), APP), (("*",), "*")])
async def test_a_page_of_an_origin_that_is_named_may_ask_and_read(origins, shown):
    async with front(Engine("a"), cors_origins=origins) as f, client(f) as c:
        asked = await c.options(PATH, headers={"origin": APP, **ASKS})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == shown
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "authorization"
        for path, status in ((PATH, 200), ("/v1/nothing", 404)):  # an error is to be read, too
            answer = await c.post(path, json=CHAT, headers={"origin": APP})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] == shown
            assert (answer.headers.get("vary") == "origin") is (shown == APP)


async def test_a_page_of_another_origin_and_a_client_that_is_none_get_no_header():
    async with front(Engine("a"), cors_origins=(APP,)) as f, client(f) as c:
        for headers in ({"origin": OTHER}, {}):
            answer = await c.post(PATH, json=CHAT, headers=headers)
            assert (answer.status_code, of_cors(answer)) == (200, {})
