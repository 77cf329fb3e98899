//! The tier in a store in memory, and in stores that are damaged, lossy or foreign.

use std::sync::Arc;

use motet_protocol::pager::Ask;
use motet_protocol::remote::{RemoteError, RemoteModel, RemoteTier};
use motet_protocol::{
    Label, Precision, PrefixDigest, PrefixKey, Salt, SequenceId, TokenId, common_prefix,
};
use opendal::{Operator, services};
use proptest::prelude::*;

use crate::store::{Store, VALUE_BYTES_MAX};
use crate::{OpenError, PART_BYTES, Remote, Secret, SecretError};

const GRID: usize = 4;

fn model(whole: bool) -> RemoteModel {
    RemoteModel {
        identity: 7,
        grid_tokens: GRID,
        whole,
    }
}

fn store() -> Operator {
    let store = Operator::from_config(services::MemoryConfig::default());
    store.expect("a store in memory")
}

fn tier(store: &Operator, secret: u8) -> Remote {
    let secret = Secret::new([secret; 32]).expect("32 bytes");
    Remote::new(store.clone(), &secret)
}

fn label(tokens: &[TokenId], start: usize, bytes: usize) -> Arc<Label> {
    let key = PrefixKey::default().digest();
    Arc::new(Label::new(key, tokens, start, 0, Precision::Full, bytes))
}

fn ask(tokens: &[TokenId], from: usize) -> Ask {
    Ask {
        sequence: SequenceId(1),
        key: PrefixKey::default().digest(),
        tokens: tokens.into(),
        from,
    }
}

fn bytes_of(label: &Label) -> Vec<u8> {
    (0..label.bytes)
        .map(|at| (at * 31 + label.start + label.tokens.len()) as u8)
        .collect()
}

async fn put(tier: &Remote, model: &RemoteModel, path: &[Arc<Label>]) -> Result<(), RemoteError> {
    let (label, before) = path.split_last().expect("a path has a copy");
    tier.store(model, before, label, &bytes_of(label)).await
}

async fn load(tier: &Remote, model: &RemoteModel, label: &Label) -> Result<Vec<u8>, RemoteError> {
    let mut bytes = vec![0; label.bytes];
    tier.load(model, label, &mut bytes).await.map(|()| bytes)
}

/// Two copies in a row: the first twelve of these tokens, and what follows.
fn path() -> (Vec<TokenId>, [Arc<Label>; 2]) {
    let tokens: Vec<TokenId> = (0..23).collect();
    let labels = [
        label(&tokens[..13], 0, PART_BYTES + 100),
        label(&tokens, 13, 50),
    ];
    (tokens, labels)
}

async fn stored(tier: &Remote) -> (Vec<TokenId>, [Arc<Label>; 2]) {
    let (tokens, labels) = path();
    for end in 1..=labels.len() {
        let put = put(tier, &model(false), &labels[..end]).await;
        put.expect("the store takes it");
    }
    (tokens, labels)
}

async fn names(store: &Operator) -> Vec<String> {
    let entries = store.list("/").await.expect("the store lists");
    let entries = entries.iter().map(|entry| entry.path().to_owned());
    entries.filter(|path| path != "/").collect()
}

#[tokio::test]
async fn another_process_finds_what_one_has_stored() {
    let store = store();
    let (tokens, labels) = stored(&tier(&store, 1)).await;
    let other = tier(&store, 1);
    let mut diverging = tokens.clone();
    diverging[17] = 99;
    let short = &tokens[..9];
    for (tokens, from, expected) in [
        (&tokens[..], 0, &labels[..]),
        (&tokens, 13, &labels[1..]),
        (&tokens, 19, &labels[1..]),
        // The first tokens of the second copy, found by its first mark.
        (&diverging, 0, &labels),
        (&diverging, 17, &[]),
        // A part of the first copy.
        (short, 0, &labels[..1]),
        (short, 9, &[]),
        (&tokens[..3], 0, &[]),
    ] {
        let found = other.find(&model(false), &ask(tokens, from)).await;
        let found = found.expect("the store answers");
        let expected: Vec<Label> = expected.iter().map(|label| Label::clone(label)).collect();
        assert_eq!(found, expected, "{tokens:?} from {from}");
    }
    for label in &labels {
        let loaded = load(&other, &model(false), label).await;
        assert_eq!(loaded.as_ref(), Ok(&bytes_of(label)));
    }
    let before = names(&store).await;
    stored(&other).await;
    assert_eq!(names(&store).await, before, "nothing is stored twice");
}

