use super::super::turns::AGED_TURN;
use super::*;

fn waiting(sequence: u64, service: f64, resident_tokens: usize) -> QueuedView {
    QueuedView {
        sequence: SequenceId(sequence),
        priority: Priority::Normal,
        aged: false,
        in_turn: false,
        ready: true,
        needed: true,
        turned_away: false,
        service,
        resident_tokens,
        overtaken: 0,
    }
}

fn check(all: &[QueuedView], expected: u64) {
    let next = next(all, 10.0, &Turns::new(4), FREE).expect("a sequence waits");
    assert_eq!(all[next.index].sequence, SequenceId(expected));
    assert!(!next.is_turn);
}

const FREE: StartLimits = StartLimits {
    slots: 4,
    open: [true; Priority::COUNT],
};

#[test]
fn least_service_first_then_arrival() {
    assert_eq!(next(&[], 10.0, &Turns::new(4), FREE), None);
    check(&[waiting(1, 0.0, 0), waiting(2, 0.0, 0)], 1);
    check(&[waiting(1, 5.0, 0), waiting(2, 0.0, 0)], 2);
}

#[test]
fn no_prompt_starts_only_to_wait_behind_others() {
    let admitted = |priority, service, tokens| AdmittedPrompt {
        priority,
        service,
        tokens,
    };
    let normal = |service, tokens| admitted(Priority::Normal, service, tokens);
    let mut prompts = [
        normal(7.0, 30),
        normal(3.0, 60),
        normal(5.0, 0),
        normal(4.0, 10),
    ];
    let (all, none) = (f64::INFINITY, f64::NEG_INFINITY);
    let mut from = |tokens| served_in_time(&mut prompts, tokens);
    assert_eq!(from(60), [none, 3.0, all]);
    assert_eq!(from(61), [none, 4.0, all]);
    assert_eq!(from(100), [none, 7.0, all]);
    assert_eq!(from(101), [all; 3]);
    // Prompts of a higher class go before all of a lower one, whatever service their users have
    // received.
    let mut mixed = [normal(1.0, 30), admitted(Priority::Urgent, 9.0, 40)];
    assert_eq!(served_in_time(&mut mixed, 40), [none, none, 9.0]);
    assert_eq!(served_in_time(&mut mixed, 41), [none, 1.0, all]);
    assert_eq!(served_in_time(&mut mixed, 71), [all; 3]);
}

#[test]
fn more_in_the_cache_goes_first_within_the_deficit() {
    check(&[waiting(1, 0.0, 0), waiting(2, 9.0, 100)], 2);
    check(&[waiting(1, 0.0, 0), waiting(2, 11.0, 100)], 1);
    let patient = QueuedView {
        overtaken: OVERTAKEN_MAX,
        ..waiting(1, 5.0, 0)
    };
    check(&[patient, waiting(2, 0.0, 100)], 1);
}

#[test]
fn overtaken_are_the_sequences_ahead_of_the_chosen_one() {
    let all = [waiting(1, 0.0, 0), waiting(2, 9.0, 100), waiting(3, 9.0, 0)];
    assert_eq!(overtaken(&all, 1, 10.0).collect::<Vec<_>>(), [0]);
}

fn urgent(sequence: u64) -> QueuedView {
    QueuedView {
        priority: Priority::Urgent,
        ..waiting(sequence, 99.0, 0)
    }
}

/// Returns the id of the next start, and whether it is a turn, after this many starts of
/// others.
fn after(all: &[QueuedView], starts: u32, start_limits: StartLimits) -> Option<(u64, bool)> {
    let mut turns = Turns::new(4);
    (0..starts).for_each(|_| turns.start(Priority::Urgent));
    let next = next(all, 0.0, &turns, start_limits)?;
    Some((all[next.index].sequence.0, next.is_turn))
}

#[test]
fn classes_are_strict_but_for_turns_of_the_aged() {
    let aged = QueuedView {
        aged: true,
        needed: false,
        ..waiting(2, 0.0, 0)
    };
    // Within the class service decides, not age.
    let all = [aged, waiting(3, -1.0, 0), urgent(9)];
    assert_eq!(after(&all, 0, FREE), Some((9, false)));
    assert_eq!(after(&all, AGED_TURN - 2, FREE), Some((9, false)));
    assert_eq!(after(&all, AGED_TURN - 1, FREE), Some((3, true)));
    let young = [waiting(1, 0.0, 0), urgent(9)];
    assert_eq!(after(&young, 99, FREE), Some((9, false)));
    // A turn preempts no sequence: without a free slot, the highest class asks for one.
    let full = StartLimits {
        slots: 0,
        open: [false; Priority::COUNT],
    };
    assert_eq!(after(&all, 99, full), Some((9, false)));
    // A start that is due is a turn even if no higher class waits just then, and even if
    // admitted prompts of a higher class fill the next steps.
    assert_eq!(after(&all[..1], 99, FREE), Some((2, true)));
    assert_eq!(after(&all[..1], 0, FREE), None, "its prompt is not needed");
    let needed = QueuedView {
        needed: true,
        ..aged
    };
    assert_eq!(after(&[needed], 99, FREE), Some((2, true)));
    assert_eq!(after(&[needed], 0, FREE), Some((2, false)));
}

