"""Each parameter of a request is honoured, refused by name, or known to change nothing."""

import inspect

import openai
import pytest

from argosy_engine.core.sampling import SamplingDefaults
from argosy_engine.runtime.sim import SimTokenizer
from argosy_engine.server.openai.errors import ApiError
from argosy_engine.server.openai.parameters import HONOURED, REFUSED, WITHOUT_EFFECT
from argosy_engine.server.openai.request import parse_chat, parse_completion
from argosy_engine.text.byte_tokenizer import ByteTokenizer
from argosy_engine.transfer.wire import Kind, encode_control

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


def test_no_parameter_stands_in_two_lists():
    assert len({*HONOURED, *REFUSED, *WITHOUT_EFFECT}) == sum(
        map(len, (HONOURED, REFUSED, WITHOUT_EFFECT))
    )


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
    ("more", "arguments"),
    [
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "max", "enable_thinking": False},
        ),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "low"}},
            {"reasoning_effort": "high", "enable_thinking": True},
        ),
        ({"reasoning_effort": None}, {}),
    ],
)
def test_the_effort_of_reasoning_reaches_the_template(more, arguments):
    tokenizer = Tokenizer()
    chat(tokenizer, **more)
    assert tokenizer.asked["arguments"] == arguments


@pytest.mark.parametrize("effort", ["much", 5, ["low"], {}, True])
def test_an_effort_of_reasoning_that_there_is_not_is_refused(effort):
    with pytest.raises(ApiError) as refused:
        chat(reasoning_effort=effort)
    assert refused.value.param == "reasoning_effort"


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


def test_a_prompt_cannot_end_with_the_next_message_and_within_the_last():
    with pytest.raises(ApiError) as refused:
        chat(continue_final_message=True, add_generation_prompt=True)
    assert refused.value.param == "continue_final_message"


@pytest.mark.parametrize(
    "calls",
    [
        {},
        "weather",
        ["weather"],
        [{"id": "a"}],
        [{"function": "weather"}],
        [{"function": {"arguments": "{}"}}],
        [{"type": "custom", "custom": {"name": "a", "input": "b"}}],
    ],
)
def test_a_call_in_a_message_that_calls_no_function_is_refused(calls):
    with pytest.raises(ApiError) as refused:
        chat(messages=[*CHAT["messages"], {"role": "assistant", "tool_calls": calls}])
    assert refused.value.param.startswith("messages[1].tool_calls")
    assert "tool_calls" in refused.value.message


@pytest.mark.parametrize("tokenizer", [SimTokenizer(), ByteTokenizer(256)])
def test_a_message_as_the_openai_package_dumps_it_is_taken(tokenizer):
    nothing = {"refusal": None, "annotations": [], "audio": None, "function_call": None}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": "'}}
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "b", "tool_calls": None, **nothing},
        {"role": "assistant", "content": None, "tool_calls": [call], **nothing},
        {"role": "tool", "tool_call_id": "a", "content": "c"},
    ]
    assert chat(tokenizer, messages=messages).chat
    assert "Hello\nthere" in tokenizer.chat_text(messages)


@pytest.mark.parametrize("arguments", [{"messages": []}, {"bos_token": "x"}, ["a"], "thinking"])
def test_a_templates_arguments_replace_nothing_of_the_servers(arguments):
    with pytest.raises(ApiError) as refused:
        chat(chat_template_kwargs=arguments)
    assert refused.value.param == "chat_template_kwargs"


def test_special_tokens_are_added_and_shown_as_the_client_says():
    tokenizer = Tokenizer()
    assert completion(tokenizer).skip_special_tokens
    assert tokenizer.special
    assert not completion(tokenizer, skip_special_tokens=False).skip_special_tokens
    completion(tokenizer, add_special_tokens=False)
    assert not tokenizer.special
    chat(tokenizer)
    assert not tokenizer.special
    chat(tokenizer, add_special_tokens=True)
    assert tokenizer.special


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2),
        ("max_completion_tokens", 2),
        ("min_tokens", 1),
        ("top_k", 5),
        ("seed", 7),
        ("n", 2),
        ("logprobs", 1),
        ("truncate_prompt_tokens", 1),
        ("stop_token_ids", [5, 7]),
        ("allowed_token_ids", [5, 7]),
        ("prompt", [5, 7]),
    ],
)
def test_a_whole_number_may_be_written_with_a_point(name, value):
    pointed = [float(each) for each in value] if isinstance(value, list) else float(value)
    assert completion(**{"seed": 1, name: pointed}) == completion(**{"seed": 1, name: value})


