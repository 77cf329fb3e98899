//! Turns of lower classes, so that none starves while a higher one saturates the engine.
//!
//! A class has a turn when one of its requests has waited for `ageing`. Each class has turns of
//! its own, which are bounded in three ways: by starts, by slots and by steps. A sequence that
//! starts in a turn keeps its slot until it has generated [`TURN_TOKENS`] tokens, whatever
//! waits in a higher class. Each turn thus brings its sequence nearer to its end, even if none
//! of its state stays in the cache.

use motet_protocol::Priority;

/// Inverse of the share of turns. A class starts at most one of this many sequences in its
/// turn. Its sequences in turns get at most one slot and one step of this many.
pub const AGED_TURN: u32 = 8;

/// Tokens that a sequence generates before it can lose the slot that it got in a turn. No slot
/// is granted less than this beyond its history, so none of these sequences waits for memory.
pub const TURN_TOKENS: usize = 16;

/// Steps for which a sequence in its turn may wait for memory. No other sequence starts
/// meanwhile, and the outputs of others may last for thousands of steps. It then gives its turn
/// up.
pub const TURN_WAIT_STEPS_MAX: usize = 64;

/// The turns that each class has had, and may have.
#[derive(Clone, Debug)]
pub struct Turns {
    sequences_max: usize,
    /// Starts of other classes since this class had a turn.
    starts_since: [u32; Priority::COUNT],
    /// Number of sequences in turns.
    held: [usize; Priority::COUNT],
    /// Slots times steps that turns have taken beyond the class's share so far, times
    /// [`AGED_TURN`].
    owed: [usize; Priority::COUNT],
}

impl Turns {
    /// Creates the turns of an engine with this many slots. No class has had one.
    #[must_use]
    pub fn new(sequences_max: usize) -> Self {
        Self {
            sequences_max,
            starts_since: [0; Priority::COUNT],
            held: [0; Priority::COUNT],
            owed: [0; Priority::COUNT],
        }
    }

    /// Whether a class with an aged request has its turn now. The highest class has none: no
    /// other starts before it.
    #[must_use]
    pub fn is_due(&self, priority: Priority) -> bool {
        let share = |parts: usize| (self.sequences_max * parts / AGED_TURN as usize).max(1);
        let held: usize = self.held.iter().sum();
        let at = priority as usize;
        priority < Priority::Urgent
            && self.starts_since[at] + 1 >= AGED_TURN
            && self.owed[at] == 0
            && self.held[at] < share(1)
            && held < share(Priority::COUNT - 1)
    }

    /// Returns the class, among these, that has its turn: the one that has waited for the most
    /// starts of others.
    #[must_use]
    pub fn next(&self, aged: impl Iterator<Item = Priority>) -> Option<Priority> {
        let due = aged.filter(|priority| self.is_due(*priority));
        due.max_by_key(|priority| (self.starts_since[*priority as usize], *priority))
    }

    /// Returns the number of sequences in turns, by class.
    #[must_use]
    pub fn held(&self) -> [usize; Priority::COUNT] {
        self.held
    }

    /// Records a start of this class outside of its turns.
    pub fn start(&mut self, priority: Priority) {
        for (other, starts) in self.starts_since.iter_mut().enumerate() {
            *starts = starts.saturating_add(u32::from(other != priority as usize));
        }
    }

    /// Records a start of this class in its turn.
    pub fn begin(&mut self, priority: Priority) {
        self.start(priority);
        self.starts_since[priority as usize] = 0;
        self.held[priority as usize] += 1;
    }

    /// Undoes the record of a start, since the sequence found no memory.
    pub fn undo_start(&mut self, priority: Priority) {
        for (other, starts) in self.starts_since.iter_mut().enumerate() {
            *starts = starts.saturating_sub(u32::from(other != priority as usize));
        }
    }

    /// Records that a sequence of this class is no longer in its turn.
    pub fn end(&mut self, priority: Priority) {
        self.held[priority as usize] -= 1;
    }

    /// Charges a planned step for which a sequence of this class, in its turn, waits for
    /// memory. No other sequence starts meanwhile, so the class owes the step of every slot,
    /// not of one.
    pub fn wait_for_memory(&mut self, priority: Priority) {
        self.owed[priority as usize] += AGED_TURN as usize * (self.sequences_max - 1);
    }

