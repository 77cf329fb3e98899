//! The programs that measure on request.

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use xtask::model::Model;
use xtask::{ui, workspace};

use super::dynamo;
use super::engines::Engine;
use super::mlx_lm;
use super::servers::ServerName;
use super::side::Side;
use super::workbench::{Unavailable, Workbench};
use crate::figures::{Program, trace};
use crate::mode::Mode;
use crate::protocol::{DRAFT_MODEL_VARIABLE, REDIS_VARIABLE, Size};

const LLAMA_PEER: &str = "benches/peers/llama_peer.py";

/// A program that measures on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SideName {
    /// Our side with exact products, on the weights that mlx-lm runs; on the oracle where MLX is not
    /// set up.
    Ours,
    /// Our side on this model's file.
    OursOn(Model, Mode),
    /// mlx-lm.
    MlxLm,
    /// llama.cpp on this model's file.
    Llama(Model),
    /// Another engine on this model's file, or for products alone.
    Engine(Engine, Option<Model>),
    /// Our kernels.
    Kernels,
    /// The load generator.
    Load,
    /// A program with runs of its own.
    Runs(Program),
}

/// Name of the log.
impl fmt::Display for SideName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SideName::Ours => f.write_str("ours"),
            SideName::OursOn(model, mode) => write!(f, "ours-{model:?}-{mode}"),
            SideName::MlxLm => f.write_str("mlx-lm"),
            SideName::Llama(model) => write!(f, "llama-peer-{model:?}"),
            SideName::Engine(engine, Some(model)) => write!(f, "{engine}-{model:?}"),
            SideName::Engine(engine, None) => write!(f, "{engine}-products"),
            SideName::Kernels => f.write_str("kernels"),
            SideName::Load => f.write_str("load-generator"),
            SideName::Runs(program) => write!(f, "runs-{program:?}"),
        }
    }
}

impl Workbench {
    /// Starts a side and waits until it is ready.
    pub(super) fn start_side(&mut self, name: SideName) -> Result<Side> {
        match name {
            SideName::Ours => self.start_ours(),
            SideName::OursOn(model, mode) => {
                self.ready()?;
                let file = self.file_of(model)?;
                let mut command = self.ours(mode)?;
                loaded(name, command.arg(file))
            }
            SideName::MlxLm => self.start_mlx_lm(),
            SideName::Llama(model) => {
                let server = self.server(ServerName::Llama(model))?;
                let mut python = Command::new("python3");
                python.arg(workspace::root().join(LLAMA_PEER));
                started(
                    name,
                    python.arg(format!("http://127.0.0.1:{}", server.port())),
                )
            }
            SideName::Engine(engine, model) => {
                if self.size == Size::Quick {
                    let why = "it is not installed for a smoke run";
                    return Err(Unavailable(format!("{engine}: {why}")).into());
                }
                let file = model.map(|model| self.file_of(model)).transpose()?;
                let mut command = engine.command(&self.cache, file.as_deref())?;
                loaded(name, &mut command).map_err(|error| Unavailable(format!("{error:#}")).into())
            }
            SideName::Kernels => loaded(name, Command::new(self.builds().measure()?).arg("runs")),
            SideName::Load => started(name, Command::new(self.builds().measure()?).arg("runs")),
            SideName::Runs(program) => self.start_runs(name, program),
        }
    }

    fn start_runs(&mut self, name: SideName, program: Program) -> Result<Side> {
        let (path, model) = match program {
            Program::Cache => (self.builds().cache()?, None),
            // A smoke run's program is built without MLX.
            Program::Recovery if self.size == Size::Quick => (self.builds().recovery()?, None),
            Program::Recovery => (self.builds().recovery()?, self.model()),
            Program::Scheduler | Program::Pager => (self.builds().measure()?, self.model()),
            Program::Speculation if self.model().is_some() => {
                let file = self.file_of(Model::Qwen25Coder)?;
                let mut command = Command::new(self.builds().measure()?);
                return started(name, command.arg("runs").arg(file));
            }
            Program::DraftModel if self.model().is_some() => {
                let files = [Model::Qwen25Coder, Model::Qwen25Coder05B];
                let [model, draft] = files.map(|model| self.file_of(model));
                let mut command = Command::new(self.builds().measure()?);
                command.env(DRAFT_MODEL_VARIABLE, draft?);
                return started(name, command.arg("runs").arg(model?));
            }
            Program::Speculation | Program::DraftModel => (self.builds().measure()?, None),
            Program::Fleet => {
                let mut command = Command::new(self.builds().fleet()?);
                return started(name, command.arg("runs").arg(trace::path()));
            }
            Program::Mocker if self.size == Size::Quick => {
                let why = "Dynamo is not installed for a smoke run";
                return Err(Unavailable(why.to_owned()).into());
            }
            Program::Remote if self.size == Size::Quick => {
                let why = "a redis-server is not installed for a smoke run";
                return Err(Unavailable(why.to_owned()).into());
            }
            Program::Remote => {
                let mut command = Command::new(self.builds().measure()?);
                command.env(REDIS_VARIABLE, dynamo::redis(&self.cache)?);
                return started(name, command.arg("runs").args(self.model()));
            }
            Program::Mocker => return started(name, &mut dynamo::mocker(&self.cache)?),
        };
        started(name, Command::new(path).arg("runs").args(model))
    }

    fn start_ours(&mut self) -> Result<Side> {
        let Some(model) = self.model().map(Path::to_path_buf) else {
            return loaded(
                SideName::Ours,
                Command::new(self.builds().measure()?).arg("model"),
            );
        };
        let mut command = self.ours(Mode::Exact)?;
        match mlx_lm::bits()? {
            None => command.arg(model),
            // The quantised folder holds weights only.
            Some(_) => command.arg("--text").arg(model).arg(self.mlx_lm()?.1),
        };
        loaded(SideName::Ours, &mut command)
    }

    fn ours(&self, mode: Mode) -> Result<Command> {
        let mut command = Command::new(self.builds().measure()?);
        command.args(["model", "--mode", &mode.to_string()]);
        Ok(command)
    }

    fn start_mlx_lm(&mut self) -> Result<Side> {
        let (mlx_lm, weights) = self.mlx_lm()?;
        let mut command = mlx_lm.peer(&weights, self.ready()?.blas_preload.as_deref());
        loaded(SideName::MlxLm, &mut command)
            .map_err(|error| Unavailable(format!("{error:#}")).into())
    }
}

fn started(name: SideName, command: &mut Command) -> Result<Side> {
    let log = workspace::reports()?.join(format!("{name}.log"));
    Side::start(name.to_string(), command, &log)
}

/// Starts a side that loads a model.
fn loaded(name: SideName, command: &mut Command) -> Result<Side> {
    let task = ui::Task::start(format!("load {name}"));
    let mut side = started(name, command)?;
    side.load()?;
    task.done();
    Ok(side)
}
