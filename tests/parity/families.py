"""The tiny configuration of each family, as a checkpoint on the Hub would have it."""

from copy import deepcopy

from parts import (
    DELTA_NET,
    DENSE,
    EXPERTS,
    GEMMA,
    MAMBA,
    QWEN_VISION,
    WINDOWS,
    YARN,
)


def config(architecture, model_type, without=(), **fields):
    merged = {
        "architectures": [architecture],
        "model_type": model_type,
        **deepcopy(DENSE),
        **fields,
    }
    return {key: value for key, value in merged.items() if key not in without}


def gemma3_text(without=(), **fields):
    base = {**GEMMA, "num_hidden_layers": 6, **fields}
    return config("Gemma3ForCausalLM", "gemma3_text", without=("hidden_act", *without), **base)


def qwen3_moe(**fields):
    base = {
        "head_dim": 32,
        "rope_theta": 1000000.0,
        **EXPERTS,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "attention_bias": False,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 3,
    }
    return config("Qwen3MoeForCausalLM", "qwen3_moe", **{**base, **fields})


def gpt_oss(**fields):
    base = {
        "intermediate_size": 32,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "sliding_window": 16,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "experts_per_token": 2,
        "swiglu_limit": 1.5,
        "rope_theta": 150000.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "attention_bias": True,
        "initial_context_length": 512,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "original_max_position_embeddings": 512,
            "truncate": False,
        },
    }
    return config("GptOssForCausalLM", "gpt_oss", **{**base, **fields})


GEMMA3_ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
}


def nested(text, architecture, model_type, **fields):
    """A multimodal wrapper: the text model's fields are below `text_config`."""
    text = {key: value for key, value in text.items() if key not in ("architectures", "dtype")}
    outer = {"architectures": [architecture], "model_type": model_type, "dtype": "float32"}
    return {**outer, "text_config": text, **fields}


