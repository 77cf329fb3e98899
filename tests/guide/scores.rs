use motet::error::EvaluateError;
use motet::request::Embedding;
use motet::{Engine, Request, TokenId};

/// The index of the likeliest of several answers to a prompt. All share the prompt's cached state.
async fn likeliest(
    engine: &Engine,
    prompt: &[TokenId],
    answers: &[Vec<TokenId>],
) -> Result<usize, EvaluateError> {
    let mut best = (0, f64::NEG_INFINITY);
    for (index, answer) in answers.iter().enumerate() {
        let score = engine.score(Request::score(prompt, answer)).await?;
        let each = score.sum() / answer.len() as f64;
        if each > best.1 {
            best = (index, each);
        }
    }
    Ok(best.0)
}

/// How near two texts are to each other: the cosine of their embeddings, which have length 1.
async fn nearness(engine: &Engine, one: &str, other: &str) -> Result<f32, EvaluateError> {
    let embedded = |text: &str| Request::text(text).embedding(Embedding::default());
    let one = engine.embed(embedded(one)).await?.numbers;
    let other = engine.embed(embedded(other)).await?.numbers;
    Ok(one.iter().zip(&other).map(|(a, b)| a * b).sum())
}

// The guide shows what stands above.

#[tokio::test]
async fn answers_are_ranked_and_texts_compared() {
    let engine = crate::speaking().await;
    let prompt = [10, 20, 30];
    // The continuation that the model itself samples is the likeliest.
    let own = Request::tokens(prompt)
        .output_tokens_max(2)
        .ignore_end_tokens();
    let own = engine.submit(own).await.expect("it is accepted");
    let own = own.collect().await.expect("an output").tokens;
    let answers = [vec![own[0] ^ 1, own[1]], own, vec![7]];
    let found = likeliest(&engine, &prompt, &answers).await;
    assert_eq!(found.expect("they are scored"), 1);
    let same = nearness(&engine, "a text", "a text").await;
    assert!((same.expect("they are embedded") - 1.0).abs() < 1e-5);
    let unlike = nearness(&engine, "a text", "another").await;
    assert!(unlike.expect("they are embedded") < 0.999);
}
