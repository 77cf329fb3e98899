//! Which files are the model, and which are read beside it.

use std::fs;

use super::*;

fn sorted(files: &str) -> Vec<String> {
    let mut files: Vec<String> = files.split_whitespace().map(str::to_owned).collect();
    files.sort();
    files
}

/// The files of the model, or the error.
fn check(files: &str, choice: Option<&str>, expected: Result<&str, &str>) {
    let selected = match select(&sorted(files), choice, "hf:o/n") {
        Ok(Selection::Gguf(files)) => Ok(files.join(" ")),
        Ok(Selection::Folder { beside, weights }) => Ok(match weights {
            Weights::Whole(file) | Weights::Index(file) => {
                [&beside[..], &[file]].concat().join(" ")
            }
        }),
        Err(error) => Err(error.to_string()),
    };
    match (&selected, expected) {
        (Ok(selected), Ok(expected)) => assert_eq!(selected, expected, "{files}: {choice:?}"),
        (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
        _ => panic!("{files}: {choice:?}: {selected:?}"),
    }
}

#[test]
fn the_model_is_selected() {
    let three = "README.md m-Q8_0.gguf m-q4_k_m.gguf m-Q4_K_S.gguf mmproj-F16.gguf";
    check(three, None, Ok("m-q4_k_m.gguf"));
    check(three, Some("Q8_0"), Ok("m-Q8_0.gguf"));
    check(three, Some("q4_k_s"), Ok("m-Q4_K_S.gguf"));
    check(three, Some("m-Q8_0.gguf"), Ok("m-Q8_0.gguf"));
    check(
        three,
        Some("Q4_K"),
        Err("has no GGUF file `Q4_K`; it has m-Q4_K_S.gguf, m-Q8_0.gguf"),
    );
    check(three, Some("mmproj-F16.gguf"), Err("has no GGUF file"));
    check(
        "a.IQ2_M.gguf b.IQ2_M.gguf c.gguf",
        Some("IQ2_M"),
        Err("write `hf:o/n:FILE`"),
    );
    check(
        "a.gguf b.gguf c.gguf",
        None,
        Err(": a.gguf, b.gguf, c.gguf"),
    );
    check("a.gguf b.gguf", Some("b"), Ok("b.gguf"));
    check(
        "a-Q8_0.gguf b-Q8_0.gguf c-BF16.gguf",
        None,
        Ok("c-BF16.gguf"),
    );
    check("m.gguf big-m.gguf", Some("m.gguf"), Ok("m.gguf"));
}

#[test]
fn a_split_model_is_selected_as_a_whole() {
    let parts = "Q8/m-Q8_0-00001-of-00002.gguf Q8/m-Q8_0-00002-of-00002.gguf";
    let files = format!("{parts} m-F16.gguf");
    check(&files, Some("q8_0"), Ok(parts));
    check(&files, Some("Q8/m-Q8_0-00002-of-00002.gguf"), Ok(parts));
    check(&files, None, Ok(parts));
    // The missing part is noticed where the files are.
    check(
        "m-00002-of-00002.gguf",
        None,
        Ok("m-00001-of-00002.gguf m-00002-of-00002.gguf"),
    );
    for name in [
        "m-00003-of-00002.gguf",
        "m-00000-of-00002.gguf",
        "m-1-of-2.gguf",
        "m.gguf",
    ] {
        assert_eq!(SplitPart::of(name), None, "{name}");
    }
}

#[test]
fn a_folder_of_safetensors_comes_first() {
    let beside = "config.json tokenizer.json tokenizer_config.json chat_template.jinja";
    let files = format!("{beside} model.safetensors pytorch_model.bin m-Q8_0.gguf x.py");
    check(&files, None, Ok(&format!("{beside} model.safetensors")));
    check(&files, Some("Q8_0"), Ok("m-Q8_0.gguf"));
    let sharded = format!("{beside} {INDEX} model-00001-of-00002.safetensors");
    check(&sharded, None, Ok(&format!("{beside} {INDEX}")));
    check(
        "config.json pytorch_model.bin",
        None,
        Err("it has config.json, pytorch_model.bin; expected GGUF"),
    );
    check(
        "config.json pytorch_model.bin",
        Some("Q4_0"),
        Err("no model that Motet reads"),
    );
    check("model.safetensors", None, Err("no model that Motet reads"));
    check("", None, Err("it has nothing"));
}

#[test]
fn an_index_names_files_of_its_folder_only() {
    let index =
        |shard: &str| format!(r#"{{"weight_map": {{"a": "x", "b": "{shard}", "c": "x"}}}}"#);
    assert_eq!(
        shards(index("w").as_bytes()),
        Ok(vec!["w".to_owned(), "x".to_owned()])
    );
    for shard in ["../x", "/x", "a/b", "", "."] {
        shards(index(shard).as_bytes()).expect_err(shard);
    }
    for json in ["", "[]", "{}", r#"{"weight_map": {"a": 1}}"#] {
        shards(json.as_bytes()).expect_err(json);
    }
}

/// Names that claim ten thousand parts each are not multiplied by them.
#[test]
fn a_listing_of_split_names_takes_memory_in_proportion() {
    let files: Vec<String> = (0..10_000)
        .map(|stem| format!("a{stem:04}-00001-of-10000.gguf"))
        .collect();
    let models = gguf_models(&files);
    assert_eq!(models.len(), files.len());
    assert!(size_of::<GgufModel<'_>>() <= 64);
    let error = select(&files, None, "hf:o/n").expect_err("none is preferred");
    assert!(error.to_string().contains("9980 more"), "{error}");
    let Ok(Selection::Gguf(parts)) = select(&files, Some("a0007"), "hf:o/n") else {
        panic!("it is the only one of that name");
    };
    assert_eq!((parts.len(), &parts[0]), (10_000, &files[7]));
    // Parts of two models may lie between each other.
    let mixed = "m-00001-of-00002.gguf m-00001-of-00003.gguf m-00002-of-00002.gguf";
    assert_eq!(gguf_models(&sorted(mixed)).len(), 2);
}

/// The crates that read a folder write names of files as literals.
#[test]
fn every_file_that_is_read_is_downloaded() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut read: Vec<String> = ["text/src", "weights/src"]
        .iter()
        .flat_map(|source| names_in(&crates.join(source)))
        // It is looked for, to name it in an error.
        .filter(|name| name != "tekken.json")
        .collect();
    read.sort();
    read.dedup();
    let beside = BESIDE.iter().chain(&[WHOLE, INDEX]);
    let mut downloaded: Vec<&str> = beside
        .map(|name| name.rsplit('/').next().expect("one part at least"))
        .collect();
    downloaded.sort_unstable();
    downloaded.dedup();
    assert_eq!(read, downloaded);
}

/// Names of files among the literals of a folder's sources, without their tests.
fn names_in(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).expect("a crate's sources") {
        let path = entry.expect("an entry").path();
        if path.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        if path.is_dir() {
            names.extend(names_in(&path));
            continue;
        }
        let source = fs::read_to_string(&path).expect("a source in UTF-8");
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.".contains(letter);
        let is_name = |literal: &&str| {
            let ends = [".json", ".jinja", ".safetensors"];
            literal.chars().all(is_plain) && ends.iter().any(|end| literal.ends_with(end))
        };
        names.extend(code.split('"').filter(is_name).map(str::to_owned));
    }
    names
}
