//! Progress of a training on standard error: a bar if that is a terminal, and plain lines otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Shortest time between two lines about the current step if standard error is no terminal.
const BETWEEN_LINES: Duration = Duration::from_secs(10);
/// Shortest time between two changes of the bar.
const BETWEEN_BARS: Duration = Duration::from_millis(100);
/// Width of the bar, in characters.
const WIDTH: u64 = 20;
/// Returns the cursor to the beginning of the terminal's line, and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// Progress of one epoch after another, on rank 0; other ranks show nothing.
#[derive(Debug)]
pub(super) struct EpochProgress {
    view: ProgressView,
    /// Name of the epoch.
    name: String,
    /// Steps of the epoch, and those that are done.
    steps: u64,
    done: u64,
    began: Instant,
    shown: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ProgressView {
    Bar,
    Lines,
    Silent,
}

impl EpochProgress {
    /// Creates the progress of epochs of `steps` steps.
    pub(super) fn new(rank: usize, steps: u64) -> Self {
        let view = match (rank, io::stderr().is_terminal()) {
            (0, true) => ProgressView::Bar,
            (0, false) => ProgressView::Lines,
            _ => ProgressView::Silent,
        };
        Self::with(view, steps, Instant::now())
    }

    fn with(view: ProgressView, steps: u64, now: Instant) -> Self {
        EpochProgress { view, name: String::new(), steps, done: 0, began: now, shown: now }
    }

    /// Begins an epoch.
    pub(super) fn epoch(&mut self, name: String) {
        self.name = name;
        self.done = 0;
        self.began = Instant::now();
    }

    /// Counts a step, with its training loss.
    pub(super) fn step(&mut self, loss: f64) {
        if let Some(text) = self.stepped(loss, Instant::now()) {
            write(&text);
        }
    }

    /// Counts a step, and returns the output if it is time for some.
    fn stepped(&mut self, loss: f64, now: Instant) -> Option<String> {
        self.done += 1;
        let EpochProgress { name, steps, done, .. } = self;
        let since = now.saturating_duration_since(self.shown);
        let text = match self.view {
            ProgressView::Lines if since >= BETWEEN_LINES => {
                format!("{}\n", format!("{name} step {done}/{steps} loss {loss:.4}").trim_start())
            }
            ProgressView::Bar if since >= BETWEEN_BARS => {
                let rate = *done as f64 / now.saturating_duration_since(self.began).as_secs_f64();
                let left = steps.saturating_sub(*done) as f64 / rate;
                let full = (WIDTH * *done / (*steps).max(1)).min(WIDTH) as usize;
                let bar = ["━".repeat(full), "─".repeat(WIDTH as usize - full)].concat();
                format!(
                    "{CLEAR}{name} {bar} {done}/{steps} steps  loss {loss:.4}  {rate:.1}/s, {left:.0}s left"
                )
            }
            _ => return None,
        };
        self.shown = now;
        Some(text)
    }

    /// Prints a line, in place of the bar until the next step.
    pub(super) fn line(&self, text: impl AsRef<str>) {
        match self.view {
            ProgressView::Bar => write(&format!("{CLEAR}{}\n", text.as_ref())),
            ProgressView::Lines => write(&format!("{}\n", text.as_ref())),
            ProgressView::Silent => {}
        }
    }

    /// Removes the bar. Dropping does the same.
    pub(super) fn finish(self) {}
}

impl Drop for EpochProgress {
    fn drop(&mut self) {
        if self.view == ProgressView::Bar {
            write(CLEAR);
        }
    }
}

/// Writes to standard error in one piece, since the ranks share the terminal. Ignores a reader that is gone.
fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_0_shows_anything() {
        assert_eq!(EpochProgress::new(1, 10).view, ProgressView::Silent);
        assert_ne!(EpochProgress::new(0, 10).view, ProgressView::Silent);
    }

    #[test]
    fn lines_are_rare_and_tell_the_step() {
        let start = Instant::now();
        let mut progress =
            EpochProgress { name: "epoch 2/3".into(), ..EpochProgress::with(ProgressView::Lines, 50, start) };
        assert_eq!(progress.stepped(1.0, start + Duration::from_secs(9)), None);
        let text = progress.stepped(0.5, start + Duration::from_secs(10));
        assert_eq!(text.as_deref(), Some("epoch 2/3 step 2/50 loss 0.5000\n"));
        assert_eq!(progress.stepped(0.5, start + Duration::from_secs(11)), None);
    }

    #[test]
    fn a_bar_shows_rate_and_rest_and_survives_more_steps_than_it_was_told() {
        let start = Instant::now();
        let mut progress =
            EpochProgress { name: "epoch 1/3".into(), ..EpochProgress::with(ProgressView::Bar, 2, start) };
        let text = progress.stepped(0.5, start + Duration::from_millis(500)).unwrap();
        assert_eq!(
            text,
            format!(
                "{CLEAR}epoch 1/3 {}{} 1/2 steps  loss 0.5000  2.0/s, 0s left",
                "━".repeat(10),
                "─".repeat(10)
            )
        );
        for at in 1..5 {
            let text = progress.stepped(f64::NAN, start + Duration::from_secs(at)).unwrap();
            assert!(text.contains(&"━".repeat(20)), "{text}");
        }
    }
}
