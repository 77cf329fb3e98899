//! The service that each user has received.
//!
//! This is the virtual token counter of Sheng et al. (OSDI'24). A user's service is the sum of
//! its prompt tokens and output tokens, priced apart and divided by its weight. The user with
//! the least service goes first.
//!
//! A returning user is lifted to nearly the least service of its competitors: users with
//! sequences in its class whose callers read. Without competitors it is lifted to the service
//! of the last one. No user therefore saves up much service by staying away. It may catch up a
//! shortfall at once, up to a credit, as a thread that has slept may under a fair scheduler of
//! threads. A user with few requests is thus served as if it were alone.

use std::collections::BTreeMap;

use motet_protocol::Priority;
use motet_protocol::UserId;

/// Number of remembered users above which absent ones are forgotten. Half as many absent users
/// are kept, those with the most service.
const AWAY_MAX: usize = 1024;

/// The counters of all users.
#[derive(Clone, Debug)]
pub struct Service {
    users: BTreeMap<UserId, User>,
    /// Units of service that a returning user may catch up.
    credit: f64,
    /// Least service of competing users, by class, as of the last time that a user entered or
    /// the last one left. It only rises, so that credits do not add up.
    floors: [f64; Priority::COUNT],
}

#[derive(Clone, Copy, Debug, Default)]
struct User {
    counter: f64,
    /// Sequences that compete, by class.
    ready: [usize; Priority::COUNT],
}

impl Service {
    /// Creates counters without users. A returning user may catch up `credit` units.
    #[must_use]
    pub fn new(credit: f64) -> Self {
        Self {
            users: BTreeMap::new(),
            credit,
            floors: [0.0; Priority::COUNT],
        }
    }

    /// Adds a sequence of this user to those that compete.
    pub fn enter(&mut self, user: UserId, priority: Priority) {
        let priority = priority as usize;
        let least = self.least(priority).unwrap_or(0.0);
        self.floors[priority] = self.floors[priority].max(least);
        let user = self.users.entry(user).or_default();
        if user.ready[priority] == 0 {
            user.counter = user.counter.max(self.floors[priority] - self.credit);
        }
        user.ready[priority] += 1;
    }

    /// Removes a sequence of this user from those that compete: it is finished, or its caller
    /// does not read.
    pub fn leave(&mut self, user: UserId, priority: Priority) {
        let priority = priority as usize;
        let leaving = self.users.get_mut(&user).expect("the user has entered");
        leaving.ready[priority] -= 1;
        let counter = leaving.counter;
        if self.least(priority).is_none() {
            self.floors[priority] = self.floors[priority].max(counter);
        }
        if self.users.len() > AWAY_MAX {
            self.forget();
        }
    }

    /// Charges `units` of service to a user whose share has this weight.
    pub fn charge(&mut self, user: UserId, units: f64, weight: f64) {
        if let Some(user) = self.users.get_mut(&user) {
            user.counter += units / weight;
        }
    }

    /// Returns the service that the user has received.
    #[must_use]
    pub fn of(&self, user: UserId) -> f64 {
        self.users.get(&user).map_or(0.0, |user| user.counter)
    }

    /// Returns the least service of the users that compete in this class.
    fn least(&self, priority: usize) -> Option<f64> {
        let present = self.users.values().filter(|user| user.ready[priority] > 0);
        present.map(|user| user.counter).min_by(f64::total_cmp)
    }

    /// Forgets absent users, except those with the most service. A forgotten user below every
    /// floor would be lifted anyway.
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

    /// Counters without a credit.
    fn strict() -> Service {
        Service::new(0.0)
    }

    #[test]
    fn returning_user_is_lifted_to_the_least_active_user() {
        let mut service = strict();
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
        service.charge(POLITE, 10.0, 2.0);
        assert_eq!(service.of(POLITE), 105.0);
        service.leave(POLITE, CLASS);
        service.charge(GREEDY, 3.0, 1.0);
        // It has received more than the least, and keeps its counter.
        service.enter(POLITE, CLASS);
        assert_eq!((service.of(POLITE), service.of(GREEDY)), (105.0, 103.0));
    }

    #[test]
    fn user_of_an_idle_engine_is_lifted_to_the_last_active_user() {
        let mut service = strict();
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.leave(GREEDY, CLASS);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
    }

    #[test]
    fn returning_user_catches_up_at_most_one_credit() {
        let mut service = Service::new(10.0);
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        let new_users = (3..99).map(UserId);
        for user in new_users {
            service.enter(user, CLASS);
            assert_eq!(service.of(user), 90.0);
        }
        // A user that has received more keeps its counter.
        service.enter(POLITE, CLASS);
        service.charge(POLITE, 8.0, 1.0);
        service.leave(POLITE, CLASS);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 98.0);
    }

    #[test]
    fn user_of_another_class_does_not_lower_the_minimum() {
        let mut service = strict();
        let starved = UserId(3);
        service.enter(starved, Priority::Background);
        service.enter(GREEDY, CLASS);
        service.charge(GREEDY, 100.0, 1.0);
        service.enter(POLITE, CLASS);
        assert_eq!(service.of(POLITE), 100.0);
    }

    #[test]
    fn inactive_users_are_forgotten() {
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
