//! Progress of a run: a bar on the terminal of rank 0, and plain lines where there is no terminal. Open this
//! file when you wonder why nothing, or too much, is printed.
//!
//! Everything goes to the standard error, so that the output of a program stays its own.

use clap::Parser;
use hexagram::physical::stdout::{self, PrintError};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Text about exit codes in programs' `--help`.
pub const EXIT_CODES: &str = "\
Exit code: 0, or 1 if something failed or the output could not be written, 2 for a wrong call, 141 if nobody reads the \
output any more.";

/// Without a terminal, a sign of life at most this often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
const TEMPLATE: &str = "{prefix} {bar:20.cyan/238} {pos}/{len} steps  {msg}  {rate}/s, {eta} left";

/// Shows one epoch after another.
///
/// ```
/// let mut progress = hexagram_examples::progress::Progress::new(0, 20, false);
/// for epoch in 1..=3 {
///     progress.epoch(format!("epoch {epoch}/3"));
///     for step in 0..20 {
///         progress.step(1.0 / (1 + step) as f64);
///     }
///     progress.line(format!("epoch {epoch}/3: loss 0.05"));
/// }
/// progress.finish();
/// ```
#[derive(Debug)]
pub struct Progress {
    view: View,
}

#[derive(Debug)]
enum View {
    Bar(ProgressBar),
    Lines(Lines),
    Silent,
}

/// State of the current epoch, for the signs of life.
#[derive(Debug)]
struct Lines {
    name: String,
    done: u64,
    steps: u64,
    printed: Instant,
}

impl Progress {
    /// Shows epochs of `steps` steps on rank 0, unless `quiet`; other ranks show nothing, ever.
    ///
    /// A bar if the standard error is a terminal; else the lines given to [`line`](Self::line), and one on
    /// the current step every ten seconds.
    pub fn new(rank: usize, steps: u64, quiet: bool) -> Self {
        let view = if rank != 0 || quiet {
            View::Silent
        } else if io::stderr().is_terminal() {
            View::Bar(bar(steps))
        } else {
            View::Lines(Lines { name: String::new(), done: 0, steps, printed: Instant::now() })
        };
        Progress { view }
    }

    /// Begins an epoch: the bar starts anew, behind this name.
    pub fn epoch(&mut self, name: impl Into<String>) {
        match &mut self.view {
            View::Bar(bar) => {
                bar.reset();
                bar.set_message("");
                bar.set_prefix(name.into());
            }
            View::Lines(lines) => (lines.name, lines.done) = (name.into(), 0),
            View::Silent => {}
        }
    }

    /// Takes note of a step that is done, with its training loss.
    pub fn step(&mut self, loss: f64) {
        match &mut self.view {
            View::Bar(bar) => {
                bar.set_message(format!("loss {loss:.4}"));
                bar.inc(1);
            }
            View::Lines(lines) => {
                if let Some(text) = lines.step(loss, Instant::now()) {
                    note(&text);
                }
            }
            View::Silent => {}
        }
    }

    /// Prints a line, above the bar if there is one.
    pub fn line(&self, text: impl AsRef<str>) {
        match &self.view {
            View::Bar(bar) => bar.suspend(|| note(text.as_ref())),
            View::Lines(_) => note(text.as_ref()),
            View::Silent => {}
        }
    }

    /// Removes the bar. Dropping does the same.
    pub fn finish(self) {}
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let View::Bar(bar) = &self.view {
            bar.finish_and_clear();
        }
    }
}

impl Lines {
    /// Counts a step, and says how far the epoch is if nothing was said for long.
    fn step(&mut self, loss: f64, now: Instant) -> Option<String> {
        self.done += 1;
        if now.saturating_duration_since(self.printed) < SIGN_OF_LIFE {
            return None;
        }
        self.printed = now;
        Some(format!("{} step {}/{} loss {loss:.4}", self.name, self.done, self.steps).trim_start().into())
    }
}

fn bar(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    match ProgressStyle::with_template(TEMPLATE) {
        Ok(style) => bar.with_style(style.progress_chars("━━─").with_key("rate", rate)),
        Err(_) => bar,
    }
}

/// Steps a second, with fewer digits than indicatif gives.
fn rate(state: &ProgressState, text: &mut dyn fmt::Write) {
    let _ = write!(text, "{:.1}", state.per_sec());
}

/// Prints a line on the standard error. Unlike `eprintln!` does not mind if nobody reads any more.
pub fn note(text: &str) {
    // In one write: the ranks share this terminal, and formatting would write piece by piece.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Returns the options of a program; otherwise what to exit with, after help was shown, or what is wrong with them, or
/// if nobody could see what the program prints.
///
/// # Errors
/// The exit code.
pub fn options<O: Parser>(program: &str) -> Result<O, ExitCode> {
    // Ranks that the program starts could not tell any more.
    stdout::check().map_err(|error| error.report(program))?;
    O::try_parse().map_err(|shown| match shown.print() {
        Err(cause) if !shown.use_stderr() => PrintError::from(cause).report(program),
        _ => ExitCode::from(u8::try_from(shown.exit_code()).unwrap_or(2)),
    })
}

/// Says why a program ends, unless it is only that nobody reads its output any more; returns what to exit with.
pub fn failure(program: &str, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    if let Some(error) = error.downcast_ref::<PrintError>() {
        return error.report(program);
    }
    note(&format!("{program}: {error}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_0_shows_anything_and_not_when_quiet() {
        assert!(matches!(Progress::new(1, 10, false).view, View::Silent));
        assert!(matches!(Progress::new(0, 10, true).view, View::Silent));
        assert!(!matches!(Progress::new(0, 10, false).view, View::Silent));
    }

    #[test]
    fn lines_are_rare_and_tell_the_step() {
        let start = Instant::now();
        let mut lines = Lines { name: "epoch 2/3".into(), done: 0, steps: 50, printed: start };
        assert_eq!(lines.step(1.0, start + Duration::from_secs(9)), None);
        let text = lines.step(0.5, start + Duration::from_secs(10));
        assert_eq!(text.as_deref(), Some("epoch 2/3 step 2/50 loss 0.5000"));
        assert_eq!(lines.step(0.5, start + Duration::from_secs(11)), None);
    }

    #[test]
    fn the_template_of_the_bar_is_valid() {
        ProgressStyle::with_template(TEMPLATE).unwrap();
    }

    #[test]
    fn a_bar_survives_more_steps_than_it_was_told() {
        let hidden = bar(2);
        hidden.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        let mut progress = Progress { view: View::Bar(hidden) };
        for epoch in 0..2 {
            progress.epoch(format!("epoch {epoch}"));
            (0..5).for_each(|_| progress.step(f64::NAN));
            progress.line("text");
        }
        progress.finish();
    }
}
