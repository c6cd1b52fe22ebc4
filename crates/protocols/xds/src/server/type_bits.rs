//! Some of a stream's types, a bit for the place of each: which of them are to be looked at, or wait for an answer. Thousands of streams
//! are told the same and answer one by one; what each keeps of its types lies cold by then, and is read only of the type in question.

use super::stream::MAX_TYPES;

/// See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PermitCount(u16);

const _: () = assert!(MAX_TYPES <= u16::BITS as usize, "each type has a bit");

impl PermitCount {
    pub(super) fn set(&mut self, place: usize, is: bool) {
        self.0 = self.0 & !(1 << place) | u16::from(is) << place;
    }

    pub(super) fn has(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn and(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    pub(super) fn or(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    pub(super) fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// A type came in between: those from this place on are one further.
    pub(super) fn make_room(&mut self, place: usize) {
        let before = (1 << place) - 1;
        self.0 = self.0 & before | (self.0 & !before) << 1;
    }

    /// In order.
    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            (left != 0).then(|| {
                left &= left - 1;
                place
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_set_that_makes_room() {
        let of = |places: &[usize]| {
            let mut all = PermitCount::default();
            places.iter().for_each(|place| all.set(*place, true));
            all
        };
        let shown = |places: PermitCount| places.iter().collect::<Vec<_>>();
        let mut all = of(&[0, 3, 14]);
        assert_eq!(shown(all), [0, 3, 14]);
        assert!(all.has(3) && !all.has(4));
        assert_eq!(shown(all.and(of(&[3, 4]))), [3]);
        assert_eq!(shown(all.or(of(&[3, 4]))), [0, 3, 4, 14]);
        assert_eq!(shown(all.without(of(&[3, 4]))), [0, 14]);
        all.make_room(3);
        assert_eq!(shown(all), [0, 4, 15]);
        all.make_room(0);
        assert_eq!(shown(all), [1, 5], "there is no seventeenth");
        all.set(1, false);
        all.set(5, false);
        assert!(all.is_empty());
    }
}
