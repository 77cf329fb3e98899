//! What each user has had.
//!
//! The virtual token counter of Sheng et al. (OSDI'24): each user's service is counted,
//! prompt tokens and output tokens priced apart, divided by its weight; who has had
//! least goes first. A user who comes back is lifted to nearly the least of those who
//! compete with it (in its class, and not waiting for their own readers), or to what the
//! last of them had, so that nobody saves up much service by staying away. Nearly: what
//! it has had less than they, up to a credit, it may catch up at once, as a thread that
//! has slept may under a fair scheduler of threads. A user who asks for little is so
//! served as if it were alone.

use std::collections::BTreeMap;

use crate::UserId;
use crate::protocol::Priority;

/// Users who are away and still remembered, since they have had more than others.
const AWAY_MAX: usize = 1024;

/// The counters of all users.
#[derive(Clone, Debug)]
pub struct Service {
    users: BTreeMap<UserId, User>,
    /// Units that somebody may catch up who comes back.
    credit: f64,
    /// What those who compete have had at least, by class, as far as somebody came or the
    /// last one went: it only rises, so that credits do not add up.
    floors: [f64; Priority::COUNT],
}

#[derive(Clone, Copy, Debug, Default)]
struct User {
    counter: f64,
    /// Sequences that compete, by class.
    ready: [usize; Priority::COUNT],
}

impl Service {
    /// Nobody has had anything. Who comes back may catch up `credit` units.
    #[must_use]
    pub fn new(credit: f64) -> Self {
        Self {
            users: BTreeMap::new(),
            credit,
            floors: [0.0; Priority::COUNT],
        }
    }

    /// A sequence of this user begins to compete with others.
    pub fn enter(&mut self, user: UserId, class: Priority) {
        let class = class as usize;
        let least = self.least(class).unwrap_or(0.0);
        self.floors[class] = self.floors[class].max(least);
        let user = self.users.entry(user).or_default();
        if user.ready[class] == 0 {
            user.counter = user.counter.max(self.floors[class] - self.credit);
        }
        user.ready[class] += 1;
    }

    /// A sequence of this user competes no more: it is over, or its caller does not
    /// read.
    pub fn leave(&mut self, user: UserId, class: Priority) {
        let class = class as usize;
        let leaving = self.users.get_mut(&user).expect("who leaves has entered");
        leaving.ready[class] -= 1;
        let counter = leaving.counter;
        if self.least(class).is_none() {
            self.floors[class] = self.floors[class].max(counter);
        }
        if self.users.len() > AWAY_MAX {
            self.forget();
        }
    }

    /// The user was given so many units of service; its share is worth `weight`.
    pub fn charge(&mut self, user: UserId, units: f64, weight: f64) {
        if let Some(user) = self.users.get_mut(&user) {
            user.counter += units / weight;
        }
    }

    /// What the user has had.
    #[must_use]
    pub fn of(&self, user: UserId) -> f64 {
        self.users.get(&user).map_or(0.0, |user| user.counter)
    }

    /// The least that anybody has had who competes in this class.
    fn least(&self, class: usize) -> Option<f64> {
        let present = self.users.values().filter(|user| user.ready[class] > 0);
        present.map(|user| user.counter).min_by(f64::total_cmp)
    }

    /// Forgets those who are away, but for a few who have had most: of the others,
    /// those below every floor would be lifted anyway.
    fn forget(&mut self) {
        let is_away = |user: &User| user.ready.iter().all(|ready| *ready == 0);
        let mut away: Vec<(UserId, f64)> = self
            .users
            .iter()
            .filter(|(_, user)| is_away(user))
            .map(|(name, user)| (*name, user.counter))
            .collect();
        away.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (name, _) in away.iter().skip(AWAY_MAX / 2) {
            self.users.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLITE: UserId = UserId(1);
    const GREEDY: UserId = UserId(2);
    const CLASS: Priority = Priority::Normal;

    /// Nobody may catch up anything.
    fn strict() -> Service {
        Service::new(0.0)
    }

    #[test]
    fn who_comes_back_is_lifted_to_those_who_are_there() {
        let mut service = strict();
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
        service.charge(POLITE, 10.0, 2.0);
        assert_eq!(service.of(POLITE), 105.0);
        service.leave(POLITE, CLASS);
        service.charge(GREEDY, 3.0, 1.0);
        // It has had more than the least, and keeps it.
        service.enter(POLITE, CLASS);
        assert_eq!((service.of(POLITE), service.of(GREEDY)), (105.0, 103.0));
    }

    #[test]
    fn who_comes_into_an_empty_house_is_lifted_to_the_last_who_left() {
        let mut service = strict();
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.leave(GREEDY, CLASS);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
    }

    #[test]
    fn who_comes_back_may_catch_up_a_credit_and_no_more() {
        let mut service = Service::new(10.0);
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        let newcomers = (3..99).map(UserId);
        for user in newcomers {
            service.enter(user, CLASS);
            assert_eq!(service.of(user), 90.0);
        }
        // Who has had more keeps what it has.
        service.enter(POLITE, CLASS);
        service.charge(POLITE, 8.0, 1.0);
        service.leave(POLITE, CLASS);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 98.0);
    }

    #[test]
    fn who_does_not_compete_holds_nobody_down() {
        let mut service = strict();
        let starved = UserId(3);
        service.enter(starved, Priority::Background);
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
    }

    #[test]
    fn users_who_are_away_are_forgotten() {
        let mut service = strict();
        for user in 0..10_000 {
            service.enter(UserId(user), CLASS);
            service.charge(UserId(user), 1.0, 1.0);
            service.leave(UserId(user), CLASS);
        }
        let users = service.users.len();
        assert!(users <= AWAY_MAX + 1, "{users}");
    }
}
