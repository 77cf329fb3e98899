//! The generated `.cargo/mlx.toml`, which the committed `.cargo/config.toml` includes.
//!
//! mlx-sys declares `links = "mlx"`, so cargo lets a configuration stand in for its
//! build script, which knows macOS only.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{TARGET, Variant};
use crate::cache::{self, Cache};
use crate::workspace;

const VARIANT_PREFIX: &str = "# variant: ";

/// What mlx-sys is to be built with, on Linux.
pub(super) struct MlxSys {
    pub(super) variant: Variant,
    /// The folder with `bindings.rs`.
    pub(super) bindings: PathBuf,
    /// The folder with `libmlxc.so`.
    pub(super) libraries: PathBuf,
}

/// Writes the configuration, if it is not so already.
pub(super) fn write(cache: &Cache, mlx_sys: Option<&MlxSys>) -> Result<()> {
    let path = path();
    let content = render(&cache.models(), mlx_sys);
    if std::fs::read_to_string(&path).is_ok_and(|existing| existing == content) {
        return Ok(());
    }
    let folder = path.parent().context("the configuration has no folder")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot create {}", folder.display()))?;
    cache::write_atomically(&path, &content)
}

/// The variant that this checkout was set up for last, if any.
pub(super) fn variant() -> Option<Variant> {
    parse_variant(&std::fs::read_to_string(path()).ok()?)
}

fn path() -> PathBuf {
    workspace::root().join(".cargo/mlx.toml")
}

fn render(models: &Path, mlx_sys: Option<&MlxSys>) -> String {
    let mut text = String::from(
        "# Written by `cargo xtask setup` for this machine. Not committed; delete it to undo the set-up.\n",
    );
    if let Some(MlxSys {
        variant,
        bindings,
        libraries,
    }) = mlx_sys
    {
        let (bindings, libraries) = (quoted(bindings), quoted(libraries));
        let _ = write!(
            text, // writing to a String cannot fail
            "{VARIANT_PREFIX}{variant}\n\n\
             [target.{TARGET}.mlx]\n\
             rustc-link-lib = [\"dylib=mlxc\"]\n\
             rustc-link-search = [{}]\n\
             rustc-env = {{ OUT_DIR = {bindings} }}\n",
            quoted_text(&format!("native={}", libraries.trim_matches('"'))),
        );
    }
    let _ = write!(text, "\n[env]\nMOTET_MODEL_DIR = {}\n", quoted(models));
    text
}

/// A TOML string. The cache refuses the characters that would need an escape.
fn quoted(path: &Path) -> String {
    quoted_text(&path.display().to_string())
}

fn quoted_text(text: &str) -> String {
    format!("\"{text}\"")
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

    #[test]
    fn the_configuration_stands_in_for_the_build_script() {
        let mlx_sys = MlxSys {
            variant: Variant::Cuda13,
            bindings: "/c/build/mlx-c-1".into(),
            libraries: "/c/build/mlxc 2".into(),
        };
        let text = render(Path::new("/c/models"), Some(&mlx_sys));
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
        let text = render(Path::new("/c/models"), None);
        assert!(!text.contains("[target."));
        assert!(text.contains("MOTET_MODEL_DIR"));
        assert_eq!(parse_variant(&text), None);
    }
}
