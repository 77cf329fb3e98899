//! Samples against exact distributions. The seeds are fixed, so that a check passes always or
//! never.

use super::*;

const SAMPLES: u64 = 40_000;
/// Seeds of each check; each has equally many positions.
const SEEDS: u64 = 8;

/// Logits of a few tokens, some equal, in no order.
const LOGITS: [f32; 12] = [
    0.3, -1.0, 2.0, 0.3, -4.0, 1.5, 2.0, -0.2, 0.9, -2.5, 0.0, 1.1,
];

const WARM: Sampling = Sampling {
    temperature: 1.0,
    ..Sampling::GREEDY
};

/// Every draw of a check: its seed and its position.
fn samples() -> impl Iterator<Item = (u64, u64)> {
    (0..SEEDS).flat_map(|seed| (0..SAMPLES / SEEDS).map(move |position| (seed, position)))
}

fn at(sampling: Sampling, (seed, position): (u64, u64)) -> TokenSampling {
    let sampling = Sampling { seed, ..sampling };
    TokenSampling { sampling, position }
}

/// Checks counts against probabilities by Pearson's test. Categories that are expected less than
/// five times are counted as one; those without probability must not occur.
fn check(counts: &[u64], probabilities: &[f64]) {
    assert_eq!(counts.len(), probabilities.len());
    let samples = counts.iter().sum::<u64>() as f64;
    let total: f64 = probabilities.iter().sum();
    let (mut rare, mut chi_square, mut categories) = ((0.0, 0.0), 0.0, 0);
    let mut add = |count: f64, expected: f64| {
        chi_square += (count - expected).powi(2) / expected;
        categories += 1;
    };
    for (count, probability) in counts.iter().zip(probabilities) {
        let (count, expected) = (*count as f64, samples * probability / total);
        assert!(expected > 0.0 || count == 0.0, "{counts:?}");
        if expected < 5.0 {
            rare = (rare.0 + count, rare.1 + expected);
        } else {
            add(count, expected);
        }
    }
    if rare.1 > 0.0 {
        add(rare.0, rare.1);
    }
    // Nearly a normal distribution (Wilson and Hilferty 1931).
    let freedom = f64::from(categories - 1).max(1.0);
    let spread = 2.0 / (9.0 * freedom);
    let deviation = ((chi_square / freedom).cbrt() - (1.0 - spread)) / spread.sqrt();
    assert!(
        deviation < 3.5,
        "{deviation} deviations: {counts:?} for {probabilities:?}"
    );
}

/// The counts of tokens that are sampled from these logits.
fn counts(logits: &[f32], sampling: Sampling, spec: &SamplingSpec, prompt: &[TokenId]) -> Vec<u64> {
    let spec = Arc::new(spec.clone());
    let mut counts = vec![0; logits.len()];
    for draw in samples() {
        let token_sampling = at(sampling, draw);
        let mut sampler = Sampler::new(spec.clone(), token_sampling.sampling, prompt, &[]);
        let inputs = sampler.sample_inputs(token_sampling).expect("goes on");
        counts[inputs.from_logits(logits).token as usize] += 1;
    }
    counts
}

/// Numbers in proportion to the probabilities of tokens with these logits.
fn softmax(logits: &[f64], temperature: f64) -> Vec<f64> {
    logits
        .iter()
        .map(|logit| (logit / temperature).exp())
        .collect()
}

fn exact() -> Vec<f64> {
    LOGITS.map(f64::from).to_vec()
}

#[test]
fn temperatures() {
    for temperature in [0.3_f32, 1.0, 2.0] {
        let sampling = Sampling {
            temperature,
            ..WARM
        };
        let counts = counts(&LOGITS, sampling, &SamplingSpec::default(), &[]);
        check(&counts, &softmax(&exact(), f64::from(temperature)));
    }
}

/// The filters leave tokens out and keep the proportions of the others.
#[test]
fn filters() {
    let only = |tokens: &[usize]| {
        let mut weights = softmax(&exact(), 1.0);
        for (token, weight) in weights.iter_mut().enumerate() {
            *weight = if tokens.contains(&token) {
                *weight
            } else {
                0.0
            };
        }
        weights
    };
    // Shares: tokens 2 and 6 have 0.24 each, 5 has 0.15, 11 has 0.10, 8 has 0.08.
    let cases = [
        (Sampling { top_k: 4, ..WARM }, vec![2, 6, 5, 11]),
        (Sampling { top_p: 0.7, ..WARM }, vec![2, 6, 5, 11]),
        (Sampling { min_p: 0.3, ..WARM }, vec![2, 6, 5, 11, 8]),
    ];
    for (sampling, tokens) in cases {
        let counts = counts(&LOGITS, sampling, &SamplingSpec::default(), &[]);
        check(&counts, &only(&tokens));
    }
}

#[test]
fn penalties() {
    let sampling = Sampling {
        repetition_penalty: 1.5,
        presence_penalty: 0.4,
        frequency_penalty: 0.3,
        ..WARM
    };
    let mut logits = exact();
    for (token, count) in [(2, 2.0), (4, 1.0), (8, 1.0)] {
        let logit: f64 = logits[token];
        let penalised = if logit > 0.0 {
            logit / 1.5
        } else {
            logit * 1.5
        };
        logits[token] = penalised - 0.4 - 0.3 * count;
    }
    let counts = counts(&LOGITS, sampling, &SamplingSpec::default(), &[2, 4, 8, 2]);
    check(&counts, &softmax(&logits, 1.0));
}

