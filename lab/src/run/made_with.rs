//! With what a training is made: the options and the data that its result depends on. Open this when you add such an
//! option, or ask why a run may not go on from a checkpoint.

use crate::data::{Data, digest};
use crate::options::Checked;
use hexagram::Error;
use hexagram::algorithms::LearningRate;
use hexagram::algorithms::checkpoint::Record;
use hexagram::logical::spelling::Spelled;

/// Names of what keeps its meaning only from a training's beginning.
const FIXED: [&str; 4] = ["--algorithm", "--model", "--optimizer", "--dtype"];

/// Options and data, as names and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeWith(Vec<(&'static str, String)>);

impl MadeWith {
    /// Collects the facts of a training with this learning rate. Reads all of the data to learn from.
    ///
    /// # Errors
    /// What keeps an image from being read.
    pub fn of(checked: &Checked, rate: LearningRate) -> Result<Self, Box<dyn std::error::Error>> {
        let options = &checked.options;
        let Data { train, .. } = &checked.data;
        Ok(MadeWith(vec![
            ("--algorithm", checked.algorithm.to_string()),
            ("--model", options.model.to_string()),
            ("--optimizer", checked.stepper.optimizer.spelled()),
            ("--dtype", format!("{:?}", options.dtype)),
            ("--lr", checked.stepper.learning_rate.to_string()),
            // Without what `--lr` says.
            ("--schedule", rate.short(&checked.stepper.learning_rate.into()).to_string()),
            ("--batch", options.batch.to_string()),
            ("--seed", options.seed.to_string()),
            ("--data", format!("{} images of digest {:016x}", train.len(), digest(train)?)),
        ]))
    }

    /// Says it in one line.
    pub fn text(&self) -> String {
        self.0.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(" ")
    }

    /// Notes it in a checkpoint.
    pub fn note(&self, record: &mut Record) {
        self.0.iter().for_each(|(name, value)| record.note(&fact(name), value));
    }

    /// Compares it with what a checkpoint was made with. Returns what differs, if that `may_change`.
    ///
    /// # Errors
    /// [`Error::Usage`] with every difference and both values, if it may not, or cannot.
    pub fn compare(&self, saved: &Record, may_change: bool) -> Result<Vec<String>, Error> {
        let mut differences = Vec::new();
        let mut fixed = Vec::new();
        for (name, now) in &self.0 {
            let was = saved.noted::<String>(&fact(name)).unwrap_or_else(|_| "unknown".to_owned());
            if was != *now {
                differences.push(format!("{name} {was}, and now {now}"));
                fixed.extend(FIXED.contains(name).then_some(*name));
            }
        }
        let what = format!("the checkpoint was made with {}", differences.join("; with "));
        match (differences.is_empty(), fixed.is_empty()) {
            (true, _) => Ok(differences),
            (false, false) => Err(Error::usage(
                what,
                format!("{} cannot change: leave it, or begin anew in another folder", fixed.join(" and ")),
            )),
            (false, true) if may_change => Ok(differences),
            (false, true) => Err(Error::usage(
                what,
                "give what it was made with, or go on with the new values by --resume --change",
            )),
        }
    }
}

/// Returns the options that two ranks were not given alike, with the values of each: from what each says in one line.
pub fn differing(first: &str, second: &str) -> [String; 2] {
    let options = |text: &str| -> Vec<String> {
        let parts = text.trim().trim_start_matches("--").split(" --");
        parts.map(|part| format!("--{}", part.trim())).collect()
    };
    let alone = |own: &str, other: &str| -> String {
        let others = options(other);
        let own: Vec<String> = options(own).into_iter().filter(|option| !others.contains(option)).collect();
        if own.is_empty() { "no more options".to_owned() } else { own.join(" ") }
    };
    [alone(first, second), alone(second, first)]
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
        assert_eq!(made_with(["0.1", "F32"]).compare(&saved, false).unwrap(), [""; 0]);
        let error = made_with(["0.5", "F32"]).compare(&saved, false).unwrap_err().to_string();
        assert!(
            error.contains("made with --lr 0.1, and now 0.5; give") && error.contains("--change"),
            "{error}"
        );
        assert_eq!(made_with(["0.5", "F32"]).compare(&saved, true).unwrap(), ["--lr 0.1, and now 0.5"]);
        let error = made_with(["0.5", "F64"]).compare(&saved, true).unwrap_err().to_string();
        assert!(error.contains("--lr 0.1, and now 0.5; with --dtype F32, and now F64"), "{error}");
        assert!(error.contains("--dtype cannot change"), "{error}");
    }

    #[test]
    fn only_what_differs_is_said_of_two_ranks() {
        let first = "--algorithm d-psgd(graph=torus) --lr 0.1 --epochs 3 --checkpoint --every 100";
        let second = "--algorithm d-psgd --lr 0.1 --epochs 4 --checkpoint --every 100";
        let said = ["--algorithm d-psgd(graph=torus) --epochs 3", "--algorithm d-psgd --epochs 4"];
        assert_eq!(differing(first, second), said);
        assert_eq!(differing("--lr 1 --trace", "--lr 1"), ["--trace", "no more options"]);
    }

    #[test]
    fn what_an_older_checkpoint_does_not_say_is_unknown() {
        let error = made_with(["0.5", "F32"]).compare(&Record::default(), false).unwrap_err().to_string();
        assert!(error.contains("--lr unknown, and now 0.5"), "{error}");
    }
}
