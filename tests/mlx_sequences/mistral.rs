//! A tiny random Mistral, whose window is much shorter than the prompts. The reference is the
//! naive model in double precision, which keeps all keys and looks at a window of them.

use motet::config::EngineConfig;
use motet::model::ModelSpec;
use motet::model::mlx::MlxModel;
use motet::model::weights::ModelFiles;
use motet::text::TextCodec;
use motet::{Engine, TokenId};
use motet_text::GgufVocabulary;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use crate::naive::{NaiveSlot, Scaling, Shape, Tiny, VOCAB};
use crate::reference_output::Shift;
use crate::setup::options;

pub(crate) const WINDOW: usize = 24;

const MISTRAL: Shape = Shape {
    layers: 3,
    hidden: 48,
    inner: 80,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    window: Some(WINDOW),
    bias: false,
    tied: true,
    scaling: Scaling::None,
};

/// Minimum margin of the best logit over the next; the error of single precision is smaller.
const MARGIN: f64 = 1e-5;

/// The model, and its reference outputs.
pub(crate) struct Mistral {
    tiny: Tiny,
    /// The same weights in a model whose layers see all tokens.
    unbounded: Tiny,
}

impl Mistral {
    pub(crate) fn new() -> Self {
        let unbounded = Shape {
            window: None,
            ..MISTRAL
        };
        Self {
            tiny: Tiny::new(MISTRAL, 5),
            unbounded: Tiny::new(unbounded, 5),
        }
    }

    pub(crate) fn spec(&self) -> ModelSpec {
        MlxModel::outline(&self.files(), &options()).expect("a CPU")
    }

    pub(crate) async fn engine(&self, config: EngineConfig) -> Engine {
        let files = self.files();
        let load = move || MlxModel::load(&files, options());
        let started = Engine::builder(load).text(codec()).config(config).start();
        started.await.expect("the engine starts")
    }

    fn files(&self) -> ModelFiles {
        ModelFiles::open(self.tiny.folder()).expect("a complete model")
    }

    /// The greedy output after a prompt.
    pub(crate) fn reference_output(
        &self,
        prompt: &[TokenId],
        output_tokens: usize,
    ) -> Vec<TokenId> {
        generate(&self.tiny, prompt, output_tokens, None)
    }

    /// Panics if the model without windows has the same output. Tokens would then not show
    /// whether windows are correct.
    pub(crate) fn check_window_matters(&self, prompt: &[TokenId], output: &[TokenId]) {
        let unbounded = generate(&self.unbounded, prompt, output.len(), None);
        assert_ne!(
            output, unbounded,
            "choose other tokens: the window makes no difference"
        );
    }

    /// Like [`reference_output`](Self::reference_output), where the context becomes full before
    /// the end. Remaining tokens are computed again.
    pub(crate) fn shifted_reference_output(
        &self,
        prompt: &[TokenId],
        output_tokens: usize,
        shift: Shift,
    ) -> Vec<TokenId> {
        generate(&self.tiny, prompt, output_tokens, Some(shift))
    }
}

fn generate(
    tiny: &Tiny,
    prompt: &[TokenId],
    output_tokens: usize,
    shift: Option<Shift>,
) -> Vec<TokenId> {
    let mut slot = NaiveSlot::new(tiny);
    let mut held: Vec<TokenId> = Vec::new();
    let mut next = prompt.to_vec();
    let mut output = Vec::new();
    while output.len() < output_tokens {
        if let Some(shift) = shift
            && held.len() == shift.context_tokens
        {
            held.drain(shift.keep..shift.keep + shift.discarded_tokens());
            slot = NaiveSlot::new(tiny);
            held.iter().for_each(|token| drop(slot.evaluate(*token)));
        }
        let mut logits = Vec::new();
        for token in &next {
            logits = slot.evaluate(*token);
        }
        held.append(&mut next);
        let best = likeliest(&logits);
        next.push(best);
        output.push(best);
    }
    output
}

fn likeliest(logits: &[f64]) -> TokenId {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let ahead = logits[order[0]] - logits[order[1]];
    assert!(
        ahead > MARGIN,
        "a margin of {ahead} is too small: choose other tokens"
    );
    order[0] as TokenId
}

/// `count` tokens, different for each `seed`.
pub(crate) fn tokens(seed: usize, count: usize) -> Vec<TokenId> {
    let mix = |index: usize| (index * 31 + seed * 17 + index * index * 7 + seed * index) % VOCAB;
    (0..count).map(|index| mix(index) as TokenId).collect()
}

/// Contexts of 256 tokens, and the given numbers of sequences and of tokens in a step.
pub(crate) fn config(sequences_max: usize, step_tokens: usize) -> EngineConfig {
    let mut config = EngineConfig {
        context_tokens_max: Some(256),
        ..EngineConfig::default()
    };
    config.scheduler.sequences_max = sequences_max;
    config.scheduler.chunking.step_tokens_max = step_tokens;
    config
}

/// A codec of the printable characters and the newline. Its template's generation prompt
/// differs from how it renders past assistant messages.
fn codec() -> TextCodec {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.retain(|letter| letter.is_ascii_graphic() || ['Ġ', 'Ċ'].contains(letter));
    alphabet.sort_unstable();
    let mut tokens: Vec<String> = alphabet.iter().map(char::to_string).collect();
    tokens.push("<end>".into());
    let mut token_types = vec![1; tokens.len()];
    token_types[tokens.len() - 1] = 3;
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        end: Some(tokens.len() as TokenId - 1),
        tokens,
        token_types,
        chat_template: Some(TEMPLATE.into()),
        ..GgufVocabulary::default()
    };
    TextCodec::from_gguf(&vocabulary).expect("a vocabulary")
}

const TEMPLATE: &str = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n\
                        {% endfor %}{% if add_generation_prompt %}(think) {% endif %}";
