//! An HTTP front: a prompt or a conversation comes in, its tokens go out as server-sent events.
//! ```sh
//! cargo run --example http -- --oracle                        # a simulated model
//! cargo run --release --features mlx --example http -- MODEL
//! curl -N localhost:8080 --json '{"prompt": "Hello", "output_tokens_max": 20}'
//! ```
//! A client that leaves cancels its sequence: its response is dropped, and the token stream with it.

use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Sse, sse::Event};
use axum::{Json, Router, extract::State, routing::post};
use futures_util::{FutureExt, StreamExt};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::text::{Message, TextCodec};
use motet::{Engine, EngineBuilder, Request, Shutdown, error::SubmitError};
use motet_text::GgufVocabulary;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokio::{net::TcpListener, signal::ctrl_c};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let builder = match std::env::args().nth(1).as_deref() {
        Some("--oracle") => oracle(OracleConfig::default())?,
        #[cfg(feature = "mlx")]
        Some(model) => Engine::open(model)?,
        _ => {
            anyhow::bail!("expected --oracle, or the path of a model and a build with feature mlx")
        }
    };
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    serve(listener, builder.start().await?, ctrl_c().map(drop)).await
}

/// Serves until `end`. Then no more clients are accepted, and the answers under way are finished.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    end: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let app = Router::new().route("/", post(generate));
    let server = axum::serve(listener, app.with_state(engine.clone()));
    server.with_graceful_shutdown(end).await?;
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}

#[derive(serde::Deserialize)]
struct Body {
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    output_tokens_max: Option<usize>,
}

async fn generate(
    State(engine): State<Engine>,
    Json(body): Json<Body>,
) -> Result<impl IntoResponse, impl IntoResponse> {
    let request = match body.messages {
        Some(messages) => Request::chat(messages),
        None => Request::text(body.prompt.unwrap_or_default()),
    };
    let request = request.output_tokens_max(body.output_tokens_max.unwrap_or(256));
    let submitted = engine.submit(request).await.map_err(rejection);
    submitted.map(|stream| {
        Sse::new(stream.map(|piece| match piece {
            Ok(piece) => Event::default().json_data(piece.text),
            Err(error) => Ok(Event::default().event("error").data(error.to_string())),
        }))
    })
}

fn rejection(error: SubmitError) -> impl IntoResponse {
    let (status, retry_after) = match &error {
        SubmitError::QueueFull { retry_after, .. } => (429, Some(*retry_after)),
        SubmitError::Draining | SubmitError::Broken { .. } => (503, None),
        _ => (400, None),
    };
    let status = StatusCode::from_u16(status).expect("a status of HTTP");
    let header = retry_after.map(|after| [(RETRY_AFTER, after.as_secs_f64().ceil().to_string())]);
    (status, header, error.to_string())
}

/// A simulated model whose tokens are bytes.
pub fn oracle(config: OracleConfig) -> anyhow::Result<EngineBuilder> {
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: ByteLevel::alphabet().iter().map(char::to_string).collect(),
        chat_template: Some("{% for m in messages %}{{ m.content }}\n{% endfor %}".into()),
        ..GgufVocabulary::default()
    };
    let config = OracleConfig {
        vocab_size: 256,
        ..config
    };
    let build = move || Ok(Oracle::new(config.clone()).expect("a valid oracle"));
    Ok(Engine::builder(build).text(TextCodec::from_gguf(&vocabulary)?))
}
