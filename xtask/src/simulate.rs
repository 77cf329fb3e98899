//! `cargo xtask simulate`: the whole engine on a paused clock, seed after seed.

use anyhow::{Result, bail};

use crate::{ui, workspace};

/// Bugs that can be injected into the cores; the simulation must find each of them.
const INJECTED: [&str; 4] = ["lost_lease", "token_again", "leased_evicted", "turn_taken"];

/// Maximum seeds that take less time than an optimised build.
const SHORT: u64 = 200;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// First seed to run
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run only this seed, and print its history
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Saturate the priority classes, one by one and together, without faults
    #[arg(long)]
    saturated: bool,
    /// Inject each bug instead, and check that the simulation finds it
    #[arg(long, conflicts_with_all = ["seeds", "from", "seed", "saturated"])]
    injected: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    if arguments.injected {
        return injected();
    }
    let is_long = arguments.seed.is_none() && arguments.seeds > SHORT;
    let mut cargo = workspace::simulation("simulate", is_long);
    cargo
        .env("MOTET_SEEDS", arguments.seeds.to_string())
        .env("MOTET_SEED_FROM", arguments.from.to_string())
        .env("MOTET_SATURATED", u8::from(arguments.saturated).to_string());
    if let Some(seed) = arguments.seed {
        cargo.env("MOTET_SEED", seed.to_string());
    }
    if cargo.status()?.success() {
        Ok(())
    } else {
        bail!("a seed failed; `cargo xtask simulate --seed N` runs it again")
    }
}

fn injected() -> Result<()> {
    for mistake in INJECTED {
        ui::heading(&format!("injected: {mistake}"));
        let mut cargo = workspace::simulation("the_injected_mistake_is_found", false);
        cargo.env("MOTET_INJECTED", mistake);
        if !cargo.status()?.success() {
            bail!("the injected bug `{mistake}` was not found");
        }
    }
    Ok(())
}
