//! Prompts and outputs that are longer than the context.

use motet::TokenId;
use motet::cache::CacheError;
use motet::config::EngineConfig;
use motet::error::SubmitError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{Completion, ContextLimit};
use motet::{Engine, Request, Shutdown};
use motet_core::cache::shift;

use crate::cases::{Fact, NUMBER_MAX, part};
use crate::check::Check;
use crate::suites::Known;

/// The longest context that a rule fills in an engine.
const CONTEXT_MAX: usize = 2048;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "input_cache.shift_discard",
        own_cases: 4,
        beside: &[],
        shapes: &[(&["num_ctx", "num_keep", "input_len"], discard)],
    },
    Known {
        suite: "input_cache.shift_discard.same_batch",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["num_ctx", "num_keep", "same_batch_rle"], discard_groups)],
    },
    Known {
        suite: "prompt.context_shift_limit",
        own_cases: 4,
        beside: &[],
        shapes: &[(&["num_ctx", "num_keep"], prompt_limit)],
    },
    Known {
        suite: "prompt.bounded_num_predict",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["num_ctx", "num_predict"], output_bound)],
    },
    Known {
        suite: "prompt.truncate",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["num_ctx", "num_keep", "prompt_len", "shift"], truncate)],
    },
    Known {
        suite: "prompt.truncate_runner_era",
        own_cases: 2,
        beside: &[],
        shapes: &[(&["num_ctx", "num_keep", "prompt_len"], truncate_to_context)],
    },
];

fn discard(check: &mut Check, case: &Fact<'_>) {
    let [context, keep, len] = ["num_ctx", "num_keep", "input_len"].map(|f| case.get(f).size());
    let discard = shift::discard(context, keep, len).expect("`keep` is in the context");
    check.same("discarded", discard, case.get("expect").size());
}

/// Motet knows no inputs that must stay together: it discards by count.
fn discard_groups(check: &mut Check, case: &Fact<'_>) {
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let runs = case.get("same_batch_rle").items();
    let runs: Vec<[usize; 2]> = runs.iter().map(Fact::pair).collect();
    let tokens: usize = runs.iter().map(|run| run[1]).sum();
    let discard = shift::discard(context, keep, tokens).expect("`keep` is in the context");
    let expected = case.get("expect").number();
    // Groups do not matter if the cut is outside of all of them.
    let half = ((context - keep) / 2).max(1);
    let own_rule = (half + tokens).saturating_sub(context);
    let cut = keep + own_rule;
    // ollama moves the cut to the end of a group, if the group starts before the cut.
    let moved = groups(&runs).fold(
        cut,
        |cut, (start, end)| if start < cut { cut.max(end) } else { cut },
    );
    check.theirs("discarded", moved - keep, expected);
    check.same_or_instead("discarded", discard, own_rule, expected);
}

/// Start and end of each group.
fn groups(runs: &[[usize; 2]]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    runs.iter().flat_map(move |run| {
        let start = at;
        at += run[1];
        (start..at).map(|first| (first, first + run[0] + 1))
    })
}

/// Tokens that remain of a prompt that is far too long.
fn prompt_limit(check: &mut Check, case: &Fact<'_>) {
    let context = case.get("num_ctx").within(1..=NUMBER_MAX);
    let asked = case.get("num_keep").integer();
    let most = context as i64 - 1;
    let keep = asked.clamp(0, most) as usize;
    if asked < 0 {
        check.lacks("a negative `keep`");
    } else if asked > most {
        check.lacks("a `keep` that is clamped");
        let rejected = shift::truncation(context, asked as usize, 3 * context);
        let rejection = CacheError::KeepTooLarge {
            keep: asked as usize,
            context_tokens: context,
        };
        assert_eq!(rejected, Err(rejection));
    }
    let tokens = 3 * context;
    let gone = shift::truncation(context, keep, tokens).expect("`keep` is in the context");
    let remaining = tokens - gone.len();
    check.same("tokens left", remaining, case.get("expect").size());
}

/// Sends a prompt of tokens 0.. through an engine.
fn generate(
    context: usize,
    prompt: &[TokenId],
    settings: impl FnOnce(Request) -> Request,
) -> Result<Completion, SubmitError> {
    let oracle = OracleConfig {
        context_tokens_max: context,
        verify: false,
        can_shift: true,
        ..OracleConfig::default()
    };
    let request = settings(Request::tokens(prompt).ignore_end_tokens());
    // A case may be longer than the default limit for truncation.
    let mut config = EngineConfig::default();
    config.text.shift_contexts_max = prompt.len().max(4);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(async {
        let engine =
            Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
                .config(config)
                .start()
                .await
                .expect("the engine starts");
        let stream = engine.submit(request).await;
        let completion = match stream {
            Ok(stream) => Ok(stream.collect().await.expect("the device works")),
            Err(error) => Err(error),
        };
        engine.shutdown(Shutdown::Abort).await;
        completion
    })
}

