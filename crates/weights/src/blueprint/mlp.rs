//! The blocks that see each token alone.

/// The MLP of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Mlp {
    /// One gated MLP for all tokens.
    Gated(Gated),
    /// Several, of which each token chooses some.
    Experts(Experts),
}

/// `down(activation(gate(x)) * up(x))` (SwiGLU and its kin, Shazeer 2020).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gated {
    /// Width between the projections.
    pub inner: usize,
    /// The activation.
    pub activation: Activation,
    /// Whether all three projections have a bias.
    pub bias: bool,
}

/// The function between an MLP's projections, of `gate` and `up`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, with the approximation by `tanh`.
    GeluTanh,
    /// With `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`:
    /// `(u + 1) * g * sigmoid(alpha * g)` (gpt-oss).
    ClampedSwiglu {
        /// Steepness of the sigmoid.
        alpha: f32,
        /// Bound of both inputs.
        limit: f32,
    },
}

/// A mixture of experts: gated MLPs, chosen for each token by a router (Shazeer et al. 2017).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts that each token uses; at most `count`.
    pub chosen: usize,
    /// Each expert.
    pub expert: Gated,
    /// How the router's logits become shares.
    pub routing: Routing,
    /// Whether the router has a bias.
    pub router_bias: bool,
    /// An MLP that every token uses beside the chosen ones.
    pub shared: Option<SharedExpert>,
}

/// How a router's logits become the shares of the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// A softmax over all experts, of which the largest are chosen. Their shares are divided by
    /// their sum if `normalised`.
    SoftmaxAll {
        /// Whether the shares sum to 1.
        normalised: bool,
    },
    /// The largest logits are chosen, and a softmax over these gives the shares.
    SoftmaxChosen,
}

/// The MLP beside the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpert {
    /// The MLP.
    pub mlp: Gated,
    /// Whether its output is multiplied by `sigmoid` of one number, a projection of the input.
    pub gated: bool,
}
