//! The policies of waiting, as pure functions: which sequence starts next, and which one is
//! preempted.
//!
//! Classes are strict, except for the [turns](super::turns) of classes in which a request has
//! waited long. Within a class the user with the least service goes first. Within a deficit of
//! that, the sequence with the most cached prompt tokens goes first (deficit longest prefix
//! match: Cao et al. 2025), so that prefixes are used while they are cached. No sequence is
//! overtaken for that reason more than a few times.

use super::turns::Turns;
use motet_protocol::Priority;
use motet_protocol::SequenceId;

/// Times that a sequence may be overtaken by one with more of its prompt in the cache.
pub const OVERTAKEN_MAX: u32 = 16;

/// Tokens that count as one in comparisons of cached prefixes: a few more are no reason to
/// overtake.
const RESIDENT_TOKENS: usize = 32;

/// A sequence that waits for a slot, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueuedView {
    /// Its id; ids are given in order of arrival.
    pub sequence: SequenceId,
    /// Its priority class.
    pub priority: Priority,
    /// Whether it has waited so long that its class may have a turn.
    pub aged: bool,
    /// Whether it is in its turn, and has lost its slot to a failure since. It continues before
    /// all others.
    pub in_turn: bool,
    /// Whether it can use a slot now. A sequence that continues one whose last step is in
    /// flight can use it a step later.
    pub ready: bool,
    /// Whether its prompt would be computed soon if it had a slot.
    pub needed: bool,
    /// Whether its user's last turn in this class was given up for want of memory, and no turn
    /// of the class has had memory since. Others of the class go first in its turns.
    pub turned_away: bool,
    /// Service that its user has received.
    pub service: f64,
    /// Tokens of its prompt that are in the cache, as far as known.
    pub resident_tokens: usize,
    /// Times that another sequence went first because more of its prompt was cached.
    pub overtaken: u32,
}

/// A running sequence that might be preempted, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningView {
    /// Its id; ids are given in order of arrival.
    pub sequence: SequenceId,
    /// Its priority class.
    pub priority: Priority,
    /// Service that its user has received.
    pub service: f64,
    /// Slots that its user has, divided by its weight.
    pub slots: f64,
    /// Tokens of state that it would have to compute again at worst.
    pub lost_tokens: usize,
    /// Whether its caller does not read, so that it stands still anyway.
    pub paused: bool,
    /// Whether it got its slot only recently, after a preemption.
    pub fresh: bool,
    /// Whether it is in its turn, and so keeps its slot.
    pub in_turn: bool,
}

/// A prompt that has a slot and is not computed yet, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdmittedPrompt {
    /// Its priority class.
    pub priority: Priority,
    /// Service that its user has received.
    pub service: f64,
    /// Tokens that are in no step yet.
    pub tokens: usize,
}

/// Returns the service level, by class, at which admission stops.
///
/// At this level, the prompts that go before a request still hold `tokens` uncomputed tokens,
/// enough to fill the next steps. These are the admitted prompts of higher classes, and in its
/// own class those of users that have received no more service. A prompt that would only wait
/// is better off in the queue. Another may still go first there, a decoding sequence can use
/// the slot meanwhile, and more of its prefix may come to be cached.
///
/// Where a class has such a level, no request of a lower class is needed at all. No request
/// starts in a slot that a waiting request of a higher class could use.
#[must_use]
pub fn served_in_time(admitted: &mut [AdmittedPrompt], tokens: usize) -> [f64; Priority::COUNT] {
    admitted.sort_by(|a, b| {
        b.priority
            .cmp(&a.priority)
            .then(a.service.total_cmp(&b.service))
    });
    let mut left = tokens;
    let mut from = [f64::INFINITY; Priority::COUNT];
    for prompt in admitted.iter().filter(|prompt| prompt.tokens > 0) {
        left = left.saturating_sub(prompt.tokens);
        if left == 0 {
            let priority = prompt.priority as usize;
            from[priority] = prompt.service;
            from[..priority].fill(f64::NEG_INFINITY);
            break;
        }
    }
    from
}

/// The sequence for which another would be preempted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PreemptFor {
    /// A running sequence of this class, which needs memory to continue.
    Running(Priority),
    /// A queued sequence.
    Queued {
        /// Its priority class.
        priority: Priority,
        /// Service that its user has received.
        service: f64,
        /// Slots that its user would have with it, divided by its weight.
        slots: f64,
    },
}

/// Limits on the next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartLimits {
    /// Number of free slots.
    pub slots: usize,
    /// Whether a request of each class may take one of them. Memory that other sequences wait
    /// for may prevent it.
    pub open: [bool; Priority::COUNT],
}

/// The next start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextStart {
    /// Index of the sequence.
    pub index: usize,
    /// Whether it starts in the turn of its class, or continues one.
    pub is_turn: bool,
}

