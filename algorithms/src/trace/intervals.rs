//! Arithmetic on sets of intervals: the time in which any of several activities was in progress, or two at the same
//! time.

/// Union of intervals, as disjoint sorted intervals, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Union(Vec<(i64, i64)>);

impl Union {
    /// Returns the union of intervals from start to end, in any order, which may overlap.
    pub(super) fn of(intervals: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut union: Vec<(i64, i64)> = Vec::new();
        for (start, end) in sorted {
            match union.last_mut() {
                Some((_, last)) if start <= *last => *last = end.max(*last),
                _ => union.push((start, end)),
            }
        }
        Union(union)
    }

    /// Returns the intervals from start to end, in order.
    pub(super) fn intervals(&self) -> impl Iterator<Item = (i64, i64)> {
        self.0.iter().copied()
    }

    /// Returns the part between two moments.
    pub(super) fn within(&self, (start, end): (i64, i64)) -> Self {
        let first = self.0.partition_point(|interval| interval.1 <= start);
        let inside = self.0[first..].iter().take_while(|interval| interval.0 < end);
        Union(inside.map(|interval| (interval.0.max(start), interval.1.min(end))).collect())
    }

    pub(super) fn length(&self) -> u64 {
        self.0.iter().map(|(start, end)| (end - start).unsigned_abs()).sum()
    }

    /// Returns the length of the intersection, in nanoseconds.
    pub(super) fn common(&self, other: &Self) -> u64 {
        let mut at = 0;
        let mut beside = 0;
        let mut sum = 0;
        while let (Some(one), Some(two)) = (self.0.get(at), other.0.get(beside)) {
            sum += (one.1.min(two.1) - one.0.max(two.0)).max(0).unsigned_abs();
            if one.1 < two.1 { at += 1 } else { beside += 1 }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_nested_and_touching_intervals_are_one() {
        let union = Union::of([(30, 40), (0, 10), (10, 20), (5, 12), (31, 33), (50, 50), (60, 55)]);
        assert_eq!(union, Union(vec![(0, 20), (30, 40)]));
        assert_eq!(union.length(), 30);
        assert_eq!(Union::of([]).length(), 0);
    }

    #[test]
    fn a_window_cuts_what_reaches_beyond_it() {
        let union = Union::of([(0, 20), (30, 40), (50, 60)]);
        assert_eq!(union.within((10, 35)), Union(vec![(10, 20), (30, 35)]));
        assert_eq!(union.within((20, 30)), Union::default());
        assert_eq!(union.within((-5, 100)), union);
        assert_eq!(union.within((33, 34)).length(), 1);
    }

    #[test]
    fn what_two_have_in_common_is_counted_once() {
        let one = Union::of([(0, 20), (30, 40), (50, 60)]);
        let two = Union::of([(10, 32), (35, 55), (60, 90)]);
        // 10..20, 30..32, 35..40, 50..55
        assert_eq!(one.common(&two), 22);
        assert_eq!(two.common(&one), 22);
        assert_eq!(one.common(&one), one.length());
        assert_eq!(one.common(&Union::default()), 0);
    }
}
