//! `cargo xtask shape`: how the code is built, in figures that anyone can take.
//!
//! | file | figure |
//! |---|---|
//! | `source.rs` | the files that are measured, parsed once |
//! | `dependencies.rs` | external crates of each library crate |
//! | `modules.rs` | the modules, and the module that a path leads to |
//! | `imports.rs` | imports against the layers, circles of modules |
//! | `lines.rs` | lines of code by place, and how far they may grow |
//! | `sizes.rs` | files, functions, structs, documented public items |
//! | `words.rs` | identifiers that hold a word which docs/glossary.md retires |
//! | `sentences.rs` | sentences that begin with a word that hides their subject |

mod dependencies;
mod imports;
mod lines;
mod modules;
mod sentences;
mod sizes;
mod source;
mod words;

use std::path::PathBuf;

use anyhow::Result;

use crate::workspace;
use source::Sources;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Also list the places behind the figures that should be zero
    #[arg(long)]
    places: bool,
    /// Measure another checkout
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
}

/// A count that should be zero, and the places that it counts.
struct Places {
    name: &'static str,
    places: Vec<String>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let root = arguments.root.clone().unwrap_or_else(workspace::root);
    let sources = Sources::read(&root)?;
    let uses = modules::uses(&sources);
    let zeros = [
        Places {
            name: "imports against the layers",
            places: imports::against_layers(&uses),
        },
        Places {
            name: "circles of modules",
            places: imports::circles(&uses),
        },
        Places {
            name: "places that have grown by more than 5 %",
            places: lines::grown(&sources),
        },
        Places {
            name: "identifiers with an obsolete word",
            places: words::obsolete(&sources, &words::glossary()?),
        },
        Places {
            name: "sentences that begin with Who, What, Whoever, Of or So",
            places: sentences::hidden_subjects(&root)?,
        },
    ];
    println!("{}", dependencies::table(&root)?);
    println!("{}", sizes::table(&sources));
    println!("{}", lines::table(&sources));
    println!("| should be zero | |\n|---|--:|");
    for zero in &zeros {
        println!("| {} | {} |", zero.name, zero.places.len());
    }
    if arguments.places {
        for zero in &zeros {
            println!("\n{}:", zero.name);
            zero.places.iter().for_each(|place| println!("  {place}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_go_downwards_and_in_no_circle() {
        let sources = Sources::read(&workspace::root()).expect("the checkout can be read");
        let uses = modules::uses(&sources);
        let mut found = imports::against_layers(&uses);
        found.extend(imports::circles(&uses));
        for allowed in imports::ALLOWED {
            let before = found.len();
            found.retain(|found| !found.starts_with(allowed));
            assert_ne!(
                found.len(),
                before,
                "nothing begins with {allowed:?} any more"
            );
        }
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn no_place_grows_unasked() {
        let sources = Sources::read(&workspace::root()).expect("the checkout can be read");
        assert_eq!(lines::grown(&sources), Vec::<String>::new());
    }

    #[test]
    fn no_identifier_holds_a_word_that_the_glossary_retires() {
        let sources = Sources::read(&workspace::root()).expect("the checkout can be read");
        let obsolete = words::glossary().expect("docs/glossary.md can be read");
        assert!(
            obsolete.len() > 100,
            "the glossary lists {}",
            obsolete.len()
        );
        assert_eq!(words::obsolete(&sources, &obsolete), Vec::<String>::new());
    }

    #[test]
    fn no_sentence_hides_its_subject() {
        let found = sentences::hidden_subjects(&workspace::root()).expect("it can be read");
        assert_eq!(found, Vec::<String>::new());
    }
}
