//! `--for FOLDER`: lets a crate outside this checkout use the prepared libraries.
//!
//! Cargo reads the configuration of its working folder and of all folders above. Settings for
//! this machine alone go into a generated file there, [`FILE`]. The configuration of the crate,
//! which may be committed, gets one entry that includes that file where it exists; everything
//! else in it stays as it is.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::TARGET;
use super::config::{self, MlxSys};
use super::merge::{Conflict, merge, parse, stands_in};
use crate::cache;

/// The generated file, in the folder `.cargo` of the crate.
pub(super) const FILE: &str = "motet-mlx.toml";

const FOLDER: &str = ".cargo";
const CONFIG: &str = "config.toml";
/// Obsolete name of the configuration, which cargo prefers to the current one.
const LEGACY_CONFIG: &str = "config";

/// A folder whose configuration can be written.
#[derive(Debug)]
pub(super) struct Dependent {
    folder: PathBuf,
}

/// Why a crate cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// There is no such folder, or it cannot be entered.
    NoFolder { path: PathBuf, why: String },
    /// The folder has no `Cargo.toml`.
    NoManifest { folder: PathBuf },
    /// The folder's name is not UTF-8, as a configuration has to be.
    NotUtf8 { folder: PathBuf },
    /// The folder is in this checkout, whose own configuration reaches it.
    Inside { folder: PathBuf, checkout: PathBuf },
    /// A folder above has a configuration that holds for this one too.
    SetUpAbove { folder: PathBuf, file: PathBuf },
    /// The configuration has a name that cargo no longer uses.
    Legacy { file: PathBuf },
    /// The configuration cannot be read, or is not TOML.
    Unreadable { file: PathBuf, why: String },
    /// The configuration itself replaces mlx-sys' build script.
    OwnTable { file: PathBuf },
    /// The configuration's `include` is neither a path nor a list of paths.
    Include { file: PathBuf },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFolder { path, why } => write!(f, "cannot enter {}: {why}", path.display()),
            Self::NoManifest { folder } => write!(
                f,
                "{} has no Cargo.toml: name the folder of the crate, or of its workspace",
                folder.display()
            ),
            Self::NotUtf8 { folder } => write!(
                f,
                "the name of {} is not UTF-8, and cargo's configuration has to be: move the crate",
                folder.display()
            ),
            Self::Inside { folder, checkout } => write!(
                f,
                "{} is inside the checkout {}, whose configuration holds there too: run `cargo \
                 xtask setup` without --for",
                folder.display(),
                checkout.display()
            ),
            Self::SetUpAbove { folder, file } => write!(
                f,
                "{} holds for {} too and replaces mlx-sys' build script already: \
                 run `cargo xtask setup --for` its folder, or delete it",
                file.display(),
                folder.display()
            ),
            Self::Legacy { file } => write!(
                f,
                "{} has a name that cargo no longer uses: rename it to {CONFIG} and repeat",
                file.display()
            ),
            Self::Unreadable { file, why } => write!(f, "cannot read {}: {why}", file.display()),
            Self::OwnTable { file } => write!(
                f,
                "{} has a table [target.{TARGET}.mlx] of its own, and cargo would mix both: take \
                 it out and repeat",
                file.display()
            ),
            Self::Include { file } => write!(
                f,
                "`include` in {} is neither a path nor a list of paths: correct it and repeat",
                file.display()
            ),
        }
    }
}

impl std::error::Error for Obstacle {}

