//! `simulate --train`: trains a small model with real numbers on the ranks of the simulated cluster.

use super::job::{ClusterPoint, SimulatedJobOptions, check_time};
use super::options::SimulateOptions;
use super::report::SimulateReport;
use crate::program::arguments::optimizer_args::OptimizerArgs;
use crate::program::console::{self, ProgramError, bytes, markdown_row, percent};
use crate::program::{ChosenAlgorithm, OverlappedPasses, Setting, record};
use crate::training::{OnCluster, SimulatedTraining, Training, train_on_cluster};
use clap::Args;
use hexagram::physical::device::DeviceChoice;
use hexagram::physical::sim::Rates;
use hexagram::physical::transport::HEADER_BYTES;
use hexagram::{Error, JoinOptions, Result};
use serde_json::{Value, json};

/// Total steps of all ranks above which a training reports its progress on standard error.
const LONG: u64 = 10_000;

/// Options of a training with real numbers.
#[derive(Args, Debug, Clone)]
pub struct TrainingOptions {
    /// Train a small model with real numbers, instead of simulating the sizes of a large one: quadratics,
    /// noisy-quadratics, digits or text
    #[arg(long, value_name = "TASK", conflicts_with_all = ["model", "warmup", "all_steps"])]
    pub train: Option<String>,
    /// With --train: division of the data among ranks: equal, 'dirichlet(0.1)', 'shards(2)' or 'quantity(0.5)'
    #[arg(long, default_value = "equal", requires = "train")]
    pub partition: String,
    /// With --train: peak learning rate [default: that of the algorithm or the optimizer]
    #[arg(long, requires = "train", allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// With --train: schedule of the learning rate, as in 'cosine(warmup=50, end=0.1)'
    #[arg(long, default_value = "constant", requires = "train")]
    pub schedule: String,
}

const HEADING: [&str; 9] = [
    "algorithm",
    "ranks on hosts",
    "link",
    "virtual s",
    "ms a step",
    "loss",
    "accuracy",
    "replicas",
    "sent a rank and step",
];

/// Trains by each algorithm on each cluster.
pub(super) fn train(
    options: &SimulateOptions,
    task: &str,
    algorithms: &[ChosenAlgorithm],
    points: &[ClusterPoint],
) -> Result<(), ProgramError> {
    let setting = options.setting(task)?;
    let rates = options.job.rates()?;
    let trainings: Result<Vec<_>> = algorithms.iter().map(|chosen| setting.training(chosen)).collect();
    let trainings = trainings?;
    let about = trainings.first().map(Training::about).unwrap_or_default();
    let mut report =
        SimulateReport::new(options, &format!("{about}, with real numbers in virtual time"), &HEADING);
    for point in points {
        for (chosen, training) in algorithms.iter().zip(&trainings) {
            let row = options.job.trained(chosen, training, &rates, point)?;
            report.add(&row.table_row(), row.json())?;
        }
    }
    report.finish()
}

impl SimulateOptions {
    /// Returns the options of an equal `train`.
    fn setting(&self, task: &str) -> Result<Setting> {
        if self.job.overlap == OverlappedPasses::Forward {
            let what = "--train runs whole steps, and --overlap forward would end in the middle of one";
            return Err(Error::usage(what, "leave --overlap out, or simulate a --model"));
        }
        if self.job.pace.varies() {
            let what = "--train needs ranks with a constant pace";
            return Err(Error::usage(
                what,
                "leave --compute-jitter and --compute-drift out, or simulate a --model",
            ));
        }
        let TrainingOptions { partition, lr, schedule, .. } = self.training.clone();
        let optimizer = self.job.optimizer.clone();
        Ok(Setting {
            task: task.to_owned(),
            partition,
            ranks: Some(self.job.ranks),
            transport: JoinOptions::default().transport,
            device: DeviceChoice::default(),
            steps: self.steps.map(u64::from),
            seed: self.job.seed,
            stepping: OptimizerArgs { lr, optimizer, weight_decay: None, schedule },
        })
    }
}