/// Chooses the next start among the waiting sequences whose callers read.
///
/// * A sequence that has lost its slot in its turn continues the turn.
/// * Where there is a slot for it, the class whose turn it is gets the slot, whether or not
///   requests of higher classes wait.
/// * Otherwise the highest class that is ready and needed gets a free slot, or that of a
///   preempted sequence. Each waiting request of a higher class reserves one of the free slots.
#[must_use]
pub fn next(
    waiting: &[QueuedView],
    locality_service: f64,
    turns: &Turns,
    start_limits: StartLimits,
) -> Option<NextStart> {
    let is_open = |one: &&QueuedView| one.ready && start_limits.open[one.priority as usize];
    let all = waiting.iter().enumerate();
    let going_on = all.filter(|(_, one)| one.in_turn && is_open(one));
    if let Some((index, _)) = going_on.min_by_key(|(_, one)| one.sequence) {
        return Some(NextStart {
            index,
            is_turn: true,
        });
    }
    let mut is_aged = [false; Priority::COUNT];
    for queued in waiting {
        is_aged[queued.priority as usize] |= queued.aged;
    }
    let open = waiting.iter().filter(is_open).map(|one| one.priority);
    if let Some(priority) = turns.next(open.filter(|priority| is_aged[*priority as usize])) {
        let may_start = |one: &QueuedView| one.priority == priority && one.ready;
        let first = |one: &QueuedView| may_start(one) && !one.turned_away;
        let index = least_served(waiting, locality_service, first)
            .or_else(|| least_served(waiting, locality_service, may_start))?;
        return Some(NextStart {
            index,
            is_turn: true,
        });
    }
    let may_start = |one: &QueuedView| one.ready && one.needed;
    let ready = waiting.iter().filter(|one| may_start(one));
    let priority = ready.map(|one| one.priority).max()?;
    let above = waiting.iter().filter(|one| one.priority > priority).count();
    if above > 0 && above >= start_limits.slots {
        return None;
    }
    let index = least_served(waiting, locality_service, |one| {
        one.priority == priority && may_start(one)
    })?;
    Some(NextStart {
        index,
        is_turn: false,
    })
}

/// Returns the index of the first candidate by service and cached tokens.
fn least_served(
    waiting: &[QueuedView],
    locality_service: f64,
    is_candidate: impl Fn(&QueuedView) -> bool,
) -> Option<usize> {
    let candidates = || {
        let all = waiting.iter().enumerate();
        all.filter(|(_, one)| is_candidate(one))
    };
    let least = candidates()
        .map(|(_, one)| one.service)
        .min_by(f64::total_cmp)?;
    let eligible = || candidates().filter(|(_, one)| one.service <= least + locality_service);
    let overtaken = eligible().filter(|(_, one)| one.overtaken >= OVERTAKEN_MAX);
    let oldest = overtaken.min_by_key(|(_, one)| one.sequence);
    let (index, _) = oldest.or_else(|| {
        eligible().min_by(|(_, a), (_, b)| {
            let resident = |one: &QueuedView| one.resident_tokens / RESIDENT_TOKENS;
            let by_prefix = resident(b).cmp(&resident(a));
            by_prefix
                .then(a.service.total_cmp(&b.service))
                .then(a.sequence.cmp(&b.sequence))
        })
    })?;
    Some(index)
}

/// Returns the indices of the sequences that `chosen` has overtaken only because more of its
/// prompt is cached.
pub fn overtaken(
    waiting: &[QueuedView],
    chosen: usize,
    locality_service: f64,
) -> impl Iterator<Item = usize> + '_ {
    let winner = waiting[chosen];
    let all = waiting.iter().enumerate();
    all.filter(move |(index, one)| {
        let first = one
            .service
            .total_cmp(&winner.service)
            .then(one.sequence.cmp(&winner.sequence));
        *index != chosen
            && one.ready
            && one.priority == winner.priority
            && one.service <= winner.service + locality_service
            && first.is_lt()
    })
    .map(|(index, _)| index)
}

/// Chooses the sequence to preempt: the index of the cheapest candidate.
///
/// For a running requester, candidates are the sequences of no higher class. For a queued
/// requester, they are sequences of a lower class, sequences whose callers do not read, and in
/// its own class the sequences of users that have received more service, by more than
/// `locality_service`, and also have more slots. A sequence in its turn is never a candidate.
///
/// A sequence that got its slot back recently comes after all others. Otherwise paused
/// sequences come first, then the lowest class, then the user with the most service, then the
/// fewest lost tokens, then the latest arrival.
#[must_use]
pub fn victim(
    running_views: &[RunningView],
    requester: &PreemptFor,
    locality_service: f64,
) -> Option<usize> {
    let may_go = |running_view: &RunningView| match *requester {
        PreemptFor::Running(priority) => running_view.priority <= priority,
        PreemptFor::Queued {
            priority,
            service,
            slots,
        } => {
            let exceeds_share =
                running_view.service > service + locality_service && running_view.slots > slots;
            running_view.priority < priority
                || running_view.paused
                || running_view.priority == priority && exceeds_share
        }
    };
    let candidates = running_views.iter().enumerate();
    let candidates =
        candidates.filter(|(_, running_view)| !running_view.in_turn && may_go(running_view));
    let cheapest = candidates.min_by(|(_, a), (_, b)| {
        let by_need = a.fresh.cmp(&b.fresh).then(b.paused.cmp(&a.paused));
        by_need
            .then(a.priority.cmp(&b.priority))
            .then(b.service.total_cmp(&a.service))
            .then(a.lost_tokens.cmp(&b.lost_tokens))
            .then(b.sequence.cmp(&a.sequence))
    });
    cheapest.map(|(index, _)| index)
}

#[cfg(test)]
mod saturated;
#[cfg(test)]
mod tests;