impl Dependent {
    /// The crate or workspace at `path`, a folder or its `Cargo.toml`.
    ///
    /// # Errors
    ///
    /// Where its configuration cannot be written, or would contradict another.
    pub(super) fn find(path: &Path, checkout: &Path) -> Result<Self, Obstacle> {
        let entered = |path: &Path| {
            fs::canonicalize(path).map_err(|error| Obstacle::NoFolder {
                path: path.to_owned(),
                why: error.to_string(),
            })
        };
        let mut folder = entered(path)?;
        if folder.is_file() && folder.ends_with("Cargo.toml") {
            folder.pop();
        }
        let checkout = entered(checkout)?;
        if folder.starts_with(&checkout) {
            return Err(Obstacle::Inside { folder, checkout });
        }
        if !folder.join("Cargo.toml").is_file() {
            return Err(Obstacle::NoManifest { folder });
        }
        if folder.to_str().is_none() {
            return Err(Obstacle::NotUtf8 { folder });
        }
        if let Some(file) = set_up_above(&folder) {
            return Err(Obstacle::SetUpAbove { folder, file });
        }
        let dependent = Self { folder };
        dependent.merged()?;
        Ok(dependent)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes the files that have changed, and returns their paths.
    pub(super) fn write(&self, mlx_sys: &MlxSys) -> Result<Vec<PathBuf>> {
        let generated = self.folder.join(FOLDER).join(FILE);
        let merged = self.merged()?;
        let mut written = Vec::new();
        if config::write_changed(&generated, &config::for_dependent(&self.command(), mlx_sys))? {
            written.push(generated);
        }
        if let Some(merged) = merged {
            let file = self.config();
            // A link is followed to its target.
            let file = fs::canonicalize(&file).unwrap_or(file);
            cache::write_atomically(&file, &merged)?;
            written.push(file);
        }
        Ok(written)
    }

    /// The command that sets this crate up.
    fn command(&self) -> String {
        let folder = self.folder.display().to_string();
        let is_plain = |c: char| c.is_alphanumeric() || "/._-+@,".contains(c);
        if folder.chars().all(is_plain) {
            return format!("cargo xtask setup --for {folder}");
        }
        let quoted = folder.replace('\'', "'\\''");
        format!("cargo xtask setup --for '{quoted}'")
    }

    fn config(&self) -> PathBuf {
        self.folder.join(FOLDER).join(CONFIG)
    }

    /// The crate's configuration with our entry, or none if it has the entry already.
    fn merged(&self) -> Result<Option<String>, Obstacle> {
        let legacy = self.folder.join(FOLDER).join(LEGACY_CONFIG);
        if legacy.exists() {
            return Err(Obstacle::Legacy { file: legacy });
        }
        let file = self.config();
        let existing = read(&file)?;
        merge(&existing).map_err(|conflict| conflict.at(file))
    }
}

impl Conflict {
    fn at(self, file: PathBuf) -> Obstacle {
        match self {
            Self::NotToml(why) => Obstacle::Unreadable { file, why },
            Self::OwnTable => Obstacle::OwnTable { file },
            Self::Include => Obstacle::Include { file },
        }
    }
}

/// The content of a file, or none where there is no such file.
fn read(file: &Path) -> Result<String, Obstacle> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Obstacle::Unreadable {
            file: file.to_owned(),
            why: error.to_string(),
        }),
    }
}

