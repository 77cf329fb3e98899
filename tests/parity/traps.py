"""The mistakes that each family can suffer, by name."""

import torch

import mutants as m

SILU_FOR_GELU = {"SiLU for GELU": m.field(hidden_activation="silu")}
GATE_AND_UP = {
    "gate and up exchanged": m.modules(
        "MLP",
        lambda mlp: (
            lambda gate, up: (setattr(mlp, "gate_proj", up), setattr(mlp, "up_proj", gate))
        )(mlp.gate_proj, mlp.up_proj),
    )
}


def gemma_norms(qk):
    suffixes = [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
        "model.norm",
    ]
    if qk:
        suffixes += ["q_norm", "k_norm"]
    return {
        f"{suffix} without + 1": m.weights(f"{suffix}.weight", m.without_one) for suffix in suffixes
    }


def no_embedding_scale(name="embed_scale"):
    def change(module):
        getattr(module, name).fill_(1.0)

    return {"no embedding scale": m.modules("ScaledWordEmbedding", change)}


def post_norms_left_out(*names):
    def change(layer):
        for name in names:
            setattr(layer, name, torch.nn.Identity())

    return m.modules("DecoderLayer", change)


def gemma3(nested=False, pattern=None, window=16):
    if nested:
        thetas = {
            "theta of full layers in windows": m.field(
                rope_parameters__sliding_attention={"rope_type": "default", "rope_theta": 1000000.0}
            ),
            "theta of windows in full layers": m.field(
                rope_parameters__full_attention={
                    "rope_type": "linear",
                    "factor": 8.0,
                    "rope_theta": 10000.0,
                }
            ),
            "no scaling in full layers": m.field(
                rope_parameters__full_attention={"rope_type": "default", "rope_theta": 1000000.0}
            ),
            "scaling in windows too": m.field(
                rope_parameters__sliding_attention={
                    "rope_type": "linear",
                    "factor": 8.0,
                    "rope_theta": 10000.0,
                }
            ),
            "full layers elsewhere": m.field(
                layer_types=["full_attention"] + ["sliding_attention"] * 5
            ),
        }
    else:
        thetas = {
            "theta of full layers in windows": m.field(rope_local_base_freq=1000000.0),
            "theta of windows in full layers": m.field(rope_theta=10000.0),
            "no scaling in full layers": m.field(rope_scaling=None),
            "another pattern": m.field(sliding_window_pattern=pattern),
        }
    return {
        **m.common(),
        **m.window(window),
        **gemma_norms(True),
        **no_embedding_scale(),
        **SILU_FOR_GELU,
        **thetas,
        **GATE_AND_UP,
        "scale by head_dim": m.field(query_pre_attn_scalar=16),
        "norm of queries and keys after the rotation": m.norm_after_rotation("q_norm", "k_norm"),
        "no norm of queries and keys": m.no_norm("q_norm", "k_norm"),
        "exact GELU": m.field(hidden_activation="gelu"),
    }


QK_NORM = {
    "no norm of queries and keys": m.no_norm("q_norm", "k_norm"),
    "norm of queries and keys after the rotation": m.norm_after_rotation("q_norm", "k_norm"),
    "norm of queries and keys with 1 + w": m.weights("_norm.weight", m.with_one),
}


# Where one norm covers all heads; the rotation follows it in the same way.
ROW_NORM = {name: mutant for name, mutant in QK_NORM.items() if "after" not in name}


def yarn(at, parameters):
    """Mistakes in yarn, with the parameters at this field of the configuration."""

    def changed(**fields):
        return m.field(**{at: {**parameters, **fields}})

    plain = {
        key: value
        for key, value in parameters.items()
        if not key.startswith(("beta_", "mscale", "truncate"))
    }
    plain.pop("type", None)
    return {
        "yarn as the default rope": m.field(**{at: {**plain, "rope_type": "default"}}),
        "yarn as linear scaling": m.field(**{at: {**plain, "rope_type": "linear"}}),
        "yarn with another magnitude": changed(attention_factor=1.1),
        "yarn with truncate turned": changed(truncate=not parameters.get("truncate", True)),
        "yarn with other betas": changed(beta_fast=16.0, beta_slow=2.0),
    }


def routing(divided):
    return {
        "no division of the chosen shares" if divided else "chosen shares divided": m.router(
            m.softmax_first if divided else m.softmax_first_divided
        ),
        "sigmoid for softmax": m.router(m.sigmoid_first),
        "one expert fewer": m.router(m.one_expert_fewer),
    }


def swapped_experts(module):
    module.gate_up_proj.data = torch.cat(
        list(reversed(module.gate_up_proj.data.chunk(2, dim=1))), dim=1
    )


EXPERT_HALVES = {"gate and up of experts exchanged": m.modules("Experts", swapped_experts)}


