//! Names of models, as a command line has them.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::FindError;
use crate::select;

/// The hub's own limit for a part of a repository's name.
const NAME_BYTES_MAX: usize = 96;
const TAG: &str = "latest";

/// A name of a model, parsed but not looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelName {
    /// A file or folder.
    Path(PathBuf),
    /// A repository of Hugging Face's hub.
    Hub {
        /// `ORG/NAME`.
        repository: String,
        /// A file, or a part of a file's name such as a quantisation.
        choice: Option<String>,
    },
    /// A model of ollama's.
    Ollama {
        /// `NAME`, `USER/NAME` or `HOST/USER/NAME`.
        name: String,
        /// `latest` if none was given.
        tag: String,
    },
    /// A model of LM Studio's.
    LmStudio {
        /// `PUBLISHER/NAME`.
        folder: String,
        /// As for [`Hub`](Self::Hub).
        choice: Option<String>,
    },
}

impl ModelName {
    /// A name for people: of the file without its extension, of the repository without its
    /// organisation, or the one that ollama has.
    #[must_use]
    pub fn short(&self) -> String {
        let last = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        match self {
            Self::Path(path) => short_of_path(path),
            Self::Hub { repository, .. } => last(repository),
            Self::Ollama { name, tag } if tag == TAG => last(name),
            Self::Ollama { name, tag } => format!("{}:{tag}", last(name)),
            Self::LmStudio { folder, .. } => last(folder),
        }
    }
}

fn short_of_path(path: &Path) -> String {
    let whole = path.file_name().map(|name| name.to_string_lossy());
    let whole = whole.unwrap_or_default();
    if let Some(part) = select::SplitPart::of(&whole) {
        return part.stem.to_owned();
    }
    let stem = path.file_stem().map(|name| name.to_string_lossy());
    stem.unwrap_or_default().into_owned()
}

impl FromStr for ModelName {
    type Err = FindError;

    fn from_str(text: &str) -> Result<Self, FindError> {
        let wrong = |what: &str| FindError::Name {
            name: text.to_owned(),
            what: what.to_owned(),
        };
        if text.is_empty() {
            return Err(wrong("it is empty"));
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            let (repository, choice) = parts(rest).map_err(|what| wrong(&what))?;
            return Ok(Self::Hub { repository, choice });
        }
        if let Some(rest) = text.strip_prefix("lmstudio:") {
            let (folder, choice) = parts(rest).map_err(|what| wrong(&what))?;
            if !folder.contains('/') {
                return Err(wrong("expected PUBLISHER/NAME"));
            }
            return Ok(Self::LmStudio { folder, choice });
        }
        if let Some(rest) = text.strip_prefix("ollama:") {
            let (name, tag) = rest.split_once(':').unwrap_or((rest, TAG));
            check(name, 3)
                .and_then(|()| check(tag, 1))
                .map_err(|what| wrong(&what))?;
            let (name, tag) = (name.to_owned(), tag.to_owned());
            return Ok(Self::Ollama { name, tag });
        }
        if text.starts_with("https://") || text.starts_with("http://") {
            return Err(wrong("it is an address"));
        }
        Ok(Self::Path(text.into()))
    }
}

/// The repository and the choice.
fn parts(text: &str) -> Result<(String, Option<String>), String> {
    let (repository, choice) = match text.split_once(':') {
        Some((repository, choice)) => (repository, Some(choice)),
        None => (text, None),
    };
    check(repository, 2)?;
    if let Some(choice) = choice
        && !select::is_inside(choice)
    {
        return Err(format!("`{choice}` is no file of a repository"));
    }
    Ok((repository.to_owned(), choice.map(str::to_owned)))
}

/// Checks a name of up to `most` parts, which become names of folders.
fn check(name: &str, most: usize) -> Result<(), String> {
    let is_part = |part: &str| {
        let letters = part
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        letters && !part.is_empty() && part.len() <= NAME_BYTES_MAX && !part.starts_with('.')
    };
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() > most || !parts.iter().all(|part| is_part(part)) {
        return Err(format!(
            "`{name}` is no name of letters, digits, `-`, `_` and `.`"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed() {
        let check = |text: &str, expected: ModelName, short: &str| {
            let name: ModelName = text.parse().expect(text);
            assert_eq!(name, expected, "{text}");
            assert_eq!(name.short(), short, "{text}");
        };
        let path = |text: &str| ModelName::Path(text.into());
        check("models/small.gguf", path("models/small.gguf"), "small");
        check(
            "a/x-Q8_0-00002-of-00003.gguf",
            path("a/x-Q8_0-00002-of-00003.gguf"),
            "x-Q8_0",
        );
        check(
            "C:\\small.gguf",
            path("C:\\small.gguf"),
            ModelName::Path("C:\\small.gguf".into()).short().as_str(),
        );
        check("./hf:a/b", path("./hf:a/b"), "b");
        let hub = |repository: &str, choice: Option<&str>| ModelName::Hub {
            repository: repository.into(),
            choice: choice.map(str::to_owned),
        };
        check("hf:org/Small.1", hub("org/Small.1", None), "Small.1");
        check("hf:gpt2", hub("gpt2", None), "gpt2");
        check(
            "hf:org/small:q4_k_m",
            hub("org/small", Some("q4_k_m")),
            "small",
        );
        check("hf:org/s:Q8/s.gguf", hub("org/s", Some("Q8/s.gguf")), "s");
        let ollama = |name: &str, tag: &str| ModelName::Ollama {
            name: name.into(),
            tag: tag.into(),
        };
        check("ollama:smollm2", ollama("smollm2", "latest"), "smollm2");
        check(
            "ollama:smollm2:135m",
            ollama("smollm2", "135m"),
            "smollm2:135m",
        );
        check(
            "ollama:hf.co/org/m:Q8_0",
            ollama("hf.co/org/m", "Q8_0"),
            "m:Q8_0",
        );
        let folder = "org/small".to_owned();
        let choice = None;
        check(
            "lmstudio:org/small",
            ModelName::LmStudio { folder, choice },
            "small",
        );
    }

    #[test]
    fn names_that_would_lead_elsewhere_are_rejected() {
        for text in [
            "",
            "hf:",
            "hf:/x",
            "hf:a/",
            "hf:a/b/c",
            "hf:../a",
            "hf:a/..",
            "hf:a/b:",
            "hf:a/b:/etc/x",
            "hf:a/b:../x.gguf",
            "hf:a/b:x/../../y",
            "hf:a/b:c:d",
            "hf:a/b:x\\y",
            "hf:a b/c",
            "hf:a/b?x",
            "ollama:",
            "ollama:a:b:c",
            "ollama:../a",
            "ollama:a:../b",
            "ollama:a:b/c",
            "lmstudio:a",
            "lmstudio:a/b:../c",
            "https://huggingface.co/a/b",
        ] {
            let error = text.parse::<ModelName>().expect_err(text).to_string();
            assert!(error.contains("hf:ORG/NAME"), "{error}");
        }
        let long = format!("hf:{}/x", "a".repeat(1 << 16));
        long.parse::<ModelName>().expect_err("too long");
    }
}