def families():
    """Each family's name and configuration."""
    delta_net = config("Qwen3_5ForCausalLM", "qwen3_5_text", without=("rope_theta",), **DELTA_NET)
    return {
        "llama": config(
            "LlamaForCausalLM",
            "llama",
            head_dim=16,
            rope_theta=500000.0,
            attention_bias=False,
            mlp_bias=False,
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        ),
        "mistral": config(
            "MistralForCausalLM",
            "mistral",
            head_dim=32,
            sliding_window=16,
            without=("pad_token_id",),
        ),
        "ministral3": config(
            "Ministral3ForCausalLM",
            "ministral3",
            without=("rope_theta",),
            head_dim=32,
            sliding_window=None,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.5,
            },
        ),
        "qwen2": config(
            "Qwen2ForCausalLM",
            "qwen2",
            rope_theta=1000000.0,
            sliding_window=16,
            use_sliding_window=False,
            max_window_layers=1,
            tie_word_embeddings=True,
        ),
        "qwen2_yarn": config(
            "Qwen2ForCausalLM",
            "qwen2",
            max_position_embeddings=2048,
            sliding_window=16,
            use_sliding_window=True,
            max_window_layers=1,
            rope_scaling={"type": "yarn", "rope_type": "yarn", **YARN},
        ),
        "qwen3": config(
            "Qwen3ForCausalLM",
            "qwen3",
            head_dim=32,
            rope_theta=1000000.0,
            attention_bias=False,
            sliding_window=None,
            use_sliding_window=False,
            max_window_layers=2,
            tie_word_embeddings=True,
        ),
        "smollm3": config(
            "SmolLM3ForCausalLM",
            "smollm3",
            num_hidden_layers=4,
            rope_theta=5000000.0,
            rope_scaling=None,
            no_rope_layers=[1, 1, 1, 0],
            no_rope_layer_interval=4,
            attention_bias=False,
            mlp_bias=False,
            use_sliding_window=False,
            sliding_window=None,
            tie_word_embeddings=True,
        ),
        "phi3": config(
            "Phi3ForCausalLM",
            "phi3",
            sliding_window=48,
            partial_rotary_factor=0.75,
            max_position_embeddings=4096,
            original_max_position_embeddings=16,
            attention_bias=False,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.3, 1.8, 2.2, 2.8],
                "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
            },
        ),
        "olmo2": config(
            "Olmo2ForCausalLM",
            "olmo2",
            rope_theta=500000.0,
            attention_bias=False,
            rope_scaling=None,
        ),
        "gemma2": config(
            "Gemma2ForCausalLM",
            "gemma2",
            without=("hidden_act",),
            **GEMMA,
            num_hidden_layers=4,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=3.0,
        ),
        "gemma3": gemma3_text(
            layer_types=WINDOWS, rope_parameters=GEMMA3_ROPES, without=("rope_theta",)
        ),
        "gemma3_flat": gemma3_text(
            sliding_window_pattern=3,
            rope_theta=1000000.0,
            rope_local_base_freq=10000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        "gemma3_vision": nested(
            gemma3_text(
                sliding_window_pattern=6,
                rope_theta=1000000.0,
                rope_local_base_freq=10000.0,
                rope_scaling={"rope_type": "linear", "factor": 8.0},
            ),
            "Gemma3ForConditionalGeneration",
            "gemma3",
            boi_token_index=93,
            eoi_token_index=94,
            image_token_index=95,
            mm_tokens_per_image=4,
            eos_token_id=[1, 2],
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "image_size": 8,
                "patch_size": 2,
                "vision_use_head": False,
            },
        ),
        "granite": config(
            "GraniteForCausalLM",
            "granite",
            attention_bias=False,
            mlp_bias=False,
            embedding_multiplier=3.0,
            residual_multiplier=0.5,
            attention_multiplier=0.125,
            logits_scaling=2.0,
            rope_scaling=None,
            tie_word_embeddings=True,
        ),
        "qwen3_moe": qwen3_moe(mlp_only_layers=[]),
        "qwen3_moe_mixed": qwen3_moe(mlp_only_layers=[1], num_hidden_layers=3, num_experts=4),
        "olmoe": config(
            "OlmoeForCausalLM",
            "olmoe",
            intermediate_size=32,
            **EXPERTS,
            norm_topk_prob=False,
            clip_qkv=1.5,
            attention_bias=False,
            rope_scaling=None,
        ),
        "mixtral": config(
            "MixtralForCausalLM",
            "mixtral",
            intermediate_size=32,
            num_local_experts=8,
            num_experts_per_tok=2,
            rope_theta=1000000.0,
            sliding_window=None,
        ),
        "gpt_oss": gpt_oss(),
        "gpt_oss_mxfp4": gpt_oss(
            quantization_config={
                "quant_method": "mxfp4",
                "modules_to_not_convert": [
                    "model.layers.*.self_attn",
                    "model.layers.*.mlp.router",
                    "model.embed_tokens",
                    "lm_head",
                ],
            }
        ),
        "lfm2": config(
            "Lfm2ForCausalLM",
            "lfm2",
            without=("rms_norm_eps", "intermediate_size", "hidden_act", "tie_word_embeddings"),
            num_hidden_layers=4,
            norm_eps=1e-2,
            block_dim=64,
            block_ff_dim=144,
            block_auto_adjust_ff_dim=True,
            block_multiple_of=32,
            block_ffn_dim_multiplier=1.0,
            conv_L_cache=3,
            conv_dim=64,
            conv_bias=False,
            rope_theta=1000000.0,
            tie_embedding=True,
            layer_types=["conv", "conv", "full_attention", "conv"],
        ),
        "qwen3_5": delta_net,
        "qwen3_5_vision": nested(
            delta_net,
            "Qwen3_5ForConditionalGeneration",
            "qwen3_5",
            image_token_id=93,
            video_token_id=94,
            vision_start_token_id=91,
            vision_end_token_id=92,
            tie_word_embeddings=False,
            vision_config={"model_type": "qwen3_5_vision", **QWEN_VISION},
        ),
        "qwen3_5_moe": nested(
            config(
                "",
                "qwen3_5_moe_text",
                without=("rope_theta", "intermediate_size"),
                **DELTA_NET,
                **EXPERTS,
                moe_intermediate_size=32,
                shared_expert_intermediate_size=32,
            ),
            "Qwen3_5MoeForConditionalGeneration",
            "qwen3_5_moe",
            image_token_id=93,
            video_token_id=94,
            vision_start_token_id=91,
            vision_end_token_id=92,
            tie_word_embeddings=False,
            vision_config={"model_type": "qwen3_5_moe_vision", **QWEN_VISION},
        ),
        "granitemoehybrid": config(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            **MAMBA,
            intermediate_size=64,
            num_local_experts=0,
            num_experts_per_tok=0,
        ),
        "granitemoehybrid_moe": config(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            **MAMBA,
            intermediate_size=32,
            num_local_experts=8,
            num_experts_per_tok=2,
        ),
    }
