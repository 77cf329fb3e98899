//! Who starts next, as a pure function; and whose place is taken when one must give way.
//!
//! Classes are strict; only where somebody has waited long in a lower one, that has every
//! few starts. Within a class the user starts who has had least service; within a deficit
//! of that, whoever has most of its prompt in the cache (deficit longest prefix match: Cao
//! et al. 2025), so that prefixes are used while they are there. Nobody is overtaken for
//! that more than a few times.

use crate::SequenceId;
use crate::request::Priority;

/// Times that a sequence may be overtaken by one with more of its prompt in the cache.
pub const OVERTAKEN_MAX: u32 = 16;

/// Of so many starts in a row, one is for a class in which somebody has waited long.
pub const AGED_TURN: u32 = 8;

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

/// What users have had from whom on nobody need start yet, by class: prompts of those
/// who have had no more, and so go first, have `tokens` left, enough to fill the next
/// steps. A prompt that only waits is better off in the queue, where somebody else may
/// still go first, its place may be somebody's who decodes, and its prefix may come to
/// be in the cache.
#[must_use]
pub fn served_in_time(begun: &mut [Begun], tokens: usize) -> [f64; Priority::COUNT] {
    begun.sort_by(|a, b| a.service.total_cmp(&b.service));
    let mut left = [tokens; Priority::COUNT];
    let mut from = [f64::INFINITY; Priority::COUNT];
    for prompt in begun.iter().filter(|prompt| prompt.tokens > 0) {
        let class = prompt.class as usize;
        if left[class] > 0 {
            left[class] = left[class].saturating_sub(prompt.tokens);
            if left[class] == 0 {
                from[class] = prompt.service;
            }
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

/// Who starts next; an index. `since_aged` starts have been since a class had a turn only
/// because somebody has waited long in it.
#[must_use]
pub fn next(waiting: &[Waiting], locality_service: f64, since_aged: u32) -> Option<usize> {
    let highest = waiting.iter().map(|one| one.class).max()?;
    let aged = waiting.iter().filter(|one| one.aged && one.class < highest);
    let class = match aged.min_by_key(|one| one.sequence) {
        Some(oldest) if since_aged + 1 >= AGED_TURN => oldest.class,
        _ => highest,
    };
    let in_class = || {
        let all = waiting.iter().enumerate();
        all.filter(move |(_, one)| one.class == class)
    };
    let least = in_class()
        .map(|(_, one)| one.service)
        .min_by(f64::total_cmp)?;
    let eligible = || in_class().filter(|(_, one)| one.service <= least + locality_service);
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
/// keeps it, if anybody else can go.
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
    let candidates = candidates.filter(|(_, holder)| may_go(holder));
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
mod tests {
    use super::*;

    fn waiting(sequence: u64, service: f64, resident_tokens: usize) -> Waiting {
        Waiting {
            sequence: SequenceId(sequence),
            class: Priority::Normal,
            aged: false,
            service,
            resident_tokens,
            overtaken: 0,
        }
    }

    fn check(all: &[Waiting], expected: u64) {
        let next = next(all, 10.0, 0).expect("somebody waits");
        assert_eq!(all[next].sequence, SequenceId(expected));
    }

    #[test]
    fn least_service_first_then_arrival() {
        assert_eq!(next(&[], 10.0, 0), None);
        check(&[waiting(1, 0.0, 0), waiting(2, 0.0, 0)], 1);
        check(&[waiting(1, 5.0, 0), waiting(2, 0.0, 0)], 2);
    }

    #[test]
    fn nobody_starts_only_to_wait_behind_the_prompts_of_others() {
        let begun = |service, tokens| Begun {
            class: Priority::Normal,
            service,
            tokens,
        };
        let mut prompts = [
            begun(7.0, 30),
            begun(3.0, 60),
            begun(5.0, 0),
            begun(4.0, 10),
        ];
        let normal = Priority::Normal as usize;
        let mut from = |tokens| served_in_time(&mut prompts, tokens)[normal];
        assert_eq!(from(60), 3.0);
        assert_eq!(from(61), 4.0);
        assert_eq!(from(100), 7.0);
        assert_eq!(from(101), f64::INFINITY);
        let others = served_in_time(&mut prompts, 1)[Priority::Urgent as usize];
        assert_eq!(others, f64::INFINITY);
    }

    #[test]
    fn more_in_the_cache_goes_first_within_the_deficit() {
        check(&[waiting(1, 0.0, 0), waiting(2, 9.0, 100)], 2);
        check(&[waiting(1, 0.0, 0), waiting(2, 11.0, 100)], 1);
        let patient = Waiting {
            overtaken: OVERTAKEN_MAX,
            ..waiting(1, 5.0, 0)
        };
        check(&[patient, waiting(2, 0.0, 100)], 1);
    }

    #[test]
    fn the_overtaken_are_those_who_would_have_gone_first() {
        let all = [waiting(1, 0.0, 0), waiting(2, 9.0, 100), waiting(3, 9.0, 0)];
        assert_eq!(overtaken(&all, 1, 10.0).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn classes_are_strict_but_for_turns_of_the_aged() {
        let urgent = Waiting {
            class: Priority::Urgent,
            ..waiting(9, 99.0, 0)
        };
        let aged = Waiting {
            aged: true,
            ..waiting(2, 0.0, 0)
        };
        // Within the class, service decides, not age.
        let all = [aged, waiting(3, -1.0, 0), urgent];
        let after = |starts| next(&all, 0.0, starts).map(|index| all[index].sequence.0);
        assert_eq!(after(0), Some(9));
        assert_eq!(after(AGED_TURN - 2), Some(9));
        assert_eq!(after(AGED_TURN - 1), Some(3));
        assert_eq!(next(&[waiting(1, 0.0, 0), urgent], 0.0, 99), Some(1));
    }

    fn holder(sequence: u64, service: f64, lost_tokens: usize) -> Holder {
        Holder {
            sequence: SequenceId(sequence),
            class: Priority::Normal,
            service,
            slots: 1.0,
            lost_tokens,
            paused: false,
            fresh: false,
        }
    }

    #[test]
    fn the_cheapest_gives_way() {
        let check = |holders: &[Holder], expected: Option<u64>| {
            let found = victim(holders, &Needy::Running(Priority::Normal), 10.0);
            assert_eq!(found.map(|index| holders[index].sequence.0), expected);
        };
        let base = [holder(1, 0.0, 10), holder(2, 0.0, 5), holder(3, 0.0, 5)];
        check(&[], None);
        check(&base, Some(3));
        let mut over = base;
        over[0].service = 7.0;
        check(&over, Some(1));
        let mut classes = over;
        classes[1].class = Priority::Background;
        classes[2].class = Priority::Urgent;
        check(&classes, Some(2));
        let mut paused = classes;
        paused[0].paused = true;
        check(&paused, Some(1));
        let mut fresh = paused;
        fresh[0].fresh = true;
        check(&fresh, Some(2));
    }

    #[test]
    fn a_newcomer_takes_the_place_of_a_lower_class_or_of_who_has_had_and_has_more() {
        let newcomer = |class| Needy::Newcomer {
            class,
            service: 0.0,
            slots: 1.0,
        };
        let find = |holders: &[Holder], class| victim(holders, &newcomer(class), 10.0);
        let level = [holder(1, 99.0, 10), holder(2, 99.0, 5), holder(3, 99.0, 5)];
        assert_eq!(find(&level, Priority::Normal), None);
        assert_eq!(find(&level, Priority::Urgent), Some(2));
        let mut greedy = level;
        greedy[0].slots = 2.0;
        assert_eq!(find(&greedy, Priority::Normal), Some(0));
        greedy[0].service = 10.0;
        assert_eq!(find(&greedy, Priority::Normal), None);
        assert_eq!(find(&greedy, Priority::Background), None);
    }
}
