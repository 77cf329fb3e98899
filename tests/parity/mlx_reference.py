"""The second reference: mlx-lm on the CPU, where it knows the family."""

from pathlib import Path

import numpy as np


def logits(folder, tokens):
    """Logits of the whole sequence, or the reason why there are none."""
    try:
        import mlx.core as mx
        from mlx_lm.utils import load_model
    except ImportError as error:
        return None, f"not installed: {error}"
    mx.set_default_device(mx.cpu)
    mx.disable_compile()
    try:
        model, _config = load_model(Path(folder), lazy=False)
        rows = model(mx.array([tokens]))[0].astype(mx.float32)
        return np.array(rows).astype(np.float64), None
    except Exception as error:  # mlx-lm raises whatever its model files happen to raise
        return None, f"{type(error).__name__}: {error}"
