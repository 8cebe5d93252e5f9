"""Every other causal model: transformers computes it, with our paged KV cache as its attention.

Used by the torch runner for architectures that `trunk` does not know. transformers is imported for
such models alone. Code from the model's folder is never run. `read` gives the shapes, `load` the
module with its weights, and `TransformersTrunk` tries it against transformers' own attention before
it serves.

A model of transformers calls `paged_attention` (`AttentionInterface`) once a layer with the packed
tokens of a step. The pool and the step stand in a context variable, since not every model hands its
arguments down.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from argosy.model_config import DecoderSpec, dtype_of
from argosy_engine.core.request import Chunk, to_table
from argosy_engine.core.sampling import SamplingParams
from argosy_engine.core.step import FlatBatch, StepPlan, flatten
from argosy_engine.errors import LoadError
from argosy_engine.model.attention.paged import PagedBatch, PagedPool, PoolShape
from argosy_engine.model.spec import read_config

_HARMLESS = {"dropout", "position_ids", "use_cache", "output_attentions", "cache_position"}
"""Arguments that change nothing here: nothing is trained, and positions are turned already."""


@dataclass(slots=True)
class PagedStep:
    """What the layers of one step share."""

    pool: PagedPool
    batch: PagedBatch

    attended: list[int] = field(default_factory=list)
    """The layers that have called, in order."""


_step: ContextVar[PagedStep] = ContextVar("paged step")


@contextmanager
def step_of(pool: PagedPool, batch: PagedBatch) -> Iterator[PagedStep]:
    """The step that `paged_attention` works on inside the block."""
    step = PagedStep(pool, batch)
    token = _step.set(step)
    try:
        yield step
    finally:
        _step.reset(token)


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """[1, N, heads, head_dim] for `query` [1, heads, N, head_dim], whose K and V are written.

    LoadError(UnsupportedArchitecture) for attention that the pool does not compute, by its name.
    """
    step = _step.get()
    shape, layer = step.pool.shape, int(module.layer_idx)
    _refuse(module, attention_mask, is_causal, others)
    expected = (1, shape.kv_heads, query.shape[2], shape.head_dim)
    if key.shape != expected or value.shape != expected:
        raise _unsupported_attention(
            module, f"K {tuple(key.shape)} and V {tuple(value.shape)} in place of {expected}"
        )
    window = int(sliding_window or 0)
    _refuse_another_window(module.config, layer, window, module)
    step.pool.write(layer, step.batch, torch.cat([key, value], 1)[0].transpose(0, 1))
    out = step.pool.attend(layer, step.batch, query[0].transpose(0, 1), window, scaling)
    step.attended.append(layer)
    return out.unsqueeze(0), None


def _refuse(
    module: Any, mask: torch.Tensor | None, is_causal: bool | None, others: dict[str, Any]
) -> None:
    wrong = [
        f"{name}={value if isinstance(value, int | float | str) else type(value).__name__}"
        for name, value in others.items()
        if value is not None and value is not False and name not in _HARMLESS
    ]
    if mask is not None:
        wrong.append("a mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        wrong.append("is_causal=False")
    if wrong:
        raise _unsupported_attention(module, ", ".join(wrong))


def _refuse_another_window(config: Any, layer: int, window: int, module: Any) -> None:
    """A window that stands in the mask alone would be lost: the pool makes its own mask."""
    kinds, named = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if kinds and kinds[layer] != ("sliding_attention" if window else "full_attention"):
        raise _unsupported_attention(module, f"{kinds[layer]} and sliding_window={window}")
    if not kinds and int(named or 0) != window:
        raise _unsupported_attention(
            module, f"sliding_window={window} where config.json has {named}"
        )


def _unsupported_attention(module: Any, what: str) -> LoadError:
    return LoadError(
        "UnsupportedArchitecture",
        f"{type(module).__name__} asks for attention with {what}, which the paged KV cache does "
        "not compute: set engine.type: vllm, or choose another model",
    )


_NAME = "argosy"
_ROPES = {"default", "linear", "llama3", "yarn", "proportional"}
"""The others (dynamic, longrope) turn a token by how long the batch around it is."""
_OF_ALL_LAYERS = {"head_dim", "hidden_size", "num_attention_heads", "num_key_value_heads"}
_TRIAL_BLOCK, _TRIAL_CHUNKS = 4, (6, 5, 1, 1)
_CLOSE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.05}
"""Relative error of the trial's logits, as the root of the mean square. That of float16 is as
large: a rounding that has a token choose another expert changes much in either."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A model that transformers computes."""

    spec: DecoderSpec
    parameters: int
    config: Any
    """transformers' own configuration."""


