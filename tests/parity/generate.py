"""Writes the parity fixtures: for each family config.json, expected.json, pooled.json and, with llama.cpp, gguf.json.

    pip install -r requirements.txt
    python generate.py [--llama-cpp SOURCES | --only-pooled] [FAMILY ...]

Weights come from a formula, so a fixture holds numbers but no weights. `SOURCES` is a folder with llama.cpp's
sources, whose converter describes the GGUF files. The script fails when a known mistake changes the logits by less
than a hundred tolerances: such a fixture would not find it.
"""

import argparse
import base64
import json
import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
sys.dont_write_bytecode = True

import numpy as np
import torch
import transformers

import exceptions
import families
import formula
import gguf_reference
import mlx_reference
import mutants
import pooled
import reference
import traps_by_family
from parts import VOCABULARY

HERE = Path(__file__).parent
PACKAGES = ("torch", "transformers", "numpy", "mlx", "mlx-lm", "gguf")
NOISES_IN_TOLERANCE = 10
TOLERANCES_TO_A_MUTANT = 100
TOLERANCES_TO_A_CLOSE_MUTANT = 10


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--llama-cpp", type=Path)
    arguments.add_argument(
        "--no-mutants", action="store_true", help="keep the mutants of the committed file"
    )
    arguments.add_argument(
        "--only-pooled", action="store_true", help="write pooled.json and leave the other files"
    )
    arguments.add_argument("family", nargs="*")
    chosen = arguments.parse_args()
    transformers.logging.disable_progress_bar()
    configs = families.families()
    if chosen.only_pooled:
        for family in chosen.family or configs:
            generate_pooled(family, configs[family])
        return
    if chosen.llama_cpp is not None:
        gguf_reference.load_converter(chosen.llama_cpp)
    traps = traps_by_family.table(configs)
    assert traps.keys() == configs.keys(), "each family has its mistakes"
    unfit = []
    for family in chosen.family or configs:
        unfit += generate(
            family, configs[family], {} if chosen.no_mutants else traps[family], chosen.llama_cpp
        )
        generate_pooled(family, configs[family])
    if unfit:
        sys.exit("unfit fixtures:\n" + "\n".join(unfit))


def plain_of(config, weights):
    """Configuration and weights without quantisation."""
    if "quantization_config" in config:
        return reference.dequantised(config, weights)
    return config, weights


