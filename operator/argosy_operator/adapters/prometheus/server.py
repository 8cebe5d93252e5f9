"""One Prometheus server over HTTP: instant queries with limits on time, size and address.

`rounds.py` keeps the servers and submits work to their threads; `collect.py` calls `ask` there.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import requests
from prometheus_api_client import PrometheusConnect
from urllib3.exceptions import ReadTimeoutError
from urllib3.util.retry import Retry

from argosy.urls import hide_credentials
from argosy_law.record import parse_json
from argosy_operator.adapters.prometheus.allowlist import (
    Allowlist,
    GuardedAdapter,
    NotAllowedError,
)

T = TypeVar("T")
Row = dict[str, Any]
"""One series of an answer: labels under `metric`, samples under `value` or `values`."""

LARGEST_ANSWER = 16 * 2**20
"""Bytes, uncompressed. Python needs about six times as much while it reads them, and the chart
gives the operator 512 MiB."""
WORKERS_PER_SERVER = 2
REFUSED_FOR_SIZE = (413, 414, 422)
"""HTTP status. 413 and 414: a proxy takes no query of this length. 422: the server could not
evaluate the query; Thanos, Mimir and Prometheus answer so above their limit of series or samples.
"""
_WANTS = (
    "; if it asks for a token or a tenant, set prometheus.tokenSecret or prometheus.headers in the "
    "values of the operator's chart"
)
_WANTED = dict.fromkeys((401, 403), _WANTS)
"""By HTTP status."""
LONGEST_ERROR = 200
"""Characters of Prometheus' own words that are passed on."""
LONGEST_GET = 2000
"""Characters of a query in an URL. Proxies in front of Prometheus often take 8 KiB, and quoting
makes a query up to three times as long."""


class NoAnswerError(Exception):
    """Prometheus gave nothing that can be used; `reason` begins with one word for machines."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class TooLargeError(NoAnswerError):
    """The query or its answer is larger than this module or the server allows: ask for fewer
    fleets at once."""


@dataclass(frozen=True)
class ServerAccess(requests.auth.AuthBase):  # type: ignore[misc]  # the library has no types
    """What the operator's own Prometheus asks for. It goes to no address out of a user's object.

    Files are read anew for every request, certificates for every connection: mounted ones rotate.
    """

    token_file: Path | None = None
    """With the bearer token."""
    ca_file: Path | None = None
    """Certificates of the authorities that are trusted, in place of the public ones."""
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_folder: Path | None = None
    """One file for each header, of its name: a mounted Secret."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.ca_file is not None:
            self.ca_file.stat()  # it is named in the error, which requests' own has no field for
        request.headers.update(self.headers)
        if self.headers_folder is not None:
            for file in self.headers_folder.iterdir():
                if file.is_file():  # the kubelet's `..data` is a folder
                    request.headers[file.name] = file.read_text().strip()
        if self.token_file is not None:
            request.headers["Authorization"] = f"Bearer {self.token_file.read_text().strip()}"
        return request


