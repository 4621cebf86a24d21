//! The figures of a run on disk, written as it runs: one line of JSON per step, one per epoch, one at the end.
//!
//! ```text
//! {"event":"step","epoch":1,"step":12,"loss":2.19,"learning_rate":0.15,"seconds":0.41,"metrics":{"staleness":3.0}}
//! {"event":"epoch","epoch":1,"loss":2.25,"test_accuracy":0.31,"consensus_distance":0.02,"samples_per_s":9120.0,"comm_fraction":0.2,"bytes_sent":81920,"seconds":0.6}
//! {"event":"step",…,"tokens":[480,517]} and {"event":"epoch",…,"tokens_per_s":81000.0,"waiting":[0.1,0.02],…} where samples cost differently
//! {"event":"summary","ranks":4,"algorithm":"gradient-allreduce","transport":"shm","epochs":1,"test_accuracy":0.31,…}
//! ```

use super::work::StepWork;
use hexagram::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Figures of one step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StepMetrics {
    /// The epoch it belongs to.
    pub(super) epoch: u64,
    /// Its number, counted through the whole run.
    pub(super) step: u64,
    /// The training loss of its batch, in nats.
    pub(super) loss: f64,
    /// Its learning rate.
    pub(super) learning_rate: f64,
    /// Seconds since the run began.
    pub(super) seconds: f64,
    /// Numbers that the algorithm gave out, by name, on rank 0.
    pub(super) metrics: BTreeMap<String, f64>,
    /// Tokens of each rank; empty if all samples cost the same.
    pub(super) tokens: Vec<f64>,
}

/// Figures of one epoch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EpochMetrics {
    /// Its number.
    pub(super) epoch: u64,
    /// The mean training loss of its steps, in nats.
    pub(super) loss: f64,
    /// Share of the held-out samples that the mean of the replicas recognized, from 0 to 1.
    pub(super) test_accuracy: f64,
    /// Root mean square of the replicas' distances from their mean, (1/n Σᵢ ‖xᵢ − x̄‖²)^½; 0 where they are identical.
    pub(super) consensus_distance: f64,
    /// Samples that all ranks together trained on, a second.
    pub(super) samples_per_s: f64,
    /// Share of the epoch that was spent waiting for communication, from 0 to 1.
    pub(super) comm_fraction: f64,
    /// Bytes that all ranks together sent in the epoch's steps, without headers, so equal on every transport.
    pub(super) bytes_sent: u64,
    /// Seconds since the run began.
    pub(super) seconds: f64,
    /// Work of each rank, where samples cost differently.
    pub(super) work: Option<StepWork>,
}

/// Creates the folder of a run, and its parent folders, if they are missing.
///
/// # Errors
/// [`Error::System`] if it cannot be created.
pub(crate) fn prepare(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).map_err(|cause| {
        let what = format!("create the directory {}", directory.display());
        let is_adrift = directory.is_relative() && std::env::current_dir().is_err();
        let remedy = match is_adrift {
            true => {
                "the working directory was deleted: change to one that exists, or use an absolute path for --out"
            }
            false => "choose a writable folder",
        };
        Error::system(what, cause, remedy)
    })
}

/// Writes `metrics.jsonl` in a run's folder, and keeps the figures for a picture.
///
/// Lines reach the system at the end of every epoch, so a killed run leaves all its finished epochs. A figure that is
/// not finite (a loss that diverged) is written as `null`.
#[derive(Debug)]
pub(super) struct MetricsFile {
    path: PathBuf,
    file: BufWriter<File>,
    steps: Vec<StepMetrics>,
    epochs: Vec<EpochMetrics>,
    /// Newest step in the file that earlier members of the job have written.
    written: u64,
}

