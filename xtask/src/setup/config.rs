//! The generated configuration of cargo: `.cargo/mlx.toml` in this checkout, which the committed
//! `.cargo/config.toml` includes, and its counterpart for a dependent crate.
//!
//! mlx-sys declares `links = "mlx"`, so cargo lets a configuration stand in for its build script,
//! which knows macOS only. The keys that begin with `motet-` describe the prepared files: cargo
//! passes them to Motet's build script, which compares them (`crates/mlx/build/prepared.rs`).
//! They are the same for every crate that one checkout serves, so that crates with a common
//! target folder share what is built there.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use toml_edit::Value;

use super::{TARGET, Variant};
use crate::cache::{self, Cache};
use crate::workspace;

const VARIANT_PREFIX: &str = "# variant: ";

/// Command that sets up the checkout.
const COMMAND: &str = "cargo xtask setup";

/// Inputs for the build of mlx-sys, on Linux.
#[derive(Clone, Debug)]
pub(super) struct MlxSys {
    pub(super) variant: Variant,
    /// The folder with `bindings.rs`.
    pub(super) bindings: PathBuf,
    /// The folder with `libmlxc.so`.
    pub(super) libraries: PathBuf,
    /// The version of this checkout's Motet.
    pub(super) motet: String,
    /// The version of mlx-sys that both are for.
    pub(super) version: String,
    /// The version of the bridge in the library.
    pub(super) bridge: String,
}

/// Writes this checkout's configuration, unless it is up to date.
pub(super) fn write(cache: &Cache, mlx_sys: Option<&MlxSys>) -> Result<()> {
    let models = cache.models();
    let environment = [("MOTET_MODEL_DIR", text_of(&models)?)];
    write_changed(&path(), &render(COMMAND, &environment, mlx_sys)).map(drop)
}

/// The configuration of a crate that is set up by this command.
pub(super) fn for_dependent(command: &str, mlx_sys: &MlxSys) -> String {
    render(command, &[], Some(mlx_sys))
}

/// Writes the file unless it has this content; returns whether it did.
pub(super) fn write_changed(path: &Path, content: &str) -> Result<bool> {
    if std::fs::read_to_string(path).is_ok_and(|existing| existing == content) {
        return Ok(false);
    }
    let folder = path.parent().context("the configuration has no folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    cache::write_atomically(path, content)?;
    Ok(true)
}

/// The variant that this checkout was set up for last, if any.
pub(super) fn variant() -> Option<Variant> {
    parse_variant(&std::fs::read_to_string(path()).ok()?)
}

fn path() -> PathBuf {
    workspace::root().join(".cargo/mlx.toml")
}

fn render(command: &str, environment: &[(&str, &str)], mlx_sys: Option<&MlxSys>) -> String {
    let mut text = format!(
        "# Written by `{command}` for this machine. Not committed; delete it to undo the set-up.\n",
    );
    // Writing to a String cannot fail.
    if let Some(mlx_sys) = mlx_sys {
        let libraries = mlx_sys.libraries.display();
        let _ = write!(
            text,
            "{VARIANT_PREFIX}{}\n\n\
             [target.{TARGET}.mlx]\n\
             rustc-link-lib = [\"dylib=mlxc\"]\n\
             rustc-link-search = [{}]\n\
             rustc-env = {{ OUT_DIR = {} }}\n\
             motet-version = {}\n\
             motet-bridge = {}\n\
             motet-mlx-sys = {}\n\
             motet-libraries = {}\n",
            mlx_sys.variant,
            quoted(&format!("native={libraries}")),
            quoted(&mlx_sys.bindings.display().to_string()),
            quoted(&mlx_sys.motet),
            quoted(&mlx_sys.bridge),
            quoted(&mlx_sys.version),
            quoted(&libraries.to_string()),
        );
    }
    let _ = write!(text, "\n[env]\nMOTET_SETUP_COMMAND = {}\n", quoted(command));
    for (name, value) in environment {
        let _ = writeln!(text, "{name} = {}", quoted(value));
    }
    text
}

fn text_of(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}

/// A TOML string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn parse_variant(config: &str) -> Option<Variant> {
    config
        .lines()
        .find_map(|line| line.strip_prefix(VARIANT_PREFIX))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::prepared::{Needed, Prepared};

    fn mlx_sys() -> MlxSys {
        MlxSys {
            variant: Variant::Cuda13,
            bindings: "/c/build/mlx-c-1".into(),
            libraries: "/c/build/mlxc 2".into(),
            motet: "0.3.0".to_owned(),
            version: "0.7.0".to_owned(),
            bridge: "3".to_owned(),
        }
    }

    #[test]
    fn the_configuration_stands_in_for_the_build_script() {
        let models = [("MOTET_MODEL_DIR", "/c/models")];
        let text = render(COMMAND, &models, Some(&mlx_sys()));
        for line in [
            "[target.x86_64-unknown-linux-gnu.mlx]",
            "rustc-link-lib = [\"dylib=mlxc\"]",
            "rustc-link-search = [\"native=/c/build/mlxc 2\"]",
            "rustc-env = { OUT_DIR = \"/c/build/mlx-c-1\" }",
            "MOTET_MODEL_DIR = \"/c/models\"",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "no {line} in\n{text}"
            );
        }
        assert_eq!(parse_variant(&text), Some(Variant::Cuda13));
    }

    #[test]
    fn where_mlx_rs_builds_by_itself_only_the_models_are_named() {
        let text = render(COMMAND, &[("MOTET_MODEL_DIR", "/c/models")], None);
        assert!(!text.contains("[target."));
        assert!(text.contains("MOTET_MODEL_DIR"));
        assert_eq!(parse_variant(&text), None);
    }

    /// The environment that cargo makes of the configuration for Motet's build script.
    fn read_as_cargo_does(text: &str) -> impl Fn(&str) -> Option<String> {
        let table: toml_edit::DocumentMut = text.parse().expect("TOML");
        move |name| {
            let item = match name.strip_prefix("DEP_MLX_") {
                Some(key) => {
                    let key = key.to_lowercase().replace('_', "-");
                    table["target"][TARGET]["mlx"].get(key)
                }
                None => table["env"].get(name),
            };
            Some(item?.as_str()?.to_owned())
        }
    }

    #[test]
    fn the_build_script_reads_what_was_prepared() {
        let command = "cargo xtask setup --for '/a \"b\"'";
        let prepared = Prepared::read(read_as_cargo_does(&for_dependent(command, &mlx_sys())));
        let mismatch = |bridge, mlx_sys| {
            let motet = "9.9.9";
            let needed = Needed {
                motet,
                bridge,
                mlx_sys,
            };
            prepared.mismatch(&needed, |library| {
                library == Path::new("/c/build/mlxc 2/libmlxc.so")
            })
        };
        assert_eq!(mismatch("3", "0.7.0"), None);
        for text in [mismatch("4", "0.7.0"), mismatch("3", "0.8.0")] {
            let text = text.expect("the versions do not match");
            assert!(text.contains(command), "{text}");
            assert!(text.contains("that motet 0.3.0 prepared"), "{text}");
        }
    }
}
