use motet::Engine;
use motet::error::StartError;
use motet::model::oracle::{Oracle, OracleConfig};

async fn start() -> Result<Engine, StartError> {
    let build = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    Engine::builder(build).start().await
}

// The guide shows what stands above.

#[tokio::test]
async fn engine_tokens_match_the_reference() {
    use motet::Request;
    use motet::request::Sampling;

    let engine = start().await.expect("it starts");
    let request = Request::tokens([1, 2, 3]).output_tokens_max(8);
    let stream = engine.submit(request).await.expect("it is accepted");
    let tokens = stream.collect().await.expect("an output").tokens;
    let expected = OracleConfig::default().reference_tokens(&[1, 2, 3], 8, Sampling::GREEDY);
    assert_eq!(tokens, expected);
}
