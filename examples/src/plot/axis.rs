//! One axis of a picture: where it begins and ends, and which round numbers are written beside it. Open this
//! file when a label looks odd.
//!
//! plotters chooses its own labels otherwise: not round ones on logarithmic axes, and fractions of epochs.

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Number of intervals that an axis is divided into, about.
const INTERVALS: f64 = 5.0;
/// From this ratio of its ends on an axis is logarithmic.
const DECADE: f64 = 10.0;

/// An axis, linear or logarithmic.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// Name of what is counted, with its unit.
    pub(super) name: &'static str,
    logarithmic: bool,
    ends: Range<f64>,
    /// Values and what is written there, in rising order.
    ticks: Vec<(f64, String)>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        let [value, low, high] = [*value, self.ends.start, self.ends.end].map(|value| self.scaled(value));
        pixels.0 + (f64::from(pixels.1 - pixels.0) * (value - low) / (high - low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let tick = self.ticks.iter().find(|tick| tick.0 == *value);
        tick.map(|tick| tick.1.clone()).unwrap_or_default()
    }
}

impl Axis {
    /// Creates an axis for numbers such as epochs: a little longer than the values, with whole labels.
    pub(super) fn whole(name: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = bounds(values).unwrap_or((0.0, 1.0));
        let ticks = multiples(low..high, round_step(high - low).max(1.0));
        // A single number stands in the middle.
        let margin = if low < high { 0.025 * (high - low) } else { 1.0 };
        Axis { name, logarithmic: false, ends: low - margin..high + margin, ticks }
    }

    /// Creates an axis for quantities: round ends that enclose the values.
    pub(super) fn linear(name: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = match bounds(values) {
            Some((low, high)) if low < high => (low, high),
            // A single value is shown with its distance from zero.
            Some((only, _)) if only != 0.0 => (only.min(0.0), only.max(0.0)),
            _ => (0.0, 1.0),
        };
        let step = round_step(high - low);
        let ends = (low / step).floor() * step..(high / step).ceil() * step;
        Axis { name, logarithmic: false, ends: ends.clone(), ticks: multiples(ends, step) }
    }

    /// Creates an axis for positive quantities: [`linear`](Self::linear), or logarithmic if they span more than a
    /// decade.
    pub(super) fn fitting(name: &'static str, values: impl Iterator<Item = f64> + Clone) -> Self {
        match bounds(values.clone()) {
            Some((low, high)) if low > 0.0 && high / low > DECADE => Self::logarithmic(name, low, high),
            _ => Self::linear(name, values),
        }
    }

    /// Creates an axis from the last round number below the values to the first above.
    fn logarithmic(name: &'static str, low: f64, high: f64) -> Self {
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let every = (decades.clone().count() as f64 / (1.5 * INTERVALS)).ceil() as usize;
        let digits: &[u8] = if high / low < 1000.0 { &[1, 2, 5] } else { &[1] };
        let values =
            decades.step_by(every).flat_map(|decade| digits.iter().map(move |digit| (*digit, decade)));
        let mut ticks: Vec<(f64, String)> = values.map(power).collect();
        let first = ticks.iter().rposition(|tick| tick.0 <= low).unwrap_or(0);
        ticks.drain(..first);
        let last = ticks.iter().position(|tick| tick.0 >= high).unwrap_or(ticks.len());
        ticks.truncate(last + 1);
        let ends = ticks.first().map_or(low, |tick| tick.0.min(low))
            ..ticks.last().map_or(high, |tick| tick.0.max(high));
        Axis { name, logarithmic: true, ends, ticks }
    }

    fn scaled(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }
}

/// Returns the least and the greatest value, if there are any.
fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds, value| match bounds {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides a span into about five.
fn round_step(span: f64) -> f64 {
    let exact = (span / INTERVALS).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(exact.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= exact * 0.8);
    digit.unwrap_or(10.0) * power
}

/// Returns all multiples of `step` between two ends, with as many decimals as tell them apart.
fn multiples(ends: Range<f64>, step: f64) -> Vec<(f64, String)> {
    let (unit, suffix) = match ends.start.abs().max(ends.end.abs()) {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e4.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    let decimals = (-(step / unit * 1.001).log10().floor()).clamp(0.0, 9.0) as usize;
    // Rounding must not lose a tick that stands at an end.
    let first = (ends.start / step - 1e-6).ceil() as i64;
    let last = (ends.end / step + 1e-6).floor() as i64;
    let tick = |count: i64| match count as f64 * step {
        0.0 => (0.0, "0".into()),
        value => (value, format!("{:.decimals$}{suffix}", value / unit)),
    };
    (first..=last).map(tick).collect()
}

/// Returns `digit × 10^decade`, and how it is written.
fn power((digit, decade): (u8, i32)) -> (f64, String) {
    let value = f64::from(digit) * 10f64.powi(decade);
    let label = match decade {
        -3..=3 => value.to_string(),
        _ => format!("{digit}e{decade}"),
    };
    (value, label)
}
