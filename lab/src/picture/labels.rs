//! Positions for the numbers next to points, so that no number covers another or a point.

/// Size of the digits of a label, in pixels.
pub(super) const SIZE: f64 = 9.0;
/// Width of a digit, and height of a line of digits, in parts of that size.
const DIGIT: f64 = 0.6;
const HEIGHT: f64 = 0.75;
/// Gap between two adjacent labels, in pixels.
const GAP: f64 = 3.0;
/// Radius of a point, with the room around it, in pixels.
const POINT: f64 = 4.0;
/// Distances of a label from its point, in pixels; labels that are farther than the first have a line to their points.
const DISTANCES: [f64; 4] = [0.0, 7.0, 14.0, 21.0];
/// Directions of the places of a label, to be tried in this order: the four corners first.
const DIRECTIONS: [(f64, f64); 8] =
    [(1.0, -1.0), (1.0, 1.0), (-1.0, -1.0), (-1.0, 1.0), (0.0, -1.0), (0.0, 1.0), (1.0, 0.0), (-1.0, 0.0)];

/// Rectangle of a picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl Area {
    fn around((x, y): (f64, f64), [width, height]: [f64; 2]) -> Self {
        Area {
            left: x - width / 2.0,
            top: y - height / 2.0,
            right: x + width / 2.0,
            bottom: y + height / 2.0,
        }
    }

    fn overlaps(&self, other: &Area) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn holds(&self, other: &Area) -> bool {
        self.left <= other.left
            && other.right <= self.right
            && self.top <= other.top
            && other.bottom <= self.bottom
    }
}

/// Label of a point.
#[derive(Debug, Clone, Copy)]
pub(super) struct PointLabel {
    /// Middle of the text.
    pub(super) middle: (f64, f64),
    /// True if it is far enough from its point to need a connecting line.
    pub(super) is_far: bool,
}

/// Places a label of this many digits next to each point: at the nearest place that is within the panel and covers no
/// other point or label. `None` where there is no such place, or no point.
pub(super) fn placed(points: &[Option<((f64, f64), usize)>], panel: Area) -> Vec<Option<PointLabel>> {
    let of_point = |(point, _): &((f64, f64), usize)| Area::around(*point, [2.0 * POINT; 2]);
    let mut taken: Vec<Area> = points.iter().flatten().map(of_point).collect();
    let mut label = |point: Option<((f64, f64), usize)>| {
        let ((x, y), digits) = point?;
        let size = [digits as f64 * DIGIT * SIZE + GAP, HEIGHT * SIZE];
        let places = DISTANCES.iter().flat_map(|far| DIRECTIONS.map(|toward| (*far, toward)));
        let (area, label) = places
            .map(|(far, (right, down))| {
                let across = right * (POINT + far + size[0] / 2.0);
                let along = down * (POINT + far + size[1] / 2.0);
                let middle = (x + across, y + along);
                (Area::around(middle, size), PointLabel { middle, is_far: far > 0.0 })
            })
            .find(|(area, _)| panel.holds(area) && !taken.iter().any(|other| other.overlaps(area)))?;
        taken.push(area);
        Some(label)
    };
    points.iter().map(|point| label(*point)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lie_beside_points_and_each_other_or_not_at_all() {
        let panel = Area { left: 0.0, top: 0.0, right: 200.0, bottom: 200.0 };
        // Two points in the middle, one in the upper right corner, and a dense group.
        let mut points = vec![((100.0, 100.0), 1), ((100.0, 100.0), 2), ((199.0, 1.0), 2)];
        points.extend((0..40).map(|at| ((30.0 + f64::from(at % 7), 150.0 + f64::from(at / 7)), 2)));
        let labels = placed(&points.iter().copied().map(Some).collect::<Vec<_>>(), panel);
        assert!(placed(&[None], panel)[0].is_none());
        let near = |at: usize, right: bool, below: bool| {
            let point = points[at].0;
            let label = labels[at].unwrap();
            assert!(
                !label.is_far && (label.middle.0 > point.0) == right && (label.middle.1 > point.1) == below
            );
        };
        near(0, true, false);
        near(1, true, true);
        near(2, false, true);
        let areas: Vec<Area> = labels
            .iter()
            .zip(&points)
            .filter_map(|(label, (_, digits))| {
                Some(Area::around((*label)?.middle, [*digits as f64 * DIGIT * SIZE + GAP, HEIGHT * SIZE]))
            })
            .collect();
        assert!(areas.len() > 8 && areas.len() < points.len(), "{}", areas.len());
        for (at, area) in areas.iter().enumerate() {
            assert!(panel.holds(area) && areas[..at].iter().all(|other| !other.overlaps(area)));
            assert!(points.iter().all(|(point, _)| !area.overlaps(&Area::around(*point, [7.0; 2]))));
        }
    }
}
