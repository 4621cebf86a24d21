//! The advice in whole sentences.

use super::advice::{Advice, Advised};
use super::candidate::REFERENCE;
use crate::program::console::percent;
use crate::program::simulate::report::ReportRow;
use crate::suite::{ErrorsAbove, MeanDifference};

impl Advice {
    /// Returns the recommendation, in whole sentences.
    pub(super) fn verdict(&self) -> Vec<String> {
        let is_full = |one: &Advised| !one.is_compressed();
        let mut said = Vec::new();
        if let Some(fastest) = self.others.iter().find(|one| one.is_compressed()) {
            said.push(match self.compression_pays() {
                true => self.pays("Compression pays here", Advised::is_compressed),
                false => self.does_not_pay(fastest),
            });
        }
        if self.others.iter().any(is_full) {
            said.push(match self.best(is_full) {
                Some(_) => {
                    self.pays("Fewer messages, or not waiting for them, pay in full precision", is_full)
                }
                None => format!("No other algorithm in full precision pays: use `{REFERENCE}` there."),
            });
        }
        said.extend(self.fewest_errors().map(|one| self.fewest(one)));
        said
    }

    fn fewest(&self, one: &Advised) -> String {
        let more = if one.saved < 0.0 { "more" } else { "less" };
        let errors = one.errors.map_or_else(String::new, |errors| points(errors.like));
        let share = percent(one.saved.abs());
        let (name, time) = (one.name(), millis(&one.row));
        format!(
            "Fewest errors with equal data: `{name}` ({errors}), whose step takes {time}, {share} {more}."
        )
    }

    fn does_not_pay(&self, best: &Advised) -> String {
        let name = best.name();
        let reference = millis(&self.reference);
        let figure = match best.saved > 0.0 {
            true => format!("saves {} of the {reference} of `{REFERENCE}`", percent(best.saved)),
            false => format!("takes {} where `{REFERENCE}` takes {reference}", millis(&best.row)),
        };
        format!("Compression does not pay here: the fastest with it, `{name}`, {figure}.")
    }

    /// Names the best of those that `is_asked` selects: the fastest whose errors are not above the reference's, and
    /// one that is faster still.
    fn pays(&self, what: &str, is_asked: impl Fn(&Advised) -> bool) -> String {
        let (Some(best), Some(fastest)) = (self.recommended(&is_asked), self.best(&is_asked)) else {
            return String::new();
        };
        let mut said = format!("{what}: {}.", self.praise(best));
        if best.saved < fastest.saved {
            let (name, time) = (fastest.name(), millis(&fastest.row));
            said += &format!(" `{name}` is faster, {time}, at a price: {}.", fastest.told_errors());
        }
        said
    }

    fn praise(&self, best: &Advised) -> String {
        let up_to = match best.pays_up_to {
            Some(border) => format!(", up to {border}"),
            None => String::new(),
        };
        format!(
            "`{}` takes {} in place of {}, {} less{up_to}; {}",
            best.name(),
            millis(&best.row),
            millis(&self.reference),
            percent(best.saved),
            best.told_errors()
        )
    }
}

impl Advised {
    fn told_errors(&self) -> String {
        let Some(ErrorsAbove { like, skewed }) = self.errors else {
            return "the suite has not trained with these options".to_owned();
        };
        let told = |difference: MeanDifference| match difference.is_worse() {
            true => format!("more errors ({})", points(difference)),
            false => format!("about as many errors ({})", points(difference)),
        };
        format!(
            "on the suite's digits it makes {} with equal data and {} with skewed data",
            told(like),
            told(skewed)
        )
    }
}

/// Returns the milliseconds of a step.
fn millis(row: &ReportRow) -> String {
    format!("{:.1} ms", 1e3 * row.figures.step_s)
}

/// Returns a difference of errors in percentage points.
pub(super) fn points(difference: MeanDifference) -> String {
    let MeanDifference { mean, half } = difference;
    if mean.is_finite() { format!("{mean:+.2} ± {half:.2} points") } else { "a run diverged".to_owned() }
}
