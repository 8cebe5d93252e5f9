"""Paths that clients of OpenAI's API or vLLM's may ask for and that this engine does not have.

SCOPE.md says why. Each is a 404 that names what there is instead.
"""

from collections.abc import Mapping

__all__ = ["BEYOND"]

_NO_DECODE = "this engine generates text: serve such a model with another engine"

BEYOND: Mapping[str, str] = {
    "/v1/embeddings": f"there are no embeddings: {_NO_DECODE}",
    "/v2/embed": f"there are no embeddings: {_NO_DECODE}",
    "/pooling": f"nothing is pooled: {_NO_DECODE}",
    "/classify": f"nothing is classified: {_NO_DECODE}",
    "/score": f"there are no scores: {_NO_DECODE}",
    "/v1/score": f"there are no scores: {_NO_DECODE}",
    "/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v1/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v2/rerank": f"nothing is ranked: {_NO_DECODE}",
    "/v1/moderations": f"nothing is classified: {_NO_DECODE}",
    "/v1/responses": "no state is kept between requests: send all messages to /v1/chat/completions",
    "/v1/conversations": "no state is kept between requests: use /v1/chat/completions",
    "/v1/assistants": "no state is kept between requests: use /v1/chat/completions",
    "/v1/threads": "no state is kept between requests: use /v1/chat/completions",
    "/v1/messages": "this is OpenAI's API: use /v1/chat/completions",
    "/v1/images/generations": "only text is made: use /v1/chat/completions",
    "/v1/images/edits": "only text is made: use /v1/chat/completions",
    "/v1/audio/speech": "only text is made: use /v1/chat/completions",
    "/v1/audio/transcriptions": "only text is read: use /v1/chat/completions",
    "/v1/audio/translations": "only text is read: use /v1/chat/completions",
    "/v1/realtime": "only text is read and made: stream /v1/chat/completions",
    "/v1/files": "nothing is stored: send prompts with their requests",
    "/v1/batches": "nothing is stored: send each request by itself",
    "/v1/fine_tuning/jobs": "nothing is trained here: serve the trained model as a fleet",
    "/v1/load_lora_adapter": "there are no adapters: merge it and serve the model as a fleet",
    "/v1/unload_lora_adapter": "there are no adapters: merge it and serve the model as a fleet",
}
"""What the 404 says, by path; any method."""
