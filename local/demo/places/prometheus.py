"""What the demo asks of the chart's own Prometheus."""

import time

import httpx

from local.demo.places.place import NAMESPACE, SYSTEM, Place


def _value(url: str, query: str) -> float | None:
    """One instant query; None when there is no sample."""
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=5, trust_env=False)
    answer.raise_for_status()
    found = answer.json()["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def _url(place: Place) -> str:
    return place.publish("argosy-prometheus", SYSTEM, 9090)


def wait_scraped(place: Place, fleet: str) -> None:
    """Until Prometheus has scraped every pod of the fleet once. TimeoutError after a minute."""
    url = _url(place)
    query = f'count(up{{fleet="{fleet}",namespace="{NAMESPACE}"}} == 1)'
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (_value(url, query) or 0) >= 4:  # 2 gateways, 1 prefill, 1 decode
            return
        time.sleep(0.5)
    raise TimeoutError(f"Prometheus does not scrape all pods of fleet {fleet}: see {url}/targets")


def operator_rss_mib(place: Place) -> float:
    """Largest resident size among the operator's replicas."""
    value = _value(_url(place), f'max(process_resident_memory_bytes{{namespace="{SYSTEM}"}})')
    if value is None:
        raise TimeoutError("Prometheus has no process_resident_memory_bytes of the operator")
    return value / 2**20
