//! Downloads from a hub on this machine, which fails in every way that a hub can.

mod loopback;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loopback::{COMMIT, Fault, Hub, Manners, Stored, TOKEN};
use motet_find::{FindError, Finder, Token};

const REPOSITORY: &str = "org/small";
const GGUF: &str = "small-Q8_0.gguf";
const GGUF_BYTES: usize = 300_000;

/// A hub, and an empty cache beside it.
struct Case {
    hub: Hub,
    finder: Finder,
    root: PathBuf,
}

impl Case {
    fn new(name: &str, files: Vec<Stored>, manners: Manners) -> Self {
        let root = std::env::temp_dir().join(format!("motet-hub-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root); // left by an earlier process of the same number
        let hub = Hub::serve("127.0.0.1:0", REPOSITORY, files, manners);
        let mut finder = Finder::from_variables(|variable| match variable {
            "HF_HOME" => Some(root.clone().into()),
            "HF_ENDPOINT" => Some(hub.endpoint().into()),
            _ => None,
        });
        finder.hub.retries = 2;
        finder.hub.retry_wait = Duration::from_millis(1);
        Self { hub, finder, root }
    }

    fn gguf(name: &str) -> Self {
        Self::new(name, vec![gguf(GGUF)], Manners::default())
    }

    fn find(&self, name: &str) -> Result<PathBuf, FindError> {
        self.finder.find(name, |_| {})
    }

    /// The error of a search after which no model is in the cache.
    fn failure(&self, name: &str) -> String {
        let error = self.find(name).expect_err("there is no model");
        let mut finder = self.finder.clone();
        finder.hub.offline = true;
        finder
            .find(name, |_| {})
            .expect_err("nothing unfinished is found");
        error.to_string()
    }

    /// The bytes of the partial file, if there is one.
    fn partial(&self) -> Option<u64> {
        let blobs = fs::read_dir(self.repository().join("blobs")).ok()?;
        let mut files = blobs.flatten();
        let partial = files.find(|file| file.path().extension().is_some_and(|e| e == "incomplete"));
        Some(partial?.metadata().expect("a file").len())
    }

    fn repository(&self) -> PathBuf {
        self.root.join("hub/models--org--small")
    }

    /// Requests for bytes since the last call.
    fn requests(&self) -> Vec<String> {
        let all = self.hub.requests().into_iter();
        all.filter(|line| line.starts_with("/small") || line.starts_with("/model"))
            .collect()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root); // some bytes in the temporary folder
    }
}

/// Bytes of which no two pieces are alike.
fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| ((at + seed) * (at / 251 + 7) % 256) as u8)
        .collect()
}

fn gguf(name: &str) -> Stored {
    Stored::bytes(name, content(1, GGUF_BYTES))
}

fn check_gguf(path: &Path) {
    assert!(fs::read(path).expect("the model") == content(1, GGUF_BYTES));
}

#[test]
fn a_gguf_file_is_downloaded_once() {
    let case = Case::gguf("once");
    let mut stages = Vec::new();
    let found = case.finder.find("hf:org/small", |progress| {
        stages.push(format!("{progress:?}"))
    });
    let found = found.expect("the hub has it");
    check_gguf(&found);
    assert_eq!(
        found,
        case.repository().join("snapshots").join(COMMIT).join(GGUF)
    );
    assert!(stages[0].starts_with("Listing"), "{stages:?}");
    let last = format!("bytes: {GGUF_BYTES}, bytes_all: {GGUF_BYTES}");
    assert!(
        stages.iter().any(|stage| stage.contains(&last)),
        "{stages:?}"
    );
    assert!(
        stages
            .last()
            .is_some_and(|stage| stage.starts_with("Found")),
        "{stages:?}"
    );
    assert_eq!(
        fs::read_to_string(case.repository().join("refs/main"))
            .ok()
            .as_deref(),
        Some(COMMIT)
    );

    case.hub.requests();
    for name in [
        "hf:org/small",
        "hf:org/small:q8_0",
        &format!("hf:org/small:{GGUF}"),
    ] {
        assert_eq!(case.find(name).expect("it is in the cache"), found);
    }
    assert_eq!(case.hub.requests(), Vec::<String>::new());
}

