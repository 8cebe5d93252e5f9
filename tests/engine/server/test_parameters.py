"""Each parameter of a request is honoured, refused by name, or known to change nothing."""

import pytest

from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.runtime.sim import SimTokenizer
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import REFUSED, WITHOUT_EFFECT
from argosy_engine.server.openai.request import parse_chat, parse_completion
from argosy_engine.text.byte_tokenizer import ByteTokenizer

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
KNOWN = {"served_name": "m", "max_model_len": 1000}
# What a client may write that wants the parameter; where it is left out: {"a": 1}.
WANTED = {
    "use_beam_search": True,
    "length_penalty": 1.5,
    "thinking_token_budget": 100,
    "guided_choice": ["yes", "no"],
    "suffix": "end",
    "include_reasoning": False,
    "verbosity": "low",
    "modalities": ["text", "audio"],
    "priority": 1,
}


class Tokenizer(SimTokenizer):
    """Remembers what it was asked."""

    def chat_text(self, messages, **options):
        self.asked = options
        return super().chat_text(messages)

    def encode(self, text, *, add_special_tokens=True):
        self.special = add_special_tokens
        return super().encode(text)


def completion(tokenizer=None, **more):
    body = {"model": "m", "prompt": "a b", **more}
    return parse_completion(body, tokenizer or SimTokenizer(), **KNOWN)


def chat(tokenizer=None, **more):
    return parse_chat({"model": "m", **CHAT, **more}, tokenizer or SimTokenizer(), **KNOWN)


@pytest.mark.parametrize("parse", [completion, chat])
@pytest.mark.parametrize("name", REFUSED)
def test_a_parameter_that_would_change_the_answer_is_refused_by_name(name, parse):
    with pytest.raises(ApiError) as refused:
        parse(**{name: WANTED.get(name, {"a": 1})})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert refused.value.message.startswith(f"{name}: ")
    assert refused.value.message.endswith(REFUSED[name].instead)


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_changes_nothing_is_taken(name):
    for value in (None, [], {}, *REFUSED[name].harmless):
        assert chat(**{name: value}).chat


@pytest.mark.parametrize("name", [*WITHOUT_EFFECT, "a_name_that_nobody_knows"])
def test_what_cannot_change_the_text_is_ignored(name):
    assert completion(seed=1, **{name: "x"}) == completion(seed=1)


def test_a_templates_arguments_reach_the_template():
    tokenizer = Tokenizer()
    chat(tokenizer, chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False)
    assert tokenizer.asked == {
        "add_generation_prompt": False,
        "continue_final_message": False,
        "arguments": {"enable_thinking": False},
        "tools": (),
    }


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, (True, False)),
        ({"continue_final_message": True}, (False, True)),
        ({"continue_final_message": True, "add_generation_prompt": False}, (False, True)),
        ({"continue_final_message": False, "add_generation_prompt": False}, (False, False)),
    ],
)
def test_the_prompt_ends_with_the_next_message_or_within_the_last(more, asked):
    tokenizer = Tokenizer()
    chat(tokenizer, **more)
    options = tokenizer.asked
    assert (options["add_generation_prompt"], options["continue_final_message"]) == asked


