//! A draft model beside the table: the texts that it has read, and the tokens that it would write
//! next.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};

use motet_model::sampling::SampleInputs;
use motet_model::{Model, Span, TokenSource};
use motet_protocol::{
    DraftForget, DraftModelSpec, DraftOrder, DraftReply, LayerGroup, LayerKind, ModelError,
    ModelSpec, OutputKind, Salt, SequenceId, SpanOutput, TokenId, TokenSampling, common_prefix,
};

use crate::panic_text;

/// Most tokens of new text in one forward pass.
const READ_TOKENS_MAX: usize = 512;
/// Tokens by which a text is expected to grow.
const HEADROOM_TOKENS: usize = 256;
/// Most tokens that the padded vocabularies of two models with one tokenizer differ by, as in
/// llama.cpp.
const PADDING_TOKENS_MAX: usize = 128;

/// Drafts with a model of any type.
pub trait DraftModel {
    /// The limits that the scheduler keeps.
    fn spec(&self) -> DraftModelSpec;

    /// Reads and drafts, one reply per order. Each sequence has at most one order.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device fails. The draft model must then be dropped.
    fn draft(&mut self, orders: &[DraftOrder]) -> Result<Vec<DraftReply>, ModelError>;

    /// Forgets texts. That of an ended sequence may serve another of the same salt.
    fn forget(&mut self, what: &DraftForget);

    /// Returns unused memory to the system.
    fn trim(&mut self);
}

/// Drafts with a model of this type, whose state it keeps for each text.
///
/// A text that went on otherwise is shortened, so all layers must be of full attention. The least
/// recently used texts are dropped when the texts' states take too many bytes.
pub struct ModelDrafter<M: Model> {
    model: M,
    spec: DraftModelSpec,
    /// Tokens that both models have.
    vocab_size: usize,
    /// Bytes of the texts' states, and of one more while it grows.
    bytes_max: usize,
    /// The least recently used first.
    texts: Vec<Text<M>>,
}

/// A text that the draft model has read.
struct Text<M: Model> {
    /// `None` if it has ended.
    sequence: Option<SequenceId>,
    salt: Salt,
    tokens: Vec<TokenId>,
    tail: M::Tail,
    /// Tokens that the tail was expected to grow to.
    expected_tokens: usize,
}

/// An order, and the text that it reads on.
struct Reading<'a, M: Model> {
    /// Its index among the orders.
    index: usize,
    order: &'a DraftOrder,
    text: Text<M>,
    /// The tokens to read.
    unread: Vec<TokenId>,
    /// The tokens drafted so far.
    drafted: Vec<TokenId>,
    /// Tokens to draft: none unless the whole text is read.
    draft_tokens: usize,
    /// Bytes of the text's state at the end.
    bytes: usize,
}

impl<M: Model> ModelDrafter<M> {
    /// Drafts for a model of this specification. The states of the texts take no more than
    /// `tokens_max` tokens' bytes; the longest text has half as many.
    ///
    /// # Errors
    ///
    /// [`ModelError::DraftModel`] naming both models if they do not have the same tokens, or the
    /// draft model keeps more than full attention.
    pub fn new(model: M, target: &ModelSpec, tokens_max: usize) -> Result<Self, ModelError> {
        let own = model.spec();
        check(own, target)?;
        let longest = own.context_tokens_max.min(tokens_max / 2);
        let spec = DraftModelSpec {
            text_tokens_max: longest,
            read_tokens_max: READ_TOKENS_MAX,
        };
        Ok(Self {
            spec,
            vocab_size: own.vocab_size.min(target.vocab_size),
            bytes_max: own.tail_bytes(tokens_max),
            texts: Vec::new(),
            model,
        })
    }

    /// Upper bound on the bytes of the texts' states and of a pass.
    pub fn bytes_max(model: &ModelSpec, tokens_max: usize) -> usize {
        let scratch = model
            .scratch_bytes_per_token
            .saturating_mul(READ_TOKENS_MAX);
        model.tail_bytes(tokens_max).saturating_add(scratch)
    }

