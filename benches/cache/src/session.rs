//! Match, open and close of a cached prompt, beside kvbm-logical's match of its blocks.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{Effect, Message, OpenSlot};
use motet_protocol::TokenId;

use crate::harness::{CacheHarness, Texts};
use crate::kvbm::{self, BLOCK_TOKENS, Kvbm};
use crate::measured::{Measured, median};
use crate::protocol::Size;
use crate::rounds::{Turn, ratios, take_turns, time};
use crate::{Result, allocations};

/// Tokens of a live sequence after its shared ones.
const OWN_TOKENS: usize = 32;

/// The content of both sides, and the number of operations.
#[derive(Debug)]
struct Load {
    /// Blocks of 16 tokens that are matched.
    blocks: usize,
    /// Sequences that are live meanwhile.
    live: usize,
    /// Other conversations that are cached.
    conversations: usize,
    /// Tokens of each.
    conversation_tokens: usize,
    /// Numbers of nodes that the prompt is cached in; the slowest counts.
    nodes: Vec<usize>,
    /// More such numbers, which are also measured and do not count.
    nodes_beside: Vec<usize>,
    rounds: usize,
    /// Sessions, and matches, in each round.
    operations: usize,
}

/// A core that has the prompt cached, and the timed session.
struct Sessions {
    name: String,
    harness: CacheHarness,
    prompt: Arc<[TokenId]>,
    cached_tokens: usize,
}

/// Times of sessions ÷ times of kvbm-logical's match, which takes turns with them. Among
/// several ways to cache the prompt, the slowest counts; kvbm is set up as its own
/// documentation and benchmark do.
pub(crate) fn measure(size: Size) -> Result<Measured> {
    let load = &Load {
        blocks: 128,
        live: 16,
        conversations: size.pick(1_000, 10),
        conversation_tokens: 128,
        nodes: vec![1, 8],
        // One node for each block: no real conversation is cached in this shape.
        nodes_beside: vec![128],
        rounds: size.rounds(),
        operations: size.pick(20_000, 10),
    };
    let mut ours = Vec::new();
    for &nodes in load.nodes.iter().chain(&load.nodes_beside) {
        ours.push(Sessions::new(load, nodes, true)?);
        ours.push(Sessions::new(load, nodes, false)?);
    }
    let allocated: Vec<usize> = ours.iter_mut().map(Sessions::allocations).collect();
    let prompt = prompt(load);
    let hashes = kvbm::hashes(&prompt);
    let theirs = [populated(load, true)?, populated(load, false)?];

    let mut turns: Vec<Turn<'_>> = Vec::new();
    for kvbm in &theirs {
        turns.push(Box::new(|operations| {
            kvbm.match_seconds(&hashes, operations)
        }));
    }
    turns.push(Box::new(|operations| {
        theirs[1].match_and_drop_seconds(&hashes, operations)
    }));
    turns.push(Box::new(|operations| {
        time(operations.div_ceil(16), || {
            black_box(kvbm::hashes(black_box(&prompt)));
        })
    }));
    let names: Vec<String> = ours.iter().map(|sessions| sessions.name.clone()).collect();
    for sessions in &mut ours {
        turns.push(Box::new(|operations| time(operations, || sessions.run())));
    }
    let seconds = take_turns(&mut turns, load.rounds, load.operations);
    drop(turns);
    Ok(report(2 * load.nodes.len(), &names, &allocated, &seconds))
}

/// The first four are kvbm's: matching, the same without use counts, the same with releasing,
/// and hashing. The others are ours; the first `counted` of them count.
fn report(counted: usize, names: &[String], allocated: &[usize], seconds: &[Vec<f64>]) -> Measured {
    let (theirs, ours) = seconds.split_at(4);
    let micros = |seconds: &[f64]| median(seconds) * 1e6;
    let slowest = ours[..counted]
        .iter()
        .max_by(|a, b| median(a).total_cmp(&median(b)))
        .expect("there are sessions");
    let mut remarks = vec![format!(
        "kvbm-logical: {:.2} µs to match ({:.2} without counting uses, {:.2} so and with \
         releasing), {:.2} µs to hash the tokens, which every request needs: the session \
         takes {:.3} of match and hash, {:.3} of the match without counting",
        micros(&theirs[0]),
        micros(&theirs[1]),
        micros(&theirs[2]),
        micros(&theirs[3]),
        micros(slowest) / (micros(&theirs[0]) + micros(&theirs[3])),
        micros(slowest) / micros(&theirs[1]),
    )];
    let each = names.iter().zip(allocated).zip(ours);
    remarks.extend(
        each.enumerate()
            .map(|(at, ((name, allocations), seconds))| {
                let (micros, beside) = (
                    micros(seconds),
                    if at < counted {
                        ""
                    } else {
                        " (does not count)"
                    },
                );
                format!("motet, {name}: {micros:.2} µs, {allocations} allocations{beside}")
            }),
    );
    Measured {
        samples: ratios(slowest, &theirs[0]),
        remarks,
    }
}

