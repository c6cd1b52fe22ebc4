//! Bounds for unanswered requests. A silent control plane exceeds the bound soon; one name that stays unanswered while
//! others are answered exceeds it later. An idle proxy's control plane is asked nothing, and no timer runs.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Longest silence of the control plane after a request. It must answer, if only that there is nothing; a large mesh takes
/// seconds.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(40);

/// Longest time for which one name stays unanswered while others are answered. A control plane with much to send is only
/// slow. A control plane that believes that we hold the resource (istiod, when a name is asked for twice) would never
/// answer on this stream. A new stream mends that.
const NAME_TIMEOUT: Duration = Duration::from_secs(120);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ResponseTimeout {
    /// Since when something is asked for and nothing came.
    silent: Option<Instant>,
    /// When each turn was asked whose names are not all answered, oldest first.
    turns: VecDeque<(u64, Instant)>,
}

impl ResponseTimeout {
    /// Something was asked for, for this many times now.
    pub(super) fn asked(&mut self, turn: u64, now: Instant) {
        self.silent.get_or_insert(now);
        if self.turns.back().is_none_or(|(last, _)| *last < turn) {
            self.turns.push_back((turn, now));
        }
    }

    /// A response came; the oldest turn of which a name is not answered after it.
    pub(super) fn heard(&mut self, oldest: Option<u64>, now: Instant) {
        self.silent = oldest.map(|_| now);
        let answered = |turn: u64| oldest.is_none_or(|oldest| turn < oldest);
        while self.turns.front().is_some_and(|(turn, _)| answered(*turn)) {
            self.turns.pop_front();
        }
    }

    /// When it is lost; never while nothing is asked for.
    fn deadline(&self) -> Option<Instant> {
        let silent = self.silent.map(|since| since + ANSWER_TIMEOUT);
        let named = self.turns.front().map(|(_, asked)| *asked + NAME_TIMEOUT);
        silent.into_iter().chain(named).min()
    }

    /// Ready when it took too long.
    pub(super) async fn lost(&self) {
        match self.deadline() {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum ConnectEvent {
        Asked(u64),
        Heard(Option<u64>),
    }
    use ConnectEvent::{Asked, Heard};

    /// Events by second, and the second at which patience is lost.
    type Row<'a> = (&'a [(u64, ConnectEvent)], Option<u64>);

    #[test]
    fn silence_is_soon_too_long_one_name_later_and_nothing_asked_for_never() {
        let table: &[Row<'_>] = &[
            (&[], None),
            (&[(0, Asked(1))], Some(40)),
            (&[(0, Asked(1)), (30, Asked(2))], Some(40)),
            (&[(0, Asked(1)), (30, Heard(None))], None),
            (
                &[(0, Asked(1)), (30, Heard(None)), (90, Asked(2))],
                Some(130),
            ),
            // It answers, but not all: silence counts from its last word, the name from its question.
            (&[(0, Asked(1)), (30, Heard(Some(1)))], Some(70)),
            (
                &[
                    (0, Asked(1)),
                    (30, Heard(Some(1))),
                    (60, Heard(Some(1))),
                    (90, Heard(Some(1))),
                ],
                Some(120),
            ),
            // New names do not make an old one younger, and who always has some unanswered is not lost for that.
            (
                &[
                    (0, Asked(1)),
                    (50, Asked(2)),
                    (90, Heard(Some(1))),
                    (100, Asked(3)),
                ],
                Some(120),
            ),
            (
                &[
                    (0, Asked(1)),
                    (50, Asked(2)),
                    (90, Heard(Some(2))),
                    (140, Heard(Some(2))),
                ],
                Some(170),
            ),
        ];
        let begun = Instant::now();
        for (at, (events, expected)) in table.iter().enumerate() {
            let mut patience = ResponseTimeout::default();
            for (seconds, event) in *events {
                let now = begun + Duration::from_secs(*seconds);
                match event {
                    Asked(turn) => patience.asked(*turn, now),
                    Heard(oldest) => patience.heard(*oldest, now),
                }
            }
            let expected = expected.map(|seconds| begun + Duration::from_secs(seconds));
            assert_eq!(patience.deadline(), expected, "row {at}");
        }
    }
}
