//! State leaves the device, is loaded from host memory or the disk, and is unchanged.

use std::time::Duration;

use motet::config::{DiskConfig, EngineConfig};
use motet::{Shutdown, TokenId};

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, request, run, until, words};
use motet_testkit::folder::Folder;

const USERS: usize = 4;

/// Host memory for all copies, and no copy that is dropped because a busy disk is slow.
fn paged(device_tokens: usize) -> EngineConfig {
    let mut config = config(2, 64, device_tokens);
    config.pager.host_bytes_max = 96 << 20;
    config.pager.flush_time = Duration::from_secs(60);
    config.pager.disk_timeout = Duration::from_secs(60);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversations_come_back_from_host_memory_to_the_bit() {
    // One running sequence beside at most one cached letter.
    let mut config = paged(256);
    config.pager.clean_part = 1.0;
    let engine = engine(config).await;
    let mut talks: Vec<Vec<TokenId>> = (0..USERS).map(letter).collect();
    for talk in &mut talks {
        let output = run(&engine, request(talk, 4)).await;
        assert_eq!(output.finish.usage.cached_tokens, 0);
        assert_eq!(output.tokens, reference_output(talk, 4));
        talk.extend(output.tokens);
    }
    until("all letters are copied", || {
        engine.stats().pager.copies >= USERS
    })
    .await;
    let before = engine.stats();
    assert!(before.cache.evicted_segments > 0, "the device is too small");
    assert_eq!(before.pager.unpacked, 0, "nothing has been loaded yet");
    let mut found = Vec::new();
    for talk in &mut talks {
        let known = talk.len() - 1;
        talk.extend(words(" The next morning"));
        let output = run(&engine, request(talk, 6)).await;
        assert_eq!(output.tokens, reference_output(talk, 6));
        found.push(output.finish.usage.cached_tokens == known);
    }
    assert_eq!(
        found, [true; USERS],
        "every letter was loaded from its copy"
    );
    // Each letter except perhaps the last was evicted, and was loaded from its copy.
    let pager = engine.stats().pager;
    assert!(pager.host_hits as usize >= USERS - 1, "{pager:?}");
    assert!(pager.unpacked as usize >= USERS - 1, "{pager:?}");
    assert_eq!((pager.disk_hits, pager.failed), (0, 0), "{pager:?}");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_goes_on_from_the_disk_with_the_same_tokens() {
    let folder = Folder::new("mlx-sequences-restart");
    // Each copy is needed without its last tokens; cutting one takes three times its bytes.
    let mut config = paged(512);
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 256 << 20,
    });
    let prompts: Vec<Vec<TokenId>> = (4..4 + USERS).map(letter).collect();
    let first = engine(config.clone()).await;
    for prompt in &prompts {
        let output = run(&first, request(prompt, 4)).await;
        assert_eq!(output.tokens, reference_output(prompt, 4));
    }
    first.shutdown(Shutdown::Finish).await;

    let second = engine(config).await;
    for prompt in &prompts {
        let output = run(&second, request(prompt, 6)).await;
        let (usage, pager) = (output.finish.usage, second.stats().pager);
        let all = prompt.len() - 1;
        assert_eq!(usage.cached_tokens, all, "{usage:?}, {pager:?}");
        assert_eq!(output.tokens, reference_output(prompt, 6));
    }
    let stats = second.stats();
    // The last token of each prompt, and the generated tokens.
    assert_eq!(stats.evaluated_tokens as usize, USERS * 6);
    let pager = stats.pager;
    assert!(pager.read as usize >= USERS, "{pager:?}");
    assert!(pager.unpacked as usize >= USERS, "{pager:?}");
    assert!(pager.disk_hits > 0 && pager.failed == 0, "{pager:?}");
    end(second).await;
}