#[test]
fn only_what_the_model_needs_is_downloaded() {
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let index = format!(
        r#"{{"weight_map": {{"a": "{}", "b": "{}"}}}}"#,
        shards[0], shards[1]
    );
    let needed = [
        ("config.json", "{}"),
        ("tokenizer.json", "{ }"),
        ("chat_template.jinja", "x"),
        ("1_Pooling/config.json", "{  }"),
        ("model.safetensors.index.json", &index),
        (shards[0], "weights"),
        (shards[1], "more weights"),
    ];
    let other = [
        ("README.md", "read me"),
        ("pytorch_model.bin", "pickled"),
        ("consolidated.safetensors", "the same again"),
        ("modeling.py", "code"),
    ];
    let files = needed.iter().chain(&other);
    let files = files
        .map(|(name, text)| Stored::bytes(name, text.as_bytes().to_vec()))
        .collect();
    let case = Case::new("folder", files, Manners::default());
    let folder = case.find("hf:org/small").expect("the hub has it");
    for (name, text) in needed {
        assert_eq!(
            fs::read_to_string(folder.join(name)).ok().as_deref(),
            Some(text),
            "{name}"
        );
    }
    for (name, _) in other {
        assert!(!folder.join(name).exists(), "{name}");
    }
    assert_eq!(
        case.find("hf:org/small").expect("it is in the cache"),
        folder
    );
}

#[test]
fn all_parts_of_a_split_file_are_downloaded() {
    let parts = [
        "Q8_0/small-00001-of-00002.gguf",
        "Q8_0/small-00002-of-00002.gguf",
    ];
    let files = parts.map(|name| Stored::bytes(name, content(name.len(), 1000)));
    let case = Case::new("split", files.to_vec(), Manners::default());
    let first = case.find("hf:org/small").expect("the hub has it");
    assert!(first.ends_with(parts[0]), "{}", first.display());
    assert!(first.with_file_name("small-00002-of-00002.gguf").exists());

    let case = Case::new(
        "half",
        vec![gguf("small-00001-of-00002.gguf")],
        Manners::default(),
    );
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("has no small-00002-of-00002.gguf"),
        "{error}"
    );
}

#[test]
fn an_interrupted_download_continues() {
    let case = Case::gguf("continued");
    case.hub
        .fail([Fault::CutAfter(100_000), Fault::CutAfter(50_000)]);
    check_gguf(
        &case
            .find("hf:org/small")
            .expect("the third attempt brings the rest"),
    );
    let path = format!("/{GGUF}");
    let expected = [
        path.clone(),
        format!("{path} from 100000"),
        format!("{path} from 150000"),
    ];
    assert_eq!(case.requests(), expected);

    // Another process continues where this one gave up.
    let case = Case::gguf("given-up");
    case.hub.fail([
        Fault::CutAfter(100_000),
        Fault::Status(500),
        Fault::Status(503),
    ]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("status 503, after 3 attempts. What has arrived is kept"),
        "{error}"
    );
    assert_eq!(case.partial(), Some(100_000));
    case.requests();
    check_gguf(&case.find("hf:org/small").expect("it continues"));
    assert_eq!(case.requests(), [format!("{path} from 100000")]);
    assert_eq!(case.partial(), None);
}

/// A long download over a bad line ends, and one that hardly moves is given up.
#[test]
fn attempts_that_bring_a_megabyte_do_not_count_as_failed() {
    const MEGABYTE: u64 = 1 << 20;
    for (bytes, is_enough) in [(MEGABYTE, true), (MEGABYTE - 1, false)] {
        let file = Stored::bytes(GGUF, content(1, 3 * MEGABYTE as usize));
        let mut case = Case::new(&format!("line-{bytes}"), vec![file], Manners::default());
        case.finder.hub.retries = 1;
        case.hub.fail([Fault::CutAfter(bytes); 2]);
        assert_eq!(case.find("hf:org/small").is_ok(), is_enough, "{bytes}");
    }
}

#[test]
fn a_server_without_ranges_sends_the_whole_again() {
    let case = Case::gguf("no-range");
    case.hub.fail([Fault::CutAfter(100_000), Fault::NoRange]);
    check_gguf(&case.find("hf:org/small").expect("the whole comes again"));
}

