"""What stands beside a choice's text: its echo, probabilities and token ids.

A request that asks for none of them costs nothing here: each method answers with a constant.
"""

import json
from collections.abc import Mapping, Sequence

from argosy_engine.core.sampling import Likely
from argosy_engine.core.tokenizer import Tokenizer
from argosy_engine.server.openai.asked.prompts import Prompt
from argosy_engine.server.openai.parse import Parsed
from argosy_engine.server.openai.reply.told import (
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)

__all__ = ["Rendering"]


class Rendering:
    """Of one choice."""

    def __init__(self, parsed: Parsed, prompt: Prompt, tokenizer: Tokenizer) -> None:
        self._form, self._chat = parsed.form, parsed.chat
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._offset = 0
        """Characters of the answer before the tokens that `logprobs_json` tells of next."""
        self.echo = ""
        """The prompt's text, if it is asked for."""
        if parsed.form.echo:
            text = prompt.text
            self.echo = tokenizer.decode(prompt.token_ids) if text is None else text

    def logprobs(
        self,
        ids: Sequence[int],
        likely: Sequence[Likely],
        prompt: Mapping[int, Likely] | None = None,
    ) -> object:
        """The member `logprobs`; with `prompt` the prompt's tokens stand before."""
        most = self._form.logprobs
        if most is None:
            return None
        if self._chat:
            return chat_logprobs(self._tokenizer, likely)
        tokens = list(zip(ids, likely, strict=True))
        if prompt is not None:
            before = enumerate(self._prompt.token_ids)
            tokens = [*((token, prompt.get(at, ())) for at, token in before), *tokens]
        told = completion_logprobs(self._tokenizer, tokens, most, self._offset)
        self._offset += sum(map(len, told["tokens"]))
        return told

    def logprobs_json(
        self,
        ids: Sequence[int],
        likely: Sequence[Likely],
        prompt: Mapping[int, Likely] | None = None,
    ) -> str:
        """The same for a chunk."""
        if self._form.logprobs is None:
            return "null"
        return json.dumps(self.logprobs(ids, likely, prompt))

    def members(self, ids: Sequence[int], told: Mapping[int, Likely]) -> dict[str, object]:
        """Further members of the choice of a whole answer."""
        form, members = self._form, dict[str, object]()
        if form.return_token_ids:
            members["token_ids"] = list(ids)
        if not self._chat:
            members |= self.of_the_prompt(told)
        return members

    def of_the_prompt(self, told: Mapping[int, Likely]) -> dict[str, object]:
        """What is told of the prompt: a completion has it in its choice, a chat beside them."""
        form, members = self._form, dict[str, object]()
        if form.return_token_ids:
            members["prompt_token_ids"] = self._prompt.token_ids
        if form.prompt_logprobs is not None:
            n_prompt, most = len(self._prompt.token_ids), form.prompt_logprobs
            members["prompt_logprobs"] = prompt_logprobs(self._tokenizer, n_prompt, told, most)
        return members

    def ids_json(self, ids: Sequence[int]) -> str:
        """Further members of a chunk's choice."""
        if not self._form.return_token_ids:
            return ""
        return f',"token_ids":{json.dumps(list(ids))}'

    def prompt_ids_of_a_chat(self) -> str:
        """Further members of a chat's first chunk."""
        return self._prompt_ids() if self._chat else ""

    def prompt_ids_of_a_completion(self) -> str:
        """Further members of the choice in a completion's first chunk."""
        return "" if self._chat else self._prompt_ids()

    def _prompt_ids(self) -> str:
        if not self._form.return_token_ids:
            return ""
        return f',"prompt_token_ids":{json.dumps(self._prompt.token_ids)}'
