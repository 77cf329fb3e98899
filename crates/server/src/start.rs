//! The engine: a model on MLX, or the oracle.

#[cfg(feature = "mlx")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "mlx")]
use std::time::Instant;

use anyhow::{Context, Result};
use motet::config::EngineConfig;
use motet::model::ModelError;
#[cfg(feature = "mlx")]
use motet::model::find::{Finder, ProgressLines};
#[cfg(feature = "mlx")]
use motet::model::mlx::{Arithmetic, MlxDevice, MlxOptions};
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
#[cfg(feature = "mlx")]
use motet::model::weights::FileAccess;
use motet::remote::RemoteTier;
use motet::text::{ChatTemplate, TextCodec, Tokenizer};
use motet::{Engine, EngineBuilder, Request};
use motet_text::GgufVocabulary;

#[cfg(feature = "mlx")]
use crate::arguments::CacheDtype;
use crate::arguments::{Arguments, ModelSettings};

/// The oracle's last token, which ends its output.
const ORACLE_END: u32 = 256;
/// It knows tools and their results, and reasoning, which it opens itself if it is asked for.
const ORACLE_TEMPLATE: &str = "{% for tool in tools or [] %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}\
    {% for message in messages %}{{ message.role }}: \
    {% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
    {{ message.content }}\
    {% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}{{ '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>{% endif %}{% endif %}";

/// Starts the engine that the arguments ask for.
///
/// # Errors
///
/// The error names the file or setting that does not work.
pub async fn engine(arguments: &Arguments) -> Result<Engine> {
    #[cfg(feature = "remote")]
    let remote = arguments.remote.open().await?;
    #[cfg(not(feature = "remote"))]
    let remote = None;
    engine_of(&arguments.model, arguments.engine_config(), remote).await
}

/// Starts an engine with this model, and the tier that it shares with others.
///
/// # Errors
///
/// The error names the file or setting that does not work.
pub async fn engine_of(
    settings: &ModelSettings,
    config: EngineConfig,
    remote: Option<Arc<dyn RemoteTier>>,
) -> Result<Engine> {
    let engine = match &settings.model {
        Some(name) => model(name, settings, config, remote).await,
        None => oracle(settings, config, remote).await,
    }?;
    if let Some(warning) = streams_warning(&engine) {
        tracing::warn!("{warning}");
    }
    Ok(engine)
}

/// The warning that the budget of results, and not the queue, bounds the streams of one user.
fn streams_warning(engine: &Engine) -> Option<String> {
    let scheduler = &engine.config().scheduler;
    let longest = engine.model().context_tokens_max;
    let stream_bytes = engine.unread_bytes(&Request::default().output_tokens_max(longest));
    // One user may hold half of the budget.
    let streams = scheduler.admission.results_bytes_max / 2 / stream_bytes;
    let inside_max = scheduler.inside_max();
    (streams < inside_max).then(|| {
        let mib = (2 * inside_max * stream_bytes).div_ceil(1 << 20);
        format!(
            "--results-mib has space for {streams} streams of one user, or of all clients without keys; \
             --sequences-max and --queue-max allow {inside_max}, which takes {mib} MiB"
        )
    })
}

#[cfg(feature = "mlx")]
async fn model(
    name: &str,
    settings: &ModelSettings,
    config: EngineConfig,
    remote: Option<Arc<dyn RemoteTier>>,
) -> Result<Engine> {
    let path = found(name.to_owned()).await?;
    let draft_path = match &settings.draft_model {
        Some(name) => Some(found(name.clone()).await?),
        None => None,
    };
    let ModelSettings {
        deterministic,
        exact,
        no_mmap,
        ..
    } = *settings;
    #[cfg(unix)]
    if !no_mmap {
        motet::model::weights::survive_shortened_files()?;
    }
    let options = MlxOptions {
        device: deterministic.then_some(MlxDevice::Cpu),
        deterministic,
        arithmetic: exact.then_some(Arithmetic::Exact),
        cache_dtype: settings.cache_dtype.map(CacheDtype::kind),
        file_access: if no_mmap {
            FileAccess::Read
        } else {
            FileAccess::Map
        },
        ..MlxOptions::default()
    };
    tracing::info!("loading {}", path.display());
    let started_at = Instant::now();
    let started = async {
        let mut engine = Engine::open_with(&path, options.clone())?;
        if let Some(path) = &draft_path {
            tracing::info!("the draft model is {}", path.display());
            engine = engine.open_draft_model(path, options)?;
        }
        let engine = with_remote(engine.config(config), remote);
        anyhow::Ok(engine.start().await?)
    };
    let engine = started.await;
    let engine = engine.with_context(|| format!("cannot serve {}", path.display()))?;
    let seconds = started_at.elapsed().as_secs_f64();
    tracing::info!("the model is loaded, in {seconds:.1} s");
    Ok(engine)
}

/// The path of the model, which is downloaded if it has to be. Logs how far that is.
#[cfg(feature = "mlx")]
async fn found(name: String) -> Result<PathBuf> {
    let find = move || {
        let mut lines = ProgressLines::default();
        Finder::from_environment().find(&name, |progress| {
            if let Some(line) = lines.line(&progress) {
                tracing::info!("{line}");
            }
        })
    };
    Ok(tokio::task::spawn_blocking(find).await??)
}

#[cfg(not(feature = "mlx"))]
async fn model(
    _: &str,
    _: &ModelSettings,
    _: EngineConfig,
    _: Option<Arc<dyn RemoteTier>>,
) -> Result<Engine> {
    anyhow::bail!(
        "this server was built without MLX and cannot run a model.\n\
         Set MLX up, build with it and serve the model:\n  \
           cargo xtask serve --model MODEL\n\
         or serve a simulated model with --oracle"
    )
}

/// Starts an engine on the oracle, with bytes as tokens.
async fn oracle(
    settings: &ModelSettings,
    config: EngineConfig,
    remote: Option<Arc<dyn RemoteTier>>,
) -> Result<Engine> {
    let cost = StepCost {
        per_token: Duration::from_micros(settings.oracle_token_us.into()),
        ..StepCost::default()
    };
    let oracle = OracleConfig {
        vocab_size: ORACLE_END as usize + 1,
        context_tokens_max: 8192,
        end_tokens: vec![ORACLE_END],
        end_one_in: 64,
        verify: false,
        cost,
        ..OracleConfig::default()
    };
    let build = move || Oracle::new(oracle.clone()).map_err(|e| ModelError::Device(e.to_string()));
    let text = oracle_text().context("the oracle's tokenizer")?;
    let engine = Engine::builder(build).text(text).config(config);
    let engine = with_remote(engine, remote);
    Ok(engine.start().await?)
}

/// Sets the tier that the engine shares with others, if there is one.
fn with_remote(engine: EngineBuilder, remote: Option<Arc<dyn RemoteTier>>) -> EngineBuilder {
    match remote {
        Some(tier) => engine.remote_tier(tier),
        None => engine,
    }
}

/// A tokenizer whose tokens are bytes, in GPT-2's spelling.
fn oracle_text() -> Result<TextCodec> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255).filter(|byte| !printable(byte));
    let moved = (256..).zip(others).map(|(spelled, _)| spelled);
    let alphabet = (0..=255).filter(printable).chain(moved);
    let mut tokens: Vec<String> = alphabet
        .filter_map(char::from_u32)
        .map(String::from)
        .collect();
    tokens.push("<end>".into());
    let mut token_types = vec![1; ORACLE_END as usize];
    token_types.push(3); // a control token
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        end: Some(ORACLE_END),
        ..GgufVocabulary::default()
    };
    let template = ChatTemplate::new(ORACLE_TEMPLATE, [])?;
    Ok(TextCodec::new(
        Tokenizer::from_gguf(&vocabulary)?,
        Some(template),
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[tokio::test]
    async fn budget_below_the_queue_causes_a_warning() {
        for (more, is_below) in [("", false), ("--queue-max=2000", true)] {
            let words = ["server", "--oracle"].into_iter();
            let arguments = Arguments::parse_from(words.chain(more.split_whitespace()));
            let engine = engine(&arguments).await.expect("the oracle starts");
            let warning = streams_warning(&engine);
            assert_eq!(warning.is_some(), is_below, "{more}: {warning:?}");
        }
    }

    #[test]
    fn the_oracle_reads_and_writes_any_text() {
        let text = oracle_text().expect("a tokenizer");
        let prompt = "héllo 🎵\n\0";
        let tokens = text.encode_prompt(prompt).expect("bytes");
        assert_eq!(tokens.len(), prompt.len());
        assert_eq!(text.tokenizer().decode(&tokens).expect("bytes"), prompt);
    }
}