#[test]
fn a_silent_server_is_asked_again_and_given_up_in_the_end() {
    let mut case = Case::gguf("silent");
    case.finder.hub.timeout = Duration::from_millis(200);
    case.hub.fail([Fault::StallAfter(100_000)]);
    check_gguf(
        &case
            .find("hf:org/small")
            .expect("the second attempt brings the rest"),
    );

    let mut case = Case::gguf("silence");
    case.finder.hub.timeout = Duration::from_millis(200);
    case.hub.fail([Fault::StallAfter(10); 3]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("after 3 attempts"), "{error}");
    assert!(error.to_lowercase().contains("timeout"), "{error}");
}

#[test]
fn bytes_with_another_digest_are_removed() {
    let case = Case::gguf("digest");
    case.hub.fail([Fault::OtherBytes]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("has arrived with the digest"), "{error}");
    assert_eq!(case.partial(), None);
    check_gguf(&case.find("hf:org/small").expect("the right bytes come"));

    // A file that is no model's is checked as well.
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let mut files = names.map(|name| Stored::bytes(name, b"{}".to_vec()));
    files[0].digest = files[0].digest.replace(|c: char| c.is_ascii_digit(), "f");
    let case = Case::new("digest-of-config", files.to_vec(), Manners::default());
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("config.json has arrived with the digest"),
        "{error}"
    );
}

#[test]
fn a_partial_file_that_is_not_the_models_is_not_loaded() {
    for (bytes, name) in [
        (GGUF_BYTES, "full"),
        (GGUF_BYTES + 1, "longer"),
        (10, "shorter"),
    ] {
        let case = Case::gguf(name);
        let blobs = case.repository().join("blobs");
        fs::create_dir_all(&blobs).expect("a folder");
        let partial = blobs.join(format!("{}.incomplete", gguf(GGUF).digest));
        fs::write(&partial, vec![7; bytes]).expect("a file");
        if bytes <= GGUF_BYTES {
            let error = case.failure("hf:org/small");
            assert!(error.contains("it was removed"), "{error}");
        }
        check_gguf(&case.find("hf:org/small").expect("it comes whole"));
    }
}

#[test]
fn pages_instead_of_files_are_no_models() {
    let case = Case::gguf("page");
    case.hub.fail([Fault::Html]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("gave a wrong answer for small-Q8_0.gguf"),
        "{error}"
    );
    assert!(
        error.contains("status 200, a page of HTML, 4 bytes; expected the file"),
        "{error}"
    );

    let is_page = true;
    let manners = Manners {
        is_page,
        ..Manners::default()
    };
    let case = Case::new("portal", vec![gguf(GGUF)], manners);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("a page of HTML; expected the listing of a repository"),
        "{error}"
    );
    assert!(error.contains("HF_ENDPOINT"), "{error}");
}