def delta_net():
    def gate_before_heads(attention, rows):
        """All queries first, then all gates, instead of both per head."""
        flat = rows.unflatten(-1, (2, -1, attention.head_dim))
        return flat.transpose(-2, -3).reshape(rows.shape)

    def order_of_qkv(net, rows):
        q, k, v = rows.split([net.key_dim, net.key_dim, net.value_dim], dim=-1)
        return torch.cat([k, q, v], dim=-1)

    def no_gate(attention, rows):
        heads = rows.unflatten(-1, (-1, 2 * attention.head_dim)).clone()
        heads[..., attention.head_dim :] = 1e4
        return heads.reshape(rows.shape)

    def silu_missing(right):
        return lambda *positional, activation=None, **named: right(
            *positional, activation=None, **named
        )

    def gate_first(norm):
        """The gate before the norm, as Mamba2 has it."""

        def wrong(states, gate):
            states = states * torch.nn.functional.silu(gate)
            return (
                norm.weight
                * states
                * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
            )

        norm.forward = wrong

    return {
        **m.common(wrong_eps=1e-5),
        **QK_NORM_PLUS_ONE,
        "norms without + 1": m.weights("layernorm.weight", m.without_one),
        "inner norm with 1 + w": m.weights("linear_attn.norm.weight", m.with_one),
        "gate before the inner norm": m.modules("RMSNormGated", gate_first),
        "no gate of attention": m.projected("Attention", "q_proj", no_gate),
        "gates behind all queries": m.projected("Attention", "q_proj", gate_before_heads),
        "whole heads rotated": m.field(
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000000.0,
                "partial_rotary_factor": 1.0,
                "mrope_section": [6, 5, 5],
            }
        ),
        "theta of another model": m.field(
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
            }
        ),
        "value heads tiled": m.delta_rule(m.tiled_value_heads),
        "eps of l2norm on the mean": m.in_context("l2norm", m.l2norm_of_mean),
        "eps of l2norm as a maximum": m.in_context("l2norm", m.l2norm_of_maximum),
        "no l2norm": m.in_context("l2norm", lambda x, dim=-1, eps=1e-6: x),
        "queries not scaled": m.delta_rule(scaled_output),
        "order of q and k in qkv": m.projected("DeltaNet", "in_proj_qkv", order_of_qkv),
        "conv reversed": m.weights("conv1d.weight", lambda value: value.flip(-1)),
        "no SiLU behind the conv": m.function("causal_conv1d_fn", silu_missing),
        "no dt_bias": m.zero("dt_bias"),
        "A_log not exponentiated": m.weights("A_log", lambda value: value.abs().log()),
        "no decay": m.weights("A_log", lambda value: value - 50.0),
        "beta left out": m.projected("DeltaNet", "in_proj_b", lambda _net, rows: rows + 1e4),
        "z left out": m.projected("DeltaNet", "in_proj_z", lambda _net, rows: rows * 0 + 1.278465),
        "recurrent state lost at a cut": m.carried(m.lose("recurrent_states")),
        "conv state lost at a cut": m.carried(m.lose("conv_states")),
    }


def scaled_output(right):
    def wrong(query, *rest, **named):
        output, state = right(query, *rest, **named)
        return output * query.shape[-1] ** 0.5, state

    return wrong


QK_NORM_PLUS_ONE = {
    "no norm of queries and keys": m.no_norm("q_norm", "k_norm"),
    "norm of queries and keys after the rotation": m.norm_after_rotation("q_norm", "k_norm"),
    "q_norm without + 1": m.weights("q_norm.weight", m.without_one),
    "k_norm without + 1": m.weights("k_norm.weight", m.without_one),
}


def mamba(experts):
    def norm_before_gate(norm):
        def wrong(states, gate):
            normed = states * torch.rsqrt(
                states.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon
            )
            return norm.weight * normed * torch.nn.functional.silu(gate)

        norm.forward = wrong

    def b_and_c(layer, rows):
        """B and C exchanged in the projection."""
        size = layer.n_groups * layer.ssm_state_size
        gate, x, b, c, dt = rows.split(
            [layer.intermediate_size, layer.intermediate_size, size, size, layer.num_heads], dim=-1
        )
        return torch.cat([gate, x, c, b, dt], dim=-1)

    found = {
        **m.common(adjacent=False),
        "rope where there is none": m.field(position_embedding_type="rope"),
        "scale by head_dim": m.field(attention_multiplier=0.25),
        "no residual multiplier": m.field(residual_multiplier=1.0),
        "no embedding multiplier": m.field(embedding_multiplier=1.0),
        "logits not divided": m.field(logits_scaling=1.0),
        "D left out": m.zero("mamba.D"),
        "no dt_bias": m.zero("dt_bias"),
        "no conv bias": m.zero("conv1d.bias"),
        "conv reversed": m.weights("conv1d.weight", lambda value: value.flip(-1)),
        "A_log not exponentiated": m.weights("A_log", lambda value: value.abs().log()),
        "norm before the gate": m.modules("RMSNormGated", norm_before_gate),
        "B and C exchanged": m.projected("MambaLayer", "in_proj", b_and_c),
        "gate and up of the shared MLP exchanged": m.weights(
            "shared_mlp.input_linear.weight", m.swapped_halves
        ),
        "recurrent state lost at a cut": m.carried(m.lose("recurrent_states")),
        "conv state lost at a cut": m.carried(m.lose("conv_states")),
    }
    if experts:
        found |= {**routing(True), "no shared MLP": m.zero("shared_mlp.output_linear.weight")}
    return found