/// Length of an output that continues when its context is full.
fn output_bound(check: &mut Check, case: &Fact<'_>) {
    // An output without a bound of its own is ten times as long, and generated.
    let context = case.get("num_ctx").within(0..=CONTEXT_MAX);
    let asked = case.get("num_predict").integer();
    let expected = case.get("expect").integer();
    if context == 0 {
        check.lacks("a context of unknown length");
        check.theirs("the output's bound", asked, expected);
        let config = OracleConfig {
            context_tokens_max: context,
            ..OracleConfig::default()
        };
        let error = Oracle::new(config).expect_err("no model has such a context");
        assert_eq!(error.field, "context_tokens_max");
        return;
    }
    let most = usize::try_from(asked).unwrap_or_else(|_| {
        check.lacks("an endless output");
        usize::MAX
    });
    let shifting = |request: Request| request.shift(0).output_tokens_max(most);
    let completion = generate(context, &[1], shifting).expect("it fits");
    check.same(
        "the output's bound",
        completion.tokens.len() as i64,
        expected,
    );
}

/// Tokens that remain of a truncated prompt, here and in the engine.
fn truncate(check: &mut Check, case: &Fact<'_>) {
    let context = case.get("num_ctx").within(1..=CONTEXT_MAX);
    let [keep, len] = ["num_keep", "prompt_len"].map(|field| case.get(field).number());
    let keep = keep + usize::from(case.get("adds_bos").flag());
    let prompt: Vec<TokenId> = (0..len as TokenId).collect();
    let expect = case.get("expect");
    let [shifts, may_truncate] = ["shift", "truncate"].map(|field| case.get(field).flag());
    let limit = if shifts && may_truncate {
        ContextLimit::Shift { keep }
    } else {
        ContextLimit::Stop
    };
    let result = generate(context, &prompt, |mut request| {
        request.at_context_limit = limit;
        request.output_tokens_max(1)
    });
    if let Some(error) = expect.maybe("error") {
        check.prose(&error, "prompt_too_long_400");
        match result {
            Err(SubmitError::PromptTooLong { field, .. }) => assert_eq!(field, "prompt"),
            other => panic!("a prompt that is too long is rejected: {other:?}"),
        }
        return;
    }
    let truncation = |len| shift::truncation(context, keep, len).expect("`keep` is in the context");
    assert!(
        truncation(context - 1).is_empty(),
        "it leaves space for a token"
    );
    assert!(!truncation(context).is_empty(), "it leaves no space");
    let gone = truncation(len);
    let remaining = [part(&prompt, 0..gone.start), part(&prompt, gone.end..len)].concat();
    check.same(
        "truncated",
        remaining.len() < len,
        expect.get("truncated").flag(),
    );
    if let Some(tokens) = expect.maybe("tokens") {
        check.same("the remaining tokens", remaining.clone(), tokens.tokens());
    }
    let usage = result.expect("it fits").finish.usage;
    assert_eq!(
        usage.prompt_tokens,
        remaining.len(),
        "the engine truncates in the same way"
    );
}

/// The older rule: the remaining tokens fill the context.
fn truncate_to_context(check: &mut Check, case: &Fact<'_>) {
    let context = case.get("num_ctx").within(1..=NUMBER_MAX);
    let len = case.get("prompt_len").within(context..=10 * NUMBER_MAX);
    let most = context - 1;
    let keep = usize::try_from(case.get("num_keep").integer()).unwrap_or(most);
    let keep = keep.min(most);
    let expect = case.get("expect");
    check.same("keep", keep, expect.get("keep").number());
    let gone = shift::truncation(context, keep, len).expect("`keep` is in the context");
    let half = ((context - keep) / 2).max(1);
    let resume_at = expect.get("resume_at").number();
    check.instead(
        "resume at",
        gone.end,
        len - context + half + keep,
        resume_at,
    );
    let new_len = expect.get("new_len").number();
    check.instead(
        "the remaining tokens",
        len - gone.len(),
        context - half,
        new_len,
    );
    assert!(
        gone.end >= half,
        "the prompt is longer than its context by so much"
    );
    // The tokens that the older rule leaves, less those that a shift then discards at once.
    assert_eq!(
        (gone.end - half, len - gone.len() + half),
        (resume_at, new_len)
    );
}
