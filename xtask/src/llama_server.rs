//! llama.cpp's server, where one is available. xtask does not install it: the comparison needs a
//! server that was compiled for this very processor.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail};

/// Environment variable that names the program.
const VARIABLE: &str = "MOTET_LLAMA_SERVER";
/// Program that is searched for on `PATH` otherwise.
const PROGRAM: &str = "llama-server";
/// One slot for each user of the load, so that no request waits.
const SLOTS: usize = 16;
/// Tokens of a slot. The load's longest conversation has about half as many.
const SLOT_TOKENS: usize = 2_048;
/// Its drafts: what followed the same n-gram.
const DRAFTS: &str = "ngram-map-k";

/// Finds the program.
///
/// # Errors
///
/// When there is no such program.
pub fn find() -> Result<PathBuf> {
    let why = match env::var_os(VARIABLE).map(PathBuf::from) {
        Some(named) if named.is_file() => return Ok(named),
        Some(named) => format!(
            "no llama-server at {}, which {VARIABLE} names",
            named.display()
        ),
        None => match on_path(&env::var_os("PATH").unwrap_or_default()) {
            Some(found) => return Ok(found),
            None => format!("no `{PROGRAM}` on PATH; {VARIABLE} names one"),
        },
    };
    bail!(why)
}

/// The command that serves this GGUF file as it is, on all processors. By default, the server
/// batches requests and each slot keeps its conversation.
///
/// # Errors
///
/// When the system does not tell how many processors there are.
pub fn command(program: &Path, model: &Path) -> Result<Command> {
    with_slots(program, model, SLOTS, SLOT_TOKENS)
}

/// The same with drafts from n-grams, and half as many slots of three times the tokens.
///
/// # Errors
///
/// As for [`command`].
pub fn drafting_command(program: &Path, model: &Path) -> Result<Command> {
    let mut command = with_slots(program, model, SLOTS / 2, 3 * SLOT_TOKENS)?;
    command.args(["--spec-type", DRAFTS]);
    Ok(command)
}

fn with_slots(program: &Path, model: &Path, slots: usize, slot_tokens: usize) -> Result<Command> {
    let threads = thread::available_parallelism().context("cannot count the processors")?;
    let mut command = Command::new(program);
    command
        .arg("--model")
        .arg(model)
        .args(["--parallel", &slots.to_string()])
        .args(["--ctx-size", &(slots * slot_tokens).to_string()])
        .args(["--threads", &threads.to_string()]);
    Ok(command)
}

fn on_path(path: &OsStr) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|folder| folder.join(PROGRAM))
        .find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_on_the_path_is_taken() {
        let root = env::temp_dir().join(format!("motet-llama-{}", std::process::id()));
        let folders = ["none", "folder", "first", "second"].map(|name| root.join(name));
        for folder in &folders {
            fs::create_dir_all(folder).unwrap();
        }
        fs::create_dir(folders[1].join(PROGRAM)).unwrap();
        for folder in &folders[2..] {
            fs::write(folder.join(PROGRAM), "").unwrap();
        }
        let found = |folders: &[PathBuf]| on_path(&env::join_paths(folders).unwrap());
        assert_eq!(found(&folders), Some(folders[2].join(PROGRAM)));
        assert_eq!(found(&folders[..2]), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
