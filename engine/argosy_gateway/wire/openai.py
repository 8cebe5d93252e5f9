"""The edge of the OpenAI protocol: requests in, error bodies out, and what an answer says.

`server` hands over the raw body of a completion or chat request and gets a `CompletionRequest`.
Only what the gateway itself needs is read. The engine judges everything else, and its answer passes
through unchanged, except for the model's name. Engines are not believed: any bytes of an answer
give a value.
"""

import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple, NoReturn

from argosy_gateway.errors import RequestError

__all__ = [
    "CHUNK_BYTES",
    "LONGEST_BYTES",
    "TRANSPORT",
    "CompletionRequest",
    "blames_client",
    "body_of",
    "check_question",
    "context_length",
    "error_body",
    "error_code",
    "form_models",
    "json_or_none",
    "list_names",
    "longest_share",
    "prefixes_of",
    "read_completion",
    "read_model",
    "rename_form_model",
    "rename_model",
    "request_id_of",
    "restore_model",
]

CHUNK_BYTES = 256
"""Text of one prefix, about 64 tokens of English text: four blocks of an engine's prefix cache."""
LONGEST_BYTES = 64 << 10
"""Later text is not looked at: about 16,000 tokens say enough about which pod has the prefix."""


def prefixes_of(text: bytes, adapter: str = "") -> tuple[int, ...]:
    """Return a chained hash for each 256 bytes of a prompt, up to `LONGEST_BYTES`. A LoRA adapter
    computes other KV of the same text, so it has other hashes.

    Two prompts have the first n hashes in common exactly if they have the first n · 256 bytes in
    common. They are hashes of text, not of tokens: a gateway has no tokenizer.

    The last, partial chunk is left out: it ends in the middle of what the next turn continues.
    """
    found: list[int] = []
    chain = blake2b(adapter.encode(), digest_size=8)
    for end in range(CHUNK_BYTES, min(len(text), LONGEST_BYTES) + 1, CHUNK_BYTES):
        chain.update(text[end - CHUNK_BYTES : end])
        found.append(int.from_bytes(chain.digest()))
    return tuple(found)


_MEMBER = rb'"model"\s*:\s*%b'