def generate_pooled(family, config):
    """Writes the pooled states of one family. Fails where they would not show a mistake."""
    config, weights = plain_of(config, reference.tensors(family, config))
    tokens = formula.tokens(VOCABULARY, reference.TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        reference.write_folder(folder, config, weights)
        model = reference.open_folder(folder, config)
        double = reference.open_folder(folder, config, dtype=torch.float64)
        found = pooled.table(model, double, tokens)
    least = min(found["mistakes"].values())
    assert least > TOLERANCES_TO_A_MUTANT * pooled.TOLERANCE, f"{family}: {found['mistakes']}"
    expected = {
        "versions": versions(),
        **found,
        "numbers": {name: packed(rows) for name, rows in found["numbers"].items()},
        "noise": rounded(found["noise"]),
        "mistakes": {name: rounded(value) for name, value in found["mistakes"].items()},
    }
    write(HERE / family / "pooled.json", in_lines(expected))
    print(f"{family}: pooled states, noise {found['noise']:.1e}", flush=True)


def generate(family, config, traps, llama_cpp):
    """Writes the files of one family and returns the mistakes that its fixture does not show."""
    weights = reference.tensors(family, config)
    plain_config, plain = plain_of(config, weights)
    tokens = formula.tokens(VOCABULARY, reference.TOKENS)
    place = HERE / family
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stored, dense = Path(folder) / "stored", Path(folder) / "dense"
        for path, fields, tensors in ((stored, config, weights), (dense, plain_config, plain)):
            path.mkdir()
            reference.write_folder(path, fields, tensors)
        model = reference.open_folder(dense, plain_config)
        right = reference.uncached(model, tokens)
        noise = noises(family, dense, plain_config, model, right, tokens)
        noise["mlx_lm"], why = against_mlx_lm(
            family, (stored, dense), (config, plain_config), (weights, plain), right, tokens
        )
        worst = max(value for value in noise.values() if value is not None)
        case = mutants.Case(dense, plain_config, tokens)
        differences = {name: difference(run(case), right) for name, run in traps.items()}
        chosen, margins = reference.greedy(model, tokens)
        expected = {
            "versions": versions(),
            "tokens": tokens,
            "rows": reference.ROWS,
            "logits": packed(right[reference.ROWS]),
            "residual_rows": reference.RESIDUAL_ROWS,
            "residual_stream": [packed(rows) for rows in reference.residual_stream(model, tokens)],
            "greedy": chosen,
            "margins": [round(margin, 6) for margin in margins],
            "noise": {name: rounded(value) for name, value in noise.items()},
            "mlx_lm_left_out": why,
            "tolerance": rounded(NOISES_IN_TOLERANCE * worst),
            "mutants": {name: rounded(value) for name, value in differences.items()},
            "tensors": {name: described(value) for name, value in weights.items()},
        }
        gguf = (
            gguf_of(family, (stored, dense), (config, plain_config), weights, tokens)
            if llama_cpp
            else None
        )
    write(place / "config.json", json.dumps(config, indent=2) + "\n")
    if not traps:
        expected["mutants"] = json.loads((place / "expected.json").read_text())["mutants"]
    write(place / "expected.json", in_lines(expected))
    if gguf:
        write(place / "gguf.json", in_lines(gguf))
    print(f"{family}: noise {worst:.1e}, {len(weights)} tensors, {len(traps)} mistakes", flush=True)
    return [
        f"{family}: {name}: {value:.2e}, less than {bar(name, worst):.2e}"
        for name, value in differences.items()
        if not value >= bar(name, worst)
    ]


def bar(name, worst):
    tolerances = (
        TOLERANCES_TO_A_CLOSE_MUTANT if name in exceptions.CLOSE else TOLERANCES_TO_A_MUTANT
    )
    return tolerances * NOISES_IN_TOLERANCE * worst


def difference(found, right):
    return float(np.abs(found - right).max())


def noises(family, folder, config, model, right, tokens):
    """How far equally right ways of computing lie apart."""
    double = reference.open_folder(folder, config, dtype=torch.float64)
    try:
        other = reference.open_folder(folder, config, attention="sdpa")
    except ValueError:  # transformers has no such form of these attentions
        other = None
    return {
        "f64": difference(reference.uncached(double, tokens), right),
        "sdpa": None if other is None else difference(reference.uncached(other, tokens), right),
        "cached": None
        if family in exceptions.NOT_CHUNKED
        else difference(reference.cached(model, tokens), right),
    }


def against_mlx_lm(family, folders, configs, tensors, right, tokens):
    """The difference to mlx-lm and the reason where there is none, under fields that both read.

    `folders`, `configs` and `tensors` are those of the stored form and of the form without quantisation."""
    if family in exceptions.MLX_LM_NOT:
        return None, exceptions.MLX_LM_NOT[family]
    fields = exceptions.MLX_LM_WITH.get(family, {})
    if fields:
        for folder, config, weights in zip(folders, configs, tensors):
            reference.write_folder(folder, {**config, **fields}, weights)
        right = reference.uncached(
            reference.open_folder(folders[1], {**configs[1], **fields}), tokens
        )
    found, why = mlx_reference.logits(folders[0], tokens)
    for folder, config, weights in zip(folders, configs, tensors):
        reference.write_folder(folder, config, weights)
    if found is None:
        return None, why
    return difference(found, right), f"compared with {fields}" if fields else None


def gguf_of(family, folders, configs, weights, tokens):
    """The converter's result for the stored form, and that file's logits where they differ."""
    if family in exceptions.GGUF_NOT:
        return None
    reader, why = gguf_reference.convert(folders[0], folders[0].parent / "model.gguf")
    if reader is None:
        print(f"{family}: no GGUF: {why}")
        return None
    text = configs[0].get("text_config", configs[0])
    heads = [text["num_attention_heads"], text["num_key_value_heads"]]
    found = gguf_reference.described(reader, weights, heads)
    fields = exceptions.GGUF_WITH.get(family)
    if fields:
        case = mutants.Case(folders[1], configs[1], tokens)
        logits = mutants.field(**fields)(case)
        found |= {"computed_with": fields, "logits": packed(logits[reference.ROWS])}
    return found


def versions():
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def packed(numbers):
    """Base64 of little-endian f32."""
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f4").tobytes()).decode()


def described(values):
    """Shape, type and checksum of a tensor."""
    shape = "x".join(map(str, values.shape))
    return f"{shape} {'u8' if values.dtype == np.uint8 else 'f32'} {formula.checksum(values)}"


def rounded(value):
    return None if value is None else float(f"{value:.3g}")


def in_lines(value):
    """JSON with a line for each field, and for each entry of an object in a field."""
    lines = []
    for name, field in value.items():
        if isinstance(field, dict) and field:
            entries = ",\n".join(
                f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in field.items()
            )
            lines.append(f"  {json.dumps(name)}: {{\n{entries}\n  }}")
        else:
            lines.append(f"  {json.dumps(name)}: {json.dumps(field)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path, text):
    path.write_text(text)


if __name__ == "__main__":
    main()
