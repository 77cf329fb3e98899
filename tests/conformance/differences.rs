//! Deliberate differences between Motet and ollama, and fields that Motet does not support.

use crate::check::{Difference, Unsupported};

const NO_GROUPS: &str = "Motet caches text tokens only; no inputs have to stay in one batch";
const OLDER_RULE: &str = "the older rule leaves a full context, which a shift would halve at once; \
     the later rule, of `prompt.context_shift_limit`, leaves room for the output";
const WINDOW: &str = "a window of W tokens counts the token itself, as models' configurations and \
     MLX do; ollama's older cache admitted one more";
const TEXT_ONLY: &str = "Motet caches token ids and nothing else: there are no pictures and no \
     embeddings in a prompt, and no key for them";
const POSITIONS: &str = "positions are places in a sequence's own token list and have no gaps";
const RING: &str = "restore points are evicted when their bytes are wanted, and not by count";
const OWN_POINTS: &str = "models that cannot resume after any token are also sealed before the \
     last token of a prompt, since the same prompt is likely to come again";
const COMPACT: &str = "segments are sealed as compact copies: nothing is lazy, and nothing that \
     was counted as free turns out to be held";
const NO_MASKS: &str = "attention is causal; callers bring no masks of their own";
const PARTIAL: &str = "full attention resumes within an edge for every request, and a window \
     where enough of it is left; state is also sealed before the last token of a prompt";

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        suite: "input_cache.find_slot",
        case: "Evict",
        reason: "there are no numbered slots, so none is the first",
        instead: "without anything in common, `Longest` lets go whom `Best` lets go: the end \
                  that is last in the order of eviction",
    },
    Difference {
        suite: "input_cache.shift_discard.same_batch",
        case: "Same Batch",
        reason: NO_GROUPS,
        instead: "half of what is not kept is discarded, wherever the cut falls",
    },
    Difference {
        suite: "input_cache.shift_discard.same_batch",
        case: "Overlapping Same Batch",
        reason: NO_GROUPS,
        instead: "half of what is not kept is discarded, wherever the cut falls",
    },
    Difference {
        suite: "input_cache.load_slot",
        case: "No available slots",
        reason: "slots are made as they are needed; what is limited is bytes",
        instead: "the newcomer waits for the live sequence to compute what both share, and \
                  begins on it; one that does not fit is told that there is no room",
    },
    Difference {
        suite: "prompt.context_shift_limit",
        case: "keep is clamped below context",
        reason: "bad input gets a typed error",
        instead: "`keep` of the context's length or more is refused; one less has the limit \
                  that is expected",
    },
    Difference {
        suite: "prompt.context_shift_limit",
        case: "negative keep is treated as zero",
        reason: "`keep` is a number of tokens, which is never negative",
        instead: "0 has the limit that is expected",
    },
    Difference {
        suite: "prompt.bounded_num_predict",
        case: "open ended gets finite budget",
        reason: "every request says how long its output may get",
        instead: "the largest number gets the bound that is expected: ten contexts",
    },
    Difference {
        suite: "prompt.bounded_num_predict",
        case: "unknown context unchanged",
        reason: "every model says how long its context is",
        instead: "a model without a context is refused, and no output is without bound",
    },
    Difference {
        suite: "prompt.truncate_runner_era",
        case: "basic",
        reason: OLDER_RULE,
        instead: "half of what is not kept is discarded besides what is too much",
    },
    Difference {
        suite: "prompt.truncate_runner_era",
        case: "negative keep",
        reason: OLDER_RULE,
        instead: "half of what is not kept is discarded besides what is too much",
    },
    Difference {
        suite: "kvcache.causal",
        case: "SWA window 1",
        reason: WINDOW,
        instead: "a window of one token sees itself; one of W + 1 sees what is expected of W",
    },
    Difference {
        suite: "kvcache.causal",
        case: "SWA with extra memory",
        reason: WINDOW,
        instead: "a window of one token sees itself; one of W + 1 sees what is expected of W; \
                  no other tokens are retained",
    },
    Difference {
        suite: "kvcache.causal",
        case: "Chunked attention 2",
        reason: "no model that Motet runs attends within chunks",
        instead: "there is no such kind of layer; a window as long as a chunk sees the chunk, \
                  and tokens before it",
    },
    Difference {
        suite: "kvcache.causal",
        case: "Copy prefix",
        reason: POSITIONS,
        instead: "the copy goes on at the next position, and sees what is expected",
    },
    Difference {
        suite: "kvcache.causal",
        case: "CanResume SWA window 4 memory 5",
        reason: "a window layer keeps its window and no more; it resumes where state was sealed",
        instead: "resumes before the prompt's last token by itself, where the caller asks for \
                  it, and from nothing",
    },
    Difference {
        suite: "kvcache.defrag_historic",
        case: "Defrag",
        reason: POSITIONS,
        instead: "three tokens more fit the same room without any defragmenting, at the next \
                  positions, and see what is expected",
    },
    Difference {
        suite: "kvcache.recurrent_checkpoint_store",
        case: "BestIndex",
        reason: RING,
        instead: "what a full ring has forgotten is still found",
    },
    Difference {
        suite: "kvcache.recurrent_checkpoint_store",
        case: "RingBufferWrapAround",
        reason: RING,
        instead: "the first is still there beside the last",
    },
    Difference {
        suite: "kvcache.recurrent_restore",
        case: "Remove middle shifts checkpoints and clears pending restore",
        reason: "recurrent state was computed from what is removed; renumbered, it would claim \
                 to be that of other tokens",
        instead: "refuses to move; the sequence begins anew at its last restore point before \
                  what is removed",
    },
    Difference {
        suite: "trie.split_merge_snapshots",
        case: "Merge Basic",
        reason: "a key means the tokens down to a node's end, for as long as it is valid",
        instead: "of two merged nodes the upper's key is gone, and the lower's goes on",
    },
    Difference {
        suite: "trie.byte_accounting",
        case: "UpdatesOnMaterialize",
        reason: COMPACT,
        instead: "bytes are counted from the moment a segment is made",
    },
    Difference {
        suite: "trie.byte_accounting",
        case: "SwapDetachesHook",
        reason: COMPACT,
        instead: "bytes are counted from the moment a segment is made, and those of what was \
                  replaced no longer",
    },
    Difference {
        suite: "prefix_cache.scenarios_head",
        case: "TestBranchCreationAndReuse",
        reason: OWN_POINTS,
        instead: "on models with windows or recurrent layers B is sealed at two offsets, and \
                  C starts from 7 or 8 tokens and not from 5",
    },
    Difference {
        suite: "prefix_cache.scenarios_head",
        case: "TestExactMatchSeedBehavior",
        reason: OWN_POINTS,
        instead: "on models with windows or recurrent layers the same prompt has one token \
                  left to evaluate, and nothing to be sealed",
    },
    Difference {
        suite: "prefix_cache.scenarios_head",
        case: "TestLRUOnlyUpdatesUsedNodes",
        reason: "a path is needed as long as its end: only leaves are evicted, and by the time \
                 an inner node has become one, its time of use is that of what hung below it",
        instead: "a use counts for the whole path, and for no other; within a window, B starts \
                  from the 3 tokens that it shares",
    },
    Difference {
        suite: "prefix_cache.scenarios_seed_era",
        case: "TestBranchCreationAndReuse",
        reason: PARTIAL,
        instead: "with full attention B has 3 tokens left and C 2; with a window C has 2 left, \
                  and with recurrent layers 3",
    },
    Difference {
        suite: "prefix_cache.scenarios_seed_era",
        case: "TestExactMatchSeedBehavior",
        reason: OWN_POINTS,
        instead: "the same prompt has one token left to evaluate, with every kind of layer",
    },
    Difference {
        suite: "prefix_cache.scenarios_seed_era",
        case: "TestBranchSwitchRestoresCorrectState",
        reason: PARTIAL,
        instead: "with full attention, and within a window, B starts from the 3 tokens that it \
                  shares",
    },
    Difference {
        suite: "prefix_cache.long_scenarios",
        case: "TestScenarioCancelledPrefills",
        reason: "prompts are known by tokens, and not by pairs of tokens as drafts that look \
                 ahead need it; what a cancelled prefill has computed is sealed where it ended",
        instead: "all 18 tokens are known to the probe, and it starts from them",
    },
    Difference {
        suite: "mlx.snapshots.rotating",
        case: "RestoreLazyOwnSnapshotSlices",
        reason: COMPACT,
        instead: "a slot refers to the sealed segment; nothing is copied, then or at the next \
                  write",
    },
    Difference {
        suite: "mlx.snapshots.recurrent",
        case: "GetLazyInit",
        reason: "no model with recurrent layers runs on MLX here; the oracle has them",
        instead: "an empty tail of constant size; what it is made of is the model's own matter",
    },
    Difference {
        suite: "mlx.attention_masks",
        case: "DecodeParity",
        reason: NO_MASKS,
        instead: "one token sees the last W, itself included; there is no mask to weigh them",
    },
    Difference {
        suite: "mlx.attention_masks",
        case: "PrefillParity",
        reason: NO_MASKS,
        instead: "each token of a chunk sees the last W, itself included, and none after it",
    },
    Difference {
        suite: "mlx.attention_masks",
        case: "MLAParity",
        reason: "Motet runs the Llama family, whose values are its own",
        instead: "models with latent attention are refused by name",
    },
];

pub(crate) const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        suite: "input_cache.common_prefix.llamarunner",
        field: "embed",
        reason: TEXT_ONLY,
    },
    Unsupported {
        suite: "input_cache.common_prefix.ollamarunner",
        field: "media_hash",
        reason: TEXT_ONLY,
    },
];
