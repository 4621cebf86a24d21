//! Pictures of ordinary and of odd runs.

use super::*;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use std::collections::BTreeMap;

fn steps(losses: impl IntoIterator<Item = f64>) -> Vec<Step> {
    let step = |(step, loss)| Step {
        epoch: 0,
        step,
        loss,
        learning_rate: 0.1,
        seconds: 0.0,
        metrics: BTreeMap::new(),
    };
    (0..).zip(losses).map(step).collect()
}

fn epochs(count: u64) -> Vec<Epoch> {
    let epoch = |epoch| Epoch {
        epoch,
        loss: 1.0 / (epoch + 1) as f64,
        test_accuracy: 0.97 - 0.8 / (epoch + 1) as f64,
        consensus_distance: 0.0,
        samples_per_s: 15_000.0 + 700.0 * (epoch as f64).sin(),
        comm_fraction: 0.1,
        bytes_sent: 1000,
        seconds: epoch as f64,
    };
    (0..count).map(epoch).collect()
}

/// Returns a loss that falls from 2.3 to about `end`, with noise.
fn falling(count: usize, end: f64) -> Vec<f64> {
    let noise = |i: usize| 1.0 + 0.35 * ((i * 7919 % 1000) as f64 / 500.0 - 1.0);
    (0..count).map(|i| (2.3 * (end / 2.3f64).powf((i as f64 / count as f64).sqrt())) * noise(i)).collect()
}

fn svg(steps: &[Step], epochs: &[Epoch]) -> String {
    let svg = Plot { title: "gradient_allreduce, 4 ranks <tcp> & \u{7}more", steps, epochs }.svg().unwrap();
    // For whoever wants to look: HEXAGRAM_PLOTS=directory cargo test -p hexagram-examples plot
    if let Some(directory) = std::env::var_os("HEXAGRAM_PLOTS") {
        let name = format!("{}_steps_{}_epochs.svg", steps.len(), epochs.len());
        fs::write(Path::new(&directory).join(name), &svg).unwrap();
    }
    svg
}

/// Returns the number of lines and the number of dots.
fn marks(svg: &str) -> (usize, usize) {
    (svg.matches("<polyline").count(), svg.matches("<circle").count())
}

#[test]
fn every_series_is_drawn() {
    let svg = svg(&steps(falling(300, 0.02)), &epochs(10));
    for text in [
        "Training loss",
        "Accuracy on held-out samples",
        "Throughput",
        "step",
        "epoch",
        "samples/s",
        "(nats)",
    ] {
        assert!(svg.contains(text), "{text}");
    }
    for color in ["#9CBBF7", "#2563EB", "#059669", "#D97706"] {
        assert!(svg.contains(&format!("fill=\"none\" opacity=\"1\" stroke=\"{color}\"")), "{color}");
    }
    assert_eq!(svg.matches("<circle").count(), 20);
}

#[test]
fn the_title_is_escaped() {
    assert!(svg(&[], &[]).contains("gradient_allreduce, 4 ranks &lt;tcp&gt; &amp; more"));
}

#[test]
fn a_single_step_and_a_single_epoch_are_dots() {
    assert_eq!(marks(&svg(&steps([2.3]), &epochs(1))).1, 3);
}

#[test]
fn a_long_run_stays_a_small_file() {
    let svg = svg(&steps(falling(100_000, 1e-5)), &epochs(1000));
    assert!(svg.len() < 100_000, "{}", svg.len());
}

#[test]
fn runs_without_figures_say_so() {
    assert_eq!(svg(&[], &[]).matches("nothing recorded").count(), 3);
    assert_eq!(svg(&steps([f64::NAN, f64::INFINITY]), &[]).matches("nothing recorded").count(), 3);
}

#[test]
fn odd_losses_are_drawn() {
    for losses in [
        vec![0.0; 3],
        vec![-1.0, 1.0],
        vec![2.0; 50],
        vec![1e-300, 1e300],
        vec![f64::NAN, 1.0],
        vec![5e-324],
        vec![f64::MIN, f64::MAX],
    ] {
        svg(&steps(losses), &epochs(2));
    }
}

#[test]
fn ticks_are_round_and_enclose_the_values() {
    let labels = |axis: Axis| {
        let ticks = axis.key_points(10);
        ticks.iter().map(|tick| axis.format_ext(tick)).collect::<Vec<_>>().join(" ")
    };
    let loss = |low, high| labels(Axis::fitting("", [low, high].into_iter()));
    assert_eq!(loss(0.3, 2.3), "0 0.5 1.0 1.5 2.0 2.5");
    assert_eq!(loss(0.03, 2.3), "0.02 0.05 0.1 0.2 0.5 1 2 5");
    assert_eq!(loss(3e-7, 2.3), "1e-7 1e-5 0.001 0.1 10");
    let quantity = |values: &[f64]| labels(Axis::linear("", values.iter().copied()));
    assert_eq!(quantity(&[12.5, 98.2]), "0 20 40 60 80 100");
    assert_eq!(quantity(&[0.0, 15_400.0]), "0 5k 10k 15k 20k");
    assert_eq!(quantity(&[0.0, 1_540_000.0]), "0 0.5M 1.0M 1.5M 2.0M");
    assert_eq!(quantity(&[31.0]), "0 5 10 15 20 25 30 35");
    let epochs = |low: u32, high: u32| labels(Axis::whole("", (low..=high).map(f64::from)));
    assert_eq!(epochs(1, 4), "1 2 3 4");
    assert_eq!(epochs(0, 19), "0 5 10 15");
    assert_eq!(epochs(1, 1), "1");
}

#[test]
fn extremes_keep_the_outline_and_smoothing_keeps_the_mean() {
    let points: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i), f64::from(i * 7919 % 1000))).collect();
    let outline = extremes(&points);
    assert!(outline.len() <= DRAWN_STEPS);
    assert!(outline.is_sorted_by(|a, b| a.0 <= b.0));
    let highest = |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(0.0, f64::max);
    assert_eq!(highest(&outline), highest(&points));
    let smoothed = smoothed(&points);
    assert!(smoothed[100..smoothed.len() - 100].iter().all(|point| (point.1 - 499.5).abs() < 20.0));
    assert_eq!(smoothed[0].1, (points[0].1 + points[1].1) / 2.0);
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let path = std::env::temp_dir().join("hexagram-no-such-directory/plot.svg");
    let error = Plot { title: "", steps: &[], epochs: &[] }.save(&path).unwrap_err();
    assert!(error.to_string().contains("hexagram-no-such-directory"), "{error}");
    assert!(matches!(error, PlotError::Write { .. }));
}