def read(folder: Path) -> Foreign:
    """LoadError(UnsupportedArchitecture | WeightsInvalid) says what to do."""
    raw = read_config(folder)
    name = ", ".join(map(str, raw["architectures"]))
    _refuse_by_name(raw, name)
    hub = _transformers(name)
    model_type = raw.get("model_type")
    if model_type is not None and model_type not in hub.CONFIG_MAPPING:
        raise _unsupported(name, f"this transformers does not know model_type {model_type!r:.80}")
    with _typing_errors(folder):
        config = hub.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        kind = hub.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
        if kind is None or kind.__name__ not in raw["architectures"]:
            raise _unsupported(name, "it is no causal language model of transformers'")
        if not getattr(kind, "_supports_attention_backend", False):
            raise _unsupported(name, "its class does not take an attention function")
        with torch.device("meta"):
            empty = hub.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        parameters = sum(one.numel() for one in empty.parameters())
        _refuse_attention(config, kind.__name__)
        heads = int(config.num_attention_heads)
        spec = DecoderSpec(
            architecture=kind.__name__,
            layers=int(config.num_hidden_layers),
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            vocab=int(config.vocab_size),
            max_positions=int(config.max_position_embeddings),
            dtype=dtype_of(raw),
        )
    return Foreign(spec, parameters, config)


def _refuse_attention(config: Any, name: str) -> None:
    """Refuse what the weights need not be read for: K and V that the pool has no room for.

    The pool has one size of head for K and V of all layers. What else a class asks of its attention
    is seen when it is tried.
    """
    if differ := _OF_ALL_LAYERS & set(getattr(config, "per_layer_attributes", None) or ()):
        raise _unsupported(name, f"its layers differ in {', '.join(sorted(differ))}")
    if getattr(config, "index_topk", None):
        raise _unsupported(name, "its attention chooses tokens by an index of its own (index_topk)")
    keys = (getattr(config, "qk_nope_head_dim", None) or 0) + getattr(config, "qk_rope_head_dim", 0)
    values = getattr(config, "v_head_dim", None) or keys
    if keys and keys != values:
        raise _unsupported(name, f"its latent attention has K of {keys} and V of {values} elements")


