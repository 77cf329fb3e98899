//! Everything that measurements need, prepared when the first one asks for it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use xtask::cache::Cache;
use xtask::model::Model;
use xtask::process;
use xtask::serving::Serving;
use xtask::setup::{self, Installed};

use super::builds::Builds;
use super::hostile::Findings;
use super::mlx_lm::{self, MlxLm};
use super::servers::ServerName;
use super::side::{Answer, Side};
use super::sides::SideName;
use crate::figures::{Figure, Measure, Needs, Program, trace};
use crate::measured::{Measured, Records};
use crate::protocol::{Request, Size};

/// Programs and servers that run, and how much to measure.
pub(crate) struct Workbench {
    pub(crate) size: Size,
    pub(super) cache: Cache,
    mlx: Mlx,
    sides: Running<SideName, Side>,
    servers: Running<ServerName, Serving>,
    /// The answers of runs, by program and name: one run may take several figures.
    records: BTreeMap<(Program, &'static str), Records>,
    /// Results of the hostile clients, once they are measured: several figures read them.
    pub(super) hostile: Findings,
}

/// By name, what runs, or the reason why it cannot.
type Running<N, T> = BTreeMap<N, Result<T, Unavailable>>;

/// A requirement of a figure is not available on this machine. The figure is skipped.
#[derive(Clone, Debug)]
pub(crate) struct Unavailable(pub(crate) String);

enum Mlx {
    NotAsked,
    Missing(Unavailable),
    Ready(Ready),
}

/// MLX is set up.
pub(super) struct Ready {
    pub(super) model: PathBuf,
    pub(super) blas_preload: Option<PathBuf>,
}

impl Workbench {
    /// Sets MLX up and fetches the model where any figure needs them.
    pub(crate) fn open(size: Size, with_mlx: bool) -> Result<Self> {
        let cache = Cache::open()?;
        let mlx = match with_mlx.then(|| set_mlx_up(&cache)) {
            None => Mlx::NotAsked,
            Some(Ok(ready)) => Mlx::Ready(ready),
            Some(Err(error)) => Mlx::Missing(Unavailable(format!("no MLX: {error:#}"))),
        };
        Ok(Self {
            size,
            cache,
            mlx,
            sides: Running::new(),
            servers: Running::new(),
            records: BTreeMap::new(),
            hostile: Findings::default(),
        })
    }

    /// Measures a figure.
    ///
    /// # Errors
    ///
    /// [`Unavailable`] when it cannot be measured on this machine.
    pub(crate) fn measure(&mut self, figure: &Figure) -> Result<Measured> {
        self.check(figure)?;
        match figure.measure {
            Measure::Compare(compare) => compare(self),
            Measure::Run(program, run) => {
                let records = self.records(program, run)?;
                let measured = records.get(figure.name).cloned();
                measured.with_context(|| format!("the run `{run}` has no record of this figure"))
            }
        }
    }

    /// The full size of a measurement, or the quick one that only shows that it works.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        self.size.pick(full, quick)
    }

    /// Number of rounds of a measurement.
    pub(crate) fn rounds(&self) -> usize {
        self.size.rounds()
    }

    fn check(&self, figure: &Figure) -> Result<()> {
        match (figure.needs, &self.mlx) {
            (Needs::Trace, _) => match trace::path() {
                path if path.exists() => Ok(()),
                path => Err(Unavailable(trace::missing(&path)).into()),
            },
            (Needs::AgentTrace, _) if !trace::agents_path().exists() => {
                Err(Unavailable(trace::agents_missing(&trace::agents_path())).into())
            }
            (Needs::Model | Needs::AgentTrace, Mlx::Missing(_)) if self.size == Size::Quick => {
                Ok(())
            }
            (Needs::Mlx | Needs::Model | Needs::AgentTrace, Mlx::Missing(why)) => {
                Err(why.clone().into())
            }
            _ => Ok(()),
        }
    }

    /// Asks a side, which is started first unless it runs. An engine that fails is unavailable: it does
    /// not run on this machine.
    pub(crate) fn ask(&mut self, name: SideName, request: &Request) -> Result<Answer> {
        let asked = self.side(name)?.ask(request);
        match name {
            SideName::Engine(..) => asked.map_err(|error| Unavailable(format!("{error:#}")).into()),
            _ => asked,
        }
    }

    /// A side, which is started unless it runs.
    pub(crate) fn side(&mut self, name: SideName) -> Result<&mut Side> {
        if !self.sides.contains_key(&name) {
            self.end_other_models(name);
            let started = self.start_side(name);
            self.sides.insert(name, or_unavailable(started)?);
        }
        running(self.sides.get_mut(&name))
    }

    /// A server, which is started unless it runs.
    pub(crate) fn server(&mut self, name: ServerName) -> Result<&Serving> {
        if !self.servers.contains_key(&name) {
            let started = self.start_server(name);
            self.servers.insert(name, or_unavailable(started)?);
        }
        running(self.servers.get_mut(&name)).map(|serving| &*serving)
    }