def test_no_output_beside_an_echo_may_be_written_with_a_point():
    assert completion(echo=True, max_tokens=0.0).form.without_output


def test_a_seed_of_64_bits_and_as_many_stops_as_are_allowed_are_taken():
    assert completion(seed=(1 << 63) - 1).sampling.seed == (1 << 63) - 1
    assert completion(seed=-(1 << 63)).sampling.seed >= 0
    assert len(completion(stop=[f"stop {at}" for at in range(64)]).stops) == 64


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


@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats"])
def test_a_wrong_stream_option_is_named_with_the_object_that_it_is_in(name):
    with pytest.raises(ApiError) as refused:
        chat(stream=True, stream_options={name: "yes"})
    assert refused.value.param == f"stream_options.{name}"


OPENAI = [openai.resources.chat.Completions.create, openai.resources.Completions.create]
OF_THE_PACKAGE = {"self", "timeout", "extra_body", "extra_headers", "extra_query"}


@pytest.mark.parametrize("create", OPENAI)
def test_each_parameter_of_the_openai_package_stands_in_a_list(create):
    asked = {*inspect.signature(create).parameters} - OF_THE_PACKAGE
    assert asked - {*HONOURED, *REFUSED, *WITHOUT_EFFECT} == set()


@pytest.mark.parametrize(
    "options", [{"continuous_usage_stats": 1}, {"include_usage": "yes"}, ["include_usage"]]
)
def test_stream_options_are_honoured_or_refused(options):
    with pytest.raises(ApiError):
        chat(stream=True, stream_options=options)


def test_a_top_k_beyond_any_vocabulary_is_all_of_it():
    assert completion(top_k=10**30).sampling.top_k == 1 << 31


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


def test_stop_ids_are_bounded_and_count_once():
    assert completion(stop_token_ids=[7] * 5000 + [5]).sampling.stop_token_ids == (7, 5)
    assert len(completion(stop_token_ids=list(range(1024))).sampling.stop_token_ids) == 1024
    with pytest.raises(ApiError, match="at most 1024 different token ids, got 1025"):
        completion(stop_token_ids=list(range(1025)))


def test_a_bias_whose_id_is_written_twice_counts_once():
    assert completion(logit_bias={"65": 1, "0065": 2}).sampling.logit_bias == ((65, 2.0),)


def test_false_is_no_number_of_tokens_beside_an_echo():
    assert completion(echo=True, max_tokens=0).form.without_output
    with pytest.raises(ApiError, match="max_tokens: must be a whole number, got False"):
        completion(echo=True, max_tokens=False)


HUGE = 10**4200


@pytest.mark.parametrize(
    "more",
    [
        {"n": HUGE},
        {"n": HUGE, "best_of": 1},
        {"max_tokens": -HUGE},
        {"max_tokens": HUGE},
        {"seed": HUGE},
        {"seed": 1, "top_k": -HUGE},
        {"logprobs": HUGE},
        {"temperature": HUGE},
        {"min_tokens": HUGE},
        {"truncate_prompt_tokens": HUGE},
        {"length_penalty": HUGE},
    ],
)
def test_a_number_of_thousands_of_digits_is_not_repeated(more):
    with pytest.raises(ApiError) as refused:
        completion(**more)
    assert len(refused.value.message) < 250


def test_a_prompt_that_is_to_be_cut_is_refused_where_it_is_vast():
    tokenizer = ByteTokenizer(256)
    assert (
        completion(tokenizer, prompt="x" * 16_384, truncate_prompt_tokens=5).token_ids == [120] * 5
    )
    with pytest.raises(ApiError, match="prompt: has at least 16385 tokens"):
        completion(tokenizer, prompt="x" * 16_385, truncate_prompt_tokens=5)
    body = {"model": "m", "prompt": "x" * 40_000, "truncate_prompt_tokens": 5}
    with pytest.raises(ApiError, match="at most 36000 is"):
        parse_completion(body, tokenizer, served_name="m", max_model_len=9000)


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


def test_what_just_fits_into_a_handover_is_taken_and_its_frame_can_be_made():
    ids = list(range(100_000, 100_000 + 125_000))
    taken = completion(ByteTokenizer(1 << 20), allowed_token_ids=ids).sampling
    frame = {"fingerprint": "f" * 4096, "request_id": "r" * 128, "sampling": taken.to_json()}
    assert len(encode_control(Kind.PREFILL, frame)) > 800_000
