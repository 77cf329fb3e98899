//! Steps that verify drafts, with a grammar.

use super::*;

/// A slot whose output follows an expression of these letters, `a` being token 1.
struct Drafted {
    oracle: Oracle,
    table: Table<Oracle>,
    /// Its sampler, until the first step.
    sampler_start: Option<SamplerStart>,
}

impl Drafted {
    /// The slot after its prompt of two tokens; its sampler knows this output. If `has_end`, an
    /// end token ends outputs, and tokens are forced.
    fn new(expression: &str, has_end: bool, output: &[TokenId]) -> Self {
        let mut tokens = vec![Vec::new(); 1_000];
        for letter in b'a'..=b'e' {
            tokens[usize::from(letter - b'a') + 1] = vec![letter];
        }
        let ends: &[TokenId] = if has_end { &[0] } else { &[] };
        let vocabulary = GrammarVocabulary::from_bytes(tokens, ends).expect("a vocabulary");
        let encode = |text: &str| {
            let letter = |letter: u8| (b'a'..=b'e').position(|of| of == letter);
            let letters = text.bytes().map(letter);
            letters.map(|at| Some(at? as TokenId + 1)).collect()
        };
        let vocabulary = vocabulary.with_encoder(encode);
        let pool = MaskPool::start(1).expect("a thread");
        let source = GrammarSource::Regex(expression.into());
        let grammar = Grammar::compile(&source, &vocabulary, &pool).expect("it compiles");
        let spec = SamplingSpec {
            end_tokens: ends.to_vec(),
            grammar: Some(Arc::new(grammar)),
            ..SamplingSpec::default()
        };
        let (_, mut oracle) = oracle();
        let mut table = Table::new();
        let prompt = work(vec![open(SLOT)], vec![span(SLOT, &[3, 1])]);
        table.run_work(&mut oracle, prompt).expect("done");
        let sampler_start = Some(SamplerStart {
            slot: SLOT,
            spec: Arc::new(spec),
            sampling: Sampling::GREEDY,
            prompt: Arc::new([3, 1]),
            output: output.to_vec(),
        });
        Self {
            oracle,
            table,
            sampler_start,
        }
    }

    fn submit(&mut self, span: PlannedSpan) {
        let mut work = work(vec![], vec![span]);
        work.sampler_starts.extend(self.sampler_start.take());
        self.table.submit(&mut self.oracle, work);
    }

    fn finish(&mut self) -> SpanOutput {
        let outputs = self.table.finish(&mut self.oracle);
        outputs.expect("done").remove(0)
    }

    fn run(&mut self, span: PlannedSpan) -> SpanOutput {
        self.submit(span);
        self.table.sample(&mut self.oracle);
        self.finish()
    }

    /// Verifies a draft after a token, as the output's token of this index.
    fn verify(&mut self, index: u64, last: TokenId, draft: &[TokenId]) -> SpanOutput {
        self.run(verified_span(
            index,
            PlannedTokens::Known(vec![last]),
            draft,
        ))
    }

    fn tail_tokens(&self) -> usize {
        self.table.slots[&SLOT].tail.tokens()
    }
}

/// Tokens of the prompt of a drafted slot.
const PROMPT_TOKENS: u64 = 2;

fn verified_span(index: u64, mut tokens: PlannedTokens, draft: &[TokenId]) -> PlannedSpan {
    tokens.append(draft);
    PlannedSpan {
        token_source: tokens,
        output_kind: OutputKind::Verify(TokenSampling {
            sampling: Sampling::GREEDY,
            position: PROMPT_TOKENS + index,
        }),
        ..sampled_span(SLOT, &[1])
    }
}

fn verified(tokens: &[TokenId]) -> SpanOutput {
    let sampled = |token: &TokenId| SampledToken {
        token: *token,
        logprobs: None,
    };
    SpanOutput::Verified(tokens.iter().map(sampled).collect())
}

