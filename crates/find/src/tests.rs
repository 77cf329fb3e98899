//! Models in folders of this machine, as ollama, LM Studio and Hugging Face lay them out.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A folder that is removed with this value, and a finder that looks there only.
struct Home(PathBuf);

impl Home {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("motet-find-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root); // left by an earlier process of the same number
        fs::create_dir_all(&root).expect("a folder");
        Self(root)
    }

    fn write(&self, file: &str, content: &str) -> PathBuf {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, content).expect("a file");
        path
    }

    fn find(&self, name: &str) -> Result<PathBuf, FindError> {
        let mut finder = Finder::from_variables(|variable| match variable {
            "HOME" => Some(self.0.clone().into()),
            "HF_HUB_OFFLINE" => Some("1".into()),
            _ => None,
        });
        finder.ollama.truncate(1); // not that of this machine's service
        finder.find(name, |_| {})
    }

    fn check(&self, name: &str, expected: Result<&Path, &str>) {
        match (self.find(name), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{name}"),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{name}: {error}");
            }
            (found, expected) => panic!("{name}: {found:?} instead of {expected:?}"),
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // a few bytes in the temporary folder
    }
}

#[test]
fn a_path_is_a_file_a_folder_or_the_first_part() {
    let home = Home::new("path");
    let path = |file: &Path| file.display().to_string();
    let file = home.write("a/m.gguf", "x");
    home.check(&path(&file), Ok(&file));
    home.check(&path(&home.0.join("a")), Ok(&file));
    let first = home.write("b/m-00001-of-00002.gguf", "x");
    let second = home.write("b/m-00002-of-00002.gguf", "x");
    home.check(&path(&second), Ok(&first));
    home.check(&path(&home.0.join("b")), Ok(&first));
    fs::remove_file(&second).expect("it was there");
    home.check(
        &path(&home.0.join("b")),
        Err("has no m-00002-of-00002.gguf"),
    );
    let folder = home.write("c/config.json", "{}");
    home.check(&path(&home.0.join("c")), Ok(folder.parent().expect("c")));
    home.write("d/pytorch_model.bin", "x");
    home.check(&path(&home.0.join("d")), Err("it has pytorch_model.bin"));
    for name in ["x.gguf", "y.gguf"] {
        home.write(&format!("e/{name}"), "x");
    }
    home.check(
        &path(&home.0.join("e")),
        Err("write the path of one of these: x.gguf, y.gguf"),
    );
    home.check(
        "no-org/no-such-model",
        Err("may be hf:no-org/no-such-model"),
    );
    home.check(
        "/nowhere/m.gguf",
        Err("there is no model at /nowhere/m.gguf; expected a path, hf:"),
    );
}

#[test]
fn a_model_of_ollamas_is_its_blob() {
    let home = Home::new("ollama");
    home.check(
        "ollama:m",
        Err("it has nothing. Get it with `ollama pull m:latest`"),
    );
    let digest = "ab".repeat(32);
    let manifest = |kind: &str, size: usize| {
        format!(
            r#"{{"layers": [
                {{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:{0}", "size": 1}},
                {{"mediaType": "application/vnd.ollama.image.{kind}", "digest": "sha256:{digest}", "size": {size}}}
            ]}}"#,
            "cd".repeat(32),
        )
    };
    let blob = home.write(&format!(".ollama/models/blobs/sha256-{digest}"), "GGUF");
    let names = [
        ("registry.ollama.ai/library/m/latest", "ollama:m"),
        ("registry.ollama.ai/library/m/1b", "ollama:m:1b"),
        ("registry.ollama.ai/ann/m/latest", "ollama:ann/m"),
        ("hf.co/ann/m/Q8_0", "ollama:hf.co/ann/m:Q8_0"),
    ];
    for (file, name) in names {
        home.write(
            &format!(".ollama/models/manifests/{file}"),
            &manifest("model", 4),
        );
        home.check(name, Ok(&blob));
    }
    home.check("ollama:other", Err("it has ollama:ann/m:latest, ollama:hf.co/ann/m:Q8_0, ollama:m:1b, ollama:m:latest. Get"));
    let latest = ".ollama/models/manifests/registry.ollama.ai/library/m/latest";
    for (content, error) in [
        (manifest("model", 5), "`ollama pull m:latest` mends it"),
        (manifest("adapter", 4), "an adapter"),
        (manifest("system", 4), "lists no model"),
        (
            manifest("model", 4).replace(&digest, "../../x"),
            "lists no model",
        ),
        ("<html>".to_owned(), "is damaged"),
    ] {
        home.write(latest, &content);
        home.check("ollama:m", Err(error));
    }
}

#[test]
fn a_model_of_lm_studios_is_a_file_or_a_folder() {
    let home = Home::new("lmstudio");
    let old = home.write(".cache/lm-studio/models/org/old/m.gguf", "x");
    home.check("lmstudio:org/old", Ok(&old));
    let small = home.write(".lmstudio/models/org/two/m-Q4_K_M.gguf", "x");
    let large = home.write(".lmstudio/models/org/two/m-Q8_0.gguf", "x");
    home.check("lmstudio:org/two", Ok(&small));
    home.check("lmstudio:org/two:q8_0", Ok(&large));
    home.check("lmstudio:org/two:m-Q8_0.gguf", Ok(&large));
    home.check(
        "lmstudio:org/two:BF16",
        Err("lmstudio:org/two has no GGUF file `BF16`"),
    );
    home.check(
        "lmstudio:org/x",
        Err("it has lmstudio:org/two, lmstudio:org/old"),
    );
    let moved = home.write("elsewhere/models/org/three/m.gguf", "x");
    let elsewhere = home.0.join("elsewhere").display().to_string();
    home.write(".lmstudio-home-pointer", &elsewhere);
    home.check("lmstudio:org/three", Ok(&moved));
}

#[test]
fn a_snapshot_counts_once_all_of_the_model_is_there() {
    let home = Home::new("cache");
    let root = ".cache/huggingface/hub/models--org--m";
    let snapshot = format!("{root}/snapshots/{COMMIT}");
    let write = |file: &str, content: &str| home.write(&format!("{snapshot}/{file}"), content);
    let missing = Err("HF_HUB_OFFLINE is set");
    home.check("hf:org/m", missing);
    home.write(&format!("{root}/refs/main"), COMMIT);
    home.check("hf:org/m", missing);
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let whole = home.0.join(&snapshot);
    for (file, content) in [
        ("model.safetensors.index.json", index),
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("model-1.safetensors", "x"),
    ] {
        write(file, content);
        home.check("hf:org/m", missing);
    }
    write("model-2.safetensors", "x");
    home.check("hf:org/m", Ok(&whole));
    home.check("hf:org/m:Q8_0", missing);
    let quantised = write("m-Q8_0.gguf", "x");
    home.check("hf:org/m:q8_0", Ok(&quantised));
    home.write(&format!("{root}/refs/main"), "../../../elsewhere");
    home.check("hf:org/m", missing);
}
