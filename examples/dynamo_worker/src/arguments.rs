//! The command line.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};
use motet::config::{CacheConfig, EngineConfig};
use motet_server::arguments::{EngineSettings, ModelSettings};

/// The variable from which the SDK takes its grace.
const GRACE: &str = "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS";

/// A Dynamo worker with Motet's engine in process.
///
/// Dynamo's frontend finds it by the discovery, tokenises prompts and sends it tokens. At SIGTERM it
/// leaves the discovery and hands its running requests over: the frontend continues them at another
/// worker, if it was started with --migration-limit.
#[derive(Debug, Parser)]
#[command(name = "dynamo-worker", max_term_width = 80)]
pub(crate) struct Arguments {
    /// The model.
    #[command(flatten)]
    pub(crate) model: ModelSettings,

    /// The folder or repository in which the frontend finds the model's tokenizer
    ///
    /// The default is --model. A folder needs config.json and tokenizer.json; a GGUF file has neither.
    #[arg(long, value_name = "FOLDER", required_unless_present = "model")]
    tokenizer: Option<PathBuf>,

    /// The model's name in the API; the default is its file's or repository's name
    #[arg(long, value_name = "NAME")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    name: Option<String>,

    /// Tokens of a block, in which the router counts; the same for all workers of a model
    #[arg(long, value_name = "TOKENS", default_value_t = CacheConfig::default().block_tokens)]
    block_tokens: usize,

    /// Time for requests that are on their way when the worker has left the discovery
    ///
    /// Then the running ones are handed over. Requests that arrive later go to another worker, too.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5, env = GRACE)]
    grace_seconds: f64,

    /// Settings of the engine.
    #[command(flatten)]
    engine: EngineSettings,

    /// Settings of Dynamo's SDK.
    #[command(flatten, next_help_heading = "Dynamo")]
    dynamo: CommonArgs,
}

impl Arguments {
    /// The engine's settings.
    pub(crate) fn engine_config(&self) -> EngineConfig {
        let mut config = self.engine.config();
        config.cache.block_tokens = self.block_tokens;
        config
    }

    /// The model's name in the API.
    pub(crate) fn model_name(&self) -> String {
        let named = self.name.clone();
        named.unwrap_or_else(|| self.model.short_name())
    }

    /// The settings of Dynamo's SDK.
    ///
    /// # Errors
    ///
    /// A role that this worker has not, or a folder without a tokenizer.
    pub(crate) fn worker_config(&self) -> Result<WorkerConfig> {
        let dynamo = self.dynamo.clone();
        ensure!(
            dynamo.disaggregation_mode == DisaggregationMode::Aggregated
                && !dynamo.route_to_encoder,
            "--disaggregation-mode is {}; expected agg, without --route-to-encoder: this worker computes prompts \
             and outputs itself",
            dynamo.disaggregation_mode.as_str()
        );
        let of_model = || self.model.model.as_ref().map(PathBuf::from);
        let tokenizer = self.tokenizer.clone().or_else(of_model);
        let tokenizer = tokenizer.unwrap_or_default();
        if tokenizer.exists() {
            for file in ["config.json", "tokenizer.json"] {
                ensure!(
                    tokenizer.join(file).exists(),
                    "{} has no {file}; expected a folder with config.json and tokenizer.json: name it by --tokenizer",
                    tokenizer.display()
                );
            }
        }
        let model_name = self.model_name();
        Ok(WorkerConfig {
            namespace: dynamo.namespace,
            component: dynamo.component,
            endpoint: dynamo.endpoint,
            model_name: tokenizer.display().to_string(),
            metrics_labels: vec![("model".to_owned(), model_name.clone())],
            served_model_name: Some(model_name),
            endpoint_types: dynamo.endpoint_types,
            custom_jinja_template: dynamo.custom_jinja_template,
            tool_call_parser: dynamo.dyn_tool_call_parser,
            reasoning_parser: dynamo.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: dynamo.exclude_tools_when_tool_choice_none,
            runtime: dynamo.runtime,
            enable_rl: dynamo.enable_rl,
            ..WorkerConfig::default()
        })
    }

    /// Tells the SDK the grace, which it reads from its environment alone.
    pub(crate) fn set_grace(&self) {
        // SAFETY: no other thread has been started yet that could read the environment.
        unsafe { env::set_var(GRACE, self.grace_seconds.to_string()) };
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(words: &str) -> Arguments {
        Arguments::try_parse_from(words.split_whitespace()).expect("whole")
    }

    #[test]
    fn command_line_is_parsed() {
        Arguments::command().debug_assert();
        let alone = Arguments::try_parse_from(["worker", "--oracle"]);
        assert!(alone.is_err(), "the oracle has no tokenizer of its own");
        let arguments =
            parsed("worker --oracle --tokenizer org/name --block-tokens 32 --queue-max 7");
        let config = arguments.engine_config();
        assert_eq!(config.cache.block_tokens, 32);
        assert_eq!(config.scheduler.admission.queue_max, 7);
        let config = arguments.worker_config().expect("valid");
        assert_eq!(config.model_name, "org/name");
        assert_eq!(config.served_model_name.as_deref(), Some("oracle"));
    }

    #[test]
    fn roles_and_folders_that_cannot_work_are_rejected() {
        for (words, expected) in [
            (
                "--tokenizer org/name --disaggregation-mode decode",
                "expected agg",
            ),
            ("--tokenizer /", "name it by --tokenizer"),
        ] {
            let arguments = parsed(&format!("worker --oracle {words}"));
            let error = arguments.worker_config().expect_err(words).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
