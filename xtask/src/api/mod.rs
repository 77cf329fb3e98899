//! `cargo xtask api`: every public name of the library, compared with the list in `docs/api.txt`.
//!
//! A change of the public API is thereby a line of the commit that makes it. The command also fails
//! where a signature has a type that `motet` does not export: a caller could not name what it gets.
//!
//! | file | idea |
//! |---|---|
//! | `documented.rs` | rustdoc's JSON of several crates, and what one says of another's items |
//! | `names.rs` | the names that are reachable from `motet`, and the types in their signatures |

mod documented;
mod names;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::{setup, ui, workspace};
use documented::Documented;
use names::Names;

/// The list, in the checkout.
const LIST: &str = "docs/api.txt";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write the list instead of comparing it
    #[arg(long)]
    update: bool,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    setup::install(&Cache::open()?, None)?;
    let Some(documented) = Documented::build()? else {
        ui::note("the public names were not compared");
        return Ok(());
    };
    let names = Names::of(&documented)?;
    let unnamed = names.unnamed(&documented);
    ensure!(
        unnamed.is_empty(),
        "types that `motet` does not export are in its signatures:\n{}",
        unnamed.into_iter().collect::<Vec<_>>().join("\n")
    );

    let path = workspace::root().join(LIST);
    let now = names.list(&documented);
    ui::note(&format!("{} public names", names.count()));
    if arguments.update {
        return fs::write(&path, now).with_context(|| format!("cannot write {}", path.display()));
    }
    let listed =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let differences = differences(&listed, &now);
    if !differences.is_empty() {
        bail!(
            "the public API is not the one of {LIST}; if that is meant, run `cargo xtask api --update`:\n{}",
            differences.join("\n")
        );
    }
    Ok(())
}

/// Lines of one text that the other has not, each with a sign before it.
fn differences(listed: &str, now: &str) -> Vec<String> {
    let (listed, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (listed.lines().collect(), now.lines().collect());
    let gone = listed.difference(&now).map(|line| format!("-{line}"));
    gone.chain(now.difference(&listed).map(|line| format!("+{line}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_the_lines_of_one_text_only() {
        let listed = "struct motet::A\nstruct motet::B\n";
        assert_eq!(differences(listed, listed), [""; 0]);
        assert_eq!(
            differences(listed, "struct motet::B\nenum motet::C\n"),
            ["-struct motet::A", "+enum motet::C"]
        );
    }
}
