//! Compiles and runs the code that README.md and docs/embedding.md show: the quickstart, and
//! each block of the guide. A file beside this one begins with the block and ends with its test.
//! `examples.rs` runs the examples that need no model.

#[path = "../common/mod.rs"]
mod common;
mod configuration;
#[cfg(feature = "mlx")]
mod deterministic;
mod ending;
mod examples;
mod find;
mod forks;
mod grammar;
mod handles;
mod health;
#[cfg(feature = "tower")]
mod layers;
mod oracle;
mod own_model;
mod pages;
mod prediction;
mod recorder;
mod rejections;
mod routers;
mod scores;
mod shift;
mod streams;
mod ten_lines;
mod tenants;
mod tiers;
mod tools;
mod warm_and_pin;
mod watching;

use motet::Engine;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::text::TextCodec;
use motet_text::GgufVocabulary;

const README: &str = include_str!("../../README.md");
const GUIDE: &str = include_str!("../../docs/embedding.md");

/// The line between a block and its test.
const SHOWN_UP_TO: &str = "\n// The guide shows what stands above.\n";

/// In the order of the guide.
const BLOCKS: [(&str, &str); 24] = [
    ("ten_lines.rs", include_str!("ten_lines.rs")),
    ("find.rs", include_str!("find.rs")),
    ("oracle.rs", include_str!("oracle.rs")),
    ("configuration.rs", include_str!("configuration.rs")),
    ("streams.rs", include_str!("streams.rs")),
    ("handles.rs", include_str!("handles.rs")),
    ("tools.rs", include_str!("tools.rs")),
    ("grammar.rs", include_str!("grammar.rs")),
    ("prediction.rs", include_str!("prediction.rs")),
    ("forks.rs", include_str!("forks.rs")),
    ("scores.rs", include_str!("scores.rs")),
    ("shift.rs", include_str!("shift.rs")),
    ("rejections.rs", include_str!("rejections.rs")),
    ("layers.rs", include_str!("layers.rs")),
    ("tenants.rs", include_str!("tenants.rs")),
    ("tiers.rs", include_str!("tiers.rs")),
    ("warm_and_pin.rs", include_str!("warm_and_pin.rs")),
    ("deterministic.rs", include_str!("deterministic.rs")),
    ("health.rs", include_str!("health.rs")),
    ("recorder.rs", include_str!("recorder.rs")),
    ("watching.rs", include_str!("watching.rs")),
    ("routers.rs", include_str!("routers.rs")),
    ("ending.rs", include_str!("ending.rs")),
    ("own_model.rs", include_str!("own_model.rs")),
];

/// An engine on the oracle. Its tokens are bytes, and it has a chat template.
async fn speaking() -> Engine {
    let vocabulary = GgufVocabulary {
        chat_template: Some("{% for m in messages %}{{ m.content }}\n{% endfor %}".into()),
        ..common::byte_vocabulary()
    };
    let build = || {
        let oracle = OracleConfig {
            vocab_size: 257,
            end_tokens: vec![256],
            ..OracleConfig::default()
        };
        Ok(Oracle::new(oracle).expect("a valid oracle"))
    };
    Engine::builder(build)
        .text(TextCodec::from_gguf(&vocabulary).expect("a vocabulary"))
        .start()
        .await
        .expect("the engine starts")
}

/// The fenced blocks in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}");
    let parts = page.split(fence.as_str()).skip(1);
    parts
        .map(|part| {
            let code = part.split_once('\n').expect("a fence has a line").1;
            code.split_once("```").expect("a block ends").0
        })
        .collect()
}

/// The lines of the function `main`, from its attribute to its end.
fn main_function(text: &str) -> Vec<&str> {
    let from = text.find("#[tokio::main]").expect("a main function");
    let body = &text[from..];
    let to = body.find("\n}\n").expect("the end of main") + 2;
    body[..to].lines().collect()
}

#[test]
fn the_readme_shows_the_quickstart() {
    let example = include_str!("../../examples/quickstart.rs");
    let shown = main_function(README);
    assert_eq!(
        shown,
        main_function(example),
        "README.md differs from examples/quickstart.rs"
    );
    assert!(shown.len() <= 20, "the example has {} lines", shown.len());
}

/// The example needs a model. The guide's test runs its conversation on the oracle.
#[test]
fn the_example_with_tools_has_the_conversation_of_the_guide() {
    let example = include_str!("../../examples/tools.rs");
    let (block, _) = include_str!("tools.rs")
        .split_once(SHOWN_UP_TO)
        .expect("a block and its test");
    let function = &block[block.find("/// Answers").expect("a function")..];
    assert!(example.ends_with(function), "examples/tools.rs differs");
    let lines = example.lines().count();
    assert!(lines <= 60, "the example has {lines} lines");
}

#[test]
fn the_example_of_a_model_has_the_model_of_the_guide() {
    let example = include_str!("../../examples/own_model.rs");
    let (block, _) = include_str!("own_model.rs")
        .split_once(SHOWN_UP_TO)
        .expect("a block and its test");
    let model = &block[block.find("/// Predicts").expect("a model")..];
    assert!(example.ends_with(model), "examples/own_model.rs differs");
}

#[test]
fn each_block_of_the_guide_is_compiled_here() {
    let shown = blocks(GUIDE, "rust");
    for ((name, file), shown) in BLOCKS.iter().zip(&shown) {
        let (code, test) = file.split_once(SHOWN_UP_TO).expect("a block and its test");
        assert_eq!(
            code, *shown,
            "docs/embedding.md differs from tests/guide/{name}"
        );
        assert!(
            test.contains("#[tokio::test]"),
            "tests/guide/{name} runs it"
        );
    }
    assert_eq!(
        shown.len(),
        BLOCKS.len(),
        "a block of the guide, a file here"
    );
}

/// The name and the version of each line of the guide's `Cargo.toml`.
fn dependencies() -> Vec<(&'static str, &'static str)> {
    let [manifest] = blocks(GUIDE, "toml")[..] else {
        panic!("the guide has one block of dependencies")
    };
    let lines = manifest.lines().filter_map(|line| line.split_once(" = "));
    let dependency = |(name, value): (&'static str, &'static str)| {
        let value = value.trim_start_matches("{ version = ");
        let version = value.trim_start_matches('"').split('"').next();
        (name, version.expect("a version"))
    };
    let named = lines.filter(|(_, value)| !value.contains("path = "));
    named.map(dependency).collect()
}

#[test]
fn the_dependencies_are_those_that_the_lock_file_has() {
    let lock = include_str!("../../Cargo.lock");
    let ours = |version: &str| version.starts_with("{ path");
    for (name, version) in dependencies().into_iter().filter(|(_, v)| !ours(v)) {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let locked = lock.split(entry.as_str()).skip(1);
        let locked: Vec<&str> = locked.filter_map(|rest| rest.split('"').next()).collect();
        let fits = |locked: &&str| locked.starts_with(&format!("{version}."));
        assert!(
            locked.iter().any(fits),
            "{name} {version}, locked: {locked:?}"
        );
    }
}

#[test]
fn the_dependencies_are_all_that_the_blocks_use() {
    let known: Vec<String> = dependencies()
        .iter()
        .map(|(name, _)| name.replace('-', "_"))
        .chain(["std", "motet", "motet_model"].map(String::from))
        .collect();
    for block in blocks(GUIDE, "rust") {
        let used = block.lines().filter_map(|line| line.strip_prefix("use "));
        for path in used {
            let first = path.split("::").next().expect("a path");
            assert!(known.contains(&first.to_owned()), "`{path}` needs {first}");
        }
    }
}
