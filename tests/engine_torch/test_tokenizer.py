"""Text to ids: in step with other threads, never cut, and how long it is known to be at least."""

import json
import threading

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from argosy_engine.runtime.torch.logits import mask_  # noqa: E402
from argosy_engine.text.grammars import compose  # noqa: E402
from argosy_engine.text.hf_tokenizer import bytes_per_token  # noqa: E402
from tests.engine_torch import tokenizers as made  # noqa: E402

BOUNDED = {"byte level": made.byte_level, "NFC": made.composed, "metaspace": made.metaspace}
UNBOUNDED = (made.swallowing, made.dropping, made.lower_case, made.lacking, made.whole_words)
# Long runs, what normal forms shrink most, special tokens, and anything at all.
PARTS = st.one_of(
    st.sampled_from(["a", " ", "▁", "the cat ", "<s>", "</s>", "\u1fbe\u0308\u0301", "\u212a"]),
    st.sampled_from(["\u1100\u1161\u11a8", "\u1fef", "🙂", "\x00"]),
    st.text(max_size=3),
)
TEXTS = st.lists(st.tuples(PARTS, st.integers(1, 40))).map(
    lambda parts: "".join(part * times for part, times in parts)
)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bounded")
    return {name: made.read(kind(), folder / name) for name, kind in BOUNDED.items()}


def test_other_threads_run_while_a_text_is_encoded(tmp_path):
    tokenizer = made.read(made.byte_level(), tmp_path)
    text = "lorem ipsum dolor " * (1 << 16)
    encoding = threading.Thread(target=tokenizer.encode, args=(text,))
    encoding.start()
    turns = 0
    while encoding.is_alive():
        encoding.join(0.0005)
        turns += 1
    assert turns > 20  # one, where Python's lock is held to the end


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_a_text_has_no_fewer_tokens_than_its_bytes_say(bounded, name, text):
    tokenizer = bounded[name]
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


@pytest.mark.parametrize("kind", UNBOUNDED, ids=lambda kind: kind.__name__)
def test_no_bound_is_claimed_where_a_token_may_stand_for_any_length(tmp_path, kind):
    assert made.read(kind(), tmp_path).fewest_tokens("a" * 1_000_000) == 0


def test_pieces_bound_a_text_only_where_each_byte_has_a_token_and_they_are_used():
    whole = json.loads(made.metaspace().to_str())
    assert bytes_per_token(whole) is not None
    unused = {**whole, "model": {**whole["model"], "byte_fallback": False}}
    vocab = {piece: at for piece, at in whole["model"]["vocab"].items() if piece != "<0x7F>"}
    lacking = {**whole, "model": {**whole["model"], "vocab": vocab}}
    assert bytes_per_token(unused) is None
    assert bytes_per_token(lacking) is None


def test_a_grammar_of_the_folders_tokens_ends_with_one_of_its_ends(tmp_path):
    tokenizer = made.read(made.byte_level(), tmp_path)
    grammars = tokenizer.grammars(tokenizer.vocab_size, {2, 1})
    a_or_aa = compose("regex", "a|aa")

    def allowed(output):
        mask = grammars.mask("r", a_or_aa, output)
        ids = range(tokenizer.vocab_size)
        return {i for i in ids if mask[i // 8] >> i % 8 & 1}

    (a,), (aa,) = tokenizer.encode("a"), tokenizer.encode("aa")
    assert allowed([]) == {a, aa}
    assert allowed([aa]) <= {1, 2}
    assert allowed([aa])


@pytest.mark.parametrize("beyond", [1, 5])
def test_answers_are_structured_though_the_folder_has_more_tokens_than_the_model(tmp_path, beyond):
    """So have Gemma 3 1B, Llama 3.2 and CodeLlama 34B."""
    tokenizer = made.read(made.byte_level(), tmp_path)
    vocab = tokenizer.vocab_size - beyond
    grammars = tokenizer.grammars(vocab, {2, 1})
    mask = grammars.mask("r", compose("regex", "a|aa"), [])
    logits = torch.zeros(1, vocab)
    mask_(logits, {0: mask})
    (a,), (aa,) = tokenizer.encode("a"), tokenizer.encode("aa")
    kept = {token for token in (a, aa) if token < vocab}
    assert kept
    assert set(logits[0].isfinite().nonzero().flatten().tolist()) == kept


def test_a_prompt_is_never_cut_or_padded_though_the_file_asks_for_it(tmp_path):
    tokenizer = made.byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    read = made.read(tokenizer, tmp_path)
    assert len(read.encode("b" * 9)) == 9
    assert len(read.encode("b")) == 1


def test_clients_are_told_the_folders_configuration_without_its_files(tmp_path):
    config = {
        "bos_token": None,
        "eos_token": {"content": "</s>", "lstrip": False},
        "added_tokens_decoder": {"2": {"content": "</s>", "special": True}},
        "model_max_length": 2048,
        "vocab_file": "/models/vocab.json",
        "auto_map": {"AutoTokenizer": "code.py"},
        "chat_template": [{"name": "default", "template": "{{ eos_token }}"}],
    }
    assert made.read(made.byte_level(), tmp_path, **config).info == {
        "bos_token": None,
        "eos_token": "</s>",
        "pad_token": None,
        "added_tokens_decoder": {"2": "</s>"},
        "model_max_length": 2048,
        "chat_template": "{{ eos_token }}",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def test_a_template_can_name_the_special_tokens(tmp_path):
    template = "{{ bos_token }} {{ eos_token }} {{ unk_token }} {{ pad_token }}"
    read = made.read(
        made.byte_level(),
        tmp_path,
        chat_template=template,
        bos_token="<s>",
        eos_token={"content": "</s>"},
        unk_token="<unk>",
        pad_token="<pad>",
    )
    assert read.chat_text([]) == "<s> </s> <unk> <pad>"


NAMED = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_a_chat_with_tools_has_the_template_that_the_model_names_for_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    read = made.read(made.byte_level(), tmp_path, chat_template=NAMED)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    hi = [{"role": "user", "content": "hi"}]
    for tools in ([], TOOLS):
        shown = theirs.apply_chat_template(hi, tools=tools or None, tokenize=False)
        assert read.chat_text(hi, tools=tools) == shown
    assert read.chat_text(hi, tools=TOOLS) == "with tools"
    assert read.info["chat_template"] == "plain"