/// Models whose state cannot be cut load no copy that has other tokens than the sequence.
#[tokio::test]
async fn whole_copies_are_found_where_all_their_tokens_are_shared() {
    let (store, whole) = (store(), model(true));
    let tier = tier(&store, 1);
    let (tokens, labels) = path();
    for end in 1..=labels.len() {
        put(&tier, &whole, &labels[..end])
            .await
            .expect("it is stored");
    }
    for (asked, expected) in [(23, 2), (22, 1), (13, 1), (12, 0)] {
        let found = tier.find(&whole, &ask(&tokens[..asked], 0)).await;
        let found = found.expect("the store answers");
        assert_eq!(found.len(), expected, "{asked} tokens");
    }
}

#[tokio::test]
async fn other_fleets_models_and_tenants_find_nothing() {
    let store = store();
    let (tokens, labels) = stored(&tier(&store, 1)).await;
    let other_model = RemoteModel {
        identity: 8,
        ..model(false)
    };
    let mut salted = ask(&tokens, 0);
    salted.key.salt = Salt::new("tenant").digest();
    for (secret, model, ask) in [
        (2, model(false), ask(&tokens, 0)),
        (1, other_model, ask(&tokens, 0)),
        (1, model(false), salted),
    ] {
        let tier = tier(&store, secret);
        assert_eq!(tier.find(&model, &ask).await, Ok(Vec::new()));
        let mut label = Label::clone(&labels[0]);
        label.key = ask.key;
        let loaded = load(&tier, &model, &label).await;
        assert_eq!(loaded, Err(RemoteError::Missing));
    }
    // The store sees neither tokens nor state.
    for name in names(&store).await {
        let bytes = store.read(&name).await.expect("it is there").to_vec();
        let state = bytes_of(&labels[1]);
        assert!(!bytes.windows(8).any(|part| part == &state[..8]), "{name}");
    }
}

/// Each byte of a head, a part or a mark, once changed, cut off, or moved to another name.
#[tokio::test]
async fn damaged_bytes_are_never_loaded() {
    let store = store();
    let tier = tier(&store, 1);
    let (tokens, labels) = stored(&tier).await;
    let names = names(&store).await;
    let other = store.read(&names[0]).await.expect("it is there");
    for (number, name) in names.iter().enumerate() {
        let intact = store.read(name).await.expect("it is there");
        let mut damages: Vec<Vec<u8>> = [0, 8, 20, intact.len() - 1, intact.len() / 2]
            .into_iter()
            .map(|at| {
                let mut bytes = intact.to_vec();
                bytes[at] ^= 1;
                bytes
            })
            .collect();
        damages.push(intact.slice(..intact.len() - 1).to_vec());
        damages.push(Vec::new());
        damages.extend((number > 0).then(|| other.to_vec()));
        for damage in damages {
            store.write(name, damage).await.expect("it is written");
            let found = tier.find(&model(false), &ask(&tokens, 0)).await;
            for label in found.expect("damage is no failure") {
                assert!(labels.iter().any(|known| **known == label));
            }
            for label in &labels {
                match load(&tier, &model(false), label).await {
                    Ok(bytes) => assert_eq!(bytes, bytes_of(label)),
                    Err(error) => assert!(error.is_lost(), "{error}"),
                }
            }
            // A process that has the state stores it again.
            stored(&tier).await;
            for label in &labels {
                let loaded = load(&tier, &model(false), label).await;
                assert_eq!(loaded.as_ref(), Ok(&bytes_of(label)), "{name}");
            }
            let found = tier.find(&model(false), &ask(&tokens, 0)).await;
            assert_eq!(found.map(|labels| labels.len()), Ok(2), "{name}");
        }
    }
}

/// A value that a store has made longer than any mark is not read.
#[tokio::test]
async fn values_are_bounded() {
    let store = store();
    let longest = vec![0; VALUE_BYTES_MAX + 1];
    store.write("mark", longest).await.expect("it is written");
    let secret = Secret::new([1; 32]).expect("32 bytes");
    let read = Store::new(store, &secret).read("mark").await;
    let error = read.expect_err("it is too long");
    assert!(error.to_string().contains("too long"), "{error}");
}

