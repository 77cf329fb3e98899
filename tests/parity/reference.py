"""The models of transformers: made from a configuration, filled by the formula, run in several ways."""

import contextlib
import importlib
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    DynamicCache,
)

import formula
from exceptions import STACKED

ROWS = [0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 79]
RESIDUAL_ROWS = [0, 17, 79]
CHUNKS = [1, 2, 13, 16, 1, 47]
TOKENS = sum(CHUNKS)
GREEDY = 16

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
transformers.logging.set_verbosity_error()


def loader(config):
    return AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM


def from_config(config, dtype=torch.float32, attention="eager"):
    """A model of this configuration, its weights still arbitrary."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        read = AutoConfig.from_pretrained(folder)
    model = loader(config).from_config(
        read, dtype=dtype, attn_implementation=attention, experts_implementation="eager"
    )
    return model.eval()


def tensors(family, config):
    """Names, as a checkpoint has them, and the formula's numbers."""
    model = from_config(
        {key: value for key, value in config.items() if key != "quantization_config"}
    )
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    if family not in STACKED:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            with safe_open(Path(folder) / "model.safetensors", "np") as file:
                shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    if "quantization_config" in config:
        shapes = in_blocks(shapes)

    def unsigned(name):
        return name.endswith(("_blocks", "_scales"))

    return {
        name: formula.tensor(family, name, shapes[name], unsigned(name)) for name in sorted(shapes)
    }


def in_blocks(shapes):
    """The shapes of a checkpoint whose experts are in MXFP4: 32 numbers of four bits and one scale in a block."""
    found = {}
    for name, shape in shapes.items():
        if name.endswith("_proj") and len(shape) == 3:
            experts, columns, rows = shape
            found[f"{name}_blocks"] = [experts, rows, columns // 32, 16]
            found[f"{name}_scales"] = [experts, rows, columns // 32]
        else:
            found[name] = shape
    return found


def dequantised(config, weights):
    """Configuration and weights without MXFP4, by transformers' own function."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    plain = {}
    for name, value in weights.items():
        if name.endswith("_blocks"):
            scales = torch.from_numpy(weights[name.removesuffix("_blocks") + "_scales"])
            numbers = convert_moe_packed_tensors(
                torch.from_numpy(value), scales, dtype=torch.float32
            )
            plain[name.removesuffix("_blocks")] = numbers.numpy().copy()
        elif not name.endswith("_scales"):
            plain[name] = value
    return {key: value for key, value in config.items() if key != "quantization_config"}, plain


def write_folder(folder, config, weights):
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def open_folder(folder, config, dtype=torch.float32, attention="eager"):
    model, report = loader(config).from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation=attention,
        experts_implementation="eager",
        output_loading_info=True,
    )
    wrong = {key: names for key, names in report.items() if names}
    if wrong:
        raise ValueError(f"the folder does not fit its configuration: {wrong}")
    return model.eval()


def module_of(model):
    """The Python module that defines the model's layers."""
    name = type(model).__module__
    return importlib.import_module(name)


def layers(model):
    """The decoder's layers; a vision tower has none of these."""
    return [module for module in model.modules() if type(module).__name__.endswith("DecoderLayer")]


@torch.no_grad()
def uncached(model, tokens):
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double().numpy()


@torch.no_grad()
def cached(model, tokens, chunks=CHUNKS, between=None):
    """Logits when the sequence comes in chunks; `between` may spoil the cache after each."""
    cache = DynamicCache(config=model.config.get_text_config())
    rows, start = [], 0
    for size in chunks:
        chunk = torch.tensor([tokens[start : start + size]])
        rows.append(model(input_ids=chunk, past_key_values=cache, use_cache=True).logits[0])
        start += size
        if between is not None:
            between(cache)
    return torch.cat(rows).double().numpy()


@torch.no_grad()
def residual_stream(model, tokens):
    """The residual stream after each layer: layers x rows x hidden."""
    found = []

    def keep(_module, _inputs, output):
        output = output[0] if isinstance(output, tuple) else output
        found.append(output[0, RESIDUAL_ROWS].float().numpy())

    hooks = [layer.register_forward_hook(keep) for layer in layers(model)]
    model(input_ids=torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return np.stack(found)


def greedy(model, tokens):
    """The tokens that follow, and by how much the best logit exceeds the second."""
    tokens, chosen, margins = list(tokens), [], []
    for _ in range(GREEDY):
        row = np.sort(uncached(model, tokens)[-1])
        chosen.append(int(uncached(model, tokens)[-1].argmax()))
        margins.append(float(row[-1] - row[-2]))
        tokens.append(chosen[-1])
    return chosen, margins


@contextlib.contextmanager
def patched(owner, **attributes):
    """Functions of a module replaced for a while."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
