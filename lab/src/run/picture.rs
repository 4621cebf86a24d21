//! Picture of a run: training loss, accuracy on held-out samples and throughput, side by side in one SVG; and the tokens
//! of each rank, where samples cost differently.

use super::metrics::{EpochMetrics, StepMetrics, not_written};
use crate::picture::{Axes, Panel, Picture, PictureContent};
use hexagram::Result;
use std::path::Path;

/// Maximum number of steps that are drawn one by one; beyond that, only the extremes of each section are.
const DRAWN_STEPS: usize = 800;
/// Minimum number of steps for which a smoothed line is drawn, too.
const NOISY: usize = 25;
/// Number of steps whose tokens are drawn for each rank; with more, the ranks could not be distinguished.
const TOLD_APART: usize = 40;

/// Draws a run into a file. The same figures give the same bytes.
///
/// # Errors
/// [`Error::System`](hexagram::Error::System) if the file cannot be written.
pub(super) fn save(path: &Path, title: &str, steps: &[StepMetrics], epochs: &[EpochMetrics]) -> Result<()> {
    std::fs::write(path, svg(title, steps, epochs)).map_err(|cause| not_written(path, cause))
}

fn svg(title: &str, steps: &[StepMetrics], epochs: &[EpochMetrics]) -> String {
    let mut panels = vec![loss(steps, epochs), accuracy(epochs), throughput(epochs)];
    panels.extend(tokens(steps, epochs));
    Picture { title, columns: 3, axes: Axes::default(), panels }.svg()
}

fn loss(steps: &[StepMetrics], epochs: &[EpochMetrics]) -> Panel<'static> {
    let points: Vec<(f64, f64)> = steps.iter().map(|step| (step.step as f64, step.loss)).collect();
    let points: Vec<(f64, f64)> = points.into_iter().filter(|point| point.1.is_finite()).collect();
    let remark = epochs.last().map(|epoch| format!(": {} in the last epoch", short(epoch.loss)));
    let low = points.iter().map(|point| point.1).fold(f64::INFINITY, f64::min);
    let high = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let noisy = points.len() >= NOISY;
    let each = PictureContent { reference: noisy, ..PictureContent::line("each step", extremes(&points)) };
    let smooth = noisy.then(|| PictureContent::line("smoothed", smoothed(&points)));
    let drawn = smooth.into_iter().chain([each]).collect();
    let axes =
        Axes { x: "step", y: "cross-entropy (nats)", log_x: false, log_y: high > 10.0 * low && low > 0.0 };
    Panel { title: format!("Training loss{}", remark.unwrap_or_default()), axes: Some(axes), drawn }
}

fn accuracy(epochs: &[EpochMetrics]) -> Panel<'static> {
    let points = by_epoch(epochs, |epoch| 100.0 * epoch.test_accuracy);
    let remark = points.last().map(|point| format!(": {:.1} % at the end", point.1)).unwrap_or_default();
    let axes = Axes { x: "epoch", y: "correct (%)", ..Axes::default() };
    let title = format!("Accuracy on held-out samples{remark}");
    Panel { title, axes: Some(axes), drawn: vec![PictureContent::line("accuracy", points)] }
}

fn throughput(epochs: &[EpochMetrics]) -> Panel<'static> {
    let points = by_epoch(epochs, |epoch| epoch.samples_per_s);
    let mean = points.iter().map(|point| point.1).sum::<f64>() / points.len().max(1) as f64;
    let axes = Axes { x: "epoch", y: "thousand samples/s", ..Axes::default() };
    let points = points.into_iter().map(|(x, y)| (x, y / 1e3)).collect();
    let title = format!("Throughput of all ranks: {mean:.0} samples/s");
    Panel { title, axes: Some(axes), drawn: vec![PictureContent::line("throughput", points)] }
}

/// Draws the tokens of each rank in the first steps, where samples cost differently.
fn tokens(steps: &[StepMetrics], epochs: &[EpochMetrics]) -> Option<Panel<'static>> {
    let balance = epochs.last()?.work.as_ref()?.balance();
    let steps = &steps[..steps.len().min(TOLD_APART)];
    let line = |rank: usize| {
        let point = |step: &StepMetrics| Some((step.step as f64, *step.tokens.get(rank)?));
        PictureContent::line(format!("rank {rank}"), steps.iter().filter_map(point).collect())
    };
    let drawn = (0..steps.first()?.tokens.len()).map(line).collect();
    let axes = Axes { x: "step", y: "tokens of each rank", ..Axes::default() };
    let title = format!("Busiest rank: {:.2} times the mean tokens", balance.mean());
    Some(Panel { title, axes: Some(axes), drawn })
}

fn by_epoch(epochs: &[EpochMetrics], value: impl Fn(&EpochMetrics) -> f64) -> Vec<(f64, f64)> {
    epochs.iter().map(|epoch| (epoch.epoch as f64, value(epoch))).collect()
}

/// Returns the lowest and the highest point of each section, so that a long line keeps its outline. All sections are
/// equally long.
fn extremes(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= DRAWN_STEPS {
        return points.to_vec();
    }
    let ends = |bundle: &[(f64, f64)]| {
        let low = bundle.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1));
        let high = bundle.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let mut ends: Vec<_> = low.into_iter().chain(high).collect();
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        ends
    };
    points.chunks((2 * points.len()).div_ceil(DRAWN_STEPS)).flat_map(ends).collect()
}

