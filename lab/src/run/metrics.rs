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
use std::fs::{File, TryLockError};
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
    std::fs::create_dir_all(directory).map_err(|cause| {
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
        Ok(MetricsFile { path, file: BufWriter::new(file), steps: Vec::new(), epochs: Vec::new() })
    }

    /// Records a step.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the disk is full or missing.
    pub(super) fn step(&mut self, step: StepMetrics) -> Result<()> {
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

    fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|cause| self.failed(cause))
    }

    fn failed(&self, cause: io::Error) -> Error {
        not_written(&self.path, cause)
    }
}

/// Returns the error of a file of a run that could not be written.
pub(super) fn not_written(path: &Path, cause: io::Error) -> Error {
    let remedy = "free disk space there, or choose a different folder for the run";
    Error::system(format!("write {}", path.display()), cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