impl MetricsFile {
    /// Starts the file, in a folder that is created if it is missing, with its parents. Replaces the file of an earlier run, or
    /// continues it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the folder cannot be created, or the file cannot be written.
    pub(super) fn open(directory: impl AsRef<Path>, appends: bool) -> Result<Self> {
        let directory = directory.as_ref();
        prepare(directory)?;
        let path = directory.join("metrics.jsonl");
        let file = File::options().write(true).create(true).truncate(false).open(&path);
        let mut file = file.map_err(|cause| not_written(&path, cause))?;
        // All trainings of the machine may write to one /dev/null.
        if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            // Held while the file is open: a second training would mix its figures with these.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                let what = format!("a running training writes its figures to {}", directory.display());
                return Err(Error::usage(what, "choose a different folder with --out"));
            }
            let placed = if appends { file.seek(SeekFrom::End(0)).map(drop) } else { file.set_len(0) };
            placed.map_err(|cause| not_written(&path, cause))?;
        }
        let file = BufWriter::new(file);
        Ok(MetricsFile { path, file, steps: Vec::new(), epochs: Vec::new(), written: 0 })
    }

    /// Removes the lines of steps after `step`, and of the ends of `epoch`, which counts from 0, and later ones: earlier
    /// members of the job have written them, and they happen again. Also removes a line that a killed rank has cut short.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the file cannot be read or written.
    pub(super) fn take_back(&mut self, step: u64, epoch: u64) -> Result<()> {
        let file = self.file.get_mut();
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Ok(());
        }
        let taken_back = fs::read(&self.path).and_then(|text| {
            let (end, newest) = lines_up_to(&text, step, epoch);
            self.written = newest;
            file.set_len(end as u64)?;
            file.seek(SeekFrom::Start(end as u64)).map(drop)
        });
        taken_back.map_err(|cause| not_written(&self.path, cause))
    }

    /// Records a step, unless the file has it.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the disk is full or missing.
    pub(super) fn step(&mut self, step: StepMetrics) -> Result<()> {
        if step.step <= self.written {
            self.steps.push(step);
            return Ok(());
        }
        let mut fields = vec![
            ("event", json!("step")),
            ("epoch", json!(step.epoch)),
            ("step", json!(step.step)),
            ("loss", json!(step.loss)),
            ("learning_rate", json!(step.learning_rate)),
            ("seconds", json!(step.seconds)),
        ];
        if !step.metrics.is_empty() {
            fields.push(("metrics", json!(step.metrics)));
        }
        if !step.tokens.is_empty() {
            fields.push(("tokens", json!(step.tokens)));
        }
        self.steps.push(step);
        self.write(&fields)
    }

    /// Records an epoch, and hands everything so far to the system.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the disk is full or missing.
    pub(super) fn epoch(&mut self, epoch: EpochMetrics) -> Result<()> {
        let mut fields = vec![
            ("event", json!("epoch")),
            ("epoch", json!(epoch.epoch)),
            ("loss", json!(epoch.loss)),
            ("test_accuracy", json!(epoch.test_accuracy)),
            ("consensus_distance", json!(epoch.consensus_distance)),
            ("samples_per_s", json!(epoch.samples_per_s)),
            ("comm_fraction", json!(epoch.comm_fraction)),
            ("bytes_sent", json!(epoch.bytes_sent)),
            ("seconds", json!(epoch.seconds)),
        ];
        fields.extend(epoch.work.as_ref().map(StepWork::fields).unwrap_or_default());
        self.epochs.push(epoch);
        self.write(&fields)?;
        self.flush()
    }

    /// Records the end of the run, with the fields of its report.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the disk is full or missing.
    pub(super) fn summary(&mut self, report: &[(&str, Value)]) -> Result<()> {
        self.write(&[&[("event", json!("summary"))], report].concat())?;
        self.flush()
    }

    /// Returns the folder of the file.
    pub(super) fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Returns all steps so far, in the order they were recorded.
    pub(super) fn steps(&self) -> &[StepMetrics] {
        &self.steps
    }

    /// Returns all epochs so far, in the order they were recorded.
    pub(super) fn epochs(&self) -> &[EpochMetrics] {
        &self.epochs
    }

    /// Writes one line. By hand, because a JSON map would sort the fields, and people read these lines too.
    fn write(&mut self, fields: &[(&str, Value)]) -> Result<()> {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
        let written = writeln!(self.file, "{{{}}}", fields.join(","));
        written.map_err(|cause| self.failed(cause))
    }

    /// Hands everything so far to the system.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the disk is full or missing.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: io::Error) -> Error {
        not_written(&self.path, cause)
    }
}