#[tokio::test]
async fn secrets_and_urls_that_cannot_be_used_say_why() {
    for length in [0, 31, 1025] {
        let error = Secret::new(vec![1; length]).expect_err("the length is wrong");
        assert!(matches!(error, SecretError::Length { found } if found == length));
        assert!(error.to_string().contains("32 to 1024"), "{error}");
    }
    let folder = std::env::temp_dir().join(format!("motet-remote-{}", std::process::id()));
    let missing = Secret::read(&folder).expect_err("there is no file");
    assert!(missing.to_string().contains("fleet's secret"), "{missing}");
    std::fs::write(&folder, [&[b'a'; 32][..], b"\n"].concat()).expect("a file");
    let secret = Secret::read(&folder).expect("32 letters and the end of a line");
    assert_eq!(secret.bytes(), [b'a'; 32]);
    std::fs::remove_file(&folder).expect("the file is there");
    for (url, expected) in [
        ("redis://127.0.0.1:1/?db=first", "is not the URL"),
        ("ftp://host/", "expected one of redis"),
        ("redis://user:word@127.0.0.1:1", "does not answer"),
        ("redis://user:w@word@127.0.0.1:1", "does not answer"),
        ("redis://user:w%40word@127.0.0.1:1", "does not answer"),
    ] {
        let error = Remote::open(url, &secret).await.expect_err(url);
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
        assert!(!text.contains("word"), "{text}");
        let is_unreachable = matches!(error, OpenError::Unreachable { .. });
        assert_eq!(is_unreachable, expected == "does not answer", "{text}");
    }
}

/// A sequence that is like all others up to an offset, and like no other from there on.
fn sequence(number: usize, tokens: usize, parts_at: usize) -> Vec<TokenId> {
    let own = 1_000 + number as TokenId;
    let tokens = 0..tokens;
    tokens
        .map(|at| {
            if at < parts_at {
                at as TokenId % 7
            } else {
                own
            }
        })
        .collect()
}

/// A stored path: the lengths of its copies, and where it parts from others.
fn stored_path() -> impl Strategy<Value = (Vec<usize>, usize)> {
    (prop::collection::vec(1..160_usize, 1..8), 0..700_usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Found copies continue the sequence, and reach as far as those of any stored path: to the
    /// last offset of the grid that the sequence shares with one of its copies, at least.
    #[test]
    fn found_copies_reach_as_far_as_stored_ones(
        paths in prop::collection::vec(stored_path(), 1..4),
        (tokens, parts_at) in (0..800_usize, 0..800_usize),
        from in 0..300_usize,
        whole: bool,
    ) {
        let tokens = sequence(9, tokens, parts_at);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let (tier, model) = (tier(&store(), 1), model(whole));
            let mut reach = 0;
            for (number, (lengths, parts_at)) in paths.iter().enumerate() {
                let path = sequence(number, lengths.iter().sum(), *parts_at);
                let mut labels: Vec<Arc<Label>> = Vec::new();
                for length in lengths {
                    let start = labels.last().map_or(0, |label| label.end());
                    labels.push(label(&path[..start + length], start, 10));
                    put(&tier, &model, &labels).await.expect("it is stored");
                }
                let shared = common_prefix(&path, &tokens);
                // A copy without an offset of the grid is found as part of a longer path only.
                let found = labels.iter().filter(|label| {
                    let mark = shared.min(label.end()) / GRID * GRID;
                    mark > label.start && (!whole || label.end() <= shared)
                });
                let ends = found.map(|label| if whole { label.end() } else { shared.min(label.end()) / GRID * GRID });
                reach = reach.max(ends.max().unwrap_or(0));
            }
            let found = tier.find(&model, &ask(&tokens, from)).await;
            let found = found.expect("the store answers");
            let mut at = from;
            for label in &found {
                assert!(label.start <= at, "{} follows {at}", label.start);
                let before = &tokens[..label.start];
                assert!(label.before == PrefixDigest::of(label.key, before));
                let shared = common_prefix(&label.tokens, &tokens[label.start..]);
                assert!(!whole || shared == label.tokens.len());
                at = at.max(label.start + shared);
                let loaded = load(&tier, &model, label).await;
                assert_eq!(loaded.as_ref(), Ok(&bytes_of(label)));
            }
            // A mark past `from` is needed.
            if reach / GRID > from / GRID {
                assert!(at >= reach, "{at} of {reach} from {from}: {found:?}");
            }
        });
    }
}
