//! What measurements need, made ready when the first one asks for it.

use std::fmt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::figures::Figure;
use super::side::Side;
use super::{mlx_lm, report};
use crate::cache::Cache;
use crate::model::Model;
use crate::setup::{self, Installed};
use crate::{process, ui, workspace};

/// Pairs of turns, or samples, of each figure.
const ROUNDS: usize = 9;

/// Both sides, and how much to measure.
pub(super) struct Workbench {
    quick: bool,
    cache: Cache,
    mlx: Mlx,
    ours: Option<Side>,
    mlx_lm: Option<Side>,
    /// Why it is not to be had, once that is known.
    no_mlx_lm: Option<Unavailable>,
}

/// What a figure needs is not to be had on this machine. The figure is skipped.
#[derive(Clone, Debug)]
pub(super) struct Unavailable(pub(super) String);

enum Mlx {
    NotAsked,
    Missing(Unavailable),
    Ready(Ready),
}

struct Ready {
    model: PathBuf,
    blas_preload: Option<PathBuf>,
}

impl Workbench {
    /// Sets MLX up and fetches the model where any figure needs them.
    pub(super) fn open(quick: bool, with_mlx: bool) -> Result<Self> {
        let cache = Cache::open()?;
        let mlx = match with_mlx.then(|| set_mlx_up(&cache)) {
            None => Mlx::NotAsked,
            Some(Ok(ready)) => Mlx::Ready(ready),
            Some(Err(error)) => Mlx::Missing(Unavailable(format!("no MLX: {error:#}"))),
        };
        Ok(Self {
            quick,
            cache,
            mlx,
            ours: None,
            mlx_lm: None,
            no_mlx_lm: None,
        })
    }

    /// The size for a measurement, or the one that only shows that it works.
    pub(super) fn pick(&self, full: usize, quick: usize) -> usize {
        if self.quick { quick } else { full }
    }

    /// How often to measure.
    pub(super) fn rounds(&self) -> usize {
        self.pick(ROUNDS, 1)
    }

    /// Fails when the figure cannot be measured on this machine.
    pub(super) fn check(&self, figure: &Figure) -> Result<()> {
        match &self.mlx {
            Mlx::Missing(why) if figure.needs_mlx => Err(why.clone().into()),
            _ => Ok(()),
        }
    }

    /// Our side: with the model where MLX is set up, on the oracle otherwise.
    pub(super) fn ours(&mut self) -> Result<&mut Side> {
        if self.ours.is_none() {
            self.ours = Some(self.start_ours()?);
        }
        Ok(self.ours.as_mut().expect("it was just started"))
    }

    /// Our side and mlx-lm's, both with the same model.
    pub(super) fn against_mlx_lm(&mut self) -> Result<(&mut Side, &mut Side)> {
        self.ours()?;
        if let Some(why) = &self.no_mlx_lm {
            return Err(why.clone().into());
        }
        if self.mlx_lm.is_none() {
            let started = self.start_mlx_lm();
            if let Err(error) = &started {
                self.no_mlx_lm = error.downcast_ref().cloned();
            }
            self.mlx_lm = Some(started?);
        }
        let ours = self.ours.as_mut().expect("it was just started");
        Ok((ours, self.mlx_lm.as_mut().expect("it was just started")))
    }

    fn start_ours(&self) -> Result<Side> {
        let program = build_ours(matches!(self.mlx, Mlx::Ready(_)))?;
        let mut command = Command::new(program);
        command.arg("--serve");
        if let Mlx::Ready(ready) = &self.mlx {
            command.arg(&ready.model);
        }
        let task = ui::Task::start("load our side");
        let side = Side::start(
            "our side",
            &mut command,
            &report::folder()?.join("ours.log"),
        )?;
        task.done();
        Ok(side)
    }

    fn start_mlx_lm(&self) -> Result<Side> {
        let Mlx::Ready(ready) = &self.mlx else {
            return Err(Unavailable("no MLX".to_owned()).into());
        };
        let unavailable = |what, error| Unavailable(format!("mlx-lm {what}: {error:#}"));
        let weights = mlx_lm::weights(&self.cache, &build_ours(true)?, &ready.model)?;
        let mlx_lm = mlx_lm::install(&self.cache)
            .map_err(|error| unavailable("cannot be installed", error))?;
        let mut command = mlx_lm.peer(&weights, ready.blas_preload.as_deref());
        let task = ui::Task::start("load mlx-lm");
        let log = report::folder()?.join("mlx-lm.log");
        let side = Side::start("mlx-lm", &mut command, &log)
            .map_err(|error| unavailable("does not start", error))?;
        task.done();
        let hello = side.hello();
        ui::note(&format!(
            "{} on mlx {}",
            hello.text("name")?,
            hello.text("mlx")?
        ));
        Ok(side)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

fn set_mlx_up(cache: &Cache) -> Result<Ready> {
    let Installed { blas_preload } = setup::install(cache, None)?;
    let model = Model::SmolLm2.ensure(cache)?;
    Ok(Ready {
        model,
        blas_preload,
    })
}

/// Builds `benches/figures/` and says where the program is.
fn build_ours(with_mlx: bool) -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release", "--bench", "figures"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    if with_mlx {
        cargo.args(["--features", "mlx"]);
    }
    let messages = process::capture(&mut cargo)?;
    executable(&messages).context("cargo names no program for the bench target `figures`")
}

/// The program that cargo's messages name last.
fn executable(messages: &str) -> Option<PathBuf> {
    let programs = messages.lines().rev().filter_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(PathBuf::from(message.get("executable")?.as_str()?))
    });
    programs.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_where_the_program_is() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"motet"},"executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"figures"},"executable":"/t/figures-1"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
            "\n",
        );
        assert_eq!(executable(messages), Some(PathBuf::from("/t/figures-1")));
        assert_eq!(executable(""), None);
    }

    #[test]
    fn what_is_unavailable_is_told_from_what_fails() {
        let error = anyhow::Error::from(Unavailable("no network".into()));
        assert!(error.is::<Unavailable>());
        assert!(!anyhow::anyhow!("no network").is::<Unavailable>());
    }
}