/// Returns the length of the lines up to `step`, without the end of `epoch`, which counts from 0; and the number of the newest
/// step in them. Reads from the end, since few lines come after.
fn lines_up_to(text: &[u8], step: u64, epoch: u64) -> (usize, u64) {
    let begin_of_line = |text: &[u8]| text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut end = begin_of_line(text);
    let mut kept = None;
    while end > 0 {
        let begin = begin_of_line(&text[..end - 1]);
        let line: Value = serde_json::from_slice(&text[begin..end]).unwrap_or_default();
        match (line["event"].as_str(), line["step"].as_u64(), line["epoch"].as_u64()) {
            (Some("step"), Some(of), _) if of <= step => return (kept.unwrap_or(end), of),
            (Some("epoch"), _, Some(of)) if of <= epoch => kept = kept.or(Some(end)),
            _ => kept = None,
        }
        end = begin;
    }
    (0, 0)
}

/// Returns the error of a file of a run that could not be written.
pub(super) fn not_written(path: &Path, cause: io::Error) -> Error {
    let remedy = "free disk space there, or choose a different folder for the run";
    Error::system(format!("write {}", path.display()), cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: StepMetrics = StepMetrics {
        epoch: 0,
        step: 7,
        loss: 2.5,
        learning_rate: 0.1,
        seconds: 0.25,
        metrics: BTreeMap::new(),
        tokens: Vec::new(),
    };
    const EPOCH: EpochMetrics = EpochMetrics {
        epoch: 0,
        loss: 2.0,
        test_accuracy: 0.5,
        consensus_distance: 0.125,
        samples_per_s: 1000.0,
        comm_fraction: 0.25,
        bytes_sent: 80,
        seconds: 1.5,
        work: None,
    };

    /// A directory for one test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("hexagram-metrics-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Scratch(path)
        }

        fn lines(&self) -> Vec<Value> {
            let text = fs::read_to_string(self.0.join("metrics.jsonl")).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn lines_read_back() {
        let scratch = Scratch::new("lines");
        let mut metrics = MetricsFile::open(&scratch.0, false).unwrap();
        metrics.step(STEP).unwrap();
        metrics.epoch(EPOCH).unwrap();
        metrics.epoch(EpochMetrics { epoch: 1, samples_per_s: 3000.0, seconds: 3.0, ..EPOCH }).unwrap();
        metrics.summary(&[("algorithm", json!("a \"quoted\" name"))]).unwrap();
        let lines = scratch.lines();
        assert_eq!(
            lines[0],
            json!({"event": "step", "epoch": 0, "step": 7, "loss": 2.5, "learning_rate": 0.1, "seconds": 0.25})
        );
        assert_eq!(
            lines[1],
            json!({"event": "epoch", "epoch": 0, "loss": 2.0, "test_accuracy": 0.5,
                   "consensus_distance": 0.125, "samples_per_s": 1000.0, "comm_fraction": 0.25, "bytes_sent": 80, "seconds": 1.5})
        );
        assert_eq!(lines[3], json!({"event": "summary", "algorithm": "a \"quoted\" name"}));
        assert_eq!((metrics.steps(), metrics.epochs().len()), (&[STEP][..], 2));
    }

    #[test]
    fn what_the_algorithm_gave_out_is_on_its_steps_line() {
        let scratch = Scratch::new("algorithm");
        let mut metrics = MetricsFile::open(&scratch.0, false).unwrap();
        let given = BTreeMap::from([("drift".to_owned(), 0.5), ("staleness".to_owned(), f64::NAN)]);
        metrics.step(StepMetrics { metrics: given, ..STEP }).unwrap();
        metrics.epoch(EPOCH).unwrap();
        assert_eq!(scratch.lines()[0]["metrics"], json!({"drift": 0.5, "staleness": null}));
    }

    #[test]
    fn steps_that_are_taken_back_and_a_line_cut_short_are_removed() {
        let scratch = Scratch::new("taken-back");
        let mut metrics = MetricsFile::open(&scratch.0, false).unwrap();
        for epoch in 1..=3 {
            (3 * epoch - 2..=3 * epoch)
                .for_each(|step| metrics.step(StepMetrics { epoch, step, ..STEP }).unwrap());
            metrics.epoch(EpochMetrics { epoch, ..EPOCH }).unwrap();
        }
        metrics.summary(&[]).unwrap();
        drop(metrics);
        let path = scratch.0.join("metrics.jsonl");
        let whole = fs::read_to_string(&path).unwrap();
        let torn = format!("{whole}{}", &whole[..30]);
        // The step from which the training continues, its epoch from 0, and the lines that are left.
        for (step, epoch, lines) in [(9, 3, 12), (9, 2, 11), (7, 2, 9), (6, 1, 7), (5, 1, 6), (0, 0, 0)] {
            for text in [&whole, &torn] {
                fs::write(&path, text).unwrap();
                let mut metrics = MetricsFile::open(&scratch.0, true).unwrap();
                metrics.take_back(step, epoch).unwrap();
                // Written already.
                metrics.step(StepMetrics { step, ..STEP }).unwrap();
                metrics.step(StepMetrics { step: step + 1, ..STEP }).unwrap();
                metrics.summary(&[]).unwrap();
                let found = scratch.lines();
                assert_eq!(found.len(), lines + 2, "{step}");
                assert_eq!(found[lines]["step"], step + 1);
                assert!(fs::read_to_string(&path).unwrap().starts_with(&kept_lines(&whole, lines)));
            }
        }
    }

    fn kept_lines(text: &str, count: usize) -> String {
        text.split_inclusive('\n').take(count).collect()
    }

    #[test]
    fn an_epoch_is_on_disk_before_the_run_ends() {
        let scratch = Scratch::new("flush");
        let mut metrics = MetricsFile::open(scratch.0.join("a/b"), false).unwrap();
        metrics.step(STEP).unwrap();
        metrics.epoch(EPOCH).unwrap();
        assert_eq!(fs::read_to_string(scratch.0.join("a/b/metrics.jsonl")).unwrap().lines().count(), 2);
    }

    #[test]
    fn a_diverged_or_empty_run_is_still_json() {
        let scratch = Scratch::new("nan");
        let mut metrics = MetricsFile::open(&scratch.0, false).unwrap();
        metrics.step(StepMetrics { loss: f64::NAN, ..STEP }).unwrap();
        metrics.epoch(EpochMetrics { loss: f64::INFINITY, ..EPOCH }).unwrap();
        assert!(scratch.lines().iter().all(|line| line["loss"].is_null()));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let scratch = Scratch::new("directory");
        fs::create_dir_all(&scratch.0).unwrap();
        fs::write(scratch.0.join("file"), "").unwrap();
        let error = MetricsFile::open(scratch.0.join("file/run"), false).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("file/run") && text.contains("choose a writable folder"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let scratch = Scratch::new("file");
        fs::create_dir_all(scratch.0.join("metrics.jsonl")).unwrap();
        let error = MetricsFile::open(&scratch.0, false).unwrap_err();
        assert!(error.to_string().contains("metrics.jsonl"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        let scratch = Scratch::new("full");
        fs::create_dir_all(&scratch.0).unwrap();
        std::os::unix::fs::symlink("/dev/full", scratch.0.join("metrics.jsonl")).unwrap();
        let mut metrics = MetricsFile::open(&scratch.0, false).unwrap();
        let error = metrics.epoch(EPOCH).unwrap_err();
        assert!(error.to_string().contains("free disk space"), "{error}");
    }
}
