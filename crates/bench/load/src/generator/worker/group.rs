//! Lanes of one destination, and the selection of its requests from the schedule. Every group walks the whole schedule and skips
//! requests of other destinations. A slow destination therefore delays only its own requests.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::choice::RequestChoice;
use crate::schedule::Schedule;

#[derive(Debug, Clone)]
pub(super) enum Pacing {
    Shared(Schedule),
    /// A schedule for each lane of the thread; those of other groups are not looked at.
    PerLane {
        schedules: Vec<Schedule>,
        due: u64,
    },
    Closed,
}

#[derive(Debug)]
pub(super) struct ConnectionGroup {
    /// Lanes without a request, the longest free first: load is spread evenly, as users of a pool are.
    pub(super) free: VecDeque<usize>,
    pub(super) pacing: Pacing,
    /// Choice among all requests of the run, by the number in the schedule. Requests of other destinations are skipped.
    all: RequestChoice,
    /// Among our own, where there is no common schedule.
    own: RequestChoice,
    /// By request: true if it belongs to this group.
    ours: Vec<bool>,
    /// Requests without a common schedule so far.
    count: u64,
}

impl ConnectionGroup {
    /// `places` are the places of all requests and their weights; ours is `place`.
    pub(super) fn new(places: &[(usize, f64)], place: usize, seed: u64) -> Self {
        let ours: Vec<bool> = places.iter().map(|(at, _)| *at == place).collect();
        let weights = places.iter().map(|(_, weight)| *weight).enumerate();
        let own = weights.clone().filter(|(which, _)| ours[*which]);
        Self {
            free: VecDeque::new(),
            pacing: Pacing::Closed,
            own: RequestChoice::new(own, seed),
            all: RequestChoice::new(weights, seed),
            ours,
            count: 0,
        }
    }

    /// Takes requests in the order in which they were recorded.
    pub(super) fn follow(&mut self, order: Arc<[u32]>) {
        self.all = RequestChoice::recorded(order);
    }

    /// Takes one request after the other, and around.
    pub(super) fn in_turn(&mut self) {
        let turns = RequestChoice::in_turn(self.ours.len());
        (self.own, self.all) = (turns.clone(), turns);
    }

    /// Takes a pacing, and goes to the first request that is ours.
    pub(super) fn pace(&mut self, pacing: Pacing) {
        self.pacing = pacing;
        self.pass_over();
    }

    /// The schedule's next request is ours, or there is none.
    fn pass_over(&mut self) {
        let Pacing::Shared(schedule) = &mut self.pacing else {
            return;
        };
        if self.ours.iter().all(|ours| *ours) {
            return;
        }
        while schedule.peek().is_some() && !self.ours[self.all.pick(schedule.number())] {
            schedule.advance();
        }
    }

    /// Returns a request that is due by `at` and has a free lane: the lane, the due time (None: now), and the index of the
    /// request.
    pub(super) fn next(&mut self, at: u64) -> Option<(usize, Option<u64>, usize)> {
        match &mut self.pacing {
            Pacing::Shared(schedule) => {
                let intended = schedule.peek().filter(|due| *due <= at)?;
                let lane = self.free.pop_front()?;
                let which = self.all.pick(schedule.number());
                schedule.advance();
                self.pass_over();
                Some((lane, Some(intended), which))
            }
            Pacing::PerLane { schedules, due } => {
                if at < *due {
                    return None;
                }
                let ready = |lane: &usize| schedules[*lane].peek().is_some_and(|due| due <= at);
                let Some(position) = self.free.iter().position(ready) else {
                    // Those that are free wait for the next tick; the others ask again when they are free.
                    let peeks = self.free.iter().filter_map(|lane| schedules[*lane].peek());
                    *due = peeks.min().unwrap_or(u64::MAX);
                    return None;
                };
                let lane = self.free.remove(position)?;
                let intended = schedules[lane].next()?;
                Some((lane, Some(intended), self.own_next()))
            }
            Pacing::Closed => {
                let lane = self.free.pop_front()?;
                Some((lane, None, self.own_next()))
            }
        }
    }

    fn own_next(&mut self) -> usize {
        self.count += 1;
        self.own.pick(self.count)
    }

    /// A lane is free again.
    pub(super) fn release(&mut self, lane: usize) {
        self.free.push_back(lane);
        if let Pacing::PerLane { schedules, due } = &mut self.pacing {
            *due = (*due).min(schedules[lane].peek().unwrap_or(u64::MAX));
        }
    }

    /// Nothing is due at or after `end`.
    pub(super) fn cut(&mut self, end: u64) {
        match &mut self.pacing {
            Pacing::Shared(schedule) => schedule.cut(end),
            Pacing::PerLane { schedules, .. } => {
                for each in schedules {
                    each.cut(end);
                }
            }
            Pacing::Closed => {}
        }
    }

    /// When the next request may go out, as far as lanes are free.
    pub(super) fn due(&self) -> Option<u64> {
        match &self.pacing {
            _ if self.free.is_empty() => None,
            Pacing::Shared(schedule) => schedule.peek(),
            Pacing::PerLane { due, .. } => Some(*due),
            Pacing::Closed => None,
        }
    }

    /// The next request that was not sent, and which it is.
    pub(super) fn left(&mut self) -> Option<(u64, usize)> {
        match &mut self.pacing {
            Pacing::Shared(schedule) => {
                let due = schedule.peek()?;
                let which = self.all.pick(schedule.number());
                schedule.advance();
                self.pass_over();
                Some((due, which))
            }
            Pacing::PerLane { schedules, .. } => {
                let due = schedules.iter_mut().find_map(Iterator::next)?;
                Some((due, self.own_next()))
            }
            Pacing::Closed => None,
        }
    }

    /// Reports if requests of the schedule were not sent.
    pub(super) fn backlog(&self) -> bool {
        match &self.pacing {
            Pacing::Shared(schedule) => schedule.peek().is_some(),
            Pacing::PerLane { schedules, .. } => schedules.iter().any(|each| each.peek().is_some()),
            Pacing::Closed => false,
        }
    }
}
