"""The mistakes that each fixture must show."""

import torch

import mutants as m
import traps as t


def rotated_everywhere(module):
    module.use_rope = True


def left_out(*names):
    """Norms of a layer left out."""
    return m.modules(
        "DecoderLayer", lambda layer: [setattr(layer, name, torch.nn.Identity()) for name in names]
    )


def norms_before_blocks(layer):
    """The norms of OLMo 2 before the blocks, as in Llama."""
    attention, mlp = layer.self_attn.forward, layer.mlp.forward
    after_attention, after_mlp = layer.post_attention_layernorm, layer.post_feedforward_layernorm
    layer.self_attn.forward = lambda hidden_states, *rest, **named: attention(
        hidden_states=after_attention(hidden_states), *rest, **named
    )
    layer.mlp.forward = lambda states: mlp(after_mlp(states))
    layer.post_attention_layernorm = layer.post_feedforward_layernorm = torch.nn.Identity()


def fused_rows(order):
    """The parts of Phi's fused projection of queries, keys and values in another order."""
    return lambda rows: torch.cat([rows.split([64, 32, 32])[part] for part in order])


def unlimited(module):
    module.limit = 1e9


def plain_swiglu(module):
    module._apply_gate = lambda rows: torch.nn.functional.silu(rows[..., ::2]) * rows[..., 1::2]


def without_the_one(module):
    def apply(rows):
        gate, up = (
            rows[..., ::2].clamp(max=module.limit),
            rows[..., 1::2].clamp(-module.limit, module.limit),
        )
        return up * gate * torch.sigmoid(gate * module.alpha)

    module._apply_gate = apply


def halves(module):
    def apply(rows):
        gate, up = rows.chunk(2, dim=-1)
        gate, up = gate.clamp(max=module.limit), up.clamp(-module.limit, module.limit)
        return (up + 1) * gate * torch.sigmoid(gate * module.alpha)

    module._apply_gate = apply


def swapped_w1_w3(mlp):
    mlp.w1, mlp.w3 = mlp.w3, mlp.w1


def order_of_b_c_x(conv, rows):
    b, c, x = rows.chunk(3, dim=-1)
    return torch.cat([c, b, x], dim=-1)


def conv_with_silu(right):
    return lambda states, weight, bias=None, activation=None, **named: right(
        states, weight, bias, "silu", **named
    )


def ungated_shared_expert(block):
    gate = block.shared_expert_gate
    gate.forward = lambda rows: torch.full_like(rows[..., :1], 1e4)


def dense(configs):
    llama3 = configs["llama"]["rope_scaling"]
    qwen_yarn = configs["qwen2_yarn"]["rope_scaling"]
    ministral = configs["ministral3"]["rope_parameters"]
    longrope = configs["phi3"]["rope_scaling"]

    def rope(**fields):
        return m.field(rope_scaling=fields)

    granite = {
        "no residual multiplier": m.field(residual_multiplier=1.0),
        "no embedding multiplier": m.field(embedding_multiplier=1.0),
        "logits not divided": m.field(logits_scaling=1.0),
        "scale by head_dim": m.field(attention_multiplier=0.25),
    }
    return {
        "llama": {
            **m.common(theta=10000.0),
            **t.GATE_AND_UP,
            "no scaling of the rope": m.field(rope_scaling=None),
            "linear scaling of the rope": rope(rope_type="linear", factor=8.0),
            "other factors of llama3": m.field(rope_scaling={**llama3, "high_freq_factor": 2.0}),
        },
        "mistral": {**m.common(theta=1000000.0), **m.window(16)},
        "ministral3": {
            **m.common(),
            **t.yarn("rope_parameters", ministral),
            "no scale of queries by position": m.field(
                rope_parameters={**ministral, "llama_4_scaling_beta": 0.0}
            ),
            "magnitude though mscale cancels it": m.field(
                rope_parameters={k: v for k, v in ministral.items() if "mscale" not in k}
            ),
        },
        "qwen2": {
            **m.common(theta=10000.0),
            "a window that is turned off": m.field(use_sliding_window=True, max_window_layers=0),
            "no bias of queries": m.zero("q_proj.bias"),
            "no bias of keys": m.zero("k_proj.bias"),
            "no bias of values": m.zero("v_proj.bias"),
            "a bias of the output": m.extra_bias("o_proj"),
        },
        "qwen2_yarn": {
            **m.common(theta=1000000.0),
            **m.window(16),
            **t.yarn("rope_scaling", qwen_yarn),
            "windows in all layers": m.field(max_window_layers=0),
        },
        "qwen3": {
            **m.common(theta=10000.0),
            **t.QK_NORM,
            "a bias of the output": m.extra_bias("o_proj"),
        },
        "smollm3": {
            **m.common(theta=10000.0),
            "rope in every layer": m.field(no_rope_layers=[1, 1, 1, 1]),
            "another layer without rope": m.field(no_rope_layers=[0, 1, 1, 1]),
        },
        "phi3": {
            **m.common(theta=1000000.0),
            **m.window(48),
            "order of q, k, v": m.weights("qkv_proj.weight", fused_rows([0, 2, 1])),
            "gate and up exchanged": m.weights("gate_up_proj.weight", m.swapped_halves),
            "whole heads rotated": whole_heads(longrope),
            "the short factors": m.field(
                rope_scaling={**longrope, "long_factor": longrope["short_factor"]}
            ),
            "no factors": m.field(rope_scaling={**longrope, "long_factor": [1.0] * 6}),
            "no magnitude": m.attribute("RotaryEmbedding", "attention_scaling", lambda _value: 1.0),
        },
        "olmo2": {
            **m.common(theta=10000.0),
            **t.ROW_NORM,
            **t.GATE_AND_UP,
            "norm of queries and keys per head": m.modules("Attention", m.norm_per_head),
            "norms before the blocks": m.modules("DecoderLayer", norms_before_blocks),
            "no norm after attention": left_out("post_attention_layernorm"),
            "no norm after the MLP": left_out("post_feedforward_layernorm"),
        },
        "granite": {**m.common(theta=1000000.0), **granite},
    }