#[test]
fn the_oldest_of_one_class_does_not_take_the_turns_of_another() {
    let aged = |priority, sequence| QueuedView {
        priority,
        aged: true,
        ..waiting(sequence, 0.0, 0)
    };
    let all = [
        aged(Priority::Background, 1),
        aged(Priority::Normal, 2),
        urgent(9),
    ];
    let mut turns = Turns::new(4);
    let mut started = [0; Priority::COUNT];
    for _ in 0..7 + 8 * 10 {
        let next = next(&all, 0.0, &turns, FREE).expect("all sequences wait");
        let priority = all[next.index].priority;
        started[priority as usize] += 1;
        if next.is_turn {
            turns.begin(priority);
            turns.end(priority);
        } else {
            turns.start(priority);
        }
    }
    assert_eq!(started, [10, 10, 67]);
}

#[test]
fn user_that_gave_up_its_turn_goes_last_in_its_class() {
    let aged = |sequence, service| QueuedView {
        aged: true,
        ..waiting(sequence, service, 0)
    };
    let large = QueuedView {
        turned_away: true,
        ..aged(1, 0.0)
    };
    assert_eq!(
        after(&[large, aged(2, 50.0), urgent(9)], 99, FREE),
        Some((2, true))
    );
    // Without another user it has the turn. Outside of turns nothing changes.
    assert_eq!(after(&[large, urgent(9)], 99, FREE), Some((1, true)));
    assert_eq!(after(&[large, aged(2, 50.0)], 0, FREE), Some((1, false)));
}

#[test]
fn sequence_that_lost_its_slot_in_its_turn_restarts_first() {
    let in_turn = QueuedView {
        in_turn: true,
        needed: false,
        ..waiting(7, 50.0, 0)
    };
    let all = [waiting(1, 0.0, 0), in_turn, urgent(9)];
    assert_eq!(after(&all, 0, FREE), Some((7, true)));
    let not_ready = QueuedView {
        ready: false,
        ..in_turn
    };
    let all = [waiting(1, 0.0, 0), not_ready, urgent(9)];
    assert_eq!(after(&all, 0, FREE), Some((9, false)));
}

#[test]
fn lower_class_leaves_a_slot_for_each_waiting_higher_one() {
    let soon = QueuedView {
        ready: false,
        ..urgent(9)
    };
    let all = [waiting(1, 0.0, 0), soon];
    let start_limits = |slots| StartLimits { slots, ..FREE };
    assert_eq!(after(&all, 0, start_limits(1)), None);
    assert_eq!(after(&all, 0, start_limits(2)), Some((1, false)));
}

fn running_view(sequence: u64, service: f64, lost_tokens: usize) -> RunningView {
    RunningView {
        sequence: SequenceId(sequence),
        priority: Priority::Normal,
        service,
        slots: 1.0,
        lost_tokens,
        paused: false,
        fresh: false,
        in_turn: false,
    }
}

#[test]
fn cheapest_running_sequence_is_preempted() {
    let check = |running_views: &[RunningView], expected: Option<u64>| {
        let found = victim(running_views, &PreemptFor::Running(Priority::Normal), 10.0);
        assert_eq!(found.map(|index| running_views[index].sequence.0), expected);
    };
    let base = [
        running_view(1, 0.0, 10),
        running_view(2, 0.0, 5),
        running_view(3, 0.0, 5),
    ];
    check(&[], None);
    check(&base, Some(3));
    let mut served = base;
    served[0].service = 7.0;
    check(&served, Some(1));
    let mut classes = served;
    classes[1].priority = Priority::Background;
    classes[2].priority = Priority::Urgent;
    check(&classes, Some(2));
    let mut paused = classes;
    paused[0].paused = true;
    check(&paused, Some(1));
    let mut fresh = paused;
    fresh[0].fresh = true;
    check(&fresh, Some(2));
    let mut in_turn = fresh;
    in_turn[1].in_turn = true;
    check(&in_turn, Some(1));
    check(&in_turn[1..2], None);
}

#[test]
fn queued_sequence_preempts_a_lower_class_or_a_heavier_user() {
    let queued = |priority| PreemptFor::Queued {
        priority,
        service: 0.0,
        slots: 1.0,
    };
    let find =
        |running_views: &[RunningView], priority| victim(running_views, &queued(priority), 10.0);
    let level = [
        running_view(1, 99.0, 10),
        running_view(2, 99.0, 5),
        running_view(3, 99.0, 5),
    ];
    assert_eq!(find(&level, Priority::Normal), None);
    assert_eq!(find(&level, Priority::Urgent), Some(2));
    let mut greedy = level;
    greedy[0].slots = 2.0;
    assert_eq!(find(&greedy, Priority::Normal), Some(0));
    greedy[0].service = 10.0;
    assert_eq!(find(&greedy, Priority::Normal), None);
    assert_eq!(find(&greedy, Priority::Background), None);
}
