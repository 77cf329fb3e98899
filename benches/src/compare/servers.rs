//! The servers that are measured.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use xtask::model::Model;
use xtask::serving::Serving;
use xtask::{llama_server, workspace};

use super::workbench::{Unavailable, Workbench};
use crate::protocol::Size;

/// Name of our server's model.
const OUR_MODEL: &str = "ours";

/// A server that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerName {
    /// Ours: with the model, or with the oracle in a quick run.
    Ours,
    /// Ours, with this model's file as it is.
    OursOn(Model),
    /// mlx-lm's own.
    MlxLm,
    /// llama.cpp's, with this model's file as it is.
    Llama(Model),
    /// The same with drafts from n-grams, and slots that hold a file of 200 lines twice.
    LlamaDrafts(Model),
}

impl ServerName {
    /// llama.cpp's server with our server's model.
    pub(crate) const LLAMA: Self = Self::Llama(Model::SmolLm2);

    /// Name of the model in requests: mlx-lm's server knows its own by this, llama.cpp's accepts any.
    fn model(self) -> &'static str {
        match self {
            ServerName::Ours | ServerName::OursOn(_) => OUR_MODEL,
            ServerName::MlxLm | ServerName::Llama(_) | ServerName::LlamaDrafts(_) => {
                "default_model"
            }
        }
    }
}

/// Program and arguments of our server, which can be started several times.
#[derive(Clone, Debug)]
pub(crate) struct OurServer {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<OsString>,
}

/// Result of a load.
#[derive(Clone, Copy)]
pub(crate) struct LoadResult {
    pub(crate) seconds: f64,
    pub(crate) output_tokens: f64,
}

impl OurServer {
    /// Starts the server; its output goes to the log.
    pub(crate) fn start(&self, log: &Path) -> Result<Serving> {
        let mut command = Command::new(&self.program);
        Serving::start("our server", command.args(&self.arguments), log)
    }

    /// This server, with at most so many bytes of address space. A server that asks for more than
    /// that ends.
    pub(crate) fn with_address_space(self, bytes: u64) -> Self {
        const LIMITED: &str = r#"ulimit -v "$0" && exec "$@""#;
        let kibibytes = (bytes >> 10).to_string();
        let mut arguments: Vec<OsString> = ["-c", LIMITED, &kibibytes].map(OsString::from).into();
        arguments.push(self.program.into());
        arguments.extend(self.arguments);
        Self {
            program: "sh".into(),
            arguments,
        }
    }
}

impl Workbench {
    pub(super) fn start_server(&mut self, name: ServerName) -> Result<Serving> {
        let folder = workspace::reports()?;
        match name {
            ServerName::Ours => self.our_server()?.start(&folder.join("server.log")),
            ServerName::OursOn(model) => {
                self.ready()?;
                let server = self.our_server_on(&self.file_of(model)?)?;
                server.start(&folder.join("server.log"))
            }
            ServerName::MlxLm => {
                let (mlx_lm, weights) = self.mlx_lm()?;
                let ready = self.ready()?;
                let (model, preload) = (&ready.model, ready.blas_preload.as_deref());
                let tokenizer = folder.join("mlx-lm-model");
                let mut command = mlx_lm.server(&weights, model, &tokenizer, preload);
                let log = folder.join("mlx-lm-server.log");
                Serving::start("mlx-lm's server", &mut command, &log)
                    .map_err(|error| Unavailable(format!("{error:#}")).into())
            }
            ServerName::Llama(model) | ServerName::LlamaDrafts(model) => {
                let program = find_llama()?;
                self.ready()?;
                let file = self.file_of(model)?;
                let mut command = match name {
                    ServerName::LlamaDrafts(_) => llama_server::drafting_command(&program, &file)?,
                    _ => llama_server::command(&program, &file)?,
                };
                Serving::start(
                    "llama-server",
                    &mut command,
                    &folder.join("llama-server.log"),
                )
            }
        }
    }

    /// Whether our server has the model, and not the oracle.
    pub(super) fn serves_model(&self) -> bool {
        self.model().is_some() && self.size == Size::Full
    }

    /// Builds our server, for the model, or for the oracle in a quick run.
    pub(super) fn our_server(&self) -> Result<OurServer> {
        match self.model().filter(|_| self.serves_model()) {
            Some(model) => self.our_server_on(model),
            None => self.our_server_on_oracle(),
        }
    }

    /// Builds our server for the oracle.
    pub(super) fn our_server_on_oracle(&self) -> Result<OurServer> {
        self.our_server_with(["--oracle".into()])
    }

    /// Builds our server for the model in this file.
    pub(super) fn our_server_on(&self, file: &Path) -> Result<OurServer> {
        self.our_server_with(["--model".into(), file.into()])
    }

    fn our_server_with<const N: usize>(&self, served: [OsString; N]) -> Result<OurServer> {
        let mut arguments = Vec::from(served);
        arguments.extend(["--name".into(), OUR_MODEL.into()]);
        Ok(OurServer {
            program: self.builds().server()?,
            arguments,
        })
    }

    /// Runs the load generator against a server, which is started unless it runs.
    pub(super) fn load_on(&mut self, name: ServerName, arguments: &[String]) -> Result<LoadResult> {
        let serving = self.server(name)?;
        let (port, shown) = (serving.port(), serving.name());
        let loaded = self.load_at(port, name.model(), arguments);
        loaded.with_context(|| format!("a load on {shown}"))
    }

    /// Runs the load generator against our server at this port.
    pub(super) fn load_on_ours(
        &mut self,
        serving: &Serving,
        arguments: &[String],
    ) -> Result<LoadResult> {
        self.load_at(serving.port(), OUR_MODEL, arguments)
    }

    fn load_at(&mut self, port: u16, model: &str, arguments: &[String]) -> Result<LoadResult> {
        let url = format!("http://127.0.0.1:{port}");
        let target = ["--url", &url, "--model-name", model].map(str::to_owned);
        let report = self.load([&target, arguments].concat())?;
        let requests = &report["requests"];
        if requests["finished"] != requests["planned"] {
            bail!("not all requests were answered: {requests}");
        }
        let number = |value: &Value| value.as_f64().context("a report without a number");
        Ok(LoadResult {
            seconds: number(&report["wall_seconds"])?,
            output_tokens: number(&report["tokens"]["output"])?,
        })
    }
}

/// llama.cpp's server.
///
/// # Errors
///
/// [`Unavailable`] when there is none.
pub(super) fn find_llama() -> Result<PathBuf> {
    llama_server::find().map_err(|error| Unavailable(error.to_string()).into())
}
