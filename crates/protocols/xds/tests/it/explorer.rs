//! Every state that a system can get into within so many steps, each visited once, breadth first: what is wrong is found by the
//! shortest way that leads there.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Something that takes steps.
pub(crate) trait System: Clone {
    type Step: Copy + Debug;

    /// Steps that can happen now.
    fn steps(&self) -> Vec<Self::Step>;
    /// Takes a step. A state that must never be is an error.
    fn take(&mut self, step: Self::Step) -> Result<(), String>;
    /// Everything that distinguishes it from a system that will behave differently.
    fn key(&self) -> String;
    /// Checks the conditions of this state, and of the states that follow if all goes well from here on.
    fn check(self) -> Result<(), String>;
}

/// Number of visited states and steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) steps: usize,
}

/// Visits every state within `depth` steps of `start`.
pub(crate) fn explore<S: System>(start: S, depth: usize) -> Explored {
    let mut visited = HashSet::from([hash(&start)]);
    // Each step, and the one before it.
    let mut trail: Vec<(usize, Option<S::Step>)> = vec![(0, None)];
    let mut frontier = vec![(start, 0)];
    let mut steps = 0;
    for level in 0..=depth {
        let mut next = Vec::new();
        for (state, at) in frontier {
            if let Err(wrong) = state.clone().check() {
                panic!("{wrong}\nafter {:#?}", way(&trail, at));
            }
            if level == depth {
                continue;
            }
            for step in state.steps() {
                steps += 1;
                let mut after = state.clone();
                let taken = after.take(step);
                trail.push((at, Some(step)));
                if let Err(wrong) = taken {
                    panic!("{wrong}\nafter {:#?}", way(&trail, trail.len() - 1));
                }
                match visited.insert(hash(&after)) {
                    true => next.push((after, trail.len() - 1)),
                    false => drop(trail.pop()),
                }
            }
        }
        frontier = next;
    }
    Explored {
        states: visited.len(),
        steps,
    }
}

fn hash(state: &impl System) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.key().hash(&mut hasher);
    hasher.finish()
}

fn way<T: Copy>(trail: &[(usize, Option<T>)], mut at: usize) -> Vec<T> {
    let mut steps = Vec::new();
    while let (before, Some(step)) = trail[at] {
        steps.push(step);
        at = before;
    }
    steps.reverse();
    steps
}
