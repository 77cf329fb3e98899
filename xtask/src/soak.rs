//! `cargo xtask soak`: one engine for a long time, to check that its resource use does not grow.

use anyhow::{Result, bail};

use crate::workspace;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Minutes of simulated time, with faults
    #[arg(long, default_value_t = 60)]
    minutes: u32,
    /// Minutes of real time instead, with threads and without faults
    #[arg(long, conflicts_with = "minutes", value_name = "MINUTES")]
    real: Option<u32>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let mut cargo = workspace::simulation("soak_for_long", true);
    match arguments.real {
        Some(minutes) => cargo.env("MOTET_SOAK_REAL_MINUTES", minutes.to_string()),
        None => cargo.env("MOTET_SOAK_MINUTES", arguments.minutes.to_string()),
    };
    if cargo.status()?.success() {
        Ok(())
    } else {
        bail!("the soak test failed")
    }
}
