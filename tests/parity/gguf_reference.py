"""The GGUF file that llama.cpp's own converter makes of a folder, described without its contents.

For each tensor: name, shape, ggml type, a hash of its numbers, and how the numbers come from the folder's tensors.
The last is found by trying: the converter's output is compared with each known way of storing a tensor.
"""

import hashlib
import json
import logging
import sys
from pathlib import Path

import numpy as np

from parts import VOCABULARY

# Transformations whose results differ in their last bits between libraries; the fixture holds the numbers.
INEXACT = ("negated_exponential", "tiled_heads_negated_exponential")
# Values that depend on the converter's surroundings, or that only list tokens.
LEFT_OUT = (
    "general.name",
    "general.size_label",
    "general.quantization_version",
    "general.file_type",
    "tokenizer.",
)


def load_converter(llama_cpp):
    """Makes the converter of this llama.cpp source folder importable, with its own gguf package."""
    sys.path[:0] = [str(Path(llama_cpp) / "gguf-py"), str(llama_cpp)]


def convert(folder, out):
    """Writes a GGUF of f32 and returns the reader of it, or the reason why there is none."""
    import gguf
    from conversion import get_model_architecture, get_model_class
    from conversion.base import ModelBase, ModelType, TextModel

    logging.disable(logging.CRITICAL)
    tokenizer(folder)
    parameters = ModelBase.load_hparams(folder, False)
    try:
        base = get_model_class(get_model_architecture(parameters, ModelType.TEXT))
    except NotImplementedError as error:
        return None, f"not known: {error}"

    # The converter finds the architecture by the class, so the class stays and its method changes.
    base.set_vocab = vocabulary
    TextModel.get_vocab_base_pre = lambda _model, _tokenizer: "default"
    if base.supports_mtp_export:
        base.no_mtp = True
    base(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name="parity").write()
    return gguf.GGUFReader(out), None


def tokenizer(folder):
    """A tokenizer of words: some converters look into it though the vocabulary is ours."""
    count = VOCABULARY
    words = {f"t{index}": index for index in range(count)}
    contents = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "t0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(contents))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
    )


def vocabulary(model):
    """Tokens that only have names."""
    import gguf

    count = model.hparams["vocab_size"]
    model.gguf_writer.add_tokenizer_model("gpt2")
    model.gguf_writer.add_tokenizer_pre("default")
    model.gguf_writer.add_token_list([f"t{index}" for index in range(count)])
    model.gguf_writer.add_token_types([gguf.TokenType.NORMAL] * count)


def described(reader, weights, heads):
    """Metadata and tensors of a file; `heads` are counts of heads that a row order may depend on."""
    fields = {
        name: value(field)
        for name, field in reader.fields.items()
        if not name.startswith(("GGUF.", *LEFT_OUT))
    }
    tensors, values = {}, {}
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.name):
        kind = tensor.tensor_type.name
        shape = "x".join(str(size) for size in reversed(tensor.shape.tolist()))
        numbers = np.array(tensor.data)
        numbers = numbers.astype(np.float32) if kind == "F32" else numbers
        made_from, transform = source(numbers, weights, heads)
        tensors[tensor.name] = f"{shape} {kind} {hash64(numbers)} {transform} {made_from}"
        if transform in ("none", *INEXACT):
            values[tensor.name] = [float(number) for number in numbers.ravel()]
    return {"metadata": fields, "tensors": tensors, "values": values}


def value(field):
    """A field's type and value."""
    found = field.contents()
    kinds = [kind.name for kind in field.types]
    return [":".join(kinds), found]


def hash64(numbers):
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()[:16]


def source(numbers, weights, heads):
    """The folder's tensor, with a star for an expert's number, and the transformation that give these numbers."""
    for name, candidate, transform in candidates(numbers, weights, heads):
        if candidate.size != numbers.size or candidate.dtype != numbers.dtype:
            continue
        near = transform in INEXACT and np.allclose(
            candidate.ravel(), numbers.ravel(), rtol=1e-6, atol=0
        )
        if near or np.array_equal(candidate.ravel(), numbers.ravel()):
            return name, transform
    return "-", "none"