def load(
    folder: Path, foreign: Foreign, dtype: torch.dtype, device: torch.device, *, dummy: bool
) -> Any:
    """The module with its weights, or random ones; LoadError(WeightsInvalid | ModelNotFound)."""
    hub = _transformers(foreign.spec.architecture)
    hub.AttentionInterface.register(_NAME, paged_attention)
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": _NAME}
    options["trust_remote_code"] = False
    if dummy:
        torch.manual_seed(0)
        with _typing_errors(folder):
            made = hub.AutoModelForCausalLM.from_config(foreign.config, **options)
        return made.to(device).eval()
    if not any(folder.glob("*.safetensors")):
        raise LoadError(
            "ModelNotFound",
            f"{folder} has no safetensors: fetch the model again, and convert pickled weights",
        )
    with _typing_errors(folder):
        made, info = hub.AutoModelForCausalLM.from_pretrained(
            folder,
            config=foreign.config,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    if missing := sorted(info["missing_keys"]):
        raise LoadError(
            "WeightsInvalid",
            f"{folder} has no tensor {missing[0]} ({len(missing)} are missing): the download is "
            "incomplete, fetch it again",
        )
    return made.to(device).eval()


class TransformersTrunk:
    """A module of transformers that reads and writes our pool; `logits` as `trunk.Trunk` has it."""

    def __init__(self, spec: DecoderSpec, module: Any) -> None:
        """Tries the module; LoadError(UnsupportedArchitecture) if its logits are not its own."""
        self.spec = spec
        self._module = module
        self._try()

    @torch.inference_mode()
    def logits(self, flat: FlatBatch, pool: PagedPool) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows of a step; writes its K and V into `pool`."""
        batch = pool.prepare(flat)
        with step_of(pool, batch) as step:
            found: torch.Tensor = self._module(
                input_ids=batch.token_ids.long().unsqueeze(0),
                position_ids=batch.positions.long().unsqueeze(0),
                logits_to_keep=batch.sample_rows.long(),
                use_cache=False,
            ).logits[0]
        if sorted(step.attended) != list(range(self.spec.layers)):
            raise _unsupported(
                self.spec.architecture,
                f"layers {step.attended} of {self.spec.layers} attended to the KV cache",
            )
        return found

    def _try(self) -> None:
        """Two texts whole, by transformers' own attention, and packed in chunks, by ours."""
        shape = PoolShape(
            blocks=11,
            layers=self.spec.layers,
            kv_heads=self.spec.kv_heads,
            block_size=_TRIAL_BLOCK,
            head_dim=self.spec.head_dim,
        )
        weight = next(self._module.parameters())
        pool = PagedPool(shape, weight.dtype, weight.device)
        length, vocab = sum(_TRIAL_CHUNKS), self.spec.vocab
        texts = [
            [(17 + 31 * at * at + 101 * row) % vocab for at in range(length)] for row in (0, 1)
        ]
        name = self.spec.architecture
        try:
            found = torch.cat([self._trial_step(pool, texts, at) for at in range(4)], dim=1)
            self._module.set_attn_implementation("eager")
            with torch.inference_mode():
                ids = torch.tensor(texts, device=weight.device)
                right = self._module(input_ids=ids, use_cache=False).logits
            self._module.set_attn_implementation(_NAME)
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise _unsupported(name, f"a trial step failed: {error}") from error
        wrong = float((found.double() - right.double()).norm() / right.double().norm())
        if not wrong < _CLOSE[weight.dtype]:  # also if it is NaN
            raise _unsupported(name, f"its logits in a trial step are wrong by {wrong:.2g}")

    def _trial_step(self, pool: PagedPool, texts: list[list[int]], at: int) -> torch.Tensor:
        """Logits [2, count, vocab] of chunk `at` of both texts."""
        start, count = sum(_TRIAL_CHUNKS[:at]), _TRIAL_CHUNKS[at]
        chunks = tuple(
            Chunk(
                request_id=str(row),
                tokens=text,
                block_table=to_table((9 - row, 2 + row, 7 - row, 4 + row)),
                start=start,
                count=count,
                samples=True,
                decode=False,
                sampling=SamplingParams(max_tokens=1),
            )
            for row, text in enumerate(texts)
        )
        plan = StepPlan(
            index=1,
            chunks=chunks,
            block_size=_TRIAL_BLOCK,
            prefill_tokens=2 * count,
            prefill_sequences=2,
            decode_sequences=0,
            decode_context_tokens=0,
            after_idle=True,
        )
        flat = flatten(plan)
        flat.sample_rows[:] = range(2 * count)
        return self.logits(flat, pool).view(2, count, -1)


def _refuse_by_name(raw: dict[str, Any], name: str) -> None:
    if raw.get("quantization_config"):
        raise _unsupported(
            name, "quantization_config: its weights must be float32, bfloat16 or float16"
        )
    if raw.get("is_encoder_decoder") or raw.get("text_config"):
        raise _unsupported(name, "only models that read and write text alone are served")
    ropes = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    nested = [one for one in ropes.values() if isinstance(one, dict)]
    for rope in nested or [ropes]:
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind not in _ROPES:
            raise _unsupported(name, f"rope type {kind!r}; known: {', '.join(sorted(_ROPES))}")
    # Last, because its advice is of no use to a model that is refused for something else.
    if raw.get("auto_map"):
        raise _unsupported(
            name,
            "config.json names code of the folder's own (auto_map), which is never run; if "
            "transformers has the architecture itself, remove auto_map",
        )


def _transformers(name: str) -> Any:
    try:
        hub: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise LoadError(
            "UnsupportedArchitecture",
            f"this engine runs {name} with transformers, which is not installed ({error}): pip "
            "install 'argosy[transformers]', set engine.type: vllm, or choose a Llama, Mistral, "
            "Qwen2 or Qwen3",
        ) from error
    hub.utils.logging.disable_progress_bar()
    return hub


@contextmanager
def _typing_errors(folder: Path) -> Iterator[None]:
    """What transformers raises for a wrong folder, as LoadError."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise LoadError("WeightsInvalid", f"{folder}: transformers says {error}") from error


def _unsupported(name: str, why: str) -> LoadError:
    return LoadError(
        "UnsupportedArchitecture",
        f"{name} is not computed by this engine: {why}; set engine.type: vllm, or choose another "
        "model",
    )