/// A configuration in a folder above that replaces mlx-sys' build script, or includes one that
/// does.
fn set_up_above(folder: &Path) -> Option<PathBuf> {
    let above = folder.ancestors().skip(1);
    let mut files = above.flat_map(|above| {
        let cargo = above.join(FOLDER);
        [FILE, LEGACY_CONFIG, CONFIG].map(|name| cargo.join(name))
    });
    files.find(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        parse(&text).is_ok_and(|document| stands_in(&document))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::Variant;

    /// A crate and a checkout in a folder of the test's own.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let root = format!("xtask-dependent-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(root);
            cache::remove(&root).expect("an empty place");
            for folder in ["checkout/fuzz", "team/app/.cargo", "team/.cargo"] {
                fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            for manifest in ["checkout", "checkout/fuzz", "team/app"] {
                fs::write(root.join(manifest).join("Cargo.toml"), "").expect("a manifest");
            }
            Self(fs::canonicalize(root).expect("it is there"))
        }

        fn find(&self, path: &str) -> Result<Dependent, Obstacle> {
            Dependent::find(&self.0.join(path), &self.0.join("checkout"))
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.join(file), text).expect("it can be written");
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = cache::remove(&self.0); // a few files in the temporary folder
        }
    }

    fn mlx_sys(libraries: &str) -> MlxSys {
        MlxSys {
            variant: Variant::Cpu,
            bindings: "/c/bindings".into(),
            libraries: libraries.into(),
            motet: "0.3.0".to_owned(),
            version: "0.7.0".to_owned(),
            bridge: "3".to_owned(),
        }
    }

    #[test]
    fn only_what_differs_is_written() {
        let scratch = Scratch::new("written");
        let cargo = scratch.0.join("team/app/.cargo");
        let (generated, config) = (cargo.join(FILE), cargo.join(CONFIG));
        fs::write(&config, "[net]\nretry = 3\n").expect("it can be written");

        let dependent = scratch.find("team/app/Cargo.toml").expect("a crate");
        let write = |libraries| dependent.write(&mlx_sys(libraries)).expect("it is written");
        assert_eq!(write("/c/one"), [generated.clone(), config.clone()]);
        assert_eq!(write("/c/one"), Vec::<PathBuf>::new());
        assert_eq!(write("/c/two"), std::slice::from_ref(&generated));

        let contents = fs::read_to_string(&config).expect("it is there");
        assert!(contents.ends_with("[net]\nretry = 3\n"), "{contents}");
        let generated = fs::read_to_string(&generated).expect("it is there");
        let command = format!("cargo xtask setup --for {}", dependent.folder().display());
        assert!(generated.contains(&command), "{generated}");
        assert!(generated.contains("native=/c/two"), "{generated}");
    }

    #[test]
    fn folders_that_cannot_be_set_up_are_named() {
        let scratch = Scratch::new("refused");
        let found = |path: &str| scratch.find(path).expect_err("it cannot be set up");
        let at = |path: &str| scratch.0.join(path);
        assert!(
            matches!(found("nowhere"), Obstacle::NoFolder { path, .. } if path == at("nowhere"))
        );
        assert_eq!(found("team"), Obstacle::NoManifest { folder: at("team") });
        let inside = Obstacle::Inside {
            folder: at("checkout/fuzz"),
            checkout: at("checkout"),
        };
        assert_eq!(found("checkout/fuzz"), inside);

        let table = "[target.x86_64-unknown-linux-gnu.mlx]\nrustc-link-lib = []\n";
        scratch.write("team/.cargo/motet-mlx.toml", table);
        let above = Obstacle::SetUpAbove {
            folder: at("team/app"),
            file: at("team/.cargo/motet-mlx.toml"),
        };
        assert_eq!(found("team/app"), above);
        scratch.write("team/.cargo/motet-mlx.toml", "");

        scratch.write("team/app/.cargo/config.toml", table);
        let config = at("team/app/.cargo/config.toml");
        assert_eq!(found("team/app"), Obstacle::OwnTable { file: config });
        scratch.write("team/app/.cargo/config", "");
        let legacy = at("team/app/.cargo/config");
        assert_eq!(found("team/app"), Obstacle::Legacy { file: legacy });
        fs::remove_file(at("team/app/.cargo/config")).expect("it was there");
        scratch.write("team/app/.cargo/config.toml", "");
        scratch.find("team/app").expect("no obstacle is left");
    }

    #[test]
    fn the_command_can_be_pasted() {
        let command = |folder: &str| {
            let folder = folder.into();
            Dependent { folder }.command()
        };
        assert_eq!(command("/srv/app-1"), "cargo xtask setup --for /srv/app-1");
        assert_eq!(
            command("/srv/an app's"),
            r"cargo xtask setup --for '/srv/an app'\''s'"
        );
    }
}
