//! A real model's log probabilities of the next token, ours and llama.cpp's on the same file.

use std::process::Command;

use anyhow::Result;

use crate::cache::Cache;
use crate::model::Model;
use crate::serving::Serving;
use crate::{llama_server, process, setup, workspace};

/// Asks both servers, and prints a table. Needs Python, but no package.
const SCRIPT: &str = "xtask/parity/next_token.py";

pub(super) fn command(model: Model) -> Result<()> {
    let peer = llama_server::find()?;
    let cache = Cache::open()?;
    setup::install(&cache, None)?;
    let file = model.ensure(&cache)?;
    let program = workspace::release("motet-server")?;
    let folder = workspace::reports()?;

    let mut ours = Command::new(program);
    ours.arg("--model").arg(&file).args(["--name", "ours"]);
    let ours = Serving::start("our server", &mut ours, &folder.join("ours.log"))?;
    let mut theirs = llama_server::command(&peer, &file)?;
    let log = folder.join("llama-server.log");
    let theirs = Serving::start("llama-server", &mut theirs, &log)?;

    let urls = [&ours, &theirs].map(|server| format!("http://127.0.0.1:{}", server.port()));
    let mut python = Command::new("python3");
    python.arg(workspace::root().join(SCRIPT)).args(urls);
    process::run(&mut python)
}
