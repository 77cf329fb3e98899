//! `cargo xtask demo`: from a fresh checkout to a real model under load.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::cache::Cache;
use crate::model::Model;
use crate::ui::Timings;
use crate::{process, setup, ui, workspace};

const PACKAGE: &str = "motet-load-generator";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The model; it is fetched unless the cache has it, and its license is shown first
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Model::SmolLm2)]
    model: Model,

    /// The profile of the build: `release` takes several times as long as `quick`, and runs faster
    #[arg(long, value_name = "PROFILE", default_value = workspace::QUICK)]
    profile: String,

    /// Arguments for the load generator; `-- --help` lists them
    #[arg(last = true, value_name = "ARGS")]
    load_generator: Vec<OsString>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let mut timings = Timings::default();
    let cache = Cache::open()?;
    timings.time("set MLX up", || setup::install(&cache, None))?;
    let model = timings.time("fetch the model", || arguments.model.ensure(&cache))?;

    ui::heading("build the load generator");
    let program = timings.time("build", || {
        workspace::program(PACKAGE, &arguments.profile, true)
    })?;
    ui::heading("run it");
    timings.time("run", || {
        let mut command = Command::new(&program);
        command.current_dir(workspace::root());
        command.arg("--model").arg(&model);
        process::run(command.args(&arguments.load_generator))
    })?;

    println!("\n{}", timings.table());
    Ok(())
}