/// Returns the mean of the points around each point: a 25th of the line on both sides, fewer at the ends. Near the beginning,
/// where a loss falls fast, the mean has only a few more points on the right than on the left: the line would otherwise begin
/// too low.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let reach = (points.len() / 25).max(2);
    let mean = |centre: usize| {
        let reach = reach.min(centre + 1);
        let around = &points[centre.saturating_sub(reach)..(centre + reach + 1).min(points.len())];
        (points[centre].0, around.iter().map(|point| point.1).sum::<f64>() / around.len() as f64)
    };
    (0..points.len()).step_by(points.len().div_ceil(DRAWN_STEPS).max(1)).map(mean).collect()
}

/// Returns a loss in a few letters, also when it is tiny.
fn short(loss: f64) -> String {
    if loss.abs() < 0.01 { format!("{loss:.1e}") } else { format!("{loss:.3}") }
}

#[cfg(test)]
mod tests {
    use super::super::work::StepWork;
    use super::*;
    use std::collections::BTreeMap;

    fn steps(losses: impl IntoIterator<Item = f64>) -> Vec<StepMetrics> {
        let step = |(step, loss)| StepMetrics {
            epoch: 0,
            step,
            loss,
            learning_rate: 0.1,
            seconds: 0.0,
            metrics: BTreeMap::new(),
            tokens: Vec::new(),
        };
        (0..).zip(losses).map(step).collect()
    }

    fn epochs(count: u64) -> Vec<EpochMetrics> {
        let epoch = |epoch| EpochMetrics {
            epoch,
            loss: 1.0 / (epoch + 1) as f64,
            test_accuracy: 0.97 - 0.8 / (epoch + 1) as f64,
            consensus_distance: 0.0,
            samples_per_s: 15_000.0 + 700.0 * (epoch as f64).sin(),
            comm_fraction: 0.1,
            bytes_sent: 1000,
            seconds: epoch as f64,
            work: None,
        };
        (0..count).map(epoch).collect()
    }

    /// Returns a loss that falls from 2.3 to about `end`, with noise.
    fn falling(count: usize, end: f64) -> Vec<f64> {
        let noise = |i: usize| 1.0 + 0.35 * ((i * 7919 % 1000) as f64 / 500.0 - 1.0);
        (0..count).map(|i| (2.3 * (end / 2.3f64).powf((i as f64 / count as f64).sqrt())) * noise(i)).collect()
    }

    #[test]
    fn every_series_is_drawn_and_a_long_run_stays_a_small_file() {
        let short = svg("4 ranks", &steps(falling(300, 0.02)), &epochs(10));
        for text in [
            "Training loss",
            "Accuracy on held-out",
            "Throughput",
            ">step<",
            ">epoch<",
            "(nats)",
            ">smoothed<",
        ] {
            assert!(short.contains(text), "{text}");
        }
        // Four lines, and two in the key of the loss.
        assert_eq!(short.matches("<polyline").count(), 6);
        let long = svg("4 ranks", &steps(falling(100_000, 1e-5)), &epochs(1000));
        assert!(long.len() < 100_000, "{}", long.len());
    }

    #[test]
    fn runs_without_figures_say_so_and_odd_ones_are_drawn() {
        assert_eq!(svg("", &[], &[]).matches("nothing recorded").count(), 3);
        assert_eq!(svg("", &steps([f64::NAN, f64::INFINITY]), &[]).matches("nothing recorded").count(), 3);
        assert_eq!(svg("", &steps([2.3]), &epochs(1)).matches("<circle").count(), 3);
        for losses in
            [vec![0.0; 3], vec![-1.0, 1.0], vec![1e-300, 1e300], vec![5e-324], vec![f64::MIN, f64::MAX]]
        {
            assert!(!svg("", &steps(losses), &epochs(2)).contains("NaN"));
        }
    }

    #[test]
    fn the_tokens_of_each_rank_are_drawn_where_samples_cost_differently() {
        let mut steps = steps(falling(100, 1.0));
        steps.iter_mut().for_each(|step| step.tokens = vec![3.0, 1.0]);
        let work = StepWork { tokens: vec![vec![3.0, 1.0]], ..StepWork::default() };
        let svg = svg("2 ranks", &steps, &[EpochMetrics { work: Some(work), ..epochs(1).remove(0) }]);
        assert!(svg.contains("Busiest rank: 1.50 times") && svg.contains(">rank 1<"), "{svg}");
    }

    #[test]
    fn extremes_keep_the_outline_and_smoothing_keeps_the_mean() {
        let points: Vec<(f64, f64)> =
            (0..10_000).map(|i| (f64::from(i), f64::from(i * 7919 % 1000))).collect();
        let outline = extremes(&points);
        assert!(outline.len() <= DRAWN_STEPS);
        assert!(outline.is_sorted_by(|a, b| a.0 <= b.0));
        let highest = |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
        assert_eq!(highest(&outline), highest(&points));
        let smoothed = smoothed(&points);
        assert!(smoothed[100..smoothed.len() - 100].iter().all(|point| (point.1 - 499.5).abs() < 20.0));
        assert_eq!(smoothed[0].1, (points[0].1 + points[1].1) / 2.0);
    }
}