impl Sessions {
    /// `alike`: the live sequences have the same beginning, as users of one system prompt do.
    fn new(load: &Load, nodes: usize, alike: bool) -> Result<Self> {
        let prompt = prompt(load);
        let mut texts = Texts::new();
        let mut harness = CacheHarness::new();
        let shared = texts.next(prompt.len()); // what `prompt` returned, and so the same
        for end in (1..=nodes).map(|n| prompt.len() * n / nodes) {
            harness.converse(&prompt[..end]);
        }
        for _ in 0..load.conversations {
            harness.converse(&texts.next(load.conversation_tokens));
        }
        for _ in 0..load.live {
            let text = if alike {
                texts.after(&shared, OWN_TOKENS)
            } else {
                texts.next(prompt.len() + OWN_TOKENS)
            };
            harness.open_slot(&text);
        }
        let others = if alike {
            "of the same prompt"
        } else {
            "of others"
        };
        let mut sessions = Self {
            name: format!("{nodes} nodes, {} live {others}", load.live),
            harness,
            cached_tokens: prompt.len(),
            // One token is to be evaluated.
            prompt: texts.after(&prompt, 1).into(),
        };
        sessions.check()?;
        Ok(sessions)
    }

    /// Checks that a session finds all that is cached, and leaves the cache unchanged.
    fn check(&mut self) -> Result<()> {
        let before = self.harness.core.stats();
        let sequence = self.harness.next_sequence();
        let open_slot = OpenSlot::new(sequence, Arc::clone(&self.prompt), 16);
        let effects = self.send(Message::OpenSlot(open_slot));
        let found = effects.iter().any(|effect| match effect {
            Effect::SlotOpened { cached_tokens, .. } => *cached_tokens == self.cached_tokens,
            _ => false,
        });
        self.send(Message::Close {
            sequence,
            computed: self.cached_tokens,
            generated: Vec::new(),
        });
        let after = self.harness.core.stats();
        let alike = (
            before.segments,
            before.protected_bytes,
            before.reserved_bytes,
        ) == (after.segments, after.protected_bytes, after.reserved_bytes);
        if found && alike {
            Ok(())
        } else {
            Err(format!("not a session of cached tokens: {effects:?}").into())
        }
    }

    fn run(&mut self) {
        let sequence = self.harness.next_sequence();
        let open_slot = OpenSlot::new(sequence, Arc::clone(&self.prompt), 16);
        black_box(self.send(Message::OpenSlot(open_slot)));
        black_box(self.send(Message::Close {
            sequence,
            computed: self.cached_tokens,
            generated: Vec::new(),
        }));
    }

    fn allocations(&mut self) -> usize {
        allocations::count(|| self.run()).1.allocations
    }

    fn send(&mut self, message: Message) -> Vec<Effect> {
        let effects = self.harness.core.handle(Duration::ZERO, message);
        effects.expect("the message is valid")
    }
}

fn prompt(load: &Load) -> Vec<TokenId> {
    Texts::new().next(load.blocks * BLOCK_TOKENS)
}

/// kvbm with the texts of a core: the prompt active, the conversations not.
fn populated(load: &Load, frequencies: bool) -> Result<Kvbm> {
    let mut texts = Texts::new();
    let blocks = load.blocks + load.conversations * (load.conversation_tokens / BLOCK_TOKENS + 1);
    let mut kvbm = if frequencies {
        Kvbm::new(blocks)?
    } else {
        Kvbm::without_frequencies(blocks)?
    };
    kvbm.register(&texts.next(load.blocks * BLOCK_TOKENS), true)?;
    for _ in 0..load.conversations {
        kvbm.register(&texts.next(load.conversation_tokens), false)?;
    }
    Ok(kvbm)
}
