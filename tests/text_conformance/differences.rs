//! The cases where Motet differs from ollama on purpose, and the features that it lacks.

use crate::check::{Difference, Unsupported};

pub(crate) const DIFFERENCES: &[Difference] = &[
    Difference {
        suite: "text.stop_rules_code",
        case: "first stop in list order that occurs wins (not earliest in text)",
        reason: "the stop string must not depend on how the text came in pieces",
        instead: "the stop string that is complete first in the text wins",
    },
    Difference {
        suite: "sample.history",
        case: "CommitBatchesRingWrites",
        reason: "the window is a queue with counts, and not a ring that is written in place",
        instead: "the same tokens are in it, each counted as often",
    },
    Difference {
        suite: "sample.history",
        case: "TopK before TopP",
        reason: "the filters do not depend on an order among equals",
        instead: "all tokens as likely as the second get through top-k 2, here three",
    },
    Difference {
        suite: "decode.pipelined",
        case: "DecodePlain",
        reason: "how far the device runs ahead of the end is no promise",
        instead: "at most one token is computed beyond the end, and none is seen",
    },
    Difference {
        suite: "decode.pipelined",
        case: "CancelledMidStream (speculative)",
        reason: "a caller cancels by dropping its stream, so no error is there to be read",
        instead: "the sequence ends long before its output would, all its resources are freed, and \
                  computed state stays in the cache, except for at most one token",
    },
];

pub(crate) const UNSUPPORTED: &[Unsupported] = &[];