impl SimulatedJobOptions {
    /// Trains by one algorithm on one cluster.
    fn trained(
        &self,
        chosen: &ChosenAlgorithm,
        training: &Training,
        rates: &Rates,
        point: &ClusterPoint,
    ) -> Result<TrainedRow> {
        let training = Training {
            ranks: point.ranks,
            compute: self.compute()?.unwrap_or(training.compute),
            hierarchical: self.is_hierarchical(point),
            ..training.clone()
        };
        let program = console::name("simulate");
        let is_long = training.steps * point.ranks as u64 >= LONG;
        let watch = |step: u64, seconds: f64| {
            if is_long {
                let far = format!("step {step} of {}, {seconds:.3} s of virtual time", training.steps);
                console::line(&program, format!("{}: {far}", chosen.spelling));
            }
        };
        let simulation = self.simulation(point, rates)?;
        let slowness = self.slowness(point.ranks)?;
        let slowest = slowness.iter().copied().fold(0.0, f64::max);
        check_time(training.compute.as_secs_f64() * slowest * training.steps as f64)?;
        let simulated = train_on_cluster(&training, &OnCluster { simulation, slowness, watch: &watch })?;
        Ok(TrainedRow { algorithm: chosen.spelling.clone(), point: point.clone(), training, simulated })
    }
}

/// One training.
struct TrainedRow {
    algorithm: String,
    point: ClusterPoint,
    training: Training,
    simulated: SimulatedTraining,
}

impl TrainedRow {
    fn table_row(&self) -> String {
        let ClusterPoint { ranks, hosts, .. } = &self.point;
        let link = self.point.hosts_link();
        let outcome = &self.simulated.outcome;
        let last = outcome.last();
        let loss = last.evaluation.loss;
        let accuracy = last.evaluation.accuracy.unwrap_or(f64::NAN);
        let apart = || format!("{:.4} apart", last.consensus);
        markdown_row(&[
            format!("`{}`", self.algorithm),
            format!("{ranks} on {hosts}"),
            link.to_string(),
            format!("{:.3}", last.seconds),
            format!("{:.2}", 1e3 * last.seconds / self.steps()),
            if loss.is_finite() { format!("{loss:.4}") } else { "diverged".to_owned() },
            percent(accuracy),
            if outcome.is_identical() { "identical".to_owned() } else { apart() },
            bytes(self.bytes() as u64),
        ])
    }

    fn json(&self) -> Value {
        let ClusterPoint { ranks, hosts, .. } = &self.point;
        let link = self.point.hosts_link();
        let outcome = &self.simulated.outcome;
        let last = outcome.last();
        let state = |point: &crate::outcome::CurvePoint| {
            json!({
                "step": point.step, "seconds": point.seconds, "loss": point.evaluation.loss,
                "accuracy": point.evaluation.accuracy, "consensus_distance": point.consensus,
            })
        };
        json!({
            "algorithm": self.algorithm,
            "learning_rate": self.training.learning_rate.base,
            "ranks": ranks,
            "hosts": hosts,
            "bandwidth_bps": link.bandwidth * 8.0,
            "latency_s": link.latency.as_secs_f64(),
            "steps": self.training.steps,
            "seconds": last.seconds,
            "step_s": last.seconds / self.steps(),
            "loss": last.evaluation.loss,
            "accuracy": last.evaluation.accuracy,
            "own_loss": outcome.own.loss,
            "consensus_distance": last.consensus,
            "identical": outcome.is_identical(),
            "replicas": record::hashes(outcome),
            "bytes_per_rank_step": self.bytes(),
            "curve": outcome.curve.iter().map(state).collect::<Vec<_>>(),
            "events": self.simulated.events,
            "fingerprint": format!("{:016x}", self.simulated.fingerprint),
        })
    }

    fn steps(&self) -> f64 {
        self.training.steps as f64
    }

    /// Returns the bytes that a rank sends in a step, mean of all ranks, without message headers.
    fn bytes(&self) -> f64 {
        let last = self.simulated.outcome.last();
        (last.mean_bytes() - HEADER_BYTES as f64 * last.mean_messages()) / self.steps()
    }
}