def rename_model(body: bytes, asked: str, name: str) -> bytes:
    """Return a client's body, a JSON object, that asks for `name` instead of the model `asked`.

    Keys are searched as bytes, as in `sse`: inside a JSON string every quote is escaped, so the
    bytes `"model":"…"` are a member of an object.
    """
    if asked == name:
        return body
    found = list(_member_of(asked).finditer(body))
    if len(found) == 1 and body.count(b'"model"') == 1 and json.detect_encoding(body) == "utf-8":
        return body[: found[0].start()] + b'"model":' + _quoted(name) + body[found[0].end() :]
    # Some tool has a member of this name, or the text is written in an unusual way.
    request = json.loads(body.decode(json.detect_encoding(body), "surrogatepass"))
    text = json.dumps({**request, "model": name}, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")


_FORM_MODEL = re.compile(rb'content-disposition:[^\r\n]*[; ]name="?model"?[ ;\r]', re.IGNORECASE)


def form_models(body: bytes, boundary: bytes) -> list[str]:
    """Return the values of a form's fields `model`."""
    parts = (part.partition(b"\r\n\r\n") for part in body.split(b"--" + boundary))
    return [
        value.removesuffix(b"\r\n").decode(errors="replace")
        for head, _, value in parts
        if _FORM_MODEL.search(head + b"\r")
    ]


def rename_form_model(body: bytes, boundary: bytes, name: str) -> bytes:
    """Return a form that asks for the model `name`."""
    parts = body.split(b"--" + boundary)
    for at, part in enumerate(parts):
        head, gap, _ = part.partition(b"\r\n\r\n")
        if gap and _FORM_MODEL.search(head + b"\r"):
            parts[at] = head + gap + name.encode() + b"\r\n"
    return (b"--" + boundary).join(parts)


def restore_model(data: bytes, own: str, asked: str) -> bytes:
    """Bytes of an answer, in whole events, with the name that the client asked for in place of the
    engine's own."""
    if asked == own or b'"model"' not in data:
        return data
    return _member_of(own).sub(lambda _: b'"model":' + _quoted(asked), data)


@lru_cache(maxsize=256)
def _member_of(name: str) -> re.Pattern[bytes]:
    """Compiled once: a fleet has few names, and an answer many events."""
    return re.compile(_MEMBER % re.escape(_quoted(name)))


@lru_cache(maxsize=256)
def _quoted(name: str) -> bytes:
    return json.dumps(name).encode()


def json_or_none(body: bytes) -> object:
    """The value that the body is; None if it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def context_length(body: bytes) -> int | None:
    """`max_model_len` of the first model of a list of models; None if it has none."""
    content = json_or_none(body)
    models = content.get("data") if isinstance(content, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    length = first.get("max_model_len") if isinstance(first, dict) else None
    return length if type(length) is int else None


def error_code(body: bytes) -> str | None:
    """`error.code` of an error in OpenAI's form; None if there is none."""
    code = _error_of(body).get("code")
    return code if isinstance(code, str) else None


def blames_client(body: bytes) -> bool:
    """Whether an error in OpenAI's form says that the request is wrong. vLLM and SGLang write the
    status that it would have had before the stream began."""
    error = _error_of(body)
    code = error.get("code")
    if type(code) is int:
        return 400 <= code < 500 and code not in (401, 408, 429)
    return error.get("type") == "invalid_request_error"


def _error_of(body: bytes) -> dict[str, object]:
    content = json_or_none(body)
    error = content.get("error") if isinstance(content, dict) else None
    return error if isinstance(error, dict) else {}


def longest_share(content: dict[str, object], sequences: int) -> float:
    """Of all tokens that the engine drew for its `sequences`, the share of the longest choice.

    By characters: an answer counts its tokens only together. Choices that `best_of` left out count
    as much as the others on average.
    """
    choices = content.get("choices")
    if sequences < 2 or not isinstance(choices, list) or not choices:
        return 1.0
    sizes = [_size_of_choice(choice) for choice in choices]
    drawn = max(sequences, len(sizes))
    if not any(sizes):
        return 1 / drawn
    return max(sizes) / sum(sizes) * len(sizes) / drawn


def _size_of_choice(choice: object) -> int:
    """Characters of a choice, those of its calls of tools included."""
    if not isinstance(choice, dict):
        return 0
    text, message = choice.get("text"), choice.get("message")
    if isinstance(text, str):
        return len(text)
    if not isinstance(message, dict):
        return 0
    parts = (message.get(name) for name in ("content", "reasoning", "tool_calls"))
    return sum(len(part if isinstance(part, str) else str(part)) for part in parts if part)


_PROMPT_LEVELS = 16
"""Deepest nesting of a prompt that is read. The API has three levels: a message's content, its
parts, and their text."""
_START_CHARS = 1024
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")

TRANSPORT = {
    "kv_transfer_params": "vLLM: where a prompt's KV is",
    "ec_transfer_params": "vLLM: the same of an encoder's output",
    "bootstrap_*": "SGLang: where a prompt's KV is, and in which room",
    "data_parallel_rank": "SGLang: which rank of an engine computes",
    "routed_dp_rank": "SGLang: the same",
    "disagg_prefill_dp_rank": "SGLang: which rank has a prompt's KV",
    "rid": "SGLang: the request's name inside the engine, which two must not share",
    "argosy_resume": "ours: what a stream has sent already that goes on at another engine",
}
"""Members of a body that name pods, KV or requests inside an engine, of every kind of engine.

The gateway alone writes them: from a client they would end an engine's process, read what other
clients wrote, or have a pod connect to an address of the client's choice. A client that writes one
is refused, because an answer without what it asked for would hide the mistake. Null asks for
nothing.
"""
_TRANSPORT = re.compile("|".join(name.replace("*", ".*") for name in TRANSPORT), re.DOTALL)
_CARRIER = "vllm_xargs"
"""Its members reach vLLM's transport as if they stood in the body."""


class CompletionRequest(NamedTuple):
    """One request in the form in which it is sent to an engine."""

    path: str
    """`/v1/completions` or `/v1/chat/completions`."""
    body: bytes
    """As the client sent it, but it names a model, and streams ask for the usage chunk. UTF-8 if it
    is a stream's."""
    model: str
    """The served name that the client asked for; the first one if it named none, as in vLLM."""
    stream: bool
    hide_usage: bool
    """The client did not ask for the usage chunk, but the gateway did: it is taken out."""
    prompt_chars: int
    """Characters of the prompt, from which its tokens are estimated. A token id counts as four."""
    sequences: int
    """Answers that the engine generates: for each prompt the larger one of `n` and `best_of`."""
    prompt_start: bytes
    """The first 1,024 characters of the prompt in UTF-8, of an adapter's request behind its name;
    see `RoutingRequest`."""
    adapter: str = ""
    """`model` if it is a LoRA adapter's name; "" if it is a name of the model itself."""
    cache_key: str | None = None
    """OpenAI's `prompt_cache_key`, of an adapter's request behind its name; None if the client gave
    none."""
    prefixes: tuple[int, ...] = ()
    """Hashes of the prompt's prefixes, if they were asked for; see `prefixes`."""
    seed: int | None = None
    """Drawn for a stream that has none, so that another engine can go on with it. Only engines of
    ours can, so only they get it: vLLM samples with a seed more slowly, and 0.32 on CPUs ends when
    it computes such a prompt in chunks."""
    request_id: str = ""
    """From the header `x-request-id`; filled in by `server`."""
    prompt_tokens: int = 0
    """Estimated from `prompt_chars` by `routing.estimates`; filled in by `server`."""
    slo_class: str = "default"
    """From the header `x-argosy-class`; filled in by `server`."""
    flow: str = ""
    """From the header `x-argosy-flow`; filled in by `server`."""
    received_at: float = 0.0
    """Event loop time of the request's first byte, in seconds; filled in by `server`."""


def body_of(error: RequestError) -> bytes:
    """The response body of a request that is answered here."""
    return error_body(error.message, type_=error.type, param=error.param, code=error.code)


def error_body(
    message: str, *, type_: str, param: str | None = None, code: str | None = None
) -> bytes:
    """`{"error": …}` as OpenAI's clients parse it."""
    return _dump({"error": {"message": message, "type": type_, "param": param, "code": code}})


def request_id_of(given: bytes | None) -> str:
    """The client's id if it is at most 128 of `[A-Za-z0-9._-]`, else a new one."""
    text = given.decode("latin-1") if given else ""
    return text if _REQUEST_ID.fullmatch(text) else secrets.token_hex(16)


def read_completion(
    path: str,
    body: bytes,
    *,
    served_names: Collection[str],
    adapters: Collection[str] = (),
    prefixes: bool = False,
) -> CompletionRequest:
    """Check a request and make the engine's form of it; with the hashes of the prompt's prefixes
    if asked for. Raises RequestError (400, 404)."""
    try:
        return _read(path, body, (*served_names, *adapters), adapters, prefixes)
    except RecursionError as error:
        raise RequestError(400, "The request body is nested too deeply.") from error


def check_question(body: bytes, *, served_names: Collection[str]) -> str | None:
    """The model that is asked for, after a check that the body is a JSON object and names a model
    of the fleet, or none: vLLM asks for none, and lm-eval sends none. Raises RequestError (400,
    404)."""
    try:
        asked = _decode(body, json.detect_encoding(body))
        return _model(asked, served_names) if _names_model(asked) else None
    except RecursionError as error:
        raise RequestError(400, "The request body is nested too deeply.") from error


def read_model(
    body: bytes, kind: bytes, boundary: bytes, *, served_names: Collection[str]
) -> str | None:
    """The model that a request of any path asks for; None if it names none. `kind` is its content
    type. What is JSON is checked as such whatever its type says, because an engine may read it all
    the same. Raises RequestError (400, 404)."""
    if not body:
        return None
    if b"json" in kind or not kind or json_or_none(body) is not None:
        return check_question(body, served_names=served_names)
    models = form_models(body, boundary) if boundary else []
    if len(models) > 1:
        raise RequestError(400, "The form has 'model' twice: write it once.", param="model")
    return _model({"model": models[0]}, served_names) if any(models) else None


def _read(
    path: str,
    body: bytes,
    names: Collection[str],
    adapters: Collection[str],
    prefixes: bool,
) -> CompletionRequest:
    encoding = json.detect_encoding(body)
    request = _decode(body, encoding)
    model = _model(request, names)
    adapter = model if model in adapters else ""
    stream = request.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError(400, "'stream' must be true or false.", param="stream")
    chat = path.endswith("chat/completions")
    prompts = _prompts(request, "messages" if chat else "prompt")
    hide_usage = stream and not _asks_for_usage(request)
    cache_key, before = request.get("prompt_cache_key"), f"{adapter} " if adapter else ""
    added: dict[str, object] = {} if _names_model(request) else {"model": model}
    if stream:
        added |= _stream_members(request, hide_usage=hide_usage)
    return CompletionRequest(
        path,
        _add_members(added, body, encoding, request, stream=stream),
        model=model,
        stream=stream,
        hide_usage=hide_usage,
        prompt_chars=sum(_text_chars(prompt) for prompt in prompts),
        sequences=_sequences(request, None if chat else prompts[0]),
        prompt_start=before.encode() + _start(prompts, _START_CHARS),
        prefixes=prefixes_of(_start(prompts, LONGEST_BYTES), adapter) if prefixes else (),
        adapter=adapter,
        cache_key=before + cache_key if isinstance(cache_key, str) else None,
        seed=secrets.randbits(31) if stream and request.get("seed") is None else None,
    )


def _names_model(request: Mapping[str, Any]) -> bool:
    return request.get("model") not in (None, "")


def _model(request: Mapping[str, Any], served_names: Collection[str]) -> str:
    if not _names_model(request):
        return next(iter(served_names))
    model = request["model"]
    if not isinstance(model, str):
        raise RequestError(
            400,
            f"'model' must be a string; this fleet serves {list_names(served_names)}.",
            param="model",
        )
    if model not in served_names:
        raise RequestError(
            404,
            f"The model '{model[:128]}' does not exist here; this fleet serves "
            f"{list_names(served_names)}.",
            param="model",
            code="model_not_found",
        )
    return model


def list_names(served_names: Collection[str]) -> str:
    """The names in a message."""
    return ", ".join(f"'{name}'" for name in served_names)


def _asks_for_usage(request: Mapping[str, Any]) -> bool:
    options = request.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RequestError(400, "'stream_options' must be an object.", param="stream_options")
    return options.get("include_usage") is True


def _stream_members(request: Mapping[str, Any], *, hide_usage: bool) -> dict[str, object]:
    """What a stream lacks: `include_usage`."""
    if not hide_usage:
        return {}
    options = request.get("stream_options") or {}
    # Without the usage of the end, the client is not to get that of each chunk either.
    kept = {name: v for name, v in options.items() if name != "continuous_usage_stats"}
    return {"stream_options": {**kept, "include_usage": True}}


def _add_members(
    added: dict[str, object], body: bytes, encoding: str, request: dict[str, Any], *, stream: bool
) -> bytes:
    """The body with these members; of a stream in UTF-8.

    Text is appended if possible: parsing long bodies and writing them again takes time.
    """
    if added.keys() & request.keys() or ((added or stream) and encoding != "utf-8"):
        return _dump({**request, **added})
    if not added:
        return body
    return body.rstrip(b" \t\r\n")[:-1] + b"," + _dump(added)[1:]


def _decode(body: bytes, encoding: str) -> dict[str, Any]:
    """A client's JSON object, without members that are the gateway's. Raises RequestError (400)."""
    try:
        request = _DECODER.decode(body.decode(encoding, "surrogatepass"))
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise RequestError(400, f"The request body is not JSON: {error}.") from error
    if not isinstance(request, dict):
        raise RequestError(400, "The request body must be a JSON object.")
    _refuse_transport(request)
    carried = request.get(_CARRIER)
    if isinstance(carried, dict):
        _refuse_transport(carried, _CARRIER)
    return request


def _refuse_transport(members: Mapping[str, Any], within: str = "") -> None:
    for name, value in members.items():
        if value is not None and _TRANSPORT.fullmatch(name):
            where = f"{within}.{name}" if within else name
            text = (
                f"'{where[:128]}' is written by the gateway, which chooses the pods: leave it out."
            )
            raise RequestError(400, text, param=within or name[:128])


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Of a name that is written twice, an engine might take the other value."""
    members = dict(pairs)
    if len(members) < len(pairs):
        left = Counter(name for name, _ in pairs) - Counter(members.keys())
        twice = next(iter(left))[:128]
        text = f"The request body has '{twice}' twice in one object: write it once."
        raise RequestError(400, text, param=twice)
    return members


def _not_finite(name: str) -> NoReturn:
    raise RequestError(400, f"{name} is not JSON; numbers must be finite.")


def _integer(digits: str) -> int:
    """Same as `int`, but in Python: other threads can run while a million token ids are read."""
    return int(digits)


# Made once: `json.loads` and `json.dumps` make one for each call that has options.
_DECODER = json.JSONDecoder(
    parse_constant=_not_finite, parse_int=_integer, object_pairs_hook=_members
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _dump(value: object) -> bytes:
    """JSON in UTF-8. Half a surrogate pair, which UTF-8 does not have, stays an escape."""
    return _ENCODER.encode(value).encode(errors="backslashreplace")


def _prompts(request: Mapping[str, Any], field_name: str) -> list[object]:
    """The prompt, or the contents of the messages."""
    prompt = request.get(field_name)
    if prompt is None:
        raise RequestError(400, f"'{field_name}' is required.", param=field_name)
    if field_name != "messages":
        return [prompt]
    if not isinstance(prompt, list) or not all(isinstance(message, dict) for message in prompt):
        raise RequestError(400, "'messages' must be a list of objects.", param="messages")
    return [message.get("content") for message in prompt]


def _sequences(request: Mapping[str, Any], prompt: object) -> int:
    """What is no number, or none that the engine takes, counts as 1."""
    each = 1
    for name in ("n", "best_of"):
        asked = request.get(name)
        if isinstance(asked, float) and asked.is_integer():  # the engine takes 2.0
            asked = int(asked)
        if type(asked) is int and asked > each:
            each = asked
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int | float):
        each *= len(prompt)
    return each


def _text_chars(value: object, levels: int = _PROMPT_LEVELS) -> int:
    if levels == 0:
        raise RecursionError  # at our own depth, not at Python's, which depends on the caller
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int | float):
        return 4
    if isinstance(value, dict):
        return _text_chars(value.get("text"), levels - 1)
    if isinstance(value, list):
        return sum(_text_chars(item, levels - 1) for item in value)
    return 0


def _start(prompts: list[object], chars: int) -> bytes:
    parts: list[str] = []
    length = 0
    for part in _parts(prompts):
        parts.append(part[:chars])
        length += len(parts[-1]) + 1
        if length > chars:
            break
    return " ".join(parts)[:chars].encode(errors="backslashreplace")


def _parts(value: object) -> Iterator[str]:
    """The texts of a prompt whose depth `_text_chars` has checked."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float):
        yield str(value)
    elif isinstance(value, dict):
        yield from _parts(value.get("text"))
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)
