//! Deliberate differences between Motet and ollama, and fields that Motet does not support.

use crate::check::{Difference, Unsupported};

const NO_GROUPS: &str = "Motet caches text tokens only; no inputs have to stay in one batch";
const OLDER_RULE: &str = "the older rule leaves a full context, which a shift would halve at once; \
     the later rule, of `prompt.context_shift_limit`, leaves space for the output";
const WINDOW: &str = "a window of W tokens counts the token itself, as models' configurations and \
     MLX do; ollama's older cache admitted one more";
const TEXT_ONLY: &str = "Motet caches token ids and nothing else: there are no pictures and no \
     embeddings in a prompt, and no key for them";
const POSITIONS: &str = "positions are places in a sequence's own token list and have no gaps";
const RING: &str = "restore points are evicted when their bytes are needed, and not by count";
const OWN_POINTS: &str = "models that cannot resume after any token are sealed where a resume is \
     likely: at a turn's end, where prompts branch off, and where a sequence ends";
const COMPACT: &str = "segments are sealed as compact copies: nothing is lazy, and no bytes \
     counted as free turn out to be in use";
const NO_MASKS: &str = "attention is causal; callers cannot pass masks";
const PARTIAL: &str = "full attention resumes within an edge for every request, and a window \
     where enough of it is left; state is also sealed before the last token of a prompt";

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        suite: "input_cache.find_slot",
        case: "Evict",
        reason: "there are no numbered slots, so none is the first",
        instead: "without a common prefix, `Longest` evicts the same slot as `Best`: the \
                  least recently used",
    },
    Difference {
        suite: "input_cache.shift_discard.same_batch",
        case: "Same Batch",
        reason: NO_GROUPS,
        instead: "half of the tokens that are not kept is discarded, wherever the cut is",
    },
    Difference {
        suite: "input_cache.shift_discard.same_batch",
        case: "Overlapping Same Batch",
        reason: NO_GROUPS,
        instead: "half of the tokens that are not kept is discarded, wherever the cut is",
    },
    Difference {
        suite: "input_cache.load_slot",
        case: "No available slots",
        reason: "slots are made as they are needed; only their bytes are limited",
        instead: "the new sequence waits for the live one to compute their common prefix, and \
                  starts on it; one that does not fit gets an out-of-memory error",
    },
    Difference {
        suite: "prompt.context_shift_limit",
        case: "keep is clamped below context",
        reason: "bad input gets a typed error",
        instead: "`keep` of the context's length or more is rejected; one less has the expected \
                  limit",
    },
    Difference {
        suite: "prompt.context_shift_limit",
        case: "negative keep is treated as zero",
        reason: "`keep` is a number of tokens, which is never negative",
        instead: "0 has the expected limit",
    },
    Difference {
        suite: "prompt.bounded_num_predict",
        case: "open ended gets finite budget",
        reason: "every request has a limit for its output",
        instead: "the largest number gets the expected bound: ten contexts",
    },
    Difference {
        suite: "prompt.bounded_num_predict",
        case: "unknown context unchanged",
        reason: "every model has a known context length",
        instead: "a model without a context is rejected, and every output has a bound",
    },
    Difference {
        suite: "prompt.truncate_runner_era",
        case: "basic",
        reason: OLDER_RULE,
        instead: "half of the tokens that are not kept is discarded, besides the excess",
    },
    Difference {
        suite: "prompt.truncate_runner_era",
        case: "negative keep",
        reason: OLDER_RULE,
        instead: "half of the tokens that are not kept is discarded, besides the excess",
    },
    Difference {
        suite: "kvcache.causal",
        case: "SWA window 1",
        reason: WINDOW,
        instead: "a window of one token sees itself; one of W + 1 sees the expectation for W",
    },
    Difference {
        suite: "kvcache.causal",
        case: "SWA with extra memory",
        reason: WINDOW,
        instead: "a window of one token sees itself; one of W + 1 sees the expectation for W; no \
                  other tokens are retained",
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
        instead: "the copy continues at the next position, and sees the expected tokens",
    },
    Difference {
        suite: "kvcache.causal",
        case: "CanResume SWA window 4 memory 5",
        reason: "a window layer keeps its window and no more; it resumes where state was sealed",
        instead: "it resumes at requested offsets, and from nothing",
    },
    Difference {
        suite: "kvcache.defrag_historic",
        case: "Defrag",
        reason: POSITIONS,
        instead: "three more tokens fit in the same memory without defragmenting, at the next \
                  positions, and see the expected tokens",
    },
    Difference {
        suite: "kvcache.recurrent_checkpoint_store",
        case: "BestIndex",
        reason: RING,
        instead: "entries that a full ring has forgotten are still found",
    },
    Difference {
        suite: "kvcache.recurrent_checkpoint_store",
        case: "RingBufferWrapAround",
        reason: RING,
        instead: "the first is still there, with the last",
    },
    Difference {
        suite: "kvcache.recurrent_restore",
        case: "Remove middle shifts checkpoints and clears pending restore",
        reason: "recurrent state was computed from the removed tokens; renumbered, it would \
                 claim to be that of other tokens",
        instead: "the removal fails; the sequence restarts at its last restore point before the \
                  removed tokens",
    },
    Difference {
        suite: "trie.split_merge_snapshots",
        case: "Merge Basic",
        reason: "a key means the tokens down to a node's end, for as long as it is valid",
        instead: "when two nodes merge, the upper's key is gone, and the lower's stays valid",
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
        instead: "bytes are counted from the moment a segment is made, and those of a replaced \
                  segment no longer",
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
        case: "TestLRUOnlyUpdatesUsedNodes",
        reason: "a path is needed as long as its end: only leaves are evicted, and an inner node \
                 that becomes a leaf has the time of use of its last child",
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
        reason: "prompts are keyed by tokens, and not by pairs of tokens as look-ahead drafts \
                 need it; the computed part of a cancelled prefill is sealed at its end",
        instead: "the probe finds all 18 tokens, and starts from them",
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
        reason: "the cache knows the size of a state; its data types are each backend's own, on \
                 MLX and on the CPU",
        instead: "an empty tail of constant size; its content is the model's own matter",
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
        reason: "Motet's families have values of their own",
        instead: "models with latent attention are rejected by name",
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
