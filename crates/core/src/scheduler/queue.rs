//! Who starts next, as a pure function; and whose place is taken when one must give way.
//!
//! Classes are strict, but for the [turns](super::turns) of those in which a request has
//! waited long. Within a class the user starts who has had least service; within a deficit
//! of that, whoever has most of its prompt in the cache (deficit longest prefix match: Cao
//! et al. 2025), so that prefixes are used while they are there. Nobody is overtaken for
//! that more than a few times.

use super::turns::Turns;
use crate::SequenceId;
use crate::protocol::Priority;

/// Times that a sequence may be overtaken by one with more of its prompt in the cache.
pub const OVERTAKEN_MAX: u32 = 16;

/// Tokens that count as more in the cache: a few are not worth a turn.
const RESIDENT_TOKENS: usize = 32;

/// What the policy knows of a sequence that waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// Its name; names are given in order of arrival.
    pub sequence: SequenceId,
    /// Its class.
    pub class: Priority,
    /// Whether it has waited so long that its class is to have a turn.
    pub aged: bool,
    /// Whether it is in its turn, and has lost its slot to a failure since: it goes on
    /// before all others.
    pub in_turn: bool,
    /// Whether it can use a slot now. One that continues what ends in a step under way
    /// can do so a step later.
    pub ready: bool,
    /// Whether its prompt would be computed soon if it had a slot.
    pub needed: bool,
    /// Whether its user's last turn in this class was given up for want of memory, and no
    /// turn of the class has had memory since. Others of the class go first in its turns.
    pub turned_away: bool,
    /// What its user has had.
    pub service: f64,
    /// Tokens of its prompt that are in the cache, as far as is known.
    pub resident_tokens: usize,
    /// How often somebody went first for having more in the cache.
    pub overtaken: u32,
}

/// What the policy knows of a running sequence whose place somebody wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Holder {
    /// Its name; names are given in order of arrival.
    pub sequence: SequenceId,
    /// Its class.
    pub class: Priority,
    /// What its user has had.
    pub service: f64,
    /// Slots that its user has, divided by its weight.
    pub slots: f64,
    /// Tokens of state that it would have to compute again at worst.
    pub lost_tokens: usize,
    /// Whether its caller does not read, so that it stands still anyway.
    pub paused: bool,
    /// Whether it has only just got its place, after it had lost one.
    pub fresh: bool,
    /// Whether it is in its turn: it keeps its place.
    pub in_turn: bool,
}

/// What the policy knows of a prompt that has a slot and is not computed yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begun {
    /// Its class.
    pub class: Priority,
    /// What its user has had.
    pub service: f64,
    /// Tokens that are in no step yet.
    pub tokens: usize,
}

/// From which service on a request of each class need not start yet: prompts that go
/// before its own (those of a higher class, and in its class those of users who have had no
/// more) have `tokens` left, enough to fill the next steps. A prompt that only waits is
/// better off in the queue, where another may still go first, its place may be that of one
/// that decodes, and its prefix may come to be in the cache.
///
/// Where a class has such a bound, no lower class is needed at all: nothing starts in a
/// place that a waiting request of a higher class could use.
#[must_use]
pub fn served_in_time(begun: &mut [Begun], tokens: usize) -> [f64; Priority::COUNT] {
    begun.sort_by(|a, b| b.class.cmp(&a.class).then(a.service.total_cmp(&b.service)));
    let mut left = tokens;
    let mut from = [f64::INFINITY; Priority::COUNT];
    for prompt in begun.iter().filter(|prompt| prompt.tokens > 0) {
        left = left.saturating_sub(prompt.tokens);
        if left == 0 {
            let class = prompt.class as usize;
            from[class] = prompt.service;
            from[..class].fill(f64::NEG_INFINITY);
            break;
        }
    }
    from
}

/// Who needs a place that somebody has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needy {
    /// A running sequence of this class, to go on.
    Running(Priority),
    /// A sequence that is to start.
    Newcomer {
        /// Its class.
        class: Priority,
        /// What its user has had.
        service: f64,
        /// Slots that its user would have with it, divided by its weight.
        slots: f64,
    },
}

/// Where a request may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Slots that are free.
    pub slots: usize,
    /// Whether a request of each class may take one of them. Memory that is wanted by
    /// others may be in its way.
    pub open: [bool; Priority::COUNT],
}

