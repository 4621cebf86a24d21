//! The options and data that determine the result of a training. A checkpoint records them; a run that resumes it
//! must have the same.

use super::CheckedRun;
use hexagram::Error;
use hexagram::algorithms::LearningRate;
use hexagram::algorithms::checkpoint::Record;
use hexagram::logical::options_text::NamedOptions;

/// Names of the options whose meaning depends on the whole training.
const FIXED: [&str; 4] = ["--algorithm", "--model", "--optimizer", "--dtype"];

/// Options and data, as names and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MadeWith(Vec<(&'static str, String)>);

impl MadeWith {
    /// Collects the facts of a training with this learning rate.
    pub(super) fn of(run: &CheckedRun, rate: LearningRate) -> Self {
        let CheckedRun { options, algorithm, stepper, subject, .. } = run;
        let mut facts = vec![
            ("--algorithm", algorithm.to_string()),
            ("--model", subject.model.clone()),
            ("--optimizer", stepper.optimizer.spelled()),
            ("--dtype", subject.dtype.to_owned()),
            ("--lr", stepper.learning_rate.to_string()),
            // The schedule without its base, which `--lr` gives.
            ("--schedule", rate.short(&stepper.learning_rate.into()).to_string()),
            ("--batch", options.batch.to_string()),
            ("--seed", options.seed.to_string()),
            ("--data", format!("{} samples of digest {:016x}", subject.samples, subject.digest)),
        ];
        facts.extend(subject.costs.as_ref().map(|costs| ("--sampler", costs.sampler.to_string())));
        MadeWith(facts)
    }

    /// Notes it in a checkpoint.
    pub(super) fn note(&self, record: &mut Record) {
        self.0.iter().for_each(|(name, value)| record.note(&fact(name), value));
    }

    /// Compares these options with those of a checkpoint, for a training with this number of ranks. Returns the
    /// differences, if `may_change`.
    ///
    /// # Errors
    /// [`Error::Usage`] with every difference and both values, if it may not, or cannot.
    pub(super) fn compare(
        &self,
        saved: &Record,
        may_change: bool,
        ranks: usize,
    ) -> Result<Vec<String>, Error> {
        let mut differences = Vec::new();
        let mut fixed = Vec::new();
        let is_resized = saved.noted::<usize>("ranks").is_ok_and(|saved| saved != ranks);
        for (name, now) in &self.0 {
            let was = saved.noted::<String>(&fact(name)).unwrap_or_else(|_| "unknown".to_owned());
            // A schedule over the epochs has as many steps as each rank has batches.
            if was != *now && !(is_resized && *name == "--schedule") {
                differences.push(format!("{name} {was}, and now {now}"));
                fixed.extend(FIXED.contains(name).then_some(*name));
            }
        }
        let what = format!("the checkpoint was made with {}", differences.join("; with "));
        match (differences.is_empty(), fixed.is_empty()) {
            (true, _) => Ok(differences),
            (false, false) => Err(Error::usage(
                what,
                format!(
                    "{} cannot change: keep it, or start a new training in a different folder",
                    fixed.join(" and ")
                ),
            )),
            (false, true) if may_change => Ok(differences),
            (false, true) => Err(Error::usage(
                what,
                "repeat those options, or continue with the new ones by --resume --change",
            )),
        }
    }
}

fn fact(name: &str) -> String {
    format!("with {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_with(values: [&str; 2]) -> MadeWith {
        let [lr, dtype] = values.map(str::to_owned);
        MadeWith(vec![("--lr", lr), ("--dtype", dtype)])
    }

    fn saved(values: [&str; 2]) -> Record {
        let mut record = Record::default();
        made_with(values).note(&mut record);
        record
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let saved = saved(["0.1", "F32"]);
        assert_eq!(made_with(["0.1", "F32"]).compare(&saved, false, 2).unwrap(), [""; 0]);
        let error = made_with(["0.5", "F32"]).compare(&saved, false, 2).unwrap_err().to_string();
        assert!(
            error.contains("made with --lr 0.1, and now 0.5; repeat") && error.contains("--change"),
            "{error}"
        );
        assert_eq!(made_with(["0.5", "F32"]).compare(&saved, true, 2).unwrap(), ["--lr 0.1, and now 0.5"]);
        let error = made_with(["0.5", "F64"]).compare(&saved, true, 2).unwrap_err().to_string();
        assert!(error.contains("--lr 0.1, and now 0.5; with --dtype F32, and now F64"), "{error}");
        assert!(error.contains("--dtype cannot change"), "{error}");
    }

    #[test]
    fn what_an_older_checkpoint_does_not_say_is_unknown() {
        let error = made_with(["0.5", "F32"]).compare(&Record::default(), false, 2).unwrap_err().to_string();
        assert!(error.contains("--lr unknown, and now 0.5"), "{error}");
    }
}