    /// Charges a planned step.
    pub fn step(&mut self) {
        for (owed, held) in self.owed.iter_mut().zip(self.held) {
            *owed += AGED_TURN as usize * held;
            *owed = owed.saturating_sub(self.sequences_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use arbtest::arbitrary::Result;

    use super::*;
    use crate::random_cases::check_cases;

    const LOWER: [Priority; 2] = [Priority::Background, Priority::Normal];

    /// Returns the classes of this many starts in a row, while all classes wait and turns last
    /// no time.
    fn starts(turns: &mut Turns, many: usize) -> Vec<Priority> {
        let start = |_| match turns.next(LOWER.into_iter()) {
            Some(priority) => {
                turns.begin(priority);
                turns.end(priority);
                priority
            }
            None => {
                turns.start(Priority::Urgent);
                Priority::Urgent
            }
        };
        (0..many).map(start).collect()
    }

    #[test]
    fn each_lower_class_has_one_start_of_eight() {
        let mut turns = Turns::new(4);
        let starts = starts(&mut turns, 7 + 8 * 10);
        for priority in LOWER {
            let of = starts[7..].iter().filter(|start| **start == priority);
            assert_eq!(of.count(), 10, "{priority:?} in {starts:?}");
        }
        assert!(starts[..7].iter().all(|start| *start == Priority::Urgent));
    }

    #[test]
    fn undone_start_does_not_count() {
        let mut turns = Turns::new(4);
        for _ in 0..100 {
            turns.start(Priority::Urgent);
            turns.undo_start(Priority::Urgent);
        }
        assert_eq!(turns.next(LOWER.into_iter()), None);
    }

    /// A turn that lasts 10 steps in an engine with one slot is paid back in 70.
    #[test]
    fn a_long_turn_is_paid_back() {
        let mut turns = Turns::new(1);
        let priority = Priority::Background;
        (0..7).for_each(|_| turns.start(Priority::Urgent));
        turns.begin(priority);
        (0..10).for_each(|_| turns.step());
        turns.end(priority);
        let mut steps = 0;
        loop {
            turns.start(Priority::Urgent);
            if steps > 8 && turns.is_due(priority) {
                break;
            }
            turns.step();
            steps += 1;
        }
        assert_eq!(steps, 70);
    }

    /// A turn that waits 10 steps for memory is paid back in 70, however many slots there are:
    /// it delayed all of them.
    #[test]
    fn a_turn_that_waited_for_memory_is_paid_back_with_every_slot() {
        let mut turns = Turns::new(64);
        let priority = Priority::Normal;
        (0..7).for_each(|_| turns.start(Priority::Urgent));
        turns.begin(priority);
        for _ in 0..10 {
            turns.wait_for_memory(priority);
            turns.step();
        }
        turns.end(priority);
        (0..7).for_each(|_| turns.start(Priority::Urgent));
        let steps = (0..).take_while(|_| {
            let owes = !turns.is_due(priority);
            turns.step();
            owes
        });
        assert_eq!(steps.count(), 70);
    }

    const CASES: u64 = 512;
    /// More than the random bytes that a case takes.
    const BYTES: u64 = 64;

    /// Turns of any length, in an engine of any size: no class has more than its share of
    /// slots and steps, and each has a turn again within bounded starts and steps.
    #[test]
    fn turns_are_bounded_and_recur() {
        check_cases(CASES, BYTES, |random| {
            let sequences_max = random.int_in_range(1..=99)?;
            let count = random.int_in_range(1..=39)?;
            let lengths: Result<Vec<usize>> =
                (0..count).map(|_| random.int_in_range(1..=49)).collect();
            check_bounds(sequences_max, &lengths?);
            Ok(())
        });
    }

    fn check_bounds(sequences_max: usize, lengths: &[usize]) {
        let mut turns = Turns::new(sequences_max);
        let mut ends: Vec<(usize, Priority)> = Vec::new();
        let (mut taken, mut steps) = ([0; Priority::COUNT], 0);
        let mut last = [0; Priority::COUNT];
        let longest = lengths.iter().copied().max().unwrap_or(1);
        let mut lengths = lengths.iter().copied().cycle();
        while steps < 2_000 {
            // As many starts as there are slots, for each step.
            for _ in 0..sequences_max {
                match turns.next(LOWER.into_iter()) {
                    Some(priority) => {
                        turns.begin(priority);
                        last[priority as usize] = steps;
                        let length = lengths.next().expect("the lengths repeat");
                        ends.push((steps + length, priority));
                    }
                    None => turns.start(Priority::Urgent),
                }
            }
            turns.step();
            for priority in LOWER {
                let held = turns.held()[priority as usize];
                assert!(held <= (sequences_max / 8).max(1));
                taken[priority as usize] += held;
            }
            steps += 1;
            ends.retain(|(at, priority)| {
                let is_finished = *at <= steps;
                if is_finished {
                    turns.end(*priority);
                }
                !is_finished
            });
            for priority in LOWER {
                // Its own last turn is paid back, and the other class's has ended.
                let bound = (AGED_TURN as usize + 2) * longest + AGED_TURN as usize;
                let waited = steps - last[priority as usize];
                assert!(waited <= bound, "{priority:?} after {waited} steps");
                // One turn is in progress beyond what is paid for.
                let share = steps * sequences_max / AGED_TURN as usize + 1;
                let slack = longest * (sequences_max / 8).max(1);
                assert!(taken[priority as usize] <= share + slack);
            }
        }
    }
}
