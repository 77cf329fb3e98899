"""Limits of the references by family, and under which fields they are compared instead."""

# Fields that mlx-lm does not read, with the values under which both references are compared.
MLX_LM_WITH = {
    "mistral": {"sliding_window": None},
    "qwen2_yarn": {"use_sliding_window": False},
    "phi3": {"sliding_window": None, "rope_scaling": None},
    "gemma2": {"sliding_window": 4096},
    "olmoe": {"clip_qkv": None},
    "gpt_oss_mxfp4": {
        "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 512,
            "truncate": True,
        },
    },
}
# Families that cannot be compared with mlx-lm at all.
MLX_LM_NOT = {
    "gpt_oss": "reads experts in MXFP4 only",
    "qwen3_5": "knows the multimodal configuration only; see qwen3_5_vision",
    "gemma3": "reads no rope_parameters by kind of layer",
    "gemma3_vision": "expects the vocabulary of the checkpoints",
}

# Families of which the Hub's checkpoints hold experts stacked, as the model does, though transformers saves them apart.
STACKED = ("qwen3_5_moe",)

# Without GGUF, because another fixture has the same, or the converter does not know the configuration.
GGUF_NOT = {
    "gemma3_flat": "the same as gemma3",
    "gemma3_vision": "the same as gemma3",
    "qwen3_5": "the same as qwen3_5_vision",
    "qwen3_moe_mixed": "llama.cpp knows no layers without experts in this family",
}

# Fields that a GGUF file of llama.cpp's converter cannot say, with the values that its models have then.
GGUF_WITH = {
    "mistral": {"sliding_window": None},
    "qwen2_yarn": {"use_sliding_window": False},
    "olmoe": {"clip_qkv": None, "rms_norm_eps": 1e-5},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "gpt_oss": {"swiglu_limit": 7.0},
    "gpt_oss_mxfp4": {"swiglu_limit": 7.0},
}

# Families whose reference turns keys of a short sequence by other angles than those of a long one, so that the
# cache of its first chunks is not the model's.
NOT_CHUNKED = ("phi3",)

# Mistakes that change the logits by less than a fit fixture's hundred tolerances, and by at least ten.
CLOSE = {
    "exact GELU": "both forms of GELU differ by less than 0.0005",
}