def test_the_models_own_defaults_hold_where_the_client_says_nothing():
    own = SamplingDefaults(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)
    body = {"model": "m", "prompt": "a"}
    taken = parse_completion(body, SimTokenizer(), **KNOWN, defaults=own).sampling
    assert (taken.temperature, taken.top_p, taken.top_k) == (0.6, 0.9, 20)
    assert taken.repetition_penalty == 1.1
    said = {"temperature": 0, "top_p": 1, "top_k": -1, "repetition_penalty": 1}
    taken = parse_chat({"model": "m", **CHAT, **said}, SimTokenizer(), **KNOWN, defaults=own)
    assert (taken.sampling.temperature, taken.sampling.top_p) == (0, 1)
    assert (taken.sampling.top_k, taken.sampling.repetition_penalty) == (0, 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", 0),
        ("repetition_penalty", "1"),
        ("skip_special_tokens", "no"),
        ("add_special_tokens", 1),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1 << 40]),
        ("stop_token_ids", list(range(1025))),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("min_p", 1.1),
        ("min_p", float("nan")),
        ("temperature", float("inf")),
        ("logit_bias", {"no": 1}),
        ("logit_bias", {"-1": 1}),
        ("logit_bias", {"32000": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {str(i): 1 for i in range(1025)}),
        ("allowed_token_ids", [32000]),
        ("allowed_token_ids", []),
        ("stop_token_ids", [32000]),
        ("prompt", [32000]),
        ("prompt[1]", ["a", [32000]]),
        ("top_p", 0),
        ("seed", 1 << 63),
        ("seed", -(1 << 63) - 1),
        ("seed", 1.5),
        ("max_completion_tokens", 1000),
        ("max_completion_tokens", 0),
        ("include_stop_str_in_output", "yes"),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 129),
        ("bad_words", ["x" * 1001]),
        ("logit_bias", {"00000000000065": 1}),
        ("max_tokens", False),
        ("stop", ["x"] * 65),
        ("cache_salt", ""),
        ("cache_salt", 5),
        ("cache_salt", "x" * 1025),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name, value):
    with pytest.raises(ApiError) as refused:
        completion(**{name.partition("[")[0]: value})
    assert refused.value.param == name
    assert refused.value.message.startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("parse", [completion, chat])
def test_an_answer_that_has_no_room_is_refused_in_the_clients_words(parse, name):
    with pytest.raises(ApiError) as refused:
        parse(**{name: 1000})
    assert (refused.value.param, refused.value.code) == (name, "context_length_exceeded")
    assert refused.value.message.endswith(f"or lower {name}")
    with pytest.raises(ApiError, match=f"min_tokens: must be at most {name}, 5"):
        parse(**{name: 5}, min_tokens=6)


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("messages", []),
        ("messages[1]", [USER, "hi"]),
        ("messages[1].role", [USER, {"content": "hi"}]),
        ("messages[1].content", [USER, {"role": "user"}]),
        ("messages[0].content", [{"role": "user", "content": 5}]),
        ("messages[0].content[0]", [{"role": "user", "content": ["hi"]}]),
        ("messages[1].content[0]", [USER, {"role": "user", "content": [{"type": "text"}]}]),
    ],
)
def test_what_is_wrong_in_a_message_is_named_with_its_place(path, messages):
    with pytest.raises(ApiError) as refused:
        chat(messages=messages)
    assert refused.value.param == path
    assert refused.value.message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    "options", [{"continuous_usage_stats": 1}, {"include_usage": "yes"}, ["include_usage"]]
)
def test_stream_options_are_honoured_or_refused(options):
    with pytest.raises(ApiError):
        chat(stream=True, stream_options=options)


def test_what_changes_the_logits_reaches_the_runner():
    taken = completion(
        presence_penalty=-2,
        frequency_penalty=2,
        min_p=0.25,
        logit_bias={"31999": -100, "0": 100},
        allowed_token_ids=[7, 5, 7],
    ).sampling
    assert (taken.presence_penalty, taken.frequency_penalty, taken.min_p) == (-2.0, 2.0, 0.25)
    assert taken.logit_bias == ((31999, -100.0), (0, 100.0))
    assert taken.allowed_token_ids == (7, 5)
    assert not taken.plain


def test_a_bad_word_is_forbidden_with_and_without_a_space_before_it():
    tokenizer = ByteTokenizer(256)
    taken = completion(tokenizer, bad_words=["no", " go"]).sampling.bad_words
    assert tuple(map(bytes, taken)) == (b"no", b" no", b"go", b" go")


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"bad_words": ["\u20ac" * 990 + str(i) for i in range(128)]}, "bad_words"),
        ({"allowed_token_ids": list(range(200_000))}, "allowed_token_ids"),
        (
            {"allowed_token_ids": list(range(160_000)), "bad_words": [c * 999 for c in "abcde"]},
            "allowed_token_ids",
        ),
    ],
)
@pytest.mark.parametrize("parse", [completion, chat])
def test_what_does_not_fit_into_a_handover_is_refused_by_its_largest_field(parse, asked, named):
    tokenizer = ByteTokenizer(1 << 20)
    with pytest.raises(ApiError) as refused:
        parse(tokenizer, **asked)
    assert (refused.value.status, refused.value.param) == (400, named)
