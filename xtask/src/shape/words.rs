//! Identifiers that hold a word which docs/glossary.md retires.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};

use super::source::Sources;
use crate::workspace;

/// Names of other crates and of formats, which are not ours to change.
const FOREIGN: [&str; 13] = [
    "Cleared",
    "DrawingArea",
    "ProgressDrawTarget",
    "TowerToHyperService",
    "draw",
    "draw_series",
    "fuse_unk",
    "into_drawing_area",
    "refusal",
    "run_upkeep",
    "tower",
    "tower_service",
    "with_draw_target",
];

/// An obsolete word, split as identifiers are: `hand_over` is two parts.
pub(super) type Obsolete = BTreeSet<Vec<String>>;

/// The words of the last column of docs/glossary.md.
pub(super) fn glossary() -> Result<Obsolete> {
    let path = workspace::root().join("docs/glossary.md");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let words = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let words = words.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    Ok(words.map(parts).collect())
}

/// Where identifiers hold an obsolete word: one line for each identifier and file.
pub(super) fn obsolete(sources: &Sources, obsolete: &Obsolete) -> Vec<String> {
    let longest = obsolete.iter().map(Vec::len).max().unwrap_or(0);
    let mut found = Vec::new();
    for source in &sources.0 {
        let Ok(tokens) = source.text.parse::<TokenStream>() else {
            continue;
        };
        let mut names = BTreeMap::new();
        identifiers(tokens, &mut names);
        for (name, line) in names {
            if let Some(word) = obsolete_part(&parts(&name), obsolete, longest) {
                let path = &source.path;
                found.push(format!("{path}:{line}: `{name}` holds `{word}`"));
            }
        }
    }
    found
}

/// Each identifier with the first line that it stands in.
fn identifiers(tokens: TokenStream, found: &mut BTreeMap<String, usize>) {
    for token in tokens {
        match token {
            TokenTree::Ident(name) if FOREIGN.contains(&name.to_string().as_str()) => {}
            TokenTree::Ident(name) => {
                let line = name.span().start().line;
                found.entry(name.to_string()).or_insert(line);
            }
            TokenTree::Group(group) => identifiers(group.stream(), found),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn obsolete_part(parts: &[String], obsolete: &Obsolete, longest: usize) -> Option<String> {
    let windows = (1..=longest).flat_map(|length| parts.windows(length));
    let word = windows
        .map(<[String]>::to_vec)
        .find(|part| obsolete.contains(part))?;
    Some(word.join("_"))
}

/// `HandOver` and `hand_over` as `hand`, `over`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let letters: Vec<char> = name.chars().collect();
    for (at, &letter) in letters.iter().enumerate() {
        let after_lower = at > 0 && !letters[at - 1].is_uppercase();
        let before_lower = letters.get(at + 1).is_some_and(|next| next.is_lowercase());
        let begins = letter == '_' || letter.is_uppercase() && (after_lower || before_lower);
        if begins && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if letter != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(letter.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_words() {
        let check = |name: &str, expected: &[&str]| assert_eq!(parts(name), expected, "{name}");
        check("hand_over", &["hand", "over"]);
        check("HandOver", &["hand", "over"]);
        check("KVCache", &["kv", "cache"]);
        check("HANDS_MAX", &["hands", "max"]);
        check("_r", &["r"]);
    }

    #[test]
    fn an_obsolete_word_is_found_anywhere_in_a_name() {
        let obsolete: Obsolete = [parts("seat"), parts("hand_over")].into();
        let check = |name: &str, expected: Option<&str>| {
            let found = obsolete_part(&parts(name), &obsolete, 2);
            assert_eq!(found.as_deref(), expected, "{name}");
        };
        check("open_seat", Some("seat"));
        check("OpenSeat", Some("seat"));
        check("reseated", None);
        check("handOverAll", Some("hand_over"));
        check("hand", None);
    }
}
