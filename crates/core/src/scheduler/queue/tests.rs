use super::super::turns::AGED_TURN;
use super::*;

fn waiting(sequence: u64, service: f64, resident_tokens: usize) -> Waiting {
    Waiting {
        sequence: SequenceId(sequence),
        class: Priority::Normal,
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

fn check(all: &[Waiting], expected: u64) {
    let next = next(all, 10.0, &Turns::new(4), FREE).expect("one waits");
    assert_eq!(all[next.index].sequence, SequenceId(expected));
    assert!(!next.is_turn);
}

const FREE: Places = Places {
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
fn nothing_starts_only_to_wait_behind_the_prompts_of_others() {
    let begun = |class, service, tokens| Begun {
        class,
        service,
        tokens,
    };
    let normal = |service, tokens| begun(Priority::Normal, service, tokens);
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
    // Prompts of a higher class go before all of a lower one, whatever their users have had.
    let mut mixed = [normal(1.0, 30), begun(Priority::Urgent, 9.0, 40)];
    assert_eq!(served_in_time(&mut mixed, 40), [none, none, 9.0]);
    assert_eq!(served_in_time(&mut mixed, 41), [none, 1.0, all]);
    assert_eq!(served_in_time(&mut mixed, 71), [all; 3]);
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

fn urgent(sequence: u64) -> Waiting {
    Waiting {
        class: Priority::Urgent,
        ..waiting(sequence, 99.0, 0)
    }
}

/// The number of what is next, and whether that is a turn, after so many starts of others.
fn after(all: &[Waiting], starts: u32, places: Places) -> Option<(u64, bool)> {
    let mut turns = Turns::new(4);
    (0..starts).for_each(|_| turns.start(Priority::Urgent));
    let next = next(all, 0.0, &turns, places)?;
    Some((all[next.index].sequence.0, next.is_turn))
}

#[test]
fn classes_are_strict_but_for_turns_of_the_aged() {
    let aged = Waiting {
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
    // A turn takes no place from another: where there is none, the highest class asks.
    let full = Places {
        slots: 0,
        open: [false; Priority::COUNT],
    };
    assert_eq!(after(&all, 99, full), Some((9, false)));
    // A start that is due is a turn also where nothing higher waits just then, and where
    // higher prompts that have slots fill the next steps.
    assert_eq!(after(&all[..1], 99, FREE), Some((2, true)));
    assert_eq!(after(&all[..1], 0, FREE), None, "its prompt is not needed");
    let needed = Waiting {
        needed: true,
        ..aged
    };
    assert_eq!(after(&[needed], 99, FREE), Some((2, true)));
    assert_eq!(after(&[needed], 0, FREE), Some((2, false)));
}

#[test]
fn the_oldest_of_one_class_does_not_take_the_turns_of_another() {
    let aged = |class, sequence| Waiting {
        class,
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
        let next = next(&all, 0.0, &turns, FREE).expect("all wait");
        let class = all[next.index].class;
        started[class as usize] += 1;
        if next.is_turn {
            turns.begin(class);
            turns.end(class);
        } else {
            turns.start(class);
        }
    }
    assert_eq!(started, [10, 10, 67]);
}

#[test]
fn a_user_whose_turn_was_given_up_comes_after_the_others_of_the_class() {
    let aged = |sequence, service| Waiting {
        aged: true,
        ..waiting(sequence, service, 0)
    };
    let large = Waiting {
        turned_away: true,
        ..aged(1, 0.0)
    };
    assert_eq!(
        after(&[large, aged(2, 50.0), urgent(9)], 99, FREE),
        Some((2, true))
    );
    // Where there is no other, it has the turn; and out of turns nothing changes.
    assert_eq!(after(&[large, urgent(9)], 99, FREE), Some((1, true)));
    assert_eq!(after(&[large, aged(2, 50.0)], 0, FREE), Some((1, false)));
}

#[test]
fn one_that_lost_its_slot_in_its_turn_goes_on_first() {
    let in_turn = Waiting {
        in_turn: true,
        needed: false,
        ..waiting(7, 50.0, 0)
    };
    let all = [waiting(1, 0.0, 0), in_turn, urgent(9)];
    assert_eq!(after(&all, 0, FREE), Some((7, true)));
    let not_ready = Waiting {
        ready: false,
        ..in_turn
    };
    let all = [waiting(1, 0.0, 0), not_ready, urgent(9)];
    assert_eq!(after(&all, 0, FREE), Some((9, false)));
}

#[test]
fn a_lower_class_leaves_a_place_to_each_higher_one_that_waits() {
    let soon = Waiting {
        ready: false,
        ..urgent(9)
    };
    let all = [waiting(1, 0.0, 0), soon];
    let places = |slots| Places { slots, ..FREE };
    assert_eq!(after(&all, 0, places(1)), None);
    assert_eq!(after(&all, 0, places(2)), Some((1, false)));
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
        in_turn: false,
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
    let mut in_turn = fresh;
    in_turn[1].in_turn = true;
    check(&in_turn, Some(1));
    check(&in_turn[1..2], None);
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