/// What starts next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// An index.
    pub index: usize,
    /// Whether it starts in the turn of its class, or goes on with one.
    pub is_turn: bool,
}

/// What starts next, of all that wait and whose callers read.
///
/// * A sequence that has lost its slot in its turn goes on with it.
/// * Where there is a place for it, the class whose turn it is has it, whether anything
///   waits above it or not.
/// * Else the highest class that is ready and needed has it, in a free place or in that of
///   another. Each request that waits in a class above keeps one of the free places.
#[must_use]
pub fn next(
    waiting: &[Waiting],
    locality_service: f64,
    turns: &Turns,
    places: Places,
) -> Option<Next> {
    let is_open = |one: &&Waiting| one.ready && places.open[one.class as usize];
    let all = waiting.iter().enumerate();
    let going_on = all.filter(|(_, one)| one.in_turn && is_open(one));
    if let Some((index, _)) = going_on.min_by_key(|(_, one)| one.sequence) {
        return Some(Next {
            index,
            is_turn: true,
        });
    }
    let mut is_aged = [false; Priority::COUNT];
    for one in waiting {
        is_aged[one.class as usize] |= one.aged;
    }
    let open = waiting.iter().filter(is_open).map(|one| one.class);
    if let Some(class) = turns.next(open.filter(|class| is_aged[*class as usize])) {
        let may_start = |one: &Waiting| one.class == class && one.ready;
        let first = |one: &Waiting| may_start(one) && !one.turned_away;
        let index = least_served(waiting, locality_service, first)
            .or_else(|| least_served(waiting, locality_service, may_start))?;
        return Some(Next {
            index,
            is_turn: true,
        });
    }
    let may_start = |one: &Waiting| one.ready && one.needed;
    let ready = waiting.iter().filter(|one| may_start(one));
    let class = ready.map(|one| one.class).max()?;
    let above = waiting.iter().filter(|one| one.class > class).count();
    if above > 0 && above >= places.slots {
        return None;
    }
    let index = least_served(waiting, locality_service, |one| {
        one.class == class && may_start(one)
    })?;
    Some(Next {
        index,
        is_turn: false,
    })
}

/// The first of a class, by service and what is in the cache; an index.
fn least_served(
    waiting: &[Waiting],
    locality_service: f64,
    is_candidate: impl Fn(&Waiting) -> bool,
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
            let resident = |one: &Waiting| one.resident_tokens / RESIDENT_TOKENS;
            let by_prefix = resident(b).cmp(&resident(a));
            by_prefix
                .then(a.service.total_cmp(&b.service))
                .then(a.sequence.cmp(&b.sequence))
        })
    })?;
    Some(index)
}

/// Whom `chosen` has overtaken only for having more of its prompt in the cache.
pub fn overtaken(
    waiting: &[Waiting],
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
            && one.class == winner.class
            && one.service <= winner.service + locality_service
            && first.is_lt()
    })
    .map(|(index, _)| index)
}

/// Whose place is taken: the cheapest of those in no higher class; for a newcomer, of
/// those in a lower class, those whose callers do not read, and those whose users have
/// both had more than its own, by more than `locality_service`, and have more slots; an
/// index. Who stands still goes first, then the lowest class, then whose user has had
/// most, then who loses least, then the last to come. Who has just got its place back
/// keeps it, if anybody else can go. A sequence in its turn keeps its place in any case.
#[must_use]
pub fn victim(holders: &[Holder], needy: &Needy, locality_service: f64) -> Option<usize> {
    let may_go = |holder: &Holder| match *needy {
        Needy::Running(class) => holder.class <= class,
        Needy::Newcomer {
            class,
            service,
            slots,
        } => {
            let is_over = holder.service > service + locality_service && holder.slots > slots;
            holder.class < class || holder.paused || holder.class == class && is_over
        }
    };
    let candidates = holders.iter().enumerate();
    let candidates = candidates.filter(|(_, holder)| !holder.in_turn && may_go(holder));
    let cheapest = candidates.min_by(|(_, a), (_, b)| {
        let by_need = a.fresh.cmp(&b.fresh).then(b.paused.cmp(&a.paused));
        by_need
            .then(a.class.cmp(&b.class))
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
