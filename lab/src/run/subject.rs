//! Options for the training data: digits, or lines of different lengths, and the sampler that distributes them.

use super::{Costs, RunError, RunOptions, SamplerKind, Subject};
use crate::task::{Digits, Images, LinesTask, LinesText, Task};
use clap::{Args, ValueEnum};
use hexagram::Error;
use std::path::PathBuf;
use std::time::Duration;

/// Options of a training of one of the laboratory's tasks.
#[derive(Args, Debug, Clone)]
pub struct TaskOptions {
    /// Model and data. `digits` recognizes handwritten digits. `text` predicts the characters of lines of different lengths
    #[arg(long, value_enum, hide_possible_values = true, value_name = "NAME", default_value_t)]
    task: TaskName,
    /// A file of digits in place of those that are compiled in: 64 pixels 0..16 and a label per line, .csv or .csv.gz
    #[arg(long)]
    data: Option<PathBuf>,
    /// Sampler that gives lines of a text to ranks. `distributed` draws at random. The others balance the ranks:
    /// `load-balancing` gives them lines of about the same length, `cost-balanced` gives them as many characters in a step,
    /// and `batch` makes all batches of about as many characters
    #[arg(long, value_enum, hide_possible_values = true, value_name = "NAME", default_value_t)]
    sampler: SamplerKind,
    /// Text file to learn. A line is a sample [default: 212 lines of verse and prose]
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Random lines in place of a text
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "text")]
    lengths: Option<Lengths>,
    /// Time that a rank takes for a character of a text, as if it had a device of its own
    #[arg(long, value_name = "MICROSECONDS")]
    character_time: Option<f64>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Default)]
enum TaskName {
    #[default]
    Digits,
    Text,
}

#[derive(ValueEnum, Debug, Clone, Copy)]
enum Lengths {
    /// 4096 lines, half of them above 40 characters, one in six above 120
    LogNormal,
}

impl TaskOptions {
    /// Returns the task, and the training subject of a program with these options.
    ///
    /// # Errors
    /// If an option does not fit the task, or the data cannot be read.
    pub fn load(
        &self,
        program: &'static str,
        options: &RunOptions,
    ) -> Result<(Box<dyn Task>, Subject), RunError> {
        self.check()?;
        match self.task {
            TaskName::Digits => {
                let images = self.data.as_ref().map_or_else(Images::embedded, Images::read)?;
                let digits = Digits::wide(&images);
                let subject = Subject {
                    program,
                    model: "digits".to_owned(),
                    rates: "digits",
                    dtype: "f32",
                    samples: digits.images().len(),
                    digest: digits.images().digest(),
                    costs: None,
                };
                Ok((Box::new(digits), subject))
            }
            TaskName::Text => {
                let microseconds = self.character_time.unwrap_or(0.0);
                let lines =
                    LinesTask::new(self.text(options.seed)?, Duration::from_secs_f64(microseconds / 1e6));
                let costs = lines.costs();
                let subject = Subject {
                    program,
                    model: "text".to_owned(),
                    rates: "text",
                    dtype: "f32",
                    samples: costs.len(),
                    digest: lines.digest(),
                    costs: Some(Costs::new(self.sampler, costs)?),
                };
                Ok((Box::new(lines), subject))
            }
        }
    }

    fn text(&self, seed: u64) -> Result<LinesText, RunError> {
        Ok(match (&self.text, self.lengths) {
            (Some(path), _) => LinesText::read(path).map_err(|error| -> RunError { error })?,
            (None, Some(Lengths::LogNormal)) => LinesText::log_normal(seed),
            (None, None) => LinesText::embedded(),
        })
    }

    /// Refuses an option that the task does not have.
    fn check(&self) -> Result<(), Error> {
        let of_text = [
            ("--sampler", self.sampler != SamplerKind::Distributed),
            ("--text", self.text.is_some()),
            ("--lengths", self.lengths.is_some()),
            ("--character-time", self.character_time.is_some()),
        ];
        if self.task == TaskName::Text {
            if self.data.is_some() {
                let what = "--data is a file of digits, which the task text does not read";
                return Err(Error::usage(what, "name a text by --text"));
            }
            let time = self.character_time.filter(|time| !(0.0..=1e6).contains(time));
            return time.map_or(Ok(()), |time| {
                let remedy = "choose microseconds from 0 to 1000000, such as 20";
                Err(Error::usage(format!("--character-time {time} is out of range"), remedy))
            });
        }
        match of_text.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((option, _)) => {
                let what =
                    format!("{option} is for samples of different lengths, and those of digits are alike");
                Err(Error::usage(what, "add --task text, or leave the option out"))
            }
        }
    }
}
