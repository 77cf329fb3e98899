//! What each user has had.
//!
//! The virtual token counter of Sheng et al. (OSDI'24): each user's service is counted,
//! prompt tokens and output tokens priced apart, divided by its weight; who has had
//! least goes first. A user who comes back is lifted to the least of those who are
//! there, so that nobody saves up service by staying away.

use std::collections::BTreeMap;

use crate::UserId;

/// Users who are away and still remembered, since they have had more than others.
const AWAY_MAX: usize = 1024;

/// The counters of all users.
#[derive(Clone, Debug, Default)]
pub struct Service {
    users: BTreeMap<UserId, User>,
    /// The largest least counter so far: nobody who comes back has less.
    floor: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct User {
    counter: f64,
    /// Sequences inside.
    inside: usize,
}

impl Service {
    /// A sequence of this user comes in.
    pub fn enter(&mut self, user: UserId) {
        let present = self.users.values().filter(|user| user.inside > 0);
        let least = present.map(|user| user.counter).min_by(f64::total_cmp);
        self.floor = least.unwrap_or(self.floor).max(self.floor);
        let floor = least.unwrap_or(self.floor);
        let user = self.users.entry(user).or_default();
        if user.inside == 0 {
            user.counter = user.counter.max(floor);
        }
        user.inside += 1;
    }

    /// A sequence of this user is over.
    pub fn leave(&mut self, user: UserId) {
        if let Some(user) = self.users.get_mut(&user) {
            user.inside -= 1;
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
        self.users
            .get(&user)
            .map_or(self.floor, |user| user.counter)
    }

    /// Forgets those who are away, but for a few who have had most: of the others,
    /// those below the floor would be lifted anyway.
    fn forget(&mut self) {
        let mut away: Vec<(UserId, f64)> = self
            .users
            .iter()
            .filter(|(_, user)| user.inside == 0)
            .map(|(name, user)| (*name, user.counter))
            .collect();
        away.sort_by(|a, b| b.1.total_cmp(&a.1));
        let kept = away
            .iter()
            .take(AWAY_MAX / 2)
            .filter(|(_, counter)| *counter > self.floor);
        for (name, _) in away.iter().skip(kept.count()) {
            self.users.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLITE: UserId = UserId(1);
    const GREEDY: UserId = UserId(2);

    #[test]
    fn who_comes_back_is_lifted_to_those_who_are_there() {
        let mut service = Service::default();
        service.enter(GREEDY);
        service.charge(GREEDY, 100.0, 1.0);
        service.enter(POLITE);
        assert_eq!(service.of(POLITE), 100.0);
        service.charge(POLITE, 10.0, 2.0);
        assert_eq!(service.of(POLITE), 105.0);
        service.leave(POLITE);
        service.charge(GREEDY, 3.0, 1.0);
        // It has had more than the least, and keeps it.
        service.enter(POLITE);
        assert_eq!((service.of(POLITE), service.of(GREEDY)), (105.0, 103.0));
    }

    #[test]
    fn users_who_are_away_are_forgotten() {
        let mut service = Service::default();
        for user in 0..10_000 {
            service.enter(UserId(user));
            service.charge(UserId(user), 1.0, 1.0);
            service.leave(UserId(user));
        }
        assert!(
            service.users.len() <= AWAY_MAX + 1,
            "{}",
            service.users.len()
        );
    }
}
