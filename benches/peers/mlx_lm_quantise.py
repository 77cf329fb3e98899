"""Quantises a model as mlx-lm's converter does: affine, groups of 64, all modules alike.

usage: mlx_lm_quantise.py PACKAGES MODEL FOLDER BITS
    PACKAGES  folder that mlx-lm was installed into
    MODEL     folder with config.json and safetensors in f32
    FOLDER    folder for the quantised model, whose scales are bf16
"""

import os
import sys
from pathlib import Path

packages, model_folder, folder, bits = sys.argv[1:]
sys.path.insert(0, packages)
os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx  # noqa: E402
from mlx_lm.utils import load_model, quantize_model, save_config, save_model  # noqa: E402

mx.set_default_device(mx.cpu)
model, config = load_model(Path(model_folder))
model.set_dtype(mx.bfloat16)
model, config = quantize_model(model, config, group_size=64, bits=int(bits))
save_model(folder, model)
save_config(config, Path(folder) / "config.json")