def stacks(weights):
    """Tensors of single experts, in their order, by the name with a star for the expert."""
    groups = {}
    for name in weights:
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdigit() and at > 0 and parts[at - 1] == "experts":
                groups.setdefault(".".join(parts[:at] + ["*"] + parts[at + 1 :]), []).append(
                    (int(part), name)
                )
    return {pattern: [name for _, name in sorted(group)] for pattern, group in groups.items()}


def candidates(numbers, weights, heads):
    size = numbers.size
    for name, tensor in weights.items():
        if tensor.dtype == np.uint8:
            yield from four_bit_floats(name, weights)
            continue
        if tensor.size == size:
            yield name, tensor, "itself"
            yield name, tensor + np.float32(1), "plus_one"
            yield name, -np.exp(tensor), "negated_exponential"
            for count in heads:
                rows = tensor.shape[0]
                if rows % (2 * count) == 0:
                    order = row_order(rows, count)
                    yield name, tensor[order], f"rope_rows_of_{count}"
            yield from value_heads(name, tensor)
        if tensor.ndim == 3 and tensor.size == 2 * size:
            half = tensor.shape[1] // 2
            yield name, tensor[:, :half], "first_rows"
            yield name, tensor[:, half:], "last_rows"
            yield name, tensor[:, :, ::2].swapaxes(1, 2), "even_columns_transposed"
            yield name, tensor[:, :, 1::2].swapaxes(1, 2), "odd_columns_transposed"
        if tensor.ndim == 3 and tensor.size == size:
            yield name, tensor.swapaxes(1, 2), "transposed"
        if tensor.ndim == 2 and tensor.size == 2 * size:
            half = tensor.shape[0] // 2
            yield name, tensor[:half], "first_rows"
            yield name, tensor[half:], "last_rows"
            yield name, tensor[:, ::2], "even_columns"
            yield name, tensor[:, 1::2], "odd_columns"
    for pattern, names in stacks(weights).items():
        stack = np.stack([weights[name] for name in names])
        yield pattern, stack, "stack"


def four_bit_floats(name, weights):
    """Blocks of ggml: the scale, then the numbers 0 to 15 in the low halves of 16 bytes and the rest in the high."""
    if not name.endswith("_blocks"):
        return
    blocks = weights[name]
    halves = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    scales = weights[name.removesuffix("_blocks") + "_scales"][..., None]
    stored = np.concatenate([scales, halves[..., :16] | halves[..., 16:] << 4], axis=-1)
    yield name, stored, "mxfp4"
    yield name, stored[:, ::2], "mxfp4_even_rows"
    yield name, stored[:, 1::2], "mxfp4_odd_rows"


def row_order(rows, heads):
    """Rows of each head: first half and second half by turns."""
    return np.arange(rows).reshape(heads, 2, rows // heads // 2).swapaxes(1, 2).ravel()


# Two key heads with two value heads each, sixteen numbers a head, as in the fixtures of delta nets.
KEYS, PER_KEY, WIDTH = 2, 2, 16


def value_heads(name, tensor):
    """Value heads of a delta net in the order 0, 2, 1, 3: tiled, not grouped."""
    if "linear_attn" not in name:
        return
    heads = np.arange(KEYS * PER_KEY).reshape(KEYS, PER_KEY).T.ravel()
    elements = (heads[:, None] * WIDTH + np.arange(WIDTH)).ravel()
    queries_keys = np.arange(2 * KEYS * WIDTH)
    rows = tensor.shape[0]
    if rows == len(heads):
        yield name, tensor[heads], "tiled_heads"
        yield name, -np.exp(tensor[heads]), "tiled_heads_negated_exponential"
    if rows == len(elements):
        yield name, tensor[elements], "tiled_rows"
    if rows == len(elements) + len(queries_keys):
        order = np.concatenate([queries_keys, len(queries_keys) + elements])
        yield name, tensor[order], "tiled_rows_behind_keys"
    if tensor.ndim == 2 and tensor.shape[1] == len(elements):
        yield name, tensor[:, elements], "tiled_columns"
