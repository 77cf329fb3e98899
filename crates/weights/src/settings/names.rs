//! GGUF's spelling of the fields of `config.json`.

/// The suffix after the architecture's name.
const KEYS: &[(&str, &str)] = &[
    ("attention_multiplier", "attention.scale"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("clip_qkv", "attention.clamp_kqv"),
    ("conv_L_cache", "shortconv.l_cache"),
    ("embedding_multiplier", "embedding_scale"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("full_attention_interval", "full_attention_interval"),
    ("head_dim", "attention.key_length"),
    ("hidden_size", "embedding_length"),
    ("intermediate_size", "feed_forward_length"),
    ("linear_conv_kernel_dim", "ssm.conv_kernel"),
    ("linear_key_head_dim", "ssm.state_size"),
    ("linear_num_key_heads", "ssm.group_count"),
    ("linear_num_value_heads", "ssm.time_step_rank"),
    ("logits_scaling", "logit_scale"),
    ("mamba_d_conv", "ssm.conv_kernel"),
    ("mamba_d_inner", "ssm.inner_size"),
    ("mamba_d_state", "ssm.state_size"),
    ("mamba_n_groups", "ssm.group_count"),
    ("mamba_n_heads", "ssm.time_step_rank"),
    ("max_position_embeddings", "context_length"),
    ("moe_intermediate_size", "expert_feed_forward_length"),
    ("norm_topk_prob", "expert_weights_norm"),
    ("num_attention_heads", "attention.head_count"),
    ("num_experts", "expert_count"),
    ("num_experts_per_tok", "expert_used_count"),
    ("num_hidden_layers", "block_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("num_local_experts", "expert_count"),
    ("num_nextn_predict_layers", "nextn_predict_layers"),
    (
        "original_max_position_embeddings",
        "rope.scaling.original_context_length",
    ),
    ("residual_multiplier", "residual_scale"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
    ("rope_theta", "rope.freq_base"),
    ("rope_local_base_freq", "rope.freq_base_swa"),
    (
        "shared_expert_intermediate_size",
        "expert_shared_feed_forward_length",
    ),
    (
        "shared_intermediate_size",
        "expert_shared_feed_forward_length",
    ),
    ("sliding_window", "attention.sliding_window"),
    ("sliding_window_pattern", "attention.sliding_window_pattern"),
    ("vocab_size", "vocab_size"),
];

/// The key of a field, or None if GGUF has none. `rope.` and `attention.` names are GGUF's own.
pub(super) fn gguf_key(architecture: &str, field: &str) -> Option<String> {
    let found = KEYS.iter().find(|(name, _)| *name == field);
    let suffix = match found {
        Some((_, suffix)) => suffix,
        None if field.contains('.') => field,
        None => return None,
    };
    Some(format!("{architecture}.{suffix}"))
}