    fn records(&mut self, program: Program, run: &'static str) -> Result<&Records> {
        if !self.records.contains_key(&(program, run)) {
            let request = Request::Run {
                name: run.to_owned(),
                size: self.size,
            };
            let records = self.ask(SideName::Runs(program), &request)?.records()?;
            self.records.insert((program, run), records);
        }
        Ok(&self.records[&(program, run)])
    }

    /// The load generator's report of a load.
    pub(crate) fn load(&mut self, arguments: Vec<String>) -> Result<Value> {
        Ok(self.ask(SideName::Load, &Request::Load { arguments })?.0)
    }

    /// Ends all programs and servers that have a model of their own.
    pub(super) fn end_models(&mut self) {
        self.sides.retain(|name, _| {
            let is_model = matches!(
                name,
                SideName::OursOn(..) | SideName::Llama(_) | SideName::Engine(..)
            );
            !is_model
        });
        self.servers.retain(|name, _| *name == ServerName::MlxLm);
    }

    /// Ends programs and servers on another model than this side's: the memory of two large models
    /// is not needed at once. An engine's side ends those of other engines too. Reasons why a side
    /// cannot run are kept.
    fn end_other_models(&mut self, name: SideName) {
        let (SideName::OursOn(model, _)
        | SideName::Llama(model)
        | SideName::Engine(_, Some(model))) = name
        else {
            return;
        };
        let is_engine = matches!(name, SideName::Engine(..));
        self.sides.retain(|name, side| match name {
            SideName::OursOn(other, _) | SideName::Llama(other) => *other == model,
            SideName::Engine(_, other) => side.is_err() || (*other == Some(model) && !is_engine),
            _ => true,
        });
        self.servers.retain(|name, _| match name {
            ServerName::OursOn(other)
            | ServerName::Llama(other)
            | ServerName::LlamaDrafts(other) => *other == model,
            ServerName::Ours | ServerName::MlxLm => true,
        });
    }

    /// A model's file. A smoke run has the small model in the place of each.
    pub(super) fn file_of(&self, model: Model) -> Result<PathBuf> {
        self.pick(model, Model::SmolLm2).ensure(&self.cache)
    }

    pub(super) fn builds(&self) -> Builds {
        Builds {
            with_mlx: matches!(self.mlx, Mlx::Ready(_)),
            size: self.size,
        }
    }

    pub(super) fn ready(&self) -> Result<&Ready> {
        match &self.mlx {
            Mlx::Ready(ready) => Ok(ready),
            Mlx::NotAsked | Mlx::Missing(_) => Err(Unavailable("no MLX".to_owned()).into()),
        }
    }

    /// The model, where MLX is set up.
    pub(super) fn model(&self) -> Option<&Path> {
        self.ready().ok().map(|ready| ready.model.as_path())
    }

    /// mlx-lm, and the weights for it.
    pub(super) fn mlx_lm(&self) -> Result<(MlxLm, PathBuf)> {
        let ready = self.ready()?;
        let weights = mlx_lm::weights(&self.cache, || self.builds().measure(), &ready.model)?;
        let mlx_lm = mlx_lm::install(&self.cache)
            .map_err(|error| Unavailable(format!("mlx-lm cannot be installed: {error:#}")))?;
        let weights = match mlx_lm::bits()? {
            Some(bits) => mlx_lm.quantised(&self.cache, &weights, bits)?,
            None => weights,
        };
        Ok((mlx_lm, weights))
    }
}

/// Keeps the reason why something is unavailable, so that nothing asks for it again.
fn or_unavailable<T>(started: Result<T>) -> Result<Result<T, Unavailable>> {
    match started {
        Ok(started) => Ok(Ok(started)),
        Err(error) => error.downcast().map(Err),
    }
}

fn running<T>(named: Option<&mut Result<T, Unavailable>>) -> Result<&mut T> {
    let named = named.expect("it was just started").as_mut();
    named.map_err(|why| anyhow!(why.clone()))
}

/// Shows where a step's time goes: composed of MLX's operations, and by our kernels.
pub(crate) fn profile(size: Size) -> Result<()> {
    let ready = set_mlx_up(&Cache::open()?)?;
    let with_mlx = true;
    let mut command = Command::new(Builds { with_mlx, size }.measure()?);
    command.arg("profile").arg(&ready.model);
    process::run(command.args(size.pick(None, Some("--quick"))))
}

fn set_mlx_up(cache: &Cache) -> Result<Ready> {
    let Installed { blas_preload, .. } = setup::install(cache, None)?;
    let model = Model::SmolLm2.ensure(cache)?;
    Ok(Ready {
        model,
        blas_preload,
    })
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unavailable_differs_from_failed() {
        let why = || Unavailable("no network".into());
        let kept = or_unavailable::<()>(Err(why().into())).unwrap();
        let mut kept = kept;
        let error = running(Some(&mut kept)).unwrap_err();
        assert!(error.is::<Unavailable>());
        assert!(or_unavailable::<()>(Err(anyhow!("no network"))).is_err());
    }
}