    /// Numbers of texts and of their tokens.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        let tokens = self.texts.iter().map(|text| text.tokens.len());
        (self.texts.len(), tokens.sum())
    }

    /// Takes the text that each order reads on, or makes an empty one. It is the sequence's own, or
    /// the text of an ended sequence of the same salt, with most of the text's tokens in common. Orders
    /// that do not fit beside the others are left out.
    fn readings<'a>(
        &mut self,
        orders: &'a [DraftOrder],
    ) -> Result<Vec<Reading<'a, M>>, ModelError> {
        let mut readings = Vec::with_capacity(orders.len());
        for (index, order) in orders.iter().enumerate() {
            let own = |text: &Text<M>| text.sequence == Some(order.sequence);
            let from = self.texts.iter().position(own).or_else(|| {
                let ended = self.texts.iter().enumerate();
                let ended = ended
                    .filter(|(_, text)| text.sequence.is_none() && text.salt == order.salt)
                    .map(|(at, text)| (shared_tokens(text, order), at));
                let most = ended.max();
                most.filter(|(shared, at)| 2 * shared > self.texts[*at].tokens.len())
                    .map(|(_, at)| at)
            });
            readings.extend(self.reading(index, order, from, &readings)?);
        }
        // A pass drafts the first so many of them.
        readings.sort_by_key(|reading| Reverse(reading.draft_tokens));
        Ok(readings)
    }

    /// `None` if the text is too long, does not fit beside the others, or has tokens that the draft
    /// model lacks.
    fn reading<'a>(
        &mut self,
        index: usize,
        order: &'a DraftOrder,
        from: Option<usize>,
        others: &[Reading<'_, M>],
    ) -> Result<Option<Reading<'a, M>>, ModelError> {
        let text_tokens = order.prompt.len() + order.output.len();
        if text_tokens == 0 || text_tokens > self.spec.text_tokens_max {
            return Ok(None);
        }
        // The last token is read each time: what follows it comes from there.
        let shared = from.map_or(0, |from| shared_tokens(&self.texts[from], order));
        let shared = shared.min(text_tokens - 1);
        let whole = order.prompt.iter().chain(&order.output);
        let unread = whole.skip(shared).take(order.read_tokens_max.max(1));
        let unread: Vec<TokenId> = unread.copied().collect();
        let is_unknown = |token: &TokenId| *token as usize >= self.vocab_size;
        if unread.iter().any(is_unknown) {
            return Ok(None);
        }
        let draft_tokens = if shared + unread.len() == text_tokens {
            let longest = self.spec.text_tokens_max - text_tokens + 1;
            order.draft_tokens.min(longest)
        } else {
            0
        };
        let expected_tokens = (text_tokens + HEADROOM_TOKENS).min(self.spec.text_tokens_max);
        let capacity = match from.filter(|_| shared > 0) {
            Some(from) => self.texts[from].expected_tokens,
            None => expected_tokens,
        };
        let tokens = shared + unread.len() + draft_tokens;
        let bytes = self.model.spec().tail_bytes(tokens.max(capacity));
        if !self.fits(bytes, others) {
            return Ok(None);
        }
        let text = from.map(|from| self.texts.remove(from));
        self.evict_for(bytes, others);
        let mut text = match text.filter(|_| shared > 0) {
            Some(text) => text,
            None => Text {
                sequence: None,
                salt: order.salt.clone(),
                tokens: Vec::new(),
                tail: self.model.tail(&[], expected_tokens)?,
                expected_tokens,
            },
        };
        text.sequence = Some(order.sequence);
        if shared < text.tokens.len() {
            let removed = shared..text.tokens.len();
            self.model.remove(&[], 0, &mut text.tail, removed)?;
            text.tokens.truncate(shared);
        }
        Ok(Some(Reading {
            index,
            order,
            text,
            unread,
            drafted: Vec::new(),
            draft_tokens,
            bytes,
        }))
    }

    /// Whether a text of these bytes fits beside the others of a round, and one of them a second time:
    /// while a text grows it is there twice.
    fn fits(&self, bytes: usize, others: &[Reading<'_, M>]) -> bool {
        round_bytes(bytes, others) <= self.bytes_max
    }

    /// Drops the least recently used texts until one of these bytes fits beside the others.
    fn evict_for(&mut self, bytes: usize, others: &[Reading<'_, M>]) {
        let spec = self.model.spec();
        let held = self.texts.iter().map(|text| text.bytes(spec));
        let mut held: usize = held.sum();
        let left = self.bytes_max.saturating_sub(round_bytes(bytes, others));
        let evicted = self.texts.iter().take_while(|text| {
            let is_evicted = held > left;
            held -= if is_evicted { text.bytes(spec) } else { 0 };
            is_evicted
        });
        let evicted = evicted.count();
        self.texts.drain(..evicted);
    }

    /// Reads what is unread, and drafts token by token. Each pass continues the one in flight, of
    /// which no token is waited for.
    fn run(&mut self, readings: &mut [Reading<'_, M>]) -> Result<(), ModelError> {
        let mut spans: Vec<Span<'_, M>> = Vec::with_capacity(readings.len());
        for reading in &mut *readings {
            spans.push(Span {
                tokens: TokenSource::Known(&reading.unread),
                path: &[],
                tail: &mut reading.text.tail,
                output_kind: match reading.draft_tokens {
                    0 => OutputKind::Nothing,
                    _ => OutputKind::Token(reading.order.sampling),
                },
            });
        }
        let mut before = self.model.submit(&mut spans)?;
        for reading in &mut *readings {
            reading.text.tokens.append(&mut reading.unread);
        }
        let inputs = sample_inputs(readings, 0);
        self.model.sample(&mut before, inputs)?;
        let most = readings.first().map_or(0, |reading| reading.draft_tokens);
        for drafted in 1..most {
            let drafting = readings.partition_point(|reading| reading.draft_tokens > drafted);
            let mut spans: Vec<Span<'_, M>> = Vec::with_capacity(drafting);
            for (index, reading) in readings[..drafting].iter_mut().enumerate() {
                let sampling = sampling(reading, drafted);
                spans.push(Span {
                    tokens: TokenSource::Sampled(&before, index, &[]),
                    path: &[],
                    tail: &mut reading.text.tail,
                    output_kind: OutputKind::Token(sampling),
                });
            }
            let mut pass = self.model.submit(&mut spans)?;
            let span_outputs = self.model.finish(before)?;
            take_tokens(readings, span_outputs);
            for reading in &mut readings[..drafting] {
                reading.text.tokens.extend(reading.drafted.last());
            }
            self.model
                .sample(&mut pass, sample_inputs(readings, drafted))?;
            before = pass;
        }
        let span_outputs = self.model.finish(before)?;
        take_tokens(readings, span_outputs);
        Ok(())
    }
}

impl<M: Model> DraftModel for ModelDrafter<M> {
    fn spec(&self) -> DraftModelSpec {
        self.spec
    }

    fn draft(&mut self, orders: &[DraftOrder]) -> Result<Vec<DraftReply>, ModelError> {
        let mut replies = vec![DraftReply::default(); orders.len()];
        let mut readings = self.readings(orders)?;
        if readings.is_empty() {
            return Ok(replies);
        }
        self.run(&mut readings)?;
        for mut reading in readings {
            let known = |token: &TokenId| (*token as usize) < self.vocab_size;
            let known = reading.drafted.iter().take_while(|token| known(token));
            reading.drafted.truncate(known.count());
            let text_tokens = reading.order.prompt.len() + reading.order.output.len();
            replies[reading.index] = DraftReply {
                tokens: reading.drafted,
                read_tokens: reading.text.tokens.len().min(text_tokens),
            };
            self.texts.push(reading.text);
        }
        Ok(replies)
    }

    fn forget(&mut self, what: &DraftForget) {
        match what {
            DraftForget::Sequence(sequence) => {
                let own = |text: &&mut Text<M>| text.sequence == Some(*sequence);
                if let Some(text) = self.texts.iter_mut().find(own) {
                    text.sequence = None;
                }
                self.texts
                    .retain(|text| text.sequence.is_some() || !text.salt.is_private());
            }
            DraftForget::Salt(salt) => self.texts.retain(|text| text.salt != *salt),
            DraftForget::All => self.texts.clear(),
        }
    }

    fn trim(&mut self) {
        self.model.trim();
    }
}

impl<M: Model> Text<M> {
    fn bytes(&self, spec: &ModelSpec) -> usize {
        spec.tail_bytes(self.tokens.len().max(self.expected_tokens))
    }
}

/// Has a draft model forget texts and reply to orders. One that fails or panics is dropped.
///
/// # Errors
///
/// Its error. [`ModelError::Device`] if there are orders and no draft model.
pub fn draft_or_drop(
    draft_model: &mut Option<Box<dyn DraftModel>>,
    forgets: &[DraftForget],
    orders: &[DraftOrder],
) -> Result<Vec<DraftReply>, Box<ModelError>> {
    let drafted = catch_unwind(AssertUnwindSafe(|| match draft_model {
        Some(draft_model) => {
            forgets.iter().for_each(|what| draft_model.forget(what));
            match orders {
                [] => Ok(Vec::new()),
                orders => draft_model.draft(orders),
            }
        }
        None if orders.is_empty() => Ok(Vec::new()),
        None => Err(ModelError::Device("there is no draft model".into())),
    }));
    let drafted = drafted.unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(ModelError::Device(format!(
            "the draft model panicked: {text}"
        )))
    });
    if drafted.is_err() {
        // A model that has panicked may panic again when it is dropped.
        catch_unwind(AssertUnwindSafe(|| drop(draft_model.take()))).ok();
    }
    drafted.map_err(Box::new)
}