#[test]
fn a_failing_listing_is_repeated_within_bounds() {
    for (failing_listings, name) in [(2, "busy"), (3, "too-busy")] {
        let manners = Manners {
            failing_listings,
            ..Manners::default()
        };
        let case = Case::new(name, vec![gguf(GGUF)], manners);
        match case.find("hf:org/small") {
            Ok(found) => check_gguf(&found),
            Err(error) => {
                assert_eq!(failing_listings, 3);
                assert!(
                    error.to_string().contains("status 503, after 3 attempts"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn a_hub_that_lists_names_only_tells_digests_with_the_files() {
    let lists_names_only = true;
    let manners = Manners {
        lists_names_only,
        ..Manners::default()
    };
    let names = ["config.json", "tokenizer.json", "model.safetensors"];
    let files = names.map(|name| Stored::bytes(name, content(name.len(), 1000)));
    let case = Case::new("names", files.to_vec(), manners);
    let folder = case.find("hf:org/small").expect("the hub has it");
    assert!(fs::read(folder.join("model.safetensors")).expect("weights") == content(17, 1000));

    let case = Case::new("names-digest", vec![gguf(GGUF)], manners);
    case.hub.fail([Fault::CutAfter(1), Fault::OtherBytes]); // the first is the question for the size
    let error = case.failure("hf:org/small");
    assert!(error.contains("has arrived with the digest"), "{error}");
}

#[test]
fn a_gated_repository_needs_a_token_which_stays_with_the_hub() {
    let manners = Manners {
        gated: true,
        ..Manners::default()
    };
    let mut case = Case::new("gated", vec![gguf(GGUF)], manners);
    let error = case.failure("hf:org/small");
    for part in [
        "denies access to org/small (status 403): no token is set",
        "Accept",
        "HF_TOKEN",
    ] {
        assert!(error.contains(part), "{error}");
    }
    case.finder.hub.token = Token::new("hf_other");
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("the token in use may not read it"),
        "{error}"
    );
    assert!(!error.contains("hf_other"), "{error}");

    case.finder.hub.token = Token::new(TOKEN);
    case.hub.requests();
    check_gguf(&case.find("hf:org/small").expect("this token may"));
    for line in case.hub.requests() {
        assert_eq!(
            line.contains("with a token"),
            !line.starts_with("/small"),
            "{line}"
        );
    }
}

#[test]
fn what_the_hub_lacks_is_named() {
    let other = |names: &[&str]| {
        let files = names.iter().map(|name| Stored::bytes(name, b"x".to_vec()));
        Case::new(names[0], files.collect(), Manners::default())
    };
    let case = other(&["pytorch_model.bin", "config.json"]);
    let error = case.failure("hf:org/small");
    assert!(
        error.contains("it has config.json, pytorch_model.bin; expected GGUF files"),
        "{error}"
    );
    let error = case.failure("hf:org/other");
    assert!(
        error.contains("has no model repository org/other, or it is private"),
        "{error}"
    );
    let case = other(&["a.gguf", "b.gguf", "c.gguf"]);
    let error = case.failure("hf:org/small");
    assert!(error.contains("write `hf:org/small:FILE`"), "{error}");
    assert!(error.contains("a.gguf, b.gguf, c.gguf"), "{error}");
    let error = case.failure("hf:org/small:d");
    assert!(
        error.contains("no GGUF file `d`; it has a.gguf, b.gguf, c.gguf"),
        "{error}"
    );

    // A hub that is not there.
    let mut case = other(&["d.gguf"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    case.finder.hub.endpoint = format!("http://{}", free.local_addr().expect("an address"));
    drop(free);
    let error = case.failure("hf:org/small");
    assert!(error.contains("after 3 attempts"), "{error}");
    case.finder.hub.offline = true;
    let error = case.failure("hf:org/small");
    assert!(error.contains("HF_HUB_OFFLINE is set"), "{error}");
}

#[test]
fn names_that_lead_out_of_the_repository_are_rejected() {
    for (number, name) in ["../../../x.gguf", "/x.gguf", "a/../../x.gguf", "a//x.gguf"]
        .iter()
        .enumerate()
    {
        let case = Case::new(
            &format!("out-{number}"),
            vec![gguf(name)],
            Manners::default(),
        );
        let error = case.failure("hf:org/small");
        assert!(error.contains("leads out of its repository"), "{error}");
        assert_eq!(case.requests(), Vec::<String>::new());
    }
    let index = r#"{"weight_map": {"a": "../../x.safetensors"}}"#;
    let files = [
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("model.safetensors.index.json", index),
        ("../../x.safetensors", "x"),
    ];
    let files = files.map(|(name, text)| Stored::bytes(name, text.as_bytes().to_vec()));
    let case = Case::new("out-by-index", files.to_vec(), Manners::default());
    let error = case.failure("hf:org/small");
    assert!(error.contains("it names no files of its folder"), "{error}");
}

#[test]
fn two_searches_download_a_file_once() {
    let pause = Duration::from_millis(20);
    let manners = Manners {
        pause,
        ..Manners::default()
    };
    let case = Case::new("two", vec![gguf(GGUF)], manners);
    std::thread::scope(|scope| {
        let find = || check_gguf(&case.find("hf:org/small").expect("the hub has it"));
        scope.spawn(find);
        scope.spawn(find);
    });
    assert_eq!(case.requests().len(), 1);
}

/// `/dev/full` is a disk without space.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_with_the_bytes_that_it_lacks() {
    let case = Case::gguf("full-disk");
    let blobs = case.repository().join("blobs");
    fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.incomplete", gguf(GGUF).digest));
    std::os::unix::fs::symlink("/dev/full", &partial).expect("a link");
    let error = case.failure("hf:org/small");
    assert!(error.contains("No space left on device"), "{error}");
    assert!(
        error.contains("; 300000 more bytes are needed there"),
        "{error}"
    );
}
