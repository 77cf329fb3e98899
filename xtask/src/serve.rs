//! `cargo xtask serve`: from a fresh checkout to a running server.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use motet_find::{Finder, ModelName};

use crate::cache::Cache;
use crate::model::Model;
use crate::{process, setup, ui, workspace};

const PACKAGE: &str = "motet-server";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A GGUF file or a Hugging Face folder, hf:ORG/NAME, hf:ORG/NAME:FILE, hf:ORG/NAME:Q4_K_M,
    /// ollama:NAME, lmstudio:PUBLISHER/NAME, or a name that `cargo xtask fetch` lists
    #[arg(long, value_name = "MODEL", required_unless_present = "oracle")]
    model: Option<String>,

    /// Serve a simulated model, without MLX: fast nonsense, to try clients
    #[arg(long, conflicts_with = "model")]
    oracle: bool,

    /// The profile of the build: `release` takes several times as long as `quick`, and serves faster
    #[arg(long, value_name = "PROFILE", default_value = workspace::QUICK)]
    profile: String,

    /// Arguments for the server; `-- --help` lists them
    #[arg(last = true, value_name = "ARGS")]
    server: Vec<OsString>,
}

/// A model that the server can open.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    /// One that packages carry.
    Packaged(Model),
    /// Anything that the server finds itself.
    Named(OsString),
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    // First, because the rest takes minutes.
    let choice = arguments.model.as_deref().map(choice).transpose()?;
    let mut server: Vec<OsString> = Vec::new();
    if let Some(choice) = choice {
        let cache = Cache::open()?;
        setup::install(&cache, None)?;
        let model = match choice {
            Choice::Packaged(model) => model.ensure(&cache)?.into(),
            Choice::Named(name) => name,
        };
        server.extend(["--model".into(), model]);
    } else {
        server.push("--oracle".into());
    }
    ui::heading("build the server");
    let program = workspace::program(PACKAGE, &arguments.profile, !arguments.oracle)?;
    ui::heading("start it; Ctrl-C ends it");
    let mut command = Command::new(program);
    command.current_dir(workspace::root());
    command.args(["--log-form", "text"]).args(server);
    process::replace(command.args(&arguments.server))
}

/// The model of that name. Those on this machine must exist; the server asks the hub for others.
fn choice(name: &str) -> Result<Choice> {
    if let Some(model) = Model::named(name).filter(|_| !Path::new(name).exists()) {
        return Ok(Choice::Packaged(model));
    }
    let parsed: ModelName = name.parse()?;
    if let ModelName::Hub { .. } = parsed {
        return Ok(Choice::Named(name.into()));
    }
    Finder::from_environment()
        .find(name, |_| {})
        .map_err(|error| {
            anyhow!(
                "{error}. Without a model, `--model {}` fetches one",
                packaged()
            )
        })?;
    match parsed {
        // The server runs in the checkout.
        ModelName::Path(path) => {
            let path = std::path::absolute(&path).context("the model's path")?;
            Ok(Choice::Named(path.into()))
        }
        _ => Ok(Choice::Named(name.into())),
    }
}

/// The names of the models that packages carry.
fn packaged() -> String {
    let names = Model::value_variants()
        .iter()
        .map(|model| model.description().0);
    names.collect::<Vec<_>>().join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_before_the_build() {
        let packaged =
            |name: &str| assert_eq!(choice(name).unwrap(), Choice::Packaged(Model::SmolLm2));
        packaged("smollm2-135m");
        packaged("SmolLM2-135M-Instruct");
        let named = Choice::Named("hf:org/small:q8_0".into());
        assert_eq!(choice("hf:org/small:q8_0").unwrap(), named);
        let here = choice("src/serve.rs").unwrap();
        let whole = std::env::current_dir().unwrap().join("src/serve.rs");
        assert_eq!(here, Choice::Named(whole.into()));
        for (name, part) in [
            (
                "smollm2-135",
                "there is no model at smollm2-135; expected a path, hf:ORG/NAME",
            ),
            ("smollm2-135", "`--model smollm2-135m-instruct|gemma3-270m|"),
            ("hf:", "names no model"),
            ("lmstudio:no-such/model", "LM Studio ("),
        ] {
            let error = choice(name).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