class Server(PrometheusConnect):  # type: ignore[misc]  # the library has no types
    """prometheus-api-client with time-outs and a limit on the size of answers.

    It does not retry (the next round is the retry), follow redirects, or use proxies from the
    environment.
    """

    def __init__(
        self, url: str, *, timeout_s: float, access: ServerAccess | None, allowed: Allowlist | None
    ) -> None:
        """`allowed`: what the address is checked against; None for the operator's own server."""
        session = requests.Session()
        session.trust_env = False
        session.auth = access
        if access is not None and access.ca_file is not None:
            session.verify = str(access.ca_file)
        super().__init__(url=url.rstrip("/"), retry=Retry(0), session=session)
        if allowed is not None:
            # For every address: requests sends to its own spelling of this one, without `/a/..`
            # and in IDNA, and would take an unguarded adapter where the prefix does not match.
            session.adapters.clear()
            for scheme in ("http://", "https://"):
                session.mount(scheme, GuardedAdapter(self.url, allowed))
        self.guarded = allowed is not None
        """The address comes from a user's object."""
        self.used_at = 0.0
        """Seconds on the monotonic clock."""
        self.timeout = (min(timeout_s, 2.0), timeout_s)
        self._workers = ThreadPoolExecutor(WORKERS_PER_SERVER, thread_name_prefix="prometheus")
        self._running = set[Future[Any]]()

    def submit(self, work: Callable[["Server"], T]) -> "Future[T]":
        """Run in one of the server's threads. Work whose caller has given up ends by itself."""
        future = self._workers.submit(work, self)
        self._running = {other for other in self._running if not other.done()} | {future}
        return future

    @property
    def busy(self) -> bool:
        return any(not future.done() for future in self._running)

    def end(self) -> None:
        """Close connections; threads end when the queries that they run have ended."""
        self._workers.shutdown(wait=False, cancel_futures=True)
        self.close()

    def ask(self, query: str, at: float | None = None) -> list[Row]:
        """Send an instant query at `at`, or at the server's own time. Blocking; raises
        NoAnswerError."""
        params = {"query": query} | ({} if at is None else {"time": f"{at:.3f}"})
        post = len(query) > LONGEST_GET
        if post and self.guarded:
            # A user's address gets no POST, so that it can change nothing there. A query for one
            # fleet always fits into an URL.
            raise TooLargeError(f"PrometheusQuery: longer than {LONGEST_GET} characters")
        try:
            with self._session.request(
                "POST" if post else "GET",
                f"{self.url}/api/v1/query",
                **{"data" if post else "params": params},
                timeout=self.timeout,
                allow_redirects=False,
                stream=True,
            ) as response:
                body = self._body(response)
        except Exception as error:  # requests' own, and urllib3's while the body is read
            where = hide_credentials(self.url)
            if _inner(error, requests.Timeout, ReadTimeoutError):
                raise NoAnswerError(f"PrometheusTimeout: {where} does not answer") from error
            raise NoAnswerError(f"PrometheusAway: {where}: {_describe(error)}") from error
        return _parse(response.status_code, body)

    def _body(self, response: requests.Response) -> bytes:
        """Read one byte more than the limit at most. The time-out is for the whole body: that of
        requests begins anew with each piece."""
        body, deadline = bytearray(), time.monotonic() + self.timeout[1]
        while len(body) <= LARGEST_ANSWER:
            piece = response.raw.read1(LARGEST_ANSWER + 1 - len(body), decode_content=True)
            if not piece:
                break
            body += piece
            if time.monotonic() > deadline:
                raise requests.Timeout("the answer takes too long")
        return bytes(body)


def _parse(status: int, body: bytes) -> list[Row]:
    """Return the rows of an answer. Only Prometheus' own words about an error are passed on: the
    address may come from a user's object, and what another server answers there is not for that
    user to read."""
    if len(body) > LARGEST_ANSWER:
        raise TooLargeError(f"PrometheusAnswer: more than {LARGEST_ANSWER} bytes")
    failed = TooLargeError if status in REFUSED_FOR_SIZE else NoAnswerError
    try:
        answer = parse_json(body)
        if answer["status"] == "error":
            words = str(answer["error"])[:LONGEST_ERROR]
            raise failed(f"PrometheusError: HTTP {status}: {words}")
        result = answer["data"]["result"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        word = "PrometheusAnswer" if status == 200 else "PrometheusError"
        raise failed(
            f"{word}: HTTP {status}, not Prometheus' JSON{_WANTED.get(status, '')}"
        ) from error
    if status != 200 or not isinstance(result, list):
        raise NoAnswerError(f"PrometheusError: HTTP {status}, no list of results")
    return result


def _describe(error: Exception) -> str:
    """Return the kind of a failure, or a sentence about what can be mended. The kinds inside differ
    from try to try."""
    inner = _inner(error, NotAllowedError, ssl.SSLCertVerificationError)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({inner.verify_message}): name its authority in "
            "prometheus.ca of the values of the operator's chart"
        )
    if inner is not None:
        return str(inner)
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return type(error).__name__


def _inner(error: Exception, *kinds: type[Exception]) -> BaseException | None:
    """Return the error of one of these kinds; the libraries wrap it in errors of their own."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, kinds):
        inner = inner.__context__
    return inner
