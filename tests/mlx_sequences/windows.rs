//! Sliding windows with the whole cache: shared prefixes, forks, eviction, preemption, shifts
//! and the disk.

use motet::TokenId;
use motet::config::DiskConfig;
use motet::request::FinishReason;

use crate::mistral::{Mistral, WINDOW, config, tokens};
use crate::reference_output::Shift;
use crate::setup::{end, read, request, run, submit};
use motet_testkit::folder::Folder;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_prefix_longer_than_the_window_is_computed_once() {
    const OUTPUT: usize = 2 * WINDOW;
    let mistral = Mistral::new();
    let engine = mistral.engine(config(8, 32)).await;
    let system = tokens(1, 4 * WINDOW);
    let mut streams = Vec::new();
    for user in 0..8 {
        let prompt = [&system[..], &tokens(10 + user, 10)].concat();
        let stream = submit(&engine, request(&prompt, OUTPUT)).await;
        streams.push((stream, prompt));
    }
    let (mut from_cache, mut outputs) = (0, Vec::new());
    for (stream, prompt) in streams {
        let output = stream.collect().await.expect("the sequence finishes");
        assert_eq!(output.tokens, mistral.reference_output(&prompt, OUTPUT));
        mistral.check_window_matters(&prompt, &output.tokens);
        from_cache += output.finish.usage.cached_tokens;
        outputs.push(output.tokens);
    }
    outputs.sort();
    outputs.dedup();
    assert_eq!(outputs.len(), 8, "each output is different");
    assert_eq!(from_cache, 7 * system.len());
    let own = 8 * (10 + OUTPUT - 1);
    assert_eq!(engine.stats().evaluated_tokens as usize, system.len() + own);
    let token_bytes: usize = engine
        .model()
        .layer_groups
        .iter()
        .map(|group| group.bytes)
        .sum();
    let tree = engine
        .cache_tree(None)
        .await
        .expect("the cache is consistent");
    let long = tree.nodes.iter().filter(|node| node.tokens.len() >= WINDOW);
    let bytes: Vec<usize> = long.map(|node| node.bytes).collect();
    assert_eq!(bytes, [WINDOW * token_bytes; 9], "a window of each range");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_resume_from_a_retained_window() {
    const OUTPUT: usize = 80;
    let mistral = Mistral::new();
    let mut config = config(4, 32);
    config.scheduler.unread_tokens_max = 30;
    let engine = mistral.engine(config).await;
    let prompt = tokens(2, 60);
    let whole = [&prompt[..], &mistral.reference_output(&prompt, OUTPUT)].concat();
    let mut source = submit(&engine, request(&prompt, OUTPUT).restore_point(59)).await;
    let mut received = read(&mut source, 40).await;
    // Within the prompt, where no window is retained, and behind the requested point.
    for (at, cached) in [(30, 0), (85, 59), (60, 59)] {
        let appended = tokens(at, 5);
        let fork = engine.fork(&source, Some(at), request(&appended, 30)).await;
        let fork = fork.expect("the fork is admitted").collect().await;
        let fork = fork.expect("the sequence finishes");
        let continued = [&whole[..at], &appended].concat();
        assert_eq!(
            fork.tokens,
            mistral.reference_output(&continued, 30),
            "forked at {at}"
        );
        assert_eq!(fork.finish.usage.cached_tokens, cached, "forked at {at}");
    }
    // The whole prefix is cached, because its window is retained.
    let before = engine.stats().evaluated_tokens;
    let latest = engine.fork(&source, None, request(&[7, 8, 9], 12)).await;
    let latest = latest.expect("the fork is admitted").collect().await;
    let latest = latest.expect("the sequence finishes");
    let usage = latest.finish.usage;
    let continued = [&whole[..usage.prompt_tokens - 3], &[7, 8, 9]].concat();
    assert_eq!(latest.tokens, mistral.reference_output(&continued, 12));
    assert!(usage.prompt_tokens - usage.cached_tokens <= 4, "{usage:?}");
    assert!(engine.stats().evaluated_tokens - before < 30);
    received.extend(
        source
            .collect()
            .await
            .expect("the sequence finishes")
            .tokens,
    );
    assert_eq!(
        received,
        whole[prompt.len()..],
        "the source's output is unchanged"
    );
    assert_eq!(engine.stats().forked, 4);
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_are_evicted_and_sequences_are_preempted() {
    const OUTPUT: usize = 100;
    let mistral = Mistral::new();
    let mut config = config(6, 64);
    let spec = mistral.spec();
    let budget = spec.tail_bytes(512);
    config.cache.device_bytes_max = budget + config.scratch_bytes(&spec);
    let engine = mistral.engine(config).await;
    let shared = tokens(3, 50);
    for round in 0..2 {
        let mut streams = Vec::new();
        for user in 0..6 {
            let own = tokens(100 * round + user, 30);
            let prompt = [&shared[..20 + 10 * (user % 4)], &own].concat();
            let request = request(&prompt, OUTPUT).user(format!("user {user}"));
            streams.push((submit(&engine, request).await, prompt));
        }
        for (stream, prompt) in streams {
            let output = stream.collect().await.expect("the sequence finishes");
            assert_eq!(output.tokens, mistral.reference_output(&prompt, OUTPUT));
            mistral.check_window_matters(&prompt, &output.tokens);
        }
        // One after another: more sequences than fit on the device.
        for user in 0..40 {
            let prompt = tokens(1000 * round + user, 90);
            let output = run(&engine, request(&prompt, 2)).await;
            assert_eq!(output.tokens, mistral.reference_output(&prompt, 2));
        }
        let cache = engine.stats().cache;
        assert!(
            cache.sealed_bytes + cache.reserved_bytes <= budget,
            "{cache:?}"
        );
    }
    let stats = engine.stats();
    assert!(stats.preempted > 0, "{stats:?}");
    assert!(stats.cache.evicted_segments > 20, "{stats:?}");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_context_recomputes_the_remaining_tokens() {
    const OUTPUT: usize = 150;
    let shift = Shift {
        context_tokens: 96,
        keep: 16,
    };
    let mistral = Mistral::new();
    let mut config = config(4, 32);
    config.context_tokens_max = Some(shift.context_tokens);
    let engine = mistral.engine(config).await;
    let mut streams = Vec::new();
    for number in 0..3 {
        let prompt = [&tokens(4, 40)[..], &tokens(50 + number, 20)].concat();
        let stream = submit(&engine, request(&prompt, OUTPUT).shift(shift.keep)).await;
        streams.push((stream, prompt));
    }
    let shifts = (60 + OUTPUT - 1 - shift.context_tokens).div_ceil(shift.discarded_tokens());
    assert!(shifts > 2);
    for (stream, prompt) in streams {
        let output = stream.collect().await.expect("the sequence finishes");
        assert_eq!(
            output.tokens,
            mistral.shifted_reference_output(&prompt, OUTPUT, shift)
        );
        let finish = output.finish;
        assert_eq!(finish.reason, FinishReason::Length);
        assert_eq!(
            finish.usage.shifted_tokens,
            shifts * shift.discarded_tokens()
        );
    }
    assert_eq!(engine.stats().shifted as usize, 3 * shifts);
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_come_back_from_the_disk_after_a_restart() {
    let folder = Folder::new("mlx-sequences-windows");
    let mistral = Mistral::new();
    let mut config = config(2, 32);
    config.pager.host_bytes_max = 16 << 20;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 64 << 20,
    });
    let prompt: Vec<TokenId> = tokens(6, 100);
    let first = mistral.engine(config.clone()).await;
    let output = run(&first, request(&prompt, 40)).await;
    assert_eq!(output.tokens, mistral.reference_output(&prompt, 40));
    first.shutdown(motet::Shutdown::Finish).await;
    let second = mistral.engine(config).await;
    // The answer becomes part of the conversation.
    let talk = [&prompt[..], &output.tokens, &tokens(7, 9)].concat();
    let output = run(&second, request(&talk, 40)).await;
    assert_eq!(output.tokens, mistral.reference_output(&talk, 40));
    assert_eq!(output.finish.usage.cached_tokens, 139);
    let pager = second.stats().pager;
    assert!(pager.read > 0 && pager.unpacked > 0, "{pager:?}");
    end(second).await;
}
