//! `cargo xtask simulate`: the whole house on a paused clock, seed after seed.

use anyhow::{Result, bail};

use crate::{ui, workspace};

/// Mistakes that the library can be built with, and the simulation must find.
const INJECTED: [&str; 4] = ["lost_lease", "token_again", "leased_evicted", "turn_taken"];

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed again, and print its history
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Saturate classes, in turn and together, without faults
    #[arg(long)]
    saturated: bool,
    /// Instead, build the library with each injected mistake and see that it is found
    #[arg(long, conflicts_with_all = ["seeds", "from", "seed", "saturated"])]
    injected: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    if arguments.injected {
        return injected();
    }
    let mut cargo = workspace::cargo();
    cargo
        .args(["test", "--test", "simulation", "--", "--ignored", "--exact"])
        .args(["simulate", "--nocapture"])
        .env("MOTET_SEEDS", arguments.seeds.to_string())
        .env("MOTET_SEED_FROM", arguments.from.to_string())
        .env("MOTET_SATURATED", u8::from(arguments.saturated).to_string());
    if let Some(seed) = arguments.seed {
        cargo.env("MOTET_SEED", seed.to_string());
    }
    match cargo.status()?.success() {
        true => Ok(()),
        false => bail!("a seed failed; `cargo xtask simulate --seed N` runs it again"),
    }
}

fn injected() -> Result<()> {
    for mistake in INJECTED {
        ui::heading(&format!("injected: {mistake}"));
        let mut cargo = workspace::cargo();
        cargo
            .args(["test", "--test", "simulation", "--", "--nocapture"])
            .args(["--exact", "the_injected_mistake_is_found"])
            .env("RUSTC_WORKSPACE_WRAPPER", "xtask/compilers/injected")
            .env("MOTET_INJECTED", mistake);
        if !cargo.status()?.success() {
            bail!("the injected mistake `{mistake}` was not found");
        }
    }
    Ok(())
}