/// The grammar allows one token after another. Rows after the first that it forbids are sampled
/// for nothing, whatever they give.
#[test]
fn draft_is_cut_where_the_grammar_forbids_it() {
    for (draft, accepted) in [
        (&[2, 3, 1][..], 3),
        (&[2, 3, 4, 2, 3], 2),
        (&[2, 1, 3, 1], 1),
        (&[3, 3], 0),
    ] {
        let mut drafted = Drafted::new("(abc)*", false, &[1]);
        let expected = [2, 3, 1, 2, 3];
        let found = drafted.verify(1, 1, draft);
        assert_eq!(found, verified(&expected[..=accepted]), "{draft:?}");
        assert_eq!(drafted.tail_tokens(), 2 + 1 + accepted);
        let next = drafted.run(sampled_span_at(
            PROMPT_TOKENS + 2 + accepted as u64,
            SLOT,
            &[expected[accepted]],
        ));
        assert_eq!(next, SpanOutput::Token(expected[accepted + 1]));
    }
}

/// The last token of the grammar is sampled, also if the draft has it: it is not evaluated, since
/// nothing can be sampled after it.
#[test]
fn draft_ends_before_the_last_token_of_a_grammar() {
    let mut drafted = Drafted::new("abc", false, &[1]);
    assert_eq!(drafted.verify(1, 1, &[2, 3, 4, 5]), verified(&[2, 3]));
    assert_eq!(drafted.tail_tokens(), 4);
    let failed = SpanOutput::Failed(GrammarError::Finished);
    assert_eq!(drafted.verify(3, 3, &[4, 5]), failed);
    assert_eq!(drafted.tail_tokens(), 5);
}

#[test]
fn forced_tokens_stand_unless_a_draft_gives_as_many() {
    let forced = [2, 3, 2, 3];
    let mut drafted = Drafted::new("a(bcbc)(d|e)", true, &[1]);
    let found = drafted.verify(1, 1, &[2, 3, 4]);
    assert_eq!(found, SpanOutput::Forced(forced.into()));
    assert_eq!(drafted.tail_tokens(), 3, "the draft is void");
    let mut drafted = Drafted::new("a(bcbc)(d|e)", true, &[1]);
    assert_eq!(drafted.verify(1, 1, &[2, 3, 2, 4]), verified(&forced));
    assert_eq!(drafted.tail_tokens(), 6);
    // A run that the draft walks into, if its first token is right.
    let mut sampled = [2, 3].map(|first| {
        let mut drafted = Drafted::new("a(b|c)d(eded)(a|b)", true, &[1]);
        let found = drafted.verify(1, 1, &[first, 4, 5, 4, 5, 4, 3]);
        let tokens: Vec<TokenId> = found.tokens().collect();
        assert_eq!(drafted.tail_tokens(), 2 + tokens.len());
        tokens
    });
    sampled.sort_by_key(Vec::len);
    assert_eq!(sampled[0].len(), 1);
    assert_eq!(sampled[1][1..6], [4, 5, 4, 5, 4]);
    assert_eq!(sampled[1].len(), 7);
}

/// The step before has forced the token that the draft's first row is to sample.
#[test]
fn draft_on_a_forced_token_is_void() {
    let mut drafted = Drafted::new("b(abcbc)(d|e)", true, &[2]);
    drafted.submit(sampled_span_at(PROMPT_TOKENS + 1, SLOT, &[2]));
    drafted.table.sample(&mut drafted.oracle);
    let sampled = PlannedTokens::Sampled(vec![]);
    drafted.submit(verified_span(2, sampled, &[2, 3]));
    let forced = SpanOutput::Forced([1, 2, 3, 2, 3].into());
    assert_eq!(drafted.finish(), forced);
    drafted.table.sample(&mut drafted.oracle);
    assert_eq!(drafted.finish(), SpanOutput::Nothing);
    assert_eq!(drafted.tail_tokens(), 4);
}