/// Fails unless a draft model can draft for a model of this specification.
fn check(own: &ModelSpec, target: &ModelSpec) -> Result<(), ModelError> {
    let (size, needed) = (own.vocab_size, target.vocab_size);
    let full = |group: &LayerGroup| group.kind == LayerKind::Full;
    let why = if size.abs_diff(needed) > PADDING_TOKENS_MAX {
        format!("their vocabularies have {size} and {needed} tokens")
    } else if !own.layer_groups.iter().all(full) {
        "not all of its layers are of full attention".to_owned()
    } else {
        return Ok(());
    };
    Err(ModelError::DraftModel {
        draft: own.name.clone(),
        target: target.name.clone(),
        why,
    })
}

/// Bytes of a round's texts, and of the largest again.
fn round_bytes<M: Model>(bytes: usize, others: &[Reading<'_, M>]) -> usize {
    let all = others.iter().map(|reading| reading.bytes).chain([bytes]);
    let (sum, largest) = all.fold((0, 0), |(sum, largest), bytes| {
        (sum + bytes, bytes.max(largest))
    });
    sum + largest
}

/// Tokens at the beginning of an order's text that the draft model has read there.
fn shared_tokens<M: Model>(text: &Text<M>, order: &DraftOrder) -> usize {
    let shared = common_prefix(&text.tokens, &order.prompt);
    if shared < order.prompt.len() {
        return shared;
    }
    shared + common_prefix(&text.tokens[shared..], &order.output)
}

/// The sampling of a reading's next token after so many drafted ones.
fn sampling<M: Model>(reading: &Reading<'_, M>, drafted: usize) -> TokenSampling {
    reading.order.sampling.later(drafted)
}

/// Sample inputs for those of the readings that draft another token after so many.
fn sample_inputs<M: Model>(readings: &[Reading<'_, M>], drafted: usize) -> Vec<SampleInputs> {
    let drafting = readings
        .iter()
        .filter(|reading| reading.draft_tokens > drafted);
    let inputs = drafting.map(|reading| SampleInputs::plain(sampling(reading, drafted)));
    inputs.collect()
}

/// Takes the tokens that a pass has sampled for the first readings.
fn take_tokens<M: Model>(readings: &mut [Reading<'_, M>], span_outputs: Vec<SpanOutput>) {
    for (reading, span_output) in readings.iter_mut().zip(span_outputs) {
        if let SpanOutput::Token(token) = span_output {
            reading.drafted.push(token);
        }
    }
}

impl<M: Model> std::fmt::Debug for ModelDrafter<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (texts, tokens) = self.held();
        write!(f, "ModelDrafter({texts} texts, {tokens} tokens)")
    }
}
