//! Forks, several outputs, and full contexts.

use motet::request::{FinishReason, Sampling};

use crate::reference_output::{
    Shift, reference_output, sampled_reference_output, shifted_reference_output,
};
use crate::setup::{config, end, engine, letter, letters, read, request, run, submit, words};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_go_on_from_any_token_of_a_live_sequence_and_share_its_state() {
    const OUTPUT: usize = 32;
    let mut config = config(8, 64, 8 * 192);
    // The source pauses before its end until its output is read.
    config.scheduler.unread_tokens_max = 12;
    let engine = engine(config).await;
    let prompt = letter(1);
    let whole = [&prompt[..], &reference_output(&prompt, OUTPUT)].concat();
    let mut source = submit(&engine, request(&prompt, OUTPUT)).await;
    let mut received = read(&mut source, 10).await;

    let (within, after) = (prompt.len() / 2, prompt.len() + 6);
    let appended = [words(" and then the gardener came"), Vec::new(), words("!")];
    let mut forks = Vec::new();
    for (at, appended) in [Some(within), Some(after), None].into_iter().zip(&appended) {
        let more = request(appended, 8);
        let fork = engine.fork(&source, at, more).await;
        forks.push((at, appended, fork.expect("the fork is admitted")));
    }
    let mut computed = 0;
    for (at, appended, fork) in forks {
        let fork = fork.collect().await.expect("the sequence finishes");
        let usage = fork.finish.usage;
        let begins = usage.prompt_tokens - appended.len();
        assert_eq!(begins, at.unwrap_or(begins));
        assert!(
            begins >= after || begins == within,
            "{begins}: the fork position is known"
        );
        let continued = [&whole[..begins], appended].concat();
        assert_eq!(
            fork.tokens,
            reference_output(&continued, 8),
            "forked at {at:?}"
        );
        // A fork always computes its last token, and the source may not have computed its last
        // yet.
        let shared = begins.min(continued.len() - 1);
        let least = if at.is_none() { shared - 1 } else { shared };
        assert!(
            (least..=shared).contains(&usage.cached_tokens),
            "forked at {at:?}: {usage:?}"
        );
        computed += usage.prompt_tokens - usage.cached_tokens + 7;
    }
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
    let stats = engine.stats();
    assert_eq!((stats.forked, stats.preempted), (3, 0));
    // No shared token was computed again, by the source neither.
    let own = prompt.len() + OUTPUT - 1;
    assert_eq!(stats.evaluated_tokens as usize, own + computed);
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_outputs_share_one_prompt_and_match_their_references() {
    let engine = engine(config(8, 64, 8 * 192)).await;
    let prompt = letter(2);
    let sampling_request = request(&prompt, 12).temperature(0.9).seed(7).n(4);
    let streams = engine
        .submit_many(sampling_request)
        .await
        .expect("the outputs are admitted");
    let mut outputs = Vec::new();
    for (seed, stream) in (7..).zip(streams) {
        let output = stream
            .collect()
            .await
            .expect("the sequence finishes")
            .tokens;
        let sampling = Sampling {
            temperature: 0.9,
            seed,
            ..Sampling::GREEDY
        };
        assert_eq!(
            output,
            sampled_reference_output(&prompt, 12, sampling),
            "seed {seed}"
        );
        outputs.push(output);
    }
    outputs.sort();
    outputs.dedup();
    assert!(outputs.len() > 1, "different seeds give different tokens");
    let stats = engine.stats();
    assert_eq!(stats.forked, 3);
    // Each output's own tokens, and perhaps the prompt's last token once more.
    let most = prompt.len() + 3 + 4 * 11;
    let evaluated = stats.evaluated_tokens as usize;
    assert!(evaluated <= most, "{evaluated}, at most {most}");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_contexts_shift_and_shifted_state_stays_private() {
    const OUTPUT: usize = 80;
    let shift = Shift {
        context_tokens: 96,
        keep: 16,
    };
    let mut config = config(4, 64, 8 * 96);
    config.context_tokens_max = Some(shift.context_tokens);
    let engine = engine(config).await;
    let prompt = letter(3)[..64].to_vec();
    let expected = shifted_reference_output(&prompt, OUTPUT, shift);
    let shifting = request(&prompt, OUTPUT).shift(shift.keep);
    // Two sequences with a common prompt, and a neighbour that does not shift.
    let one = submit(&engine, shifting.clone()).await;
    let other = submit(&engine, shifting).await;
    let near = letter(4)[..40].to_vec();
    let neighbour = submit(&engine, request(&near, 20)).await;
    let shifts =
        (prompt.len() + OUTPUT - 1 - shift.context_tokens).div_ceil(shift.discarded_tokens());
    assert_eq!(shifts, 2, "the context is full twice");
    let mut shared = 0;
    for stream in [one, other] {
        let output = stream.collect().await.expect("the sequence finishes");
        assert_eq!(output.tokens, expected);
        assert_eq!(output.finish.reason, FinishReason::Length);
        let usage = output.finish.usage;
        assert_eq!(usage.shifted_tokens, shifts * shift.discarded_tokens());
        shared += usage.cached_tokens;
    }
    assert_eq!(shared, prompt.len() - 1, "the prompt was computed once");
    let neighbour = neighbour.collect().await.expect("the sequence finishes");
    assert_eq!(neighbour.tokens, reference_output(&near, 20));
    assert_eq!(neighbour.finish.usage.shifted_tokens, 0);
    assert_eq!(engine.stats().shifted as usize, 2 * shifts);

    // The tokens left in the slots at the end. Their state was computed before tokens were
    // removed, so only the kept prefix is cached.
    let all = [&prompt[..], &expected[..OUTPUT - 1]].concat();
    let left = shift.keep + shifts * shift.discarded_tokens();
    let moved = [&all[..shift.keep], &all[left..]].concat();
    let output = run(&engine, request(&moved, 6)).await;
    assert_eq!(output.finish.usage.cached_tokens, shift.keep);
    assert_eq!(output.tokens, reference_output(&moved, 6));

    let long = letters(5..7);
    let output = run(&engine, request(&long, 4).shift(shift.keep)).await;
    let usage = output.finish.usage;
    let gone = usage.truncated_tokens;
    assert_eq!(
        gone,
        long.len() - shift.context_tokens + shift.discarded_tokens()
    );
    let left = [&long[..shift.keep], &long[shift.keep + gone..]].concat();
    assert_eq!(output.tokens, reference_output(&left, 4));
    end(engine).await;
}
