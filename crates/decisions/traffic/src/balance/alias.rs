//! Drawing one of many by weight in constant time: Walker's alias method, with Vose's way to build the table.

/// Weights, ready to be drawn from.
#[derive(Debug, Clone)]
pub struct Alias {
    /// By place: below which fraction (of 2³²) the place itself is meant, and which other one beyond it.
    slots: Box<[(u64, u32)]>,
}

const WHOLE: u64 = 1 << 32;

impl Alias {
    /// Weights as they stand; those of 0 are drawn when all are 0, and then as often as each other.
    #[must_use]
    pub fn new(weights: &[u32]) -> Self {
        let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
        if total == 0 {
            let slots = (0..weights.len() as u32).map(|place| (WHOLE, place));
            return Self {
                slots: slots.collect(),
            };
        }
        // Each place's share, of which the mean is `WHOLE`.
        let share =
            |weight: &u32| u128::from(*weight) * weights.len() as u128 * u128::from(WHOLE) / total;
        let mut shares: Vec<u64> = weights.iter().map(|weight| share(weight) as u64).collect();
        let mut slots: Vec<(u64, u32)> = (0..weights.len() as u32)
            .map(|place| (WHOLE, place))
            .collect();
        let (mut poor, mut rich): (Vec<u32>, Vec<u32>) =
            (0..weights.len() as u32).partition(|place| shares[*place as usize] < WHOLE);
        while let (Some(low), Some(&high)) = (poor.pop(), rich.last()) {
            slots[low as usize] = (shares[low as usize], high);
            let left = &mut shares[high as usize];
            *left -= WHOLE - slots[low as usize].0;
            if *left < WHOLE {
                rich.pop();
                poor.push(high);
            }
        }
        Self {
            slots: slots.into(),
        }
    }

    /// Returns the number of weights.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if there are no weights.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// One of them; `None` of none.
    #[must_use]
    pub fn draw(&self, random: u64) -> Option<usize> {
        // The product's whole part is a uniform place, and its remainder a uniform fraction.
        let product = u128::from(random) * self.slots.len() as u128;
        let place = (product >> 64) as usize;
        let fraction = (product as u64) >> 32;
        let (own, other) = self.slots.get(place)?;
        Some(if fraction < *own {
            place
        } else {
            *other as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Alias;

    #[test]
    fn draws_converge_to_the_weights() {
        let mut random = fastrand::Rng::with_seed(2);
        for weights in [
            &[1, 1, 1][..],
            &[1, 2, 3, 94],
            &[0, 5, 0],
            &[u32::MAX, 1, 7],
            &[0, 0],
            &[9],
        ] {
            let (alias, mut counts) = (Alias::new(weights), vec![0_u32; weights.len()]);
            for _ in 0..100_000 {
                counts[alias.draw(random.u64(..)).expect("one")] += 1;
            }
            let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            for (weight, count) in weights.iter().zip(&counts) {
                let wanted = if total > 0.0 {
                    f64::from(*weight) / total
                } else {
                    1.0 / weights.len() as f64
                };
                let found = f64::from(*count) / 100_000.0;
                assert!((wanted - found).abs() < 0.008, "{weights:?}: {counts:?}");
                // Rounding must not select an entry without weight either.
                assert!(
                    total == 0.0 || *weight > 0 || *count == 0,
                    "{weights:?}: {counts:?}"
                );
            }
        }
        assert_eq!(Alias::new(&[]).draw(7), None);
        for chance in [0, u64::MAX] {
            assert!(Alias::new(&[1, 2]).draw(chance).is_some());
        }
    }
}
