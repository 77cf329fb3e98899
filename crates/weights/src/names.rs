//! The names of tensors in files, and the forms in which files store them.
//!
//! A table of [`Name`]s says how a family calls the tensor of each [`Role`]. Llama's names are
//! [`COMMON`]; a family lists only the names that differ. Several names of one role are
//! alternatives, of which the first that the files have is used.

use super::role::Role;

/// A kind of model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Container {
    HuggingFace,
    Gguf,
}

/// The name and the stored form of a role's tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) role: Role,
    pub(crate) container: Container,
    /// The part behind the layer's prefix. `{}` stands for the index of an expert.
    pub(crate) text: &'static str,
    /// The only mixers whose layers have it.
    pub(crate) mixers: Mixers,
    pub(crate) form: Form,
    pub(crate) values: Values,
}

/// The layers that a name is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixers {
    All,
    Attention,
    Recurrent,
}

/// How the rows of a role's tensor lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As they are needed. Dimensions of size 1 may be missing or added.
    Whole,
    /// The tensors of these roles one below the other; for experts, of each expert.
    Stacked(&'static [Role]),
    /// One head of each of these roles, then the next head of each.
    HeadByHead(&'static [Role]),
    /// One row of each of these roles, then the next row of each.
    RowByRow(&'static [Role]),
    /// Like `RowByRow`, with rows and columns exchanged: `[experts, in, out]`.
    ColumnByColumn(&'static [Role]),
    /// Like `RowByRow`, in the format MXFP4, as two tensors whose names end with `_blocks` and
    /// `_scales`: `[experts, out, in / 32, 16]` and `[experts, out, in / 32]`.
    Mxfp4(&'static [Role]),
    /// A tensor for each expert.
    PerExpert,
    /// Rows of rotated heads in llama.cpp's interleaved order.
    InterleavedHeads,
    /// Value heads of a delta net in llama.cpp's order: the first ones of all key heads, then
    /// the second ones, and so on.
    TiledValueHeads,
}

/// How the numbers in the file become those that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Values {
    AsStored,
    /// `1 + x`: norm weights of Gemma and Qwen3.5.
    PlusOne,
    /// `-exp(x)`: decay rates.
    NegExp,
}

impl Name {
    const fn new(container: Container, role: Role, text: &'static str) -> Self {
        Self {
            role,
            container,
            text,
            mixers: Mixers::All,
            form: Form::Whole,
            values: Values::AsStored,
        }
    }

    pub(crate) const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    pub(crate) const fn plus_one(self) -> Self {
        Self {
            values: Values::PlusOne,
            ..self
        }
    }

    pub(crate) const fn neg_exp(self) -> Self {
        Self {
            values: Values::NegExp,
            ..self
        }
    }

    pub(crate) const fn in_attention(self) -> Self {
        Self {
            mixers: Mixers::Attention,
            ..self
        }
    }

    pub(crate) const fn in_recurrent(self) -> Self {
        Self {
            mixers: Mixers::Recurrent,
            ..self
        }
    }
}

/// A name in Hugging Face folders.
pub(crate) const fn hf(role: Role, text: &'static str) -> Name {
    Name::new(Container::HuggingFace, role, text)
}

/// A name in GGUF files.
pub(crate) const fn gguf(role: Role, text: &'static str) -> Name {
    Name::new(Container::Gguf, role, text)
}

/// Gate and up projections, in the order in which they are fused.
pub(crate) const GATE_UP: &[Role] = &[Role::Gate, Role::Up];
/// Gate and up projections of experts.
pub(crate) const EXPERT_GATE_UP: &[Role] = &[Role::ExpertGate, Role::ExpertUp];

/// Names of Llama's tensors and of those that most families call alike.
pub(crate) const COMMON: &[Name] = &[
    hf(Role::Embedding, "embed_tokens.weight"),
    hf(Role::FinalNorm, "norm.weight"),
    hf(Role::Head, "lm_head.weight"),
    hf(Role::MixerNorm, "input_layernorm.weight"),
    hf(Role::MixerPostNorm, "post_attention_layernorm.weight"),
    hf(Role::MlpNorm, "post_attention_layernorm.weight"),
    hf(Role::MlpPostNorm, "post_feedforward_layernorm.weight"),
    hf(Role::Query, "self_attn.q_proj.weight"),
    hf(Role::Key, "self_attn.k_proj.weight"),
    hf(Role::Value, "self_attn.v_proj.weight"),
    hf(Role::MixerOutput, "self_attn.o_proj.weight"),
    hf(Role::QueryBias, "self_attn.q_proj.bias"),
    hf(Role::KeyBias, "self_attn.k_proj.bias"),
    hf(Role::ValueBias, "self_attn.v_proj.bias"),
    hf(Role::MixerOutputBias, "self_attn.o_proj.bias"),
    hf(Role::QueryNorm, "self_attn.q_norm.weight"),
    hf(Role::KeyNorm, "self_attn.k_norm.weight"),
    hf(Role::Gate, "mlp.gate_proj.weight"),
    hf(Role::Up, "mlp.up_proj.weight"),
    hf(Role::Down, "mlp.down_proj.weight"),
    hf(Role::GateBias, "mlp.gate_proj.bias"),
    hf(Role::UpBias, "mlp.up_proj.bias"),
    hf(Role::DownBias, "mlp.down_proj.bias"),
    hf(Role::Router, "mlp.gate.weight"),
    hf(Role::ExpertGate, "mlp.experts.{}.gate_proj.weight").form(Form::PerExpert),
    hf(Role::ExpertGate, "mlp.experts.gate_up_proj").form(Form::Stacked(EXPERT_GATE_UP)),
    hf(Role::ExpertGate, "mlp.switch_mlp.gate_proj.weight"),
    hf(Role::ExpertUp, "mlp.experts.{}.up_proj.weight").form(Form::PerExpert),
    hf(Role::ExpertUp, "mlp.experts.gate_up_proj").form(Form::Stacked(EXPERT_GATE_UP)),
    hf(Role::ExpertUp, "mlp.switch_mlp.up_proj.weight"),
    hf(Role::ExpertDown, "mlp.experts.{}.down_proj.weight").form(Form::PerExpert),
    hf(Role::ExpertDown, "mlp.experts.down_proj"),
    hf(Role::ExpertDown, "mlp.switch_mlp.down_proj.weight"),
    hf(Role::SharedGate, "mlp.shared_expert.gate_proj.weight"),
    hf(Role::SharedUp, "mlp.shared_expert.up_proj.weight"),
    hf(Role::SharedDown, "mlp.shared_expert.down_proj.weight"),
    hf(Role::SharedScore, "mlp.shared_expert_gate.weight"),
    gguf(Role::Embedding, "token_embd.weight"),
    gguf(Role::FinalNorm, "output_norm.weight"),
    gguf(Role::Head, "output.weight"),
    gguf(Role::MixerNorm, "attn_norm.weight"),
    gguf(Role::MixerPostNorm, "post_attention_norm.weight"),
    gguf(Role::MlpNorm, "ffn_norm.weight"),
    gguf(Role::MlpPostNorm, "post_ffw_norm.weight"),
    gguf(Role::Query, "attn_q.weight"),
    gguf(Role::Key, "attn_k.weight"),
    gguf(Role::Value, "attn_v.weight"),
    gguf(Role::MixerOutput, "attn_output.weight"),
    gguf(Role::QueryBias, "attn_q.bias"),
    gguf(Role::KeyBias, "attn_k.bias"),
    gguf(Role::ValueBias, "attn_v.bias"),
    gguf(Role::MixerOutputBias, "attn_output.bias"),
    gguf(Role::QueryNorm, "attn_q_norm.weight"),
    gguf(Role::KeyNorm, "attn_k_norm.weight"),
    gguf(Role::Gate, "ffn_gate.weight"),
    gguf(Role::Up, "ffn_up.weight"),
    gguf(Role::Down, "ffn_down.weight"),
    gguf(Role::GateBias, "ffn_gate.bias"),
    gguf(Role::UpBias, "ffn_up.bias"),
    gguf(Role::DownBias, "ffn_down.bias"),
    gguf(Role::Router, "ffn_gate_inp.weight"),
    gguf(Role::RouterBias, "ffn_gate_inp.bias"),
    gguf(Role::ExpertGate, "ffn_gate_exps.weight"),
    gguf(Role::ExpertGate, "ffn_gate_up_exps.weight").form(Form::Stacked(EXPERT_GATE_UP)),
    gguf(Role::ExpertUp, "ffn_up_exps.weight"),
    gguf(Role::ExpertUp, "ffn_gate_up_exps.weight").form(Form::Stacked(EXPERT_GATE_UP)),
    gguf(Role::ExpertDown, "ffn_down_exps.weight"),
    gguf(Role::ExpertGateBias, "ffn_gate_exps.bias"),
    gguf(Role::ExpertUpBias, "ffn_up_exps.bias"),
    gguf(Role::ExpertDownBias, "ffn_down_exps.bias"),
    gguf(Role::SharedGate, "ffn_gate_shexp.weight"),
    gguf(Role::SharedUp, "ffn_up_shexp.weight"),
    gguf(Role::SharedDown, "ffn_down_shexp.weight"),
    gguf(Role::SharedScore, "ffn_gate_inp_shexp.weight"),
];

/// The names of a role in a family's files, in the order in which they are tried.
pub(crate) fn names_of(
    own: &'static [Name],
    container: Container,
    role: Role,
    attends: bool,
) -> impl Iterator<Item = &'static Name> {
    let fits = move |name: &&Name| {
        let mixers = match name.mixers {
            Mixers::All => true,
            Mixers::Attention => attends,
            Mixers::Recurrent => !attends,
        };
        name.role == role && name.container == container && mixers
    };
    let table = if own.iter().any(|name| fits(&name)) {
        own
    } else {
        COMMON
    };
    table.iter().filter(fits)
}
