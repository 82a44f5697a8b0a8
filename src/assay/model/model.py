"""A Hugging Face causal language model, wrapped: never copied, never rewritten."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D
from transformers.utils import output_capturing

from assay.errors import ModelError
from assay.model.families import Family, family_of
from assay.model.norms import frozen_norm
from assay.model.placement import execution_device, is_offloaded, moves_only, weight_of, weights_of
from assay.model.quantisation import kind_of, quantisation_of, stored
from assay.model.replacing import InPlaceOf

if TYPE_CHECKING:
    from assay.model.loading import LoadAgain

BACKWARD_RULES = "assay.model.backward.installation"
"""Where the hooks come from that change no value."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer and the modules that assay needs to find in it."""

    index: int
    module: nn.Module
    attention: nn.Module
    output_projection: nn.Module
    mlp: nn.Module
    attention_contribution: nn.Module
    mlp_contribution: nn.Module
    neuron_input: nn.Module | None
    neuron_output: nn.Module | None
    """None in layers of experts."""
    neuron_input_is_fused: bool

    @property
    def device(self) -> torch.device:
        """Where the layer computes."""
        return execution_device(self.module)

    @property
    def has_attention_post_norm(self) -> bool:
        return self.attention_contribution is not self.attention


class Model:
    """A causal language model and its tokenizer, seen as residual stream plus components.

    Args:
        hf: a ``PreTrainedModel`` with a causal language-modelling head.
        tokenizer: its tokenizer; ``None`` if prompts come as token ids only.
        name: what to call it in tables and run folders.
        origin: where it came from (path, hub id and commit, or short name), stored with every run.

    Raises:
        ModelError: unsupported architecture, or modules that are not where the family table says.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        name: str,
        origin: dict[str, str] | None = None,
    ) -> None:
        self.hf = hf
        self.tokenizer = tokenizer
        self.name = name
        self.origin = origin or {}
        self.load_again: LoadAgain | None = None
        """Loads the same model in another process; None if it was handed over in memory."""
        self.checkpointing = False
        """Whether backward passes compute a layer's inside again instead of keeping it."""
        self._hashed: tuple[object, str] | None = None
        self.config = hf.config
        self.family: Family = family_of(hf.config)
        if hf.get_output_embeddings() is None:
            raise ModelError(f"{type(hf).__name__} has no language-modelling head. Load it with AutoModelForCausalLM.")
        if not isinstance(self.unembedding.weight, Tensor):
            raise ModelError(f"The unembedding is quantised so that its weights cannot be read: {self.quantisation}.")
        self.layers = [self._find_layer(i, module) for i, module in enumerate(self._find_layers())]
        self.n_layers = len(self.layers)
        self.n_heads: int = self.config.num_attention_heads
        # A configuration may carry the number although its architecture does not know it and ignores it.
        groups = "num_key_value_heads" in {field.name for field in fields(self.config)}
        self.n_kv_heads: int = (groups and self.config.num_key_value_heads) or self.n_heads
        self.d_model: int = self.config.hidden_size
        self.vocab_size = min(self.unembedding.weight.shape[0], cast(nn.Embedding, self.embedding).weight.shape[0])
        projection_width = _input_width(self.layers[0].output_projection)
        if projection_width % self.n_heads:
            raise ModelError(
                f"The attention output is {projection_width} wide, not a multiple of {self.n_heads} heads."
            )
        self.d_head = projection_width // self.n_heads
        self.d_mlp = self._count_neurons()
        self.is_parallel = self.family.is_parallel(self.config)

    # Structure

    def _find_layers(self) -> nn.ModuleList:
        layers = _submodule(self.hf, self.family.layers)
        expected = self.config.num_hidden_layers
        if not isinstance(layers, nn.ModuleList) or len(layers) != expected:
            raise ModelError(
                f"{self.family.name}: expected {expected} decoder layers at {self.family.layers!r}, "
                f"found {len(layers) if isinstance(layers, nn.ModuleList) else type(layers).__name__}."
            )
        return layers

    def _find_layer(self, index: int, module: nn.Module) -> Layer:
        family = self.family
        attention = _submodule(module, family.attention)
        if getattr(attention, "layer_idx", None) != index:
            raise ModelError(
                f"{family.name}: the attention module of layer {index} carries "
                f"layer_idx={getattr(attention, 'layer_idx', None)}; assay needs them to agree."
            )
        return Layer(
            index=index,
            module=module,
            attention=attention,
            output_projection=_submodule(attention, family.output_projection),
            mlp=_submodule(module, family.mlp),
            attention_contribution=_submodule(module, family.attention_contribution),
            mlp_contribution=_submodule(module, family.mlp_contribution),
            neuron_input=_submodule_if_any(module, family.neuron_input),
            neuron_output=_submodule_if_any(module, family.neuron_output),
            neuron_input_is_fused=family.neuron_input_is_fused,
        )

    def _count_neurons(self) -> int:
        """Of one MLP; of one expert's, roughly, where there are only experts."""
        widths = {_input_width(layer.neuron_output) for layer in self.layers if layer.neuron_output is not None}
        if len(widths) == 1:
            return int(widths.pop())
        return int(getattr(self.config, "intermediate_size", None) or 4 * self.d_model)

    @property
    def embedding(self) -> nn.Module:
        return cast(nn.Module, self.hf.get_input_embeddings())

    @property
    def residual_multiplier(self) -> float:
        entry = self.family.residual_multiplier_entry
        return float(getattr(self.config, entry)) if entry else 1.0

    @property
    def final_norm(self) -> nn.Module:
        return _submodule(self.hf, self.family.final_norm)

    @property
    def unembedding(self) -> nn.Linear:
        return cast(nn.Linear, self.hf.get_output_embeddings())

    @property
    def device(self) -> torch.device:
        """Where the unembedding computes: prompts, logits and results are there."""
        return execution_device(self.unembedding)

    @property
    def devices(self) -> list[torch.device]:
        """All that layers, embedding and unembedding compute on."""
        first = execution_device(self.embedding)
        return list(dict.fromkeys([first, *(layer.device for layer in self.layers), self.device]))

    @property
    def is_offloaded(self) -> bool:
        """Whether some weights are there only while their module is called."""
        return is_offloaded(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return self.unembedding.weight.dtype

    @property
    def quantisation(self) -> str | None:
        """How weights are quantised; None if they are not."""
        return quantisation_of(self.hf)

    @property
    def context_length(self) -> int | None:
        return getattr(self.config, "max_position_embeddings", None)

    # Pieces of the forward pass

    def logits(self, residual: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits at the given residual-stream positions, in float32 or better.

        Args:
            residual: (..., d_model), after the last layer and before the final norm.
            tokens: token ids (..., n) whose logits are wanted; all of the vocabulary if None. Reading
                only these rows of W_U saves most of the work of a logit difference.

        Returns:
            (..., n) or (..., vocabulary).
        """
        return self.logits_of_normed(self.final_norm(residual), tokens)

    def logits_of_normed(self, normed: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Logits of what the final norm gave, (..., d_model); otherwise as `logits`."""
        if self.family.after_final_norm is not None:
            projection = _submodule_if_any(self.hf, self.family.after_final_norm)
            normed = normed if projection is None else projection(normed)
        head = self.unembedding
        logits: Tensor
        normed = normed.to(self.device)
        is_plain = type(head) is nn.Linear and kind_of(head) is None
        if tokens is None or _is_changed(head) or _global_hooks() or not is_plain:
            logits = head(normed)
            logits = logits if tokens is None else logits.gather(-1, tokens)
        else:
            weight, bias = (weight_of(head, name) for name in ("weight", "bias"))
            assert weight is not None
            # In half precision a logit would be rounded more coarsely than most effects are large.
            precise = torch.promote_types(weight.dtype, torch.float32)
            logits = (weight[tokens].to(precise) @ normed.to(precise).unsqueeze(-1)).squeeze(-1)
            if bias is not None:
                logits = logits + bias[tokens]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return self._scaled(logits)

    def _scaled(self, logits: Tensor) -> Tensor:
        family, config = self.family, self.config
        if family.logit_multiplier_entry is not None:
            logits = logits * getattr(config, family.logit_multiplier_entry)
        if family.logit_divisor_entry is not None:
            logits = logits / getattr(config, family.logit_divisor_entry)
        softcap = getattr(config, family.logit_softcap_entry, None) if family.logit_softcap_entry else None
        return softcap * torch.tanh(logits / softcap) if softcap else logits

    def head_contributions(self, layer: int, z_BTHD: Tensor, at: Tensor | None = None) -> Tensor:
        """What each head adds to the residual stream: (B, T, H, d_model). Biases belong to no head.

        Under a post-norm with scale w and factor s the contribution is ``w * (z_h W_O) / s``, with s of
        the full attention output, so that contributions sum exactly (up to biases).

        Args:
            at: head outputs of the run whose factor s is used; ``z_BTHD`` itself if None.
        """
        found = self.layers[layer]
        precision = torch.promote_types(z_BTHD.dtype, torch.float32)  # squares overflow in float16
        project = found.output_projection  # asked head by head, since adapters and Conv1D keep their weights apart
        bias = project(torch.zeros_like(z_BTHD[:1, :1]).flatten(2))
        parts = torch.empty(*z_BTHD.shape[:3], self.d_model, dtype=precision, device=z_BTHD.device)
        for head in range(self.n_heads):
            alone = torch.zeros_like(z_BTHD)
            alone[:, :, head] = z_BTHD[:, :, head]
            parts[:, :, head] = project(alone.flatten(2)) - bias
        if found.has_attention_post_norm:
            full = found.output_projection((z_BTHD if at is None else at).flatten(2))
            through_norm = frozen_norm(found.attention_contribution, full)
            parts = torch.stack([through_norm(part) for part in parts.unbind(2)], dim=2)
        return parts * self.residual_multiplier

    # Guards

    def require_one_device(self, what: str) -> None:
        """Refuse what puts values of several layers together where they lie.

        Raises:
            ModelError: layers are on several devices.
        """
        if len(self.devices) > 1:
            raise ModelError(
                f"{what} needs the model on one device; {self.name} is spread over "
                f"{', '.join(map(str, self.devices))}. Load it on one (device_map cpu or disk saves memory), or use a "
                "method that patches or differentiates: activation-patching, attribution-patching, hvp, gim."
            )

    def require_weights_in_place(self, what: str) -> None:
        """Refuse what needs the weights themselves, and not only what they do.

        Raises:
            ModelError: some are there only while their module is called.
        """
        if self.is_offloaded:
            raise ModelError(f"{what} needs all weights in place; those of {self.name} are offloaded. Load it whole.")

    def modules_in_training_mode(self) -> list[tuple[str, nn.Module]]:
        return [(name, module) for name, module in self.hf.named_modules() if module.training]

    def require_ready(self) -> None:
        """Raise if dropout (the module is named), autocast or inference mode would spoil the numbers."""
        kind = self.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            raise ModelError("torch.autocast is active. Leave it; choose the precision with dtype= at load instead.")
        if torch.is_inference_mode_enabled() or self.unembedding.weight.is_inference():
            raise ModelError("torch.inference_mode is active, or the weights were made in it; gradients need neither.")
        training = self.modules_in_training_mode()
        if not training:
            return
        dropouts = [name for name, module in training if isinstance(module, nn.Dropout) and module.p > 0]
        where = dropouts[0] if dropouts else training[0][0]
        raise ModelError(
            f"Module {where or type(self.hf).__name__!r} is in training mode"
            f"{' with active dropout' if dropouts else ''}. Call model.eval() first."
        )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Weights need no gradient inside; each parameter gets its own setting back."""
        trainable = [parameter for parameter in self.hf.parameters() if parameter.requires_grad]
        try:
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)

    @property
    def has_foreign_hooks(self) -> bool:
        """Whether somebody's hooks, or a forward method of somebody's, sit anywhere in the model."""
        return bool(_global_hooks()) or any(_is_changed(module) for module in self.hf.modules())

    # Identity

    @property
    def weight_hash(self) -> str:
        """SHA-256 over names, dtypes, shapes and bytes of all weights as they are now."""
        weights = {id(tensor): tensor for _, tensor in weights_of(self.hf)}.values()
        # Whatever is changed through ``.data`` raises no version, so the content is looked at as well, quickly.
        state = tuple((part._version, zlib.crc32(_bytes_of(part))) for weight in weights for part in stored(weight))
        if self._hashed is None or self._hashed[0] != state:
            self._hashed = state, self._hash_weights()
        return self._hashed[1]

    def _hash_weights(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(weights_of(self.hf), key=lambda item: item[0]):
            if not isinstance(tensor, Tensor):
                raise ModelError(f"{name} of {self.name} is a {type(tensor).__name__}, which cannot be hashed.")
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            for part in stored(tensor.detach()):
                digest.update(_bytes_of(part))
        return digest.hexdigest()

    @property
    def configuration_hash(self) -> str:
        """SHA-256 over the configuration: with the weights it decides what the model computes."""
        return hashlib.sha256(self.config.to_json_string(use_diff=False).encode()).hexdigest()

    @property
    def adapters(self) -> list[str]:
        """States of PEFT adapters inside the model: active, disabled, merged. Empty without any."""
        found = set()
        for module in self.hf.modules():
            if all(hasattr(module, name) for name in ("active_adapters", "disable_adapters", "merged")):
                state = ("merged" if module.merged else "beside") + (", disabled" if module.disable_adapters else "")
                found.add(f"{'+'.join(module.active_adapters)} ({state})")
        return sorted(found)

    @property
    def tokenizer_hash(self) -> str | None:
        """SHA-256 over the vocabulary and, where there is one, the fast tokenizer's whole definition."""
        if self.tokenizer is None:
            return None
        backend: Any = getattr(self.tokenizer, "backend_tokenizer", None)
        definition = backend.to_str() if backend is not None else str(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(definition.encode()).hexdigest()

    def __repr__(self) -> str:
        adapters = ", ".join(self.adapters)
        return (
            f"Model({self.name!r}, {self.family.name}, {self.n_layers} layers x {self.n_heads} heads, "
            f"d_model {self.d_model}, {str(self.dtype).removeprefix('torch.')} on {self.device}"
            f"{f', quantised weights ({self.quantisation})' if self.quantisation else ''}"
            f"{f', adapters {adapters}' if adapters else ''})"
        )


def _bytes_of(tensor: Tensor) -> memoryview:
    data: memoryview = tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().data
    return data


def _submodule_if_any(root: nn.Module, path: str) -> nn.Module | None:
    """The module at a path; None if there is none."""
    try:
        return root.get_submodule(path)
    except AttributeError:
        return None


def _submodule(root: nn.Module, path: str) -> nn.Module:
    try:
        return root.get_submodule(path)
    except AttributeError as error:
        raise ModelError(f"{type(root).__name__} has no module at {path!r}; is it a causal LM?") from error


def _input_width(projection: nn.Module) -> int:
    """How many numbers a linear map reads, whichever class it is (adapters and quantised ones say so too)."""
    if isinstance(projection, Conv1D):
        return int(projection.weight.shape[0])
    width = getattr(projection, "in_features", None)
    if not isinstance(width, int):
        raise ModelError(f"A projection is a {type(projection).__name__}; expected a linear map.")
    return width


def _is_changed(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    while isinstance(forward, InPlaceOf):
        forward = forward.replaced
    return _has_hooks(module) or (forward is not None and not moves_only(module))


def _global_hooks() -> bool:
    return bool(torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)


def _has_hooks(module: nn.Module) -> bool:
    """Whether a forward hook of the user's sits on the module (transformers leaves idle ones of its own)."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    known = (output_capturing.__name__, BACKWARD_RULES)
    return any(getattr(hook, "__module__", None) not in known for hook in hooks)
