//! `cargo xtask`: Motet's chores that cargo cannot do.
//!
//! `benches/` uses the public modules: the cache, models, servers, the terminal.
//!
//! | file | idea |
//! |---|---|
//! | `setup/` | MLX for this machine: wheels, mlx-c, bindings, the generated cargo config, here and for dependent crates |
//! | `api/` | the public names of the library, compared with a list |
//! | `bundle/` | a program and its libraries, for machines without the cache |
//! | `embedded/` | a crate outside the workspace: set up, built, bundled, run |
//! | `model/` | the models that tests and examples run: a table, and how their parts are joined |
//! | `gpu_check/` | a check of MLX for CUDA, packed for a machine without a network |
//! | `coverage.rs` | lines and branches of the cores that the tests reach |
//! | `mutants.rs` | whether tests notice a mistake in the cores |
//! | `fuzz.rs` | libFuzzer on the targets in `fuzz/`, with a stable compiler |
//! | `clients.rs`, `fleet.rs` | third-party clients and fleets against the server |
//! | `shape/` | how the code is built: crates, layers, sizes, words, sentences |
//! | `uninjected.rs` | a build of the library without anything that only tests need |
//! | `parity.rs` | the table of docs/models.md |
//! | `page.rs` | the server's page in a real browser |
//! | `serve.rs`, `fetch.rs` | from a fresh checkout to a running server; the models that packages carry |
//! | `bench.rs`, `demo.rs`, `test/`, `simulate.rs`, `soak.rs` | commands composed of set-up and cargo |
//! | `cache.rs` | the per-user folder of everything that set-up prepares, and its lock |
//! | `packages.rs` | Python packages, in the cache |
//! | `serving.rs`, `llama_server.rs` | a server while others ask it; llama.cpp's, where there is one |
//! | `component.rs` | a folder that is complete and undamaged, or is built again |
//! | `checksum.rs`, `process.rs`, `ui.rs` | SHA-256, other programs, the terminal |

mod api;
pub mod bench;
mod bundle;
pub mod cache;
pub mod checksum;
mod clients;
pub mod component;
mod coverage;
mod demo;
mod deny;
mod embedded;
mod fetch;
pub mod fleet;
mod fuzz;
mod gpu_check;
pub mod llama_server;
pub mod model;
mod mutants;
pub mod packages;
mod page;
mod parity;
pub mod process;

mod serve;
pub mod serving;
pub mod setup;
mod shape;
mod simulate;
mod soak;
mod test;
pub mod ui;
mod uninjected;
pub mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Motet's chores that cargo cannot do.
///
/// Everything is kept in one folder per user ($MOTET_CACHE, or `motet` in the system's
/// cache folder), shared by all checkouts and safe to delete. Nothing is installed
/// elsewhere, and nothing needs root.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up, build the server, find the model or download it, and serve it
    Serve(serve::Arguments),
    /// List the models that need no account, or fetch some and print their paths
    Fetch(fetch::Arguments),
    /// Make `cargo build --features mlx` work on this machine
    Setup(setup::Arguments),
    /// Copy a program and the libraries that it needs into a folder that can be shipped
    Bundle(bundle::Arguments),
    /// Build a crate outside the workspace, bundle it, and run it without the cache
    Embedded(embedded::Arguments),
    /// Set up, then run the load generator on a real model
    Demo(demo::Arguments),
    /// Set up, then run everything that CI checks
    Test(test::Arguments),
    /// Compare each family with its reference, and write the table into docs/models.md
    Parity(parity::Arguments),
    /// Pack a check of MLX for CUDA for a machine without a network, or try it on the CPU
    GpuCheck(gpu_check::Arguments),
    /// Measure the figures and write them to target/motet/bench.json
    #[command(disable_help_flag = true)]
    Bench(bench::Arguments),
    /// Simulate the whole engine on a paused clock, with a fault schedule for each seed
    Simulate(simulate::Arguments),
    /// Run one engine for a long time, and check that its resource use does not grow
    Soak(soak::Arguments),
    /// Fuzz the parsers of untrusted files and messages
    Fuzz(fuzz::Arguments),
    /// Count the lines and branches of the cores that tests reach
    Coverage(coverage::Arguments),
    /// Check the licences, versions, sources and known faults of dependencies
    Deny(deny::Arguments),
    /// Check whether the tests notice mistakes in the cores
    Mutants(mutants::Arguments),
    /// Run OpenAI's client, LangChain, schemathesis and streams that disconnect against the server
    Clients(clients::Arguments),
    /// Run servers behind Dynamo, vllm-router and smg; drain them, and kill workers
    Fleet(fleet::Arguments),
    /// Print how the code is built: crates, layers, sizes, words, sentences
    Shape(shape::Arguments),
    /// Check that a build of the library holds nothing that only tests need
    Uninjected(uninjected::Arguments),
    /// Compare the public names of the library with the list in docs/api.txt
    Api(api::Arguments),
    /// Check the server's page in Chromium while the server works
    Page(page::Arguments),
}

/// Runs the command that the command line names.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(ended) = coverage::compile() {
        return ended;
    }
    let result = match Arguments::parse().command {
        Command::Serve(arguments) => serve::command(&arguments),
        Command::Fetch(arguments) => fetch::command(&arguments),
        Command::Setup(arguments) => setup::command(&arguments),
        Command::Bundle(arguments) => bundle::command(&arguments),
        Command::Embedded(arguments) => embedded::command(&arguments),
        Command::Demo(arguments) => demo::command(&arguments),
        Command::Test(arguments) => test::command(&arguments),
        Command::Parity(arguments) => parity::command(&arguments),
        Command::GpuCheck(arguments) => gpu_check::command(&arguments),
        Command::Bench(arguments) => bench::command(&arguments),
        Command::Simulate(arguments) => simulate::command(&arguments),
        Command::Soak(arguments) => soak::command(&arguments),
        Command::Fuzz(arguments) => fuzz::command(&arguments),
        Command::Coverage(arguments) => coverage::command(&arguments),
        Command::Deny(arguments) => deny::command(&arguments),
        Command::Mutants(arguments) => mutants::command(&arguments),
        Command::Clients(arguments) => clients::command(&arguments),
        Command::Fleet(arguments) => fleet::command(&arguments),
        Command::Shape(arguments) => shape::command(&arguments),
        Command::Uninjected(arguments) => uninjected::command(&arguments),
        Command::Api(arguments) => api::command(&arguments),
        Command::Page(arguments) => page::command(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ui::failure(&error);
            ExitCode::FAILURE
        }
    }
}