#[test]
fn biases_and_masks() {
    let (grammar, _) = grammar("b|cd|f");
    let spec = SamplingSpec {
        bias: vec![(2, -1.5), (5, 0.5)],
        grammar: Some(Arc::new(grammar)),
        ..SamplingSpec::default()
    };
    let mut sampler = Sampler::new(Arc::new(spec.clone()), WARM, &[], &[]);
    let inputs = sampler.sample_inputs(at(WARM, (0, 0))).expect("goes on");
    let adjustments = inputs.adjustments(LOGITS.len()).expect("changes");
    let mut logits = LOGITS;
    adjustments.apply(&mut logits);
    let allowed = logits.iter().filter(|logit| logit.is_finite()).count();
    assert!((2..LOGITS.len() - 2).contains(&allowed), "{logits:?}");
    let found = counts(&LOGITS, WARM, &spec, &[]);
    check(&found, &softmax(&logits.map(f64::from), 1.0));
}

/// The samples of two samples are independent of each other: at neighbouring positions, with
/// neighbouring seeds, and where the sum of both is the same.
#[test]
fn neighbours_are_independent() {
    let logits = &LOGITS[..6];
    let weights = softmax(&exact()[..6], 1.0);
    for (seeds, positions) in [(0, 1), (1, 0), (1, u64::MAX)] {
        let mut counts = [0; 36];
        for (seed, position) in samples() {
            let other = (seed + seeds, position.wrapping_add(positions));
            let [one, two] =
                [(seed, position), other].map(|draw| sample_row(&at(WARM, draw), logits) as usize);
            counts[6 * one + two] += 1;
        }
        let pairs = |one: &f64| weights.iter().map(|two| one * two).collect::<Vec<_>>();
        check(&counts, &weights.iter().flat_map(pairs).collect::<Vec<_>>());
    }
}

/// Tokens are as rare as they should be far below the likeliest one: the first of the bits'
/// 2^32 parts is not hit too often, and tokens are not left out too early.
#[test]
fn unlikely_tokens() {
    // One token in front of many that together have a fifth of its probability.
    let mut logits = vec![-12.0_f32; 32_768];
    logits[20_000] = 0.0;
    let others = 32_767.0 * (-12.0_f64).exp();
    let mut counts = [0; 3];
    for draw in samples() {
        match sample_row(&at(WARM, draw), &logits) {
            20_000 => counts[0] += 1,
            0..16_384 => counts[1] += 1,
            _ => counts[2] += 1,
        }
    }
    check(&counts, &[1.0, others / 2.0, others / 2.0]);
}

/// The winner by definition: no block is left out.
fn naive(token_sampling: &TokenSampling, logits: &[f32]) -> TokenId {
    let (weights, threshold) = weights(token_sampling, logits);
    let noise = Noise::of(token_sampling);
    let mut best = (0.0, 0);
    for (token, weight) in (0..).zip(weights) {
        let score = f64::from(weight) / noise.exponential(token);
        if weight >= threshold && score > best.0 {
            best = (score, token);
        }
    }
    best.1
}

proptest! {
    /// On rows of all lengths, with logits of all sizes.
    #[test]
    fn winners_match_the_definition(
        logits in prop::collection::vec(prop_oneof![-100.0_f32..100.0, -1.0_f32..0.0, Just(0.0)], 1..400),
        temperature in prop_oneof![0.01_f32..2.0, 2.0_f32..50.0],
        (seed, position, top_k, min_p) in (any::<u64>(), any::<u64>(), 0_u32..9, 0.0_f32..0.2),
    ) {
        let sampling = Sampling { temperature, top_k: top_k.saturating_sub(4), min_p, ..WARM };
        let token_sampling = at(sampling, (seed, position));
        if !sampling.is_greedy() {
            prop_assert_eq!(sample_row(&token_sampling, &logits), naive(&token_sampling, &logits));
        }
    }
}

/// Two models that sample with the same noise mostly sample the same token: at least as often as
/// (1 - d) / (1 + d), where d is the total variation distance of their distributions (Daliri et
/// al., "Coupling without Communication and Drafter-Invariant Speculative Decoding", 2024).
#[test]
fn near_distributions_sample_the_same_token() {
    let target: Vec<f32> = (0..500)
        .map(|token| (7.3 * token as f32).sin() * 4.0)
        .collect();
    for distance in [0.2_f32, 1.0] {
        let drafter = target.iter().zip(0..);
        let drafter = drafter.map(|(logit, token)| logit + distance * (1.7 * token as f32).cos());
        let drafter: Vec<f32> = drafter.collect();
        let token_sampling = at(WARM, (0, 0));
        let [p, q] = [&target, &drafter].map(|logits| probabilities(&token_sampling, logits));
        let shared: f32 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
        let bound = shared / (2.0 - shared);
        let agrees = |draw: &(u64, u64)| {
            let token_sampling = at(WARM, *draw);
            sample_row(&token_sampling, &target) == sample_row(&token_sampling, &drafter)
        };
        let rate = samples().filter(agrees).count() as f32 / SAMPLES as f32;
        assert!(
            rate > bound - 0.01 && rate < shared + 0.01,
            "{rate} of samples agree; {bound} to {shared} expected"
        );
    }
}
