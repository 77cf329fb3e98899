//! The scheduler's core and the cache's, wired together.
//!
//! Messages between them wait in two queues. A driver delivers them one at a time, in the order
//! that it chooses (a seed, the explorer), or lets each event [run](CoreHarness::run) to its end at
//! once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use motet_core::cache::{self, CacheCore, CacheError};
use motet_core::pager;
use motet_core::scheduler::{Effect, Event, SchedulerCore};

/// A message from the cache to the scheduler.
#[derive(Debug)]
pub enum Answer {
    /// The answer to a message.
    Asked(Result<Vec<cache::Effect>, CacheError>),
    /// Effects that no message asked for.
    Unasked(Vec<cache::Effect>),
}

/// The surroundings of the two cores: the device and the callers.
pub trait CorePeer {
    /// The scheduler wants something of the device or of a caller. The returned event follows
    /// from it, and is next but for those that wait already.
    fn on_effect(&mut self, effect: Effect, now: &mut Duration) -> Option<Event>;

    /// A message is on its way to the cache.
    fn on_message(&mut self, message: cache::Message) -> cache::Message {
        message
    }

    /// The cache has answered.
    fn on_answer(&mut self, answer: &Result<Vec<cache::Effect>, CacheError>) {
        let _ = answer;
    }
}

/// The two cores, the messages between them, and the time that is passed to them.
#[derive(Debug)]
pub struct CoreHarness {
    scheduler: SchedulerCore,
    cache: CacheCore,
    now: Duration,
    messages: VecDeque<cache::Message>,
    answers: VecDeque<Answer>,
    /// Whether both cores are checked after each event and message.
    is_checked: bool,
    /// Time that the cores took while events ran.
    scheduler_time: Duration,
    cache_time: Duration,
}

impl CoreHarness {
    /// Two cores without messages.
    #[must_use]
    pub fn new(scheduler: SchedulerCore, cache: CacheCore) -> Self {
        Self {
            scheduler,
            cache,
            now: Duration::ZERO,
            messages: VecDeque::new(),
            answers: VecDeque::new(),
            is_checked: true,
            scheduler_time: Duration::ZERO,
            cache_time: Duration::ZERO,
        }
    }

    /// The same without checks, for measurements.
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.is_checked = false;
        self
    }

    /// Another cache in the place of this one.
    #[must_use]
    pub fn with_cache(mut self, replaced: impl FnOnce(CacheCore) -> CacheCore) -> Self {
        self.cache = replaced(self.cache);
        self
    }

    /// The scheduler's core.
    #[must_use]
    pub fn scheduler(&self) -> &SchedulerCore {
        &self.scheduler
    }

    /// Another scheduler takes the place of this one.
    pub fn replace_scheduler(&mut self, scheduler: SchedulerCore) {
        self.scheduler = scheduler;
    }

    /// The cache's core.
    #[must_use]
    pub fn cache(&self) -> &CacheCore {
        &self.cache
    }

    /// The time that is passed to the cores.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Time passes until a moment, unless that is over.
    pub fn pass_until(&mut self, moment: Duration) {
        self.now = self.now.max(moment);
    }

    /// The time that the scheduler and the cache took while events ran.
    #[must_use]
    pub fn times(&self) -> [Duration; 2] {
        [self.scheduler_time, self.cache_time]
    }

    /// Messages on their way to the cache, oldest first.
    #[must_use]
    pub fn messages(&self) -> &VecDeque<cache::Message> {
        &self.messages
    }

    /// Messages on their way to the scheduler, oldest first.
    #[must_use]
    pub fn answers(&self) -> &VecDeque<Answer> {
        &self.answers
    }

    /// Messages to which the scheduler has no answer yet.
    #[must_use]
    pub fn pending_answers(&self) -> usize {
        let is_asked = |answer: &&Answer| matches!(answer, Answer::Asked(_));
        self.messages.len() + self.answers.iter().filter(is_asked).count()
    }

    /// Takes the oldest message to the cache.
    pub fn take_message(&mut self) -> Option<cache::Message> {
        self.messages.pop_front()
    }

    /// Takes the oldest message to the scheduler.
    pub fn take_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Puts a message on its way to the scheduler.
    pub fn answer(&mut self, answer: Answer) {
        self.answers.push_back(answer);
    }

    /// The cache handles a message.
    ///
    /// # Errors
    ///
    /// The cache's error.
    pub fn send_to_cache(
        &mut self,
        message: cache::Message,
    ) -> Result<Vec<cache::Effect>, CacheError> {
        let answer = self.cache.handle(self.now, message);
        if self.is_checked {
            self.cache.check_integrity();
        }
        answer
    }

    /// Starts to follow blocks. Returns those that are there.
    pub fn follow_blocks(&mut self) -> Vec<cache::BlockEvent> {
        self.cache.follow_blocks()
    }

    /// Changes of followed blocks since the last call.
    pub fn take_block_events(&mut self) -> Vec<cache::BlockEvent> {
        self.cache.take_block_events()
    }

    /// Messages of the cache to the pager.
    pub fn take_outbox(&mut self) -> Vec<pager::Message> {
        self.cache.take_outbox()
    }

    /// The scheduler handles an event. Its messages to the cache are put on their way; all
    /// other effects are returned.
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.scheduler.handle(self.now, event);
        if self.is_checked {
            self.scheduler.check_integrity();
        }
        let mut others = Vec::with_capacity(effects.len());
        for effect in effects {
            match effect {
                Effect::Cache(message) => self.messages.push_back(message),
                other => others.push(other),
            }
        }
        others
    }

    /// The scheduler handles an event and fails: its effects are lost.
    pub fn lose_effects(&mut self, event: Event) {
        drop(self.scheduler.handle(self.now, event));
    }

    /// The scheduler handles an event, and the cache all messages that follow from it, until
    /// the cores wait for their peer.
    ///
    /// # Panics
    ///
    /// If a message is on its way: this event's would overtake it.
    pub fn run(&mut self, event: Event, peer: &mut impl CorePeer) {
        assert!(
            self.messages.is_empty() && self.answers.is_empty(),
            "an event that runs to its end overtakes no message"
        );
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let started_at = Instant::now();
            let effects = self.scheduler.handle(self.now, event);
            self.scheduler_time += started_at.elapsed();
            for effect in effects {
                match effect {
                    Effect::Cache(message) => {
                        let message = peer.on_message(message);
                        let started_at = Instant::now();
                        let answer = self.cache.handle(self.now, message);
                        self.cache_time += started_at.elapsed();
                        peer.on_answer(&answer);
                        events.push_back(Event::Cache(answer));
                    }
                    other => events.extend(peer.on_effect(other, &mut self.now)),
                }
            }
            if self.is_checked {
                self.scheduler.check_integrity();
                self.cache.check_integrity();
            }
        }
    }
}