def whole_heads(longrope):
    wider = {
        **longrope,
        "short_factor": longrope["short_factor"] + [3.0] * 2,
        "long_factor": longrope["long_factor"] + [3.0] * 2,
    }
    return m.field(partial_rotary_factor=1.0, rope_scaling=wider)


def gemma(configs):
    return {
        "gemma2": {
            **m.common(theta=1000000.0),
            **m.window(16),
            **t.gemma_norms(False),
            **t.no_embedding_scale(),
            **t.SILU_FOR_GELU,
            "scale by head_dim": m.field(query_pre_attn_scalar=16),
            "no softcap on scores": m.field(attn_logit_softcapping=None),
            "no softcap on logits": m.field(final_logit_softcapping=None),
            "softcaps exchanged": m.field(attn_logit_softcapping=3.0, final_logit_softcapping=4.0),
            "windows in the odd layers": m.field(
                layer_types=["full_attention", "sliding_attention"] * 2
            ),
            "no norm after attention": left_out("post_attention_layernorm"),
            "no norm after the MLP": left_out("post_feedforward_layernorm"),
        },
        "gemma3": t.gemma3(nested=True),
        "gemma3_flat": t.gemma3(pattern=6),
        "gemma3_vision": t.gemma3(pattern=3),
    }


def experts(configs):
    yarn = configs["gpt_oss"]["rope_scaling"]
    return {
        "qwen3_moe": {**m.common(theta=10000.0), **t.QK_NORM, **t.routing(True), **t.EXPERT_HALVES},
        "qwen3_moe_mixed": {
            **m.common(theta=10000.0),
            **t.QK_NORM,
            **t.routing(True),
            **t.EXPERT_HALVES,
            **t.GATE_AND_UP,
        },
        "olmoe": {
            **m.common(theta=1000000.0),
            **t.ROW_NORM,
            **t.routing(False),
            **t.EXPERT_HALVES,
            "norm of queries and keys per head": m.modules("Attention", m.norm_per_head),
            "no clip of queries, keys and values": m.field(clip_qkv=None),
        },
        "mixtral": {
            **m.common(theta=10000.0),
            **t.routing(True),
            **t.EXPERT_HALVES,
            "no division of shares of a softmax over all": m.router(m.softmax_first),
        },
        **dict.fromkeys(
            ("gpt_oss", "gpt_oss_mxfp4"),
            {
                **m.common(theta=10000.0),
                **m.window(16),
                **t.yarn("rope_scaling", yarn),
                "no sinks": m.weights("sinks", lambda value: value - 1e9),
                "windows in the odd layers": m.field(
                    layer_types=["full_attention", "sliding_attention"] * 2
                ),
                "softmax before the choice": m.router(m.softmax_first),
                "sigmoid for softmax": m.router(m.sigmoid_first),
                "one expert fewer": m.router(m.one_expert_fewer),
                "no bias of the router": m.zero("router.bias"),
                "no bias of gate and up": m.zero("gate_up_proj_bias"),
                "no bias of down": m.zero("down_proj_bias"),
                "no bias of the output": m.zero("o_proj.bias"),
                "no clamp": m.modules("Experts", unlimited),
                "plain SwiGLU": m.modules("Experts", plain_swiglu),
                "up without + 1": m.modules("Experts", without_the_one),
                "gate and up as halves": m.modules("Experts", halves),
                "alpha of SiLU": m.attribute("Experts", "alpha", lambda _value: 1.0),
            },
        ),
    }


def hybrids(_configs):
    delta_net = t.delta_net()
    lfm2 = {
        **m.common(theta=10000.0, eps="norm_eps"),
        "conv reversed": m.weights("conv.conv.weight", lambda value: value.flip(-1)),
        "order of B, C, x": m.projected("ShortConv", "in_proj", order_of_b_c_x),
        "SiLU behind the conv": m.function("causal_conv1d_fn", conv_with_silu),
        "w1 and w3 exchanged": m.modules("MLP", swapped_w1_w3),
        "no norm of queries and keys": m.no_norm("q_layernorm", "k_layernorm"),
        "norm of queries and keys after the rotation": m.norm_after_rotation(
            "q_layernorm", "k_layernorm"
        ),
        "final norm before the layers": m.modules("Lfm2Model", norm_first),
        "conv state lost at a cut": m.carried(m.lose("conv_states")),
    }
    shared = {
        "no gate of the shared expert": m.modules("SparseMoeBlock", ungated_shared_expert),
        "no shared expert": m.zero("shared_expert.down_proj.weight"),
    }
    return {
        "lfm2": lfm2,
        "qwen3_5": {**delta_net, **t.GATE_AND_UP},
        "qwen3_5_vision": delta_net,
        "qwen3_5_moe": {**delta_net, **t.routing(True), **shared, **t.EXPERT_HALVES},
        "granitemoehybrid": t.mamba(False),
        "granitemoehybrid_moe": {**t.mamba(True), **t.EXPERT_HALVES},
    }


def norm_first(model):
    norm, embed = model.embedding_norm, model.embed_tokens.forward
    model.embed_tokens.forward = lambda tokens: norm(embed(tokens))
    model.embedding_norm = torch.nn.Identity()


def table(configs):
    return {**dense(configs), **gemma(configs), **experts(configs), **hybrids(configs)}
