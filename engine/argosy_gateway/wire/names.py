"""Another name for the model in a body: what the engine takes, and what the client asked for.

Keys are searched as bytes, as in `sse`: inside a JSON string every quote is escaped, so the bytes
`"model":"…"` are a member of an object.
"""

import json
import re
from functools import lru_cache

__all__ = ["answered_as", "renamed"]

_MEMBER = rb'"model"\s*:\s*%b'


def renamed(body: bytes, asked: str, name: str) -> bytes:
    """A client's body, a JSON object that asks for the model `asked`, with `name` instead."""
    if asked == name:
        return body
    found = list(_own(asked).finditer(body))
    if len(found) == 1 and body.count(b'"model"') == 1 and json.detect_encoding(body) == "utf-8":
        return body[: found[0].start()] + b'"model":' + _quoted(name) + body[found[0].end() :]
    # Some tool has a member of this name, or the text is written in an unusual way.
    request = json.loads(body.decode(json.detect_encoding(body), "surrogatepass"))
    text = json.dumps({**request, "model": name}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


def answered_as(data: bytes, own: str, asked: str) -> bytes:
    """Bytes of an answer, in whole events, with the name that the client asked for in place of the
    engine's own."""
    if asked == own or b'"model"' not in data:
        return data
    return _own(own).sub(lambda _: b'"model":' + _quoted(asked), data)


@lru_cache(maxsize=256)
def _own(name: str) -> re.Pattern[bytes]:
    """Compiled once: a fleet has few names, and an answer many events."""
    return re.compile(_MEMBER % re.escape(_quoted(name)))


@lru_cache(maxsize=256)
def _quoted(name: str) -> bytes:
    return json.dumps(name).encode()
