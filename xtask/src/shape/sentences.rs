//! Sentences in documents and documentation comments that begin with a word which hides their
//! subject.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source;

const OPENINGS: [&str; 5] = ["Who", "What", "Whoever", "Of", "So"];

/// One line for each such sentence, in documents and in `///` and `//!` comments.
pub(super) fn hidden_subjects(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut paths: Vec<PathBuf> = Vec::new();
    source::files(root, "rs", &mut paths)?;
    source::files(root, "md", &mut paths)?;
    for path in &paths {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        let path = source::relative(root, path);
        for (line, sentence) in sentences(&text, is_rust) {
            let opening = sentence
                .split(|letter: char| !letter.is_alphabetic())
                .next();
            if opening.is_some_and(|opening| OPENINGS.contains(&opening)) {
                let start: String = sentence.chars().take(60).collect();
                found.push(format!("{path}:{line}: {start}"));
            }
        }
    }
    Ok(found)
}

/// All sentences with the line that each begins in. Fenced code is skipped.
fn sentences(text: &str, is_rust: bool) -> Vec<(usize, String)> {
    let mut sentences: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut is_open) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let Some(line) = prose(line, is_rust) else {
            (in_code, is_open) = (false, false);
            continue;
        };
        if line.starts_with("```") {
            in_code = !in_code;
            is_open = false;
            continue;
        }
        if in_code || line.is_empty() {
            is_open = false;
            continue;
        }
        for cell in line.split('|') {
            let item = cell.trim_start_matches(['#', '*', '-', '>', ' ', '_', '`', '"']);
            let is_new_block = item.len() < cell.trim_start().len() || line.contains('|');
            let mut rest = item;
            if is_open && !is_new_block {
                rest = match end_of_sentence(rest) {
                    Some(end) => &rest[end..],
                    None => continue,
                };
            }
            loop {
                let start = rest.trim_start_matches([' ', '*', '_', '`', '"', '(', '[']);
                is_open = !start.is_empty() && end_of_sentence(start).is_none();
                if start.is_empty() {
                    break;
                }
                sentences.push((number + 1, start.to_owned()));
                match end_of_sentence(start) {
                    Some(end) => rest = &start[end..],
                    None => break,
                }
            }
            is_open &= !line.contains('|');
        }
    }
    sentences
}

/// The text of a line, without the marks of a comment. None where it is code.
fn prose(line: &str, is_rust: bool) -> Option<&str> {
    let line = line.trim();
    if !is_rust {
        return Some(line);
    }
    let text = line
        .strip_prefix("///")
        .or_else(|| line.strip_prefix("//!"))?;
    Some(text.trim())
}

/// The offset behind a full stop, question or exclamation mark that ends a sentence.
fn end_of_sentence(text: &str) -> Option<usize> {
    let ends = text
        .char_indices()
        .filter(|(_, letter)| ".!?".contains(*letter));
    let mut ends = ends.map(|(at, letter)| at + letter.len_utf8());
    ends.find(|&end| {
        let rest = text[end..].trim_start_matches(['*', '_', '`', '"', ')']);
        rest.is_empty() || rest.starts_with(' ')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_split_into_sentences() {
        let check = |text: &str, is_rust: bool, expected: &[&str]| {
            let found = sentences(text, is_rust);
            let starts: Vec<_> = found
                .iter()
                .map(|(_, sentence)| sentence.split(' ').next().unwrap_or(""))
                .collect();
            assert_eq!(starts, expected, "{text}");
        };
        check(
            "/// One is here. So is\n/// another. Who?",
            true,
            &["One", "So", "Who?"],
        );
        check("/// It goes on,\n/// So to say.", true, &["It"]);
        check("let so = 1; // So what", true, &[]);
        check("| a | What it is. |", false, &["a", "What"]);
        check("- **What** it\n  Of course", false, &["What**"]);
        check("```\nWhat\n```\nSo", false, &["So"]);
        check("v1.2 is out. Of it", false, &["v1.2", "Of"]);
    }
}
