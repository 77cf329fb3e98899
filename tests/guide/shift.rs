use motet::request::Completion;
use motet::{Engine, Request, TokenId};

/// Continues past a full context: drops the oldest tokens after the system prompt.
async fn at_length(
    engine: &Engine,
    prompt: Vec<TokenId>,
    system_tokens: usize,
) -> anyhow::Result<Completion> {
    let request = Request::tokens(prompt)
        .output_tokens_max(2 * engine.model().context_tokens_max)
        .shift(system_tokens);
    Ok(engine.submit(request).await?.collect().await?)
}

// The guide shows what stands above.

#[tokio::test]
async fn shifted_output_matches_the_reference() {
    use motet::model::oracle::OracleConfig;
    use motet::request::Sampling;
    use motet_model::oracle::ShiftRule;

    let oracle = OracleConfig {
        context_tokens_max: 128,
        ..OracleConfig::default()
    };
    let engine = crate::common::engine(&oracle, crate::common::small()).await;
    let prompt: Vec<TokenId> = (1..60).collect();
    let output = at_length(&engine, prompt.clone(), 20).await;
    let rule = ShiftRule {
        context_tokens: 128,
        keep: 20,
    };
    let expected = oracle.reference_tokens_with_shifts(&prompt, 256, Sampling::GREEDY, rule);
    assert_eq!(output.expect("an output").tokens, expected);
}
