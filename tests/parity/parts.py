"""Fields that several configurations share."""

VOCABULARY = 96

DENSE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    # Far from the usual 1e-6, so that a constant in the place of the field is noticed.
    "rms_norm_eps": 1e-2,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}

YARN = {"factor": 4.0, "original_max_position_embeddings": 512}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2}
WINDOWS = ["sliding_attention"] * 5 + ["full_attention"]
DELTA = ["linear_attention"] * 3 + ["full_attention"]
GEMMA = {
    "head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 16,
    "query_pre_attn_scalar": 24,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
DELTA_NET = {
    # Near the mean square of the delta net's outputs, which are small so that the eps of l2norm matters.
    "rms_norm_eps": 1e-6,
    "num_hidden_layers": 4,
    "head_dim": 32,
    "layer_types": DELTA,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    "attention_bias": False,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
}
QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": 16,
    "num_heads": 1,
    "in_channels": 3,
    "patch_size": 2,
    "spatial_merge_size": 1,
    "temporal_patch_size": 1,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
MAMBA = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "attention_bias": False,
    "position_embedding_type": "nope",
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.125,
    "logits_scaling": 3.0,
    "shared_intermediate_size": 64,
    "mamba_n_heads": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "tie_word_embeddings": True,
}
