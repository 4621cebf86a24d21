//! `simulate`: the cost of a training step with each algorithm on a cluster that you do not have, in virtual time.
//!
//! | file | content |
//! |---|---|
//! | `job/` | the simulated job of the options: models, clusters, the speed of ranks |
//! | `sweep` | the values of a sweep |
//! | `calibrate` | the rates of this machine |
//! | `run`, `repeats` | one simulated training; its remaining steps, if they repeat |
//! | `report` | the table and the JSON |
//! | `pictures`, `output_dir` | the folder of `--out` |
//! | `train` | `--train`: a training with real numbers |
//! | `faults/` | `--faults`: small trainings with faults |

pub(super) mod calibrate;
mod faults;
mod file;
pub(super) mod job;
mod options;
mod output_dir;
mod pictures;
mod repeats;
pub(super) mod report;
mod run;
mod sweep;
mod train;

use super::ChosenAlgorithm;
use super::arguments::{information, whole_periods};
use super::console::{ProgramError, print};
use hexagram::algorithms::Registry;
use hexagram::algorithms::trace::check_writable;
use hexagram::{Error, Result};
pub use job::SimulatedJobOptions;
use job::{ClusterPoint, StepCounts};
use options::STEPS;
pub use options::SimulateOptions;
use report::{HEADING, SimulateReport, about};
use sweep::{Sweep, SweptProperty};

/// Runs `simulate`. Returns the exit code.
///
/// # Errors
/// The first invalid option, or the error of a rank, in one line.
pub fn simulate(registry: &Registry, options: &SimulateOptions) -> Result<u8, ProgramError> {
    if let Some(text) = information(registry, options.algorithms(), options.job.optimizer.as_deref()) {
        print(&text?)?;
        return Ok(0);
    }
    if let Some(path) = &options.calibrate {
        calibrate::write(path)?;
        return Ok(0);
    }
    if let Some(asked) = &options.faults.faults {
        return faults::faults(registry, options, asked);
    }
    let chosen = ChosenAlgorithm::listed(registry, options.algorithms())?;
    let Clusters { points, swept } = options.clusters()?;
    options.prepare(&chosen)?;
    if let Some(task) = &options.training.train {
        train::train(options, task, &chosen, &points)?;
        return Ok(0);
    }
    options.measure(&chosen, &points, swept)?;
    Ok(0)
}

impl SimulateOptions {
    /// Measures the steps of each algorithm on each cluster, and reports them.
    fn measure(
        &self,
        chosen: &[ChosenAlgorithm],
        points: &[ClusterPoint],
        swept: Option<SweptProperty>,
    ) -> Result<(), ProgramError> {
        let job = self.job.job()?;
        let steps = |chosen: &ChosenAlgorithm| {
            let counted = self.steps.unwrap_or_else(|| whole_periods(&chosen.algorithm, STEPS));
            StepCounts { warmup: self.warmup, counted }
        };
        let mut report = SimulateReport::new(self, &about(&self.job.model, &job.model), &HEADING);
        let mut rows = Vec::new();
        for point in points {
            for chosen in chosen {
                let row = job.row(chosen, point, steps(chosen))?;
                report.add(&row.table_row(), row.json())?;
                rows.extend(swept.map(|swept| (swept.of(point), row)));
            }
        }
        if let (Some(folder), Some(swept)) = (&self.out, swept) {
            for (name, picture) in pictures::pictures(&self.job.model, swept, &rows) {
                output_dir::write(folder, name, &picture)?;
            }
        }
        if let (Some(file), [chosen], [point]) = (&self.trace, chosen, points) {
            job.trace(chosen, point, steps(chosen))?.save(file)?;
        }
        report.finish()
    }

    /// Returns the clusters to simulate, each of which is checked.
    fn clusters(&self) -> Result<Clusters> {
        let here = self.job.point()?;
        self.job.check(&here)?;
        self.job.check_link(&here)?;
        let Some(text) = &self.sweep else { return Ok(Clusters { points: vec![here], swept: None }) };
        let Sweep { swept, points } = sweep::sweep(text, &here)?;
        if swept != SweptProperty::Ranks {
            self.job.check_link_counts(&here)?;
        }
        points.iter().try_for_each(|point| self.job.check(point))?;
        Ok(Clusters { points, swept: Some(swept) })
    }

    /// Checks that files can be written, before the simulation starts.
    fn prepare(&self, chosen: &[ChosenAlgorithm]) -> Result<()> {
        if let Some(folder) = &self.out {
            output_dir::prepare(folder)?;
        }
        let Some(file) = &self.trace else { return Ok(()) };
        if chosen.len() > 1 {
            let what = format!("--trace needs one algorithm, and {} are chosen", chosen.len());
            return Err(Error::usage(what, "name one with --algorithm"));
        }
        check_writable(file)
    }
}

/// Clusters for which there are figures.
struct Clusters {
    points: Vec<ClusterPoint>,
    /// Property in which they differ.
    swept: Option<SweptProperty>,
}
