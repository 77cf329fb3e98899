//! The model that the command line or the environment names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use motet::model::find::{Finder, ProgressLines};

const DEFAULT_FILE: &str = "smollm2-135m-instruct.gguf";
const ADVICE: &str = "Fetch the default model (98 MB) with\n  \
                      cargo xtask fetch smollm2-135m-instruct\n\
                      or name another one with --model, or pass --oracle for a simulated one";

/// Finds the model that the command line names, or else the one that the environment
/// names, or else the one that `cargo xtask fetch` gets. Shows a line for each stage of a search.
pub(crate) fn find(
    named: Option<&str>,
    environment: impl Fn(&str) -> Option<OsString>,
    mut show: impl FnMut(String),
) -> Result<PathBuf> {
    let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
    let mut look_up = |name: &str| {
        let mut lines = ProgressLines::default();
        Finder::from_variables(&environment).find(name, |progress| {
            lines.line(&progress).into_iter().for_each(&mut show);
        })
    };
    let name = named.map(|name| (name.to_owned(), ""));
    let set = || variable("MOTET_MODEL")?.into_string().ok();
    let name = name.or_else(|| Some((set()?, " (from MOTET_MODEL)")));
    if let Some((name, source)) = name {
        return look_up(&name).map_err(|error| anyhow!("{error}{source}.\n{ADVICE}"));
    }
    let (path, source) = if let Some(folder) = variable("MOTET_MODEL_DIR") {
        let path = Path::new(&folder).join(DEFAULT_FILE);
        (path, " (from MOTET_MODEL_DIR)")
    } else {
        bail!("no model was named.\n{ADVICE}");
    };
    if path.exists() {
        Ok(path)
    } else {
        bail!("there is no model at {}{source}.\n{ADVICE}", path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_wins() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let check = |named: Option<&str>, set: &[(&str, &str)], expected: Result<&str, &str>| {
            let environment = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let found = find(named, environment, |_| {});
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, Path::new(expected)),
                (Err(found), Err(expected)) => {
                    let found = format!("{found:#}");
                    assert!(found.contains(expected), "{found}");
                    assert!(found.contains("cargo xtask fetch"), "{found}");
                    assert!(found.contains("--oracle"), "{found}");
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        };
        check(Some(here), &[("MOTET_MODEL", "/nowhere")], Ok(here));
        check(None, &[("MOTET_MODEL", here)], Ok(here));
        check(None, &[("MOTET_MODEL", "")], Err("no model was named"));
        check(None, &[], Err("no model was named"));
        check(
            Some("/nowhere/a.gguf"),
            &[],
            Err("/nowhere/a.gguf; expected"),
        );
        check(Some("hf:"), &[], Err("names no model"));
        let folder = [("MOTET_MODEL_DIR", "/nowhere")];
        check(None, &folder, Err("/nowhere/smollm2-135m-instruct.gguf"));
    }
}
